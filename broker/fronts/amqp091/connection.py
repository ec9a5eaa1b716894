"""One client connection: bytes in, bytes out, from the protocol header to the last close-ok.

    HEADER -> START -> (SECURE) -> CHECKING -> TUNE -> VHOST -> OPEN -> CLOSING -> CLOSED

Each state has its legal methods (`_HANDLERS`); anything else is 503, a frame on a channel other than 0 before OPEN is
504. CHECKING waits for the node to verify a password off the loop; nothing is read meanwhile. CLOSING means that
connection.close was sent, or was received and its close-ok waits for the end of exclusive queues: all but close and
close-ok is ignored (AMQP 0-9-1, connection.close).

What a client does wrong ends its channel or its connection, with the code of amqp-rules 5.1, and nothing else. What
connections of all protocols have in common is `fronts.client_connection`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.access.authorization import Authorization
from clusterbroker.broker.access.errors import Refusal
from clusterbroker.broker.access.sign_in import check_session, enter, session_began
from clusterbroker.broker.access.virtual_exchanges import only_asks
from clusterbroker.broker.fronts.amqp091 import handshake
from clusterbroker.broker.fronts.amqp091.channel import Channel
from clusterbroker.broker.fronts.amqp091.dividing import look, take
from clusterbroker.broker.fronts.amqp091.handlers import HANDLERS
from clusterbroker.broker.fronts.amqp091.reply_codes import amqp_error
from clusterbroker.broker.fronts.amqp091.state import State
from clusterbroker.broker.fronts.client_connection import Cause, ClientConnection
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
PARKED_BYTES_MAX: Final = 1 << 20
"""Of events that wait in parked channels; then the socket is not read. An event counts at least 1 KiB."""


class Connection(ClientConnection):
    """The core of one connection."""

    CHECKING, OPEN, CLOSING, CLOSED = State.CHECKING, State.OPEN, State.CLOSING, State.CLOSED
    OPENING_METHOD = "connection.open"
    HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"

    __slots__ = (
        "_blocked_sent", "_held", "capabilities", "channel_max", "channels", "client_properties", "divided",
        "heartbeat_s", "looks", "parked_bytes", "rest", "until",
    )  # fmt: skip
    state: State
    channels: dict[int, Channel]
    heartbeat_s: int

    def __init__(self, node: Node, accepted: Accepted) -> None:
        decoder = FrameDecoder(FRAME_MIN_BYTES, node.options.message_bytes_max)
        self.channels = {}
        self.client_properties: dict[str, Any] = {}
        self.capabilities: dict[str, Any] = {}
        self.channel_max = 0
        self.heartbeat_s = 0
        self.rest: deque[Any] | None = None  # events that wait for the node's next turn (`dividing`)
        self.looks = False  # some of its channels still look in later turns for what is late
        self.divided: Published | None = None
        self.until = 0  # when the node has done so much (`Labour.done`), what is left of a batch waits
        self.parked_bytes = 0
        self._held: list[Any] = []  # came while the password was checked
        self._blocked_sent = False
        super().__init__(node, accepted, State.HEADER, decoder, OutBuffer(FRAME_MIN_BYTES))

    def __repr__(self) -> str:
        return f"<Connection {self.id} {self.peer} {self.state.name}>"

    @property
    def vhost(self) -> VirtualHost | None:
        """None before connection.open."""
        return self.access.entered

    def rows(self, row: ConnectionRow) -> Iterator[AnyRow]:
        # a node that tells nobody need not know how
        from clusterbroker.broker.fronts.amqp091.rows import rows_of

        return rows_of(self, row)

    # -- bytes in ---------------------------------------------------------------------------------------------

    def feed(self, data: bytes | bytearray | memoryview, now_ms: int) -> None:
        if self.state is State.HEADER:
            data = self._header(bytes(data))
        if data and self.ending is None:
            take(self, self.decoder.feed(data, now_ms))

    def new_decoder(self) -> FrameDecoder:
        return FrameDecoder(FRAME_MIN_BYTES)

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
        self.end("flush")
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
        if self.ending is None:
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

    # -- methods of channel 0 ---------------------------------------------------------------------------------

    def _method(self, method: Method) -> None:
        kind = type(method)
        if kind is methods.ConnectionClose:
            self.leave()
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
            if self.ending is None:
                self.handle(event)
        self.review_reading()

    def refused(self, text: str) -> None:
        """amqp-rules 5.1: connection.close for a refused login only with capability authentication_failure_close."""
        if self.capabilities.get("authentication_failure_close") is True:
            self.fail(AmqpError(ReplyCode.ACCESS_REFUSED, text))
        else:
            self.end("flush")

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
            self.end("flush")
            return
        self.release()
        self.begin_closing()
        self.send(0, methods.ConnectionClose(int(error.code), error.reply_text, error.class_id, error.method_id))
        if error.code == ReplyCode.FRAME_ERROR or self.decoder.failed:
            self.end("flush")  # the byte stream can no longer be read: there is no close-ok to wait for

    def fail_for(self, cause: Cause, text: str) -> None:
        self.fail(_FAULTS[cause](text))

    def say_closed(self) -> None:
        self.send(0, methods.ConnectionCloseOk())

    def _closing(self, payload: bytes) -> None:
        if payload[:4] == b"\x00\x0a\x00\x33":
            self.end("flush")
        elif payload[:4] == b"\x00\x0a\x00\x32":
            self.say_closed()

    def end_channel(self, channel: Channel, until: int) -> None:
        try:
            channel.end(counted=True, until=until)
        finally:
            channel.parked = None  # what waited there is never taken up

    def released(self) -> None:
        self.channels.clear()
        self.parked_bytes = 0

    def rights_renewed(self) -> None:
        """Another token has come for the same user: nothing that was allowed by the old one is remembered."""
        for channel in self.channels.values():
            channel.publisher.routes.clear()
        self.review_rights()

    # -- output, flow, time -----------------------------------------------------------------------------------

    def send(self, channel: int, method: Method) -> None:
        self.out.method(channel, methods.encode(method))
        self.node.sending[self] = None

    def mark_consumers(self) -> None:
        """There is room in the buffer again."""
        for channel in self.channels.values():
            for subscription in channel.consumers.values():
                subscription.queue.ring.mark()

    def hold(self, alarms: list[str]) -> None:
        """amqp-rules 5.2: connection.blocked goes once to publishing connections, unblocked when all alarms clear."""
        blocked = bool(alarms)
        if blocked != self._blocked_sent and self.state is State.OPEN:
            self._blocked_sent = blocked
            if self.capabilities.get("connection.blocked") is True:
                if blocked:
                    self.send(0, methods.ConnectionBlocked("low on " + " and ".join(alarms)))
                else:
                    self.send(0, methods.ConnectionUnblocked())

    @property
    def is_blocked(self) -> bool:
        return self.backpressure.holds or super().is_blocked

    @property
    def waits(self) -> bool:
        return bool(self.rest) or self.parked_bytes >= PARKED_BYTES_MAX

    @property
    def beat_ms(self) -> int:
        """amqp-rules 5.2: half of the time-out that was agreed on; two misses close."""
        return self.heartbeat_s * 500

    def silent(self) -> None:
        self.cut(f"missed heartbeats, timeout {self.heartbeat_s} s")

    def look(self, now_ms: int) -> None:
        if not self.looks:
            look(self, deque(self.channels.values()), now_ms)


_HANDLERS: Final[dict[State, tuple[type[Method], Callable[[Connection, Any], None]]]] = {
    State.START: (methods.ConnectionStartOk, Connection._start_ok),
    State.SECURE: (methods.ConnectionSecureOk, Connection._secure_ok),
    State.TUNE: (methods.ConnectionTuneOk, Connection._tune_ok),
    State.VHOST: (methods.ConnectionOpen, Connection._open),
    State.OPEN: (methods.ConnectionUpdateSecret, Connection._update_secret),
}
"""The legal method on channel 0 in each state, beside connection.close."""

_FAULTS: Final[dict[Cause, Callable[[str], AmqpError]]] = {
    Cause.FORCED: connection_forced,
    Cause.MISTAKE: internal_error,
    Cause.RESOURCES: resource_error,
    Cause.UNAUTHORIZED: connection_forced,
}
