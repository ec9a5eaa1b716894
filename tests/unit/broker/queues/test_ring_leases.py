"""Leased messages of the ring: who gets them, what they look like, and how they come back."""

from __future__ import annotations

from typing import Any

from clusterbroker.broker.queues.states import HEAD_NONE, HEAD_OK, LEASED


def seqs(half: Any, data: bytes) -> list[int]:
    return [seq for seq, *_ in half.record.read_records(data)]


def test_a_lease_takes_what_is_ready_in_order(half: Any) -> None:
    ring = half.ring(6)
    assert ring.lease(1, 100, 4, 1 << 20) == (5, 4, 4)
    assert (ring.ready, ring.unacked, ring.held_by(LEASED)) == (2, 4, 4)
    assert half.take(ring) == 5, "others get what is behind it"
    assert ring.lease(5, 100, 9, 1 << 20) == (5, 0, 0), "what somebody has is not passed over"
    ring.requeue(5, False)
    assert ring.lease(5, 100, 9, 1 << 20) == (7, 2, 2)
    assert ring.head(0) == HEAD_NONE


def test_a_lease_ends_with_bytes_but_has_as_many_messages_as_it_must(half: Any) -> None:
    ring = half.ring()
    ring.append([half.message(b"x" * size) for size in (100, 10, 10, 10)])
    assert ring.lease(1, 5, 9, 50) == (1, 0, 0)
    assert ring.lease(1, 5, 9, 50, 1) == (2, 1, 100)
    assert ring.lease(2, 5, 9, 25) == (4, 2, 20)
    assert ring.lease(4, 4, 9, 25) == (4, 0, 0)
    assert ring.lease(4, 5, 0, 25) == (4, 0, 0)


def test_a_lease_passes_over_what_has_left(half: Any) -> None:
    ring = half.ring(600)
    for seq in (1, 2, 300, 301):
        ring.settle(seq)
    assert ring.lease(1, 302, 1000, 1 << 30)[:2] == (300, 297)
    assert ring.lease(300, 1000, 2, 1 << 30)[:2] == (304, 2)


def test_leased_messages_are_settled_and_returned_by_ranges(half: Any) -> None:
    ring = half.ring(6, journaled=True)
    half.commit(ring)
    ring.lease(1, 7, 9, 1 << 20)
    assert ring.settle_held(1, 3, LEASED) == 3
    assert ring.acked == 3
    assert ring.requeue_held(1, ring.next_seq, LEASED, False) == 3
    assert (ring.ready, ring.unacked, ring.held_by(LEASED)) == (3, 0, 0)
    half.commit(ring)
    assert ring.head(0) == HEAD_OK
    assert ring.take()[::2] == (4, True), "flagged as redelivered"


def test_what_is_leased_may_be_shown_so_the_right_is_asked_for(half: Any) -> None:
    ring = half.ring(3, journaled=True)
    half.commit(ring)
    before = ring.reserved
    ring.lease(1, 4, 2, 1 << 20)
    assert before == 0
    assert ring.reserved >= 2
    assert ring.needs_write
    half.commit(ring)
    assert ring.reserved_durable >= 2
    transient = half.ring(3)
    transient.lease(1, 4, 2, 1 << 20)
    assert transient.reserved == 0


def test_leased_messages_are_read_again_and_again(half: Any) -> None:
    ring = half.ring(6)
    ring.lease(1, 6, 9, 1 << 20)
    for _ in range(2):
        data, end, absent = ring.read_leased(1, 100, 9, 1 << 20, {})
        assert (seqs(half, data), end, absent) == ([1, 2, 3, 4, 5], 100, [])
    data, end, _ = ring.read_leased(2, 5, 2, 1 << 20, {})
    assert (seqs(half, data), end) == ([2, 3], 4)
    data, end, _ = ring.read_leased(2, 5, 9, 1, {})
    assert (seqs(half, data), end) == ([2], 3), "one at least"
    assert ring.read_leased(6, 7, 9, 1 << 20, {}) == (b"", 7, []), "it is ready, and not leased"
    assert (ring.unacked, ring.handed) == (5, 0)


def test_what_is_on_disk_is_told_first_and_found_then(half: Any) -> None:
    ring = half.ring(journaled=True)
    ring.resident_bytes_max = 0
    messages = half.messages(4)
    ring.append(messages)
    half.commit(ring)
    ring.lease(1, 5, 9, 1 << 20)
    data, end, absent = ring.read_leased(1, 5, 9, 1 << 20, {})
    assert (data, end, [seq for seq, *_ in absent]) == (b"", 1, [1, 2, 3, 4])
    assert [location[0] for location in ring.read_leased(1, 5, 2, 1 << 20, {})[2]] == [1, 2]
    found = dict(enumerate(messages, 1))
    data, end, absent = ring.read_leased(1, 5, 9, 1 << 20, found)
    assert ([message.body for _, message, _, _ in half.record.read_records(data)], end, absent) == (
        [b"0", b"1", b"2", b"3"],
        5,
        [],
    )


def test_records_are_as_a_consumer_sees_them(half: Any) -> None:
    ring = half.ring(2)
    ring.annotates_redelivered = True
    ring.annotate = lambda message, seq, count, taker, again: half.message(b"%d %d %r %d" % (seq, count, taker, again))
    ring.lease(1, 3, 9, 1 << 20)
    assert ring.requeue_held(1, 1, LEASED, True) == 1
    ring.lease(1, 2, 9, 1 << 20)
    data, _, _ = ring.read_leased(1, 3, 9, 1 << 20, {})
    assert [(seq, message.body, count, again) for seq, message, count, again in half.record.read_records(data)] == [
        (1, b"1 1 None 1", 1, True),
        (2, b"1", 0, False),
    ]


def test_an_owner_that_steps_down_has_them_ready_again(half: Any) -> None:
    ring = half.ring(journaled=True)
    ring.replicated = True
    ring.append(half.messages(4))
    ring.begin_epoch(1)
    half.commit(ring)
    ring.lease(1, 5, 3, 1 << 20)
    half.commit(ring)
    ring.step_down()
    assert (ring.ready, ring.held_by(LEASED)) == (4, 0)
    ring.take_over(2)
    assert ring.lease(1, 4, 1 << 40, 1 << 60) == (4, 3, 3), "though nothing is committed yet"
    assert ring.ready == 1
