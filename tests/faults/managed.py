"""Three real nodes, each with its management API, as tests of what they have in common use them."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from clusterbroker.broker.trial.nodes import LOOPBACK, free_port
from tests.faults.fleet import Fleet
from tests.support.children import children_with

NAMES = ("a", "b", "c")
PATIENCE_S = 90.0


class Managed:
    """Three nodes, each with its management API."""

    def __init__(self, directory: Path) -> None:
        self.fleet = Fleet(directory)
        self.ports = {name: free_port() for name in NAMES}
        self.user = ("guest", "guest")

    def launch(self, name: str) -> None:
        peers = self.fleet.peers(*NAMES)
        self.fleet.launch(name, "--peers", peers, "--http", f"{LOOPBACK}:{self.ports[name]}")

    def pid(self, name: str) -> int:
        """Of the management process."""
        process = self.fleet.node(name).process
        assert process is not None
        (child,) = children_with(process.pid, "clusterbroker.broker.http.main")
        return child.pid

    def ask(
        self, name: str, path: str, method: str = "GET", body: Any = None, timeout_s: float = 20
    ) -> tuple[int, Any, dict[str, str]]:
        """Status, document, headers."""
        headers = {"authorization": "Basic " + base64.b64encode(":".join(self.user).encode()).decode()}
        data = None
        if body is not None:
            headers["content-type"] = "application/json"
            data = json.dumps(body).encode()
        url = f"http://{LOOPBACK}:{self.ports[name]}{path}"
        request = urllib.request.Request(url, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                status, text, told = answer.status, answer.read(), answer.headers
        except urllib.error.HTTPError as error:
            status, text, told = error.code, error.read(), error.headers
        return status, json.loads(text or b"null"), {key.lower(): value for key, value in told.items()}

    async def get(self, name: str, path: str) -> Any:
        status, document, _ = await asyncio.to_thread(self.ask, name, path)
        assert status == 200, document
        return document

    async def until(self, name: str, path: str, fits: Callable[[Any], bool]) -> Any:
        """The document, once it is as it must become."""
        end_s = time.monotonic() + PATIENCE_S
        while True:
            document = await self.get(name, path)
            if fits(document):
                return document
            assert time.monotonic() < end_s, document
            await asyncio.sleep(0.1)


M = TypeVar("M", bound=Managed)


@asynccontextmanager
async def running(made: M) -> AsyncIterator[M]:
    """They are started, and gone in the end: frozen ones too."""
    for name in NAMES:
        made.launch(name)
    try:
        await made.fleet.ready(*NAMES)
        yield made
    finally:
        for name in NAMES:
            if made.fleet.node(name).running:
                made.fleet.node(name).send(signal.SIGCONT)
        await made.fleet.kill_all()
