"""A ledger in a queue of the destination: a record is a persistent message there, confirmed before it counts (waits).

To open it is to get all messages, to put their summary behind them, and then to acknowledge them: whoever dies in
between leaves more records than needed, and none too few. The same is done when it has grown by ANEW_BYTES. The
queue's lock (`carrier.locked`) is held by its connection, so there is one writer.

Whoever may publish to the default exchange may publish there. So a record has the user-id of the bridge's user, which a
broker holds to be true; what has another one is acknowledged and read over. What is kept is bounded (BYTES_MAX).
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
from clusterbroker.broker.bridges.errors import Malformed
from clusterbroker.broker.bridges.ledger import BadLedger, State, begun, closed, framed, opened, state, summary
from clusterbroker.broker.bridges.ledger import bodies as records_of
from clusterbroker.broker.bridges.places import Place
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp091.properties import CLASS_ID, Properties, decode, encode

ANEW_BYTES: Final = 1 << 20
CONFIRM_S: Final = 60.0
READ_S: Final = 30.0
"""Between two messages."""
AGAIN_S: Final = 1.0
"""From a look at a queue that seems empty to the next."""
BYTES_MAX: Final = 32 << 20
"""Of all records: two summaries and what was written between them is a fraction of it."""
MESSAGES_MAX: Final = 1 << 20
TAG: Final = "ledger"
HEARTBEAT: Final = 8
_HEAD: Final = struct.Struct(">BHI")
_CONTENT: Final = struct.Struct(">HHQ")


class QueueLedger:
    """`open`, and `close` in the end."""

    state: State

    def __init__(self, channel: Channel, queue: str) -> None:
        self.channel = channel
        self._queue = queue
        self._sent = self._confirmed = 0
        self._moved = asyncio.Event()
        self._size = 0
        self._reader: _Reader | None = None
        self._properties = encode(Properties(delivery_mode=2, user_id=channel.where.user))
        channel.on_method = self._method
        channel.on_content = self._content
        channel.lost.add_done_callback(lambda _: self._moved.set())

    @classmethod
    async def open(cls, where: Place, queue: str, name: str, *, new: bool = False) -> QueueLedger:
        """`new`: the queue was made just now, so nothing can be in it. `name`: begins the producer of a new ledger; one
        with another producer is that of another bridge, and what it knows is forgotten. Raises Lost, BadLedger."""
        channel = await Channel.open(where, "clusterbroker bridge")
        self = cls(channel, queue)
        try:
            await locked(channel, queue)
            await channel.call(m.ConfirmSelect(), m.ConfirmSelectOk)
            found = await self._read(await self._count(new))
            # in a thread: a node has other work meanwhile, and a lease to keep
            self.state = await asyncio.to_thread(_opened, found, name)
            await self._replace()
        except BaseException:
            await channel.close()
            raise
        return self

    async def append(self, bodies: Sequence[bytes]) -> None:
        """Returns when they are confirmed. Raises Lost."""
        await self._put(b"".join(map(framed, bodies)))
        if self._size > ANEW_BYTES and bodies[-1][:1] == closed(0)[:1]:
            self._size = 0
            found = await self._read(await self._count(new=False))
            if not found:
                raise Lost(f"{self.channel.where}: queue '{self._queue}' hands out none of its records")
            self.state = await asyncio.to_thread(_folded, found)
            await self._replace()

    async def close(self) -> None:
        """May be called again."""
        await self.channel.close()

    async def _declared(self) -> int:
        declared = await self.channel.call(m.QueueDeclare(queue=self._queue, passive=True), m.QueueDeclareOk)
        return declared.message_count

    async def _count(self, new: bool) -> int:
        """Records that are ready. That there is none is believed after a second look, later and by basic.get: a count
        may be seconds old (RabbitMQ's quorum queues), and what a lost connection held comes back a little later than
        its lock is free. Raises Lost."""
        count = await self._declared()
        until_s = time.monotonic() + READ_S
        while not count and not new:
            await asyncio.sleep(AGAIN_S)
            got = await self.channel.call(m.BasicGet(queue=self._queue), m.Method)
            if not isinstance(got, m.BasicGetOk):
                return await self._declared()
            self.channel.send(m.BasicNack(delivery_tag=got.delivery_tag, requeue=True))
            count = await self._declared()
            if not count and time.monotonic() > until_s:
                raise Lost(f"{self.channel.where}: queue '{self._queue}' has records, and counts none")
        return count

    async def _read(self, count: int) -> list[bytes]:
        """So many records, none acknowledged."""
        channel = self.channel
        reader = self._reader = _Reader(channel, count)
        if not count:
            return []
        channel.send(m.BasicConsume(queue=self._queue, consumer_tag=TAG))
        try:
            while not reader.done and not channel.lost.done():
                self._moved.clear()
                async with asyncio.timeout(READ_S):
                    await self._moved.wait()
        except TimeoutError:
            told = f"queue '{self._queue}' did not hand out all {count} records: {reader.missing} miss"
            raise Lost(f"{channel.where}: {told}") from None
        if channel.lost.done():
            raise channel.lost.result()
        channel.send(m.BasicCancel(consumer_tag=TAG))
        if reader.too_much:
            raise BadLedger(
                f"queue '{self._queue}' at {channel.where} has more records than a bridge writes: purge it, and what "
                "was on its way may come twice"
            )
        return reader.found

    async def _replace(self) -> None:
        """The state behind the messages that were read, then these are acknowledged."""
        await self._put(await asyncio.to_thread(_summed, self.state))
        if self._reader is not None and self._reader.last:
            self.channel.send(m.BasicAck(delivery_tag=self._reader.last, multiple=True))

    async def _put(self, octets: bytes) -> None:
        self._size += len(octets)
        room = self.channel.frame_max - 8
        method = m.encode(m.BasicPublish(routing_key=self._queue, mandatory=True))
        header = _CONTENT.pack(CLASS_ID, 0, len(octets)) + self._properties
        frames = [_frame(1, method), _frame(2, header)]
        frames += [_frame(3, octets[at : at + room]) for at in range(0, len(octets), room)]
        self.channel.write(b"".join(frames))
        self._sent += 1
        number = self._sent
        while self._confirmed < number and not self.channel.lost.done():
            self._moved.clear()
            try:
                async with asyncio.timeout(CONFIRM_S):
                    await self._moved.wait()
            except TimeoutError:
                if not self.channel.blocked:  # a broker that blocks confirms when it has room again
                    raise Lost(f"{self.channel.where}: a record was not confirmed in {CONFIRM_S:g} s") from None
        if self._confirmed < number:
            raise self.channel.lost.result()

    def _method(self, method: m.Method) -> None:
        match method:
            case m.BasicAck():
                if method.delivery_tag > self._sent:
                    raise Malformed("a confirm of what was not published")
                self._confirmed = max(self._confirmed, method.delivery_tag)
                self._moved.set()
            case m.BasicDeliver() if self._reader is not None:
                self._reader.delivered(method.delivery_tag)
            case m.BasicNack() | m.BasicReturn():
                raise Lost(f"{self.channel.where}: a record for queue '{self._queue}' was refused: is it there?")

    def _content(self, kind: int, payload: bytes) -> None:
        if self._reader is not None and kind != HEARTBEAT:
            self._reader.content(kind, payload)
            self._moved.set()


def _folded(found: list[bytes]) -> State:
    return state(body for octets in found for _, body in records_of(octets))


def _summed(of: State) -> bytes:
    return b"".join(map(framed, summary(of)))


def _opened(found: list[bytes], name: str) -> State:
    """In a new session. Raises BadLedger."""
    new = framed(opened(f"{name}/{uuid.uuid4().hex}".encode()))
    known = _folded(found if any(map(len, found)) else [new])
    if not known.producer.startswith(f"{name}/".encode()):
        known = _folded([new])
    try:
        session = begun(known, time.time())
        _summed(session)
    except (struct.error, OverflowError):
        raise BadLedger("its numbers are too high") from None
    return session


class _Reader:
    """Takes in what a ledger's queue hands out: records of its user; others are acknowledged at once."""

    def __init__(self, channel: Channel, count: int) -> None:
        """`count`: messages that are ready."""
        self.found: list[bytes] = []
        self.last = 0
        """Delivery tag of the last one that is kept."""
        self.too_much = False
        self._channel, self._left = channel, count
        self._tag = self._missing = self._size = 0
        self._own = False
        self._parts: list[bytes] = []

    @property
    def missing(self) -> int:
        """Messages that did not come."""
        return self._left

    @property
    def done(self) -> bool:
        """All came, or more than a ledger has."""
        return self._left <= 0 or self.too_much

    def delivered(self, tag: int) -> None:
        """basic.deliver."""
        if self._missing:
            raise Malformed("a delivery within a delivery")
        self._tag, self._parts = tag, []

    def content(self, kind: int, payload: bytes) -> None:
        """A frame of a header or of a body. Raises Malformed, AmqpError."""
        if not self._tag:
            return
        if kind == 2:
            if self._missing or len(payload) < _CONTENT.size:
                raise Malformed("a header without its delivery")
            _, _, self._missing = _CONTENT.unpack_from(payload)
            self._own = decode(payload[_CONTENT.size :]).user_id == self._channel.where.user and not self.done
            if self._own:
                self._size += self._missing
                self.too_much |= self._size > BYTES_MAX or len(self.found) >= MESSAGES_MAX
                self._own = not self.too_much
        else:
            if not 0 < len(payload) <= self._missing:
                raise Malformed("a body without its header")
            self._missing -= len(payload)
            if self._own:
                self._parts.append(payload)
        if not self._missing:
            self._end()

    def _end(self) -> None:
        tag, self._tag = self._tag, 0
        self._left -= 1
        if self._own:
            self.found.append(b"".join(self._parts))
            self.last = tag
        elif not self.too_much:
            self._channel.send(m.BasicAck(delivery_tag=tag))


def _frame(kind: int, payload: bytes) -> bytes:
    return _HEAD.pack(kind, 1, len(payload)) + payload + b"\xce"
