"""Operations that the node carries out as one of its users, over a client's connection within the process (waits).

One connection and one channel for each call: opened as the user, used, closed. So permissions, argument checks,
if-unused, exclusive queues and all else are those of any client, by construction. What is refused comes out as the
reply code and its text; what was done before an answer was lost stays done, as for any client.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections import deque
from typing import Any, Final, TypeVar

from clusterbroker.broker.amqp import methods as m
from clusterbroker.broker.amqp import properties as p
from clusterbroker.broker.amqp.fields import Table
from clusterbroker.broker.server.client import Client, ClientOwner
from clusterbroker.broker.server.control.protocol import NAME
from clusterbroker.broker.stats import as_user as r

TIMEOUT_S: Final = 30.0
REPLY_TO: Final = "amq.rabbitmq.reply-to"
_HEAD: Final = struct.Struct(">BHI")
_METHOD, _HEADER, _BODY, _HEARTBEAT = 1, 2, 3, 8
_END: Final = b"\xce"

M = TypeVar("M", bound=m.Method)


class AmqpRefused(Exception):
    """The channel or the connection was closed: reply code and text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text


class Nacked(Exception):
    """A queue was full, or could not take the message."""


async def carried_out(node: ClientOwner, asked: r.AsUser) -> r.Outcome:
    """Raises TimeoutError, EOFError when the connection ends without a word."""
    line = _Line(node)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await line.open(asked.user, asked.vhost, asked.token)
            for request in asked.requests:
                await line.carry_out(request)
            await line.close()
            return r.Outcome(routed=line.routed, got=tuple(line.got))
    except AmqpRefused as refused:
        return r.Outcome(refused.code, refused.text)
    except Nacked:
        return r.Outcome(nacked=True)
    finally:
        line.pipe.abort()


class _OwnClient(Client):
    """EXTERNAL with a user's name as response is that user here."""

    trusted = True


class _Pipe(asyncio.Transport):
    """A client's socket within the process: `client` at one end, a reader and `send` at the other."""

    def __init__(self, node: ClientOwner) -> None:
        super().__init__({"peername": NAME})
        self.reader = asyncio.StreamReader()
        self._loop = asyncio.get_running_loop()
        self._client = _OwnClient(node)
        self._pending: deque[memoryview] = deque()
        self._paused = self._closing = self._due = False
        self._client.connection_made(self)

    def send(self, *parts: bytes | memoryview) -> None:
        """To the client's connection, as soon as it reads."""
        self._pending.extend(map(memoryview, parts))
        self._soon()

    def _soon(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_soon(self._feed)

    def _feed(self) -> None:
        """As much as a read brings; others have their turn before the next one."""
        self._due = False
        if not self._pending or self._paused or self._closing:
            return
        buffer, size = self._client.get_buffer(-1), 0
        while self._pending and size < len(buffer):
            part = self._pending.popleft()
            taken = min(len(part), len(buffer) - size)
            buffer[size : size + taken] = part[:taken]
            size += taken
            if taken < len(part):
                self._pending.appendleft(part[taken:])
        self._client.buffer_updated(size)
        self._soon()

    # -- as the client sees it --------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        self.reader.feed_data(bytes(data))

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._soon()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self._closing:
            self._closing = True
            self.reader.feed_eof()
            self._loop.call_soon(self._client.connection_lost, None)


class _Line:
    """A client's conversation."""

    def __init__(self, node: ClientOwner) -> None:
        self.pipe = _Pipe(node)
        self.routed = True
        self.got: list[r.Got] = []
        self._frame_bytes_max = 8192

    async def open(self, user: str, vhost: str, token: bytes) -> None:
        """With its channel."""
        self.pipe.send(b"AMQP\x00\x00\x09\x01")
        await self._answer(m.ConnectionStart)
        about: Table = {
            "product": "clusterbroker management",
            "connection_name": f"HTTP API, {user}",
            "capabilities": {"authentication_failure_close": True},
        }
        # of a user the node believes the process; a token it verifies itself, for it has to know what is in it
        proof = ("PLAIN", b"\0%s\0%s" % (user.encode(), token)) if token else ("EXTERNAL", user.encode())
        tune = await self._call(0, m.ConnectionStartOk(about, *proof), m.ConnectionTune)
        self._frame_bytes_max = tune.frame_max or 1 << 17
        self._send(0, m.ConnectionTuneOk(1, self._frame_bytes_max, 0))
        await self._call(0, m.ConnectionOpen(vhost), m.ConnectionOpenOk)
        await self._call(1, m.ChannelOpen(), m.ChannelOpenOk)

    async def carry_out(self, request: r.Request) -> None:
        match request:
            case r.Method():
                self._frame(_METHOD, 1, request.payload)
                await self._answer(m.Method)
            case r.Publish():
                await self._publish(request)
            case r.Ask():
                await self._ask(request)
            case r.Get():
                await self._get(request)

    async def _ask(self, request: r.Ask) -> None:
        """The answer comes before the confirm."""
        await self._call(1, m.BasicConsume(queue=REPLY_TO, no_ack=True), m.BasicConsumeOk)
        asked = p.encode(p.Properties(content_type="application/json", reply_to=REPLY_TO))
        await self._say(r.Publish(request.exchange, request.routing_key, asked, json.dumps(request.body).encode()))
        told: dict[str, Any] = {}
        while True:
            match await self._answer(m.Method):
                case m.BasicDeliver():
                    told = json.loads((await self._content())[1])
                case m.BasicAck():
                    return
                case m.BasicNack():
                    raise AmqpRefused(told.get("code", 503), told.get("reason", "refused without an answer"))
                case other:
                    raise AmqpRefused(503, f"{type(other).__name__} was not expected")

    async def _say(self, request: r.Publish) -> None:
        """A message that will be confirmed."""
        await self._call(1, m.ConfirmSelect(), m.ConfirmSelectOk)
        self._send(1, m.BasicPublish(exchange=request.exchange, routing_key=request.routing_key, mandatory=True))
        self._frame(_HEADER, 1, struct.pack(">HHQ", p.CLASS_ID, 0, len(request.payload)) + request.properties)
        most, payload = self._frame_bytes_max - 8, memoryview(request.payload)
        for start in range(0, len(payload), most):
            self._frame(_BODY, 1, payload[start : start + most])

    async def _publish(self, request: r.Publish) -> None:
        await self._say(request)
        while True:
            match await self._answer(m.Method):
                case m.BasicReturn():
                    self.routed = False
                    await self._content()
                case m.BasicAck():
                    return
                case m.BasicNack():
                    raise Nacked
                case other:
                    raise AmqpRefused(503, f"{type(other).__name__} was not expected")

    async def _get(self, request: r.Get) -> None:
        no_ack = request.ack_mode == "ack_requeue_false"
        last = size = 0
        while len(self.got) < request.count and size < r.GET_BYTES_MAX:
            got = await self._call(1, m.BasicGet(queue=request.queue, no_ack=no_ack), m.Method)
            if not isinstance(got, m.BasicGetOk):
                break
            properties, payload = await self._content()
            self.got.append(
                r.Got(got.exchange, got.routing_key, got.redelivered, got.message_count, properties, payload)
            )
            last = got.delivery_tag
            size += len(payload)
        if last and not no_ack:
            self._send(1, m.BasicNack(last, multiple=True, requeue=request.ack_mode.endswith("_true")))

    async def close(self) -> None:
        """Everything that was said has been taken when this comes back."""
        await self._call(0, m.ConnectionClose(200, "done"), m.ConnectionCloseOk)

    # -- frames -----------------------------------------------------------------------------------------------

    def _send(self, channel: int, method: m.Method) -> None:
        self._frame(_METHOD, channel, m.encode(method))

    def _frame(self, kind: int, channel: int, payload: bytes | memoryview) -> None:
        self.pipe.send(_HEAD.pack(kind, channel, len(payload)), payload, _END)

    async def _call(self, channel: int, method: m.Method, answer: type[M]) -> M:
        self._send(channel, method)
        return await self._answer(answer)

    async def _answer(self, kind: type[M]) -> M:
        while True:
            method = m.decode(await self._read(_METHOD))
            match method:
                case m.ConnectionClose() | m.ChannelClose():
                    raise AmqpRefused(method.reply_code, method.reply_text)
                case m.ConnectionBlocked() | m.ConnectionUnblocked():
                    continue
            if not isinstance(method, kind):
                raise AmqpRefused(503, f"{type(method).__name__} was not expected")
            return method

    async def _content(self) -> tuple[bytes, bytes]:
        header = await self._read(_HEADER)
        left = int.from_bytes(header[4:12], "big")
        parts: list[bytes] = []
        while left:
            parts.append(await self._read(_BODY))
            left -= len(parts[-1])
        return header[12:], b"".join(parts)

    async def _read(self, wanted: int) -> bytes:
        while True:
            kind, _, size = _HEAD.unpack(await self.pipe.reader.readexactly(_HEAD.size))
            payload = await self.pipe.reader.readexactly(size + 1)
            if kind == _HEARTBEAT:
                continue
            if kind != wanted:
                raise AmqpRefused(505, f"a frame of type {kind} was not expected")
            return payload[:-1]
