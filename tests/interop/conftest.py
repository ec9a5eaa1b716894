"""One started broker for all client libraries; what a test names is its own.

INTEROP_CLUSTER unset    one node
INTEROP_CLUSTER=3        three nodes that are one broker; clients connect to them in turn
INTEROP_CLUSTER=a|b|c    the same, with all clients at that node
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterbroker.broker.trial.nodes import LocalCluster
from tests.faults.node import NodeProcess

from .amqp10_queues import Queues

_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/interop/"):
            item.add_marker(pytest.mark.interop)


class ClusterProcesses:
    """A cluster where tests expect a node. `url` is that of the next node in turn."""

    def __init__(self, directory: Path, only: str = "") -> None:
        self.directory = directory
        self._cluster = LocalCluster(directory)
        self._turns = itertools.cycle(list(only) or self._cluster.names)
        self._last = "a"

    @property
    def url(self) -> str:
        self._last = next(self._turns)
        return f"amqp://guest:guest@127.0.0.1:{self._cluster.target(self._last).port}/"

    @property
    def data_dir(self) -> Path:
        """Of the node that the last `url` named."""
        return self._cluster.data_dir(self._last)

    @property
    def log(self) -> str:
        return "".join(node.log.read_text(errors="replace") for node in self._cluster.nodes.values())

    def start(self) -> ClusterProcesses:
        asyncio.run(self._cluster.begin())
        return self

    def stop(self) -> int:
        codes = []
        for node in self._cluster.nodes.values():  # together: none waits for the others
            node.send(signal.SIGTERM)
        for node in self._cluster.nodes.values():
            assert node.process is not None, "it was started"
            codes.append(node.process.wait(30))
        return max(codes, key=abs)

    def kill(self) -> None:
        asyncio.run(self._cluster.end())


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess | ClusterProcesses]:
    """Shared by the tests that leave it running."""
    chosen = os.environ.get("INTEROP_CLUSTER", "")
    directory = tmp_path_factory.mktemp("interop")
    node: NodeProcess | ClusterProcesses
    if chosen:
        node = ClusterProcesses(directory, "" if chosen == "3" else chosen)
    else:
        node = NodeProcess(directory, {"journal.segment_bytes": "8MiB"})
    try:
        yield node.start()
        code = node.stop()
    finally:
        node.kill()
    assert code == 0, f"the node ended with {code}: {node.log[-2000:]}"
    assert "Traceback" not in node.log, node.log[-4000:]


@pytest.fixture
def own_node(tmp_path: Path) -> Iterator[NodeProcess]:
    """For tests that restart it."""
    node = NodeProcess(tmp_path / "node", {"journal.segment_bytes": "8MiB"})
    yield node.start()
    node.kill()


@pytest.fixture
def name() -> Callable[[str], str]:
    """A name that no other test uses."""
    return lambda stem="q": f"{stem}-{next(_numbers)}"


@pytest.fixture
def queues(node: NodeProcess | ClusterProcesses, name: Callable[[str], str]) -> Queues:
    return Queues(node.url, name)
