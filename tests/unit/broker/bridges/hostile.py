"""An end that says what a test wants it to: a socket that speaks AMQP 0-9-1 well enough for a bridge."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp091.properties import CLASS_ID, Properties, encode

HEAD = struct.Struct(">BHI")


def frame(kind: int, payload: bytes, channel: int = 1) -> bytes:
    return HEAD.pack(kind, channel, len(payload)) + payload + b"\xce"


def message(tag: int, body: bytes, user: str | None = None) -> bytes:
    """A delivery."""
    method = m.BasicDeliver(consumer_tag="c", delivery_tag=tag, redelivered=False, exchange="", routing_key="q")
    return frame(1, m.encode(method)) + content(body, user)


def content(body: bytes, user: str | None = None) -> bytes:
    """Header and body of a delivery, or of a basic.get's answer."""
    header = struct.pack(">HHQ", CLASS_ID, 0, len(body)) + encode(Properties(user_id=user))
    return frame(2, header) + (frame(3, body) if body else b"")


class Hostile:
    """`listening`, then its `url`. What it says to basic.consume is `flood`."""

    def __init__(self, product: str = "other", frame_max: int = 131072, count: int = 0, flood: bytes = b"") -> None:
        self.product, self.frame_max, self.count, self.flood = product, frame_max, count, flood
        self.writers: list[asyncio.StreamWriter] = []
        self.heard: list[m.Method] = []
        self.port = 0
        self.shows: bytes | None = None
        """What it says to the next basic.get; None: that nothing is there."""
        self.counts_later = 0
        """`count`, after that."""

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}"

    def say(self, method: m.Method, channel: int = 0) -> None:
        """To all that are connected."""
        for writer in self.writers:
            writer.write(frame(1, m.encode(method), channel))

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Hostile]:
        server = await asyncio.start_server(self._serve, "127.0.0.1")
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for writer in self.writers:
                writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        published = 0

        def answer(method: m.Method, channel: int = 1) -> None:
            writer.write(frame(1, m.encode(method), channel))

        try:
            await reader.readexactly(8)
            answer(m.ConnectionStart(0, 9, {"product": self.product}, b"PLAIN", b"en_US"), 0)
            while True:
                kind, _, size = HEAD.unpack(await reader.readexactly(7))
                payload = (await reader.readexactly(size + 1))[:-1]
                if kind == 2:
                    published += 1
                    answer(m.BasicAck(delivery_tag=published))
                if kind != 1:
                    continue
                method = m.decode(payload)
                self.heard.append(method)
                match method:
                    case m.ConnectionStartOk():
                        answer(m.ConnectionTune(2047, self.frame_max, 60), 0)
                    case m.ConnectionOpen():
                        answer(m.ConnectionOpenOk(), 0)
                    case m.ChannelOpen():
                        answer(m.ChannelOpenOk())
                    case m.QueueDeclare():
                        answer(m.QueueDeclareOk(method.queue, self.count, 0))
                    case m.BasicGet() if self.shows is not None:
                        writer.write(self.shows)
                        self.count, self.shows = self.counts_later, None
                    case m.BasicGet():
                        answer(m.BasicGetEmpty())
                    case m.ConfirmSelect():
                        answer(m.ConfirmSelectOk())
                    case m.BasicQos():
                        answer(m.BasicQosOk())
                    case m.BasicConsume():
                        answer(m.BasicConsumeOk(method.consumer_tag))
                        writer.write(self.flood)
                    case m.ConnectionClose():
                        answer(m.ConnectionCloseOk(), 0)
                        return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
