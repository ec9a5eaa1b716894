"""A client as its node and its shell see it, whatever protocol it speaks.

A core takes bytes and makes bytes (sans-IO): the shell owns the socket, the core owns an output buffer and decides
whether the socket is read. A core never raises out of `receive` for a mistake of its client.

    SocketCore    what the shell drives
    ClientCore    what the node knows as well, in `Node.clients`
    ChannelCore   a channel, session or the like of one
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from clusterbroker.broker.node.backpressure import Backpressure
from clusterbroker.broker.node.counts import ChannelCounts
from clusterbroker.broker.stats.totals import MessageTotals

if TYPE_CHECKING:
    from clusterbroker.broker.stats.rows import AnyRow, ConnectionRow


class Output(Protocol):
    """Bytes that wait for the socket."""

    @property
    def size(self) -> int:
        """Bytes."""

    @property
    def size_max(self) -> int:
        """Consumers get nothing more while `size` is above."""

    @property
    def paused(self) -> bool:
        """The socket takes nothing."""

    def take(self) -> Any:
        """All bytes; the buffer is empty then."""


class SocketCore(Protocol):
    """One connection, from its first byte on."""

    @property
    def peer(self) -> str:
        """Address and port of the other end."""

    @property
    def user(self) -> str:
        """Empty before the client has signed in."""

    @property
    def trusted(self) -> bool:
        """The client is the node's own (`server.control.own_client`)."""

    @property
    def out(self) -> Output:
        """What the shell writes to the socket."""

    @property
    def reading(self) -> bool:
        """The shell should read the socket."""

    @property
    def ending(self) -> str | None:
        """None; "flush": close the socket once `out` is sent; "abort": close it now."""

    @property
    def undecoded(self) -> bytes:
        """The received bytes that are no whole frame yet: the next `receive` begins with them."""

    def receive(self, data: bytes | bytearray | memoryview, now_ms: int) -> None:
        """Takes `data`. Output is in `out`; `Node.sending` lists the core if there is any."""

    def sent(self, now_ms: int) -> None:
        """The shell took the buffer and wrote it to the socket."""

    def paused(self, paused: bool, now_ms: int) -> None:
        """The socket takes nothing more, or takes again."""

    def mark_consumers(self) -> None:
        """There is room in the buffer again: queues may hand out."""

    def tick(self, now_ms: int, wall_ms: int = 0) -> None:
        """Heartbeats and deadlines; called about twice a second. `wall_ms`: the wall clock; 0: `now_ms` is it."""

    def lost(self, now_ms: int) -> None:
        """The socket is gone, whichever side closed it."""

    def dismiss(self) -> None:
        """Nothing more is read from the client, so repeating what it still sends is no duplicate. It gets what the
        node has for it."""

    @property
    def owed(self) -> bool:
        """Something that was taken has no answer yet: a publish without confirm, a declare, a commit. A connection that
        ends meanwhile makes its client repeat all of that, and have it twice."""

    def force_close(self, text: str) -> None:
        """An operator, or a node that stops, closes the connection."""

    def crashed(self, error: Exception) -> None:
        """A mistake of the broker costs this client its connection, and nobody else anything."""


class ClientCore(SocketCore, Protocol):
    """One connection whose protocol is known."""

    @property
    def id(self) -> str:
        """Unique over nodes and starts (`Node.connection_id`); the owner's name of exclusive queues."""

    @property
    def is_open(self) -> bool:
        """The client has signed in, and neither side has begun to close the connection."""

    @property
    def channels(self) -> Mapping[int, ChannelCore]:
        """By number."""

    @property
    def partial_bytes(self) -> int:
        """Bytes held of contents that are not whole yet."""

    def give_up_partial(self) -> None:
        """All clients hold too much of contents that are not whole, and this one the most: closes it."""

    @property
    def backpressure(self) -> Backpressure:
        """Why the client is not read although it could be."""

    def alarmed(self) -> None:
        """Resource alarms, here or elsewhere, changed (`Backpressure.alarms`)."""

    def review_reading(self) -> None:
        """A reason to read the socket, or not to, changed."""

    def review_rights(self) -> None:
        """The user or its permissions changed."""

    def vhost_deleted(self, name: str) -> None:
        """A virtual host is gone, perhaps the client's."""

    def rows(self, row: ConnectionRow) -> Iterator[AnyRow]:
        """What operators are told: `row`, completed by the protocol, and rows of its channels and consumers, if it has
        such. Nothing before the client has signed in. The walk may be interrupted between two rows."""


class ChannelCore(Protocol):
    """The unit of a client's protocol that publishes are confirmed in."""

    @property
    def connection(self) -> ClientCore:
        """The client."""

    @property
    def counts(self) -> ChannelCounts:
        """Of its publishes and settlements."""

    @property
    def totals(self) -> MessageTotals:
        """All that its messages did."""

    def flush_confirms(self) -> None:
        """Puts the confirms that are due into the client's buffer (after `Node.confirming` named the channel)."""


class Accepted(NamedTuple):
    """A socket that was accepted."""

    peer: str
    """Address and port of the other end."""
    loopback: bool
    """The other end is on this machine."""
    at_ms: int
    identity: str | None = None
    """The user's name in a verified client certificate."""
