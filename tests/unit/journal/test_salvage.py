"""Whose a damaged record was: its head says so; a head that is damaged itself is proved by the record's checksum."""

from __future__ import annotations

import random

import pytest

from clusterbroker.journal import record as half
from clusterbroker.journal.layout import GROUP_HEADER_BYTES, RECORD_HEADER_BYTES
from clusterbroker.journal.record import Record
from clusterbroker.journal.salvage import HEAD_PROVED_MAX, HurtRecord, records_beside

QUEUES = {7, 7 ^ 1, 8, 9 | 3 << 40}
BODY = 300


def group(body: int = BODY) -> bytearray:
    writer = half.GroupWriter(1, 0)
    for queue_id in (7, 8):
        message = half.Message(address=b"\x00\x01q", payload=bytes(range(256)) * (body // 256 + 1), header_length=0)
        writer.enqueue(queue_id, 2, 100, message, 0)
    writer.settle(8, 2, [(5, 9)], 0)
    found = writer.finish(42, 1_700_000_000_000)
    half.seal(found)
    return bytearray(found)


def beside(data: bytes, known: set[int] = QUEUES) -> list[Record | HurtRecord]:
    found = records_beside(data, 0, 0, known.__contains__)
    assert found is not None
    return found


def of(one: Record | HurtRecord) -> tuple[int, int, int]:
    record = one.record if isinstance(one, HurtRecord) else one
    return record.kind, record.queue_id, record.seq


@pytest.mark.parametrize("nth", [0, 2])
def test_a_head_with_a_wrong_bit_is_not_believed(nth: int) -> None:
    """In the queue's id, the seq, the kind or the epoch: the bits of a checksum say which one. It was believed if it
    named another queue of the node: that one got a message to hold back, and the right one had one less."""
    data = group()
    sound = beside(data)
    assert not any(isinstance(one, HurtRecord) for one in sound)
    places = [one.offset for one in sound if isinstance(one, Record)]
    for bit in range(8 * 8, 8 * RECORD_HEADER_BYTES):
        hurt = bytearray(data)
        hurt[places[nth] + (bit >> 3)] ^= 1 << (bit & 7)
        found = beside(hurt)
        assert [isinstance(one, HurtRecord) for one in found] == [at == nth for at in range(3)], bit
        assert list(map(of, found)) == list(map(of, sound)), bit


def test_a_head_with_two_wrong_bits_is_not_believed() -> None:
    data, rng = group(), random.Random(1)
    for _ in range(200):
        hurt = bytearray(data)
        for bit in rng.sample(range(8 * 8, 8 * RECORD_HEADER_BYTES), 2):
            hurt[GROUP_HEADER_BYTES + (bit >> 3)] ^= 1 << (bit & 7)
        assert list(map(of, beside(hurt))) == list(map(of, beside(data)))


def test_a_head_over_other_damage_is_believed() -> None:
    data, rng = group(), random.Random(2)
    for _ in range(200):
        hurt = bytearray(data)
        for _ in range(rng.choice((1, 2, 40))):
            hurt[GROUP_HEADER_BYTES + rng.randrange(56, BODY)] ^= rng.randrange(1, 256)
        assert list(map(of, beside(hurt))) == list(map(of, beside(data)))


def test_a_head_that_would_name_nobody_is_left_as_it_is() -> None:
    hurt = group()
    hurt[GROUP_HEADER_BYTES + 16] ^= 1
    assert of(beside(hurt)[0])[1] == 7
    assert of(beside(hurt, {7 ^ 1, 8})[0])[1] == 7 ^ 1


def test_a_record_that_is_too_long_is_not_read_so_often() -> None:
    hurt = group(HEAD_PROVED_MAX)
    hurt[GROUP_HEADER_BYTES + 16] ^= 1
    assert of(beside(hurt)[0])[1] == 7 ^ 1
