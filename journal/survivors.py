"""Which messages of an old segment the index still knows (waits): what has to move before the file may go.

The segment is proved and walked without the interpreter lock, the index is asked for the runs that its messages belong
to, and only what the index still knows there is read again and made into messages. So what this costs the event
loop, which shares the interpreter with it, goes by how much lives in the segment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from clusterbroker.journal.index import Index
from clusterbroker.journal.layout import GROUP_HEADER_BYTES, RUN_ENTRY, RUN_LENGTH
from clusterbroker.journal.options import JournalOptions
from clusterbroker.journal.ranges import Range, merged
from clusterbroker.journal.reader import Reader, Wanted
from clusterbroker.journal.record import DamagedRecord, Message
from clusterbroker.journal.replay import group_head
from clusterbroker.journal.segments import SegmentFile, Segments
from clusterbroker.journal.walk import walk_groups


class Survivor(NamedTuple):
    queue_id: int
    seq: int
    offset: int
    message: Message


class Hurt(NamedTuple):
    """One that cannot be read."""

    queue_id: int
    seq: int
    damage: DamagedRecord


def survivors_of(
    index: Index, segment_files: Segments, options: JournalOptions, segment: int
) -> list[Survivor | Hurt] | DamagedRecord:
    """By queue, ascending by seq. Settled ones may be among them: the queue knows better."""
    try:
        with segment_files.open(segment) as file:
            ranges = _walked(file)
    except DamagedRecord as damage:
        return DamagedRecord(damage.offset, f"{damage.args[1]} ({segment_files.path(segment)})")
    places = {
        queue_id: [place for first, last in seqs for place in _places(index, queue_id, first, last, segment)]
        for queue_id, seqs in ranges.items()
    }
    found: list[Survivor | Hurt] = []
    reader = Reader(segment_files, options)
    try:
        for queue_id, wanted in places.items():
            messages: Sequence[Message | DamagedRecord] | DamagedRecord = reader.read(queue_id, wanted)
            if isinstance(messages, DamagedRecord):
                messages = [_alone(reader, queue_id, one) for one in wanted]
            for (seq, _, offset, _), message in zip(wanted, messages, strict=True):
                if isinstance(message, DamagedRecord):
                    found.append(Hurt(queue_id, seq, message))
                else:
                    found.append(Survivor(queue_id, seq, offset, message))
    finally:
        reader.close()
    return found


def _alone(reader: Reader, queue_id: int, wanted: Wanted) -> Message | DamagedRecord:
    messages = reader.read(queue_id, (wanted,))
    return messages if isinstance(messages, DamagedRecord) else messages[0]


def _walked(file: SegmentFile) -> dict[int, list[Range]]:
    """By queue, the blocks of seqs that the messages of the segment belong to. Raises DamagedRecord."""
    found: dict[int, list[Range]] = {}
    at = 0
    while at < file.size:
        data, base = file.around(at, GROUP_HEADER_BYTES)
        head = group_head(data, at - base)
        if head is not None and head.length > len(data) - (at - base):
            data, base = file.around(at, head.length)
        end, seqs = walk_groups(data, at - base, base)
        if base + end == at:
            break
        at = base + end
        for queue_id, first, last in seqs:
            found.setdefault(queue_id, []).append((first, last))
    return {queue_id: merged(found[queue_id]) for queue_id in sorted(found)}


def _places(index: Index, queue_id: int, first: int, last: int, segment: int) -> Iterator[Wanted]:
    """Where messages of these seqs stand in `segment`, as far as the index knows."""
    for first_seq, entries in index.runs(queue_id, first, last):
        for low, _, _, _, in_segment, offset, length, _ in RUN_ENTRY.iter_unpack(entries):
            if in_segment == segment:
                yield first_seq // RUN_LENGTH * RUN_LENGTH + low, in_segment, offset, length
