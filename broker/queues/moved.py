"""What a log has of the rows of committed segments (`broker.transactions.mover`).

Rows of a segment come to a log in ascending order of their seqs there, with gaps for rows of other queues, and each
part is taken as a whole. So one number per segment says it all: the highest that came, and one. It stands in
`ring.producers` under b"t" and the id of the segment's queue, is written with the rows themselves, and goes when the
map has no such segment any more. A part of a segment that is gone was sent by somebody who has not heard: all of its
rows came before, or it would still be there.

None of these keys falls under the bounds of `producers`: there are as many as there are committed segments.
"""

from __future__ import annotations

import struct
from typing import Final

from clusterbroker.broker.queues.ring import Ring

PREFIX: Final = b"t"
_QUEUE_ID: Final = struct.Struct(">Q")


def moved_producer(segment_id: int) -> bytes:
    """The key of a segment."""
    return PREFIX + _QUEUE_ID.pack(segment_id)


def moved_segments(ring: Ring) -> list[int]:
    """Segments of which the ring knows what it has."""
    return [_QUEUE_ID.unpack(name[1:])[0] for name in ring.producers if name[:1] == PREFIX]
