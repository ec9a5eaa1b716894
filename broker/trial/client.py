"""A small AMQP client, for a load that must see everything: each delivery, each confirm, the end of each connection.

One connection, one channel (number 1). It never reconnects: that is the load's business, which writes it down. A
connection over which nothing came for two heartbeats is gone, as the standard says, so that a frozen node is left.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp091.errors import ReplyCode
from clusterbroker.broker.wire.amqp091.fields import Table
from clusterbroker.broker.wire.amqp091.properties import CLASS_ID, Properties, encode

FRAME_MAX: Final = 131072
_HEAD: Final = struct.Struct(">BHI")
_HEARTBEAT: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
_CAPABILITIES: Final[Table] = {
    "publisher_confirms": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}


class ClientLost(Exception):
    """The connection, or its channel, is gone; the message says why."""


class Target(NamedTuple):
    """Where and as whom a client connects."""

    host: str
    port: int
    user: str = "guest"
    password: str = "guest"  # noqa: S105 - every broker's first user
    vhost: str = "/"
    tls: bool = False

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def _nothing(*_: object) -> None:
    """Until somebody listens."""


def target(url: str) -> Target:
    """`amqp://user:password@host:port/vhost`, or amqps. Raises ValueError with what is wrong."""
    parts = urlsplit(url)
    if parts.scheme not in ("amqp", "amqps") or not parts.hostname:
        raise ValueError("a URL is amqp://USER:PASSWORD@HOST:PORT/VHOST, or amqps://...")
    tls = parts.scheme == "amqps"
    return Target(
        parts.hostname,
        parts.port or (5671 if tls else 5672),
        unquote(parts.username or "guest"),
        unquote(parts.password or "guest"),
        unquote(parts.path[1:]) if len(parts.path) > 1 else "/",
        tls,
    )


class Delivery(NamedTuple):
    """A message as it was handed out."""

    tag: int
    flagged: bool
    body: bytes


class Client:
    """An open connection with its channel. `lost` is set when it is over, `why` says what ended it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, heartbeat_s: float) -> None:
        self.lost = asyncio.Event()
        self.why = ""
        self.blocked = False
        self.server_properties: Table = {}
        self._refused = 0  # the code with which the broker closed it
        self.on_confirm: Callable[[bool, int, bool], None] = _nothing
        self.on_deliver: Callable[[Delivery], None] = _nothing
        self._reader = reader
        self._writer = writer
        self._heartbeat_s = heartbeat_s
        self._answer: asyncio.Future[m.Method | Delivery | None] | None = None
        self._content: m.Method | None = None
        self._left = 0
        self._body: list[bytes] = []
        self._published = 0
        self._frame_max = FRAME_MAX
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(cls, where: Target, timeout_s: float = 5.0, heartbeat_s: int = 2) -> Client:
        """Connects and opens the channel. Raises ClientLost."""
        try:
            async with asyncio.timeout(timeout_s):
                context = ssl.create_default_context() if where.tls else None
                reader, writer = await asyncio.open_connection(where.host, where.port, ssl=context)
                self = cls(reader, writer, heartbeat_s)
                try:
                    await self._shake_hands(where, heartbeat_s)
                except BaseException:
                    self.abandon("the handshake failed")
                    raise
                return self
        except (OSError, TimeoutError) as error:
            raise ClientLost(f"{where}: {error or 'no answer in time'}") from error

    async def _shake_hands(self, where: Target, heartbeat_s: int) -> None:
        self._writer.write(b"AMQP\x00\x00\x09\x01")
        started = self._expected()
        self._tasks.append(asyncio.create_task(self._read()))
        start = await started
        if isinstance(start, m.ConnectionStart):
            self.server_properties = start.server_properties
        response = b"\0" + where.user.encode() + b"\0" + where.password.encode()
        properties: Table = {"product": "clusterbroker trial", "capabilities": _CAPABILITIES}
        try:
            tune = await self._call(m.ConnectionStartOk(properties, "PLAIN", response), 0)
        except ClientLost as error:
            if self._refused != ReplyCode.ACCESS_REFUSED:
                raise
            raise ClientLost(f"{where}: the login as user '{where.user}' was refused ({error})") from None
        if not isinstance(tune, m.ConnectionTune):
            raise ClientLost(f"{where}: tune was expected, {type(tune).__name__} came")
        self._frame_max = min(tune.frame_max or FRAME_MAX, FRAME_MAX)
        self._send(0, m.ConnectionTuneOk(tune.channel_max, self._frame_max, heartbeat_s))
        await self._call(m.ConnectionOpen(where.vhost), 0)
        await self.call(m.ChannelOpen())
        self._tasks.append(asyncio.create_task(self._beat()))

    async def call(self, method: m.Method, timeout_s: float = 30.0) -> m.Method | Delivery | None:
        """Sends a method and returns its answer (get-empty: None). Raises ClientLost."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._call(method, 1)
        except TimeoutError:
            self.abandon(f"no answer to {type(method).__name__} in {timeout_s:g} s")
            raise ClientLost(self.why) from None

    def publish(
        self,
        queue: str,
        body: bytes,
        headers: Table | None = None,
        exchange: str = "",
        properties: Properties | None = None,
    ) -> int:
        """Publishes a message, through the default exchange; its number in the confirm sequence. Without `properties`
        it is persistent."""
        self._write(self._message(queue, body, exchange, properties or Properties(headers=headers, delivery_mode=2)))
        self._published += 1
        return self._published

    def publish_all(self, queue: str, body: bytes, tables: Iterable[Table | None], exchange: str = "") -> int:
        """Publishes the body with each of these headers, persistent, in one write; the number of the last one. The same
        table (by identity) several times in a row is encoded once."""
        frames, last, octets = list[bytes](), None, b""
        for table in tables:
            if not octets or table is not last:
                octets = self._message(queue, body, exchange, Properties(headers=table, delivery_mode=2))
            last = table
            frames.append(octets)
        self._write(b"".join(frames))
        self._published += len(frames)
        return self._published

    def _message(self, queue: str, body: bytes, exchange: str, properties: Properties) -> bytes:
        room = self._frame_max - 8
        return (
            _frame(1, 1, m.encode(m.BasicPublish(exchange=exchange, routing_key=queue)))
            + _frame(2, 1, struct.pack(">HHQ", CLASS_ID, 0, len(body)) + encode(properties))
            + b"".join(_frame(3, 1, body[at : at + room]) for at in range(0, len(body), room))
        )

    def acknowledge(self, tag: int, multiple: bool = False) -> None:
        """basic.ack."""
        self._send(1, m.BasicAck(tag, multiple))

    async def close(self) -> None:
        """Says goodbye, so that everything sent before is taken; then `lost` is set."""
        if not self.lost.is_set():
            try:
                async with asyncio.timeout(5):
                    await self._call(m.ConnectionClose(200, "done"), 0)
            except (ClientLost, TimeoutError):
                pass
        self.abandon("closed by its client")
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def abandon(self, why: str) -> None:
        """Drops the connection without a word."""
        if self.lost.is_set():
            return
        self.why = why
        self.lost.set()
        self._writer.transport.abort()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ClientLost(why))
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()

    def _expected(self) -> asyncio.Future[m.Method | Delivery | None]:
        assert self._answer is None or self._answer.done(), "one question at a time"
        self._answer = asyncio.get_running_loop().create_future()
        return self._answer

    async def _call(self, method: m.Method, channel: int) -> m.Method | Delivery | None:
        if self.lost.is_set():
            raise ClientLost(self.why)
        answer = self._expected()
        self._send(channel, method)
        return await answer

    def _send(self, channel: int, method: m.Method) -> None:
        self._write(_frame(1, channel, m.encode(method)))

    def _write(self, octets: bytes) -> None:
        if not self.lost.is_set() and not self._writer.transport.is_closing():
            self._writer.write(octets)

    async def _beat(self) -> None:
        while self._heartbeat_s:
            await asyncio.sleep(self._heartbeat_s / 2)
            self._write(_HEARTBEAT)

    async def _read(self) -> None:
        rest = b""
        try:
            while True:
                async with asyncio.timeout(2 * self._heartbeat_s or None):
                    octets = await self._reader.read(1 << 18)
                if not octets:
                    self.abandon("the node closed the socket")
                    return
                rest = self._frames(rest + octets)
        except TimeoutError:
            self.abandon(f"nothing came for {2 * self._heartbeat_s:g} s")
        except (OSError, ClientLost) as error:
            self.abandon(str(error) or type(error).__name__)

    def _frames(self, octets: bytes) -> bytes:
        at, end = 0, len(octets)
        while end - at >= 8:
            kind, channel, size = _HEAD.unpack_from(octets, at)
            if octets[at : at + 4] == b"AMQP":
                raise ClientLost("the other side does not speak AMQP 0-9-1")
            if end - at < size + 8:
                break
            self._frame(kind, channel, octets[at + 7 : at + 7 + size])
            at += size + 8
        return octets[at:]

    def _frame(self, kind: int, channel: int, payload: bytes) -> None:
        if kind == 1:
            self._method(channel, m.decode(payload))
        elif kind == 2:
            self._left = int.from_bytes(payload[4:12], "big")
            self._body = []
        elif kind == 3:
            self._body.append(payload)
            self._left -= len(payload)
        if kind in (2, 3) and self._left == 0:
            self._complete(b"".join(self._body))

    def _method(self, channel: int, method: m.Method) -> None:
        if isinstance(method, m.BasicAck | m.BasicNack):
            self.on_confirm(isinstance(method, m.BasicAck), method.delivery_tag, method.multiple)
        elif isinstance(method, m.BasicDeliver | m.BasicGetOk):
            self._content = method
        elif isinstance(method, m.ConnectionBlocked | m.ConnectionUnblocked):
            self.blocked = isinstance(method, m.ConnectionBlocked)
        elif isinstance(method, m.ConnectionClose | m.ChannelClose):
            self._send(channel, m.ConnectionCloseOk() if channel == 0 else m.ChannelCloseOk())
            self._refused = method.reply_code
            raise ClientLost(f"closed by the broker: {method.reply_code} {method.reply_text}")
        elif isinstance(method, m.BasicCancel):
            raise ClientLost("the broker cancelled the consumer")
        elif self._answer is not None and not self._answer.done():
            self._answer.set_result(None if isinstance(method, m.BasicGetEmpty) else method)

    def _complete(self, body: bytes) -> None:
        method = self._content
        if isinstance(method, m.BasicDeliver):
            self.on_deliver(Delivery(method.delivery_tag, method.redelivered, body))
        elif isinstance(method, m.BasicGetOk) and self._answer is not None and not self._answer.done():
            self._answer.set_result(Delivery(method.delivery_tag, method.redelivered, body))


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return _HEAD.pack(kind, channel, len(payload)) + payload + b"\xce"
