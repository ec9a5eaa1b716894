"""Which messages of an old segment the index still knows (waits): what has to move before the file may go."""

from __future__ import annotations

from typing import NamedTuple

from journal.index import Index
from journal.layout import ENQ, RUN_ENTRY, RUN_LENGTH
from journal.record import DamagedRecord, Message, read_message
from journal.replay import group_at
from journal.segments import Segments


class Survivor(NamedTuple):
    queue_id: int
    seq: int
    offset: int
    message: Message


def survivors_of(index: Index, segment_files: Segments, segment: int) -> list[Survivor] | DamagedRecord:
    """In the order in which they stand there. Settled ones may be among them: the queue knows better."""
    blocks: dict[tuple[int, int], dict[int, int]] = {}
    found: list[Survivor] = []
    at = 0
    with segment_files.open(segment) as file:
        try:
            while at < file.size:
                data, base = file.around(at, 4)
                if not any(data[at - base : at - base + 4]):
                    break
                _, length, records = group_at(file, at)
                at += length
                for record in records:
                    if record.kind != ENQ:
                        continue
                    block = record.queue_id, record.seq // RUN_LENGTH * RUN_LENGTH
                    places = blocks.get(block)
                    if places is None:
                        places = blocks[block] = _places(index, *block, segment)
                    if places.get(record.seq) == record.offset:
                        data, base = file.around(record.offset, record.length)
                        message = read_message(data, record.offset - base, record.queue_id, record.seq, base)
                        found.append(Survivor(record.queue_id, record.seq, record.offset, message))
        except DamagedRecord as damage:
            return DamagedRecord(damage.offset, f"{damage.args[1]} ({segment_files.path(segment)})")
    return found


def _places(index: Index, queue_id: int, block: int, segment: int) -> dict[int, int]:
    """Offsets by seq of the block's messages that stand in `segment`."""
    places: dict[int, int] = {}
    for _, entries in index.runs(queue_id, block, block + RUN_LENGTH - 1):
        for low, _, _, _, in_segment, offset, _, _ in RUN_ENTRY.iter_unpack(entries):
            if in_segment == segment:
                places[block + low] = offset
    return places
