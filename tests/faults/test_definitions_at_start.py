"""Members that are all started with the same file of definitions: they are there when clients are let in, and once."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.fleet import Fleet

pytestmark = [pytest.mark.faults]
NAMES = ("a", "b", "c")
COUNT = 1200
DOCUMENT: dict[str, Any] = {
    "users": [{"name": "guest", "password": "guest", "tags": "administrator"}],
    "vhosts": [{"name": "/"}],
    "permissions": [{"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}],
    "queues": [{"vhost": "/", "name": f"q{number}"} for number in range(COUNT)],
}


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    made = Fleet(tmp_path)
    try:
        yield made
    finally:
        await made.kill_all()


def written(directory: Path, document: dict[str, Any]) -> str:
    file = directory / "definitions.json"
    file.write_text(json.dumps(document))
    return str(file)


def told(fleet: Fleet, name: str) -> list[dict[str, Any]]:
    """What the node said of definitions, but for its waiting."""
    lines = [json.loads(line) for line in fleet.node(name).log.read_text().splitlines() if '"definitions.' in line]
    return [line for line in lines if line["event"] != "definitions.wait"]


async def test_three_members_with_the_same_file(fleet: Fleet, tmp_path: Path) -> None:
    """More than one part, so they meet each other's imports; the cluster has all of it once, whoever came first."""
    peers, file = fleet.peers(*NAMES), written(tmp_path, DOCUMENT)
    for name in NAMES:
        fleet.launch(name, "--peers", peers, "--definitions-file", file)
    await fleet.ready(*NAMES)
    events = [[line["event"] for line in told(fleet, name)] for name in NAMES]
    assert all(of in (["definitions.imported"], ["definitions.known"]) for of in events), events
    assert ["definitions.imported"] in events
    for name in NAMES:
        assert len((await fleet.ask(name, "queues"))["queues"]) == COUNT
    await fleet.publish("a", f"q{COUNT - 1}", [b"x"])
    # one that comes back finds all of it, but for what now contradicts it: it is told, and comes back
    await fleet.stop("b")
    other = DOCUMENT | {"queues": [{"vhost": "/", "name": "new"}, {"vhost": "/", "name": "q7", "durable": False}]}
    fleet.launch("b", "--peers", peers, "--definitions-file", written(tmp_path, other))
    await fleet.ready("b")
    last = told(fleet, "b")[-1]
    assert last["event"] == "definitions.refused"
    assert "'q7'" in last["why"]
    assert len((await fleet.ask("b", "queues"))["queues"]) == COUNT
    assert await fleet.consume("b", f"q{COUNT - 1}", 1) == [b"x"]
