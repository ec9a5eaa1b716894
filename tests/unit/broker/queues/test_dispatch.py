"""Handing out: fairness, priorities, credit, why it stops, what the client sees."""

from __future__ import annotations

import struct
from collections import Counter
from typing import Any

import pytest

from clusterbroker.broker.queues.states import (
    HEAD_EXPIRED,
    HEAD_NONE,
    HEAD_NOT_LOADED,
    HEAD_NOT_RESERVED,
    LIMIT,
    NO_CREDIT,
)


def delivered(consumers: list[Any]) -> list[int]:
    return [consumer.delivered for consumer in consumers]


def test_equals_take_turns(half: Any) -> None:
    ring = half.ring(7)
    consumers = [half.consumer(ring, half.ledger()) for _ in range(3)]
    assert half.module.dispatch(ring, consumers, 0) == (7, HEAD_NONE)
    assert delivered(consumers) == [3, 2, 2]
    assert [seq for _, _, seq in consumers[1].ledger.drain()] == [2, 5]


@pytest.mark.parametrize("count", [2, 3, 4, 100])
def test_equals_take_turns_when_messages_come_one_by_one(half: Any, count: int) -> None:
    """Who was looked at in vain stays next: otherwise two consumers and single messages starve one of them."""
    ring = half.ring()
    consumers = [half.consumer(ring, half.ledger()) for _ in range(count)]
    for _ in range(3 * count):
        ring.append(half.messages(1))
        assert half.module.dispatch(ring, consumers, 0) == (1, HEAD_NONE)
    assert Counter(delivered(consumers)) == {3: count}


def test_higher_priority_first_then_the_others(half: Any) -> None:
    ring = half.ring(9)
    priorities = (5, 5, 1, 0, -3)
    consumers = [half.consumer(ring, half.ledger(), prefetch=2, priority=priority) for priority in priorities]
    assert half.module.dispatch(ring, consumers, 0) == (9, HEAD_NONE)
    assert delivered(consumers) == [2, 2, 2, 2, 1]


def test_full_consumers_are_passed_over(half: Any) -> None:
    ring = half.ring(500)
    consumers = [half.consumer(ring, half.ledger(), prefetch=n % 3) for n in range(150)]
    consumers[70].active = False
    assert half.module.dispatch(ring, consumers, 0) == (500, HEAD_NONE)
    expected = [n % 3 or 7 for n in range(150)]
    expected[70] = 0
    expected[0] += 1
    assert delivered(consumers) == expected


def test_credit(half: Any) -> None:
    ring = half.ring(10)
    ledger = half.ledger()
    one, two = (half.consumer(ring, ledger, prefetch=2) for _ in range(2))
    ledger.prefetch = 3  # all the channel's consumers together
    assert half.module.dispatch(ring, [one, two], 0) == (3, NO_CREDIT)
    assert (one.unacked, two.unacked, ledger.unacked) == (2, 1, 3)
    assert (one.has_credit, two.has_credit) == (False, False)
    ledger.ack([1 << 1])
    assert (one.has_credit, two.has_credit) == (True, True)
    ledger.flowing = False
    assert half.module.dispatch(ring, [one, two], 0) == (0, NO_CREDIT)
    ledger.flowing = True
    two.active = False
    ledger.out.paused = True
    assert half.module.dispatch(ring, [one, two], 0) == (0, NO_CREDIT)
    ledger.out.paused = False
    assert half.module.dispatch(ring, [one, two], 0) == (1, NO_CREDIT)
    assert (one.delivered, two.delivered) == (3, 1)


def test_a_full_buffer_gets_nothing_more(half: Any) -> None:
    ring = half.ring(100)
    ledger = half.ledger(size_max=200)
    consumer = half.consumer(ring, ledger)
    count, why = half.module.dispatch(ring, [consumer], 0)
    assert (0 < count < 10, why) == (True, NO_CREDIT)
    assert ledger.out.size >= 200
    ledger.out.take()
    assert consumer.has_credit


def test_no_ack_settles_at_once_and_ignores_prefetch(half: Any) -> None:
    ring = half.ring(5, journaled=True)
    consumer = half.consumer(ring, half.ledger(), no_ack=True, prefetch=1)
    assert half.module.dispatch(ring, [consumer], 0) == (5, HEAD_NONE)
    assert (ring.ready, ring.unacked, ring.resident_bytes, consumer.unacked) == (0, 0, 0, 0)
    assert (consumer.ledger.next_tag, consumer.ledger.unacked) == (6, 0)
    assert ring.advance() == 6


def test_why_it_stops(half: Any) -> None:
    ring = half.ring(4, journaled=True)
    ledger = half.ledger()
    consumers = [half.consumer(ring, ledger)]

    def dispatch(now_ms: int = 0, limit: int = 1 << 30) -> Any:
        return half.module.dispatch(ring, consumers, now_ms, limit)

    assert half.module.dispatch(ring, [], 0) == (0, NO_CREDIT)
    assert dispatch(limit=0) == (0, LIMIT)
    assert dispatch(limit=1) == (1, LIMIT)
    half.commit(ring)
    ring.settle(1)
    for _ in range(3):
        ring.settle(ring.pop_head()[0])
    assert dispatch() == (0, HEAD_NONE)
    assert half.module.dispatch(ring, [], 0) == (0, HEAD_NONE)
    ring.purge()
    deep = half.ring(2, journaled=True)
    consumers[:] = [half.consumer(deep, ledger)]
    half.commit(deep)
    ring = deep
    assert dispatch() == (0, HEAD_NOT_RESERVED)
    ring.reserve()
    ring.resident_bytes_max = 0
    ring.append([half.message(b"old", time_ms=5, ttl_ms=5)])
    assert dispatch(limit=0) == (0, LIMIT)
    half.commit(ring)
    assert dispatch() == (2, HEAD_NOT_LOADED)
    ring.fill(ring.missing(), [half.message(b"old", time_ms=5, ttl_ms=5)])
    assert dispatch(now_ms=10) == (0, HEAD_EXPIRED)
    assert dispatch(now_ms=9) == (1, HEAD_NONE)


@pytest.mark.parametrize("count", [1, 2])
def test_the_client_sees_a_delivery(half: Any, count: int) -> None:
    ring = half.ring(1)
    ledger = half.ledger(number=9)
    consumers = [half.consumer(ring, ledger) for _ in range(count)]
    half.module.dispatch(ring, consumers, 0)
    (_, _, seq) = ledger.drain()[0]
    ring.requeue(seq, counted=True)
    first = ledger.out.take()
    half.module.dispatch(ring, consumers, 0)
    second = ledger.out.take()

    def frames(tag: int, redelivered: bool) -> bytes:
        method = struct.pack(">HH", 60, 60) + b"\x01c" + struct.pack(">QB", tag, redelivered) + b"\x02ex\x03key"
        header = struct.pack(">HHQ", 60, 0, 1) + b"\x00\x00"
        return b"".join(
            struct.pack(">BHI", kind, 9, len(payload)) + payload + b"\xce"
            for kind, payload in ((1, method), (2, header), (3, b"0"))
        )

    assert (first, second) == (frames(1, False), frames(2, True))


@pytest.mark.parametrize("count", [1, 2])
def test_redeliveries_are_annotated(half: Any, count: int) -> None:
    ring = half.ring(2)
    seen = []

    def annotate(message: Any, seq: int, delivery_count: int, taker: Any, redelivered: bool) -> Any:
        assert taker in consumers
        assert redelivered is (delivery_count > 0)
        seen.append((message.body, seq, delivery_count))
        return half.message(b"annotated")

    ring.annotate = annotate
    ring.annotates_redelivered = True
    ledger = half.ledger()
    consumers = [half.consumer(ring, ledger) for _ in range(count)]
    half.module.dispatch(ring, consumers, 0, 1)
    assert seen == []
    ring.requeue(ledger.drain()[0][2], counted=True)
    ledger.out.take()
    half.module.dispatch(ring, consumers, 0)
    assert seen == [(b"0", 1, 1)]
    assert ledger.out.take().count(b"annotated") == 1
    ring.append([half.message(b"later")])
    ring.annotates_all = True
    half.module.dispatch(ring, consumers, 0)
    assert seen[1:] == [(b"later", 3, 0)]
    assert ring.message(1).body == b"0", "the queue keeps what came"


def test_messages_leave_memory_while_handed_out(half: Any) -> None:
    ring = half.ring(3, journaled=True)
    ring.reserve()
    half.commit(ring)
    ring.resident_bytes_max = 4
    ledger = half.ledger()
    half.module.dispatch(ring, [half.consumer(ring, ledger)], 0)
    assert [ring.message(seq) is None for seq in (1, 2, 3)] == [True, True, False]
    assert ledger.ack([3 << 1 | 1]) == 0
    assert ring.resident_bytes == 0


def test_a_consumer_that_asks_for_it_sees_each_messages_number(half: Any) -> None:
    ring = half.ring(4)
    plain, numbered, shifted = (half.consumer(ring, half.ledger(), prefetch=2) for _ in range(3))
    numbered.numbered = shifted.numbered = b"\x01n"
    shifted.shift = -1
    assert half.module.dispatch(ring, [plain, numbered, shifted], 0) == (4, HEAD_NONE)
    assert b"\x01nl" not in plain.ledger.out.take()
    for consumer, numbers in ((numbered, [2]), (shifted, [2])):
        data = bytes(consumer.ledger.out.take())
        found = [data[at + 3 : at + 11] for at in range(len(data)) if data[at : at + 3] == b"\x01nl"]
        assert [int.from_bytes(number, "big") for number in found] == numbers
