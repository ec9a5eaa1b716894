"""Damage that a start finds and that concerns single queues: what of them is read all the same (waits).

    in the index       a value with a wrong checksum, or values that are missing or not the last: nothing that the index
                       says of the queue is believed. The log has every message that lives, for a segment goes only
                       when a durable checkpoint needs nothing of it; so the queue is folded once more from all segments
                       there are. What was acknowledged in a segment that went since comes back: marked as redelivered.
                       A stream's messages stand in its files, up to the last checkpoint (stream_salvage.py)
    a segment is gone  the messages in it cannot be read, and nothing else is wrong with their queues
    a record of the    its head says whose it was. A message keeps its place, and cannot be read; of any other record
    tail               no more is known than that it was there

A head that has one or two wrong bits is proved by its record's checksum, which fits with the right ones: then it says
whose the record was, and not what stands there (`_head_meant`). Any other head is believed when the queue is known.

A value that says of no queue, a log that cannot be walked, a group whose records do not fill it, or all segments gone
are damage of the whole journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from clusterbroker.journal.index import META_KEY, Index
from clusterbroker.journal.layout import (
    ATTR,
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
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    REQ,
    RSV,
    SEQ_MAX,
    SET,
)
from clusterbroker.journal.queue_state import QueueState
from clusterbroker.journal.record import DamagedRecord, Record, checksum, scan_group
from clusterbroker.journal.replay import GroupHead, RecoverySink, group_at, group_head, later_heads
from clusterbroker.journal.segments import Position, SegmentFile, Segments
from clusterbroker.journal.stream_catalogue import StreamFile
from clusterbroker.journal.stream_files import StreamFiles
from clusterbroker.journal.stream_salvage import NOTHING_FILED, Told, anew

SET_RANGE_MAX: Final = 1 << 20
"""A longer range is looked up by what lives, not number by number."""
HEAD_PROVED_MAX: Final = 1 << 20
"""Bytes of a record whose head is proved: that reads it once for each bit of the head."""
_SUMMED_FROM: Final = 8
"""Where in a record its checksum begins: behind length and checksum."""
_HEAD_BITS: Final = 8 * (RECORD_HEADER_BYTES - _SUMMED_FROM)

Knows = Callable[[int], bool]
"""Whether there is such a queue."""


class Care(Protocol):
    """Who takes a queue's damage instead of an exception; without anybody every damage is the journal's."""

    def knows(self, queue_id: int) -> bool:
        """Whether there is such a queue: a damaged record may say anything."""

    def hurt(self, queue_id: int, what: str, seqs: Sequence[int] = ()) -> object:
        """Of this queue something is lost: the messages `seqs` where that is known."""

    def begins_again(self, queue_id: int, what: str) -> object:
        """Nothing that was told of the queue counts. What the log has of it follows; the index shall forget it."""


class HurtRecord(NamedTuple):
    """A record whose checksum is wrong, as its head says."""

    record: Record
    what: str


def records_beside(data: bytes, at: int, base: int, knows: Knows) -> list[Record | HurtRecord] | None:
    """The records of the group at data[at], those with a wrong checksum among them; None unless the header is whole,
    the records fill the group, and each wrong one has a head that a record can have."""
    head = group_head(data, at)
    if head is None or head.length > len(data) - at:
        return None
    count = GROUP_HEADER.unpack_from(data, at)[3]
    found: list[Record | HurtRecord] = []
    place, end = at + GROUP_HEADER_BYTES, at + head.length
    while place < end and len(found) < count:
        length = int.from_bytes(data[place : place + 4], "little")
        after = place + (length + 7 & ~7)
        if length < RECORD_HEADER_BYTES or after > end or any(data[place + length : after]):
            return None
        found_here = _record(bytes(data[place:after]), base + place, knows)
        if found_here is None:
            return None
        found.append(found_here)
        place = after
    return found if place == end and len(found) == count else None


def _record(data: bytes, at: int, knows: Knows) -> Record | HurtRecord | None:
    """One record, which stands at byte `at` of its segment."""
    try:
        return _alone(data, at)
    except DamagedRecord as damage:
        data = _head_meant(data, knows)
        length, _, kind, _, _, message_format, _, queue_id, seq = RECORD_HEADER.unpack_from(data)
        if kind not in KIND_NAMES or (message_format and kind != ENQ) or seq > SEQ_MAX or not queue_id:
            return None
        if kind == ENQ:
            if length < ENQ_OVERHEAD_BYTES:
                return None
            _, _, address, _, header = ENQ_FIELDS.unpack_from(data, RECORD_HEADER_BYTES)
            if ENQ_OVERHEAD_BYTES + address + header > length:
                return None
        sealed = data[:4] + checksum(data[8:length]).to_bytes(4, "little") + data[8:]
        try:
            return HurtRecord(_alone(sealed, at), str(damage.args[1]))
        except DamagedRecord:
            return None


def _head_meant(data: bytes, knows: Knows) -> bytes:
    """The record with the head that was written, where at most two bits of that are wrong and nothing else is; else as
    it is. A checksum is linear: what a bit changes in it does not depend on the others. So two of them are found by
    what each of them changes alone; by chance a head fits other damage once in 200,000 times."""
    length, stored = RECORD_HEADER.unpack_from(data)[:2]
    if length > HEAD_PROVED_MAX:
        return data
    summed = bytearray(data[_SUMMED_FROM:length])
    found = checksum(summed)
    wanted = found ^ stored
    bit_of: dict[int, int] = {}
    for bit in range(_HEAD_BITS):
        summed[bit >> 3] ^= 1 << (bit & 7)
        bit_of[checksum(summed) ^ found] = bit
        summed[bit >> 3] ^= 1 << (bit & 7)
    tries: list[tuple[int, ...]] = [(bit_of[wanted],)] if wanted in bit_of else []
    tries += [(bit, bit_of[wanted ^ change]) for change, bit in bit_of.items() if bit_of.get(wanted ^ change, -1) > bit]
    for bits in tries:
        meant = bytearray(data)
        for bit in bits:
            meant[_SUMMED_FROM + (bit >> 3)] ^= 1 << (bit & 7)
        if knows(RECORD_HEADER.unpack_from(meant)[7]):
            return bytes(meant)
    return data


def _alone(data: bytes, at: int) -> Record:
    """Raises DamagedRecord."""
    rest = GROUP_HEADER.pack(MAGIC, 0, GROUP_HEADER_BYTES + len(data), 1, 0, 0)[8:]
    header = GROUP_HEADER.pack(MAGIC, checksum(rest), GROUP_HEADER_BYTES + len(data), 1, 0, 0)
    return scan_group(header + data, 0, at - GROUP_HEADER_BYTES)[2][0]


def group_beside(file: SegmentFile, at: int, knows: Knows) -> tuple[GroupHead, list[Record | HurtRecord]] | None:
    """What can be read of a group at byte `at` of which something is wrong."""
    data, base = file.around(at, GROUP_HEADER_BYTES)
    head = group_head(data, at - base)
    if head is None:
        return None
    data, base = file.around(at, head.length)
    records = records_beside(data, at - base, base, knows)
    return None if records is None else (head, records)


def believed_beside(file: SegmentFile, at: int, knows: Knows) -> tuple[GroupHead, list[Record | HurtRecord]] | None:
    """The same of the tail, where what is read is acted upon: a damaged record of a queue that nobody knows is not
    believed, and its group is another kind of damage (None)."""
    found = group_beside(file, at, knows)
    if found is None or any(isinstance(one, HurtRecord) and not knows(one.record.queue_id) for one in found[1]):
        return None
    return found


class _Queue:
    """One queue, folded from the log alone."""

    def __init__(self) -> None:
        self.messages: dict[int, tuple[int, Record]] = {}
        self.counts: dict[int, int] = {}
        self.state = QueueState()
        self.newest = 0
        self.epoch = 0
        self.gap = ""
        """Where the log cannot be walked."""
        self.hurt: dict[int, str] = {}
        """What is wrong with records; 0: another one than a message's."""

    def tell(self, segment: int, record: Record) -> None:
        kind, seq = record.kind, record.seq
        self.epoch = max(self.epoch, record.epoch)
        if kind == ENQ:
            self.messages[seq] = segment, record
            self.newest = max(self.newest, seq)
        elif kind == SET:
            for first, last in record.ranges:
                self._settled(first, last)
        elif kind == RSV:
            self.newest = max(self.newest, seq)
        elif kind == REQ:
            self.counts[seq] = record.delivery_count
        elif kind == DEAD:
            self.state.died(seq, record.value)
        elif kind == CUT:
            self._settled(seq, self.newest)
            self.state.cut(seq)
            self.newest = min(self.newest, seq - 1)
        elif kind == ATTR:
            self.state.set_attribute(record.name, record.value)
        elif kind == EPO:
            self.state.began(record.epoch, seq)

    def _settled(self, first: int, last: int) -> None:
        self.newest = max(self.newest, min(last, SEQ_MAX))
        self.state.settled(first, last)
        few = last - first < min(SET_RANGE_MAX, len(self.messages))
        gone: Iterable[int] = range(first, last + 1) if few else [s for s in self.messages if first <= s <= last]
        for seq in gone:
            self.messages.pop(seq, None)
            self.counts.pop(seq, None)

    def state_with(self, known: dict[str, Any]) -> QueueState:
        """`known`: what the index says of the queue, as far as it can be read."""
        return QueueState.of_meta(known) if known else self.state

    def meta(self, known: dict[str, Any], filed: Told) -> dict[str, Any]:
        """`filed`: what its files say."""
        state = self.state_with(known)
        state.dead = {seq: mark for seq, mark in {**self.state.dead, **state.dead}.items() if seq in self.messages}
        newest = max(self.newest, known.get("next_seq", 1) - 1, filed.next_seq - 1)
        meta = {**known, "next_seq": newest + 1, "reserved": newest, "epoch": known.get("epoch", self.epoch)}
        meta.pop("first", None)
        meta.pop("files", None)
        if filed.files:
            meta.update(first=filed.files[0].first, files=[part.entry() for part in filed.files])
        state.into(meta)
        return meta


def fold_again(
    lost: dict[int, str],
    index: Index,
    segments: Segments,
    end: Position,
    sink: RecoverySink,
    care: Care,
    streams: StreamFiles | None = None,
    tails: Mapping[int, Mapping[int, int]] | None = None,
) -> dict[int, list[StreamFile]]:
    """Tells of these queues what all segments up to `end` have of them, in the order of their seqs, and of streams
    what is in their files; these files. `tails`: seq to epoch of each queue's messages behind `end`."""
    catalogues: dict[int, list[StreamFile]] = {}
    for queue_id, what in lost.items():
        care.begins_again(queue_id, what)
    queues = {queue_id: _Queue() for queue_id in lost}
    for segment in segments.numbers():
        if segment <= end.segment:
            for record in _records(segments, segment, end, queues, care.knows):
                if record.queue_id in queues:
                    queues[record.queue_id].tell(segment, record)
    for queue_id, queue in queues.items():
        known = meta_of(index, queue_id)
        names = [StreamFile.of_entry(entry).name for entry in known.get("files", ())]
        filed = NOTHING_FILED
        if streams is not None and (names or streams.names(queue_id)):
            logged = {seq: record.epoch for seq, (_, record) in queue.messages.items()}
            tail = (tails or {}).get(queue_id)
            filed = anew(streams, queue_id, names, logged, tail, queue.state_with(known).epochs)
        if not queue.messages and not queue.newest and not filed.files and not care.knows(queue_id):
            continue  # a damaged key: nobody has such an id
        catalogues[queue_id] = filed.files
        sink.meta(queue_id, queue.meta(known, filed))
        in_log = dict.fromkeys(_within(sorted(queue.messages), filed.logged))
        for seq in in_log:
            sink.enqueued(queue_id, *queue.messages[seq])
            if seq in queue.counts:
                sink.counted(queue_id, seq, queue.counts[seq])
        for what in (queue.gap, *filed.whats):
            if what:
                care.hurt(queue_id, what)
        for seq, what in queue.hurt.items():
            if not seq or seq in in_log:
                care.hurt(queue_id, what, (seq,) if seq else ())
    return catalogues


def _within(seqs: Iterable[int], ranges: Sequence[tuple[int, int]]) -> Iterator[int]:
    """Those of them, ascending, that are in one of these ranges (first, end), ascending."""
    at = 0
    for seq in seqs:
        while at < len(ranges) and ranges[at][1] <= seq:
            at += 1
        if at < len(ranges) and ranges[at][0] <= seq:
            yield seq


def meta_of(index: Index, queue_id: int) -> dict[str, Any]:
    """What the index says of a queue, as far as it can be read."""
    key = META_KEY.pack(queue_id)
    for _, payload in index.scan(key, last=key, hurt=lambda _: None):
        decoded: dict[str, Any] = msgspec.msgpack.decode(payload)
        return decoded
    return {}


def _records(
    segments: Segments, segment: int, end: Position, queues: Mapping[int, _Queue], knows: Knows
) -> Iterator[Record]:
    """Of an old segment, as far as it can be walked; what cannot be read is told to these queues."""
    with segments.open(segment) as file:
        at, lsn, stop = 0, 0, end.offset if segment == end.segment else file.size
        while at < stop:
            records: Sequence[Record | HurtRecord]
            try:
                lsn, length, records = group_at(file, at)
            except DamagedRecord as damage:
                beside = group_beside(file, at, knows)
                if beside is not None:
                    lsn, length, records = beside[0].lsn, beside[0].length, beside[1]
                else:
                    length, records = _next_group(file, at, stop, range(lsn + 1, end.lsn + 1)) - at, ()
                    if at + length < stop or file.any_byte(at):
                        for queue in queues.values():
                            queue.gap = queue.gap or f"{segments.path(segment)} {damage}: what follows is not known"
            for found in records:
                record = found.record if isinstance(found, HurtRecord) else found
                queue_of_it = queues.get(record.queue_id)
                if queue_of_it is not None and isinstance(found, HurtRecord):
                    queue_of_it.hurt[record.seq if record.kind == ENQ else 0] = (
                        f"{segments.path(segment)}: {found.what}"
                    )
                yield record
            at += length


def _next_group(file: SegmentFile, at: int, stop: int, lsns: range) -> int:
    """Where a group with one of these numbers begins behind byte `at`; `stop` if none does."""
    for base, data in file.pieces(at + 8 & ~7, beyond=GROUP_HEADER_BYTES - 1):
        for head in later_heads(data, base, lsns.start - 1):
            if head.lsn in lsns:
                return min(head.offset, stop)
    return stop
