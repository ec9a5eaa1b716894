"""AMQP as the signed-in user, through the node's `amqp.sock`: for deeds that are about queues and messages (waits).

One connection for one deed. What the user may do, and what is wrong with a deed, the node says as it says it to any
client: `AmqpRefused` has its code and text. Nothing is asked while an answer is awaited, so frames are read when they
are wanted, and no task stands behind a connection.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from broker.amqp import methods as m
from broker.amqp.errors import AmqpError
from broker.amqp.layout import Method
from broker.amqp.properties import CLASS_ID, Properties, decode, encode
from broker.server.private_socket import connected

NAME: Final = "amqp.sock"
ANSWER_S: Final = 30.0
"""A node answers a client within 10 s also when a queue has no owner."""
FRAME_BYTES_MAX: Final = 131_072
_HEAD: Final = struct.Struct(">BHI")
_CONTENT: Final = struct.Struct(">HHQ")
_METHOD, _HEADER, _BODY, _HEARTBEAT = 1, 2, 3, 8

M = TypeVar("M", bound=Method)


class AmqpRefused(Exception):
    """The node closed the channel, or the connection, because of the deed."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        """Of AMQP: 403, 404, 405, 406, 530, ..."""
        self.text = text
        """With its code, as clients see it: "404 NOT_FOUND - no queue 'q' in vhost '/'"."""


class AmqpUnavailable(ConnectionError):
    """The node is not there, or does not answer."""


class Got(NamedTuple):
    """A message that was got."""

    tag: int
    exchange: str
    routing_key: str
    redelivered: bool
    message_count: int
    """What was left in the queue."""
    properties: Properties
    body: bytes


class AmqpClient:
    """A connection with one channel."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._frame_max = FRAME_BYTES_MAX
        self._confirming = False

    @classmethod
    @asynccontextmanager
    async def opened(cls, directory: Path, user: str, vhost: str) -> AsyncIterator[AmqpClient]:
        """As this user in this vhost. Raises AmqpRefused, AmqpUnavailable; so does everything that is done with it."""
        try:
            reader, writer = await asyncio.open_unix_connection(sock=connected(directory, NAME), limit=1 << 20)
        except OSError as error:
            raise AmqpUnavailable("the node is not there, or begins again") from error
        self = cls(reader, writer)
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._shake_hands(user, vhost)
            yield self
            self._send(0, m.ConnectionClose(200, "done"))
        except (asyncio.IncompleteReadError, ConnectionResetError, BrokenPipeError) as error:
            raise AmqpUnavailable("the node ended the connection") from error
        except TimeoutError as error:
            raise AmqpUnavailable(f"the node has not answered within {ANSWER_S:g} s") from error
        finally:
            writer.close()

    async def _shake_hands(self, user: str, vhost: str) -> None:
        self._writer.write(b"AMQP\x00\x00\x09\x01")
        await self._answer(m.ConnectionStart)
        properties: dict[str, Any] = {
            "product": "clusterbroker management",
            "capabilities": {"authentication_failure_close": True, "basic.nack": True, "publisher_confirms": True},
        }
        self._send(0, m.ConnectionStartOk(properties, "EXTERNAL", user.encode(), "en_US"))
        tune = await self._answer(m.ConnectionTune)
        self._frame_max = min(tune.frame_max or FRAME_BYTES_MAX, FRAME_BYTES_MAX)
        self._send(0, m.ConnectionTuneOk(tune.channel_max, self._frame_max, 0))
        self._send(0, m.ConnectionOpen(vhost))
        await self._answer(m.ConnectionOpenOk)
        await self.call(m.ChannelOpen(), m.ChannelOpenOk)

    # -- deeds ------------------------------------------------------------------------------------------------

    async def call(self, method: Method, answer: type[M]) -> M:
        """A method and its answer."""
        async with asyncio.timeout(ANSWER_S):
            self._send(1, method)
            return await self._answer(answer)

    async def publish(self, exchange: str, routing_key: str, properties: Properties, body: bytes) -> bool:
        """True: it is in a queue, as safe as any confirmed message; False: there was no queue for it. Raises ValueError
        or TypeError for properties that cannot be sent."""
        if not self._confirming:
            await self.call(m.ConfirmSelect(), m.ConfirmSelectOk)
            self._confirming = True
        async with asyncio.timeout(ANSWER_S):
            header = _CONTENT.pack(CLASS_ID, 0, len(body)) + encode(properties)
            self._send(1, m.BasicPublish(exchange=exchange, routing_key=routing_key, mandatory=True))
            self._write(_HEADER, 1, header)
            room = self._frame_max - 8
            for at in range(0, len(body), room):
                self._write(_BODY, 1, body[at : at + room])
                await self._writer.drain()
            routed = True
            while True:
                method = await self._method()
                if isinstance(method, m.BasicReturn):
                    routed = False
                    await self._content()
                elif isinstance(method, m.BasicNack):
                    raise AmqpRefused(406, "the queue did not take the message: it is full")
                elif isinstance(method, m.BasicAck):
                    return routed

    async def get(self, queue: str, count: int, no_ack: bool, bytes_max: int) -> list[Got]:
        """Up to so many messages from the head on, and no more once they have so many bytes together."""
        found: list[Got] = []
        size = 0
        while len(found) < count and size < bytes_max:
            async with asyncio.timeout(ANSWER_S):
                self._send(1, m.BasicGet(queue=queue, no_ack=no_ack))
                method = await self._method()
                if not isinstance(method, m.BasicGetOk):
                    break
                properties, body = await self._content()
            size += len(body)
            found.append(
                Got(
                    method.delivery_tag,
                    method.exchange,
                    method.routing_key,
                    method.redelivered,
                    method.message_count,
                    properties,
                    body,
                )
            )
        return found

    async def settle(self, upto: int, requeue: bool | None) -> None:
        """All that was got up to this tag: acknowledged (None), returned to its place, or given up. It has happened
        when this comes back."""
        last = m.BasicAck(upto, True) if requeue is None else m.BasicNack(upto, True, requeue)
        self._send(1, last)
        await self.call(m.ChannelClose(200, "done"), m.ChannelCloseOk)

    # -- frames -----------------------------------------------------------------------------------------------

    def _send(self, channel: int, method: Method) -> None:
        self._write(_METHOD, channel, m.encode(method))

    def _write(self, kind: int, channel: int, payload: bytes) -> None:
        self._writer.write(_HEAD.pack(kind, channel, len(payload)) + payload + b"\xce")

    async def _answer(self, kind: type[M]) -> M:
        while True:
            method = await self._method()
            if isinstance(method, kind):
                return method

    async def _method(self) -> Method:
        """The next method that says anything about the deed."""
        while True:
            kind, channel, payload = await self._frame()
            if kind != _METHOD:
                continue
            try:
                method = m.decode(payload)
            except AmqpError as error:
                raise AmqpUnavailable(f"the node sent what is no method: {error}") from error
            if isinstance(method, m.ConnectionClose | m.ChannelClose):
                self._send(channel, m.ConnectionCloseOk() if channel == 0 else m.ChannelCloseOk())
                raise AmqpRefused(method.reply_code, f"{method.reply_code} {method.reply_text}")
            return method

    async def _content(self) -> tuple[Properties, bytes]:
        _, _, header = await self._frame()
        _, _, size = _CONTENT.unpack_from(header)
        body = bytearray()
        while len(body) < size:
            kind, _, payload = await self._frame()
            if kind == _BODY:
                body += payload
        return decode(header[_CONTENT.size :]), bytes(body)

    async def _frame(self) -> tuple[int, int, bytes]:
        while True:
            kind, channel, size = _HEAD.unpack(await self._reader.readexactly(_HEAD.size))
            if size > FRAME_BYTES_MAX:
                raise AmqpUnavailable(f"the node sent a frame of {size} bytes")
            payload = await self._reader.readexactly(size + 1)
            if kind != _HEARTBEAT:
                return kind, channel, payload[:-1]
