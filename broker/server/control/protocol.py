"""The messages of `control.sock`, the one socket by which a node is operated: between the node and a command, or the
management process beside the node.

    frame      u32 length (big endian) | msgpack [tag, field, ...]        at most FRAME_BYTES_MAX

Both sides say Hello first. The client's questions have numbers of its own; the node answers in any order. Either side
ends the connection when a frame is none of these.

    Call      -> Done                                                    of commands and of the management process
    AsUser    -> Outcome
    Tail      -> Snapshot.. the last one empty, or Following; then Followed, for ever
    AskRows   -> Rows.. of each member that answers in time, then RowsEnd
    Order     -> Ordered

All but Call are for the management process only. Its own counts, attempts to sign in, come without a question
(Logins), and have no answer.

A Snapshot's chunks are those of `cluster.snapshot`, commands those of `cluster.commands`, batches those of
`broker.stats.rows`: each in its own stored form, with its own version.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from clusterbroker.broker.stats import as_user

NAME: Final = "control.sock"
VERSION: Final = 2
FRAME_BYTES_MAX: Final = 128 << 20
HEAD_BYTES: Final = 4


class ControlMessage(msgspec.Struct, frozen=True, array_like=True):
    """Root of these."""


class Hello(ControlMessage, frozen=True, tag="hello"):
    """The version, the first thing that either side says. `node`: the node's name; of a client empty."""

    version: int
    node: str = ""
    management: bool = False
    """The client is the management process: it demands rights and writes the audit by itself."""


class Question(ControlMessage, frozen=True):
    """Asked by the client, answered under its number."""

    number: int


class Tail(Question, frozen=True, tag="tail"):
    """The wiring from here on. `index`: what the process has folded, 0: nothing."""

    index: int


class AskRows(Question, frozen=True, tag="ask_rows"):
    """The rows of all members, as far as they are new to the process."""

    since: dict[str, tuple[int, int]]
    """(life, number) told last, by member."""
    max_age_ms: int
    """A sample that is older than this is made anew."""


class Order(Question, frozen=True, tag="order"):
    """A command for the wiring log."""

    command: bytes


class Call(Question, frozen=True, tag="call"):
    """An operation of the node (`calls`, `service`), with its arguments by name."""

    operation: str
    arguments: dict[str, Any]
    sudo: str = ""
    """For the audit: the user on whose behalf root's process acts, as that process says."""


class AsUser(Question, frozen=True, tag="as_user"):
    """Declare, bind, delete, publish and get with the rights of a user."""

    asked: as_user.AsUser


class Logins(ControlMessage, frozen=True, tag="logins"):
    """Attempts to sign in at the process: in the place of what it told before. They are the node's to tell others."""

    succeeded: int = 0
    failed: int = 0
    sources: tuple[tuple[str, str, int, int], ...] = ()
    """(address, user, succeeded, failed), who was quiet for the longest first."""


class Answer(ControlMessage, frozen=True):
    """To the question of this number."""

    number: int


class Snapshot(Answer, frozen=True, tag="snapshot"):
    """The next chunk of the map as it was at `index`; an empty one is the last."""

    index: int
    chunk: bytes


class Following(Answer, frozen=True, tag="following"):
    """The process has all that was applied so far."""


class Followed(Answer, frozen=True, tag="followed"):
    """What was applied since: (index, command)."""

    commands: tuple[tuple[int, bytes], ...]


class Rows(Answer, frozen=True, tag="rows"):
    """A part of one member's batch; `more`: others follow."""

    batch: bytes
    more: bool


class RowsEnd(Answer, frozen=True, tag="rows_end"):
    """All members have answered, or their time is over."""

    leased: bool


class Ordered(Answer, frozen=True, tag="ordered"):
    """What came of a command; `kind` is that of `cluster.errors`, empty: it was carried out, as the command `index`."""

    kind: str
    text: str
    index: int = 0


class Done(Answer, frozen=True, tag="done"):
    """What came of a call; `error` is empty when it was done."""

    answer: dict[str, Any]
    error: str


class Outcome(Answer, frozen=True, tag="outcome"):
    """What came of the requests of a user; `unavailable`: why they cannot be carried out now, empty: they were."""

    outcome: as_user.Outcome
    unavailable: str = ""


class Leased(ControlMessage, frozen=True, tag="leased"):
    """Told unasked: whether the node holds a lease from now on."""

    leased: bool


class AlarmsChanged(ControlMessage, frozen=True, tag="alarms_changed"):
    """Told unasked: this node's alarms or another member's are others than before. Rows that say so are not waited for:
    the process asks for them now."""


class Reload(ControlMessage, frozen=True, tag="reload"):
    """Told unasked: the process reads its certificates anew."""


AnyAsked = Hello | Call | AsUser | Tail | AskRows | Order | Logins
"""What clients say."""
AnyTold = (
    Hello
    | Snapshot
    | Following
    | Followed
    | Rows
    | RowsEnd
    | Ordered
    | Done
    | Outcome
    | Leased
    | AlarmsChanged
    | Reload
)
"""What the node says."""

_ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=str)


def encode(message: ControlMessage) -> bytes:
    """A frame. Raises ValueError when it would be too long."""
    body = _ENCODER.encode(message)
    if len(body) > FRAME_BYTES_MAX:
        raise ValueError(f"a frame has {FRAME_BYTES_MAX} bytes at most, and this would have {len(body)}")
    return len(body).to_bytes(HEAD_BYTES, "big") + body


class Frames:
    """Bytes in, messages out."""

    __slots__ = ("_decoder", "_rest")

    def __init__(self, messages: Any) -> None:
        """`messages`: AnyAsked or AnyTold, what the other side may say."""
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(messages)
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """The messages that are complete. Raises ValueError for what is none."""
        rest = self._rest
        rest += data
        at = 0
        try:
            while len(rest) - at >= HEAD_BYTES:
                size = int.from_bytes(rest[at : at + HEAD_BYTES], "big")
                if size > FRAME_BYTES_MAX:
                    raise ValueError(f"a frame of {size} bytes: there are at most {FRAME_BYTES_MAX}")
                if len(rest) - at - HEAD_BYTES < size:
                    return
                at += HEAD_BYTES
                try:
                    with memoryview(rest) as whole, whole[at : at + size] as body:
                        message = self._decoder.decode(body)
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                    raise ValueError(f"not a message of control.sock: {error}") from error
                at += size
                yield message
        finally:
            del rest[:at]
