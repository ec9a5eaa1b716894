"""What became of a batch, in a line: added up over its tasks, read as it grows, and never a reason to fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterbroker.pipeline.counts import Counts, CountsFile, tell, total
from clusterbroker.pipeline.task import Written


def test_tasks_are_added_up() -> None:
    tasks = [Written(0, 0, 10, 2, skipped=1, resent=3), Written(1, 2, 5, 5, dead_lettered=4)]
    assert total(tasks) == Counts(15, 7, skipped=1, dead_lettered=4, resent=3)
    assert total([], already=True) == Counts(already=True)
    assert total(tasks).left_out == 5


def test_lines_are_read_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / "counts"
    file = CountsFile(path)
    assert file.news() == []
    tell(str(path), "q", 7, Counts(rows=10, messages=2))
    assert json.loads(path.read_text())["messages"] == 2
    assert file.news() == [("q", 7, Counts(rows=10, messages=2))]
    half = path.read_bytes()[:20]
    with path.open("ab") as lines:
        lines.write(b"[1]\n" + half)
    assert file.news() == []
    with path.open("ab") as lines:
        lines.write(path.read_bytes()[20 : path.read_bytes().index(b"\n") + 1])
    assert [batch for _, batch, _ in file.news()] == [7]
    assert file.news() == []


def test_what_was_left_out_is_logged_and_a_full_disk_fails_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tell(None, "q", 1, Counts(rows=1, messages=1))
    assert caplog.messages == []
    tell(None, "q", 7, Counts(skipped=2, dead_lettered=1))
    tell(str(tmp_path), "q", 8, Counts())
    assert caplog.messages[0] == "batch 7 of q: 2 rows skipped, 1 dead-lettered"
    assert caplog.messages[1].startswith(f"option 'countsFile' is '{tmp_path}', which cannot be written: ")
