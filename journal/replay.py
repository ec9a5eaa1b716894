"""Reading the log on from a position, and where it ends.

Groups follow each other with lsn 1, 2, 3 ... without a gap; a group either follows the last one or starts the next
segment. The log ends where no such group stands. That is a clean end, or a torn one (a group whose write was cut
off by the crash), or damage; they are told apart by what comes later. Groups are written one at a time, and each
carries in its header how far the log was durable when it was written (`window`). So when a later group says that
the missing one had been durable, bytes were lost that the disk had promised to keep: damage, and nothing is
touched. When no later group says so, the missing one was never acknowledged as durable, and the log is cut there.

With durability `fsync` the window is 1, and anything after a broken group proves damage. With durability `disk`
several groups can be under way to the disk, which may write them in any order when the power fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from clusterbroker.journal.errors import DamagedJournal
from clusterbroker.journal.layout import (
    ATTR,
    CUT,
    DEAD,
    ENQ,
    EPO,
    GROUP_HEADER,
    GROUP_HEADER_BYTES,
    MAGIC,
    REQ,
    RSV,
    SET,
    WINDOW_SHIFT,
)  # fmt: skip
from clusterbroker.journal.record import DamagedRecord, Record, checksum, scan_group
from clusterbroker.journal.segments import Position, SegmentFile, Segments

MAGIC_BYTES = MAGIC.to_bytes(4, "little")


class GroupHead(NamedTuple):
    offset: int
    length: int
    lsn: int
    time_ms: int
    window: int


class Tail(NamedTuple):
    """Where the log ends. `torn` says that something that is no whole group stands there and must be cut."""

    position: Position
    groups: int
    torn: bool
    why: str


def group_head(data: bytes, at: int) -> GroupHead | None:
    """The header at data[at] when it is whole; its records may still be broken."""
    if at + GROUP_HEADER_BYTES > len(data):
        return None
    magic, crc, length, _, lsn, time = GROUP_HEADER.unpack_from(data, at)
    if magic != MAGIC or crc != checksum(data[at + 8 : at + GROUP_HEADER_BYTES]):
        return None
    return GroupHead(at, length, lsn, time & ((1 << WINDOW_SHIFT) - 1), time >> WINDOW_SHIFT)


def group_at(file: SegmentFile, at: int) -> tuple[int, int, list[Record]]:
    """(lsn, length, records) of the group at byte `at`, verified. Raises DamagedRecord."""
    data, base = file.around(at, GROUP_HEADER_BYTES)
    if len(data) - (at - base) >= GROUP_HEADER_BYTES:
        length = GROUP_HEADER.unpack_from(data, at - base)[2]
        # only a header that is whole may say how much memory is taken
        if length > len(data) - (at - base) and group_head(data, at - base) is not None:
            data, base = file.around(at, length)
    return scan_group(data, at - base, base)


Beside = Callable[[int, SegmentFile, int], int]


def replay(
    segments: Segments, start: Position, visit: Callable[[int, list[Record]], None], beside: Beside | None = None
) -> Tail:
    """Hands every group after `start` to `visit(segment, records)`, in order. A group that was durable and has a
    damaged record goes to `beside(segment, file, offset)`, which returns its length, or 0: it is the journal's damage.

    Raises DamagedJournal, possibly after some visits; the caller throws away what it built from them.
    """
    segment, offset, lsn = start
    groups = 0
    if not segments.path(segment).exists():
        if offset or any(number > segment for number in segments.numbers()):
            raise segments.damaged(segment, None, f"the file is gone; the log goes on at its byte {offset}")
        return Tail(start, 0, False, "nothing was written yet")
    while True:
        with segments.open(segment) as file:
            if offset > file.size:
                raise segments.damaged(segment, offset, f"the file ends at {file.size}, before the checkpoint")
            while True:
                try:
                    found, length, records = group_at(file, offset)
                except DamagedRecord as damage:
                    why = f"group {lsn + 1}: {damage}"
                    length = _passed(segments, file, Position(segment, offset, lsn), why, beside)
                    if not length:
                        break
                    offset, lsn, groups = offset + length, lsn + 1, groups + 1
                    continue
                if found != lsn + 1:
                    why = f"group {lsn + 1} expected, group {found} found"
                    break
                visit(segment, records)
                offset += length
                lsn = found
                groups += 1
        if not _starts_with(segments, segment + 1, lsn + 1):
            break
        segment, offset = segment + 1, 0
    end = Position(segment, offset, lsn)
    return Tail(end, groups, _is_torn(segments, end, why), why)


def _passed(segments: Segments, file: SegmentFile, at: Position, why: str, beside: Beside | None) -> int:
    """The length of a damaged group that was durable, and that somebody can make do with; 0: no such group."""
    head = None if beside is None else group_head(*_piece(file, at.offset))
    if beside is None or head is None or head.lsn != at.lsn + 1:
        return 0
    try:
        _is_torn(segments, at, why)
    except DamagedJournal:
        return beside(at.segment, file, at.offset)
    return 0


def _piece(file: SegmentFile, at: int) -> tuple[bytes, int]:
    data, base = file.around(at, GROUP_HEADER_BYTES)
    return data, at - base


def first_head(segments: Segments, segment: int) -> GroupHead | None:
    """The header that a segment begins with. Raises FileNotFoundError."""
    with segments.open(segment) as file:
        return group_head(file.read(0, GROUP_HEADER_BYTES), 0)


def _starts_with(segments: Segments, segment: int, lsn: int) -> bool:
    try:
        head = first_head(segments, segment)
    except FileNotFoundError:
        return False
    return head is not None and head.lsn == lsn


def _is_torn(segments: Segments, end: Position, why: str) -> bool:
    """Whether anything but never-written space follows `end`; raises DamagedJournal when it proves lost groups."""
    torn = False
    for segment in segments.numbers():
        if segment < end.segment:
            continue
        with segments.open(segment) as file:
            start = 0
            if segment == end.segment:
                start = end.offset
                head = group_head(file.read(start, start + GROUP_HEADER_BYTES), 0)
                if head is not None and head.lsn == end.lsn + 1:
                    torn = True
                    start += max(GROUP_HEADER_BYTES, head.length)  # the torn group's own bodies prove nothing
            for base, data in file.pieces(start, beyond=GROUP_HEADER_BYTES - 1):
                if data == bytes(len(data)):
                    continue
                torn = True
                for later in later_heads(data, base, end.lsn):
                    if later.lsn == end.lsn + 1 or later.lsn - later.window > end.lsn:
                        raise segments.damaged(
                            end.segment,
                            end.offset,
                            f"{why}; but it was durable, because group {later.lsn} follows in "
                            f"{segments.path(segment).name} at byte {later.offset}",
                        )
    return torn


def later_heads(data: bytes, base: int, lsn: int) -> Iterator[GroupHead]:
    """Whole group headers in `data`, which begins with byte `base` of its file, whose lsn is higher."""
    at = data.find(MAGIC_BYTES)
    while at >= 0:
        head = group_head(data, at) if (base + at) % 8 == 0 else None
        if head is not None and head.lsn > lsn:
            yield head._replace(offset=base + at)
        at = data.find(MAGIC_BYTES, at + 1)


class RecoverySink(Protocol):
    """Who rebuilds the queues. Entries, ranges and records are the callee's to keep."""

    def meta(self, queue_id: int, meta: dict[str, Any]) -> object: ...

    def run(self, queue_id: int, first_seq: int, entries: bytes) -> object: ...

    def enqueued(self, queue_id: int, segment: int, record: Record) -> object: ...

    def settled(self, queue_id: int, ranges: tuple[tuple[int, int], ...]) -> object: ...

    def reserved(self, queue_id: int, upto: int) -> object: ...

    def counted(self, queue_id: int, seq: int, delivery_count: int) -> object: ...

    def dead(self, queue_id: int, seq: int, mark: int) -> object: ...

    def cut(self, queue_id: int, from_seq: int) -> object: ...

    def set_attribute(self, queue_id: int, name: bytes, upto: int) -> object: ...

    def began(self, queue_id: int, epoch: int, first_seq: int) -> object: ...


def tell(sink: RecoverySink, segment: int, records: Iterable[Record]) -> None:
    """What a group of the log says, in its order."""
    for record in records:
        if record.kind == ENQ:
            sink.enqueued(record.queue_id, segment, record)
        elif record.kind == SET:
            sink.settled(record.queue_id, record.ranges)
        elif record.kind == RSV:
            sink.reserved(record.queue_id, record.seq)
        elif record.kind == REQ:
            sink.counted(record.queue_id, record.seq, record.delivery_count)
        elif record.kind == DEAD:
            sink.dead(record.queue_id, record.seq, record.value)
        elif record.kind == CUT:
            sink.cut(record.queue_id, record.seq)
        elif record.kind == ATTR:
            sink.set_attribute(record.queue_id, record.name, record.value)
        elif record.kind == EPO:
            sink.began(record.queue_id, record.epoch, record.seq)
