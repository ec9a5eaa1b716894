"""What a migration says in the end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterbroker.broker.bridges.migration import Job
from clusterbroker.broker.cli.exit_codes import Failed
from clusterbroker.broker.cli.migrate import LINE_S, _Lines, _report, _Way


class Source:
    """A management API that lists these queues."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def get(self, path: str) -> list[dict[str, Any]]:
        assert path == "/api/queues"
        return [{"vhost": "/", "name": name} for name in self.names]


def told(source: Source, *jobs: Job) -> str:
    way = _Way(SimpleNamespace(), source, inwards=True)  # type: ignore[arg-type]
    return _report(way, SimpleNamespace(jobs={job.queue: job for job in jobs}), False)  # type: ignore[arg-type]


def test_a_queue_that_went_with_its_client_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    """As those of Celery's answers do when the caller ends."""
    moved = Job("/", "celery", moved=40, state="done")
    answers = Job("/", "6737ee33", state="failed", why="404 NOT_FOUND - no queue '6737ee33' in vhost '/'")
    assert told(Source("celery"), moved, answers) == "40 messages of 1 queues moved"
    assert "6737ee33' in vhost '/': 0 messages; the source has deleted it meanwhile" in capsys.readouterr().out
    with pytest.raises(Failed, match="1 queue failed"):
        told(Source("celery", "6737ee33"), moved, answers)


def test_without_a_terminal_a_line_now_and_then_says_what_moved() -> None:
    lines = _Lines(100.0)
    asked = [(5, 100.0 + LINE_S / 2), (9, 100.0 + LINE_S), (12, 101.0 + LINE_S), (12, 100.0 + 2 * LINE_S), (12, 900.0)]
    assert [lines.due(moved, at_s) for moved, at_s in asked] == [False, True, False, True, False]
