"""What became of deliveries, until their owner has committed it."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.remote import settlements as module
from clusterbroker.broker.remote.messages import SETTLE_REQUEUE
from clusterbroker.broker.remote.settlements import RANGES_MAX, Settlements


def returned(*seqs: int) -> Settlements:
    """These were returned, and the owner was told."""
    settlements = Settlements()
    for seq in seqs:
        settlements.add(seq, SETTLE_REQUEUE)
    settlements.gather(())
    settlements.tell()
    return settlements


def told_again(settlements: Settlements) -> list[tuple[int, int]]:
    settlements.detached()
    return [span for settlement in settlements.tell(everything=True) for span in settlement.ranges]


def test_what_came_again_is_not_returned_by_the_next_attachment() -> None:
    settlements = returned(1, 2, 3, 5, 9)
    settlements.came_again((2, 7))
    settlements.came_again((9,))
    assert told_again(settlements) == [(1, 1), (3, 3), (5, 5)]
    settlements.came_again((1,))
    assert told_again(settlements) == [(3, 3), (5, 5)]


def test_what_came_again_and_was_returned_again_stays_in_the_later_return() -> None:
    settlements = returned(1, 2)
    settlements.came_again((1,))
    settlements.add(1, SETTLE_REQUEUE)
    settlements.gather(())
    assert told_again(settlements) == [(2, 2), (1, 1)]
    settlements.settled(1)
    settlements.came_again((1,))
    assert told_again(settlements) == []
    settlements.settled(2)
    assert not settlements
    assert not settlements.watches_returns


def test_many_single_messages_that_come_again_one_by_one_are_struck_off_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each one rebuilt the ranges of its settlement: 1.5 ms for each message while the owner's disk was slow."""
    calls: list[int] = []
    subtract = module.subtract

    def counted(*ranges: Any) -> Any:
        calls.append(1)
        return subtract(*ranges)

    monkeypatch.setattr(module, "subtract", counted)
    seqs = range(1, 4 * RANGES_MAX, 2)
    settlements = returned(*seqs)
    for seq in seqs:
        settlements.came_again((seq,))
    assert told_again(settlements) == []
    assert len(calls) == 2, "once for each settlement"
