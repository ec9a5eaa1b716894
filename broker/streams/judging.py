"""What a reader with a filter gets of a stream: its owner judges, so that nothing travels for nothing (pure)."""

from __future__ import annotations

from typing import Final

from clusterbroker.broker.content.selector.filters import BadFilter, Filter, filter_on_wire
from clusterbroker.broker.content.selector.subject import Subject
from clusterbroker.journal.record import RecordBuffer, read_records
from clusterbroker.journal.stream_catalogue import Taken

JUDGED_MAX: Final = 512
"""Messages judged for one answer."""
WORK_MAX: Final = 5_000
"""What that may take (`Filter.work`), about in us."""
WORK_AT_ONCE: Final = 20_000
"""In one turn of a stream; its other readers have the next one."""


def filter_asked(wire: bytes, known: Filter | None) -> Filter:
    """The filter of a question; `known`: of the question before. One that this release does not know takes nothing."""
    if known is not None and known.wire == wire:
        return known
    try:
        made = filter_on_wire(wire)
    except BadFilter:
        made = None
    return made or Filter((lambda _: False,), wire)


def judged(taken: Taken, wanted: Filter, queue_id: int, epoch: int, count_max: int) -> tuple[Taken, int, int]:
    """What the filter takes of these records, at most so many messages and with gaps between them; the
    work of judging them, and how many were taken. `next_seq`: all before it were judged; when the
    node has no memory for that, its reader asks again from there on."""
    buffer, first, work, found, next_seq = RecordBuffer(), 0, 0, 0, taken.next_seq
    for seq, message, delivery_count, redelivered in read_records(taken.records):
        if work > WORK_MAX or found >= count_max:
            next_seq = seq
            break
        work += wanted.work(message)
        takes = wanted.takes(Subject(message))
        if takes is None:
            next_seq = seq
            break
        if takes:
            buffer.enqueue(queue_id, epoch, seq, message, delivery_count, bool(redelivered))
            first = first or seq
            found += 1
    return Taken(first or next_seq, next_seq, buffer.take()), work, found
