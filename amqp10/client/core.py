"""One connection: headers, SASL, open and close, heartbeats, and its sessions (specification 2.4, 5.3).

No socket and no clock: bytes and the present time go in, events and bytes come out.

    core = Connection(options)
    core.start(now)                              the first bytes stand in `take_bytes()`
    for event in core.receive(data, now): ...    after Opened: `core.session()`, `session.attach(link)`
    for event in core.tick(now): ...             at `core.deadline`, for heartbeats and a peer that fell silent
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, TypeAlias

from clusterbroker.amqp10.client.errors import (
    AuthenticationFailed,
    ClientError,
    ConnectionClosed,
    ConnectionLost,
    ProtocolError,
)
from clusterbroker.amqp10.client.frames import Frame, FrameReader, packed
from clusterbroker.amqp10.client.session import Session, SessionEvent
from clusterbroker.broker.wire.amqp10.errors import FRAMING_ERROR
from clusterbroker.broker.wire.amqp10.frames import EMPTY, FRAME_MIN_BYTES, HEADER, SASL, SASL_HEADER
from clusterbroker.broker.wire.amqp10.performatives import (
    Begin,
    Close,
    Composite,
    Error,
    Open,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
)

SASL_OK: Final = 0
SASL_AUTH: Final = 1
SASL_SYS_TEMP: Final = 4
BEATS: Final = 2
"""Empty frames in each idle time-out of the peer."""


@dataclass(frozen=True, slots=True)
class Sasl:
    """A mechanism, and its first and only response."""

    mechanism: str
    response: bytes

    @classmethod
    def plain(cls, user: str, password: str) -> Sasl:
        return cls("PLAIN", f"\0{user}\0{password}".encode())

    @classmethod
    def external(cls) -> Sasl:
        """The certificate of the TLS connection says the user."""
        return cls("EXTERNAL", b"")

    @classmethod
    def anonymous(cls) -> Sasl:
        return cls("ANONYMOUS", b"client")


@dataclass(frozen=True, slots=True)
class Options:
    """What a connection asks for. Sizes in bytes, times in seconds."""

    container_id: str
    sasl: Sasl | None = None
    hostname: str | None = None
    frame_max: int = 128 * 1024
    channel_max: int = 255
    idle_time_out: float = 60.0
    """The peer says something at least that often; 0: never mind."""
    desired_capabilities: tuple[str, ...] = ()
    properties: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """The connection is usable; `open` is the peer's."""

    open: Open


@dataclass(frozen=True, slots=True)
class Closed:
    """The connection is over; `error` None: this side has closed it."""

    error: ClientError | None


Event: TypeAlias = SessionEvent | Opened | Closed
"""What a connection tells, in the order in which it came about."""


class Stage(Enum):
    SASL_HEADER = auto()
    MECHANISMS = auto()
    OUTCOME = auto()
    HEADER = auto()
    OPEN = auto()
    OPENED = auto()
    CLOSING = auto()
    OVER = auto()


class Connection:
    def __init__(self, options: Options) -> None:
        self.options = options
        self.stage = Stage.HEADER if options.sasl is None else Stage.SASL_HEADER
        self.opened: Open | None = None
        """The peer's open."""
        self._reader = FrameReader(options.frame_max)
        self._out: list[bytes] = []
        self._sessions: dict[int, Session] = {}
        self._theirs: dict[int, Session] = {}
        self._heard = self._said = 0.0

    # -- bytes out

    def take_bytes(self) -> bytes:
        """What is to be sent; it is not kept."""
        for session in self._sessions.values():
            session.flush()
        data = b"".join(self._out)
        self._out.clear()
        return data

    def _write(self, channel: int, performative: Composite, payload: bytes = b"") -> None:
        if self.stage is not Stage.OVER:
            self._out.append(packed(channel, performative.encoded(), payload))

    def start(self, now: float) -> None:
        self._heard = self._said = now
        self._out.append(HEADER if self.options.sasl is None else SASL_HEADER)

    def session(self) -> Session:
        """A new session, whose begin is said; `Begun` will tell."""
        channel = next(number for number in range(1 << 16) if number not in self._sessions)
        session = Session(channel, self._write)
        session.frame_max = self.frame_max
        self._sessions[channel] = session
        session.begin()
        return session

    @property
    def frame_max(self) -> int:
        """Of frames that we send."""
        return FRAME_MIN_BYTES if self.opened is None else min(self.opened.max_frame_size, 1 << 20)

    def close(self, error: Error | None = None) -> None:
        """The peer answers, and `Closed` tells."""
        if self.stage in (Stage.OPENED, Stage.OPEN):
            for session in self._sessions.values():
                session.flush()
            self._write(0, Close(error=error))
            self.stage = Stage.CLOSING

    # -- bytes in

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Events in their order. Whatever is wrong is a `Closed`, the last event."""
        if self.stage is Stage.OVER:
            return []
        self._heard = now
        events: list[Event] = []
        try:
            for frame in self._reader.feed(data):
                events += self._take(frame)
        except ClientError as error:
            events += self._fail(error)
        return events

    def _fail(self, error: ClientError) -> list[Event]:
        if isinstance(error, ProtocolError) and self.stage in (Stage.OPENED, Stage.OPEN):
            self.close(Error(condition=FRAMING_ERROR, description=str(error)[:200]))
        return self._over(error)

    def _over(self, error: ClientError | None) -> list[Event]:
        if self.stage is Stage.OVER:
            return []
        self.stage = Stage.OVER
        for session in self._sessions.values():
            session.lost()
        return [Closed(error)]

    def lost(self, why: str) -> list[Event]:
        """The socket is at its end."""
        return self._over(None if self.stage is Stage.CLOSING else ConnectionLost(why))

    def _take(self, frame: Frame) -> list[Event]:
        if frame.header:
            self._header(frame.header)
            return []
        if frame.body is None:
            return []
        if frame.kind == SASL:
            self._sasl(frame.body)
            return []
        return self._performative(frame.channel, frame.body, frame.payload)

    def _header(self, header: bytes) -> None:
        if self.stage is Stage.SASL_HEADER and header == SASL_HEADER:
            self.stage = Stage.MECHANISMS
        elif self.stage is Stage.HEADER and header == HEADER:
            self.stage = Stage.OPEN
            self._open()
        elif header == SASL_HEADER:
            raise AuthenticationFailed("the peer wants SASL: give a user and a password, or another mechanism")
        elif header[:4] == b"AMQP":
            raise ProtocolError(f"the peer speaks AMQP with the header {header.hex(' ')}, not version 1.0")

    def _open(self) -> None:
        options = self.options
        self._write(
            0,
            Open(
                container_id=options.container_id,
                hostname=options.hostname,
                max_frame_size=options.frame_max,
                channel_max=options.channel_max,
                idle_time_out=int(options.idle_time_out * 1000) // BEATS or None,
                desired_capabilities=options.desired_capabilities,
                properties=None if options.properties is None else {**options.properties},
            ),
        )

    def _sasl(self, body: Composite) -> None:
        sasl = self.options.sasl
        assert sasl is not None or self.stage is not Stage.MECHANISMS
        if isinstance(body, SaslMechanisms) and self.stage is Stage.MECHANISMS and sasl is not None:
            if sasl.mechanism not in body.sasl_server_mechanisms:
                offered = ", ".join(body.sasl_server_mechanisms)
                raise AuthenticationFailed(f"the peer offers {offered}, and not {sasl.mechanism}")
            init = SaslInit(sasl.mechanism, sasl.response, self.options.hostname)
            self._out.append(packed(0, init.encoded(), kind=SASL))
            self.stage = Stage.OUTCOME
        elif isinstance(body, SaslChallenge) and self.stage is Stage.OUTCOME:
            self._out.append(packed(0, SaslResponse(b"").encoded(), kind=SASL))
        elif isinstance(body, SaslOutcome) and self.stage is Stage.OUTCOME:
            if body.code != SASL_OK:
                failed = AuthenticationFailed(f"the peer refuses the user, or its password (SASL code {body.code})")
                failed.may_retry = body.code == SASL_SYS_TEMP
                raise failed
            self.stage = Stage.HEADER
            self._out.append(HEADER)
        else:
            raise ProtocolError(f"{body.NAME} came where it has no place")

    def _performative(self, channel: int, body: Composite, payload: bytes) -> list[Event]:
        if isinstance(body, Open) and self.stage in (Stage.OPEN, Stage.CLOSING) and self.opened is None:
            self.opened = body
            if self.stage is Stage.CLOSING:
                return []
            self.stage = Stage.OPENED
            return [Opened(body)]
        if isinstance(body, Close):
            return self._closed(body)
        if self.stage is Stage.CLOSING:
            return []
        if self.stage is not Stage.OPENED:
            raise ProtocolError(f"{body.NAME} came before open")
        if isinstance(body, Begin):
            session = self._sessions.get(-1 if body.remote_channel is None else body.remote_channel)
            if session is None:
                raise ProtocolError("the peer begins a session of its own")
            self._theirs[channel] = session
        else:
            session = self._theirs.get(channel)
            if session is None:
                raise ProtocolError(f"{body.NAME} on channel {channel}, which has no session")
        events: list[Event] = [*session.received(body, payload)]
        if session.over:
            session.end()
            session.lost()
            del self._theirs[channel], self._sessions[session.channel]
        return events

    def _closed(self, close: Close) -> list[Event]:
        if self.stage is not Stage.CLOSING:
            self._write(0, Close())
            return self._over(ConnectionClosed.of(close.error, "the peer closed the connection"))
        error = None if close.error is None else ConnectionClosed.of(close.error, "the peer closed the connection")
        return self._over(error)

    # -- time

    @property
    def is_over(self) -> bool:
        return self.stage is Stage.OVER

    @property
    def _beat(self) -> float | None:
        """Seconds between frames that the peer wants, half of its time-out."""
        if self.opened is None or not self.opened.idle_time_out:
            return None
        return self.opened.idle_time_out / 1000 / BEATS

    @property
    def deadline(self) -> float | None:
        """When `tick` is due."""
        if self.stage is Stage.OVER:
            return None
        times = [self._said + self._beat] if self._beat is not None else []
        if self.options.idle_time_out:
            times.append(self._heard + self.options.idle_time_out)
        return min(times, default=None)

    def wrote(self, now: float) -> None:
        """Bytes were handed to the peer: the next heartbeat has time."""
        self._said = now

    def tick(self, now: float) -> list[Event]:
        if self.options.idle_time_out and now - self._heard >= self.options.idle_time_out:
            return self._over(ConnectionLost(f"the peer was silent for {self.options.idle_time_out:g} s"))
        if self.stage is Stage.OPENED and self._beat is not None and now - self._said >= self._beat:
            self._out.append(EMPTY)
            self._said = now
        return []
