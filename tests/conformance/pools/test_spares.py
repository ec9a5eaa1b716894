"""Spares: workers that a pool keeps ready without a key, at one node and at three, with real processes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.faults.pools import eventually, told

from .started import StartedNodes

pytestmark = pytest.mark.processes
POOL = "spared"


@pytest.fixture(scope="module", autouse=True)
def declared(nodes: StartedNodes) -> Iterator[None]:
    """All tests have one pool."""
    nodes.declare(POOL, spares=2, grace_s=5)
    yield
    nodes.fails.unlink(missing_ok=True)
    nodes.api("DELETE", f"pools/%2F/{POOL}?force=true")


def spares(nodes: StartedNodes, count: int = 2) -> set[str]:
    """Ids of the spares, which run; empty unless they are so many."""
    listed = {row["id"] for row in nodes.workers(POOL) if row["spare"] and not row["revoked"] and not row["retired"]}
    return listed if len(listed) == count and listed <= nodes.processes(POOL).keys() else set()


def row(nodes: StartedNodes, worker: str) -> dict[str, Any]:
    (found,) = [one for one in nodes.workers(POOL) if one["id"] == worker]
    return found


def test_a_first_call_of_a_key_is_served_by_a_spare_and_another_one_is_started(nodes: StartedNodes) -> None:
    before = eventually("two spares", lambda: spares(nodes))
    kept = next(iter(before))
    environment = nodes.processes(POOL)[kept].environ()
    assert environment["WORKER_SPARE"] == "1"
    assert not {"WORKER_KEY", "WORKER_REQUESTS_QUEUE"} & environment.keys(), "nothing that it could serve by itself"
    with nodes.roaming_caller(POOL) as caller:
        first = told(caller.call("a b", timeout_s=60))
        assert (first["worker"] in before, first["key"]) == (True, "a b")
        assert row(nodes, first["worker"])["key"] == "a b"
        after = eventually("two spares again", lambda: spares(nodes))
        assert first["worker"] not in after
        assert len(after - before) == 1, "one more was started, the other one stayed"
        assert told(caller.call("a b", timeout_s=60))["worker"] == first["worker"]


def test_a_spare_that_is_lost_is_replaced_and_a_pool_can_have_fewer(nodes: StartedNodes) -> None:
    before = eventually("two spares", lambda: spares(nodes))
    lost = next(iter(before))
    nodes.processes(POOL)[lost].send_signal(signal.SIGKILL)
    eventually("another one", lambda: lost not in (now := spares(nodes)) and now)
    nodes.api("POST", f"pools/%2F/{POOL}/set", {"spares": 1}).raise_for_status()
    eventually("one is left", lambda: spares(nodes, 1) and len(nodes.workers(POOL)) == len(nodes.processes(POOL)))

    def shown() -> bool:  # one that is being stopped counts until it is gone
        pool = nodes.api("GET", f"pools/%2F/{POOL}").json()
        return (pool["settings"]["spares"], pool["spares"]) == (1, 1)

    eventually("the pool says so", shown)
    nodes.api("POST", f"pools/%2F/{POOL}/set", {"spares": 2}).raise_for_status()
    eventually("two spares", lambda: spares(nodes))


def test_a_spare_whose_key_cannot_be_loaded_is_a_start_that_failed(nodes: StartedNodes) -> None:
    before = eventually("two spares", lambda: spares(nodes))
    nodes.fails.touch()
    try:
        with nodes.roaming_caller(POOL) as caller, ThreadPoolExecutor(1) as threads:
            call = threads.submit(caller.call, "bad", timeout_s=60)
            eventually("one that got the key ended", lambda: before - {row["id"] for row in nodes.workers(POOL)})
            nodes.fails.unlink()
            assert told(call.result())["key"] == "bad"
    finally:
        nodes.fails.unlink(missing_ok=True)
