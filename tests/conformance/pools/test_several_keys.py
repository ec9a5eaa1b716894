"""Workers that serve several keys, at one node and at three, with real processes of the library."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from clusterbroker_workers import Unserved
from tests.faults.pools import eventually, told

from .started import StartedNodes

pytestmark = pytest.mark.processes
POOL = "several"


@pytest.fixture(scope="module", autouse=True)
def declared(nodes: StartedNodes) -> Iterator[None]:
    """All tests have one pool."""
    nodes.declare(POOL, keys_per_worker=3, max_workers=1, grace_s=5, start_failures_max=2)
    yield
    nodes.fails.unlink(missing_ok=True)
    nodes.api("DELETE", f"pools/%2F/{POOL}?force=true")


def row(nodes: StartedNodes) -> dict[str, Any]:
    """Of the only worker."""
    (found,) = [one for one in nodes.workers(POOL) if not one["revoked"]]
    return found


def ask(nodes: StartedNodes, key: str, **more: Any) -> dict[str, Any]:
    with nodes.roaming_caller(POOL) as caller:
        return told(caller.call(key, timeout_s=60, **more))


def test_one_worker_serves_as_many_keys_as_it_may(nodes: StartedNodes) -> None:
    said = [ask(nodes, key) for key in ("a b", "", "%")]
    assert len({one["pid"] for one in said}) == 1
    assert [one["key"] for one in said] == ["a b", "", "%"]
    assert said[-1]["loaded"] == ["", "%", "a b"]
    found = row(nodes)
    assert (found["keys"], found["key"], found["spare"]) == (["a b", "", "%"], None, False)
    environment = nodes.processes(POOL)[found["id"]].environ()
    assert environment["WORKER_SPARE"] == "1"
    status = nodes.api("GET", "../status?keys=%25").json()["workers"]
    assert status["%"]["worker_metadata"]["worker_id"] == found["id"]


def test_the_least_recently_used_key_gives_way_and_comes_again(nodes: StartedNodes) -> None:
    for key in ("1", "2", "3"):
        ask(nodes, key)
    before = ask(nodes, "1")
    after = ask(nodes, "4")
    assert after["pid"] == before["pid"], "no other process was started"
    assert after["loaded"] == ["1", "3", "4"], "2 was used least recently"
    eventually("the map says so", lambda: sorted(row(nodes)["keys"]) == ["1", "3", "4"])
    again = ask(nodes, "2")
    assert (again["loaded"], again["loads"]) == (["1", "2", "4"], 2)


def test_a_key_that_holds_a_request_does_not_give_way(nodes: StartedNodes, tmp_path: Path) -> None:
    with nodes.roaming_caller(POOL) as caller, ThreadPoolExecutor(1) as threads:
        held = threads.submit(caller.call, "held", str(tmp_path), path="hold", timeout_s=60)
        eventually("it is at work", lambda: any(tmp_path.iterdir()))
        for key in ("5", "6", "7"):
            assert "held" in ask(nodes, key)["loaded"]
        (tmp_path / "go").touch()
        assert told(held.result())["key"] == "held"


def test_a_key_that_cannot_be_loaded_is_answered_and_the_others_go_on(nodes: StartedNodes) -> None:
    before = ask(nodes, "8")
    nodes.fails.write_text("bad")
    try:
        with pytest.raises(Unserved, match="nothing to load for bad") as raised:
            ask(nodes, "bad")
        assert raised.value.reason == "start_failed"
        assert ask(nodes, "8")["pid"] == before["pid"]
    finally:
        nodes.fails.unlink(missing_ok=True)
    nodes.api("POST", f"pools/%2F/{POOL}/groups/bad/retry", {}).raise_for_status()
    assert ask(nodes, "bad")["pid"] == before["pid"]


def test_a_worker_that_is_lost_is_replaced_and_its_keys_come_again(nodes: StartedNodes) -> None:
    for key in ("9", "10"):
        ask(nodes, key)
    lost = row(nodes)["id"]
    process = nodes.processes(POOL)[lost]
    process.send_signal(signal.SIGKILL)
    eventually("it is gone", lambda: lost not in {one["id"] for one in nodes.workers(POOL)})
    said = [ask(nodes, key) for key in ("9", "10")]
    assert {one["worker"] for one in said} == {row(nodes)["id"]}
    assert said[0]["pid"] != process.pid


def test_a_key_is_stopped_alone(nodes: StartedNodes) -> None:
    for key in ("11", "12"):
        before = ask(nodes, key)
    nodes.api("POST", f"pools/%2F/{POOL}/groups/11/stop", {}).raise_for_status()
    again = eventually("it was given back and came again", lambda: (one := ask(nodes, "11"))["loads"] > 1 and one)
    after = ask(nodes, "12")
    assert (again["pid"], after["pid"], after["loads"]) == (before["pid"], before["pid"], 1)


def test_the_number_changes_only_while_there_is_no_worker(nodes: StartedNodes) -> None:
    ask(nodes, "13")
    said = nodes.api("POST", f"pools/%2F/{POOL}/set", {"keys_per_worker": 4})
    assert said.status_code == 400
    assert "while it has none" in said.text
