"""A client's connection in whatever protocol: what it holds of its node, when its socket is read, and how it ends.

    (states of the protocol) -> OPEN -> CLOSING -> CLOSED

CLOSING: a close was sent and the client's is waited for, or the client's was received and its exclusive queues are not
gone yet. A front derives from `ClientConnection`: its `State` has those names (and CHECKING, while the node verifies a
password off the loop), its decoder makes events of bytes, its faults are closes of its protocol.

The core owns an `OutBuffer` and a wish to be read (`reading`); the shell owns the socket.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from clusterbroker.broker.access.authorization import Authorization
from clusterbroker.broker.access.rights import AccountRights
from clusterbroker.broker.access.sign_in import leave, session_ended
from clusterbroker.broker.node.backpressure import MINORITY, Backpressure
from clusterbroker.broker.node.clients import Accepted
from clusterbroker.broker.node.core import Node
from clusterbroker.broker.routing.labour import STEPS_AT_ONCE
from clusterbroker.broker.wire.amqp091.codec import OutBuffer

if TYPE_CHECKING:
    from clusterbroker.broker.stats.rows import AnyRow, ConnectionRow

TICK_MS: Final = 250
"""Half of the time between two ticks: a heartbeat is rather early than late."""
REQUEST_BYTES: Final = 2 << 20
"""Incomplete contents of a connection that counts as no publisher: requests for leases need that, alarm or not."""


class Cause(Enum):
    """Why the node closes a connection, where the protocol's codec has not said it."""

    FORCED = "an operator, or a node that stops"
    MISTAKE = "a mistake of the broker"
    RESOURCES = "more than the node has room for"
    UNAUTHORIZED = "the user or its token is no longer valid"


class Decoder(Protocol):
    """Bytes to events."""

    failed: bool
    """The byte stream can no longer be read."""
    heard: bool
    """Bytes have come since this was unset."""

    @property
    def partial_bytes(self) -> int:
        """Of contents that are not whole yet."""

    @property
    def rest(self) -> bytes:
        """Of a frame that is not whole yet."""


class ClientConnection(ABC):
    """The core of one connection (`broker.node.clients.ClientCore`).

    reading   the shell should read from the socket
    ending    None; "flush": close the socket once `out` is sent; "abort": close it now
    """

    trusted = False

    CHECKING: ClassVar[Enum]
    OPEN: ClassVar[Enum]
    CLOSING: ClassVar[Enum]
    CLOSED: ClassVar[Enum]
    OPENING_METHOD: ClassVar[str]
    """Its name, for the log of those that never come so far."""
    HEARTBEAT: ClassVar[bytes]
    """The frame that only says that its sender lives."""

    __slots__ = (
        "_closed_at_ms", "_last_heard_ms", "_last_sent_ms", "access", "backpressure", "decoder", "dismissed", "ending",
        "exclusive_queues", "id", "loopback", "mechanism", "node", "opened_at_ms", "out", "partial_bytes",
        "paused_since_ms", "peer", "peer_identity", "reading", "state",
    )  # fmt: skip

    def __init__(self, node: Node, accepted: Accepted, state: Enum, decoder: Decoder, out: OutBuffer) -> None:
        self.node = node
        self.id = node.connection_id()
        self.peer = accepted.peer
        self.loopback = accepted.loopback
        self.peer_identity = accepted.identity
        """Who the client is by its TLS certificate, for EXTERNAL."""
        self.state: Any = state
        self.decoder: Any = decoder
        self.out = out
        self.reading = True
        self.dismissed = False
        """Nothing more is read: it is about to be closed (`dismiss`)."""
        self.ending: str | None = None
        self.access = Authorization(node, self.id, "", AccountRights(node.map, ""))
        self.mechanism = ""
        self.backpressure = Backpressure(node, self)
        self.partial_bytes = 0
        self.exclusive_queues = False
        """It has, or had, queues of its own."""
        self.opened_at_ms = accepted.at_ms
        self.paused_since_ms = 0
        self._closed_at_ms = 0
        self._last_heard_ms = self._last_sent_ms = accepted.at_ms
        node.clients[self.id] = self

    # -- what a front adds

    @property
    @abstractmethod
    def channels(self) -> Mapping[int, Any]:
        """Or sessions, by number."""

    @abstractmethod
    def rows(self, row: ConnectionRow) -> Iterator[AnyRow]:
        """What operators are told."""

    @abstractmethod
    def feed(self, data: bytes | bytearray | memoryview, now_ms: int) -> None:
        """Decodes and handles `data`."""

    @abstractmethod
    def new_decoder(self) -> Decoder:
        """For a connection that sends nothing more."""

    @abstractmethod
    def fail_for(self, cause: Cause, text: str) -> None:
        """Closes the connection with an error; the client's close is waited for."""

    @abstractmethod
    def say_closed(self) -> None:
        """Answers the client's close."""

    @abstractmethod
    def end_channel(self, channel: Any, until: int) -> None:
        """What the channel or session holds goes back. It may raise; `until`: of the node's labour."""

    @abstractmethod
    def released(self) -> None:
        """All channels or sessions are gone, and what the connection itself holds goes back."""

    @property
    @abstractmethod
    def waits(self) -> bool:
        """Events of it wait for later turns of the node."""

    @property
    def is_blocked(self) -> bool:
        """An open connection is not read. Without a majority commands would act on metadata that may be stale."""
        return self.dismissed or MINORITY in self.node.alarms

    @abstractmethod
    def hold(self, alarms: list[str]) -> None:
        """These alarms stop publishes of the client; none: no more."""

    @abstractmethod
    def mark_consumers(self) -> None:
        """There is room in the buffer again."""

    @property
    @abstractmethod
    def heartbeat_s(self) -> int:
        """Silence of the client for twice as long ends the connection; 0: any is allowed."""

    @property
    @abstractmethod
    def beat_ms(self) -> int:
        """So often the client wants to hear something; 0: it does not care."""

    @abstractmethod
    def silent(self) -> None:
        """The client has been silent for too long."""

    @abstractmethod
    def look(self, now_ms: int) -> None:
        """Channels or sessions look for what is late."""

    # -- what operators and fronts ask

    @property
    def user(self) -> str:
        return self.access.user

    @property
    def is_open(self) -> bool:
        return self.state is self.OPEN

    @property
    def undecoded(self) -> bytes:
        return bytes(self.decoder.rest)

    @property
    def owed(self) -> bool:
        return any(channel.owed for channel in self.channels.values() if not channel.closing)

    # -- bytes in

    def receive(self, data: bytes | bytearray | memoryview, now_ms: int) -> None:
        """Takes `data`, which starts with the decoder's `rest`. Output is in `out`; the node lists the connection. What
        a client does wrong ends its channel, session or connection, and nothing else."""
        self.node.now_ms = now_ms
        if self.ending is None:
            self.feed(data, now_ms)
        if self.decoder.partial_bytes != self.partial_bytes:
            self._hold_partial(self.decoder.partial_bytes)
        if self.out.size:
            self.node.sending[self] = None

    def _hold_partial(self, partial_bytes: int) -> None:
        """Incomplete contents take memory as publishes do: a connection with more than requests need waits for alarms,
        too, and the sum of all is bounded."""
        self.node.partial_bytes += partial_bytes - self.partial_bytes
        self.partial_bytes = partial_bytes
        if partial_bytes > REQUEST_BYTES and not self.backpressure.publishes:
            self.backpressure.begin()
        if self.node.partial_bytes > self.node.options.partial_bytes_max:
            max(self.node.clients.values(), key=lambda one: one.partial_bytes).give_up_partial()

    def give_up_partial(self) -> None:
        """All connections have too much of contents that are not whole, and this one the most."""
        if self.is_open:
            text = "incomplete contents exceed the node's limit, and this connection has the most"
            self.fail_for(Cause.RESOURCES, text)
        self.end("flush")  # nothing more is read, so no answer to a close either
        self.decoder = self.new_decoder()
        self.decoder.failed = True
        self._hold_partial(0)

    # -- the end

    def crashed(self, error: Exception) -> None:
        """A mistake of the broker: closes this connection, and no other."""
        self.node.log.crashed(self.peer, error)
        try:
            if self.state in (self.CLOSING, self.CLOSED):
                self.end("abort")
            else:
                self.fail_for(Cause.MISTAKE, "the broker made a mistake; see its log")
        except Exception:
            self.end("abort")

    def force_close(self, text: str) -> None:
        """An operator, or a node that stops."""
        self.fail_for(Cause.FORCED, text)

    def dismiss(self) -> None:
        self.dismissed = True
        self.review_reading()

    def leave(self) -> None:
        """The client closes: what was its alone is gone, for clients of all nodes, when it reads the answer."""
        self.begin_closing()
        self.release(self._left)

    def _left(self) -> None:
        if self.ending is None and self.id in self.node.clients:
            self.say_closed()
            self.end("flush")

    def begin_closing(self) -> None:
        """Nothing is taken up any more; whatever comes is read, for the client's close may be behind it."""
        self.state = self.CLOSING
        self._closed_at_ms = self.node.now_ms
        self.reading = True

    def end(self, how: str) -> None:
        """How the socket is closed."""
        self.state = self.CLOSED
        self.ending = how
        self.node.sending[self] = None

    def lost(self, now_ms: int) -> None:
        """The socket is gone, whoever closed it."""
        self.node.now_ms = now_ms
        self.state = self.CLOSED
        self.ending = self.ending or "abort"
        self.release()
        self.node.partial_bytes -= self.partial_bytes
        self.partial_bytes = 0
        self.out.take()
        if self.node.clients.pop(self.id, None) is not None:
            leave(self.access)
        self.node.sending.pop(self, None)
        self.backpressure.leave()

    def release(self, then: Callable[[], None] = lambda: None) -> None:
        """All that the connection held goes back: deliveries, consumers or links, exclusive queues. `then` is called
        when all nodes know."""
        until = self.node.labour.done + STEPS_AT_ONCE
        for channel in tuple(self.channels.values()):
            try:
                self.end_channel(channel, until)
            except Exception as error:  # others still get what is theirs
                self.node.log.crashed(self.peer, error)
            self.channel_gone(channel)
        self.released()
        had, self.exclusive_queues = self.exclusive_queues, False
        forget = partial(self.forget_everywhere, then)
        if had:
            self.node.remove_connection(self.id, forget)
        else:
            forget()

    def forget_everywhere(self, then: Callable[[], None]) -> None:
        """What else all nodes know of it is forgotten, then `then` is called."""
        then()

    def channel_gone(self, channel: Any) -> None:
        """A channel or session is over, and so is what it counted for."""
        session_ended(self.access, channel)

    # -- what node and shell tell

    def review_rights(self) -> None:
        """The user or its permissions changed. A deleted user's connection ends, even if the name is used again."""
        if gone := self.access.rights.gone:
            self.fail_for(Cause.UNAUTHORIZED, gone)
            return
        self.access.renew(self.access.rights, self.access.until_ms)
        for channel in tuple(self.channels.values()):
            channel.review_rights()

    def vhost_deleted(self, name: str) -> None:
        entered = self.access.entered
        if entered is not None and entered.name == name:
            self.force_close(f"vhost '{name}' is deleted")

    def alarmed(self) -> None:
        """Publishers wait; a client that only consumes makes room."""
        alarms = self.backpressure.alarms
        self.hold(alarms)
        if not alarms:
            self.backpressure.fed.clear()
        if not self.node.alarms:
            self.mark_consumers()  # readers of streams that wait for memory go on
        self.review_reading()

    def review_reading(self) -> None:
        """Whether the socket should be read: not in CHECKING, with a full output buffer, or while events wait."""
        reading = (
            not (self.state is self.OPEN and self.is_blocked)
            and self.state is not self.CHECKING
            and not self.out.paused
            and not self.waits
        )
        if reading != self.reading:
            self.reading = reading
            self._last_heard_ms = self.node.now_ms
            self.node.sending[self] = None

    def sent(self, now_ms: int) -> None:
        """The shell wrote the buffer to the socket."""
        self._last_sent_ms = now_ms

    def paused(self, paused: bool, now_ms: int) -> None:
        """The socket takes nothing more, or takes again."""
        self.out.paused = paused
        self.paused_since_ms = now_ms if paused else 0
        self.review_reading()
        if not paused:
            self.mark_consumers()
            if self.out.size:
                self.node.sending[self] = None

    def tick(self, now_ms: int, wall_ms: int = 0) -> None:
        """Heartbeats and deadlines; called about twice a second. `wall_ms`: the wall clock, for the expiry of a token;
        0: the node's own."""
        options = self.node.options
        if self.decoder.heard:
            self.decoder.heard = False
            self._last_heard_ms = now_ms
        if self.state is self.CLOSED:
            return
        if self.paused_since_ms and now_ms - self.paused_since_ms > options.stalled_write_s * 1000:
            self.cut(f"its socket took nothing for {options.stalled_write_s:g} s")
        elif self.state is self.CLOSING:
            if now_ms - self._closed_at_ms > options.close_timeout_s * 1000:
                self.end("abort")
        elif self.state is not self.OPEN:
            if now_ms - self.opened_at_ms > options.handshake_timeout_s * 1000:
                self.cut(f"no {self.OPENING_METHOD} within {options.handshake_timeout_s:g} s")
        else:
            self._beat(now_ms)
        if self.state is self.OPEN and 0 < self.access.until_ms <= (wall_ms or now_ms):
            self.fail_for(Cause.UNAUTHORIZED, f"the token of user '{self.user}' is over")
        if self.state is self.OPEN:
            self.look(now_ms)

    def cut(self, why: str) -> None:
        """The client does not do what it must: its socket is closed without a word, and the log says why."""
        self.node.log_cut(self, why)
        self.end("abort")

    def _beat(self, now_ms: int) -> None:
        """Any traffic counts, in both directions; a client that is not read is not held silent."""
        beat_ms, heartbeat_s = self.beat_ms, self.heartbeat_s
        if beat_ms and now_ms - self._last_sent_ms >= beat_ms - TICK_MS:
            self.out.raw(self.HEARTBEAT)
            self.node.sending[self] = None
        if not self.reading:
            self._last_heard_ms = now_ms
        elif heartbeat_s and now_ms - self._last_heard_ms > heartbeat_s * 2000:
            self.silent()
