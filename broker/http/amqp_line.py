"""A short AMQP conversation with the node through `amqp.sock`, as the user who asks (waits).

One connection and one channel per deed: opened, used, closed. What AMQP refuses, or does not answer within TIMEOUT_S,
comes out as a Refused; what was done before the answer was lost stays done, as for any client.
"""

from __future__ import annotations

import asyncio
import json
import struct
from pathlib import Path
from typing import Any, Final, TypeVar

from clusterbroker.broker.amqp import methods as m
from clusterbroker.broker.amqp import properties as p
from clusterbroker.broker.amqp.fields import Table
from clusterbroker.broker.management import amqp_operations as operations
from clusterbroker.broker.management.errors import Refused, bad_request
from clusterbroker.broker.management.reading import Document
from clusterbroker.broker.server.control.private_socket import connected

NAME: Final = "amqp.sock"
TIMEOUT_S: Final = 30.0
REPLY_TO: Final = "amq.rabbitmq.reply-to"
_HEAD: Final = struct.Struct(">BHI")
_METHOD, _HEADER, _BODY, _HEARTBEAT = 1, 2, 3, 8
_END: Final = b"\xce"

M = TypeVar("M", bound=m.Method)


class AmqpRefused(Exception):
    """The node closed the channel or the connection: reply code and text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text


async def carried_out(directory: Path, user: str, vhost: str, deed: operations.Deed, token: bytes = b"") -> Any:
    """The answer of a deed: nothing of a Call or an Ask, `{"routed"}` of a Publish, the messages of a Get. `token`:
    whose rights are to hold, in the place of the user's permissions."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            line = await _Line.open(directory, user, vhost, token)
            try:
                answer = await line.carry_out(deed)
                await line.end()
                return answer
            finally:
                line.drop()
    except AmqpRefused as refused:
        raise operations.refused(refused.code, refused.text, deed) from None
    except TimeoutError:
        raise Refused(503, "unavailable", f"the node did not answer within {TIMEOUT_S:g} s") from None
    except (OSError, EOFError) as error:
        raise Refused(503, "unavailable", "there is no AMQP connection to the node") from error


class _Line:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._frame_bytes_max = 8192

    @classmethod
    async def open(cls, directory: Path, user: str, vhost: str, token: bytes) -> _Line:
        """With its channel."""
        reader, writer = await asyncio.open_unix_connection(sock=connected(directory, NAME))
        line = cls(reader, writer)
        try:
            await line._shake_hands(user, vhost, token)
        except BaseException:
            line.drop()
            raise
        return line

    async def _shake_hands(self, user: str, vhost: str, token: bytes) -> None:
        self._writer.write(b"AMQP\x00\x00\x09\x01")
        await self._answer(m.ConnectionStart)
        about: Table = {
            "product": "clusterbroker management",
            "connection_name": f"HTTP API, {user}",
            "capabilities": {"authentication_failure_close": True},
        }
        # of a user the node believes this process; a token it verifies itself, for it has to know what is in it
        proof = ("PLAIN", b"\0%s\0%s" % (user.encode(), token)) if token else ("EXTERNAL", user.encode())
        tune = await self._call(0, m.ConnectionStartOk(about, *proof), m.ConnectionTune)
        self._frame_bytes_max = tune.frame_max or 1 << 17
        self._send(0, m.ConnectionTuneOk(1, self._frame_bytes_max, 0))
        await self._call(0, m.ConnectionOpen(vhost), m.ConnectionOpenOk)
        await self._call(1, m.ChannelOpen(), m.ChannelOpenOk)

    async def carry_out(self, deed: operations.Deed) -> Any:
        """Says it, and gives the answer."""
        match deed:
            case operations.Call():
                await self._call(1, deed.method, m.Method)
            case operations.Publish():
                return {"routed": await self._publish(deed)}
            case operations.Ask():
                await self._ask(deed)
            case operations.Get():
                return await self._get(deed)
            case operations.Live():
                return await self._live(deed)
        return None

    async def _live(self, deed: operations.Live) -> Document:
        await self._call(1, m.QueueDeclare(queue=deed.queue), m.QueueDeclareOk)
        await self._publish(operations.Publish("", deed.queue, p.Properties(), b"alive"))
        got = await self._get(operations.Get(deed.queue, 1, "ack_requeue_false", base64=False, truncate=None))
        if not got:
            raise Refused(503, "unavailable", "the message that was published cannot be got")
        return {"status": "ok"}

    async def _ask(self, deed: operations.Ask) -> None:
        """The answer comes before the confirm."""
        await self._call(1, m.BasicConsume(queue=REPLY_TO, no_ack=True), m.BasicConsumeOk)
        asked = p.Properties(content_type="application/json", reply_to=REPLY_TO)
        await self._say(operations.Publish(deed.exchange, deed.key, asked, json.dumps(deed.body).encode()))
        told: Document = {}
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

    async def _say(self, deed: operations.Publish) -> None:
        """A message that will be confirmed."""
        await self._call(1, m.ConfirmSelect(), m.ConfirmSelectOk)
        try:
            properties = p.encode(deed.properties)
        except (ValueError, TypeError, OverflowError) as error:
            raise bad_request(f"the properties cannot be sent: {error}") from None
        self._send(1, m.BasicPublish(exchange=deed.exchange, routing_key=deed.routing_key, mandatory=True))
        self._frame(_HEADER, 1, struct.pack(">HHQ", p.CLASS_ID, 0, len(deed.payload)) + properties)
        most = self._frame_bytes_max - 8
        for start in range(0, len(deed.payload), most):
            self._frame(_BODY, 1, deed.payload[start : start + most])

    async def _publish(self, deed: operations.Publish) -> bool:
        await self._say(deed)
        routed = True
        while True:
            match await self._answer(m.Method):
                case m.BasicReturn():
                    routed = False
                    await self._content()
                case m.BasicAck():
                    return routed
                case m.BasicNack():
                    raise bad_request("the message was refused: a queue is full, or could not take it")
                case other:
                    raise AmqpRefused(503, f"{type(other).__name__} was not expected")

    async def _get(self, deed: operations.Get) -> list[Document]:
        no_ack = deed.ack_mode == "ack_requeue_false"
        found: list[Document] = []
        last, size = 0, 0
        while len(found) < deed.count and size < operations.GET_BYTES_MAX:
            got = await self._call(1, m.BasicGet(queue=deed.queue, no_ack=no_ack), m.Method)
            if not isinstance(got, m.BasicGetOk):
                break
            properties, payload = await self._content()
            found.append(operations.message_document(deed, got, p.decode(properties), payload))
            last = got.delivery_tag
            size += len(payload)
        if last and not no_ack:
            self._send(1, m.BasicNack(last, multiple=True, requeue=deed.ack_mode.endswith("_true")))
        return found

    async def end(self) -> None:
        """Everything that was said has been taken when this comes back."""
        await self._call(0, m.ConnectionClose(200, "done"), m.ConnectionCloseOk)

    def drop(self) -> None:
        """Without a word."""
        self._writer.transport.abort()

    # -- frames -----------------------------------------------------------------------------------------------

    def _send(self, channel: int, method: m.Method) -> None:
        try:
            payload = m.encode(method)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise bad_request(f"this cannot be said in AMQP: {error}") from None
        self._frame(_METHOD, channel, payload)

    def _frame(self, kind: int, channel: int, payload: bytes) -> None:
        self._writer.write(_HEAD.pack(kind, channel, len(payload)) + payload + _END)

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
            kind, _, size = _HEAD.unpack(await self._reader.readexactly(_HEAD.size))
            payload = await self._reader.readexactly(size + 1)
            if kind == _HEARTBEAT:
                continue
            if kind != wanted:
                raise AmqpRefused(505, f"a frame of type {kind} was not expected")
            return payload[:-1]
