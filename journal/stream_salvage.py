"""What a stream's files have, told by themselves: for a stream of which the index is wrong (waits).

    which files    all that its folder holds. The order is that of the first messages in them
    two have one   a file whose end was cut off keeps the bytes behind it, until it goes. Where the next file begins
                   inside it, the message with the newer epoch counts (with the same epoch it is the same one)
    where one ends behind its last sound record. A damaged record before that keeps its place: who reads it is told

The log wins over files (salvage.py, `Recovery`): what stands behind the checkpoint was perhaps copied already when a
crash came. What retention let go right before the crash comes back with its file; retention lets it go again.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from journal.layout import ENQ_OVERHEAD_BYTES, RECORD_HEADER, SEQ_MAX
from journal.record import DamagedRecord
from journal.stream_catalogue import HEADER_BYTES, StreamFile, Wish, check_header
from journal.stream_files import PIECE_BYTES, StreamFiles, heads, take_run
from journal.stream_records import prove_run

COUNT_MAX: Final = 2**62


class Told(NamedTuple):
    """What the files have: a catalogue, the lowest seq that nobody in them can have, and what is wrong with them."""

    files: list[StreamFile]
    next_seq: int
    whats: list[str]


NOTHING_FILED: Final = Told([], 1, [])


def files_anew(streams: StreamFiles, queue_id: int, known: Collection[int] = ()) -> Told:
    """`known`: names of files that there should be."""
    names = streams.names(queue_id)
    found: list[StreamFile] = []
    next_seq, whats = 1, [f"{_named(streams, queue_id, name)}: the file is gone" for name in {*known} - {*names}]
    for name in names:
        part, behind, what = _walk(streams, queue_id, name)
        if what:
            whats.append(f"{_named(streams, queue_id, name)}: {what}")
        if part is not None:
            found.append(part)
            next_seq = max(next_seq, part.end + behind)
    found.sort(key=lambda part: (part.first, part.name))
    return Told(_apart(streams, queue_id, found), next_seq, whats)


def _named(streams: StreamFiles, queue_id: int, name: int) -> str:
    return f"streams/{queue_id}/{streams.path(queue_id, name).name}"


def _walk(streams: StreamFiles, queue_id: int, name: int) -> tuple[StreamFile | None, int, str]:
    """What counts of one file, how many messages may have been behind that, and what is wrong with it."""
    part, what = StreamFile(0, 0, HEADER_BYTES, 0, 0, name), ""
    with open(streams.path(queue_id, name), "rb") as source:
        fd, stop = source.fileno(), os.fstat(source.fileno()).st_size
        try:
            check_header(os.pread(fd, HEADER_BYTES, 0), queue_id)
        except DamagedRecord as damage:
            what = str(damage.args[1])
        wrong = ""
        try:
            while True:
                wish = Wish(part.end, SEQ_MAX, COUNT_MAX, PIECE_BYTES)
                taken, after = take_run(fd, part.size, stop, queue_id, wish)
                if not taken.records:
                    break  # its end; or a damaged head says that the record is longer than the file
                part = _with(part, prove_run(taken.records, queue_id, taken.first), taken.first, after)
        except DamagedRecord as damage:
            wrong = str(damage.args[1])
        upto = part.size
        for first, told, after in _sound(fd, upto, stop, queue_id):
            if first >= part.end:
                part = _with(part, told, first, after)
        if wrong or part.size > upto:
            what = what or f"{wrong or 'no record that is whole'}, at byte {upto} or behind it"
    behind = max(0, stop - part.size) // ENQ_OVERHEAD_BYTES
    return (part if part.end else None), behind, what


def _with(part: StreamFile, told: tuple[int, int, int], first: int, size: int) -> StreamFile:
    """The file with messages from `first` on that end at byte `size`; `told` as `prove_run` does."""
    end, first_ms, last_ms = told
    return part._replace(
        first=part.first or first,
        end=end,
        size=size,
        first_ms=part.first_ms or first_ms,
        last_ms=max(part.last_ms, last_ms),
    )


def _sound(fd: int, offset: int, stop: int, queue_id: int) -> Iterator[tuple[int, tuple[int, int, int], int]]:
    """(seq, what `prove_run` tells, where it ends) of the sound records of a run with damaged ones. As many bytes are
    summed in vain as the run has, at most, for what a client wrote may look like heads of records."""
    known, left = offset, stop - offset
    for at, after, seq in heads(fd, offset, stop, queue_id):
        if at < known or after - at > left + (at - offset):
            continue
        try:
            told = prove_run(os.pread(fd, after - at, at), queue_id, seq)
        except DamagedRecord:
            left -= after - at
            continue
        known = after
        yield seq, told, after


def _apart(streams: StreamFiles, queue_id: int, files: list[StreamFile]) -> list[StreamFile]:
    """Without messages that two of them have."""
    kept: list[StreamFile] = []
    for part in files:
        while kept and part.first < kept[-1].end:
            before = kept[-1]
            if _epoch(streams, queue_id, before, part.first) > _epoch(streams, queue_id, part, part.first):
                break  # left behind by a crash: its stream had been cut before
            kept.pop()
            if before.first < part.first:
                kept.append(_shortened(streams, queue_id, before, part.first))
        else:
            kept.append(part)
    return kept


def _epoch(streams: StreamFiles, queue_id: int, part: StreamFile, seq: int) -> int:
    """Of the message `seq`; 0: it cannot be read."""
    try:
        records = streams.read(queue_id, part, Wish(seq, seq + 1, 1, PIECE_BYTES)).records
    except (DamagedRecord, OSError):
        return 0
    epoch: int = RECORD_HEADER.unpack_from(records)[6] if records else 0
    return epoch


def _shortened(streams: StreamFiles, queue_id: int, part: StreamFile, end: int) -> StreamFile:
    """The file up to before message `end`."""
    return streams.counted_upto(queue_id, part._replace(end=end))
