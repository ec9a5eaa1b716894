"""What a controller keeps of its workers' starts and ends is bounded, and says from when on all is there."""

from __future__ import annotations

from typing import Any

from clusterbroker.broker.pools.history import KEPT_MAX, TEXT_MAX, History
from clusterbroker.cluster.wiring.pool_entities import NO_KEY


def entries(history: History, *keys: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = history.document(keys.__contains__)["entries"]
    return found


def test_the_newest_comes_first_and_other_keys_are_left_out() -> None:
    history = History(1000)
    history.note(1001, "started", "w1-0", "42", "a")
    history.note(1002, "started", "w2-0", "43", "a")
    history.note(1003, "exited", "w1-0", "42", "a", why="idle", exit_status=0, peak_bytes=7)
    assert [(one["number"], one["event"]) for one in entries(history, "42")] == [(3, "exited"), (1, "started")]
    assert entries(history, "42")[0] == {
        "number": 3, "at_ms": 1003, "event": "exited", "worker": "w1-0", "key": "42", "place": "a", "why": "idle",
        "detail": "", "exit_status": 0, "peak_bytes": 7, "took_ms": None, "was_ready": None,
    }  # fmt: skip
    assert history.document(lambda _: True)["since_ms"] == 1000


def test_a_spare_has_no_key_and_is_nobodys_secret() -> None:
    history = History(0)
    history.note(1, "started", "w1-0", NO_KEY, "a")
    assert [(one["worker"], one["key"]) for one in entries(history)] == [("w1-0", None)]


def test_the_oldest_go_and_the_record_begins_behind_them() -> None:
    history = History(0)
    for number in range(1, KEPT_MAX + 3):
        history.note(number * 10, "started", f"w{number}-0", "k", "a", why="x" * 1000)
    told = history.document(lambda _: True)
    assert len(told["entries"]) == KEPT_MAX
    assert (told["entries"][-1]["number"], told["since_ms"]) == (3, 20)
    assert {len(one["why"]) for one in told["entries"]} == {TEXT_MAX}
