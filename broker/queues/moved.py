"""What a queue has of the rows of committed segments (`broker.transactions.mover`).

Rows of a segment come to a queue in ascending order of their seqs there, with gaps for rows of other queues, and each
part is taken as a whole. So one number per segment says it all: the highest that came, and one. It stands in
`ring.producers` under b"t" and the id of the segment's queue, is written with the rows themselves, and goes when the
map has no such segment any more. A part of a segment that is gone was sent by somebody who has not heard: all of its
rows came before, or it would still be there.

None of these keys falls under the bounds of `producers`: there are as many as there are committed segments.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from clusterbroker.broker.queues.handle import CommitPart, Moved
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.journal.record import Message

if TYPE_CHECKING:
    from clusterbroker.broker.queues.queue import Queue

Row = tuple[Message, "tuple[bytes, int] | None"]
"""With its producer's number, if that gave it one."""
PREFIX: Final = b"t"
_QUEUE_ID: Final = struct.Struct(">Q")


def moved_producer(segment_id: int) -> bytes:
    """The key of a segment."""
    return PREFIX + _QUEUE_ID.pack(segment_id)


def moved_segments(queue: Queue) -> list[int]:
    """Segments of which the queue knows what it has."""
    return [_QUEUE_ID.unpack(name[1:])[0] for name in queue.ring.producers if name[:1] == PREFIX]


def forget_moved(queue: Queue, segment_id: int) -> None:
    """The segment is gone."""
    name = moved_producer(segment_id)
    if not queue.deleted and name in queue.ring.producers:
        queue.ring.produced(name, 0)


def known_rows(queue: Queue, moved: Moved) -> int:
    """How many of these rows are here already: they are the first ones."""
    if not queue.host.moves(moved.segment):
        return len(moved.seqs)
    return bisect_left(moved.seqs, queue.ring.producers.get(moved_producer(moved.segment), 0))


def note_moved(queue: Queue, moved: Moved) -> None:
    """They are appended in this turn."""
    queue.ring.produced(moved_producer(moved.segment), moved.seqs[-1] + 1)
    queue.host.keeps(queue, moved.segment)


def new_rows(queue: Queue, part: CommitPart) -> list[Row]:
    """Those of the part that are not here: neither by the segment nor by their producers' numbers."""
    assert part.moved is not None, "the part is of a segment"
    skip, known = known_rows(queue, part.moved), queue.producers.knows
    rows = [(message, named) for messages, named in part.publishes for message in messages]
    return [(message, named) for message, named in rows[skip:] if named is None or not known(*named)]


def put_rows(queue: Queue, moved: Moved, rows: Sequence[Row], ticket: Ticket, now_ms: int) -> None:
    """Appends those rows of a part that are new; the ticket is held until all of the part is committed."""
    if not rows:
        queue.promise(ticket)
        return
    note_moved(queue, moved)
    if all(named is None for _, named in rows):
        queue.publish([message for message, _ in rows], ticket, now_ms)
        return
    for message, named in rows:
        if named is None:
            queue.publish((message,), ticket, now_ms)
        else:
            queue.publish_named(*named, message, ticket, now_ms)


def take_rows(queue: Queue, part: CommitPart, ticket: Ticket, now_ms: int) -> None:
    """Publishes what is new of the part, all of it or, when there is no room, nothing."""
    assert part.moved is not None, "the part is of a segment"
    if len(part.publishes) == 1 and part.publishes[0][1] is None and not known_rows(queue, part.moved):
        messages = part.publishes[0][0]  # as a rule
        if queue.takes(messages, now_ms):
            note_moved(queue, part.moved)
            queue.publish(messages, ticket, now_ms)
        else:
            ticket.rejected = True
        return
    rows = new_rows(queue, part)
    if queue.takes([message for message, _ in rows], now_ms):
        put_rows(queue, part.moved, rows, ticket, now_ms)
    else:
        ticket.rejected = True
