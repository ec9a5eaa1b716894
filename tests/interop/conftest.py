"""One started node for all client libraries; what a test names is its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.node import NodeProcess

_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.interop)


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """Shared by the tests that leave it running."""
    node = NodeProcess(tmp_path_factory.mktemp("interop"), {"journal.segment_bytes": "8MiB"})
    yield node.start()
    code = node.stop()
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
