"""Which runs the messages of a segment belong to: the specification of `journal/walk.pyx`.

The index is ordered by queue and seq, a segment by time. To find out which messages of a segment the index still
knows, the segment's groups are proved and walked once, and only the blocks of seqs that they name are kept: 256
messages of one queue that share a run, neighbours made one. A busy queue's 64 MiB come down to a handful of ranges,
and what is looked up then costs as much as what still lives, not as much as what was ever written.

A stream's files, and the deliveries of its chunks, hold runs: ENQ records of one queue one after the other, each padded
to a multiple of 8, seqs ascending.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from clusterbroker.journal.errors import DamagedRecord
from clusterbroker.journal.layout import (
    ENQ,
    ENQ_FIELDS,
    GROUP_HEADER_BYTES,
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    RUN_LENGTH,
)
from clusterbroker.journal.replay import group_head
from tests.model.record import _proved, _scan_record, scan_group

if TYPE_CHECKING:
    from tests.model.record import Bytes

Seqs: TypeAlias = tuple[int, int, int]
"""queue id, first seq, last seq: whole blocks of RUN_LENGTH"""


def walk_groups(data: Bytes, at: int, base: int = 0) -> tuple[int, list[Seqs]]:
    """Proves the groups that follow each other from data[at] on, where data[0] is byte `base` of its segment.

    Returns (end, seqs): where in `data` the walk ended, and what the groups' ENQ records belong to, ascending. It
    ends at four zero bytes (nothing was written there), at the end of `data`, and before a group that is not whole in
    `data`; the caller goes on there with more bytes. Raises DamagedRecord when anything is not what was written, also
    when the first group is cut off.
    """
    if not 0 <= at <= len(data):
        raise ValueError(f"byte {at} is not one of {len(data)}")
    blocks: set[tuple[int, int]] = set()
    end = at
    while any(data[end : end + 4]) and not (end > at and _goes_on(data, end)):
        _, length, records = scan_group(data, end, base)
        blocks.update((record.queue_id, record.seq // RUN_LENGTH) for record in records if record.kind == ENQ)
        end += length
    return end, merged([(queue, block * RUN_LENGTH, (block + 1) * RUN_LENGTH - 1) for queue, block in blocks])


def _goes_on(data: Bytes, at: int) -> bool:
    """Whether the group at data[at] goes on behind the end of `data`; only a header that is whole may say so."""
    if len(data) - at < GROUP_HEADER_BYTES:
        return True
    head = group_head(bytes(data[at : at + GROUP_HEADER_BYTES]), 0)
    return head is not None and head.length > len(data) - at


def merged(seqs: list[Seqs]) -> list[Seqs]:
    """Ascending, what touches or overlaps made one."""
    found: list[Seqs] = []
    for queue_id, first, last in sorted(seqs):
        if found and found[-1][0] == queue_id and first <= found[-1][2] + 1:
            found[-1] = queue_id, found[-1][1], max(last, found[-1][2])
        else:
            found.append((queue_id, first, last))
    return found


def prove_run(data: Bytes, queue_id: int, first: int) -> tuple[int, int, int]:
    """(next seq, time of the first message in ms, time of the latest): the whole of `data` is messages `first`,
    `first` + 1 ... of the queue. Raises DamagedRecord."""
    seq, times = first, []
    for at, record in _proved(data):
        if (record.kind, record.queue_id, record.seq) != (ENQ, queue_id, seq):
            raise DamagedRecord(at, f"not message {seq} of queue {queue_id}")
        times.append(ENQ_FIELDS.unpack_from(data, at + RECORD_HEADER_BYTES)[0])
        seq += 1
    if not times:
        raise DamagedRecord(0, f"no message {first} of queue {queue_id}")
    return seq, times[0], max(times)


def take_records(
    data: Bytes, queue_id: int, first: int, end: int, count_max: int, bytes_max: int, since_ms: int = -1
) -> tuple[int, int, int, int]:
    """(offset, end, first seq, next seq) of a part of a run that may be cut off at the end of `data`: the first whole
    records with a seq from `first` up to before `end`, from the first one that is not older than `since_ms` on, at
    most `count_max` and `bytes_max` of them, or one. Nothing found: (offset, offset, 0, 0), the offset where the next
    record that is not whole, or not wanted, would begin.

    What is taken is proved, and follows without a gap. Raises DamagedRecord.
    """
    at, size = 0, len(data)
    start = stop = first_seq = next_seq = 0
    while size - at >= RECORD_HEADER_BYTES:
        length, _, kind, _, _, _, _, queue, seq = RECORD_HEADER.unpack_from(data, at)
        after = at + (length + 7 & ~7)
        if length < RECORD_HEADER_BYTES or (kind, queue) != (ENQ, queue_id):
            raise DamagedRecord(at, f"not a message of queue {queue_id}")
        if after > size or seq >= end:
            break
        if not next_seq and (seq < first or (since_ms >= 0 and _time(data, at, size) < since_ms)):
            at = after
            continue
        if next_seq and (seq != next_seq or seq - first_seq >= count_max or after - start > bytes_max):
            break
        _scan_record(data, at, after, 0)
        if any(data[at + length : after]):
            raise DamagedRecord(at, "a record's padding is not zero")
        if not next_seq:
            start, first_seq = at, seq
        at = stop = after
        next_seq = seq + 1
    return (start, stop, first_seq, next_seq) if next_seq else (at, at, 0, 0)


def _time(data: Bytes, at: int, size: int) -> int:
    if size - at < RECORD_HEADER_BYTES + ENQ_FIELDS.size:
        return 0
    time_ms: int = ENQ_FIELDS.unpack_from(data, at + RECORD_HEADER_BYTES)[0]
    return time_ms
