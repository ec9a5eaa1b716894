"""A message's format is any byte, and comes back from wherever a message goes: record, journal, frame, ring, repair."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.broker.queues.ring import Ring
from clusterbroker.journal import record
from clusterbroker.journal.layout import PERSISTENT
from clusterbroker.journal.record import GroupWriter, Message, RecordBuffer, SegmentUse
from clusterbroker.journal.salvage import HurtRecord, records_beside

QUEUE = 7
formats = st.integers(0, 255)


def message(number: int, body: bytes = b"body") -> Message:
    return Message(b"\x00\x01q", b"\x00\x00" + body, 2, PERSISTENT, 3, 5, -1, number)


def group_of(*messages: Message) -> bytearray:
    writer = GroupWriter(1, 0)
    for seq, one in enumerate(messages, 1):
        writer.enqueue(QUEUE, 1, seq, one, 0)
    data = writer.finish(1, 5)
    record.seal(data)
    return data


@pytest.mark.parametrize("number", range(256))
def test_every_format_stands_in_its_record_and_its_frame(number: int) -> None:
    data = group_of(message(number))
    (found,) = record.scan_group(data, 0)[2]
    assert record.read_message(data, found.offset, QUEUE, 1).format == number
    buffer = RecordBuffer()
    buffer.enqueue(QUEUE, 1, 1, message(number), 0, True)
    frame = buffer.take()
    assert record.verify_records(frame, QUEUE, 1, messages=True) == 1
    assert [one.format for _, one, _, _ in record.read_records(frame)] == [number]


@given(st.lists(st.tuples(formats, st.binary(max_size=20)), min_size=1, max_size=10))
def test_a_ring_keeps_it_on_the_way_to_the_disk_and_back(given_ones: list[tuple[int, bytes]]) -> None:
    """Published by another node, written, forgotten in memory, read from the disk, and copied to a third."""
    sent = [message(number, body) for number, body in given_ones]
    buffer = RecordBuffer()
    buffer.enqueue_all(QUEUE, 0, 1, sent)
    ring = Ring(QUEUE, True, 0, SegmentUse(), [])
    ring.append_records(buffer.take(), 9)
    assert [ring.message(seq).format for seq in range(1, len(sent) + 1)] == [one.format for one in sent]
    writer = GroupWriter(1, 0)
    ring.write(writer)
    data = writer.finish(1, 9)
    record.seal(data)
    ring.commit(ring.next_seq)
    back = Ring(QUEUE, True, 0, SegmentUse(), [])
    for first, run in ring.dirty_runs():
        back.restore_run(first, run)
    back.restore_end(1, 0)
    places = list(back.missing())
    back.fill(places, [record.read_message(data, offset, QUEUE, seq) for seq, _, offset, _ in places])
    assert [back.take()[1].format for _ in sent] == [one.format for one in sent]


@given(formats, st.integers(8 * 8, 8 * 32 - 1))
def test_salvage_of_a_head_with_a_wrong_bit_finds_the_format_that_was_meant(number: int, bit: int) -> None:
    data = group_of(message(number, bytes(300)), message(number))
    sound = records_beside(data, 0, 0, {QUEUE}.__contains__)
    assert sound is not None
    first = sound[0]
    assert not isinstance(first, HurtRecord)
    data[first.offset + (bit >> 3)] ^= 1 << (bit & 7)
    found = records_beside(data, 0, 0, {QUEUE}.__contains__)
    assert found is not None
    assert isinstance(found[0], HurtRecord)
    assert not isinstance(found[1], HurtRecord)
    assert record.read_message(data, found[1].offset, QUEUE, 2).format == number
