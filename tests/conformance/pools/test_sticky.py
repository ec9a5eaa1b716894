"""Calls that belong together, at one node and at three, with real workers."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clusterbroker_workers import Pool
from tests.faults.pools import eventually

from .started import StartedNodes

pytestmark = pytest.mark.processes
POOL = "sticky"
WORKERS = 3


@pytest.fixture(scope="module", autouse=True)
def declared(nodes: StartedNodes) -> Iterator[None]:
    """All tests have one pool."""
    nodes.declare(POOL, min=WORKERS, max=WORKERS, grace_s=5)
    yield
    nodes.fails.unlink(missing_ok=True)
    nodes.api("DELETE", f"pools/%2F/{POOL}?force=true")


@pytest.fixture
def caller(nodes: StartedNodes) -> Iterator[Pool]:
    with nodes.roaming_caller(POOL) as made:
        made.call("42", timeout_s=60)
        eventually("all of them are ready", lambda: nodes.groups(POOL).get("42", {}).get("consumers") == WORKERS)
        yield made


def test_they_go_to_one_worker_and_others_go_round(caller: Pool) -> None:
    first = caller.call("42")
    assert {caller.call("42", sticky=first).worker for _ in range(12)} == {first.worker}
    assert len({caller.call("42").worker for _ in range(12)}) == WORKERS
    assert caller.call("42", sticky=first).worker == first.worker, "whoever was asked meanwhile"


def test_a_busy_worker_is_waited_for_a_moment(caller: Pool, tmp_path: Path) -> None:
    first = caller.call("42")
    with ThreadPoolExecutor(2) as threads:
        held = threads.submit(caller.call, "42", str(tmp_path), path="hold", sticky=first, timeout_s=60)
        eventually("it is at work", lambda: any(tmp_path.iterdir()))
        assert caller.call("42", sticky=first, timeout_s=30).worker != first.worker, "another one has done it"
        (tmp_path / "go").touch()
        assert held.result().worker == first.worker
    assert caller.call("42", sticky=first).worker == first.worker


def test_one_that_is_gone_is_not_waited_for(nodes: StartedNodes, caller: Pool) -> None:
    first = caller.call("42")
    nodes.processes(POOL)[first.worker].send_signal(signal.SIGKILL)
    assert caller.call("42", sticky=first, timeout_s=30).worker not in ("", first.worker)
    assert caller.call("42", sticky="nobody").worker
