"""An operator's words about a key, and what becomes of a worker that is retired with a request."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from clusterbroker_workers import Unserved
from tests.faults.pools import PoolNodes, eventually, told

from ..marks import rule

pytestmark = pytest.mark.processes


@pytest.fixture
def pool(pool_name: str) -> str:
    return pool_name


def say(nodes: PoolNodes, pool: str, word: str, key: str = "42") -> None:
    """At the node that is asked last, which need not be the controller's."""
    at = nodes.living[-1]
    nodes.api("POST", f"pools/%2F/{pool}/groups/{key}/{word}", {}, at=at).raise_for_status()


def serving(nodes: PoolNodes, pool: str) -> set[str]:
    return {row["id"] for row in nodes.workers(pool) if not row["retired"] and not row["revoked"]}


@rule("61")
def test_start_and_stop(nodes: PoolNodes, pool: str) -> None:
    nodes.declare(pool)
    say(nodes, pool, "start")
    (first,) = eventually("a worker without a request", lambda: serving(nodes, pool))
    eventually("it consumes", lambda: nodes.groups(pool).get("42", {}).get("consumers"))
    say(nodes, pool, "stop")
    eventually("its worker is over", lambda: first not in nodes.processes() and not nodes.workers(pool))
    assert nodes.groups(pool)["42"]["state"] == "idle", "no other one begins"
    audit = nodes.fleet.node(nodes.living[-1]).log.read_text()
    for word in ("start", "stop"):
        assert f'"what": "POST /api/pools/{{vhost}}/{{name}}/groups/{{key}}/{word}"' in audit
    with nodes.caller(pool=pool) as caller:
        assert told(caller.call("42", timeout_s=60))["worker"] != first


@rule("61")
def test_retry(nodes: PoolNodes, pool: str) -> None:
    nodes.declare(pool, start_failures_max=1)
    nodes.fails.touch()
    with nodes.caller(pool=pool) as caller:
        with pytest.raises(Unserved, match="start_failed"):
            caller.call("42", timeout_s=60)
        nodes.fails.unlink()
        began_s = time.monotonic()
        say(nodes, pool, "retry")
        assert told(caller.call("42", timeout_s=60))["key"] == "42"
        assert time.monotonic() - began_s < 50, "the trial of 60 s later was not waited for"


@rule("61")
def test_a_pinned_key_is_never_idle(nodes: PoolNodes, pool: str) -> None:
    nodes.declare(pool, unbind_delay_s=0, stop_delay_s=0)
    say(nodes, pool, "pin")
    say(nodes, pool, "start", "43")
    eventually("the other one came", lambda: "43" in nodes.groups(pool))
    eventually("the other one is over", lambda: "43" not in nodes.groups(pool))
    assert nodes.groups(pool)["42"]["bound"]
    assert nodes.groups(pool)["42"]["pinned"]
    assert serving(nodes, pool)
    say(nodes, pool, "unpin")
    eventually("it ends as others do", lambda: not nodes.groups(pool))


@rule("53")
def test_a_retired_worker_may_finish(nodes: PoolNodes, pool: str, tmp_path: Path) -> None:
    nodes.declare(pool, grace_s=30)
    with nodes.caller(pool=pool) as caller, ThreadPoolExecutor(1) as threads:
        call = threads.submit(caller.call, "42", bytes(tmp_path), path="hold", timeout_s=60)
        (first,) = eventually("a worker holds it", lambda: os.listdir(tmp_path))
        say(nodes, pool, "stop")
        eventually("another one is there", lambda: serving(nodes, pool))
        assert told(caller.call("42", timeout_s=60))["worker"] != first, "a retired one gets nothing more"
        assert first in nodes.processes()
        (tmp_path / "go").touch()
        assert told(call.result())["worker"] == first
    eventually("it is over", lambda: first not in nodes.processes())


@rule("53")
def test_a_retired_worker_is_killed_after_its_grace_and_its_request_comes_again(
    nodes: PoolNodes, pool: str, tmp_path: Path
) -> None:
    nodes.declare(pool, grace_s=1)
    with nodes.caller(pool=pool) as caller, ThreadPoolExecutor(1) as threads:
        call = threads.submit(caller.call, "42", bytes(tmp_path), path="hold", timeout_s=60)
        (first,) = eventually("a worker holds it", lambda: os.listdir(tmp_path))
        say(nodes, pool, "stop")
        eventually("another one holds it", lambda: set(os.listdir(tmp_path)) - {first})
        eventually("the first is over", lambda: first not in nodes.processes())
        (tmp_path / "go").touch()
        assert told(call.result())["worker"] != first


def stop_worker(nodes: PoolNodes, pool: str, worker: str) -> None:
    nodes.api("POST", f"pools/%2F/{pool}/workers/{worker}/stop", {}, at=nodes.living[-1]).raise_for_status()


@rule("61", "53")
def test_one_worker_is_stopped_when_it_has_finished_and_another_comes_for_what_waits(
    nodes: PoolNodes, pool: str, tmp_path: Path
) -> None:
    nodes.declare(pool, max=1)
    with nodes.caller(pool=pool) as caller, ThreadPoolExecutor(2) as threads:
        held = threads.submit(caller.call, "42", str(tmp_path).encode(), path="hold", timeout_s=60)
        first = eventually("a worker holds it", lambda: next((one.name for one in tmp_path.iterdir()), ""))
        waiting = threads.submit(caller.call, "42", timeout_s=60)
        eventually("another one waits", lambda: nodes.groups(pool).get("42", {}).get("waiting") == 1)
        for _ in range(2):  # the second one changes nothing
            stop_worker(nodes, pool, first)
        row = nodes.api("GET", f"pools/%2F/{pool}/workers/{first}").raise_for_status().json()
        assert (row["id"], row["keys"], row["retired"]) == (first, ["42"], "stopped by an operator")
        second = told(waiting.result())["worker"]
        assert second != first, "the retired one gets nothing more"
        assert first in nodes.processes(), "it has what it holds"
        (tmp_path / "go").touch()
        assert told(held.result())["worker"] == first
        eventually("it is over", lambda: first not in nodes.processes() and serving(nodes, pool) == {second})
    row = f"pools/%2F/{pool}/workers/{first}"
    eventually("the map has heard of it", lambda: nodes.api("GET", row).status_code == 404)
    assert nodes.api("POST", f"pools/%2F/{pool}/workers/{first}/stop", {}).status_code == 404
    audit = nodes.fleet.node(nodes.living[-1]).log.read_text()
    assert '"what": "POST /api/pools/{vhost}/{name}/workers/{id}/stop"' in audit


@rule("61")
def test_a_worker_of_several_keys_and_a_spare_are_stopped(nodes: PoolNodes, pool: str) -> None:
    nodes.declare(pool, keys_per_worker=2, max_workers=2, spares=1)
    with nodes.caller(pool=pool) as caller:
        first = told(caller.call("42", timeout_s=60))["worker"]
        caller.call("43", timeout_s=60)
        for worker in (first, *eventually("a spare", lambda: serving(nodes, pool) - {first})):
            stop_worker(nodes, pool, worker)
            eventually("it is over", lambda worker=worker: worker not in nodes.processes())  # type: ignore[misc]
        assert told(caller.call("42", timeout_s=60))["worker"] != first


@rule("71")
def test_a_worker_is_stopped_by_an_administrator_alone(nodes: PoolNodes, pool: str) -> None:
    nodes.declare(pool)
    say(nodes, pool, "start")
    (worker,) = eventually("a worker", lambda: serving(nodes, pool))
    nodes.api("PUT", "users/ops", {"password": "ops", "tags": "management"}).raise_for_status()
    nodes.api("PUT", "permissions/%2F/ops", {"configure": "", "write": "", "read": "^other"}).raise_for_status()
    base = f"http://127.0.0.1:{nodes.ports[nodes.living[0]]}/api/pools/%2F/{pool}"
    assert httpx.get(f"{base}/workers/{worker}", auth=("ops", "ops"), verify=False).status_code == 404
    refused = httpx.post(f"{base}/workers/{worker}/stop", json={}, auth=("ops", "ops"), verify=False)
    assert refused.status_code == 401, refused.text
    assert httpx.get(f"{base}/requests", auth=("ops", "ops"), verify=False).json()["items"] == []
    reasons = httpx.get(f"{base}/reasons", auth=("ops", "ops"), verify=False).json()
    assert (reasons["settings"]["max"]["value"], reasons["reasons"]["keys"]) == (8, [])
    assert serving(nodes, pool) == {worker}


@rule("67")
def test_reasons_of_a_pool(nodes: PoolNodes, pool: str, tmp_path: Path) -> None:
    nodes.declare(pool, max_workers=1, min=0)

    def reasons(key: str) -> list[str]:
        told = nodes.api("GET", f"pools/%2F/{pool}/reasons?key={key}", at=nodes.living[-1]).raise_for_status().json()
        keys = (told["reasons"] or {"keys": []})["keys"]
        return keys[0]["why"] if keys else []

    with nodes.caller(pool=pool) as caller, ThreadPoolExecutor(2) as threads:
        held = threads.submit(caller.call, "42", str(tmp_path).encode(), path="hold", timeout_s=60)
        eventually("a worker holds it", lambda: list(tmp_path.iterdir()))
        waiting = threads.submit(caller.call, "43", timeout_s=60)
        eventually("the other key waits", lambda: reasons("43")[1:] == ["waits: the pool has max_workers=1"])
        assert reasons("42") == ["needs 1: 1 requests wait or are held, 1 s a request, target_wait_ms=5000"]
        whole = nodes.api("GET", f"pools/%2F/{pool}/reasons").raise_for_status().json()
        assert whole["why"] == ["it has max_workers=1"]
        assert whole["settings"]["max_workers"] == {"value": 1, "default": 1000, "source": "declared"}
        assert whole["settings"]["min"]["source"] == "default"
        assert [one["key"] for one in whole["reasons"]["keys"]] == ["43", "42"], "the one that waits comes first"
        assert {one["name"] for one in whole["reasons"]["places"]} == set(nodes.names)
        (tmp_path / "go").touch()
        told(held.result())
        say(nodes, pool, "stop")
        assert told(waiting.result())["key"] == "43"


def test_starts_and_ends_are_told_at_every_node(nodes: PoolNodes, pool: str) -> None:
    nodes.declare(pool, max=1)
    with nodes.caller(pool=pool) as caller:
        for _ in range(3):
            caller.call("42", timeout_s=60)

    def is_ready(worker: str) -> bool:
        """Its controller has heard so: who dies sooner has never been ready."""
        entries = nodes.api("GET", f"pools/%2F/{pool}/history").raise_for_status().json()
        return ("ready", worker) in {(one["event"], one.get("worker")) for one in entries}

    (worker,) = serving(nodes, pool)
    eventually("it is ready", lambda: is_ready(worker))
    nodes.processes()[worker].kill()
    (second,) = eventually("another one serves", lambda: serving(nodes, pool) - {worker})
    eventually("it is ready", lambda: is_ready(second))
    nodes.api("POST", f"pools/%2F/{pool}/workers/{second}/stop", {}).raise_for_status()
    eventually("it is over", lambda: second not in [row["id"] for row in nodes.workers(pool)])
    found = {}
    for at in nodes.living:
        entries = nodes.api("GET", f"pools/%2F/{pool}/history", at=at).raise_for_status().json()
        assert entries[-1]["event"] == "began"
        assert {one["key"] for one in entries[:-1]} == {"42"}
        found[at] = [one for one in entries if one.get("worker") == worker]
        lived = [one for one in entries if one.get("worker") == second]
        words = ["exited", "revoked", "retired", "ready", "started"]
        assert [(one["event"], one["why"]) for one in lived if one["event"] != "revoked"] == [
            (word, "stopped by an operator" if word in ("exited", "retired") else "")
            for word in words
            if word != "revoked"
        ]
        assert [one["event"] for one in lived] == words
    assert all(one == found[nodes.living[0]] for one in found.values())
    end, ready, started = found[nodes.living[0]]
    assert [one["event"] for one in (end, ready, started)] == ["exited", "ready", "started"]
    assert (end["why"], end["was_ready"]) == ("", True)
    assert end["exit_status"] not in (None, 0)
    assert started["at_ms"] <= ready["at_ms"] <= end["at_ms"]
    logs = "\n".join(nodes.fleet.node(name).log.read_text() for name in nodes.living)
    lines = [line for line in logs.splitlines() if '"worker.ready"' in line and f'"{worker}"' in line]
    assert len(lines) == 1, "its controller's node alone says so"
    assert f'"pool": "{pool}"' in lines[0]


def test_requests_of_a_pool_are_counted_at_every_node(nodes: PoolNodes, pool: str) -> None:
    nodes.declare(pool)
    with nodes.caller(pool=pool) as caller:
        for _ in range(5):
            caller.call("42", timeout_s=60)
    for at in nodes.living:
        path = f"pools/%2F/{pool}?msg_rates_age=60&msg_rates_incr=5"
        known = eventually(
            f"{at} has heard of them",
            lambda path=path, at=at: (  # type: ignore[misc]
                (found := nodes.api("GET", path, at=at).json())["message_stats"]["requests"] == 5
                and found["workers_by_state"]["ready"] == 1
                and max((one["sample"] for one in found["message_stats"]["requests_details"]["samples"]), default=0)
                == 5
                and found
            ),
        )
        assert known["message_stats"]["dead"] == 0
