"""Sums of outcomes: equal folds agree, one that differs is told once, windows that were joined midway are left out."""

from __future__ import annotations

import pytest

from clusterbroker.cluster.errors import LogFailure, Unavailable
from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.raft.fold import Envelope, Fold
from clusterbroker.cluster.raft.outcomes import KEPT, WINDOW, Outcomes
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.map import Applied, ClusterMap


def folded(fold: Fold, first: int, last: int) -> Fold:
    for index in range(first, last + 1):
        command = c.AddVhost(name=f"v{index % 7}") if index % 3 else c.DeleteVhost(name=f"v{index % 7}")
        assert fold.apply(LogIndex(index), Envelope("a/1", 1, index, c.encode(command))) is not None
    return fold


def test_equal_logs_give_equal_sums() -> None:
    one, other = folded(Fold(), 1, 3 * WINDOW), folded(Fold(), 1, 3 * WINDOW)
    first, _ = one.outcomes.last
    assert first == 2 * WINDOW
    assert one.outcomes.last == other.outcomes.last
    assert one.outcomes.differs("b", other.outcomes.last) is None


def test_a_fold_from_a_snapshot_sums_up_the_next_whole_window() -> None:
    one = folded(Fold(), 1, WINDOW + 10)
    later = Fold(ClusterMap.restored(one.map.snapshot()))
    later.origins = dict(one.origins)
    for fold in (one, later):
        folded(fold, WINDOW + 11, 2 * WINDOW)
    assert later.outcomes.last == (0, 0)
    for fold in (one, later):
        folded(fold, 2 * WINDOW + 1, 3 * WINDOW)
    assert later.outcomes.last == one.outcomes.last == (2 * WINDOW, one.outcomes.last[1])


@pytest.mark.parametrize("wrong", ["error", "changes"])
def test_one_answer_that_differs_is_told_once_and_its_end_too(wrong: str) -> None:
    one, other = Outcomes(), Outcomes()
    command = c.AddVhost(name="v")
    for index in range(1, 4 * WINDOW + 1):
        mine = Applied(LogIndex(index), command, None, None, ())
        theirs = mine
        if index == WINDOW + 7:
            if wrong == "error":
                theirs = Applied(LogIndex(index), command, Unavailable("internal error"), None, ())
            else:
                theirs = Applied(LogIndex(index), command, None, None, ("something",))  # type: ignore[arg-type]
        one.add(index, mine)
        other.add(index, theirs)
        told = one.differs("b", other.last)
        expected = {2 * WINDOW: True, 3 * WINDOW: False}.get(index)
        assert told is expected, f"at {index}"


def test_windows_that_are_long_over_are_not_compared() -> None:
    outcomes = Outcomes()
    for index in range(1, (KEPT + 4) * WINDOW):
        outcomes.add(index, None)
    assert outcomes.differs("b", (WINDOW, 1)) is None
    assert outcomes.differs("b", (KEPT * WINDOW, 1)) is True


def test_memory_that_is_short_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*_: object) -> Applied:
        raise MemoryError

    fold = Fold()
    monkeypatch.setattr(fold.map.__class__, "apply", short)
    with pytest.raises(LogFailure, match=r"metadata entry 1 .* memory is short; restart this node"):
        folded(fold, 1, 1)
