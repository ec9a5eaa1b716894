"""A mover as a conversation. Its promise is held by `tests/property/test_mover_lives.py`."""

from __future__ import annotations

from typing import Any

from clusterbroker.broker.bridges.ledger import Known, State
from clusterbroker.broker.bridges.mover import (
    EMPTY_S,
    LINGER_S,
    Cancel,
    Consume,
    End,
    Look,
    Mover,
    Phase,
    Plan,
    Publish,
    Record,
    Settle,
)
from tests.property.mover_world import FakeParcel

NEW = State(b"p", 1, ())


def parcel(*contents: bytes) -> Any:
    return FakeParcel([(content, 0, False) for content in contents])


def kinds(effects: list[Any]) -> list[type]:
    return [type(effect) for effect in effects]


def test_a_counted_window_from_its_beginning_to_the_end_of_the_queue() -> None:
    mover = Mover(Plan(window=2), NEW)
    assert mover.tick(0) == [Consume(2)]
    came = parcel(b"a", b"b")
    assert kinds(mover.delivered(came, 0)) == [Record, Cancel], "enough came"
    assert came.numbers == [1, 2]
    assert mover.cancelled(0) == []
    assert mover.recorded(0) == [Publish(came)], "its numbers are in the ledger"
    assert mover.confirmed(2, False, 0) == []
    assert mover.confirmed(1, False, 0) == [Settle(2, sync=True)]
    assert kinds(mover.synced(0)) == [Record]
    assert mover.recorded(0) == [Consume(2)]
    assert mover.tick(EMPTY_S) == [Cancel()]
    assert mover.cancelled(1) == [Look()]
    assert mover.depth(0, 1) == [End()]
    assert (mover.moved, mover.phase) == (2, Phase.OVER)


def test_a_window_that_goes_quiet_is_closed_and_one_who_follows_waits_for_more() -> None:
    mover = Mover(Plan(window=100, follow=True), NEW)
    mover.tick(0)
    assert mover.due_s == float("inf"), "nothing came, and what comes wakes it"
    mover.delivered(parcel(b"a"), 5)
    assert mover.tick(5) == []
    assert mover.tick(5 + LINGER_S) == [Cancel()]
    assert kinds(mover.delivered(parcel(b"b"), 5.1)) == [Record], "it came before the answer"


def test_a_plain_one_acknowledges_as_it_is_confirmed() -> None:
    mover = Mover(Plan(window=2, follow=True), None)
    mover.tick(0)
    came = parcel(b"a", b"b")
    assert mover.delivered(came, 0) == [Publish(came)]
    assert came.numbers == [], "the destination knows none"
    assert mover.confirmed(2, True, 0) == [Settle(2, sync=False)]
    assert mover.delivered(parcel(b"c"), 1) != []
    assert mover.confirmed(3, False, 1) == [Settle(3, sync=False)] or mover.tick(mover.due_s) == [Settle(3, sync=False)]


def test_a_rate_makes_small_windows_and_rests() -> None:
    mover = Mover(Plan(window=100, rate_per_s=10), NEW)
    assert mover.tick(0) == [Consume(2)]
    mover.delivered(parcel(b"a", b"b"), 0)
    mover.cancelled(0)
    mover.recorded(0)
    mover.confirmed(2, True, 0)
    mover.synced(0)
    assert mover.recorded(0) == []
    assert mover.wake_s == 0.2
    assert mover.tick(0.1) == []
    assert mover.tick(0.2) == [Consume(2)]


def test_one_that_ends_after_a_number_takes_no_more() -> None:
    mover = Mover(Plan(window=100, most=3), None)
    assert mover.tick(0) == [Consume(3)]
    mover.delivered(parcel(b"a", b"b", b"c"), 0)
    mover.confirmed(3, True, 0)
    assert mover.cancelled(0) == [Settle(3, sync=True)]
    assert mover.synced(0) == [End()]


def test_the_first_that_comes_again_is_not_judged_alone() -> None:
    """A socket may give one message first: whether the source took back its acknowledgements is seen by a run."""
    contents = [b"%d" % n for n in range(4)]
    prints = parcel(*contents).prints
    known = tuple(Known(n + 1, 0, bytes(prints[8 * n : 8 * n + 8]), True) for n in range(4))
    mover = Mover(Plan(window=100), State(b"p", 5, known))
    mover.tick(0)
    first, rest = (FakeParcel([(content, 0, True) for content in part]) for part in (contents[:1], contents[1:]))
    assert mover.delivered(first, 0) == [], "one alone proves nothing"
    assert kinds(mover.delivered(rest, 0)) == [Record, Record]
    assert [*first.numbers, *rest.numbers] == [1, 2, 3, 4]

    alone = Mover(Plan(window=100), State(b"p", 5, known))
    alone.tick(0)
    one = FakeParcel([(contents[0], 0, True)])
    assert alone.delivered(one, 0) == []
    assert kinds(alone.tick(LINGER_S)) == [Record, Cancel], "nothing follows it"
    assert one.numbers == [5], "a copy is better than a loss"
