"""Nodes for fault tests: each test starts its own, in its own directory, and all are gone when it ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.faults.brokers import started_brokers
from tests.faults.fleet import Fleet
from tests.faults.node import NodeProcess


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/faults/"):
            item.add_marker(pytest.mark.faults)


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[..., NodeProcess]]:
    """`make_node({"limits.heartbeat_s": 2})`: a node that is not started yet."""
    made: list[NodeProcess] = []

    def make(settings: Mapping[str, Any] | None = None, data_dir: Path | None = None) -> NodeProcess:
        small = {"journal.segment_bytes": "8MiB", "log.level": "warning"}
        node = NodeProcess(tmp_path / f"node{len(made)}", {**small, **(settings or {})}, data_dir)
        made.append(node)
        return node

    yield make
    for node in made:
        node.kill()


@pytest.fixture
def node(make_node: Callable[..., NodeProcess]) -> NodeProcess:
    """A started node with default limits."""
    return make_node().start()


@pytest_asyncio.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    """Nodes of a cluster that is not founded yet."""
    fleet = Fleet(tmp_path)
    yield fleet
    await fleet.kill_all()


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    """`brokers("ours")` or `brokers("rabbitmq")`: started."""
    with started_brokers(tmp_path) as make:
        yield make
