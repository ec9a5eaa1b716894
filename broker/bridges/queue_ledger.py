"""A ledger in a queue of the destination: a record is a persistent message there, confirmed before it counts (waits).

To open it is to get all messages, to put their summary behind them, and then to acknowledge them: whoever dies in
between leaves more records than needed, and none too few. The same is done when it has grown by ANEW_BYTES. The
queue's lock (`carrier.locked`) is held by its connection, so there is one writer.
"""

from __future__ import annotations

import asyncio
import struct
import time
import uuid
from collections.abc import Sequence
from typing import Final

from clusterbroker.broker.bridges.carrier import locked
from clusterbroker.broker.bridges.channel import Channel, Lost
from clusterbroker.broker.bridges.ledger import State, begun, closed, framed, opened, state, summary
from clusterbroker.broker.bridges.ledger import bodies as records_of
from clusterbroker.broker.bridges.places import Place
from clusterbroker.broker.bridges.rewriting import Parcel, Rewriter
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp091.properties import CLASS_ID, Properties, encode

ANEW_BYTES: Final = 1 << 20
CONFIRM_S: Final = 60.0
READ_S: Final = 30.0
TAG: Final = "ledger"
_HEAD: Final = struct.Struct(">BHI")
_CONTENT: Final = struct.Struct(">HHQ")
_PERSISTENT: Final = encode(Properties(delivery_mode=2))


class QueueLedger:
    """`open`, and `close` in the end."""

    state: State

    def __init__(self, channel: Channel, queue: str) -> None:
        self.channel = channel
        self._queue = queue
        self._sent = self._confirmed = 0
        self._moved = asyncio.Event()
        self._size = self._got = 0
        channel.on_method = self._method
        channel.lost.add_done_callback(lambda _: self._moved.set())

    @classmethod
    async def open(cls, where: Place, queue: str, name: str) -> QueueLedger:
        """`name`: begins the producer of a new one. Raises Lost, BadLedger."""
        channel = await Channel.open(where, "clusterbroker bridge")
        self = cls(channel, queue)
        try:
            await locked(channel, queue)
            await channel.call(m.ConfirmSelect(), m.ConfirmSelectOk)
            found = await self._read()
            records = [body for octets in found for _, body in records_of(octets)]
            records = records or [opened(f"{name}/{uuid.uuid4().hex}".encode())]
            self.state = begun(state(records), time.time())
            await self._replace(len(found))
        except BaseException:
            await channel.close()
            raise
        return self

    async def append(self, bodies: Sequence[bytes]) -> None:
        """Returns when they are confirmed. Raises Lost."""
        await self._put(b"".join(map(framed, bodies)))
        if self._size > ANEW_BYTES and bodies[-1][:1] == closed(0)[:1]:
            self._size = 0
            found = await self._read()
            self.state = state(body for octets in found for _, body in records_of(octets))
            await self._replace(len(found))

    async def close(self) -> None:
        """May be called again."""
        await self.channel.close()

    async def _read(self) -> list[bytes]:
        """All messages, none acknowledged."""
        channel, found = self.channel, list[bytes]()
        declared = await channel.call(m.QueueDeclare(queue=self._queue, passive=True), m.QueueDeclareOk)
        count = declared.message_count
        if not count:
            return found
        came = asyncio.Event()

        def on_parcel(parcel: Parcel) -> None:
            found.extend(parcel.bodies())
            if len(found) >= count:
                came.set()

        channel.on_parcel = on_parcel
        channel.rewrite(Rewriter("", "", b"", b"", channel.frame_max))
        channel.send(m.BasicConsume(queue=self._queue, consumer_tag=TAG))
        channel.lost.add_done_callback(lambda _: came.set())
        try:
            async with asyncio.timeout(READ_S):
                await came.wait()
        except TimeoutError:
            told = f"queue '{self._queue}' did not hand out its {count} records in {READ_S:g} s"
            raise Lost(f"{channel.where}: {told}") from None
        if channel.lost.done():
            raise channel.lost.result()
        channel.send(m.BasicCancel(consumer_tag=TAG))
        return found

    async def _replace(self, count: int) -> None:
        """The state behind the messages that were read, then these are acknowledged."""
        await self._put(b"".join(map(framed, summary(self.state))))
        if count:
            self._got += count
            self.channel.send(m.BasicAck(delivery_tag=self._got, multiple=True))

    async def _put(self, octets: bytes) -> None:
        self._size += len(octets)
        room = self.channel.frame_max - 8
        method = m.encode(m.BasicPublish(routing_key=self._queue, mandatory=True))
        header = _CONTENT.pack(CLASS_ID, 0, len(octets)) + _PERSISTENT
        frames = [_frame(1, method), _frame(2, header)]
        frames += [_frame(3, octets[at : at + room]) for at in range(0, len(octets), room)]
        self.channel.write(b"".join(frames))
        self._sent += 1
        number = self._sent
        try:
            async with asyncio.timeout(CONFIRM_S):
                while self._confirmed < number and not self.channel.lost.done():
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            raise Lost(f"{self.channel.where}: a record was not confirmed in {CONFIRM_S:g} s") from None
        if self._confirmed < number:
            raise self.channel.lost.result()

    def _method(self, method: m.Method) -> None:
        match method:
            case m.BasicAck():
                self._confirmed = max(self._confirmed, method.delivery_tag)
                self._moved.set()
            case m.BasicNack() | m.BasicReturn():
                raise Lost(f"{self.channel.where}: a record for queue '{self._queue}' was refused: is it there?")


def _frame(kind: int, payload: bytes) -> bytes:
    return _HEAD.pack(kind, 1, len(payload)) + payload + b"\xce"
