"""Every row of `command_rows`, at a real cluster of three: through the data directory and by URL. A path of the
management API that no command asks fails here; a command without a row fails beside the rows."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from clusterbroker.broker.cli.api import Api
from clusterbroker.broker.cli.main import app
from clusterbroker.broker.trial.client import Client
from clusterbroker.broker.trial.nodes import LOOPBACK, free_port
from clusterbroker.broker.wire.amqp091 import methods
from tests.faults.fleet import Fleet
from tests.unit.broker.cli.command_rows import BOTH, HERE, NOT_ASKED, ROWS, THERE, Row, paths

pytestmark = [pytest.mark.faults]
NAMES = ("a", "b", "c")
PATIENCE_S = 60.0


class Place:
    """Three nodes with their management API, a client with a consumer, and what rows are filled with."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.fleet = Fleet(directory)
        self.ports = {name: free_port() for name in NAMES}
        self.client: Client | None = None
        self.asked: set[str] = set()

    async def begin(self) -> None:
        for name in NAMES:
            http = f"{LOOPBACK}:{self.ports[name]}"
            self.fleet.launch(name, "--peers", self.fleet.peers(*NAMES), "--http", http)
        self.fleet.launch("alone")
        await self.fleet.ready(*NAMES, "alone")
        await self.fleet.publish("alone", "kept", [b"body"])
        assert await self.fleet.stop("alone") == 0

    async def connect(self, way: str) -> None:
        """A client at another node than the one that is asked, with a tag that no earlier one has."""
        self.client = await self.fleet.client("b")
        await self.client.call(methods.QueueDeclare(queue="consumed", durable=True))
        await self.client.call(methods.BasicConsume(queue="consumed", consumer_tag=f"tag-{way}"))

    @property
    def environment(self) -> dict[str, str]:
        clean = {name: None for name in os.environ if name.startswith("CLUSTERBROKER_")}
        return {**clean, "COLUMNS": "300"}  # type: ignore[dict-item]

    def run(self, way: str, words: list[str], stdin: str = "") -> Result:
        """`clusterbroker WORDS`, at node a."""
        environment = dict(self.environment)
        if way == THERE:
            environment["CLUSTERBROKER_URL"] = f"http://{LOOPBACK}:{self.ports['a']}"
            environment["CLUSTERBROKER_USER"] = environment["CLUSTERBROKER_PASSWORD"] = "guest"
        else:
            environment["CLUSTERBROKER_DATA_DIR"] = str(self.fleet.node("a").data_dir)
        return CliRunner().invoke(app, words, input=stdin, env=environment, catch_exceptions=False)

    async def sampled(self, way: str) -> tuple[str, str]:
        """Names of the client's connection and channel, once they are told."""
        end_s = time.monotonic() + PATIENCE_S
        while True:
            done = await asyncio.to_thread(self.run, way, ["consumers", "list", "--json"])
            assert done.exit_code == 0, done.output
            for row in json.loads(done.stdout):
                if row["consumer_tag"] == f"tag-{way}" and "connection_name" in row["channel_details"]:
                    return row["channel_details"]["connection_name"], row["channel_details"]["name"]
            assert time.monotonic() < end_s, done.stdout
            await asyncio.sleep(0.2)

    async def names(self, way: str) -> dict[str, Any]:
        connection, channel = await self.sampled(way)
        empty = self.directory / "empty.json"
        empty.write_text("{}")
        return {
            "way": way, "v": f"v/{way}", "u": f"user-{way}", "connection": connection, "channel": channel,
            "cluster": "cluster name", "http": self.ports["a"], "dir": self.fleet.node("alone").data_dir,
            "file": self.directory / "definitions.json", "empty": empty, "csv": self.directory / "kept.csv",
            "at": self.fleet.at("a"),
            "fresh": f"{LOOPBACK}:{free_port()}", "secret": self.fleet.secret, "newcomer": self.directory / "newcomer",
        }  # fmt: skip


@pytest.fixture
async def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    made = Place(tmp_path)
    sent = Api._sent

    def recorded(self: Api, method: str, path: str, *more: Any, **given: Any) -> Any:
        made.asked.add(f"{method} {path}")
        return sent(self, method, path, *more, **given)

    monkeypatch.setattr(Api, "_sent", recorded)
    try:
        await made.begin()
        yield made
    finally:
        await made.fleet.kill_all()


def mistake(row: Row, done: Result, said: str) -> str:
    """How a command ended otherwise than its row says, in as many words; empty: it did not."""
    one_line = done.exit_code == 0 or len(done.stderr.splitlines()) == 1 or bool(done.stdout)
    if done.exit_code == row.code and said in done.output and "s3cret" not in done.output and one_line:
        return ""
    return f"exit code {done.exit_code}, expected {row.code} with {said!r}: {done.stdout!r}, stderr {done.stderr!r}"


async def test_all_of_them(place: Place) -> None:
    found: list[str] = []
    for way in (HERE, THERE):
        await place.connect(way)
        names = await place.names(way)
        for row in ROWS:
            if row.ways in (BOTH, way):
                words = [word.format(**names) for word in row.words.split(" ")]
                done = await asyncio.to_thread(place.run, way, words, row.stdin)
                if wrong := mistake(row, done, row.said.format(**names)):
                    found.append(f"{way}: {' '.join(words)}: {wrong}")
        assert place.client is not None
        await asyncio.wait_for(place.client.lost.wait(), PATIENCE_S)
        assert "test" in place.client.why
    assert not found, "\n".join(found)
    await place.fleet.kill("c")
    await dead(place, "c")
    done = await asyncio.to_thread(place.run, THERE, ["forget-node", "c", "--yes"])
    assert (done.exit_code, done.stdout) == (0, "c is a member no more\n"), done.stderr
    assert "c" not in await place.fleet.members("a")
    assert paths() - place.asked - set(NOT_ASKED) == set(), "what the API does and no command asks for"


async def dead(place: Place, name: str) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while (await place.fleet.members("a"))[name]["alive"]:
        assert time.monotonic() < end_s
        await asyncio.sleep(0.1)
