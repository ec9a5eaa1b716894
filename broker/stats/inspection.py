"""What an operator asks about single messages of a queue, and is answered: values only.

Made by the management process, carried by its node to the queue's owner (a frame's payload where that is another
member), carried out there (`broker.node.inspecting`). Each is msgpack; new fields go to the end and carry a default.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

import msgspec

from clusterbroker.cluster.wiring.entities import Queue

SHOWN_MAX: Final = 500
"""Messages of one answer that have their content in it."""
SHOWN_BYTES_MAX: Final = 4 << 20
TRUNCATE_DEFAULT: Final = 50_000
TRUNCATE_MAX: Final = 1 << 20
TREATED_MAX: Final = 10_000
"""Messages that one request deletes, moves or replays."""
LOOKED_MAX: Final = 100_000
LOOKED_MS_MAX: Final = 2000
CONFIRM_MS_MAX: Final = 10_000
FIRST_DEATH_QUEUE: Final = "x-first-death-queue"

KEYS_ASKED_MAX: Final = 10_000
DELETED: Final = "the queue is deleted"
"""How a request about a queue that is no more is refused."""
UNKNOWN_WHAT: Final = "Invalid enum value"
"""How a member of a release that does not know `what` refuses it: as msgspec says so, with more behind."""

SEQ_MAX: Final = 2**56
Seq = Annotated[int, msgspec.Meta(ge=0, le=SEQ_MAX)]
What = Literal[
    "browse", "delete", "move", "replay", "delayed", "send_now", "reschedule", "holders", "explain", "history"
]
LOOKS: Final[tuple[What, ...]] = ("browse", "delayed")
"""Those that change nothing."""
TIME_MAX: Final = 2**62
Time = Annotated[int, msgspec.Meta(ge=0, le=TIME_MAX)]
"""Milliseconds since 1970."""
CorrelationId = Annotated[str, msgspec.Meta(max_length=255)]
Key = Annotated[str, msgspec.Meta(max_length=255)]
Skipped = Literal["not_ready", "damaged", "unroutable", "refused", "no_origin", "unconfirmed"]


class Request(msgspec.Struct, frozen=True, array_like=True):
    """One question, or operation."""

    what: What
    queue_id: Seq
    first: Seq = 1
    last: Seq = 0
    """0: what the queue ends with when it is asked."""
    count: Annotated[int, msgspec.Meta(ge=0, le=TREATED_MAX)] = 50
    filter: Annotated[str, msgspec.Meta(max_length=4096)] = ""
    seqs: Annotated[tuple[Seq, ...], msgspec.Meta(max_length=TREATED_MAX)] | None = None
    """These, in the place of a range and a filter."""
    life: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """Of the queue that the seqs are of; empty: whatever it is."""
    truncate: Annotated[int, msgspec.Meta(ge=0, le=TRUNCATE_MAX)] = TRUNCATE_DEFAULT
    exchange: Annotated[str, msgspec.Meta(max_length=255)] | None = None
    """Where to; None: to the queue in which a message died first."""
    routing_key: Annotated[str, msgspec.Meta(max_length=255)] | None = None
    """None: each message's own."""
    due_from_ms: Time = 0
    due_to_ms: Time = TIME_MAX
    """`delayed`: those that are due then, in the order of their times."""
    delay_key: Annotated[str, msgspec.Meta(max_length=255)] = ""
    """The message that waits under this key, in the place of a range."""
    due_ms: Time = 0
    """`reschedule`: the new due time."""
    at: Annotated[str, msgspec.Meta(max_length=255)] = ""
    """`holders`: the node that is asked which of its clients hold `seqs`. Every other question is for the owner."""
    passed: Annotated[int, msgspec.Meta(ge=-1, le=SEQ_MAX)] = 0
    """`browse`: how many ready messages were passed before `first`; -1: not known."""
    correlation_ids: Annotated[tuple[CorrelationId, ...], msgspec.Meta(max_length=TREATED_MAX)] = ()
    """`holders`: of the messages in `seqs`, for the progress that was reported of them."""
    keys: Annotated[tuple[Key, ...], msgspec.Meta(max_length=KEYS_ASKED_MAX)] | None = None
    """`explain` and `history`, of a pool's orphan queue: of these keys alone."""
    places: bool = True
    """`explain`: of places as well, and what stands in the way of a start at each."""


class Shown(msgspec.Struct, frozen=True, array_like=True):
    """One message as it stands in its queue."""

    seq: int
    state: str
    node: str
    """Where its consumer is; empty: nobody holds it, or who does is not known."""
    redelivered: bool
    delivery_count: int
    exchange: bytes
    routing_key: bytes
    header: bytes
    """Its properties, as its format encodes them."""
    payload: bytes
    """As much of it as was asked for."""
    payload_bytes: int
    time_ms: int
    """When the queue got it, wall clock."""
    format: int = 0
    """What header and payload are encoded in (`broker.content.formats`)."""
    due_ms: int = 0
    """When it is due, if it is delayed."""
    ahead: int = -1
    """Ready messages that stand before it; -1: not known."""


class Result(msgspec.Struct, frozen=True, array_like=True):
    """What came of a request."""

    owner: str
    queue_id: int
    life: str
    looked_at: int
    next: int
    """Where to go on; 0: all has been looked at."""
    last: int
    """What the queue ended with."""
    done: int = 0
    """How many were deleted, moved, replayed."""
    shown: tuple[Shown, ...] = ()
    skipped: dict[Skipped, list[int]] = {}
    holders: dict[int, tuple[str, int]] = {}
    """seq -> (launch of a pool, or connection; since when it holds the message, ms since 1970)."""
    passed: int = -1
    """Ready messages up to `next`, as `Request.passed`."""
    progress: dict[int, tuple[float, int]] = {}
    """seq -> (part that is done, 0 to 1; when its holder reported that, ms since 1970)."""
    explained: dict[str, Any] = {}
    """Of a pool, by its controller (`broker.pools.explaining`, `broker.pools.history`)."""


def life_of(queue: Queue) -> str:
    """In which a seq means one message for ever. A declaration anew ends it, at this broker or at another one, and a
    loss of what was committed."""
    life = f"{queue.queue_id}.{queue.gap_epoch}"
    return f"{queue.declared_ms:x}.{life}" if queue.declared_ms else life


Told = Callable[[Result | None, int, str], None]
"""(what came of a request; None: why not, as a code and a text)"""
Asks = Callable[[Request, Told], None]
"""Asks a queue's owner for a client of this node."""
GONE, UNAVAILABLE = 404, 503

encode: Final = msgspec.msgpack.Encoder().encode
_REQUEST: Final = msgspec.msgpack.Decoder(Request)
_RESULT: Final = msgspec.msgpack.Decoder(Result)


def decode_request(stored: bytes | memoryview) -> Request:
    """Raises ValueError."""
    return _REQUEST.decode(stored)


def decode_result(stored: bytes | memoryview) -> Result:
    """Raises ValueError."""
    return _RESULT.decode(stored)
