"""Workers that a pool starts, on one node and on three: their config file has the templates."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from clusterbroker_workers import Unserved
from tests.faults.pools import PATIENCE_S, eventually, told

from ..marks import rule
from .started import BYTES, StartedNodes

pytestmark = pytest.mark.processes


@pytest.fixture
def pool(pool_name: str) -> str:
    return pool_name


@rule("38")
def test_the_environment_of_a_worker(nodes: StartedNodes, pool: str) -> None:
    nodes.declare(pool)
    with nodes.caller(pool=pool) as caller:
        worker = told(caller.call("a b", timeout_s=60))["worker"]
    environment = nodes.processes()[worker].environ()
    assert environment["WORKER_ID"] == worker
    assert environment["WORKER_KEY"] == "a b"
    assert environment["WORKER_POOL"] == pool
    assert environment["WORKER_REQUESTS_QUEUE"] == f"{pool}-req-a%20b"
    assert environment["WORKER_ACTIVITY_EXCHANGE"] == f"{pool}-activity-xchg"
    assert environment["WORKER_AMQP_URI"].startswith(f"amqp://worker%3A{worker}:")
    own = {name for name in environment if not name.startswith("WORKER_")}
    assert own <= {"PATH", "LANG", "TZ", "PYTHONPATH", "POOL_TEST_FAILS"}


@rule("54", "63")
def test_term_comes_before_kill_and_a_deleted_pool_leaves_no_process(nodes: StartedNodes, pool: str) -> None:
    nodes.declare(pool, "stubborn", grace_s=1)
    with nodes.caller(pool=pool) as caller, ThreadPoolExecutor(1) as threads:
        call = threads.submit(caller.call, "42", timeout_s=60)
        begun = nodes.directory / "child"
        child = psutil.Process(int(eventually("its child", lambda: begun.exists() and begun.read_text())))
        worker = psutil.Process(child.ppid())
        nodes.api("DELETE", f"pools/%2F/{pool}?force=true").raise_for_status()
        with pytest.raises(Unserved) as heard:
            call.result()
        assert heard.value.reason == "pool_deleted"
    eventually("both ended", lambda: not (child.is_running() or worker.is_running()))
    assert (nodes.directory / "term").exists()


@rule("55", "56", "67")
def test_workers_are_as_many_as_min_and_max_say_and_are_replaced(nodes: StartedNodes, pool: str) -> None:
    nodes.declare(pool, min=2, max=2)
    nodes.api("POST", f"pools/%2F/{pool}/groups/42/start", {}).raise_for_status()
    own = eventually("two workers without a request", lambda: _running(nodes, pool, 2))
    with nodes.caller(pool=pool) as caller, ThreadPoolExecutor(8) as threads:
        calls = [threads.submit(caller.call, "42", b"0.2", path="sleep", timeout_s=60) for _ in range(24)]
        most = 0
        while not all(call.done() for call in calls):
            group = nodes.groups(pool).get("42", {})  # the node that is asked may hear of it later
            most = max(most, len(nodes.workers(pool)), group.get("consumers", 0))
        assert {told(call.result())["worker"] for call in calls} <= own.keys()
        assert most == 2, "a backlog starts no third one"
    lost = next(iter(own))
    own[lost].send_signal(signal.SIGKILL)
    again = eventually("another one", lambda: lost not in (now := _running(nodes, pool, 2)) and now)
    assert len(again.keys() - own.keys()) == 1


def _running(nodes: StartedNodes, pool: str, count: int) -> dict[str, psutil.Process]:
    """Workers of the pool that run and are all that are in its list; empty unless they are so many."""
    running = nodes.workers_of(pool)
    return running if len(running) == len(nodes.workers(pool)) == count else {}


def test_places_and_figures_of_real_nodes(nodes: StartedNodes, pool: str) -> None:
    nodes.declare(pool)
    with nodes.caller(pool=pool) as caller:
        worker = told(caller.call("42", timeout_s=60))["worker"]
        (row,) = (one for one in nodes.workers(pool) if one["id"] == worker)
        placed = eventually("its memory is measured", lambda: _used(nodes, pool))
        assert (placed["place"], placed["state"], placed["driver"]) == (row["place"], "ready", "subprocess")
        assert placed["machine"]["memory_bytes"] >= placed["promised_bytes"] >= BYTES
        eventually("its worker is ready", lambda: nodes.metric(pool, "workers", "ready") == 1)
    assert nodes.metric(pool, "oldest_seconds") == 0


def _used(nodes: StartedNodes, pool: str) -> dict[str, Any]:
    """The place of its only worker, when it has told what its workers use and the controller what it has promised them
    there; else empty."""
    places: list[dict[str, Any]] = nodes.api("GET", f"pools/%2F/{pool}/places").raise_for_status().json()
    found = [one for one in places if one["workers"]]
    if len(places) != len(nodes.names) or len(found) != 1:
        return {}
    return found[0] if found[0]["machine"]["used_bytes"] and found[0]["promised_bytes"] else {}


@rule("64")
def test_a_key_is_never_a_command(nodes: StartedNodes, pool: str) -> None:
    hacked = nodes.directory / "hacked"
    key = f"$(touch {hacked}); `touch {hacked}`"
    nodes.declare(pool)
    with nodes.caller(pool=pool) as caller:
        assert told(caller.call(key, timeout_s=60))["key"] == key
    assert not hacked.exists()


@rule("3", "65")
def test_what_is_executed_is_said_by_the_file_alone(nodes: StartedNodes, pool: str) -> None:
    nodes.declare(pool)
    for at in nodes.names:
        for template in ("/bin/true", "other"):
            said = nodes.api("PUT", f"pools/%2F/{pool}x", {"template": template}, at=at)
            assert said.status_code == 400, said.text
            assert "known are changing, core, dies, idle, noop, slow, stubborn" in said.text
        said = nodes.api("POST", f"pools/%2F/{pool}/set", {"command": ["/bin/true"]}, at=at)
        assert said.status_code == 400, said.text
    with nodes.caller(pool=pool) as caller:
        assert told(caller.call("42", timeout_s=60))["key"] == "42"


@rule("59")
def test_a_changed_template_replaces_workers_with_no_request_unserved(nodes: StartedNodes, pool: str) -> None:
    """Foremen read the file when they start. What a node does that starts anew: `faults/test_pools.py`."""
    nodes.declare(pool, "changing", min=2, max=2)
    with nodes.caller(pool=pool) as caller:
        caller.call("42", timeout_s=60)
        old = eventually("two workers", lambda: _running(nodes, pool, 2))
        versions = {row["version"] for row in nodes.workers(pool)}
        nodes.write(changing_bytes=2 * BYTES)
        nodes.new_foremen()

        def replaced() -> bool:
            told(caller.call("42", timeout_s=PATIENCE_S))
            rows = nodes.workers(pool)
            assert sum(not row["retired"] and not row["revoked"] for row in rows) <= 3, "one by one"
            return len(rows) == 2 and not {row["id"] for row in rows} & old.keys()

        eventually("the workers of before are replaced", replaced)
    assert not {row["version"] for row in nodes.workers(pool)} & versions
    eventually("their processes are over", lambda: not old.keys() & nodes.processes().keys())


@rule("66")
def test_a_file_that_others_may_write_keeps_foremen_from_starting(nodes: StartedNodes, pool: str) -> None:
    nodes.declare(pool)
    line = "others may write it"

    def refused() -> list[int]:
        logs = [nodes.fleet.node(name).log.read_text() for name in nodes.names]
        return [sum(line in one for one in log.splitlines()) for log in logs]

    before = refused()
    nodes.config.chmod(0o666)
    try:
        nodes.new_foremen()
        with nodes.caller(pool=pool) as caller, ThreadPoolExecutor(1) as threads:
            call = threads.submit(caller.call, "42", timeout_s=PATIENCE_S)
            eventually("a line of each", lambda: all(now > old for now, old in zip(refused(), before, strict=True)))
            assert not call.done()
            assert not nodes.workers_of(pool), "nothing was started"
            nodes.config.chmod(0o600)
            assert told(call.result())["key"] == "42", "the next one starts"
    finally:
        nodes.config.chmod(0o600)


@rule("60")
def test_generations_rise_over_the_lives_of_a_key(nodes: StartedNodes, pool: str) -> None:
    """And over failovers: `test_lasting.py`."""
    nodes.declare(pool, unbind_delay_s=0, stop_delay_s=0)
    with nodes.caller(pool=pool) as caller:
        caller.call("42", timeout_s=60)
        first = {row["generation"] for row in nodes.workers(pool)}
        eventually("the group is gone", lambda: not nodes.groups(pool))
        caller.call("42", timeout_s=60)
        assert min(row["generation"] for row in nodes.workers(pool)) > max(first)
