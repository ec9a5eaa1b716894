"""Tenants of pools, and workers that call their own pool, at one node and at three, with real processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from clusterbroker_workers import Unserved
from tests.faults.pools import eventually, told

from .started import StartedNodes

pytestmark = pytest.mark.processes


@pytest.fixture
def pool(nodes: StartedNodes, pool_name: str) -> str:
    """Its name."""
    nodes.declare(pool_name, grace_s=5)
    return pool_name


def settings(nodes: StartedNodes, pool: str, at: str) -> dict[str, Any]:
    found: dict[str, Any] = nodes.api("GET", f"pools/%2F/{pool}", at=at).raise_for_status().json()["settings"]
    return found


def test_tenants_are_set_and_shown_at_each_node(nodes: StartedNodes, pool: str) -> None:
    wanted = {"tenant_separator": "/", "tenant_weights": {"acme": 3, "b ü": 2}}
    nodes.api("POST", f"pools/%2F/{pool}/set", wanted).raise_for_status()
    again = {"template": "core", "grace_s": 5, **wanted}
    for at in nodes.living:  # the same declaration is carried out when the node has heard of it
        nodes.api("PUT", f"pools/%2F/{pool}", again, at=at).raise_for_status()
        assert settings(nodes, pool, at).items() >= wanted.items()
    other = nodes.api("PUT", f"pools/%2F/{pool}", {**again, "tenant_separator": "."})
    assert (other.status_code, "tenant_separator" in other.json()["reason"]) == (400, True)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"tenant_weights": {"acme": 0}}, "tenant_weights is from 1 to 1000"),
        ({"tenant_weights": {"acme": "much"}}, "should be a number"),
        ({"tenant_weights": 5}, "should be an object"),
        ({"tenant_separator": "123456789"}, "8 are allowed"),
    ],
)
def test_what_is_no_such_setting_is_refused(nodes: StartedNodes, pool: str, wrong: dict[str, Any], reason: str) -> None:
    refused = nodes.api("POST", f"pools/%2F/{pool}/set", wrong)
    assert (refused.status_code, reason in refused.json()["reason"]) == (400, True), refused.text


def test_a_worker_calls_another_key_where_the_pool_allows_it(nodes: StartedNodes, pool: str) -> None:
    with nodes.roaming_caller(pool) as caller:
        first = told(caller.call("asks", b"is asked", path="call", timeout_s=60))
        assert "heard" not in first
        assert "denied" in first["refused"] or "ACCESS_REFUSED" in first["refused"], first
        nodes.api("POST", f"pools/%2F/{pool}/set", {"workers_may_call": True}).raise_for_status()
        second = told(caller.call("asks", b"is asked", path="call", timeout_s=60))
        assert second["heard"]["key"] == "is asked"
        assert second["heard"]["worker"] != second["worker"]


def test_a_key_whose_starts_fail_says_why(nodes: StartedNodes, pool: str) -> None:
    nodes.api("POST", f"pools/%2F/{pool}/set", {"start_failures_max": 1}).raise_for_status()
    nodes.fails.write_text("broken")
    with nodes.roaming_caller(pool) as caller:
        with pytest.raises(Unserved, match="start_failed"):
            caller.call("broken", timeout_s=60)
        row = eventually("it is told", lambda: (found := nodes.groups(pool)["broken"])["state"] == "failed" and found)
        assert "exit status" in row["failed_why"]
        assert 0 < row["failed_for_s"] <= 60
        nodes.fails.unlink()
        assert nodes.api("POST", f"pools/%2F/{pool}/groups/broken/retry", {}).is_success
        assert told(caller.call("broken", timeout_s=60))["key"] == "broken"
        row = eventually("it is over", lambda: (found := nodes.groups(pool)["broken"])["state"] == "ready" and found)
        assert (row["failed_why"], row["failed_for_s"]) == ("", 0)


def test_what_a_worker_does(nodes: StartedNodes, pool: str, tmp_path: Path) -> None:
    with nodes.roaming_caller(pool) as caller, ThreadPoolExecutor(1) as threads:
        held = threads.submit(caller.call, "works", str(tmp_path), path="hold", timeout_s=60)

        def row(state: str) -> dict[str, Any] | None:
            return next((one for one in nodes.workers(pool) if one["key"] == "works" and one["state"] == state), None)

        busy = eventually("it is busy", lambda: row("busy"))
        assert busy["held"] == 1
        (tmp_path / "go").touch()
        assert told(held.result())["worker"] == busy["id"]
        assert eventually("it is ready", lambda: row("ready"))["held"] == 0
