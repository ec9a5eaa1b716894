"""What there is of a stream of which the index is wrong, told by its files and the log alone (waits).

Theory. A message stands in a file, in the log, or in both: a checkpoint copies it, and a crash may come before the log
is let go. A copy that was cut keeps bytes that do not count any more: in a file behind its end, in the log before the
CUT. Each record has its epoch, and epochs ascend with seqs: an owner begins behind all that it has. So

    of several records of a message   the newest epoch counts; of the same epoch they are the same message
    behind a message                  nothing of an older epoch counts, nor where a later one is known to begin
    the log's tail                    is told by who replays it, so its messages count as the log's
    a damaged record                  keeps its place in its file: who reads it is told

What retention let go right before the crash comes back with its file; retention lets it go again. No number is given
twice: behind a damaged end as many are passed over as may have been there.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from clusterbroker.journal.layout import ENQ_OVERHEAD_BYTES, RECORD_HEADER, SEQ_MAX
from clusterbroker.journal.record import DamagedRecord
from clusterbroker.journal.stream_catalogue import HEADER_BYTES, StreamFile, Wish, check_header
from clusterbroker.journal.stream_files import PIECE_BYTES, StreamFiles, sound_records, take_run
from clusterbroker.journal.walk import prove_run

COUNT_MAX: Final = 2**62


class Run(NamedTuple):
    """Messages `first` to before `end`, all of one epoch. `newer`: of several of this epoch it counts."""

    first: int
    end: int
    epoch: int
    newer: bool = False


class Told(NamedTuple):
    """What the files have: a catalogue, what of the stream is the log's, the lowest seq that nobody in files can have,
    and what is wrong with them."""

    files: list[StreamFile]
    logged: list[tuple[int, int]]
    """(first, end), ascending."""
    next_seq: int
    whats: list[str]


class _Walked(NamedTuple):
    part: StreamFile
    runs: list[Run]


def anew(
    streams: StreamFiles,
    queue_id: int,
    known: Collection[int] = (),
    logged: Mapping[int, int] | None = None,
    tail: Mapping[int, int] | None = None,
    epochs: Sequence[tuple[int, int]] = (),
) -> Told:
    """`known`: names of files that there should be. `logged`: seq to epoch of what the log has from before the
    checkpoint, `tail`: from behind it. `epochs`: (epoch, its first seq), ascending, as far as they are known."""
    names = streams.names(queue_id)
    walked: list[_Walked] = []
    next_seq, whats = 1, [f"{_named(streams, queue_id, name)}: the file is gone" for name in {*known} - {*names}]
    for name in names:
        found, behind, what = _walk(streams, queue_id, name)
        if what:
            whats.append(f"{_named(streams, queue_id, name)}: {what}")
        if found is not None:
            walked.append(found)
            next_seq = max(next_seq, found.part.end + behind)
        elif what:
            path = streams.path(queue_id, name)
            path.rename(path.with_suffix(".damaged"))  # what no catalogue names is deleted
    walked.sort(key=lambda one: (one.part.first, one.part.name))
    lowest = walked[0].part.first if walked else 0
    runs = [one.runs for one in walked]
    runs.append([*_runs(logged or {}, lowest, newer=False), *_runs(tail or {}, 0, newer=True)])
    files, from_log = [], []
    for source, first, end in chosen(runs, epochs):
        if source == len(walked):
            from_log.append((first, end))
        else:
            part = walked[source].part._replace(first=first, end=end)
            files.append(part if end == walked[source].part.end else streams.counted_upto(queue_id, part))
    return Told(files, from_log, next_seq, whats)


NOTHING_FILED: Final = Told([], [(0, SEQ_MAX)], 1, [])


def chosen(sources: Sequence[Sequence[Run]], epochs: Sequence[tuple[int, int]] = ()) -> list[tuple[int, int, int]]:
    """(source, first, end) of what counts, ascending; the last source is the log, whose runs may overlap (pure)."""
    points = {point for runs in sources for run in runs for point in (run.first, run.end)}
    edges = sorted(points | {first for _, first in epochs})
    begins: dict[int, list[tuple[int, Run]]] = {}
    for source, runs in enumerate(sources):
        for run in runs:
            begins.setdefault(run.first, []).append((source, run))
    active: list[tuple[int, Run]] = []
    found: list[tuple[int, int, int]] = []
    newest, log = 0, len(sources) - 1
    for first, end in pairwise(edges):
        active = [one for one in active if one[1].end > first] + begins.get(first, [])
        newest = max([newest, *(epoch for epoch, begin in epochs if begin <= first)])
        if not active:
            continue
        last = found[-1] if found and found[-1][2] == first else (-1, 0, 0)
        source, run = max(active, key=lambda one: (one[1][2:], one[0] != log, one[0] == last[0], one[1].end))
        if run.epoch < newest:
            continue
        newest = run.epoch
        if source == last[0]:
            found[-1] = source, last[1], end
        else:
            found.append((source, first, end))
    return found


def _runs(messages: Mapping[int, int], lowest: int, newer: bool) -> Iterator[Run]:
    """Of messages of the log, by seq with their epochs."""
    run: Run | None = None
    for seq in sorted(messages):
        if seq < lowest:
            continue  # it was in a file that retention has let go
        if run is not None and run.end == seq and run.epoch == messages[seq]:
            run = run._replace(end=seq + 1)
            continue
        if run is not None:
            yield run
        run = Run(seq, seq + 1, messages[seq], newer)
    if run is not None:
        yield run


def _named(streams: StreamFiles, queue_id: int, name: int) -> str:
    return f"streams/{queue_id}/{streams.path(queue_id, name).name}"


def _walk(streams: StreamFiles, queue_id: int, name: int) -> tuple[_Walked | None, int, str]:
    """What counts of one file, how many messages may have been behind that, and what is wrong with it."""
    part, what, stop = StreamFile(0, 0, HEADER_BYTES, 0, 0, name), "", HEADER_BYTES
    runs: list[Run] = []
    try:
        with open(streams.path(queue_id, name), "rb") as source:
            fd = source.fileno()
            stop = os.fstat(fd).st_size
            try:
                check_header(os.pread(fd, HEADER_BYTES, 0), queue_id)
            except DamagedRecord as damage:
                what = str(damage.args[1])
            wrong = ""
            try:
                while True:
                    taken, after = take_run(
                        fd, part.size, stop, queue_id, Wish(part.end, SEQ_MAX, COUNT_MAX, PIECE_BYTES)
                    )
                    if not taken.records:
                        break  # its end; or a damaged head says that the record is longer than the file
                    part = _with(part, prove_run(taken.records, queue_id, taken.first), taken.first, after)
                    _add(runs, taken.next_seq, _epochs(taken.records))
            except DamagedRecord as damage:
                wrong = str(damage.args[1])
            upto = part.size
            for one in sound_records(fd, upto, stop, queue_id):
                if one.seq >= part.end:
                    part = _with(part, (one.seq + 1, *one.times), one.seq, one.after)
                    _add(runs, one.seq + 1, _epochs(one.record))
            if wrong or part.size > upto:
                what = what or f"{wrong or 'no record that is whole'}, at byte {upto} or behind it"
    except OSError as error:
        what = str(error)
    behind = max(0, stop - part.size) // ENQ_OVERHEAD_BYTES
    return (_Walked(part, runs) if part.end else None), behind, what


def _add(runs: list[Run], end: int, epochs: Iterable[tuple[int, int]]) -> None:
    """More of a file: messages to before `end`, by (first seq, epoch). What is damaged before them is of the epoch of
    its neighbour."""
    for seq, epoch in epochs:
        if runs:
            runs[-1] = runs[-1]._replace(end=seq)
        if not runs or runs[-1].epoch != epoch:
            runs.append(Run(seq, seq + 1, epoch))
    runs[-1] = runs[-1]._replace(end=end)


def _epochs(records: bytes) -> list[tuple[int, int]]:
    """(first seq, epoch) of each epoch in a run of records."""
    found: list[tuple[int, int]] = []
    at = 0
    while at < len(records):
        length, _, _, _, _, _, epoch, _, seq = RECORD_HEADER.unpack_from(records, at)
        if not found or found[-1][1] != epoch:
            found.append((seq, epoch))
        at += length + 7 & ~7
    return found


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
