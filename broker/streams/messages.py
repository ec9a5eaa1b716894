"""Requests of a stream's readers to its owner, and the answers: heads of frames; records follow as payload.

Reading changes nothing, and what is stored may be stored again, so a question that was lost with a link or an owner is
asked again, and an answer that comes twice is passed over. The owner remembers of a reader only what it waits for, and
how far it says that it is. A node numbers its questions anew with each start, so an answer says of which start and of
what it is: one of a start before may come late, for its owner was reading its disk, and is nobody's.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from clusterbroker.cluster.link.fields import Signed, Term, Whole

READ = 0  # records from `seq` on; answered when there are any
FIND = 1  # where it begins and ends, and the first message that is not older than `since_ms`
LEAVE = 2  # this reader is gone; not answered
STORE = 3  # a reader named `name` goes on at `place` (0: forget it)
STORED = 4  # all stored places


class StreamMessage(msgspec.Struct, frozen=True, array_like=True):
    """Root of these heads."""


class StreamAsk(StreamMessage, frozen=True, tag=80):
    """To a stream's owner."""

    queue_id: Whole
    epoch: Term
    request: Whole
    """Number, unique in the asking node's incarnation."""
    reader: Whole
    """Number of the consumer, likewise; 0: it is none."""
    what: Annotated[int, msgspec.Meta(ge=READ, le=STORED)]
    seq: Whole = 0
    end: Whole = 0
    """Nothing from this seq on."""
    count_max: Whole = 0
    bytes_max: Whole = 0
    since_ms: Signed = -1
    incarnation: Whole = 0
    """Of the asking node."""
    name: Annotated[str, msgspec.Meta(max_length=200)] = ""
    place: Whole = 0
    """Seq."""
    filter: Annotated[bytes, msgspec.Meta(max_length=16 << 10)] = b""
    """READ (feature level 3): only these messages (`content.selector.filters`), with gaps between them; empty: all."""


class StreamTold(StreamMessage, frozen=True, tag=81):
    """The owner's answer. Payload of a READ: ENQ records `seq` to before `next`, without a gap; none when all that was
    asked for is gone, and `seq` is the first that there is."""

    queue_id: Whole
    epoch: Term
    request: Whole
    seq: Whole = 0
    """FIND: the first message that is not older than `since_ms`, else `next`."""
    next: Whole = 0
    """FIND: one past the last committed message."""
    lowest: Whole = 0
    """The first message that there is; `next` when there is none."""
    first_ms: Signed = -1
    """When it was taken; -1: there is none."""
    bytes: Whole = 0
    """About so many bytes of records."""
    incarnation: Whole = 0
    """The question's."""
    asked: Whole = 0
    """The question's `seq`; never above this one's."""
    refused: str = ""
    """STORE: why not."""
    readers: tuple[tuple[str, Whole], ...] = ()
    """STORED: (name, place) of each."""


AnyStream = StreamAsk | StreamTold
