"""The first messages of two nodes, and reasons to hang up (pure).

TLS has proved that the other side holds the join secret. The dialling side sends Hello; the other answers with its own
Hello; a side that accepts the other's Hello sends Welcome; a link stands when both have. Otherwise one line
has the reason, in Refused, for both logs.

    state    Hello, content                     Hello, not content     Welcome    Refused    anything else
    NEW      accepted: send Hello and Welcome,
             dialled: send Welcome: MET         send Refused: ENDED    ENDED      ENDED      ENDED
    MET      ENDED (repeated)                   ENDED (repeated)       LINKED     ENDED      ENDED
    LINKED   frames belong to those above; one that carries LINK_INDEX ends the link

Handshake frames carry LINK_INDEX where others carry a wiring index, so they are never mistaken for each other. Until
a link stands, a frame may have HELLO_BYTES_MAX.

Two connections for one peer and channel: see `rival`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from .frames import decoder, encode

PROTOCOL: Final = 1
"""Version of the link's protocol. Fields are only added, at the end and with a default."""

LINK_INDEX: Final = 2**64 - 1
HELLO_BYTES_MAX: Final = 4096
NAME_BYTES_MAX: Final = 64
"""A certificate's common name holds no more, nor does a beat."""

CONTROL: Final = "control"
DATA: Final = "data"
CHANNELS: Final = (CONTROL, DATA)


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Identity of the sender, and what the connection is for."""

    protocol: int
    cluster: str
    """The cluster's id; empty: not a member of any yet, and willing to learn it."""
    name: str
    incarnation: int
    disk_id: str
    process: str
    """A random text per process: another at each start, and on a copied disk."""
    channel: str
    number: int
    """How many connections this process has dialled: a higher one means that the dialler gave up the lower."""
    software: str
    level: int = 1
    """The highest feature level that the sender's release knows; releases before there were levels know the first."""


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Your Hello is good."""


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Your Hello is not good, and why."""

    line: str


_MESSAGES: Final[msgspec.msgpack.Decoder[Hello | Welcome | Refused]] = decoder(Hello, Welcome, Refused)


@dataclass(frozen=True, slots=True)
class Identity:
    """What this node sends of itself."""

    name: str
    cluster: str
    """Empty on a joiner until a member's Hello."""
    incarnation: int
    disk_id: str
    process: str
    software: str
    level: int
    """The highest feature level that its release knows."""

    def __post_init__(self) -> None:
        assert valid_name(self.name), f"'{self.name}' is no node name"

    def hello(self, channel: str, number: int) -> Hello:
        """The Hello of a new connection."""
        return Hello(
            PROTOCOL,
            self.cluster,
            self.name,
            self.incarnation,
            self.disk_id,
            self.process,
            channel,
            number,
            self.software,
            self.level,
        )


def valid_name(name: str) -> bool:
    """Letters, digits, point, hyphen and underscore; 1 to 64 of them."""
    return 0 < len(name) <= NAME_BYTES_MAX and all(
        char.isascii() and (char.isalnum() or char in "._-") for char in name
    )


def objection(
    own: Identity, hello: Hello, certified: str | None, expected: str | None, channel: str | None, level: int
) -> str | None:
    """Why this node does not want a link with the sender of `hello`; None: it does.

    `certified`: CN of its certificate; `expected`, `channel`: whom and what we dialled (None: it dialled us); `level`:
    the cluster's feature level, as far as this node knows.
    """
    other = hello.name
    if hello.protocol != PROTOCOL:
        return (
            f"{other} speaks link protocol {hello.protocol} (clusterbroker {hello.software}), {own.name} speaks "
            f"{PROTOCOL} (clusterbroker {own.software}): run releases on both that know one protocol"
        )
    if other != certified:
        return (
            f"{other} shows the certificate of {certified}: a node's name is its certificate's CN, correct one of them"
        )
    if not valid_name(other):
        return f"'{other}' is no node name: 1 to {NAME_BYTES_MAX} letters, digits, points, hyphens and underscores"
    if hello.cluster != own.cluster and hello.cluster and own.cluster:
        return (
            f"{other} is of cluster {hello.cluster}, {own.name} of cluster {own.cluster}: give all founders the same "
            "--peers and secret, or let the newcomer join with an empty data directory"
        )
    if not hello.cluster and not own.cluster:
        return (
            f"neither {other} nor {own.name} is a member of a cluster yet: let one of them join by a member's address"
        )
    if other == own.name:
        if hello.process == own.process:
            return f"{own.name} dialled itself: correct its address in --peers"
        return (
            f"two nodes call themselves {other} (disks {hello.disk_id} and {own.disk_id}): start one of them under "
            "another name"
        )
    if expected is not None and other != expected:
        return f"at the address of {expected} answers {other}: correct the addresses in --peers"
    if hello.level < level:
        return (
            f"{other} runs clusterbroker {hello.software}, which knows feature level {hello.level}, and the cluster is "
            f"at level {level}: install the release of {own.name} (clusterbroker {own.software}) or a newer one on it"
        )
    if hello.channel not in CHANNELS or channel not in (None, hello.channel):
        return f"{other} wants a link for '{hello.channel}', {own.name} for '{channel or ' or '.join(CHANNELS)}'"
    return None


@dataclass(frozen=True, slots=True)
class Standing:
    """A link that stands: its Hello, and the dialling side."""

    hello: Hello
    dialled: bool
    """This node dialled it."""


BOTH_DIALLED: Final = "dialled each other: the connection of the lower name stays"


def passes(why: str) -> bool:
    """Whether this refusal is about two connections of the same processes, of which one stays: the peer, or this node,
    wants the link."""
    return BOTH_DIALLED in why


def rival(own: str, standing: Standing, hello: Hello, dialled: bool) -> str | None:
    """Why the standing link of the same peer and channel stays; None: the new one takes its place.

    A newer start of the peer wins, since the older process is dead. Of one process the connection that it dialled last
    wins: it dials again only when it has lost the one before. If both sides dialled (a joiner dials each address
    that it was given), the connection of the lower name wins, on both sides alike.
    """
    known, other = standing.hello, hello.name
    assert known.name == other, f"links of {known.name} and {other} are no rivals"
    if hello.process == known.process:
        if dialled != standing.dialled:
            by_lower = (own < other) == dialled
            return None if by_lower else f"{other} and {own} {BOTH_DIALLED}"
        if dialled or hello.number > known.number:
            return None
        return f"{other} has dialled connection {known.number} already, this is its connection {hello.number}"
    if hello.disk_id != known.disk_id:
        return (
            f"two nodes call themselves {other} (disks {known.disk_id} and {hello.disk_id}): start one of them under "
            "another name, or end the one that shall not be"
        )
    if hello.incarnation > known.incarnation:
        return None
    return (
        f"{other} is linked in incarnation {known.incarnation}, another process says {hello.incarnation} with the same "
        f"disk {known.disk_id}: end the older process, and do not copy data directories"
    )


class Handshaking(enum.Enum):
    """Where the handshake of a connection is."""

    NEW = "new"
    MET = "met"
    LINKED = "linked"
    ENDED = "ended"


class BrokenHandshake(Exception):
    """The connection ends: one line why. `known`: the other side knows it already."""

    def __init__(self, line: str, known: bool = False) -> None:
        super().__init__(line)
        self.line = line
        self.known = known


class Handshake:
    """One side of the handshake of one connection: heads in, frames to send out."""

    __slots__ = ("_dialled", "_greeting", "_wanted", "hello", "state")

    def __init__(
        self, dialled: str | None, greeting: Callable[[str], Hello], wanted: Callable[[Hello], str | None]
    ) -> None:
        """`dialled`: the channel, None: the other side dialled and names it.

        `greeting(channel)`: this node's Hello. `wanted(hello)`: the objection to the other's Hello, None: there is
        none.
        """
        self._dialled = dialled
        self._greeting = greeting
        self._wanted = wanted
        self.state = Handshaking.NEW
        self.hello: Hello | None = None
        """The other side's Hello."""

    def begin(self) -> bytes:
        """The first frame; nothing if the other side dialled."""
        return self._hello(self._dialled) if self._dialled is not None else b""

    def _hello(self, channel: str) -> bytes:
        return encode(self._greeting(channel), LINK_INDEX)

    def received(self, index: int, head: bytes | memoryview) -> bytes:
        """What to answer, possibly nothing. Raises BrokenHandshake; `refusal` makes the frame for the other side."""
        assert self.state in (Handshaking.NEW, Handshaking.MET), "a handshake that is over hears nothing"
        state, self.state = self.state, Handshaking.ENDED
        if index != LINK_INDEX:
            raise BrokenHandshake("it sent a frame before it was welcome")
        try:
            message = _MESSAGES.decode(head)
        except (msgspec.MsgspecError, RecursionError):
            raise BrokenHandshake("it sent what no handshake has") from None
        if isinstance(message, Refused):
            raise BrokenHandshake(_refusal_line(message), known=True)
        if isinstance(message, Hello) and state is Handshaking.NEW:
            if (why := self._wanted(message)) is not None:
                raise BrokenHandshake(why)
            self.hello, self.state = message, Handshaking.MET
            answer = self._hello(message.channel) if self._dialled is None else b""
            return answer + encode(Welcome(), LINK_INDEX)
        if isinstance(message, Welcome) and state is Handshaking.MET:
            self.state = Handshaking.LINKED
            return b""
        raise BrokenHandshake(f"it said {type(message).__name__} at the wrong time")


def late(head: bytes | memoryview) -> str:
    """Why a link that stands ends when a handshake frame comes: the other side thought better of it, or is confused."""
    try:
        message = _MESSAGES.decode(head)
    except (msgspec.MsgspecError, RecursionError):
        return "it sent a handshake frame that cannot be read, on a link that stands"
    if isinstance(message, Refused):
        return _refusal_line(message)
    return f"it said {type(message).__name__} again, on a link that stands"


def _refusal_line(message: Refused) -> str:
    printable = "".join(char if char.isprintable() else "?" for char in message.line[:500])
    return f"it refused the link: {printable}"


def refusal(line: str) -> bytes:
    """The frame with the reason why the connection ends."""
    return encode(Refused(line[:500]), LINK_INDEX)
