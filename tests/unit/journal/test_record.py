"""The record module, against the drawing in journal/layout.py and against its model."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import google_crc32c
import pytest

from clusterbroker.journal import layout
from clusterbroker.journal import record as record_compiled
from clusterbroker.journal.errors import DamagedRecord
from clusterbroker.journal.layout import Record
from tests.model import record as record_model


def message_of(module: ModuleType, body: bytes = b"body", **fields: Any) -> Any:
    return module.Message(b"\x02ex\x03key", b"\x80\x00\x04text" + body, 7, **fields)


def group_of(module: ModuleType, segment: int = 3, offset: int = 4096) -> tuple[bytearray, list[int]]:
    writer = module.GroupWriter(segment, offset)
    first = writer.enqueue(7, 2, 100, message_of(module, flags=layout.PERSISTENT, time_ms=1234, ttl_ms=99), 0)
    second = writer.enqueue(7, 2, 101, message_of(module, b"", priority=9), 3)
    writer.settle(8, 1, [(5, 9), (11, 11)], 4)
    writer.reserve(7, 2, 101)
    writer.count_delivery(7, 2, 100, 2)
    writer.dead(7, 2, 100, 5 << 8 | 3)
    writer.cut(7, 2, 101)
    writer.set_attribute(7, 2, b"node/1", 77)
    writer.begin_epoch(7, 2, 101)
    group = writer.finish(42, 1_700_000_000_000)
    module.seal(group)
    return group, [first, second]


def test_message_gives_its_parts() -> None:
    message = message_of(
        record_compiled, flags=layout.PERSISTENT | layout.HAS_HEADERS, priority=5, time_ms=10, ttl_ms=20
    )
    assert (message.exchange, message.routing_key) == (b"ex", b"key")
    assert (message.header, message.body, message.body_length) == (b"\x80\x00\x04text", b"body", 4)
    assert message.persistent
    assert (message.priority, message.time_ms, message.ttl_ms) == (5, 10, 20)
    assert message.size == 56 + 7 + 11 + 6
    assert repr(message) == "<Message b'ex' b'key' 4 bytes>"
    plain = record_compiled.Message(address=b"\x00\x00", payload=b"", header_length=0)
    assert (plain.flags, plain.priority, plain.time_ms, plain.ttl_ms, plain.persistent) == (0, 0, 0, -1, False)
    assert (plain.exchange, plain.routing_key) == (b"", b"")


def test_checksum_is_castagnoli() -> None:
    # RFC 3720 B.4: 32 bytes of zeros, of ones, and the ascending bytes
    assert record_compiled.checksum(bytes(32)) == 0x8A9136AA
    assert record_compiled.checksum(b"\xff" * 32) == 0x62A8AB43
    assert record_compiled.checksum(bytes(range(32))) == 0x46DD794E
    assert record_compiled.checksum(b"") == 0
    assert record_compiled.checksum(memoryview(b"123456789")) == 0xE3069283


def test_checksum_of_every_length_with_and_without_the_instruction() -> None:
    data = bytes((i * 131 + (i >> 8)) & 255 for i in range(70_000))
    for length in [*range(600), 2047, 2048, 6143, 6144, 6145, 6528, 20_000, 65_536, 70_000]:
        for start in (0, 3):
            part = data[start : start + length]
            expected = google_crc32c.value(part)
            assert record_compiled.checksum(part) == expected
            assert record_compiled._checksum_portable(part) == expected


def test_group_reads_back_as_it_was_written() -> None:
    group, (first, second) = group_of(record_compiled)
    lsn, length, records = record_compiled.scan_group(group, 0, 4096)
    assert (lsn, length) == (42, len(group))
    assert first == 4096 + 32
    assert [tuple(record) for record in records] == [
        (layout.ENQ, layout.PERSISTENT, 0, 2, 7, 100, first, 74, 4, 0, (), 0, b""),
        (layout.ENQ, 0, 9, 2, 7, 101, second, 70, 0, 3, (), 0, b""),
        (layout.SET, 4, 0, 1, 8, 5, second + 72, 64, 0, 0, ((5, 9), (11, 11)), 0, b""),
        (layout.RSV, 0, 0, 2, 7, 101, second + 136, 32, 0, 0, (), 0, b""),
        (layout.REQ, 0, 0, 2, 7, 100, second + 168, 34, 0, 2, (), 0, b""),
        (layout.DEAD, 3, 0, 2, 7, 100, second + 208, 40, 0, 0, (), 5 << 8 | 3, b""),
        (layout.CUT, 0, 0, 2, 7, 101, second + 248, 32, 0, 0, (), 0, b""),
        (layout.ATTR, 0, 0, 2, 7, 0, second + 280, 46, 0, 0, (), 77, b"node/1"),
        (layout.EPO, 0, 0, 2, 7, 101, second + 328, 32, 0, 0, (), 0, b""),
    ]
    assert all(isinstance(record, Record) for record in records)


def test_a_group_inside_other_bytes() -> None:
    group, _ = group_of(record_compiled)
    lsn, length, records = record_compiled.scan_group(memoryview(b"x" * 8 + group + b"tail"), 8, 4088)
    assert (lsn, length, records[0].offset) == (42, len(group), 4096 + 32)


def test_writer_tells_size_records_and_full() -> None:
    writer = record_compiled.GroupWriter(1, 0, 200)
    assert (writer.segment, writer.offset, writer.bytes_max) == (1, 0, 200)
    assert (writer.size, writer.records, writer.full) == (32, 0, False)
    writer.enqueue(1, 0, 1, message_of(record_compiled, bytes(300)), 0)
    assert (writer.size, writer.records, writer.full) == (32 + 56 + 7 + 307 + 6, 1, True)


def test_writer_grows_beyond_every_first_guess() -> None:
    writer = record_compiled.GroupWriter(1, 0)
    message = message_of(record_compiled, bytes(range(256)) * 40)
    offsets = [writer.enqueue(1, 0, seq, message, 0) for seq in range(100)]
    offsets.append(writer.enqueue(1, 0, 100, message_of(record_compiled, bytes(5_000_000)), 0))
    group = writer.finish(1, 0)
    record_compiled.seal(group)
    records = record_compiled.scan_group(group, 0)[2]
    assert [record.offset for record in records] == offsets
    bodies = [m.body for m in record_compiled.read_messages(group, 0, 1, list(enumerate(offsets)))]
    assert bodies == [message.body] * 100 + [bytes(5_000_000)]


@pytest.mark.parametrize("expected", [0, 40 << 20], ids=["grown", "placed at once"])
def test_a_large_group_is_filled_by_the_piece(expected: int) -> None:
    bodies = [bytes([seq]) * size for seq, size in enumerate([1_048_583, 70_001, 1, 300_000, 65_520] * 24)]
    writer = record_compiled.GroupWriter(1, 0, expected=expected)
    offsets = [writer.enqueue(1, 0, seq, message_of(record_compiled, body), 0) for seq, body in enumerate(bodies)]
    assert writer.size > 32 << 20
    group = writer.finish(1, 0)
    assert len(group) == writer.size
    record_compiled.seal(group)
    assert [record.offset for record in record_compiled.scan_group(group, 0)[2]] == offsets
    read = record_compiled.read_messages(group, 0, 1, list(enumerate(offsets)))
    assert all(message.body == body for message, body in zip(read, bodies, strict=True))


def test_an_empty_group_is_a_group() -> None:
    group = record_compiled.GroupWriter(1, 0).finish(9, 0)
    assert type(group) is bytearray
    record_compiled.seal(group)
    assert record_compiled.scan_group(group, 0) == (9, 32, [])


def test_settle_wants_a_range() -> None:
    with pytest.raises(IndexError):
        record_compiled.GroupWriter(1, 0).settle(1, 0, [], 0)


def test_message_reads_back() -> None:
    group, (first, second) = group_of(record_compiled)
    message = record_compiled.read_message(group, first - 4096, 7, 100, 4096)
    assert (message.address, message.payload, message.header_length) == (
        b"\x02ex\x03key",
        b"\x80\x00\x04textbody",
        7,
    )
    assert (message.flags, message.priority, message.time_ms, message.ttl_ms) == (layout.PERSISTENT, 0, 1234, 99)
    both = record_compiled.read_messages(memoryview(group), 4096, 7, [(101, second), (100, first)])
    assert [m.body for m in both] == [b"", b"body"]


@pytest.mark.parametrize(
    ("at", "queue_id", "seq"),
    [(32, 7, 101), (32, 6, 100), (40, 7, 100), (-8, 7, 100), (1 << 20, 7, 100)],
)
def test_another_message_is_refused(at: int, queue_id: int, seq: int) -> None:
    group, _ = group_of(record_compiled)
    with pytest.raises(DamagedRecord):
        record_compiled.read_message(group, at, queue_id, seq, 4096)


def test_every_bit_flip_of_a_group_is_seen() -> None:
    group, _ = group_of(record_compiled)
    for bit in range(8 * len(group)):
        group[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises(DamagedRecord):
            record_compiled.scan_group(group, 0)
        group[bit >> 3] ^= 1 << (bit & 7)
    record_compiled.scan_group(group, 0)


def test_every_cut_of_a_group_is_seen() -> None:
    group, _ = group_of(record_compiled)
    for length in range(len(group)):
        with pytest.raises(DamagedRecord):
            record_compiled.scan_group(group[:length], 0)


def test_damage_names_the_place() -> None:
    group, (_, second) = group_of(record_compiled)
    group[second - 4096 + 60] ^= 1
    with pytest.raises(DamagedRecord, match=f"at byte {second}: a record has a wrong checksum") as damage:
        record_compiled.scan_group(group, 0, 4096)
    assert damage.value.offset == second


def test_seal_wants_the_whole_group() -> None:
    group, _ = group_of(record_compiled)
    with pytest.raises(AssertionError):
        record_compiled.seal(group[:-8])


def test_segment_use_counts_live_bytes() -> None:
    use = record_compiled.SegmentUse()
    use.add(3, 100)
    use.add(1000, 7)
    use.add(3, 1)
    use.release(3, 50)
    assert (use.live(3), use.live(1000), use.live(2), use.live(1 << 31)) == (51, 7, 0, 0)
    with pytest.raises(AssertionError):
        use.release(3, 52)
    with pytest.raises(AssertionError):
        use.release(5, 1)
    with pytest.raises(AssertionError):
        use.forget(3)
    use.release(3, 51)
    use.forget(3)
    use.forget(77)
    assert use.live(3) == 0


def test_the_model_writes_the_same_bytes() -> None:
    assert group_of(record_model) == group_of(record_compiled)


# -- records that go from node to node -------------------------------------------------------------------------------


def span_of(module: Any) -> tuple[Any, bytes]:
    writer = module.GroupWriter(3, 4096)
    start = writer.size
    writer.reserve(7, 2, 101)
    writer.enqueue(7, 2, 100, message_of(module, flags=layout.PERSISTENT, time_ms=1234, ttl_ms=99), 3)
    writer.settle(7, 1, [(5, 9)])
    return writer, writer.span(start, writer.size)


def test_a_span_is_verified_and_appended_as_it_is() -> None:
    _, span = span_of(record_compiled)
    assert record_compiled.verify_records(span, 7, 2) == 3
    other = record_compiled.GroupWriter(9, 0)
    other.cut(1, 1, 1)
    assert other.append(span) == 32 + 32
    assert other.records == 4
    group = other.finish(1, 0)
    record_compiled.seal(group)
    assert bytes(group[64:]) == span
    _, _, records = record_compiled.scan_group(group, 0)
    assert record_compiled.read_message(group, records[2].offset, 7, 100).body == b"body"


def test_a_span_that_is_not_what_was_sent_is_refused() -> None:
    _, span = span_of(record_compiled)
    for wrong, queue_id, epoch in ((span, 8, 2), (span, 7, 1), (span[:-8], 7, 2), (span + b"\0" * 8, 7, 2)):
        with pytest.raises(DamagedRecord):
            record_compiled.verify_records(wrong, queue_id, epoch)
    for at in range(len(span)):
        damaged = bytearray(span)
        damaged[at] ^= 1
        with pytest.raises(DamagedRecord):
            record_compiled.verify_records(damaged, 7, 2)
    assert record_compiled.verify_records(b"", 7, 2) == 0


def test_a_record_buffer_carries_what_the_consumer_shall_see() -> None:
    out = record_compiled.RecordBuffer(1000)
    assert (out.size, out.count, out.size_max, out.take()) == (0, 0, 1000, b"")
    out.enqueue(7, 2, 100, message_of(record_compiled, flags=layout.PERSISTENT, priority=4), 3, True)
    out.enqueue(7, 2, 102, message_of(record_compiled, b""), 0, False)
    assert (out.size, out.count) == (80 + 72, 2)
    span = out.take()
    assert (out.size, out.count, len(span)) == (0, 0, 152)
    assert record_compiled.verify_records(span, 7, 2) == 2
    found = record_compiled.read_records(span)
    assert [(seq, m.body, m.flags, m.priority, count, again) for seq, m, count, again in found] == [
        (100, b"body", layout.PERSISTENT, 4, 3, True),
        (102, b"", 0, 0, 0, False),
    ]
    stored = record_compiled.GroupWriter(1, 0)
    stored.append(span)
    group = stored.finish(1, 0)
    record_compiled.seal(group)
    assert [record.flags for record in record_compiled.scan_group(group, 0)[2]] == [layout.PERSISTENT, 0]


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("start", [0, 1, 3])
def test_many_messages_at_once_are_the_same_records(kind: Any, start: int) -> None:
    messages = kind([message_of(record_compiled, b"x" * size, priority=size) for size in (0, 1, 200)])
    one, all_at_once = record_compiled.RecordBuffer(), record_compiled.RecordBuffer()
    for seq, message in enumerate(messages[start:], 50):
        one.enqueue(7, 2, seq, message, 0, False)
    assert all_at_once.enqueue_all(7, 2, 50, messages, start) == 3 - start
    assert all_at_once.size == record_compiled.size_of(messages[start:])
    span = one.take()
    assert all_at_once.take() == span
    assert record_compiled.bodies_but_last(span) == sum(message.body_length for message in messages[start:-1])


def test_only_messages_are_read_as_messages() -> None:
    _, span = span_of(record_compiled)
    with pytest.raises(DamagedRecord, match="an ENQ record is expected, not RSV"):
        record_compiled.read_records(span)


def test_a_producer_has_a_name_of_bounded_length() -> None:
    writer = record_compiled.GroupWriter(1, 0)
    for name in (b"", bytes(layout.ATTRIBUTE_BYTES_MAX + 1)):
        with pytest.raises(ValueError, match="1 to 1024 bytes"):
            writer.set_attribute(1, 1, name, 1)
