"""A quick AMQP client for load: frames by hand where they are many, pika's encoder for the rare methods.

It is independent of the broker's codec on purpose. Callbacks get what arrives (`on_confirm`, `on_deliver`,
`on_return`); everything else is an answer to `call`.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import pika
from pika import frame, spec

DELIVER, ACK, NACK, RETURN, GET_OK = 0x003C003C, 0x003C0050, 0x003C0078, 0x003C0032, 0x003C0047
FRAME_MAX = 131072


class Delivery(NamedTuple):
    """`header` is the content header's payload; `properties` decodes it."""

    tag: int
    redelivered: bool
    header: bytes
    body: bytes

    @property
    def properties(self) -> pika.BasicProperties:
        properties = pika.BasicProperties()
        properties.decode(self.header[12:])  # type: ignore[no-untyped-call]
        return properties


class Channel:
    """One channel. `published` counts publishes since confirm.select."""

    def __init__(self, client: Client, number: int) -> None:
        self.client = client
        self.number = number
        self.published = 0
        self.on_confirm: Callable[[bool, int, bool], None] = lambda ack, tag, multiple: None
        self.on_deliver: Callable[[Delivery], None] = lambda delivery: None
        self.on_return: Callable[[bytes], None] = lambda body: None
        self._answer: asyncio.Future[Any] | None = None
        self._content: tuple[int, bytes, bytes, list[bytes], int] | None = None

    async def call(self, method: Any) -> Any:
        """Sends a method and waits for its answer."""
        assert self._answer is None, "one question at a time"
        self._answer = asyncio.get_running_loop().create_future()
        self.client.write(frame.Method(self.number, method).marshal())  # type: ignore[no-untyped-call]
        try:
            return await self._answer
        finally:
            self._answer = None

    async def declare(self, queue: str, **arguments: Any) -> Any:
        return (await self.call(spec.Queue.Declare(queue=queue, durable=True, arguments=arguments))).message_count

    async def confirm(self) -> None:
        await self.call(spec.Confirm.Select())

    async def consume(self, queue: str, prefetch: int, no_ack: bool = False) -> None:
        await self.call(spec.Basic.Qos(prefetch_count=prefetch))
        await self.call(spec.Basic.Consume(queue=queue, no_ack=no_ack))

    def publish(
        self, exchange: str, key: str, body: bytes, persistent: bool = True, priority: int = 0, mandatory: bool = False
    ) -> int:
        """The publish's number in the confirm sequence."""
        x, k = exchange.encode(), key.encode()
        method = struct.pack(">HHHB", 60, 40, 0, len(x)) + x + bytes((len(k),)) + k + bytes((mandatory,))
        header = struct.pack(">HHQHBB", 60, 0, len(body), 0x1800, 2 if persistent else 1, priority)
        number = self.number
        parts = [
            struct.pack(">BHI", 1, number, len(method)), method, b"\xce",
            struct.pack(">BHI", 2, number, len(header)), header, b"\xce",
        ]  # fmt: skip
        for at in range(0, len(body), FRAME_MAX - 8):
            chunk = body[at : at + FRAME_MAX - 8]
            parts += (struct.pack(">BHI", 3, number, len(chunk)), chunk, b"\xce")
        self.client.write(b"".join(parts))
        self.published += 1
        return self.published

    def ack(self, tag: int, multiple: bool = False) -> None:
        self.client.write(struct.pack(">BHIHHQBB", 1, self.number, 13, 60, 80, tag, multiple, 0xCE))

    def reject(self, tag: int, requeue: bool) -> None:
        self.client.write(struct.pack(">BHIHHQBB", 1, self.number, 13, 60, 90, tag, requeue, 0xCE))

    def nack(self, tag: int, requeue: bool, multiple: bool = False) -> None:
        self.client.write(struct.pack(">BHIHHQBB", 1, self.number, 13, 60, 120, tag, multiple | requeue << 1, 0xCE))

    def failed(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def method(self, payload: bytes) -> None:
        kind = int.from_bytes(payload[:4], "big")
        if kind in (ACK, NACK):
            self.on_confirm(kind == ACK, int.from_bytes(payload[4:12], "big"), bool(payload[12] & 1))
        elif kind in (DELIVER, RETURN, GET_OK):
            self._content = (kind, payload, b"", [], 0)
        else:
            method: Any = spec.methods[kind]()
            method.decode(payload[4:])
            if isinstance(method, spec.Channel.Close):
                self.failed(ConnectionError(f"channel closed: {method.reply_code} {method.reply_text}"))
            elif self._answer is not None and not self._answer.done():
                self._answer.set_result(method)

    def header(self, payload: bytes) -> None:
        assert self._content is not None, "a header follows a method"
        self._content = (*self._content[:2], payload, [], int.from_bytes(payload[4:12], "big"))
        if self._content[4] == 0:
            self._complete()

    def body(self, payload: bytes) -> None:
        assert self._content is not None, "a body follows a header"
        kind, method, header, chunks, left = self._content
        chunks.append(payload)
        self._content = (kind, method, header, chunks, left - len(payload))
        if left == len(payload):
            self._complete()

    def _complete(self) -> None:
        assert self._content is not None, "called at the end of a content"
        kind, method, header, chunks, _ = self._content
        self._content = None
        body = b"".join(chunks)
        if kind == RETURN:
            self.on_return(body)
            return
        at = 4 if kind == GET_OK else 5 + method[4]
        delivery = Delivery(int.from_bytes(method[at : at + 8], "big"), bool(method[at + 8] & 1), header, body)
        if kind == DELIVER:
            self.on_deliver(delivery)
        elif self._answer is not None and not self._answer.done():
            self._answer.set_result(delivery)


class Client:
    """A connection. `lost` is set when it is gone, whoever closed it; `blocked` follows connection.blocked."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()
        self.blocked = asyncio.Event()
        self.channels: dict[int, Channel] = {}
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._task: asyncio.Task[None]

    @classmethod
    async def open(cls, port: int, heartbeat_s: int = 0) -> Client:
        self = cls()
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        self.channels[0] = Channel(self, 0)
        self.write(b"AMQP\x00\x00\x09\x01")
        self._task = asyncio.create_task(self._read())
        zero = self.channels[0]
        capabilities = {"connection.blocked": True, "consumer_cancel_notify": True}
        zero._answer = asyncio.get_running_loop().create_future()
        await zero._answer
        zero._answer = None
        start = spec.Connection.StartOk({"capabilities": capabilities}, "PLAIN", b"\0guest\0guest".decode(), "en_US")
        await zero.call(start)
        tuned = frame.Method(0, spec.Connection.TuneOk(2047, FRAME_MAX, heartbeat_s))
        self.write(tuned.marshal())  # type: ignore[no-untyped-call]
        await zero.call(spec.Connection.Open("/"))
        return self

    async def channel(self, confirm: bool = False) -> Channel:
        number = max(self.channels) + 1
        channel = self.channels[number] = Channel(self, number)
        await channel.call(spec.Channel.Open())
        if confirm:
            await channel.confirm()
        return channel

    def write(self, octets: bytes) -> None:
        """What is written to a connection that is gone is gone."""
        if not self._writer.transport.is_closing():
            self._writer.write(octets)

    async def drain(self) -> None:
        await self._writer.drain()

    async def close(self) -> None:
        if not self.lost.is_set():
            try:
                await asyncio.wait_for(self.channels[0].call(spec.Connection.Close(200, "", 0, 0)), 5)
            except (OSError, TimeoutError):
                pass
        self.abandon()
        await asyncio.wait([self._task])

    def abandon(self) -> None:
        """Closes the socket without a word."""
        self._writer.transport.abort()

    async def _read(self) -> None:
        try:
            rest = b""
            while True:
                octets = await self._reader.read(1 << 20)
                if not octets:
                    break
                rest = self._frames(rest + octets)
        except OSError:
            pass
        finally:
            self.lost.set()
            for channel in self.channels.values():
                channel.failed(ConnectionError("the connection is gone"))

    def _frames(self, octets: bytes) -> bytes:
        at, end = 0, len(octets)
        while end - at >= 8:
            kind, number, size = struct.unpack_from(">BHI", octets, at)
            if end - at < size + 8:
                break
            payload = octets[at + 7 : at + 7 + size]
            at += size + 8
            if kind == 8:
                self.write(b"\x08\x00\x00\x00\x00\x00\x00\xce")
                continue
            channel = self.channels[number]
            if kind == 1 and number == 0 and payload[:4] in (b"\x00\x0a\x00\x3c", b"\x00\x0a\x00\x3d"):
                (self.blocked.set if payload[3] == 0x3C else self.blocked.clear)()
            elif kind == 1 and number == 0 and payload[:4] == b"\x00\x0a\x00\x32":
                self.write(b"\x01\x00\x00\x00\x00\x00\x04\x00\x0a\x00\x33\xce")
            elif kind == 1:
                channel.method(payload)
            elif kind == 2:
                channel.header(payload)
            else:
                channel.body(payload)
        return octets[at:]
