"""A management API over the recorded set-up, on TCP and on `http.sock`, and the command line in this process."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvicorn
from typer.testing import CliRunner, Result

from clusterbroker.broker.cli.main import app
from clusterbroker.broker.http.app import create_app
from clusterbroker.broker.http.local import LocalServer
from clusterbroker.broker.oauth2.tokens import Tokens
from clusterbroker.broker.server.control.private_socket import bound
from clusterbroker.broker.server.management import LOCAL
from clusterbroker.cluster.passwords import COST_CHEAP
from tests.authority import Authority
from tests.unit.broker.http.clients import OperationsAtOnce
from tests.unit.broker.management.set_up import NOW_MS, Place, recorded_place
from tests.unit.broker.oauth2 import authority

WIDE = {"COLUMNS": "200", "TERMINAL_WIDTH": "200"}


class Served:
    """The application in a thread with its own loop; `directory` is the node's."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.place: Place = recorded_place()
        self.operations = OperationsAtOnce(self.place, True)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        keys = directory / "keys.json"
        keys.write_bytes(authority.key_set())
        tokens = Tokens(authority.options(keys_file=keys), time.time, lambda *_, **__: None)
        made = create_app(
            self.place.replica, self.operations, now_ms=lambda: NOW_MS, password_cost=COST_CHEAP, tokens=tokens
        )
        self._tcp = uvicorn.Server(uvicorn.Config(made, log_config=None, access_log=False))
        self.certificates = Authority(directory)
        node = self.certificates["node"]
        self._socket_tls = socket.create_server(("127.0.0.1", 0))
        self.url_tls = f"https://127.0.0.1:{self._socket_tls.getsockname()[1]}"
        self._tls = uvicorn.Server(
            uvicorn.Config(made, log_config=None, access_log=False, ssl_certfile=node, ssl_keyfile=node, lifespan="off")
        )
        self._local = LocalServer(made)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self) -> None:
        beside = asyncio.create_task(self._local.serve(sockets=[bound(self.directory, LOCAL)]))
        with_tls = asyncio.create_task(self._tls.serve(sockets=[self._socket_tls]))
        await self._tcp.serve(sockets=[self._socket])
        self._local.should_exit = self._tls.should_exit = True
        await asyncio.gather(beside, with_tls)

    def start(self) -> None:
        self._thread.start()
        while not (self._tcp.started and self._tls.started and self._local.started):
            assert self._thread.is_alive()

    def end(self) -> None:
        self._tcp.should_exit = True
        self._thread.join()


@pytest.fixture(autouse=True)
def _nothing_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("CLUSTERBROKER_"):
            monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    server = Served(tmp_path_factory.mktemp("node"))
    server.start()
    yield server
    server.end()


Run = Callable[..., Result]


@pytest.fixture
def here(served: Served) -> Run:
    """`clusterbroker WORDS --data-dir ...`"""

    def run(*words: str, stdin: str = "", **environment: str) -> Result:
        return invoke(*words, "--data-dir", str(served.directory), stdin=stdin, **environment)

    return run


@pytest.fixture
def there(served: Served) -> Run:
    """The same by URL, as guest."""

    def run(*words: str, stdin: str = "", **environment: str) -> Result:
        signed_in = {
            "CLUSTERBROKER_URL": served.url,
            "CLUSTERBROKER_USER": "guest",
            "CLUSTERBROKER_PASSWORD": "guest",
        }
        return invoke(*words, stdin=stdin, **(signed_in | environment))

    return run


def invoke(*words: str, stdin: str = "", **environment: str) -> Result:
    """`clusterbroker WORDS`."""
    return CliRunner().invoke(app, list(words), input=stdin, env=WIDE | environment, catch_exceptions=False)


@pytest.fixture(name="invoke")
def _invoke() -> Run:
    return invoke
