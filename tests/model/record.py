"""A message as the node remembers it, and the records of a group commit: the specification of `journal/record.pyx`.

`journal/layout.py` draws the bytes. A `Message` is immutable and may stand in several queues at once; what a queue
knows about it (place, redelivered, delivery count) stands in the queue's ring. Address and payload keep the bytes that
came from the publisher's socket, so that delivering and journaling copy and never re-encode.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import google_crc32c

from clusterbroker.journal.errors import DamagedRecord
from clusterbroker.journal.layout import (
    ATTR,
    ATTRIBUTE_BYTES_MAX,
    COUNT,
    CUT,
    DEAD,
    ENQ,
    ENQ_FIELDS,
    ENQ_OVERHEAD_BYTES,
    EPO,
    GROUP_HEADER,
    GROUP_HEADER_BYTES,
    KIND_NAMES,
    MAGIC,
    NUMBER,
    PERSISTENT,
    RANGE,
    REASON_BITS,
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    REDELIVERED_BIT,
    REQ,
    RSV,
    SEQ_MAX,
    SET,
    Record,
)
from clusterbroker.journal.record import CommitThread as CommitThread  # bytes only: these two have no model
from clusterbroker.journal.record import write_group as write_group

if TYPE_CHECKING:
    import mmap

    Bytes: TypeAlias = bytes | bytearray | memoryview | mmap.mmap


def checksum(data: Bytes) -> int:
    """crc32c (Castagnoli) of the bytes."""
    return int(google_crc32c.value(bytes(data)))


FORMAT_BYTE = 11
"""Of a record's header (journal/layout.py)."""


class Message:
    """One published message.

    address        the exchange's and the routing key's short strings as they stood in basic.publish
                   (length octet, bytes, length octet, bytes): a basic.deliver ends with the same bytes
    payload        content-header properties (property flags and list) followed by the body
    header_length  bytes of the properties in payload
    flags          PERSISTENT, HAS_HEADERS, HAS_EXPIRATION, HAS_USER_ID, HAS_REPLY_TO (journal.layout)
    priority       the priority property, 0 without
    time_ms        wall clock when the node took it
    ttl_ms         the expiration property, -1 without
    format         what header and body are encoded in: any byte is kept (broker/content/formats.py)
    """

    __slots__ = ("address", "flags", "format", "header_length", "payload", "priority", "time_ms", "ttl_ms")

    def __init__(
        self,
        address: bytes,
        payload: bytes,
        header_length: int,
        flags: int = 0,
        priority: int = 0,
        time_ms: int = 0,
        ttl_ms: int = -1,
        format: int = 0,
    ) -> None:
        self.address = address
        self.payload = payload
        self.header_length = header_length
        self.flags = flags
        self.priority = priority
        self.time_ms = time_ms
        self.ttl_ms = ttl_ms
        self.format = format

    @property
    def exchange(self) -> bytes:
        return self.address[1 : 1 + self.address[0]]

    @property
    def routing_key(self) -> bytes:
        start = 2 + self.address[0]
        return self.address[start:]

    @property
    def header(self) -> bytes:
        return self.payload[: self.header_length]

    @property
    def body(self) -> bytes:
        return self.payload[self.header_length :]

    @property
    def body_length(self) -> int:
        return len(self.payload) - self.header_length

    @property
    def persistent(self) -> bool:
        return bool(self.flags & PERSISTENT)

    @property
    def size(self) -> int:
        """Bytes that its ENQ record takes in a segment, padding included."""
        return _padded(ENQ_OVERHEAD_BYTES + len(self.address) + len(self.payload))

    def __repr__(self) -> str:
        return f"<Message {self.exchange!r} {self.routing_key!r} {self.body_length} bytes>"


def _padded(length: int) -> int:
    return (length + 7) & ~7


class GroupWriter:
    """Collects the records of one group commit that will stand at `offset` of segment `segment`.

    Checksums are left zero: `seal` fills them in, off the event loop. `full` says that `bytes_max` is reached;
    a single record may still exceed it.
    """

    __slots__ = ("_parts", "bytes_max", "offset", "records", "segment", "size")

    def __init__(self, segment: int, offset: int, bytes_max: int = 8 << 20, expected: int = 0) -> None:
        self.segment = segment
        self.offset = offset
        self.bytes_max = bytes_max
        self.records = 0
        self.size = GROUP_HEADER_BYTES
        self._parts: list[bytes] = [bytes(GROUP_HEADER_BYTES)]

    @property
    def full(self) -> bool:
        return self.size >= self.bytes_max

    def _add(self, head: bytes, *rest: bytes) -> int:
        at = self.offset + self.size
        length = len(head) + sum(map(len, rest))
        self._parts.append(head)
        self._parts.extend(rest)
        self._parts.append(bytes(_padded(length) - length))
        self.size += _padded(length)
        self.records += 1
        return at

    def enqueue(self, queue_id: int, epoch: int, seq: int, message: Message, delivery_count: int) -> int:
        """Adds an ENQ record; returns the offset at which it will stand in the segment."""
        length = ENQ_OVERHEAD_BYTES + len(message.address) + len(message.payload)
        head = RECORD_HEADER.pack(length, 0, ENQ, message.flags, message.priority, message.format, epoch, queue_id, seq)
        fields = ENQ_FIELDS.pack(
            message.time_ms, message.ttl_ms, len(message.address), delivery_count, message.header_length
        )
        return self._add(head, fields, message.address, message.payload)

    def settle(self, queue_id: int, epoch: int, ranges: Sequence[tuple[int, int]], cause: int = 0) -> None:
        """Adds a SET record for the inclusive (first, last) ranges; there is at least one."""
        body = b"".join(RANGE.pack(first, last) for first, last in ranges)
        length = RECORD_HEADER_BYTES + len(body)
        self._add(RECORD_HEADER.pack(length, 0, SET, cause, 0, 0, epoch, queue_id, ranges[0][0]), body)

    def reserve(self, queue_id: int, epoch: int, upto: int) -> None:
        self._add(RECORD_HEADER.pack(RECORD_HEADER_BYTES, 0, RSV, 0, 0, 0, epoch, queue_id, upto))

    def count_delivery(self, queue_id: int, epoch: int, seq: int, delivery_count: int) -> None:
        body = COUNT.pack(delivery_count)
        length = RECORD_HEADER_BYTES + len(body)
        self._add(RECORD_HEADER.pack(length, 0, REQ, 0, 0, 0, epoch, queue_id, seq), body)

    def dead(self, queue_id: int, epoch: int, seq: int, mark: int) -> None:
        """Adds a DEAD record; `mark` is number << 8 | reason."""
        reason, body = mark & ((1 << REASON_BITS) - 1), NUMBER.pack(mark >> REASON_BITS)
        length = RECORD_HEADER_BYTES + len(body)
        self._add(RECORD_HEADER.pack(length, 0, DEAD, reason, 0, 0, epoch, queue_id, seq), body)

    def cut(self, queue_id: int, epoch: int, from_seq: int) -> None:
        self._add(RECORD_HEADER.pack(RECORD_HEADER_BYTES, 0, CUT, 0, 0, 0, epoch, queue_id, from_seq))

    def set_attribute(self, queue_id: int, epoch: int, name: bytes, upto: int) -> None:
        if not 0 < len(name) <= ATTRIBUTE_BYTES_MAX:
            raise ValueError(f"an attribute's name has 1 to {ATTRIBUTE_BYTES_MAX} bytes")
        length = RECORD_HEADER_BYTES + NUMBER.size + len(name)
        head = RECORD_HEADER.pack(length, 0, ATTR, 0, 0, 0, epoch, queue_id, 0)
        self._add(head, NUMBER.pack(upto), name)

    def begin_epoch(self, queue_id: int, epoch: int, first_seq: int) -> None:
        self._add(RECORD_HEADER.pack(RECORD_HEADER_BYTES, 0, EPO, 0, 0, 0, epoch, queue_id, first_seq))

    def append(self, data: Bytes) -> int:
        """Adds records that `verify_records` has passed, as they are but for REDELIVERED_BIT; returns the offset at
        which the first will stand in the segment."""
        at = self.offset + self.size
        for start, end in _spans(data):
            record = bytearray(data[start:end])
            if record[8] == ENQ:
                record[9] &= ~REDELIVERED_BIT
            self._parts.append(bytes(record))
            self.records += 1
        self.size += len(data)
        return at

    def span(self, start: int, end: int) -> bytes:
        """The records between two values that `size` had, with their checksums: what other nodes get of the group."""
        return _sealed(b"".join(self._parts)[start:end])

    def finish(self, lsn: int, time_ms: int) -> bytearray:
        """The group's bytes, complete but for the checksums. The writer is spent afterwards."""
        self._parts[0] = GROUP_HEADER.pack(MAGIC, 0, self.size, self.records, lsn, time_ms)
        return bytearray(b"".join(self._parts))


def _spans(data: Bytes) -> Iterator[tuple[int, int]]:
    """(start, end with the padding) of each record of a span, which is left to the end."""
    at = 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "little") if len(data) - at >= RECORD_HEADER_BYTES else 0
        end = at + _padded(length)
        if length < RECORD_HEADER_BYTES or end > len(data):
            raise DamagedRecord(at, "a record is cut off")
        yield at, end
        at = end


def _sealed(data: bytes) -> bytes:
    """The records with their checksums."""
    sealed = bytearray(data)
    for at, _ in _spans(data):
        length = int.from_bytes(sealed[at : at + 4], "little")
        sealed[at + 4 : at + 8] = checksum(sealed[at + 8 : at + length]).to_bytes(4, "little")
    return bytes(sealed)


def _proved(data: Bytes) -> Iterator[tuple[int, Record]]:
    """The records of a span that nobody has looked at: each has a right checksum, zeros up to the next one, and a
    seq up to SEQ_MAX."""
    for at, end in _spans(data):
        record = _scan_record(data, at, end, 0)
        if any(data[at + record.length : end]):
            raise DamagedRecord(at, "a record's padding is not zero")
        if record.seq > SEQ_MAX:
            raise DamagedRecord(at, f"seq {record.seq} is beyond any queue")
        yield at, record


def scan_span(data: Bytes) -> list[Record]:
    """The records of a span that `verify_records` has passed; offsets count from its start."""
    return [_scan_record(data, at, end, 0) for at, end in _spans(data)]


def verify_records(data: Bytes, queue_id: int, epoch: int, messages: bool = False) -> int:
    """Proves a span of records that came from another node; returns how many they are.

    Raises DamagedRecord unless every one has a right checksum, a seq up to SEQ_MAX, this queue id, an epoch that is
    not above `epoch`, and, of `messages`, kind ENQ.
    """
    count = 0
    for at, record in _proved(data):
        if messages and record.kind != ENQ:
            raise DamagedRecord(at, f"an ENQ record is expected, not {KIND_NAMES[record.kind]}")
        if record.queue_id != queue_id or record.epoch > epoch:
            what = f"a record of queue {record.queue_id}, epoch {record.epoch}: not of queue {queue_id}, epoch {epoch}"
            raise DamagedRecord(at, what)
        count += 1
    return count


def enqueued(data: Bytes) -> tuple[list[tuple[int, int]], int]:
    """What a span that `verify_records` has passed enqueues: ranges of seqs in the order of the records, neighbours
    made one, and how many records that are."""
    ranges: list[tuple[int, int]] = []
    count = 0
    for at, _ in _spans(data):
        _, _, kind, _, _, _, _, _, seq = RECORD_HEADER.unpack_from(data, at)
        if kind == ENQ:
            count += 1
            if ranges and seq == ranges[-1][1] + 1:
                ranges[-1] = (ranges[-1][0], seq)
            else:
                ranges.append((seq, seq))
    return ranges, count


def bodies_but_last(data: Bytes) -> int:
    """Bytes of the bodies of all ENQ records of a span but the last, as the length of a queue counts them. Of a span
    that `verify_records` has not passed it is some number, or DamagedRecord."""
    bodies = [len(_message(data, at, record, 0).body) for at, record in _proved(data) if record.kind == ENQ]
    return sum(bodies[:-1])


def attributes_named(data: Bytes) -> set[bytes]:
    """Of whom the ATTR records of a span speak that `verify_records` has passed."""
    return {bytes(record.name) for _, record in _proved(data) if record.kind == ATTR}


class RecordBuffer:
    """ENQ records on their way to another node. `size_max` is what its filler should stop at, in bytes."""

    __slots__ = ("_parts", "count", "size", "size_max")

    def __init__(self, size_max: int = 1 << 20) -> None:
        self.size_max = size_max
        self.size = 0
        self.count = 0
        self._parts: list[bytes] = []

    def enqueue(
        self, queue_id: int, epoch: int, seq: int, message: Message, delivery_count: int, redelivered: bool
    ) -> None:
        flags = message.flags | REDELIVERED_BIT if redelivered else message.flags & ~REDELIVERED_BIT
        length = ENQ_OVERHEAD_BYTES + len(message.address) + len(message.payload)
        head = RECORD_HEADER.pack(length, 0, ENQ, flags, message.priority, message.format, epoch, queue_id, seq)
        fields = ENQ_FIELDS.pack(
            message.time_ms, message.ttl_ms, len(message.address), delivery_count, message.header_length
        )
        padding = bytes(_padded(length) - length)
        self._parts.append(b"".join((head, fields, message.address, message.payload, padding)))
        self.size += _padded(length)
        self.count += 1

    def enqueue_all(
        self, queue_id: int, epoch: int, first_seq: int, messages: Sequence[Message], start: int = 0
    ) -> int:
        """New messages with rising seqs, from `messages[start]` on; returns how many."""
        for seq, message in enumerate(messages[start:], first_seq):
            self.enqueue(queue_id, epoch, seq, message, 0, False)
        return max(0, len(messages) - start)

    def take(self) -> bytes:
        """All records with their checksums; the buffer is empty then."""
        taken = _sealed(b"".join(self._parts))
        self._parts.clear()
        self.size = self.count = 0
        return taken


def size_of(messages: Sequence[Message]) -> int:
    """Bytes of all these messages."""
    return sum(message.size for message in messages)


def read_records(data: Bytes) -> list[tuple[int, Message, int, bool]]:
    """(seq, message, delivery count, redelivered) of each ENQ record of a span from another node.

    Raises DamagedRecord; also for a record of another kind.
    """
    found = []
    for at, record in _proved(data):
        if record.kind != ENQ:
            raise DamagedRecord(at, f"an ENQ record is expected, not {KIND_NAMES[record.kind]}")
        message = _message(data, at, record, record.flags & ~REDELIVERED_BIT)
        found.append((record.seq, message, record.delivery_count, bool(record.flags & REDELIVERED_BIT)))
    return found


def seal(group: bytearray) -> None:
    """Fills in every checksum of a finished group, in place. Holds no lock that the event loop wants."""
    _, _, length, records, _, _ = GROUP_HEADER.unpack_from(group, 0)
    assert length == len(group), "a group is sealed whole"
    at = GROUP_HEADER_BYTES
    view = memoryview(group)
    for _ in range(records):
        size = int.from_bytes(group[at : at + 4], "little")
        group[at + 4 : at + 8] = checksum(view[at + 8 : at + size]).to_bytes(4, "little")
        at += _padded(size)
    group[4:8] = checksum(view[8:GROUP_HEADER_BYTES]).to_bytes(4, "little")


def scan_group(data: Bytes, at: int, base: int = 0) -> tuple[int, int, list[Record]]:
    """Reads and verifies the group that starts at `data[at]`, where data[0] is byte `base` of its segment.

    Returns (lsn, length of the group in bytes, records). Raises DamagedRecord when anything in it is not
    what was written, including a group that is cut off.
    """
    if at < 0 or len(data) - at < GROUP_HEADER_BYTES:
        raise DamagedRecord(base + at, "a group header is cut off")
    magic, crc, length, count, lsn, _ = GROUP_HEADER.unpack_from(data, at)
    if magic != MAGIC:
        raise DamagedRecord(base + at, "no group starts here")
    if crc != checksum(data[at + 8 : at + GROUP_HEADER_BYTES]):
        raise DamagedRecord(base + at, "a group header has a wrong checksum")
    if length < GROUP_HEADER_BYTES or at + length > len(data):
        raise DamagedRecord(base + at, f"a group of {length} bytes is cut off")
    records: list[Record] = []
    position, end = at + GROUP_HEADER_BYTES, at + length
    for _ in range(count):
        record = _scan_record(data, position, end, base)
        records.append(record)
        if any(data[position + record.length : min(position + _padded(record.length), end)]):
            raise DamagedRecord(base + position, "a record's padding is not zero")
        position += _padded(record.length)
    if position != end:
        raise DamagedRecord(base + position, f"the group's {count} records do not fill its {length} bytes")
    return lsn, length, records


def _scan_record(data: Bytes, at: int, end: int, base: int) -> Record:
    if at < 0 or end - at < RECORD_HEADER_BYTES:
        raise DamagedRecord(base + at, "a record header is cut off")
    length, crc, kind, flags, priority, _, epoch, queue_id, seq = RECORD_HEADER.unpack_from(data, at)
    if length < RECORD_HEADER_BYTES or at + length > end:
        raise DamagedRecord(base + at, f"a record of {length} bytes does not fit its group")
    if crc != checksum(data[at + 8 : at + length]):
        raise DamagedRecord(base + at, "a record has a wrong checksum")
    body_length = delivery_count = value = 0
    name = b""
    ranges: tuple[tuple[int, int], ...] = ()
    body = at + RECORD_HEADER_BYTES
    if kind == ENQ:
        if length < ENQ_OVERHEAD_BYTES:
            raise DamagedRecord(base + at, "an ENQ record is cut off")
        _, _, address_length, delivery_count, header_length = ENQ_FIELDS.unpack_from(data, body)
        body_length = length - ENQ_OVERHEAD_BYTES - address_length - header_length
        if body_length < 0:
            raise DamagedRecord(base + at, "an ENQ record's parts exceed its length")
    elif kind == SET:
        if length == RECORD_HEADER_BYTES or (length - RECORD_HEADER_BYTES) % RANGE.size:
            raise DamagedRecord(base + at, "a SET record holds no whole ranges")
        ranges = tuple(RANGE.iter_unpack(data[body : at + length]))
    elif kind == REQ:
        if length != RECORD_HEADER_BYTES + COUNT.size:
            raise DamagedRecord(base + at, "a REQ record has a wrong length")
        delivery_count = COUNT.unpack_from(data, body)[0]
    elif kind == DEAD:
        if length != RECORD_HEADER_BYTES + NUMBER.size:
            raise DamagedRecord(base + at, "a DEAD record has a wrong length")
        value = NUMBER.unpack_from(data, body)[0] << REASON_BITS | flags
        if value >> 64:
            raise DamagedRecord(base + at, "a DEAD record's number is too high")
    elif kind == ATTR:
        if not 0 < length - RECORD_HEADER_BYTES - NUMBER.size <= ATTRIBUTE_BYTES_MAX:
            raise DamagedRecord(base + at, "an ATTR record has a wrong length")
        value = NUMBER.unpack_from(data, body)[0]
        name = bytes(data[body + NUMBER.size : at + length])
    elif kind not in KIND_NAMES:
        raise DamagedRecord(base + at, f"record kind {kind} is unknown")
    return Record(
        kind, flags, priority, epoch, queue_id, seq, base + at, length, body_length, delivery_count, ranges, value,
        name,
    )  # fmt: skip


def read_message(data: Bytes, at: int, queue_id: int, seq: int, base: int = 0) -> Message:
    """The message of the ENQ record at `data[at]`, verified to be the one asked for.

    Raises DamagedRecord when the bytes are wrong or belong to another message.
    """
    record = _scan_record(data, at, len(data), base)
    if (record.kind, record.queue_id, record.seq) != (ENQ, queue_id, seq):
        raise DamagedRecord(base + at, f"not message {seq} of queue {queue_id}")
    return _message(data, at, record, record.flags)


def _message(data: Bytes, at: int, record: Record, flags: int) -> Message:
    time_ms, ttl_ms, address_length, _, header_length = ENQ_FIELDS.unpack_from(data, at + RECORD_HEADER_BYTES)
    start = at + ENQ_OVERHEAD_BYTES
    middle = start + address_length
    return Message(
        bytes(data[start:middle]),
        bytes(data[middle : at + record.length]),
        header_length,
        flags,
        record.priority,
        time_ms,
        ttl_ms,
        data[at + FORMAT_BYTE],
    )


def read_messages(data: Bytes, base: int, queue_id: int, wanted: Iterable[tuple[int, int]]) -> list[Message]:
    """The messages of `wanted` (seq, offset in the segment), where data[0] is byte `base` of the segment."""
    return [read_message(data, offset - base, queue_id, seq, base) for seq, offset in wanted]


def read_span(
    data: bytes | memoryview, base: int, queue_id: int, wanted: Sequence[tuple[int, int, int, int]]
) -> list[Message]:
    """As `read_messages` for `wanted` of (seq, segment, offset, length), all of the segment that `data` is from."""
    return [read_message(data, offset - base, queue_id, seq, base) for seq, _, offset, _ in wanted]


class SegmentUse:
    """How many bytes of each segment still belong to a message that lives: reclaim follows from it."""

    __slots__ = ("_live",)

    def __init__(self) -> None:
        self._live: dict[int, int] = {}

    def add(self, segment: int, length: int) -> None:
        self._live[segment] = self._live.get(segment, 0) + length

    def release(self, segment: int, length: int) -> None:
        left = self._live.get(segment, 0) - length
        assert left >= 0, f"segment {segment} released more than was added"
        self._live[segment] = left

    def live(self, segment: int) -> int:
        return self._live.get(segment, 0)

    def forget(self, segment: int) -> None:
        """The segment's file is gone."""
        assert self.live(segment) == 0, f"segment {segment} still holds live messages"
        self._live.pop(segment, None)
