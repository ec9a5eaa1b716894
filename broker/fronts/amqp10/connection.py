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

The core owns an `OutBuffer` and a wish to be read (`reading`); the shell owns the socket. `receive` never raises: what
a client does wrong ends its link, its session or its connection, and nothing else. The socket is read as long as the
node has a lease: publishers are held by credit (`sender_link`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.access.authorization import Authorization
from clusterbroker.broker.access.errors import Refusal
from clusterbroker.broker.access.rights import AccountRights
from clusterbroker.broker.access.sign_in import Outcome, by_identity, check_session, leave, session_began, session_ended
from clusterbroker.broker.fronts.amqp10 import opening, sasl, sole
from clusterbroker.broker.fronts.amqp10.conditions import described
from clusterbroker.broker.fronts.amqp10.expiry import Event
from clusterbroker.broker.fronts.amqp10.portions import Portions
from clusterbroker.broker.fronts.amqp10.session import Session
from clusterbroker.broker.fronts.amqp10.suspended import Suspended
from clusterbroker.broker.node.backpressure import MINORITY, Backpressure
from clusterbroker.broker.routing.labour import STEPS_AT_ONCE
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
TICK_MS: Final = 250
"""Half of the time between two ticks: an empty frame is rather early than late."""
PARTIAL_BYTES: Final = 2 << 20
"""Incomplete deliveries of a connection that counts as no publisher."""


class State(Enum):
    HEADER = "header"
    SASL = "sasl"
    CHECKING = "checking"
    HEADER2 = "header2"
    OPENING = "opening"
    OPENED = "opened"
    CLOSE_SENT = "close_sent"
    CLOSED = "closed"


class Connection:
    """The core of one connection (`broker.node.clients.ClientCore`)."""

    trusted = False

    __slots__ = (
        "_closed_at_ms", "_held", "_last_heard_ms", "_last_sent_ms", "_opened", "access", "backpressure",
        "container_id", "decoder", "dismissed", "dynamic_nodes", "ending", "exclusive_queues", "id", "idle_ms",
        "loopback", "mechanism", "node", "opened_at_ms", "out", "partial_bytes", "paused_since_ms", "peer",
        "peer_channel_max", "peer_identity", "portions", "properties", "reading", "sessions", "state", "suspended",
    )  # fmt: skip

    def __init__(self, node: Node, accepted: Accepted) -> None:
        self.node = node
        self.id = node.connection_id()
        self.peer = accepted.peer
        self.loopback = accepted.loopback
        self.peer_identity = accepted.identity
        """Who the client is by its TLS certificate, for EXTERNAL."""
        self.state = State.HEADER
        self.decoder = FrameDecoder(FRAME_BYTES_EARLY, node.options.message_bytes_max)
        self.out = OutBuffer(frames.FRAME_MIN_BYTES)
        self.exclusive_queues = False
        """It has, or had, queues of its own."""
        self.dynamic_nodes: dict[str, DynamicNode] = {}
        self.sessions: dict[int, Session] = {}
        """By the client's channel."""
        self.suspended: list[Suspended] = []  # by sessions that have ended
        self.reading = True
        self.dismissed = False
        self.ending: str | None = None
        self.access = Authorization(node, self.id, "", AccountRights(node.map, ""))
        self.mechanism = ""
        self.container_id = ""
        self.properties: dict[str, Any] = {}
        self.peer_channel_max = 0
        self.idle_ms = 0
        """The client's idle-time-out; 0: it has none."""
        self.backpressure = Backpressure(node, self)
        self.partial_bytes = self.paused_since_ms = self._closed_at_ms = 0
        self.portions = Portions(self)
        self._held: list[Any] = []  # came while the password was checked
        self._opened = False  # our open was sent
        self.opened_at_ms = accepted.at_ms
        self._last_heard_ms = self._last_sent_ms = accepted.at_ms
        node.clients[self.id] = self

    def __repr__(self) -> str:
        return f"<Connection {self.id} {self.peer} AMQP 1.0 {self.state.name}>"

    @property
    def user(self) -> str:
        return self.access.user

    @property
    def is_open(self) -> bool:
        return self.state is State.OPENED

    @property
    def channels(self) -> dict[int, Session]:
        return self.sessions

    @property
    def undecoded(self) -> bytes:
        return self.decoder.rest

    @property
    def heartbeat_s(self) -> int:
        return self.node.options.heartbeat_s

    def rows(self, row: ConnectionRow) -> Iterator[AnyRow]:
        # a node that tells nobody need not know how
        from clusterbroker.broker.fronts.amqp10.rows import rows_of

        return rows_of(self, row)

    # -- bytes in ---------------------------------------------------------------------------------------------

    def receive(self, data: bytes | bytearray | memoryview, now_ms: int) -> None:
        """Takes `data`, which starts with the decoder's `rest`. Output is in `out`; the node lists the connection."""
        self.node.now_ms = now_ms
        if self.ending is None:
            self.portions.take(self.decoder.feed(data, now_ms))
        if self.decoder.partial_bytes != self.partial_bytes:
            self._holds(self.decoder.partial_bytes)
        if self.out.size:
            self.node.sending[self] = None

    def _holds(self, partial_bytes: int) -> None:
        """Incomplete deliveries take memory as publishes do; the sum of all connections' is bounded."""
        self.node.partial_bytes += partial_bytes - self.partial_bytes
        self.partial_bytes = partial_bytes
        if partial_bytes > PARTIAL_BYTES and not self.backpressure.publishes:
            self.backpressure.begin()
        if self.node.partial_bytes > self.node.options.partial_bytes_max:
            max(self.node.clients.values(), key=lambda one: one.partial_bytes).give_up_partial()

    def give_up_partial(self) -> None:
        """All connections have too much of contents that are not whole, and this one the most."""
        if self.state is State.OPENED:
            text = "incomplete deliveries exceed the node's limit, and this connection has the most"
            self.fail(ConnectionFault10(RESOURCE_LIMIT, text))
        self._end("flush")  # nothing more is read, so no close either
        self.decoder = FrameDecoder(frames.FRAME_MIN_BYTES)
        self.decoder.failed = True
        self._holds(0)

    def handle(self, event: Any) -> None:
        """One event of the decoder."""
        try:
            if self.state is State.CHECKING:
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
            self._end("flush")
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
            self._leave()
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
        self.mechanism = performative.mechanism
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
            self._end("flush")
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
        held, self._held = self._held, []  # what came meanwhile
        self.portions.take(held)
        self.review_reading()

    # -- open and close ---------------------------------------------------------------------------------------

    def _open(self, performative: Open) -> None:
        node, options = self.node, self.node.options
        opening.check(performative, node.map.level)
        self.container_id = performative.container_id
        self.properties = dict(performative.properties or {})
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
            self._end("flush")  # nothing can be told before open
            return
        self._release()
        if not self._opened:
            self._say_open()
        self.state = State.CLOSE_SENT
        self._closed_at_ms = self.node.now_ms
        self.reading = True
        self.send(0, Close(error=described(fault)))
        if fault.condition == FRAMING_ERROR or self.decoder.failed:
            self._end("flush")  # the byte stream can no longer be read: there is no close to wait for

    def crashed(self, error: Exception) -> None:
        """A mistake of the broker: closes this connection, and no other."""
        self.node.log.crashed(self.peer, error)
        try:
            if self.state in (State.CLOSE_SENT, State.CLOSED):
                self._end("abort")
            else:
                self.fail(ConnectionFault10(INTERNAL_ERROR, "the broker made a mistake; see its log"))
        except Exception:
            self._end("abort")

    def force_close(self, text: str) -> None:
        """An operator, or a node that stops."""
        self.fail(ConnectionFault10(CONNECTION_FORCED, text))

    def dismiss(self) -> None:
        self.dismissed = True
        self.review_reading()

    @property
    def owed(self) -> bool:
        return any(session.owed for session in self.sessions.values() if not session.closing)

    def _closing(self, event: Any) -> None:
        if type(event) is not FrameReceived or event.sasl:
            return
        try:
            performative, _ = decode(event.payload)
        except DecodeError:
            return
        if isinstance(performative, Close):
            self._end("flush")

    def _leave(self) -> None:
        """The client closes. When it reads our close, its exclusive queues are gone everywhere, its container free."""
        self.state = State.CLOSE_SENT  # nothing is taken up any more
        self._closed_at_ms = self.node.now_ms
        self.reading = True
        self._release(self._left)

    def _left(self) -> None:
        if self.ending is None and self.id in self.node.clients:
            self.send(0, Close())
            self._end("flush")

    def _end(self, how: str) -> None:
        self.state = State.CLOSED
        self.ending = how
        self.node.sending[self] = None

    def lost(self, now_ms: int) -> None:
        """The socket is gone, whoever closed it."""
        self.node.now_ms = now_ms
        self.state = State.CLOSED
        self.ending = self.ending or "abort"
        self._release()
        self.node.partial_bytes -= self.partial_bytes
        self.partial_bytes = 0
        self.out.take()
        if self.node.clients.pop(self.id, None) is not None:
            leave(self.access)
        self.node.sending.pop(self, None)
        self.backpressure.leave()

    def _release(self, then: Callable[[], None] = lambda: None) -> None:
        """All that the connection held goes back: deliveries, links, exclusive queues. `then()` when all nodes know."""
        until = self.node.labour.done + STEPS_AT_ONCE
        for session in tuple(self.sessions.values()):
            try:
                if not session.closing:
                    session.end(counted=True, until=until)
            except Exception as error:  # others still get what is theirs
                self.node.log.crashed(self.peer, error)
            self.session_gone(session)
        for left in self.suspended:
            left.went(Event.CLOSE)
        had, self.exclusive_queues = self.exclusive_queues, False
        free = partial(self.node.sole_connections.release, self.id, then)
        (partial(self.node.remove_connection, self.id, free) if had else free)()

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

    def session_gone(self, session: Session) -> None:
        """It is over, and so is what it counted for."""
        if self.sessions.get(session.number) is session:
            del self.sessions[session.number]
            session_ended(self.access, session)

    # -- what node and shell tell -----------------------------------------------------------------------------

    def review_rights(self) -> None:
        """The user or its permissions changed. A deleted user's connection ends, even if the name is used again."""
        if self.state is not State.OPENED:
            return
        if not self.access.by_token and self.node.map.user(self.user) is None:
            self.fail(ConnectionFault10(UNAUTHORIZED, f"user '{self.user}' is deleted"))
            return
        for session in tuple(self.sessions.values()):
            session.review_rights()

    def vhost_deleted(self, name: str) -> None:
        entered = self.access.entered
        if entered is not None and entered.name == name:
            self.force_close(f"vhost '{name}' is deleted")

    def alarmed(self) -> None:
        """Publishers wait for credit; a client that only consumes makes room."""
        if not self.backpressure.alarms:
            self.backpressure.fed.clear()
        if not self.node.alarms:
            self.mark_consumers()  # readers of streams that wait for memory go on
        if self.node.alarms or self.backpressure.alarms:
            for session in self.sessions.values():
                session.withhold_credit()
        self.review_reading()

    @property
    def holds_publishers(self) -> bool:
        waits = self.backpressure.holds or self.node.alarms or self.node.throttled or self.dismissed
        return bool(waits) or self.state is not State.OPENED

    def review_reading(self) -> None:
        """Whether the socket should be read: not in CHECKING, with a full output buffer, or while events wait. Nor
        without a majority: what the client asks would act on metadata that may be stale."""
        blocked = self.dismissed or MINORITY in self.node.alarms
        reading = (
            not (blocked and self.state is State.OPENED)
            and self.state is not State.CHECKING
            and not self.out.paused
            and not self.portions.wait
        )
        if reading != self.reading:
            self.reading = reading
            self._last_heard_ms = self.node.now_ms
            self.node.sending[self] = None
        if self.state is State.OPENED and not self.backpressure.holds:
            for session in self.sessions.values():
                session.review_credit()

    def send(self, channel: int, performative: Composite) -> None:
        self.out.raw(fitted(channel, performative, self.out.frame_max))
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
        for session in self.sessions.values():
            session.mark_consumers()

    def tick(self, now_ms: int, wall_ms: int = 0) -> None:
        """Idle time-outs and deadlines; called about twice a second."""
        options = self.node.options
        if self.decoder.heard:
            self.decoder.heard = False
            self._last_heard_ms = now_ms
        if self.state is State.CLOSED:
            return
        if self.paused_since_ms and now_ms - self.paused_since_ms > options.stalled_write_s * 1000:
            self.node.log_cut(self, f"its socket took nothing for {options.stalled_write_s:g} s")
            self._end("abort")
        elif self.state is State.CLOSE_SENT:
            if now_ms - self._closed_at_ms > options.close_timeout_s * 1000:
                self._end("abort")
        elif self.state is not State.OPENED:
            if now_ms - self.opened_at_ms > options.handshake_timeout_s * 1000:
                self.node.log_cut(self, f"no open within {options.handshake_timeout_s:g} s")
                self._end("abort")
        else:
            self._beat(now_ms)
        if self.state is State.OPENED and 0 < self.access.until_ms <= (wall_ms or now_ms):
            self.fail(ConnectionFault10(UNAUTHORIZED, f"the token of user '{self.user}' is over"))
        if self.state is State.OPENED:
            self.portions.look(tuple(self.sessions.values()), now_ms)

    def _beat(self, now_ms: int) -> None:
        """Empty frames each half of the client's time-out; silence for twice of ours ends the connection (2.4.5)."""
        if self.idle_ms and now_ms - self._last_sent_ms >= self.idle_ms // 2 - TICK_MS:
            self.out.raw(frames.EMPTY)
            self.node.sending[self] = None
        if not self.reading:
            self._last_heard_ms = now_ms
        elif self.heartbeat_s and now_ms - self._last_heard_ms > self.heartbeat_s * 2000:
            self.fail(ConnectionFault10(RESOURCE_LIMIT, f"nothing came for {2 * self.heartbeat_s} s"))
