"""Messages between members about the wiring log, on the control channel: heads of tags 60-99, no payload.

A link keeps order and repeats nothing. `Introduce` is the first on every new link, in both directions; earlier
messages are dropped. All of Raft's own messages carry the sender's term; a message of an old term has no effect.

    leader -> all        Append Snapshot Probe Barrier         candidate -> voters   PreVote AskVote
    all -> leader        Ack Probed AppliedUpTo Forward        voters -> candidate   PreVoted Vote
    anybody -> deposed   TermHint                              anybody -> one that went back   Lapsed
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.link.fields import Whole, Word

Entry = tuple[bytes, Whole, Word]
"""(stored entry, index, term), as the journal and pysyncobj hold it."""


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=False):
    """Root of all."""


class Introduce(Message, frozen=True, tag=60):
    """Identity behind a link, beyond its name: a disk, and the cluster it was founded with."""

    name: NodeId
    disk_id: str
    founders: tuple[str, ...]
    """Names and addresses of the cluster it wants to found or has founded; empty: it joined."""
    voters: tuple[str, ...]
    """Raft ids it was founded with; empty as long as it was not."""
    term: Word = 0
    """Of its log; 0: it has none yet."""
    end: Whole = 0
    """The last entry of its log."""
    level: Whole = 1
    """The feature level with which its cluster was founded; of one that was not, the highest that its release knows."""


class Append(Message, frozen=True, tag=61):
    """Entries that follow the one at `prev_index` of `prev_term`; none: a heartbeat."""

    term: Word
    commit: Whole
    prev_index: Whole
    prev_term: Word
    entries: tuple[Entry, ...]


class Snapshot(Message, frozen=True, tag=62):
    """A piece of a snapshot file; the empty piece ends it."""

    term: Word
    commit: Whole
    index: Whole
    """The last entry that the snapshot contains."""
    first: bool
    last: bool
    data: bytes


class Ack(Message, frozen=True, tag=63):
    """What a follower has, durably: everything before `next_index` (success), or whence to send again (reset)."""

    term: Word
    next_index: Whole
    reset: bool
    success: bool


class AskVote(Message, frozen=True, tag=64):
    """A candidate asks for a vote in `term`."""

    term: Word
    last_index: Whole
    last_term: Word


class Vote(Message, frozen=True, tag=65):
    """The vote of its sender, durably given."""

    term: Word


class PreVote(Message, frozen=True, tag=66):
    """Would you vote for me in `term`? Binds nobody, raises nobody's term."""

    term: Word
    last_index: Whole
    last_term: Word


class PreVoted(Message, frozen=True, tag=67):
    """The answer, for the `term` that was asked for, with the own term beside it."""

    term: Word
    granted: bool
    current: Word


class TermHint(Message, frozen=True, tag=68):
    """To a leader of an older term."""

    term: Word


class Forward(Message, frozen=True, tag=69):
    """Proposals for the leader: envelopes of one origin, in the order of their numbers."""

    entries: tuple[bytes, ...]


class AppliedUpTo(Message, frozen=True, tag=70):
    """A member has applied everything up to this index."""

    index: Whole
    outcomes: tuple[Whole, Word] = (0, 0)
    """The last window of its outcomes (outcomes.py): first index, sum."""


class Barrier(Message, frozen=True, tag=71):
    """Every living member has applied everything up to this index."""

    term: Word
    index: Whole


class Probe(Message, frozen=True, tag=72):
    """Am I still the leader of this term?"""

    term: Word
    round: Whole


class Probed(Message, frozen=True, tag=73):
    """You are, as far as I know."""

    term: Word
    round: Whole


class Lapsed(Message, frozen=True, tag=74):
    """Your log has promised more than it holds (promises.py): this term, and that it reaches to this entry in it."""

    term: Word
    end: Whole


AnyMessage = (
    Introduce | Append | Snapshot | Ack | AskVote | Vote | PreVote | PreVoted | TermHint | Forward | AppliedUpTo
    | Barrier | Probe | Probed | Lapsed
)  # fmt: skip

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final[msgspec.msgpack.Decoder[Any]] = msgspec.msgpack.Decoder(AnyMessage)


def encode(message: AnyMessage) -> bytes:
    """The head of a frame."""
    return _ENCODER.encode(message)


def decode(head: bytes | memoryview) -> AnyMessage:
    """The message in the head of a frame; ValueError when it is none."""
    try:
        message: AnyMessage = _DECODER.decode(head)
    except RecursionError as error:
        raise ValueError("a message nested beyond reason") from error
    return message
