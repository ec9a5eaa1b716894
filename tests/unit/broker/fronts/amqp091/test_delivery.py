"""A channel's unacknowledged deliveries in both halves: tags, multiple, unknown tags, rollback, references."""

from __future__ import annotations

import gc
import struct
import sys
import weakref
from typing import Any

import pytest


def ledger_of(half: Any, count: int, consumers: int = 1) -> tuple[Any, Any, list[Any]]:
    """A ring, a ledger with `count` deliveries dealt to consumers in turn, the consumers."""
    ring, ledger = half.ring(count), half.ledger(number=5, size_max=1 << 30)
    holders = [half.consumer(ring, ledger, owner=n) for n in range(consumers)]
    assert half.module.dispatch(ring, holders, 100)[0] == count
    return ring, ledger, holders


def seqs(entries: Any) -> list[int]:
    return [seq for _, _, seq in entries]


def test_tags_count_from_one(half: Any) -> None:
    ring, ledger = half.ring(3), half.ledger()
    consumer = half.consumer(ring, ledger)
    ring.take()
    assert ledger.add(consumer, 1, 500) == 1
    assert ledger.skip() == 2
    ring.take()
    assert ledger.add(consumer, 2, 600) == 3
    assert (ledger.unacked, consumer.unacked, ledger.next_tag) == (2, 2, 4)
    assert ledger.oldest() == (500, consumer, 1)
    assert ledger.ack([2 << 1]) == 3, "a skipped tag is not outstanding"
    assert ledger.ack([1 << 1]) == 0
    assert ledger.oldest() == (600, consumer, 3)
    assert (ledger.unacked, consumer.unacked, ring.unacked) == (1, 1, 1)
    ledger.ack([3 << 1])
    assert ledger.oldest() is None


def test_one_by_one_in_any_order(half: Any) -> None:
    ring, ledger, (consumer,) = ledger_of(half, 500)
    order = [tag for start in (3, 1, 4, 2, 0) for tag in range(1 + start, 501, 5)]
    for left, tag in enumerate(order):
        assert ledger.ack([tag << 1]) == 0
        assert ledger.ack([tag << 1]) == tag + 1, "acknowledged once"
        assert ledger.unacked == consumer.unacked == ring.unacked == 499 - left
    assert ledger.oldest() is None


def test_multiple_takes_all_up_to_the_tag(half: Any) -> None:
    ring, ledger, _ = ledger_of(half, 10)
    assert ledger.ack([3 << 1, 5 << 1 | 1]) == 0
    assert (ledger.unacked, ring.unacked) == (5, 5)
    assert ledger.ack([5 << 1 | 1]) == 6, "amqp-rules 5.5: the tag itself must be outstanding"
    assert ledger.ack([0 << 1]) == 1, "tag 0 without multiple is unknown"
    assert ledger.ack([0 << 1 | 1]) == 0
    assert ledger.unacked == 0
    assert ledger.ack([0 << 1 | 1]) == 0, "all of nothing"


def test_an_unknown_tag_ends_the_batch(half: Any) -> None:
    _, ledger, _ = ledger_of(half, 5)
    assert ledger.ack([1 << 1, 77 << 1, 2 << 1]) == 78
    assert ledger.unacked == 4
    huge = 2**64 - 1
    assert ledger.ack([huge << 1 | 1]) == huge + 1
    assert ledger.ack(iter([2 << 1])) == 0


def test_a_decoded_batch(half: Any) -> None:
    """What the decoder hands over."""
    ring, ledger, _ = ledger_of(half, 6)
    decoder = half.codec.FrameDecoder()
    decoder.opened = True
    frames = [struct.pack(">BHIHHQB", 1, 5, 13, 60, 80, tag, more) + b"\xce" for tag, more in ((2, 0), (4, 1), (6, 0))]
    (acked,) = decoder.feed(b"".join(frames), 0)
    assert ledger.ack(acked) == 0
    assert (ledger.unacked, ring.unacked) == (1, 1)
    assert ledger.oldest()[2] == 5


def test_collect_leaves_the_messages_unsettled(half: Any) -> None:
    ring, ledger, (consumer,) = ledger_of(half, 6)
    assert ledger.collect(9, False) is None
    assert ledger.collect(9, True) is None
    assert ledger.collect(2, False) == [(2, consumer, 2)]
    assert ledger.collect(4, True) == [(1, consumer, 1), (3, consumer, 3), (4, consumer, 4)]
    assert (ledger.unacked, consumer.unacked, ring.unacked) == (2, 2, 6)
    assert seqs(ledger.collect(0, True)) == [5, 6]
    assert ledger.collect(0, True) == []


def test_a_rollback_puts_deliveries_back_at_their_tags(half: Any) -> None:
    _, ledger, consumers = ledger_of(half, 300, consumers=3)
    taken = [ledger.collect(tag, False)[0] for tag in (7, 299, 150, 1, 300)]
    rest = ledger.collect(40, True)
    ledger.restore(taken + rest, 900)
    assert ledger.oldest() == (900, consumers[0], 1)
    assert (ledger.unacked, sum(c.unacked for c in consumers), ledger.next_tag) == (300, 300, 301)
    assert [(tag, seq) for tag, _, seq in ledger.drain()] == [(n, n) for n in range(1, 301)]
    ledger.restore(taken, 900)
    with pytest.raises(AssertionError, match="a delivery is put back once"):
        ledger.restore(taken[:1], 900)
    with pytest.raises(AssertionError, match="a delivery is put back under its own tag"):
        ledger.restore([(301, consumers[0], 1)], 900)


def test_drain_empties_in_tag_order(half: Any) -> None:
    _, ledger, consumers = ledger_of(half, 9, consumers=2)
    ledger.ack([4 << 1])
    drained = ledger.drain()
    assert seqs(drained) == [1, 2, 3, 5, 6, 7, 8, 9]
    assert [consumer.owner for _, consumer, _ in drained] == [0, 1, 0, 0, 1, 0, 1, 0]
    assert (ledger.unacked, [c.unacked for c in consumers]) == (0, [0, 0])
    assert ledger.drain() == []


def test_an_acknowledgement_marks_the_queue(half: Any) -> None:
    ring, ledger, _ = ledger_of(half, 4)
    ring.marked = False
    ring.agenda.clear()
    ledger.ack([1 << 1, 2 << 1])
    assert ring.agenda == ["me"]


def test_acknowledging_for_a_deleted_queue(half: Any) -> None:
    ring, ledger, (consumer,) = ledger_of(half, 4)
    ring.destroy()
    assert ledger.ack([2 << 1, 4 << 1 | 1]) == 0
    assert (ledger.unacked, consumer.unacked) == (0, 0)


def test_one_old_delivery_and_many_passed_ones(half: Any) -> None:
    """Neither skipped tags nor acknowledged ones cost anything while an old one is outstanding."""
    ring, ledger, (consumer,) = ledger_of(half, 1)
    for _ in range(3000):
        ledger.skip()
    for turn in range(3000):
        ring.append(half.messages(1))
        seq = half.take(ring)
        tag = ledger.add(consumer, seq, turn)
        if turn % 100:
            assert ledger.ack([tag << 1]) == 0
    assert ledger.unacked == 31
    tags = [tag for tag, _, _ in ledger.drain()]
    assert tags == [1, *range(3002, 6002, 100)]


@pytest.mark.long
def test_consumers_are_let_go_with_their_last_delivery(half: Any) -> None:
    class Owner:
        pass

    ring, ledger = half.ring(9), half.ledger()
    owners = [Owner() for _ in range(3)]
    watched = [weakref.ref(owner) for owner in owners]
    consumers = [half.consumer(ring, ledger, owner=owner) for owner in owners]
    counts = [sys.getrefcount(consumer) for consumer in consumers]
    half.module.dispatch(ring, consumers, 0)
    del owners
    first = consumers.pop(0)
    assert ledger.ack([1 << 1, 4 << 1, 7 << 1]) == 0
    assert sys.getrefcount(first) <= counts[0]
    del first
    gc.collect()
    assert [watch() is None for watch in watched] == [True, False, False]
    consumers.clear()
    gc.collect()
    assert [watch() is None for watch in watched] == [True, False, False], "their deliveries hold them"
    ledger.drain()
    gc.collect()
    assert all(watch() is None for watch in watched)


def test_a_circle_through_a_forgotten_ledger_is_collected(half: Any) -> None:
    class Owner:
        pass

    ring, ledger = half.ring(4), half.ledger()
    owners = [Owner() for _ in range(2)]
    for owner in owners:
        owner.consumer = half.consumer(ring, ledger, owner=owner)  # type: ignore[attr-defined]
    half.module.dispatch(ring, [owner.consumer for owner in owners], 0)  # type: ignore[attr-defined]
    watched = [weakref.ref(owner) for owner in owners]
    del owner, owners, ring, ledger
    gc.collect()
    assert [watch() for watch in watched] == [None, None]


def test_what_one_of_several_consumers_holds(half: Any) -> None:
    ring, ledger = half.ring(6), half.ledger()
    first, second, idle = (half.consumer(ring, ledger) for _ in range(3))
    for seq, consumer in enumerate((second, first, second, first, second, first), 1):
        ring.take()
        ledger.add(consumer, seq, 100 * seq)
    assert ledger.held() == [(100, second), (200, first)]
    assert ledger.drain_of(second) == [(1, second, 1), (3, second, 3), (5, second, 5)]
    assert (ledger.unacked, second.unacked, first.unacked) == (3, 0, 3)
    assert ledger.held() == [(200, first)]
    assert ledger.drain_of(idle) == []
    assert ledger.ack([6 << 1 | 1]) == 0
    assert ledger.held() == []
