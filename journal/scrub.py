"""Old segments are read and proved, a piece at a time, so that damage is found while other copies are whole (waits).

A segment is walked group by group, with the checksums of each, as `survivors` does it. Damage to what nobody needs any
more is passed over: what lives in the segment from that place on is looked up in the index, and read record by record.
So the answer names messages, whatever was hit: a body, a record's head or a group's.

The segment in use is left alone, and so is what no checkpoint knows: the index must say what lives in it.
"""

from __future__ import annotations

from typing import NamedTuple

from clusterbroker.journal.index import RUN_KEY, Index
from clusterbroker.journal.layout import GROUP_HEADER_BYTES, RUN_ENTRY, RUN_LENGTH
from clusterbroker.journal.options import JournalOptions
from clusterbroker.journal.reader import Reader, Wanted
from clusterbroker.journal.record import DamagedRecord
from clusterbroker.journal.replay import group_head
from clusterbroker.journal.segments import Segments
from clusterbroker.journal.survivors import Hurt
from clusterbroker.journal.walk import walk_groups

PIECE_BYTES = 256 << 10


class Piece(NamedTuple):
    """What came of one step."""

    end: int
    """Proved up to here."""
    over: bool
    """The segment ends there, or is gone."""
    hurt: tuple[Hurt, ...] = ()


def scrub_piece(index: Index, segments: Segments, options: JournalOptions, segment: int, at: int) -> Piece:
    """The groups from byte `at` on, about PIECE_BYTES of them."""
    try:
        return _walked(index, segments, options, segment, at)
    except FileNotFoundError:
        return Piece(at, True)


def _walked(index: Index, segments: Segments, options: JournalOptions, segment: int, at: int) -> Piece:
    with segments.open(segment) as file:
        start, end = at, min(at + PIECE_BYTES, file.size)
        try:
            while at < end:
                data = file.read(at, end)
                head = group_head(data, 0) if len(data) >= GROUP_HEADER_BYTES else None
                if head is not None and head.length > len(data):
                    data = file.read(at, at + head.length)
                proved, _ = walk_groups(data, 0, at)
                if proved == 0:
                    return Piece(at, True)  # space that was never written
                at += proved
        except (DamagedRecord, OSError):
            return Piece(file.size, True, tuple(_hurt(index, segments, options, segment, start)))
        return Piece(at, at >= file.size)


def _hurt(index: Index, segments: Segments, options: JournalOptions, segment: int, first: int) -> list[Hurt]:
    """What lives in the segment from byte `first` on and cannot be read."""
    found: list[Hurt] = []
    reader = Reader(segments, options)
    try:
        for key, entries in index.scan():
            if len(key) != RUN_KEY.size:
                continue
            queue_id, first_seq = RUN_KEY.unpack(key)
            for low, _, _, _, in_segment, offset, length, _ in RUN_ENTRY.iter_unpack(entries):
                if in_segment != segment or offset < first:
                    continue
                wanted: Wanted = (first_seq // RUN_LENGTH * RUN_LENGTH + low, in_segment, offset, length)
                read = reader.read(queue_id, (wanted,))
                if isinstance(read, DamagedRecord):
                    found.append(Hurt(queue_id, wanted[0], read))
    finally:
        reader.close()
    return found
