"""Carries out what a stream mover wants, between two open channels, and keeps its place in a file (waits)."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from clusterbroker.broker.bridges.carrier import TAG, refused
from clusterbroker.broker.bridges.channel import Channel, Lost, Refused
from clusterbroker.broker.bridges.ledger import BadLedger
from clusterbroker.broker.bridges.mover import End, Publish, Settle
from clusterbroker.broker.bridges.rewriting import Parcel, Rewriter
from clusterbroker.broker.bridges.stream_mover import Reached, Read, StreamEffect, StreamMover
from clusterbroker.broker.wire.amqp091 import methods as m

TICK_S: Final = 0.1


class StreamPlace:
    """The name under which a stream's messages are numbered, and the offset that is read next."""

    def __init__(self, path: Path, name: str) -> None:
        """Opens or makes it. Raises OSError, BadLedger. `name`: begins the producer of a new one."""
        self._path = path
        self.producer, self.offset = f"{name}/{uuid.uuid4().hex}".encode(), 0
        if path.exists():
            try:
                told = json.loads(path.read_bytes())
                self.producer, self.offset = str(told["producer"]).encode(), int(told["offset"])
            except (ValueError, KeyError, TypeError):
                raise BadLedger(f"{path} cannot be read") from None
        else:
            self.reach(0)

    def reach(self, offset: int) -> None:
        """All below is there; it may be lost with a crash of this machine, and then comes again. Raises OSError."""
        self.offset = offset
        beside = self._path.with_suffix(".new")
        with beside.open("w") as file:
            json.dump({"producer": self.producer.decode(), "offset": offset}, file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._path)


class StreamCarrier:
    """One stream. `run` returns when its end is reached."""

    def __init__(
        self,
        source: Channel,
        stream: str,
        destination: Channel,
        rewriter: Rewriter,
        mover: StreamMover,
        place: StreamPlace,
        tell: Callable[[Any], object],
    ) -> None:
        self.mover = mover
        self._source, self._stream, self._destination = source, stream, destination
        self._place, self._tell = place, tell
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        source.on_parcel, source.on_method = self._delivered, self._from_source
        destination.on_method = self._from_destination
        destination.on_writable = source.reading
        source.rewrite(rewriter)

    async def run(self) -> None:
        """Raises Lost, Refused, OSError."""
        await self._destination.call(m.ConfirmSelect(), m.ConfirmSelectOk)
        for channel in (self._source, self._destination):
            channel.lost.add_done_callback(lambda lost: self._fail(lost.result()))
        self._carry_out(self.mover.begin())
        try:
            while not (await asyncio.wait((self._over,), timeout=TICK_S))[0]:
                self._carry_out(self.mover.tick(self._loop.time()))
            self._over.result()
        finally:
            self._source.on_parcel = lambda _: None
            self._source.on_method = self._destination.on_method = lambda _: None

    def _fail(self, error: BaseException) -> None:
        if not self._over.done():
            self._over.set_exception(error)

    def _carry_out(self, effects: Sequence[StreamEffect]) -> None:
        for effect in effects:
            match effect:
                case Read(count, offset):
                    self._source.send(m.BasicQos(prefetch_count=count))
                    consume = m.BasicConsume(
                        queue=self._stream, consumer_tag=TAG, arguments={"x-stream-offset": offset}
                    )
                    self._source.send(consume)
                case Publish(parcel):
                    self._destination.write(parcel.frames)
                case Settle(tag):
                    self._source.send(m.BasicAck(delivery_tag=tag, multiple=True))
                case Reached(offset):
                    try:
                        self._place.reach(offset)
                    except OSError as error:
                        self._fail(error)
                case End():
                    if not self._over.done():
                        self._over.set_result(None)
        self._tell(self.mover)

    def _delivered(self, parcel: Parcel) -> None:
        self._carry_out(self.mover.delivered(parcel, self._loop.time()))

    def _from_source(self, method: m.Method) -> None:
        match method:
            case m.BasicConsumeOk():
                self._carry_out(self.mover.begun(self._loop.time()))
            case m.BasicCancel():
                raise Lost(f"{self._source.where}: stream '{self._stream}' was deleted, or moves to another node")

    def _from_destination(self, method: m.Method) -> None:
        match method:
            case m.BasicAck():
                now_s = self._loop.time()
                self._carry_out(self.mover.confirmed(method.delivery_tag, method.multiple, now_s))
            case m.BasicReturn():
                self._fail(Refused(f"{self._destination.where}: no way to stream '{self._stream}': declare it there"))
                raise Lost("returned")
            case m.BasicNack():
                raise refused(self._destination)
