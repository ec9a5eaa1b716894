"""A mover as a conversation. Its promise is held by `tests/property/test_mover_lives.py`."""

from __future__ import annotations

from typing import Any

from clusterbroker.broker.bridges.ledger import Known, State
from clusterbroker.broker.bridges.mover import (
    EMPTY_S,
    LINGER_S,
    WINDOW_S,
    WINDOW_S_MAX,
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
    assert mover.due_s == float("inf"), "the source has not begun"
    assert mover.begun(1) == []
    for at_s in (1 + EMPTY_S, 1 + 2 * EMPTY_S):
        assert mover.due_s == at_s
        assert mover.tick(at_s) == [Look()]
        effects = mover.depth(0, at_s)
    assert effects == [Cancel()], "empty twice"
    assert mover.cancelled(2) == [Look()], "nothing may have been on its way"
    assert mover.depth(0, 2) == [End()]
    assert (mover.moved, mover.phase) == (2, Phase.OVER)


def test_a_window_that_goes_quiet_is_closed_and_one_who_follows_waits_for_more() -> None:
    mover = Mover(Plan(window=100, follow=True), NEW)
    mover.tick(0)
    assert mover.due_s == float("inf"), "nothing came, and what comes wakes it"
    mover.delivered(parcel(b"a"), 5)
    assert mover.tick(5) == []
    assert mover.tick(5 + LINGER_S) == [Look()]
    assert mover.depth(0, 5.06) == [Cancel()]
    assert kinds(mover.delivered(parcel(b"b"), 5.1)) == [Record], "it came before the answer"


def test_an_empty_window_is_not_closed_while_messages_are_ready() -> None:
    """Cancelled, a quorum queue of RabbitMQ takes back what is on its way, and hands out what is behind it."""
    mover = Mover(Plan(window=10), NEW)
    mover.tick(0)
    mover.begun(0)
    looks, at_s = 0, 0.0
    while at_s < 20:
        at_s = mover.due_s
        assert mover.tick(at_s) == [Look()]
        assert mover.depth(3, at_s) == []
        looks += 1
    assert looks < 20, "further and further apart"
    assert mover.tick(mover.due_s) == [Look()]
    assert mover.depth(0, at_s) == [], "a count may be late: once is nothing"
    assert mover.tick(mover.due_s) == [Look()]
    assert kinds(mover.delivered(parcel(b"a"), at_s)) == [Record], "before the answer"
    assert mover.depth(0, at_s) == [], "it has not been quiet"
    assert mover.tick(mover.due_s) == [Look()]
    assert mover.depth(0, at_s + 0.2) == [Cancel()]


def test_a_window_that_is_full_before_its_look_is_answered_goes_its_way() -> None:
    mover = Mover(Plan(window=2), NEW)
    mover.tick(0)
    mover.begun(0)
    mover.tick(mover.due_s)
    assert kinds(mover.delivered(parcel(b"a", b"b"), 1)) == [Record, Cancel]
    assert mover.depth(0, 1) == []
    assert mover.cancelled(1) == []
    assert mover.phase is Phase.DRAINING


def test_what_the_source_took_back_is_asked_for_again() -> None:
    mover = Mover(Plan(window=2), NEW)
    mover.tick(0)
    mover.begun(0)
    effects: list[Any] = []
    for _ in range(2):
        mover.tick(at_s := mover.due_s)
        effects = mover.depth(0, at_s)
    assert effects == [Cancel()]
    mover.cancelled(1)
    assert mover.depth(1, 1) == [Consume(2)]


def test_a_window_is_as_large_as_what_flows_into_it() -> None:
    """So that it is full when it is closed, and nothing is on its way."""
    mover = Mover(Plan(window=100), NEW)
    mover.tick(0)
    mover.begun(0)
    for at in range(30):
        mover.delivered(parcel(b"%d" % at), at * 0.04)
    assert mover.tick(1.2) == [Look()]
    assert mover.depth(0, 1.2) == [Cancel()]
    mover.cancelled(1.2)
    for _ in range(30):
        mover.recorded(1.2)
    mover.confirmed(30, True, 1.2)
    mover.synced(1.2)
    assert mover.recorded(1.2) == [Consume(25)], "of one second"
    assert kinds(mover.delivered(parcel(*(b"%d" % at for at in range(25))), 1.3))[-1] is Cancel
    mover.cancelled(1.3)
    mover.recorded(1.3)
    mover.confirmed(55, True, 1.3)
    mover.synced(1.3)
    assert mover.recorded(1.3) == [Consume(50)], "it filled at once"


def test_a_window_into_which_messages_flow_is_closed_in_a_moment_of_quiet() -> None:
    """What is on its way behind the cancel may come back behind later ones."""
    mover = Mover(Plan(window=100), NEW)
    mover.tick(0)
    mover.begun(0)
    for at in range(30):
        mover.delivered(parcel(b"%d" % at), at * 0.04)
    now_s = 1.2
    for flow in ("ready", "came"):
        assert mover.tick(now_s) == [Look()]
        if flow == "came":
            mover.delivered(parcel(b"more"), now_s)
        assert mover.depth(flow == "ready", now_s) == []
        assert now_s < mover.due_s <= now_s + LINGER_S, "it is looked at again, and not at once"
        now_s = mover.due_s
    assert mover.tick(now_s) == [Look()]
    assert mover.depth(0, now_s) == [Cancel()]


def test_a_window_into_which_messages_always_flow_is_closed_after_a_time() -> None:
    mover = Mover(Plan(window=1000), NEW)
    mover.tick(0)
    mover.begun(0)
    now_s, looks = 0.0, 0
    while True:
        mover.delivered(parcel(b"m"), now_s)
        if mover.tick(now_s):
            looks += 1
            if mover.depth(1, now_s):
                break
        now_s += 0.01
    assert WINDOW_S_MAX <= now_s <= WINDOW_S_MAX + LINGER_S
    assert looks <= (WINDOW_S_MAX - WINDOW_S) / LINGER_S + 2


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


def test_one_that_ends_after_a_number_takes_no_more_of_a_slow_source() -> None:
    """What is acknowledged in an open window makes room for more."""
    mover = Mover(Plan(window=100, most=10, follow=True), None)
    assert mover.tick(0) == [Consume(10)]
    mover.begun(0)
    mover.delivered(parcel(*[b"a"] * 6), 0)
    assert mover.confirmed(6, True, 0) == []
    assert mover.tick(mover.due_s) == [Cancel()]
    assert mover.cancelled(1) == [Settle(6, sync=True)]
    assert mover.synced(1) == [Consume(4)]
    mover.delivered(parcel(*[b"b"] * 4), 1)
    mover.confirmed(10, True, 1)
    assert mover.cancelled(1) == [Settle(10, sync=True)]
    assert mover.synced(1) == [End()]
    assert mover.moved == 10


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
    assert alone.tick(LINGER_S) == [Look()]
    assert kinds(alone.depth(0, LINGER_S)) == [Record, Cancel], "nothing follows it"
    assert one.numbers == [5], "a copy is better than a loss"
