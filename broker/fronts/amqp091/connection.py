"""One client connection: bytes in, bytes out, from the protocol header to the last close-ok.

    HEADER -> START -> (SECURE) -> CHECKING -> TUNE -> VHOST -> OPEN -> CLOSING -> CLOSED

Each state has its legal methods (`_HANDLERS`); anything else is 503, a frame on a channel other than 0 before OPEN is
504. CHECKING waits for the node to verify a password off the loop; nothing is read meanwhile. CLOSING means that
connection.close was sent, or was received and its close-ok waits for the end of exclusive queues: all but close and
close-ok is ignored (AMQP 0-9-1, connection.close).

The core owns an `OutBuffer` and a wish to be read (`reading`); the shell owns the socket. `receive` never raises:
what a client does wrong ends its channel or its connection, with the code of amqp-rules 5.1, and nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.access.authorization import Authorization
from clusterbroker.broker.access.errors import Refusal
from clusterbroker.broker.access.rights import AccountRights
from clusterbroker.broker.access.sign_in import check_session, enter, leave, session_began, session_ended
from clusterbroker.broker.access.virtual_exchanges import only_asks
from clusterbroker.broker.fronts.amqp091 import handshake
from clusterbroker.broker.fronts.amqp091.channel import Channel
from clusterbroker.broker.fronts.amqp091.dividing import look, take
from clusterbroker.broker.fronts.amqp091.handlers import HANDLERS
from clusterbroker.broker.fronts.amqp091.reply_codes import amqp_error
from clusterbroker.broker.fronts.amqp091.state import State
from clusterbroker.broker.node.backpressure import MINORITY, Backpressure
from clusterbroker.broker.routing.labour import STEPS_AT_ONCE
from clusterbroker.broker.wire.amqp091 import methods
from clusterbroker.broker.wire.amqp091.codec import Acked, FrameDecoder, MethodReceived, OutBuffer, Published
from clusterbroker.broker.wire.amqp091.errors import (
    AmqpError,
    ConnectionFault,
    ReplyCode,
    command_invalid,
    connection_forced,
    internal_error,
    not_allowed,
    resource_error,
)
from clusterbroker.broker.wire.amqp091.errors import channel_error as channel_fault
from clusterbroker.broker.wire.amqp091.layout import Method

if TYPE_CHECKING:
    from clusterbroker.broker.node.clients import Accepted
    from clusterbroker.broker.node.core import Node
    from clusterbroker.broker.node.vhost import VirtualHost
    from clusterbroker.broker.stats.rows import AnyRow, ConnectionRow

HEADER_0_9_1: Final = b"AMQP\x00\x00\x09\x01"
HEADER_0_9: Final = b"AMQP\x01\x01\x00\x09"
FRAME_MIN_BYTES: Final = 8192
HEARTBEAT: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
TICK_MS: Final = 250
"""Half of the time between two ticks: a heartbeat is rather early than late."""
REQUEST_BYTES: Final = 2 << 20
"""Incomplete contents of a connection that counts as no publisher: requests for leases need that, alarm or not."""
PARKED_BYTES_MAX: Final = 1 << 20
"""Of events that wait in parked channels; then the socket is not read. An event counts at least 1 KiB."""


class Connection:
    """The core of one connection.

    reading   the shell should read from the socket
    ending    None; "flush": close the socket once `out` is sent; "abort": close it now
    """

    trusted = False

    __slots__ = (
        "_blocked_sent", "_closed_at_ms", "_held", "_last_heard_ms", "_last_sent_ms",
        "access", "backpressure", "capabilities", "channel_max", "channels", "client_properties",
        "decoder", "dismissed", "divided", "ending", "exclusive_queues", "heartbeat_s", "id", "looks", "loopback",
        "mechanism", "node", "opened_at_ms", "out", "parked_bytes", "partial_bytes", "paused_since_ms", "peer",
        "peer_identity", "reading", "rest", "state", "until",
    )  # fmt: skip

    def __init__(self, node: Node, peer: str, loopback: bool, now_ms: int, peer_identity: str | None = None) -> None:
        self.node = node
        self.id = node.connection_id()
        self.peer = peer
        self.loopback = loopback
        self.peer_identity = peer_identity
        """Who the client is by its TLS certificate, for EXTERNAL."""
        self.state = State.HEADER
        self.decoder = FrameDecoder(FRAME_MIN_BYTES, node.options.message_bytes_max)
        self.out = OutBuffer(FRAME_MIN_BYTES)
        self.channels: dict[int, Channel] = {}
        self.reading = True
        self.dismissed = False  # nothing more is read: it is about to be closed (`dismiss`)
        self.ending: str | None = None
        self.access = Authorization(node, self.id, "", AccountRights(node.map, ""))
        self.mechanism = ""
        self.client_properties: dict[str, Any] = {}
        self.capabilities: dict[str, Any] = {}
        self.channel_max = 0
        self.heartbeat_s = 0
        self.backpressure = Backpressure(node, self)
        self.partial_bytes = 0
        self.rest: deque[Any] | None = None  # events that wait for the node's next turn (`dividing`)
        self.looks = False  # some of its channels still look in later turns for what is late
        self.divided: Published | None = None
        self.until = 0  # when the node has done so much (`Labour.done`), what is left of a batch waits
        self.parked_bytes = 0
        self._held: list[Any] = []  # came while the password was checked
        self.exclusive_queues = False
        self.opened_at_ms = now_ms
        self.paused_since_ms = 0
        self._blocked_sent = False
        self._closed_at_ms = 0
        self._last_heard_ms = self._last_sent_ms = now_ms
        node.clients[self.id] = self

    def __repr__(self) -> str:
        return f"<Connection {self.id} {self.peer} {self.state.name}>"

    @property
    def user(self) -> str:
        return self.access.user

    @property
    def vhost(self) -> VirtualHost | None:
        """None before connection.open."""
        return self.access.entered

    @property
    def is_open(self) -> bool:
        return self.state is State.OPEN

    @property
    def undecoded(self) -> bytes:
        return self.decoder.rest

    def rows(self, row: ConnectionRow) -> Iterator[AnyRow]:
        # a node that tells nobody need not know how
        from clusterbroker.broker.fronts.amqp091.rows import rows_of

        return rows_of(self, row)

    # -- bytes in ---------------------------------------------------------------------------------------------

    def receive(self, data: bytes | bytearray | memoryview, now_ms: int) -> None:
        """Takes `data`, which starts with the decoder's `rest`. Output is in `out`; the node lists the connection."""
        self.node.now_ms = now_ms
        if self.state is State.HEADER:
            data = self._header(bytes(data))
        if data and not self.ended():
            take(self, self.decoder.feed(data, now_ms))
        if self.decoder.partial_bytes != self.partial_bytes:
            self._holds(self.decoder.partial_bytes)
        if self.out.size:
            self.node.sending[self] = None

    def _holds(self, partial_bytes: int) -> None:
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
        if self.state is State.OPEN:
            self.fail(resource_error("incomplete contents exceed the node's limit, and this connection has the most"))
        self._end("flush")  # nothing more is read, so no close-ok either
        self.decoder = FrameDecoder(FRAME_MIN_BYTES)
        self.decoder.failed = True
        self._holds(0)

    def _header(self, data: bytes) -> bytes:
        """amqp-rules 5.1: an unknown header is answered with ours, then the socket is closed."""
        if len(data) < 8 and (HEADER_0_9_1.startswith(data) or HEADER_0_9.startswith(data)):
            self.decoder.rest = data
            return b""
        self.decoder.rest = b""
        if data[:8] in (HEADER_0_9_1, HEADER_0_9):
            self.state = State.START
            self.send(0, handshake.start(self.node, self.proved))
            return data[8:]
        newer = data[:6] == b"AMQP\x00\x00" and len(data) >= 8 and data[6] >= 9
        self.out.raw(HEADER_0_9_1 if newer else b"AMQP\x03\x01\x00\x00")
        self._end("flush")
        return b""

    def handle(self, event: Any) -> None:
        """One event of the decoder."""
        try:
            kind = type(event)
            if self.state is State.CHECKING:
                self._held.append(event)
            elif self.state is State.CLOSING:
                if kind is MethodReceived and event.channel == 0:
                    self._closing(event.payload)
            elif kind is MethodReceived and event.channel == 0:
                self._method(methods.decode(event.payload))
            elif isinstance(event, AmqpError):
                raise event
            elif self.state is not State.OPEN:
                raise channel_fault(f"channel {event.channel} before the connection is open")
            else:
                channel = self.channels.get(event.channel)
                if channel is None:
                    channel = self._open_channel(event)
                if kind is Published and not self.backpressure.publishes and not only_asks(event.exchange):
                    self.backpressure.begin()
                channel.receive(event)
        except ConnectionFault as fault:
            if isinstance(event, MethodReceived):
                fault.at(int.from_bytes(event.payload[:2], "big"), int.from_bytes(event.payload[2:4], "big"))
            elif isinstance(event, (Published, Acked)):
                fault.at(60, 40 if isinstance(event, Published) else 80)
            self.fail(fault, event.channel if isinstance(event, (Published, Acked, MethodReceived)) else 0)

    def take_up(self, event: Published | Acked | MethodReceived) -> None:
        """An event that waited in a channel which is gone by now."""
        if not self.ended():
            self.handle(event)

    def _open_channel(self, event: Published | Acked | MethodReceived) -> Channel:
        if type(event) is not MethodReceived or event.payload[:4] != b"\x00\x14\x00\x0a":
            raise channel_fault("expected 'channel.open'")
        try:
            check_session(self.access)
        except Refusal as refused:
            raise amqp_error(refused) from None
        count, limit = len(self.channels), self.channel_max
        if count >= limit:
            # amqp-rules 5.1: open channels count, not the highest number
            raise not_allowed(f"number of channels opened ({count}) has reached the negotiated channel_max ({limit})")
        channel = Channel(self, event.channel, HANDLERS)
        session_began(self.access)
        self.channels[event.channel] = channel
        return channel

    def ended(self) -> bool:
        return self.ending is not None

    # -- methods of channel 0 ---------------------------------------------------------------------------------

    def _method(self, method: Method) -> None:
        kind = type(method)
        if kind is methods.ConnectionClose:
            self._leave()
            return
        known = _HANDLERS.get(self.state)
        if known is None or kind is not known[0]:
            fault = command_invalid(f"unexpected method {method.NAME} in state {self.state.name.lower()}")
            raise fault.at(method.CLASS_ID, method.METHOD_ID)
        try:
            known[1](self, method)
        except Refusal as refused:
            raise amqp_error(refused).at(method.CLASS_ID, method.METHOD_ID) from None
        except AmqpError as error:
            raise error.at(method.CLASS_ID, method.METHOD_ID) from None

    def _start_ok(self, method: methods.ConnectionStartOk) -> None:
        self.client_properties = handshake.accepted(dict(method.client_properties))
        capabilities = self.client_properties.get("capabilities")
        self.capabilities = capabilities if isinstance(capabilities, dict) else {}
        self.mechanism = method.mechanism
        handshake.login(self, method.mechanism, method.response)

    def _secure_ok(self, method: methods.ConnectionSecureOk) -> None:
        handshake.login(self, self.mechanism, method.response)

    @property
    def proved(self) -> bool:
        """Whether the client has shown who it is by its certificate, for EXTERNAL."""
        return self.peer_identity is not None

    def authenticated(self, access: Authorization) -> None:
        """The login was accepted."""
        self.access = access
        options = self.node.options
        self.state = State.TUNE
        self.send(0, methods.ConnectionTune(options.channel_max, options.frame_max_bytes, options.heartbeat_s))
        held, self._held = self._held, []
        for event in held:
            if not self.ended():
                self.handle(event)
        self.review_reading()

    def refused(self, text: str) -> None:
        """amqp-rules 5.1: connection.close for a refused login only with capability authentication_failure_close."""
        if self.capabilities.get("authentication_failure_close") is True:
            self.fail(AmqpError(ReplyCode.ACCESS_REFUSED, text))
        else:
            self._end("flush")

    def _tune_ok(self, method: methods.ConnectionTuneOk) -> None:
        """amqp-rules 5.2: 0 is refused when the server's value is not 0, more than offered is refused."""
        options = self.node.options
        self.channel_max = handshake.tuned("channel_max", method.channel_max, options.channel_max, 1) or 65535
        frame_max = handshake.tuned("frame_max", method.frame_max, options.frame_max_bytes, FRAME_MIN_BYTES)
        self.decoder.frame_max = frame_max or 1 << 31
        self.out.frame_max = frame_max
        # "clients take min of the two, or max if either is 0": the client's answer is what counts
        self.heartbeat_s = method.heartbeat
        self.state = State.VHOST

    def _open(self, method: methods.ConnectionOpen) -> None:
        enter(self.access, method.virtual_host, self.trusted)
        self.state = State.OPEN
        self.decoder.opened = True
        self.send(0, methods.ConnectionOpenOk())

    def _update_secret(self, method: methods.ConnectionUpdateSecret) -> None:
        handshake.update_secret(self, method.new_secret)

    # -- closing ----------------------------------------------------------------------------------------------

    def fail(self, error: AmqpError, channel: int = 0) -> None:
        """Closes the connection with the error; the client's close-ok is waited for."""
        if self.state in (State.CLOSING, State.CLOSED):
            return
        self.node.log_fault(self, error, channel)
        if self.state is State.HEADER:
            self._end("flush")
            return
        self._release()
        self.state = State.CLOSING
        self._closed_at_ms = self.node.now_ms
        self.reading = True
        self.send(0, methods.ConnectionClose(int(error.code), error.reply_text, error.class_id, error.method_id))
        if error.code == ReplyCode.FRAME_ERROR or self.decoder.failed:
            self._end("flush")  # the byte stream can no longer be read: there is no close-ok to wait for

    def crashed(self, error: Exception) -> None:
        """An error of the broker: closes this connection (541), and no other."""
        self.node.log.crashed(self.peer, error)
        try:
            if self.state in (State.CLOSING, State.CLOSED):
                self._end("abort")
            else:
                self.fail(internal_error("the broker made a mistake; see its log"))
        except Exception:
            self._end("abort")

    def force_close(self, text: str) -> None:
        """320: an operator, or a node that stops."""
        self.fail(connection_forced(text))

    def dismiss(self) -> None:
        self.dismissed = True
        self.review_reading()

    @property
    def owed(self) -> bool:
        return any(channel.owed for channel in self.channels.values() if not channel.closing)

    def _closing(self, payload: bytes) -> None:
        if payload[:4] == b"\x00\x0a\x00\x33":
            self._end("flush")
        elif payload[:4] == b"\x00\x0a\x00\x32":
            self.send(0, methods.ConnectionCloseOk())

    def _leave(self) -> None:
        """The client closes: its exclusive queues are gone, for clients of all nodes, when it reads close-ok."""
        if self.exclusive_queues:
            self.state = State.CLOSING
            self._closed_at_ms = self.node.now_ms
            self.reading = True
            self._release(self._left)
        else:
            self._release()
            self._left()

    def _left(self) -> None:
        if not self.ended() and self.id in self.node.clients:
            self.send(0, methods.ConnectionCloseOk())
            self._end("flush")

    def _end(self, how: str) -> None:
        self.state = State.CLOSED
        self.ending = how
        self.node.sending[self] = None

    def lost(self, now_ms: int) -> None:
        """The socket is gone, whoever closed it."""
        self.node.now_ms = now_ms
        self.state = State.CLOSED
        self._release()
        self.node.partial_bytes -= self.partial_bytes
        self.partial_bytes = 0
        self.out.take()
        if self.node.clients.pop(self.id, None) is not None:
            leave(self.access)
        self.node.sending.pop(self, None)
        self.backpressure.leave()

    def _release(self, then: Callable[[], None] = lambda: None) -> None:
        """All that the connection held goes back: unacknowledged messages, consumers, exclusive queues. `then` is
        called when the queues are gone, if it had any."""
        until = self.node.labour.done + STEPS_AT_ONCE
        for channel in tuple(self.channels.values()):
            try:
                channel.end(counted=True, until=until)
            except Exception as error:  # others still get what is theirs
                self.node.log.crashed(self.peer, error)
            channel.parked = None  # what waited there is never taken up
            self.channel_gone(channel)
        self.channels.clear()
        self.parked_bytes = 0
        if self.exclusive_queues:
            self.exclusive_queues = False
            self.node.remove_connection(self.id, then)

    def channel_gone(self, channel: Channel) -> None:
        """It is over, and so is what it counted for."""
        session_ended(self.access, channel)

    def rights_renewed(self) -> None:
        """Another token has come for the same user: nothing that was allowed by the old one is remembered."""
        for channel in self.channels.values():
            channel.publisher.routes.clear()
        self.review_rights()

    def review_rights(self) -> None:
        """The user or its permissions changed. A deleted user's connection ends, even if the name is used again."""
        if not self.access.by_token and self.node.map.user(self.user) is None:
            self.force_close(f"user '{self.user}' is deleted")
            return
        for channel in self.channels.values():
            channel.review_rights()

    def vhost_deleted(self, name: str) -> None:
        if self.vhost is not None and self.vhost.name == name:
            self.force_close(f"vhost '{name}' is deleted")

    # -- output, flow, time -----------------------------------------------------------------------------------

    def send(self, channel: int, method: Method) -> None:
        self.out.method(channel, methods.encode(method))
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

    def mark_consumers(self) -> None:
        """There is room in the buffer again."""
        for channel in self.channels.values():
            for subscription in channel.consumers.values():
                subscription.queue.ring.mark()

    def alarmed(self) -> None:
        """amqp-rules 5.2: connection.blocked goes once to publishing connections, unblocked when all alarms clear."""
        alarms = self.backpressure.alarms
        blocked = bool(alarms)
        if blocked != self._blocked_sent and self.state is State.OPEN:
            self._blocked_sent = blocked
            if self.capabilities.get("connection.blocked") is True:
                if blocked:
                    self.send(0, methods.ConnectionBlocked("low on " + " and ".join(alarms)))
                else:
                    self.send(0, methods.ConnectionUnblocked())
        if not blocked:
            self.backpressure.fed.clear()
        if not self.node.alarms:
            self.mark_consumers()  # readers of streams that wait for memory go on
        self.review_reading()

    def review_reading(self) -> None:
        """Whether the socket should be read: not while blocked, in CHECKING, with a backlog or a full output buffer.
        Nor without a majority: commands would act on metadata that may be stale."""
        blocked = self.backpressure.holds or self.dismissed or MINORITY in self.node.alarms
        reading = (
            not (blocked and self.state is State.OPEN)
            and self.state is not State.CHECKING
            and self.parked_bytes < PARKED_BYTES_MAX
            and not self.out.paused
            and not self.rest
        )
        if reading != self.reading:
            self.reading = reading
            self._last_heard_ms = self.node.now_ms
            self.node.sending[self] = None

    def tick(self, now_ms: int, wall_ms: int = 0) -> None:
        """Heartbeats and deadlines; called about twice a second. `wall_ms`: the wall clock, for the expiry of a token;
        0: the node's own."""
        options = self.node.options
        if self.decoder.heard:
            self.decoder.heard = False
            self._last_heard_ms = now_ms
        if self.state is State.CLOSED:
            return
        if self.paused_since_ms and now_ms - self.paused_since_ms > options.stalled_write_s * 1000:
            self.node.log_cut(self, f"its socket took nothing for {options.stalled_write_s:g} s")
            self._end("abort")
        elif self.state is State.CLOSING:
            if now_ms - self._closed_at_ms > options.close_timeout_s * 1000:
                self._end("abort")
        elif self.state is not State.OPEN:
            if now_ms - self.opened_at_ms > options.handshake_timeout_s * 1000:
                self.node.log_cut(self, f"no connection.open within {options.handshake_timeout_s:g} s")
                self._end("abort")
        elif self.heartbeat_s:
            self._beat(now_ms)
        if self.state is State.OPEN and 0 < self.access.until_ms <= (wall_ms or now_ms):
            self.force_close(f"the token of user '{self.user}' is over")
        if self.state is State.OPEN and not self.looks:
            look(self, deque(self.channels.values()), now_ms)

    def _beat(self, now_ms: int) -> None:
        """amqp-rules 5.2: send every timeout / 2, any traffic counts, two misses close; not while blocked."""
        if now_ms - self._last_sent_ms >= self.heartbeat_s * 500 - TICK_MS:
            self.out.raw(HEARTBEAT)
            self.node.sending[self] = None
        if not self.reading:
            self._last_heard_ms = now_ms
        elif now_ms - self._last_heard_ms > self.heartbeat_s * 2000:
            self.node.log_cut(self, f"missed heartbeats, timeout {self.heartbeat_s} s")
            self._end("abort")


_HANDLERS: Final[dict[State, tuple[type[Method], Callable[[Connection, Any], None]]]] = {
    State.START: (methods.ConnectionStartOk, Connection._start_ok),
    State.SECURE: (methods.ConnectionSecureOk, Connection._secure_ok),
    State.TUNE: (methods.ConnectionTuneOk, Connection._tune_ok),
    State.VHOST: (methods.ConnectionOpen, Connection._open),
    State.OPEN: (methods.ConnectionUpdateSecret, Connection._update_secret),
}
"""The legal method on channel 0 in each state, beside connection.close."""


def open_connection(node: Node, accepted: Accepted) -> Connection:
    """0-9-1 as a front (`broker.fronts.opening.Front`)."""
    return Connection(node, accepted.peer, accepted.loopback, accepted.at_ms, accepted.identity)
