"""A connection with one channel, for a mover: methods in Python, messages in bulk (waits).

Deliveries go through a `Rewriter` when there is one, read by read; all else is a method. The frames of a mover are
written as they are. Nothing reconnects here: what is lost is lost, and `why` says why.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

from clusterbroker.broker.bridges.errors import Looped, Malformed, Unfit
from clusterbroker.broker.bridges.places import Place
from clusterbroker.broker.bridges.rewriting import Parcel, Rewriter
from clusterbroker.broker.version import VERSION
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp091.errors import AmqpError
from clusterbroker.broker.wire.amqp091.fields import Table

FRAME_MAX: Final = 131072
FRAME_MIN: Final = 4096
CONTENT_BYTES_MAX: Final = 128 << 20
"""Of a message that is taken, where no setting of a node holds; RabbitMQ's limit until 4.0."""
PRODUCT: Final = "clusterbroker"
HEARTBEAT_S: Final = 20
ANSWER_S: Final = 30.0
DIAL_S: Final = 10.0
WRITE_HIGH_BYTES: Final = 4 << 20
_HEAD: Final = struct.Struct(">BHI")
_BEAT: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
_CAPABILITIES: Final[Table] = {
    "publisher_confirms": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}
A = TypeVar("A", bound=m.Method)


class Lost(Exception):
    """The connection, or its channel, is over; the message says why. `code`: of the broker's close; 0 without."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class Refused(Exception):
    """Trying again would be no use: a message that cannot go there, or goes round in circles."""


def _nothing(*_: Any) -> None:
    """Until somebody listens."""


class Channel(asyncio.Protocol):
    """`open`, then `call` and `send`. `lost` is done when it is over."""

    def __init__(self, where: Place, product: str) -> None:
        self.where = where
        self.product = product
        self.server_properties: Table = {}
        self.frame_max = FRAME_MAX
        self.blocked = ""
        """Why the broker takes nothing at the moment (connection.blocked); empty: it does."""
        self.lost: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self.on_parcel: Callable[[Parcel], None] = _nothing
        self.on_method: Callable[[m.Method], None] = _nothing
        self.on_writable: Callable[[bool], None] = _nothing
        self.on_content: Callable[[int, bytes], None] = _nothing
        """Frames of headers (2) and bodies (3), without a rewriter."""
        self.on_blocked: Callable[[], None] = _nothing
        """`blocked` has changed."""
        self._rewriter: Rewriter | None = None
        self._transport: Any = None
        self._answers: deque[asyncio.Future[m.Method]] = deque()
        self._rest = b""
        self._heard_s = 0.0
        self._heartbeat_s = HEARTBEAT_S
        self._timer: asyncio.TimerHandle | None = None
        self._reading = True
        self._opened = False

    @classmethod
    async def open(cls, where: Place, product: str = "clusterbroker", frame_max: int = FRAME_MAX) -> Channel:
        """Raises Lost."""
        loop = asyncio.get_running_loop()
        self = cls(where, f"{product} {VERSION}")
        self.frame_max = frame_max
        try:
            async with asyncio.timeout(DIAL_S):
                context = where.context()
                name = (where.server_name or where.host) if context else None
                await loop.create_connection(
                    lambda: self, where.host or "127.0.0.1", where.port, ssl=context, server_hostname=name
                )
                await self._shake_hands()
        except TimeoutError:
            self.abandon(f"no answer in {DIAL_S:g} s")
        except (OSError, ssl.SSLError) as error:
            self.abandon(str(getattr(error, "strerror", None) or error))
        except BaseException:
            self.abandon("given up")
            raise
        if self.lost.done():
            ended = self.lost.result()
            raise Lost(f"{where}: {ended}", getattr(ended, "code", 0))
        self._opened = True
        return self

    async def _shake_hands(self) -> None:
        started = self._expected()
        self._transport.write(b"AMQP\x00\x00\x09\x01")
        try:
            start = await started
            if isinstance(start, m.ConnectionStart):
                self.server_properties = start.server_properties
            response = b"\0" + self.where.user.encode() + b"\0" + self.where.password.encode()
            properties: Table = {"product": self.product, "version": VERSION, "capabilities": _CAPABILITIES}
            tune = await self._call(m.ConnectionStartOk(properties, "PLAIN", response), m.ConnectionTune, 0)
            if 0 < tune.frame_max < FRAME_MIN:
                raise Lost(f"it offers frames of {tune.frame_max} bytes: AMQP has {FRAME_MIN} at least")
            self.frame_max = min(tune.frame_max or self.frame_max, self.frame_max)
            self._heartbeat_s = min(tune.heartbeat or HEARTBEAT_S, HEARTBEAT_S)
            self._write(0, m.ConnectionTuneOk(tune.channel_max, self.frame_max, self._heartbeat_s))
            self._beat()
            await self._call(m.ConnectionOpen(self.where.vhost), m.ConnectionOpenOk, 0)
            await self._call(m.ChannelOpen(), m.ChannelOpenOk, 1)
        except Lost as lost:
            if lost.code == 403:
                text = f"the login of user '{self.where.user}' was refused ({lost})"
                self.lost = asyncio.get_running_loop().create_future()
                self.lost.set_result(Lost(text, 403))
            self.abandon(lost)

    # -- requests ---------------------------------------------------------------------------------------------

    async def call(self, method: m.Method, answer: type[A]) -> A:
        """Sends a method and waits for its answer. Raises Lost."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._call(method, answer, 1)
        except TimeoutError:
            self.abandon(f"no answer to {type(method).__name__} in {ANSWER_S:g} s")
            raise Lost(f"{self.where}: no answer to {type(method).__name__} in {ANSWER_S:g} s") from None

    async def _call(self, method: m.Method, answer: type[A], channel: int) -> A:
        if self.lost.done():
            raise self.lost.result()
        future = self._expected()
        self._write(channel, method)
        got = await future
        if not isinstance(got, answer):
            raise Lost(f"{self.where}: {answer.__name__} was expected, {type(got).__name__} came")
        return got

    def _expected(self) -> asyncio.Future[m.Method]:
        future: asyncio.Future[m.Method] = asyncio.get_running_loop().create_future()
        self._answers.append(future)
        return future

    def send(self, method: m.Method) -> None:
        """Without waiting; an answer goes to `on_method`."""
        self._write(1, method)

    def write(self, frames: bytes | bytearray) -> None:
        """Frames, as they are."""
        if not self.lost.done():
            self._transport.write(frames)

    def _write(self, channel: int, method: m.Method) -> None:
        payload = m.encode(method)
        self.write(_HEAD.pack(1, channel, len(payload)) + payload + b"\xce")

    def rewrite(self, rewriter: Rewriter) -> None:
        """From now on deliveries go through it, to `on_parcel`."""
        self._rewriter = rewriter

    def reading(self, wanted: bool) -> None:
        """Whether the socket is read."""
        if wanted is not self._reading and not self.lost.done():
            self._reading = wanted
            (self._transport.resume_reading if wanted else self._transport.pause_reading)()

    async def close(self) -> None:
        """Says goodbye, so that all that was sent before is taken."""
        if not self.lost.done():
            self.reading(True)
            try:
                async with asyncio.timeout(5):
                    await self._call(m.ConnectionClose(200, "done"), m.ConnectionCloseOk, 0)
            except (Lost, TimeoutError):
                pass
        self.abandon("closed")

    def abandon(self, why: str | Exception, code: int = 0) -> None:
        """Drops the connection without a word."""
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        if self.lost.done():
            return
        error = why if isinstance(why, Exception) else Lost(f"{self.where}: {why}" if self._opened else why, code)
        self.lost.set_result(error)
        for answer in self._answers:
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # nobody may be waiting any more
        self._answers.clear()

    # -- the socket -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        self._heard_s = asyncio.get_running_loop().time()

    def connection_lost(self, exc: Exception | None) -> None:
        self.abandon(str(exc or "the broker closed the socket"))

    def pause_writing(self) -> None:
        self.on_writable(False)

    def resume_writing(self) -> None:
        self.on_writable(True)

    def data_received(self, data: bytes) -> None:
        self._heard_s = asyncio.get_running_loop().time()
        try:
            if self._rewriter is not None:
                parcel = self._rewriter.feed(data)
                if parcel.count:
                    self.on_parcel(parcel)
                for channel, kind, payload in parcel.others:
                    self._frame(kind, channel, payload)
            else:
                self._frames(data)
        except Lost as lost:
            self.abandon(lost)
        except Looped as looped:
            self.abandon(Refused(f"a message goes round in circles: it has been through {looped}"))
        except Unfit as unfit:
            self.abandon(Refused(f"a message cannot go there: {unfit}"))
        except (Malformed, AmqpError) as error:
            self.abandon(f"it does not speak AMQP 0-9-1 ({error})")
        except Exception as error:
            self.abandon(f"what it said could not be read ({type(error).__name__})")

    def _frames(self, data: bytes) -> None:
        octets = self._rest + data if self._rest else data
        at, end = 0, len(octets)
        if octets[:4] == b"AMQP":
            raise Lost("it does not speak AMQP 0-9-1")
        while end - at >= 8:
            kind, channel, size = _HEAD.unpack_from(octets, at)
            if kind not in (1, 2, 3, 8):
                raise Lost("it does not speak AMQP 0-9-1")
            if size + 8 > self.frame_max:
                raise Malformed("a frame larger than was negotiated")
            if end - at < size + 8:
                break
            self._frame(kind, channel, octets[at + 7 : at + 7 + size])
            at += size + 8
        self._rest = octets[at:]

    def _frame(self, kind: int, channel: int, payload: bytes) -> None:
        if kind != 1:
            self.on_content(kind, payload)  # or a heartbeat, or of a return: who listens knows
            return
        method = m.decode(payload)
        match method:
            case m.ConnectionClose() | m.ChannelClose():
                self._write(channel, m.ConnectionCloseOk() if channel == 0 else m.ChannelCloseOk())
                text = f"{method.reply_code} {method.reply_text}"
                raise Lost(f"{self.where}: {text}" if self._opened else text, method.reply_code)
            case m.ConnectionBlocked():
                self.blocked = method.reason or "blocked"
                self.on_blocked()
            case m.ConnectionUnblocked():
                self.blocked = ""
                self.on_blocked()
            case (
                m.BasicAck() | m.BasicNack() | m.BasicReturn() | m.BasicCancel() | m.BasicConsumeOk() | m.BasicQosOk()
                | m.BasicCancelOk() | m.BasicDeliver()
            ):  # fmt: skip
                self.on_method(method)
            case _:
                if self._answers:
                    self._answers.popleft().set_result(method)

    def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        if self._reading and loop.time() - self._heard_s > 2 * self._heartbeat_s:
            self.abandon(f"nothing came for {2 * self._heartbeat_s} s")
            return
        self.write(_BEAT)
        self._timer = loop.call_later(self._heartbeat_s / 2, self._beat)


def is_ours(channel: Channel) -> bool:
    """Whether the broker is one of this program, which knows numbered publishes."""
    return str(channel.server_properties.get("product", "")).lower() == PRODUCT
