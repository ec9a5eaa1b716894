"""Parts of a run of ENQ records of one stream: the specification of what `walk_fast` does for streams.

A run is the records of one queue one after the other, each padded to a multiple of 8, seqs ascending, as a stream's
files and the deliveries of chunks hold them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterbroker.journal.layout import ENQ, ENQ_FIELDS, RECORD_HEADER, RECORD_HEADER_BYTES
from clusterbroker.journal.record_pure import DamagedRecord, _proved, _scan_record

if TYPE_CHECKING:
    from clusterbroker.journal.record_pure import Bytes


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
