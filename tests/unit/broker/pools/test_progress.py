"""What is known of requests' progress: the last report of each, of so many requests."""

from __future__ import annotations

from typing import Any

from clusterbroker.broker.content.message import new_message
from clusterbroker.broker.pools import progress as p
from clusterbroker.broker.wire.amqp091.properties import Properties
from clusterbroker.journal.record import Message


def report(part: Any, request: Any = "1", event: Any = "progress", correlation_id: str | None = None) -> Message:
    headers = {"x-event": event, "x-progress": part, "x-correlation-id": request}
    told = {name: value for name, value in headers.items() if value is not None}
    return new_message("core-activity-xchg", "42", Properties(headers=told, correlation_id=correlation_id), b"", 5)


def test_the_last_report_since_a_time() -> None:
    progress = p.Progress()
    progress.heard("w1-0", [report(0.25), report(0.5)], 1000)
    assert progress.since("w1-0", "1", 1000) == (0.5, 1000)
    assert progress.since("w1-0", "1", 1001) is None, "of an earlier delivery"
    assert progress.since("w1-1", "1", 0) is None
    assert progress.since("w1-0", "2", 0) is None
    progress.heard("w1-0", [report(0.75, event=b"progress", request=b"1")], 2000)
    assert progress.since("w1-0", "1", 1001) == (0.75, 2000)
    progress.heard("w1-0", [report(1, request=None, correlation_id="2")], 2000)
    assert progress.since("w1-0", "2", 0) == (1.0, 2000)


def test_what_is_no_progress_is_passed_over() -> None:
    progress = p.Progress()
    for part in (None, -0.1, 1.1, float("nan"), float("inf"), "", "half", b"\xff", [1], {"a": 1}):
        progress.heard("w1-0", [report(part)], 1000)
    progress.heard("w1-0", [report(0.5, event="ready"), report(0.5, request=7), report(0.5, request="x" * 256)], 1000)
    progress.heard("w1-0", [report(0.5, request=None), new_message("x", "42", Properties(), b"", 5)], 1000)
    assert progress.since("w1-0", "1", 0) is None
    assert progress.since("w1-0", "x" * 256, 0) is None


def test_the_oldest_report_is_forgotten() -> None:
    progress = p.Progress()
    for number in range(p.KNOWN_MAX):
        progress.heard("w1-0", [report(0.5, str(number))], 1000)
    progress.heard("w1-0", [report(0.6, "1")], 2000)
    assert progress.since("w1-0", "0", 0) is not None, "nothing more is known than before"
    progress.heard("w1-0", [report(0.5, "one more"), report(0.5, "another")], 3000)
    assert progress.since("w1-0", "0", 0) is None
    assert progress.since("w1-0", "1", 0) == (0.6, 2000)
    assert progress.since("w1-0", "2", 0) is None
    assert progress.since("w1-0", "one more", 0) is not None
