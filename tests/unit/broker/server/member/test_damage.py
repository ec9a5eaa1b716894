"""A damaged journal is set aside once, whatever a crash left behind."""

from __future__ import annotations

import shutil
from pathlib import Path

from clusterbroker.broker.server.member.damage import LOST, REBUILT, given_up_as, is_marked, mark, set_aside, unmark


def journal_in(directory: Path, text: str) -> None:
    (directory / "journal").mkdir(exist_ok=True)
    (directory / "journal" / "segment").write_text(text)


def test_a_journal_that_was_rebuilt_is_not_set_aside_before_its_node_has_registered(tmp_path: Path) -> None:
    journal_in(tmp_path, "old")
    mark(tmp_path, "a flipped bit", 3)
    aside = set_aside(tmp_path)
    assert aside is not None
    assert (aside / "segment").read_text() == "old"
    journal_in(tmp_path, "new")
    assert set_aside(tmp_path) is None, "the node crashed before it had registered"
    unmark(tmp_path)
    assert not is_marked(tmp_path)
    assert not (tmp_path / "journal" / REBUILT).exists()


def test_a_rebuilt_journal_that_is_damaged_as_well_is_set_aside(tmp_path: Path) -> None:
    """Else its node would begin again for ever."""
    journal_in(tmp_path, "old")
    mark(tmp_path, "a flipped bit", 3)
    set_aside(tmp_path)
    journal_in(tmp_path, "new")
    (tmp_path / LOST).unlink()  # a crash in `unmark`
    mark(tmp_path, "another one", 4)
    aside = set_aside(tmp_path)
    assert aside is not None
    assert (aside / "segment").read_text() == "new"


def test_a_rebuilt_journal_knows_who_gave_the_copies_up(tmp_path: Path) -> None:
    assert given_up_as(tmp_path) == 0
    journal_in(tmp_path, "old")
    mark(tmp_path, "one line\nand another", 17)
    set_aside(tmp_path)
    assert given_up_as(tmp_path) == 17
    assert set_aside(tmp_path) is None
    assert given_up_as(tmp_path) == 17
    shutil.rmtree(tmp_path / "journal")
    set_aside(tmp_path)
    assert given_up_as(tmp_path) == 0, "what came after that incarnation is gone as well"


def test_a_mark_of_an_earlier_release_names_nobody(tmp_path: Path) -> None:
    (tmp_path / LOST).write_text("a flipped bit\n")
    set_aside(tmp_path)
    assert given_up_as(tmp_path) == 0
