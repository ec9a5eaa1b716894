"""One client connection of AMQP 1.0: bytes in, bytes out, from the protocol header to the last close (2.4, 5.3).

    HEADER -> SASL -> CHECKING -> HEADER2 -> OPENING -> OPENED -> CLOSE_SENT -> CLOSED

    state       event                           next, effect
    HEADER      AMQP 3 1 0 0                    SASL: the same header, sasl-mechanisms
                AMQP 0 1 0 0                    OPENING, if a client may be anonymous; else the SASL header, and the end
    SASL        sasl-init                       CHECKING; what comes meanwhile waits
    CHECKING    (verdict)                       HEADER2: outcome 0; or outcome 1, and the end
    HEADER2     AMQP 0 1 0 0                    OPENING: the same header
    OPENING     open                            OPENED: our open
    OPENED      begin, and what sessions take   as `session` says
                close                           CLOSED: close
    any         an error of ours to tell        CLOSE_SENT: close with it; all but close is passed over

Anything else is `amqp:connection:framing-error` for bytes, `amqp:not-allowed` for their order. An error before our open
is told by open and close.

What a client does wrong ends its link, its session or its connection, and nothing else. The socket is read as long as
the node has a lease: publishers are held by credit (`sender_link`). What connections of all protocols have in common is
`fronts.client_connection`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from sys import intern
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.access.errors import Refusal
from clusterbroker.broker.access.sign_in import Outcome, by_identity, check_session, session_began
from clusterbroker.broker.fronts.amqp10 import opening, sasl, sole
from clusterbroker.broker.fronts.amqp10.conditions import described
from clusterbroker.broker.fronts.amqp10.expiry import Event
from clusterbroker.broker.fronts.amqp10.portions import Portions
from clusterbroker.broker.fronts.amqp10.ports import NOTHING
from clusterbroker.broker.fronts.amqp10.session import Session
from clusterbroker.broker.fronts.amqp10.suspended import NOBODY
from clusterbroker.broker.fronts.client_connection import Cause, ClientConnection
from clusterbroker.broker.wire.amqp091.codec import OutBuffer
from clusterbroker.broker.wire.amqp10 import frames
from clusterbroker.broker.wire.amqp10.codec import Disposed, FrameDecoder, FrameReceived, HeaderReceived, Transferred
from clusterbroker.broker.wire.amqp10.errors import (
    CONNECTION_FORCED,
    FRAMING_ERROR,
    INTERNAL_ERROR,
    RESOURCE_LIMIT,
    UNAUTHORIZED,
    Amqp10Error,
    ConnectionFault10,
    SessionError,
    decode_error,
    framing_error,
    not_allowed,
)
from clusterbroker.broker.wire.amqp10.fitting import fitted
from clusterbroker.broker.wire.amqp10.performatives import (
    Begin,
    Close,
    Composite,
    End,
    Open,
    SaslInit,
    SaslOutcome,
    decode,
)
from clusterbroker.broker.wire.amqp10.types import DecodeError

if TYPE_CHECKING:
    from clusterbroker.broker.fronts.amqp10.dynamic import DynamicNode
    from clusterbroker.broker.node.clients import Accepted
    from clusterbroker.broker.node.core import Node
    from clusterbroker.broker.stats.rows import AnyRow, ConnectionRow

FRAME_BYTES_EARLY: Final = 32 << 10
"""Of frames before the client's open; a token in a SASL response may be long."""


class State(Enum):
    HEADER = "header"
    SASL = "sasl"
    CHECKING = "checking"
    HEADER2 = "header2"
    OPENING = "opening"
    OPENED = "opened"
    CLOSE_SENT = "close_sent"
    CLOSED = "closed"


class Connection(ClientConnection):
    """The core of one connection."""

    CHECKING, OPEN, CLOSING, CLOSED = State.CHECKING, State.OPENED, State.CLOSE_SENT, State.CLOSED
    OPENING_METHOD = "open"
    HEARTBEAT = frames.EMPTY

    __slots__ = (
        "_held", "_opened", "container_id", "dynamic_nodes", "idle_ms", "peer_channel_max", "portions", "properties",
        "sessions", "suspended",
    )  # fmt: skip
    state: State

    def __init__(self, node: Node, accepted: Accepted) -> None:
        decoder = FrameDecoder(FRAME_BYTES_EARLY, node.options.message_bytes_max)
        self.dynamic_nodes: dict[str, DynamicNode] = NOTHING
        self.sessions: dict[int, Session] = {}
        """By the client's channel."""
        self.suspended = NOBODY  # by sessions that have ended
        self.container_id = ""
        self.properties: dict[str, Any] = NOTHING
        self.peer_channel_max = 0
        self.idle_ms = 0
        """The client's idle-time-out; 0: it has none."""
        self.portions = Portions(self)
        self._held: list[Any] | None = None  # came while the password was checked
        self._opened = False  # our open was sent
        super().__init__(node, accepted, State.HEADER, decoder, OutBuffer(frames.FRAME_MIN_BYTES))

    def __repr__(self) -> str:
        return f"<Connection {self.id} {self.peer} AMQP 1.0 {self.state.name}>"

    @property
    def channels(self) -> dict[int, Session]:
        return self.sessions

    @property
    def heartbeat_s(self) -> int:
        return self.node.options.heartbeat_s

    def rows(self, row: ConnectionRow) -> Iterator[AnyRow]:
        # a node that tells nobody need not know how
        from clusterbroker.broker.fronts.amqp10.rows import rows_of

        return rows_of(self, row)

    # -- bytes in ---------------------------------------------------------------------------------------------

    def feed(self, data: bytes | bytearray | memoryview, now_ms: int) -> None:
        self.portions.take(self.decoder.feed(data, now_ms))

    def new_decoder(self) -> FrameDecoder:
        return FrameDecoder(frames.FRAME_MIN_BYTES)

    def handle(self, event: Any) -> None:
        """One event of the decoder."""
        try:
            if self.state is State.CHECKING:
                self._held = self._held or []
                self._held.append(event)
            elif isinstance(event, Amqp10Error):
                raise event
            elif self.state is State.CLOSE_SENT:
                self._closing(event)
            elif type(event) is HeaderReceived:
                self._header(event.data)
            elif self.state in (State.HEADER, State.HEADER2):
                raise framing_error("a frame before the protocol header")
            elif type(event) is FrameReceived:
                self._frame(event)
            else:
                self._fast(event)
        except ConnectionFault10 as fault:
            self.fail(fault)
        except SessionError as error:
            session = self._session_of(event)
            if session is None:
                self.fail(ConnectionFault10(error.condition, error.text))
            else:
                session.fail(error)

    def _session_of(self, event: Any) -> Session | None:
        return self.sessions.get(event.link.channel if isinstance(event, Transferred) else event.channel)

    def _fast(self, event: Transferred | Disposed) -> None:
        session = self._session_of(event)
        if self.state is not State.OPENED or session is None:
            raise not_allowed("a transfer or disposition outside of a session")
        if session.closing:
            return
        if isinstance(event, Disposed):
            session.disposed(event)
        else:
            session.transferred(event)

    def _header(self, data: bytes) -> None:
        if self.state is State.HEADER and data == frames.SASL_HEADER:
            self.state = State.SASL
            self.out.raw(frames.SASL_HEADER)
            self.out.raw(frames.frame(0, sasl.offered(self), frames.SASL))
        elif self.state is State.HEADER and data == frames.HEADER and self.node.options.anonymous_user:
            self._answered(by_identity(self.node, self, self.node.options.anonymous_user, "ANONYMOUS"), told=False)
        elif self.state is State.HEADER2 and data == frames.HEADER:
            self.state = State.OPENING
            self.out.raw(frames.HEADER)
        elif self.state in (State.HEADER, State.HEADER2):
            self.out.raw(frames.SASL_HEADER if self.state is State.HEADER else frames.HEADER)
            self.end("flush")
        else:
            raise framing_error("a protocol header in the middle of a connection")

    def _frame(self, event: FrameReceived) -> None:
        try:
            performative, end = decode(event.payload)
        except DecodeError as error:
            raise decode_error(str(error)) from None
        if event.sasl is not (self.state is State.SASL):
            raise not_allowed(f"{performative.NAME} in state {self.state.value}")
        if event.sasl:
            self._sasl(performative)
        elif self.state is State.OPENING:
            if not isinstance(performative, Open) or event.channel:
                raise not_allowed(f"{performative.NAME} before open, or open on channel {event.channel}")
            self._open(performative)
        elif isinstance(performative, Close):
            self.leave()
        elif isinstance(performative, Open):
            raise not_allowed("a second open")
        else:
            self._to_session(event, performative, end)

    def _to_session(self, event: FrameReceived, performative: Composite, end: int) -> None:
        session = self.sessions.get(event.channel)
        if session is None and isinstance(performative, Begin):
            self._begin(event.channel, performative)
        elif session is None:
            raise not_allowed(f"{performative.NAME} on channel {event.channel}, which is not mapped")
        elif isinstance(performative, Begin):
            raise framing_error(f"begin on channel {event.channel}, which is mapped")
        else:
            session.receive(performative, event.payload[end:])

    # -- signing in -------------------------------------------------------------------------------------------

    def _sasl(self, performative: Composite) -> None:
        if not isinstance(performative, SaslInit):
            raise not_allowed(f"{performative.NAME} before sasl-init")
        self.mechanism = intern(str(performative.mechanism))
        self.state = State.CHECKING
        self.review_reading()
        sasl.login(self, performative, lambda: self.state is State.CHECKING, self._answered)

    def _answered(self, outcome: Outcome | None, told: bool = True) -> None:
        """The verdict. `told`: by a SASL outcome."""
        if outcome is None or outcome.access is None:
            if told:
                self.out.raw(frames.frame(0, SaslOutcome(code=sasl.AUTH), frames.SASL))
            else:
                self.out.raw(frames.SASL_HEADER)
            self.end("flush")
            return
        self.access = outcome.access
        if told:
            self.out.raw(frames.frame(0, SaslOutcome(code=sasl.OK), frames.SASL))
            self.state = State.HEADER2
        else:
            self.mechanism = "ANONYMOUS"
            self.out.raw(frames.HEADER)
            self.state = State.OPENING
        self.node.sending[self] = None
        self._go_on()

    def _go_on(self) -> None:
        held, self._held = self._held, None  # what came meanwhile
        self.portions.take(held or ())
        self.review_reading()

    # -- open and close ---------------------------------------------------------------------------------------

    def _open(self, performative: Open) -> None:
        node, options = self.node, self.node.options
        opening.check(performative, node.map.level)
        self.container_id = performative.container_id
        self.properties = dict(performative.properties) if performative.properties else NOTHING
        self.peer_channel_max = int(performative.channel_max)
        self.idle_ms = int(performative.idle_time_out or 0)
        self.out.frame_max = min(performative.max_frame_size, options.frame_max_bytes)
        opening.enter_vhost(self.access, performative.hostname or "", self.trusted)
        if sole.is_asked(node, performative):
            self.state = State.CHECKING
            self.review_reading()
            sole.hold(self, performative, lambda: self.state is State.CHECKING, self._enter)
        else:
            self._enter(performative)

    def _enter(self, told: Open, fault: ConnectionFault10 | None = None) -> None:
        """`fault`: another connection is the sole one of its container."""
        self.state = State.OPENED
        self._say_open(told, fault)
        if fault is not None:
            self.fail(fault)
            return
        self.decoder.frame_max = self.node.options.frame_max_bytes
        self._go_on()

    def _say_open(self, told: Open | None = None, fault: ConnectionFault10 | None = None) -> None:
        self._opened = True
        self.send(0, opening.own(self.node, told, fault))

    def in_turns(self, step: Callable[[], bool]) -> None:
        """Calls `step` now and in later turns until it returns True; nothing else is taken up meanwhile."""
        self.portions.in_turns(step)

    def fail(self, fault: ConnectionFault10) -> None:
        """Closes the connection with the error; the client's close is waited for."""
        if self.state in (State.CLOSE_SENT, State.CLOSED):
            return
        self.node.log_fault(self, fault, 0)
        if self.state in (State.HEADER, State.SASL, State.CHECKING, State.HEADER2):
            self.end("flush")  # nothing can be told before open
            return
        self.release()
        if not self._opened:
            self._say_open()
        self.begin_closing()
        self.send(0, Close(error=described(fault)))
        if fault.condition == FRAMING_ERROR or self.decoder.failed:
            self.end("flush")  # the byte stream can no longer be read: there is no close to wait for

    def fail_for(self, cause: Cause, text: str) -> None:
        self.fail(ConnectionFault10(_CONDITIONS[cause], text))

    def say_closed(self) -> None:
        self.send(0, Close())

    def _closing(self, event: Any) -> None:
        if type(event) is not FrameReceived or event.sasl:
            return
        try:
            performative, _ = decode(event.payload)
        except DecodeError:
            return
        if isinstance(performative, Close):
            self.end("flush")

    def end_channel(self, channel: Session, until: int) -> None:
        if not channel.closing:
            channel.end(counted=True, until=until)

    def released(self) -> None:
        for left in self.suspended.values():
            left.went(Event.CLOSE)

    def forget_everywhere(self, then: Callable[[], None]) -> None:
        """Its container is free."""
        self.node.sole_connections.release(self.id, then)

    # -- sessions ---------------------------------------------------------------------------------------------

    def _begin(self, channel: int, begin: Begin) -> None:
        if channel >= opening.SESSIONS_MAX:
            raise framing_error(f"channel {channel} is above the channel-max of {opening.SESSIONS_MAX - 1}")
        taken = {session.outgoing_number for session in self.sessions.values()}
        number = (
            channel if channel not in taken else next(each for each in range(opening.SESSIONS_MAX) if each not in taken)
        )
        if number > self.peer_channel_max:
            raise not_allowed(f"more sessions than the channel-max of {self.peer_channel_max} has channels for")
        session = Session(self, channel, number, begin)
        answer = session.begun(begin)
        try:
            check_session(self.access)
        except Refusal as refusal:
            self.send(number, answer)
            error = SessionError(RESOURCE_LIMIT, refusal.text)
            session.closing = True
            self.sessions[channel] = session
            session_began(self.access)
            self.send(number, End(error=described(error)))
            return
        session_began(self.access)
        self.sessions[channel] = session
        self.send(number, answer)

    def channel_gone(self, channel: Session) -> None:
        if self.sessions.get(channel.number) is channel:
            del self.sessions[channel.number]
            super().channel_gone(channel)

    # -- what node and shell tell -----------------------------------------------------------------------------

    def review_rights(self) -> None:
        if self.state is State.OPENED:
            super().review_rights()

    def hold(self, alarms: list[str]) -> None:
        """Publishers wait for credit."""
        if self.node.alarms or alarms:
            for session in self.sessions.values():
                session.withhold_credit()

    @property
    def holds_publishers(self) -> bool:
        waits = self.backpressure.holds or self.node.alarms or self.node.throttled or self.dismissed
        return bool(waits) or self.state is not State.OPENED

    def review_reading(self) -> None:
        super().review_reading()
        if self.state is State.OPENED and not self.backpressure.holds:
            for session in self.sessions.values():
                session.review_credit()

    @property
    def waits(self) -> bool:
        return self.portions.wait or any(session.transactions.order.is_full for session in self.sessions.values())

    def send(self, channel: int, performative: Composite) -> None:
        self.out.raw(fitted(channel, performative, self.out.frame_max))
        self.node.sending[self] = None

    def mark_consumers(self) -> None:
        """There is room in the buffer again."""
        for session in self.sessions.values():
            session.mark_consumers()

    @property
    def beat_ms(self) -> int:
        """Half of the client's time-out; silence for twice of ours ends the connection (2.4.5)."""
        return self.idle_ms // 2

    def silent(self) -> None:
        self.fail(ConnectionFault10(RESOURCE_LIMIT, f"nothing came for {2 * self.heartbeat_s} s"))

    def look(self, now_ms: int) -> None:
        self.portions.look(tuple(self.sessions.values()), now_ms)


_CONDITIONS: Final = {
    Cause.FORCED: CONNECTION_FORCED,
    Cause.MISTAKE: INTERNAL_ERROR,
    Cause.RESOURCES: RESOURCE_LIMIT,
    Cause.UNAUTHORIZED: UNAUTHORIZED,
}
