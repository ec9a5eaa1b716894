"""What is said about a lease on a queue, between who reads and the queue's owner: values only.

`broker.queues.leasing` explains it. Requests and answers are msgpack where they go between nodes; new fields go to the
end and carry a default.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

Seq = Annotated[int, msgspec.Meta(ge=0, le=2**56)]
Name = Annotated[str, msgspec.Meta(max_length=200)]

NAME_BYTES_MAX: Final = 200
RUN_BYTES_MAX: Final = 64
GENERATION_BYTES_MAX: Final = 64
ROWS_MAX: Final = 1_000_000
"""Messages that a lease may hold open at once."""
BYTES_MAX: Final = 1 << 40
TTL_MS_MIN: Final = 1000
TTL_MS_DEFAULT: Final = 86_400_000
TTL_MS_MAX: Final = 30 * 86_400_000
READ_ROWS_MAX: Final = 4096
READ_BYTES_MAX: Final = 1 << 20
"""Of one `Read`; one message may be longer."""


class Acquire(msgspec.Struct, frozen=True, array_like=True, tag="take"):
    """Makes the lease, takes it over for another run, settles what is below `start`, and holds as much open as it may.

    generation   of the queue that `start` is of; empty: whatever it is
    start  seq; 0: nothing is settled
    """

    name: Name
    run: Name
    generation: Name
    start: Seq
    rows_max: Annotated[int, msgspec.Meta(ge=1, le=ROWS_MAX)]
    bytes_max: Annotated[int, msgspec.Meta(ge=1, le=BYTES_MAX)]
    ttl_ms: Annotated[int, msgspec.Meta(ge=TTL_MS_MIN, le=TTL_MS_MAX)]


class Settle(msgspec.Struct, frozen=True, array_like=True, tag="settle"):
    """What is leased below `upto` leaves the queue."""

    name: Name
    run: Name
    generation: Name
    upto: Seq


class Release(msgspec.Struct, frozen=True, array_like=True, tag="release"):
    """What is leased returns to the queue."""

    name: Name
    run: Name
    generation: Name


class End(msgspec.Struct, frozen=True, array_like=True, tag="end"):
    """What is leased returns to the queue, whoever has the lease: its run is not asked. Empty name: any reader's."""

    name: Name


class Read(msgspec.Struct, frozen=True, array_like=True, tag="read"):
    """Messages of first to end - 1, which must be leased. It changes nothing."""

    name: Name
    first: Seq
    end: Seq
    rows_max: Annotated[int, msgspec.Meta(ge=1, le=READ_ROWS_MAX)] = READ_ROWS_MAX


LeaseRequest = Acquire | Settle | Release | End | Read


class LeaseAnswer(msgspec.Struct, frozen=True, array_like=True):
    """Answer to a request.

    code          0, or why it is refused: 403 leased by another name, 404 no queue or no lease, 406 it cannot be, 409
                  another run has it, 410 the messages are not there any more, 503 not now
    start, end    what is leased: all that lives of start to end - 1. To `Read`: end is where to go on
    rows          how many messages that is
    next          what the queue ends with: no message has this seq yet
    """

    code: int = 0
    reason: str = ""
    generation: str = ""
    start: int = 0
    end: int = 0
    rows: int = 0
    next: int = 0


GONE: Final = LeaseAnswer(404, "the queue was deleted")
"""The queue went while its owner was asked."""
BROKEN: Final = LeaseAnswer(503, "unavailable, may be repeated: the queue is set aside, see the log of its node")
