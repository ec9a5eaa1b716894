"""Workers that a pool starts, at a node of its own: its config file has the templates."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from clusterbroker_workers import Unserved
from tests.faults.pools import PoolNodes, eventually, told

from ..marks import rule

pytestmark = pytest.mark.processes
USER = 'user = "root"\n' if os.geteuid() == 0 else ""
STUBBORN = "trap 'touch {0}/term' TERM; sleep 600 & echo $! > {0}/child; while :; do sleep 0.1; done"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("node")


@pytest.fixture(scope="module")
def node(directory: Path) -> Iterator[PoolNodes]:
    """`core` starts workers of the library; `stubborn` a shell that is deaf to TERM; `never` one that does nothing."""
    more = "".join(
        f'[pools.{name}]\ndriver = "subprocess"\n{USER}command = ["/bin/sh", "-c", "{words}"]\n'
        for name, words in (("stubborn", STUBBORN.format(directory)), ("never", "sleep 600"), ("dies", "exit 3"))
    )
    made = PoolNodes(directory, "a", more=more, memory_bytes=1 << 20)
    made.start()
    yield made
    made.close()


@pytest.fixture
def pool(node: PoolNodes, request: pytest.FixtureRequest) -> Iterator[str]:
    """A name, whose pool is deleted at the end."""
    name = "p" + str(abs(hash(request.node.name)) % 1_000_000)
    yield name
    node.api("DELETE", f"pools/%2F/{name}?force=true")


@rule("38")
def test_the_environment_of_a_worker(node: PoolNodes, pool: str) -> None:
    node.declare(pool)
    with node.caller(pool=pool) as caller:
        worker = told(caller.call("a b", timeout_s=60))["worker"]
    environment = node.processes()[worker].environ()
    assert environment["WORKER_ID"] == worker
    assert environment["WORKER_KEY"] == "a b"
    assert environment["WORKER_POOL"] == pool
    assert environment["WORKER_REQUESTS_QUEUE"] == f"{pool}-req-a%20b"
    assert environment["WORKER_ACTIVITY_EXCHANGE"] == f"{pool}-activity-xchg"
    assert environment["WORKER_AMQP_URI"].startswith(f"amqp://worker%3A{worker}:")
    own = {name for name in environment if not name.startswith("WORKER_")}
    assert own <= {"PATH", "LANG", "TZ", "PYTHONPATH", "POOL_TEST_FAILS"}


@rule("54", "63")
def test_term_comes_before_kill_and_a_deleted_pool_leaves_no_process(
    node: PoolNodes, pool: str, directory: Path
) -> None:
    node.declare(pool, "stubborn")
    with node.caller(pool=pool) as caller, ThreadPoolExecutor(1) as threads:
        call = threads.submit(caller.call, "42", timeout_s=60)
        eventually("the worker began", (directory / "child").exists)
        child = psutil.Process(int(eventually("its child", (directory / "child").read_text)))
        worker = psutil.Process(child.ppid())
        node.api("DELETE", f"pools/%2F/{pool}?force=true").raise_for_status()
        with pytest.raises(Unserved) as heard:
            call.result()
        assert heard.value.reason == "pool_deleted"
    eventually("both ended", lambda: not (child.is_running() or worker.is_running()))
    assert (directory / "term").exists()


@rule("55", "56", "67")
def test_workers_are_as_many_as_min_says_and_are_replaced(node: PoolNodes, pool: str) -> None:
    node.declare(pool, min=2, max=2)
    with node.caller(pool=pool) as caller:
        caller.call("42", timeout_s=60)
        own = eventually("two workers", lambda: _running(node, pool, 2))
        lost = next(iter(own))
        own[lost].send_signal(signal.SIGKILL)
        again = eventually("another one", lambda: lost not in (now := _running(node, pool, 2)) and now)
        assert again.keys() - own.keys()
        assert node.groups(pool)["42"]["consumers"] <= 2


def _running(node: PoolNodes, pool: str, count: int) -> dict[str, psutil.Process]:
    """Workers of the pool that run and are in its list; empty unless they are so many."""
    listed = {row["id"] for row in node.workers(pool)}
    running = {worker: process for worker, process in node.processes().items() if worker in listed}
    return running if len(running) == len(listed) == count else {}


@rule("57")
def test_a_worker_that_never_gets_ready_is_a_failure(node: PoolNodes, pool: str) -> None:
    node.declare(pool, "never", start_timeout_s=1, start_failures_max=1)
    with node.caller(pool=pool) as caller, pytest.raises(Unserved) as heard:
        caller.call("42", timeout_s=60)
    assert heard.value.reason == "start_failed"
    assert "not ready after 1 s" in heard.value.detail
    eventually("it was stopped", lambda: not node.workers(pool))


def test_places_and_figures_of_a_real_node(node: PoolNodes, pool: str) -> None:
    node.declare(pool, "dies", start_failures_max=2)
    with node.caller(pool=pool) as caller, pytest.raises(Unserved):
        caller.call("42", timeout_s=60)
    eventually("it failed twice", lambda: _metric(node, pool, "start_failures_total") == 2)
    assert _metric(node, pool, "requests_total") == 1
    node.api("DELETE", f"pools/%2F/{pool}?force=true").raise_for_status()
    other = f"{pool}x"
    node.declare(other)
    with node.caller(pool=other) as caller:
        caller.call("42", timeout_s=60)
        placed = eventually("its memory is measured", lambda: _used(node, other))
        assert (placed["place"], placed["state"], placed["driver"]) == ("a", "ready", "subprocess")
        assert placed["machine"]["memory_bytes"] >= placed["promised_bytes"] >= 1 << 20
        eventually("its worker is ready", lambda: _metric(node, other, "workers", "ready") == 1)
    assert _metric(node, other, "oldest_seconds") == 0
    node.api("DELETE", f"pools/%2F/{other}?force=true").raise_for_status()


def _used(node: PoolNodes, pool: str) -> dict[str, Any]:
    """The place, when it has told what its workers use and the controller what it has promised them; else empty."""
    (place,) = node.api("GET", f"pools/%2F/{pool}/places").raise_for_status().json()
    found: dict[str, Any] = place
    return found if place["machine"]["used_bytes"] and place["promised_bytes"] and place["workers"] == 1 else {}


def _metric(node: PoolNodes, pool: str, name: str, state: str = "") -> float:
    """Of the pool; -1: there is none yet."""
    url = f"http://127.0.0.1:{node.ports['a']}/metrics"
    for family in text_string_to_metric_families(httpx.get(url, auth=("guest", "guest"), timeout=20).text):
        for sample in family.samples:
            told = sample.name, sample.labels.get("pool"), sample.labels.get("state", "")
            if told == (f"clusterbroker_pool_{name}", pool, state):
                return float(sample.value)
    return -1


@rule("58")
def test_callers_hear_of_starts_that_fail_and_another_is_tried_later(node: PoolNodes, pool: str) -> None:
    node.declare(pool, "dies", start_failures_max=2)
    with node.caller(pool=pool) as caller:
        with pytest.raises(Unserved) as heard:
            caller.call("42", timeout_s=60)
        assert (heard.value.reason, "exit status 3" in heard.value.detail) == ("start_failed", True)
        with pytest.raises(Unserved) as again:
            caller.call("42", timeout_s=10)
        assert again.value.reason == "start_failed", "at once"
    log = node.fleet.node("a").log
    starts = log.read_text().count("worker.started")
    eventually("one more start is tried", lambda: log.read_text().count("worker.started") > starts, 100)


@rule("64")
def test_a_key_is_never_a_command(node: PoolNodes, pool: str, directory: Path) -> None:
    key = f"$(touch {directory}/hacked); `touch {directory}/hacked`"
    node.declare(pool)
    with node.caller(pool=pool) as caller:
        assert told(caller.call(key, timeout_s=60))["key"] == key
    assert not (directory / "hacked").exists()


@rule("3", "65")
def test_what_is_executed_is_said_by_the_file_alone(node: PoolNodes, pool: str) -> None:
    node.declare(pool)
    for template in ("/bin/true", "other"):
        said = node.api("PUT", f"pools/%2F/{pool}x", {"template": template})
        assert said.status_code == 400, said.text
        assert "known are core, dies, never, noop, stubborn" in said.text
    said = node.api("POST", f"pools/%2F/{pool}/set", {"command": ["/bin/true"]})
    assert said.status_code == 400, said.text
    with node.caller(pool=pool) as caller:
        assert told(caller.call("42", timeout_s=60))["key"] == "42"


@rule("60")
def test_generations_rise_over_the_lives_of_a_key(node: PoolNodes, pool: str) -> None:
    node.declare(pool, unbind_delay_s=0, stop_delay_s=0)
    with node.caller(pool=pool) as caller:
        caller.call("42", timeout_s=60)
        first = {row["generation"] for row in node.workers(pool)}
        eventually("the group is gone", lambda: not node.groups(pool))
        caller.call("42", timeout_s=60)
        assert min(row["generation"] for row in node.workers(pool)) > max(first)


@rule("66")
def test_a_file_that_others_may_write_keeps_the_foreman_from_starting(tmp_path: Path) -> None:
    other = PoolNodes(tmp_path, "b")
    other.config.chmod(0o666)
    try:
        other.start()
        log = other.fleet.node("b").log
        eventually("a line", lambda: "others may write it" in log.read_text())
        said = other.api("PUT", "pools/%2F/core", {"template": "core"})
        assert "known are noop" in said.text
    finally:
        other.close()


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[PoolNodes]:
    """A node whose workers outlive it."""
    made = PoolNodes(tmp_path, "a", on_node_exit="keep")
    made.start()
    yield made
    made.close()


def _begin_again(node: PoolNodes, worker: str) -> None:
    """With another version of the template, while a worker goes on."""
    process = node.fleet.node("a").process
    assert process is not None
    process.terminate()
    process.wait(30)
    assert worker in node.processes(), "it is kept"
    node.template(on_node_exit="keep", memory_bytes=1 << 20)
    node.start()


@rule("59")
def test_a_changed_template_replaces_workers_with_no_request_unserved(kept: PoolNodes) -> None:
    kept.declare()
    with kept.caller() as caller:
        first = told(caller.call("42", timeout_s=60))
    before = {row["id"]: row["version"] for row in kept.workers()}
    _begin_again(kept, first["worker"])
    with kept.caller() as caller:

        def replaced() -> bool:
            told(caller.call("42", timeout_s=60))
            rows = kept.workers()
            return len(rows) == 1 and rows[0]["id"] not in before

        eventually("the worker of before is replaced", replaced)
    assert not {row["version"] for row in kept.workers()} & set(before.values())
    eventually("its process is over", lambda: first["worker"] not in kept.processes())
