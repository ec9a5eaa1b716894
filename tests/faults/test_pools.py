"""Pools that start their workers: real brokers, foremen and workers of the library.

Tests that end no node have one node, and each a pool of its own.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from clusterbroker_workers import Unserved
from tests.faults.pools import PATIENCE_S, PoolNodes, eventually, running, told

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolNodes]:
    with running(PoolNodes(tmp_path_factory.mktemp("node"), "a")) as made:
        yield made


@pytest.fixture
def one(started: PoolNodes, pool: str) -> Iterator[PoolNodes]:
    """A node that runs, where nothing of the test's pool is left behind it."""
    yield started
    started.fails.unlink(missing_ok=True)
    started.api("DELETE", f"pools/%2F/{pool}?force=true")


@pytest.fixture
def pool(request: pytest.FixtureRequest) -> str:
    """A name."""
    return str(request.node.name.removeprefix("test_")[:40].replace("_", ""))


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Callable[..., PoolNodes]]:
    """`nodes("a")`, `nodes("a", "b", "c", memory_bytes=...)`: started."""
    made: list[PoolNodes] = []

    def start(*names: str, **template: Any) -> PoolNodes:
        made.append(PoolNodes(tmp_path / f"nodes{len(made)}", *names, **template))
        made[-1].start()
        return made[-1]

    (tmp_path / "nodes0").mkdir()
    yield start
    for one in made:
        one.close()


def test_a_first_request_starts_a_worker_that_serves_it(one: PoolNodes, pool: str) -> None:
    one.declare(pool)
    with one.caller(pool=pool) as caller:
        first = told(caller.call("42", timeout_s=60))
        assert first["key"] == "42"
        assert told(caller.call("42", timeout_s=20))["worker"] == first["worker"]
        other = told(caller.call("43", timeout_s=60))
        assert (other["key"], other["worker"] == first["worker"]) == ("43", False)
    assert one.processes(pool).keys() == {first["worker"], other["worker"]} == {row["id"] for row in one.workers(pool)}


def test_load_scales_up_and_rest_scales_down(one: PoolNodes, pool: str) -> None:
    one.declare(pool, max=3, unbind_delay_s=2, stop_delay_s=2)
    with one.caller(pool=pool) as caller:
        caller.call("42", timeout_s=60)
        with ThreadPoolExecutor(40) as threads:
            calls = [threads.submit(caller.call, "42", b"0.5", path="sleep", timeout_s=PATIENCE_S) for _ in range(90)]
            most = 0
            for call in calls:
                most = max(most, len(one.workers(pool)))
                told(call.result())
        served = {told(call.result())["worker"] for call in calls}
    assert most == len(served) == 3
    eventually("the group is gone with its workers", lambda: not one.groups(pool) and not one.workers(pool))
    eventually("no process is left", lambda: not one.processes(pool))
    assert not one.depth(f"{pool}-orphan")


def test_a_worker_that_is_killed_is_replaced_and_its_request_comes_again(
    one: PoolNodes, pool: str, tmp_path: Path
) -> None:
    one.declare(pool)
    with one.caller(pool=pool) as caller, ThreadPoolExecutor(1) as threads:
        first = told(caller.call("42", timeout_s=60))
        call = threads.submit(caller.call, "42", bytes(tmp_path), path="hold", timeout_s=60)
        eventually("it holds the request", lambda: (tmp_path / first["worker"]).exists())
        os.kill(first["pid"], signal.SIGKILL)
        (tmp_path / "go").touch()
        again = told(call.result())
        assert again["worker"] != first["worker"]
        eventually("it alone is left", lambda: [row["id"] for row in one.workers(pool)] == [again["worker"]])


def test_a_foreman_that_is_killed_is_followed_by_one_that_adopts(one: PoolNodes, pool: str) -> None:
    one.declare(pool)
    with one.caller(pool=pool) as caller:
        first = told(caller.call("42", timeout_s=60))
        (foreman,) = one.foremen("a")
        foreman.kill()
        (later,) = eventually("another foreman", lambda: [each for each in one.foremen("a") if each.pid != foreman.pid])
        assert told(caller.call("42", timeout_s=60)) == first
        second = told(caller.call("43", timeout_s=60))  # it works
        assert psutil.Process(second["pid"]).ppid() == later.pid
        os.kill(first["pid"], signal.SIGKILL)  # and looks after what it adopted
        assert told(caller.call("42", timeout_s=60))["worker"] not in (first["worker"], second["worker"])


def test_callers_hear_of_starts_that_fail(one: PoolNodes, pool: str) -> None:
    one.declare(pool, start_failures_max=2)
    one.fails.touch()
    with one.caller(pool=pool) as caller:
        with pytest.raises(Unserved) as heard:
            caller.call("42", timeout_s=60)
        assert heard.value.reason == "start_failed"
        assert "exit status 70" in str(heard.value)
        with pytest.raises(Unserved):
            caller.call("42", timeout_s=20)
    assert len([launch for launch in one.workers(pool) if not launch["revoked"]]) <= 1


def test_three_nodes_serve_and_a_controller_that_dies_neither_stops_nor_starts(nodes: Callable[..., PoolNodes]) -> None:
    three = nodes("a", "b", "c", max_workers=4)  # of a place: they are packed, so two have some
    three.declare()
    keys = [str(number) for number in range(6)]
    with three.caller("a") as pool, ThreadPoolExecutor(6) as threads:
        first = dict(zip(keys, threads.map(lambda key: told(pool.call(key, timeout_s=90)), keys), strict=True))
        assert {key: row["key"] for key, row in first.items()} == {key: key for key in keys}
        assert len({row["place"] for row in three.workers()}) == 2
    lost = three.owner("core-orphan")
    stayed = {row["id"] for row in three.workers() if row["place"] != lost}
    assert stayed
    three.kill(lost)
    eventually("another controller", lambda: three.owner("core-orphan") not in ("", lost))
    with three.caller() as pool, ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(lambda key: told(pool.call(key, timeout_s=90)), keys))
        fresh = told(pool.call("new", timeout_s=90))
        assert [answer["key"] for answer in answers] == keys
        serving = {row["id"] for row in three.workers() if not row["revoked"] and row["place"] != lost}
        assert stayed <= serving, "who was at work is not stopped"
        kept = {answer["worker"] for key, answer in zip(keys, answers, strict=True) if first[key]["worker"] in stayed}
        assert kept == stayed, "nor doubled"
        assert fresh["worker"] in serving
        # those of the lost place are replaced, each by one
        assert len(serving) == len(keys) + 1


def test_a_changed_template_replaces_workers_of_a_key_at_rest_and_nobody_waits(
    nodes: Callable[..., PoolNodes],
) -> None:
    """Node after node begins with another file; workers go on meanwhile, and new ones are ready before they leave."""
    one = nodes("a", on_node_exit="keep")
    one.declare()
    with one.roaming_caller() as pool:
        first = told(pool.call("42", timeout_s=60))
        other = told(pool.call("43", timeout_s=60))
    foremen = one.foremen("a")
    one.fleet.node("a").process.terminate()  # type: ignore[union-attr]
    one.fleet.node("a").process.wait(30)  # type: ignore[union-attr]
    psutil.wait_procs(foremen, 30)
    assert one.processes().keys() == {first["worker"], other["worker"]}
    one.template(on_node_exit="keep", memory_bytes=200 << 20)
    one.start("a")
    old = {first["worker"], other["worker"]}
    with one.caller() as pool:
        heard: list[str] = []

        def replaced() -> bool:
            heard.append(told(pool.call("42", timeout_s=20))["worker"])
            rows = one.workers()
            return len(rows) == 2 and not {row["id"] for row in rows} & old

        eventually("others have taken their places", replaced)
        assert heard[0] == first["worker"], "it is adopted"
        assert heard[-1] not in old
        assert len(set(heard)) == 2, "one was replaced by one"
        assert told(pool.call("43", timeout_s=20))["worker"] not in old, "a key that nobody asked for as well"
    eventually("the old ones have ended", lambda: not one.processes().keys() & old)


def test_the_file_of_three_nodes_declares_a_pool_once_and_changes_nothing_later(
    nodes: Callable[..., PoolNodes],
) -> None:
    three = nodes("a", "b", "c", more='[pools.core.declare]\nmax = 2\nkeys = "[0-9]+"\n')

    def settings(at: str = "") -> dict[str, Any]:
        found: dict[str, Any] = three.api("GET", "pools/%2F/core", at=at).raise_for_status().json()
        return found["settings"] | {"template": found["template"]}

    assert all((settings(at)["max"], settings(at)["template"]) == (2, "core") for at in "abc")
    with three.caller() as pool:
        assert told(pool.call("42", timeout_s=90))["key"] == "42"
    three.api("POST", "pools/%2F/core/set", {"max": 3}).raise_for_status()
    three.kill("a")
    three.start("a")
    assert (settings("a")["max"], settings("a")["keys"]) == (3, "[0-9]+"), "an operator's word stays"
