"""Rows of the commands are complete: they are run with a real cluster, far from here, but missed here."""

from __future__ import annotations

from tests.unit.broker.cli.command_rows import ELSEWHERE, NOT_ASKED, ROWS, paths
from tests.unit.broker.cli.reference import commands


def test_every_command_has_a_row() -> None:
    there = {" ".join(words) for words, _ in commands()}
    tried = {name for row in ROWS for name in (row.words.split()[0], " ".join(row.words.split()[:2])) if name in there}
    assert there - tried - set(ELSEWHERE) == set(), "no test tries these: add a Row to command_rows.py"
    assert set(ELSEWHERE) <= there


def test_paths_that_no_command_asks_for_are_there() -> None:
    assert set(NOT_ASKED) <= paths()
