"""Moves the queues of one broker to another, a few at a time, again and again until nothing is left (waits).

    Job        a queue, and what became of it
    Migration  the two brokers, the jobs, the directory of the ledgers

Each queue goes through a fanout exchange of its own, bound to its queue and nothing else: so a message keeps its
routing key, and CC of its publisher does not send it anywhere again. The exchange is deleted with the job.

A stream is read from the place where the last run was, and keeps what it has (`stream_mover`).

What is lost is dialled again for PATIENCE_S, then the job fails, and the next run goes on. A job that cannot succeed
(no right, no queue, a message that cannot go there) fails at once; the others go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Final

from clusterbroker.broker.bridges.carrier import Carrier, locked
from clusterbroker.broker.bridges.channel import CONTENT_BYTES_MAX, Channel, Lost, Refused, is_ours
from clusterbroker.broker.bridges.file_ledger import FileLedger
from clusterbroker.broker.bridges.ledger import BadLedger
from clusterbroker.broker.bridges.mover import Mover, Plan
from clusterbroker.broker.bridges.places import Place
from clusterbroker.broker.bridges.rewriting import Rewriter
from clusterbroker.broker.bridges.stream_carrier import StreamCarrier, StreamPlace
from clusterbroker.broker.bridges.stream_mover import StreamMover
from clusterbroker.broker.wire.amqp091 import methods as m

AT_ONCE: Final = 4
PATIENCE_S: Final = 60.0
AGAIN_S: Final = 1.0
GIVEN_UP: Final = (403, 404, 406, 530)
"""Reply codes with which dialling again would be no use: no right, no queue or vhost, a queue of another kind."""
STREAM_WINDOW: Final = 2_000
"""Of a stream: messages that came and are not confirmed."""
EXCHANGE: Final = "clusterbroker.migration."


class NotBegun(Exception):
    """One line says why nothing was moved."""


@dataclass(slots=True)
class Job:
    """One queue."""

    vhost: str
    queue: str
    expected: int = 0
    """messages that it has, as far as is known"""
    stream: bool = False
    moved: int = 0
    again: int = 0
    """of these: recognised, as they were published by an interrupted run"""
    doubtful: int = 0
    """of these: redelivered, and perhaps moved before"""
    state: str = "waiting"
    """waiting, moving, done, failed"""
    why: str = ""
    base: tuple[int, int, int] = field(default=(0, 0, 0), repr=False)

    @property
    def key(self) -> str:
        """Names its ledger, its exchange and its lock."""
        return blake2b(f"{self.vhost}\0{self.queue}".encode(), digest_size=12).hexdigest()

    def tell(self, mover: Mover | StreamMover) -> None:
        """Progress of the mover of the moment."""
        moved, again, doubtful = self.base
        self.moved, self.again, self.doubtful = moved + mover.moved, again + mover.again, doubtful + mover.doubtful

    def keep(self) -> None:
        """A mover is over: the next one counts anew."""
        self.base = self.moved, self.again, self.doubtful


class StateDirectory:
    """Ledgers of one migration; one process has it at a time."""

    def __init__(self, path: Path, source: Place, destination: Place) -> None:
        """Raises NotBegun, OSError."""
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = path
        self._file = os.open(path / "migration.json", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise NotBegun(f"another process migrates with {path}: end it, or say another --state") from None
        ends = {"from": _end(source), "to": _end(destination)}
        there = os.pread(self._file, 1 << 16, 0)
        with contextlib.suppress(ValueError):
            if there and (known := json.loads(there)) != ends:
                os.close(self._file)
                told = f"from {known.get('from')} to {known.get('to')}"
                raise NotBegun(f"{path} belongs to a migration {told}: say another --state")
        os.pwrite(self._file, json.dumps(ends).encode(), 0)
        os.fsync(self._file)

    def place(self, job: Job) -> StreamPlace:
        """Of a stream. Raises OSError, BadLedger."""
        return StreamPlace(self.path / f"{job.key}.stream", "migration")

    def ledger(self, job: Job) -> FileLedger:
        """Raises OSError, BadLedger."""
        return FileLedger(self.path / f"{job.key}.ledger", "migration")

    def close(self) -> None:
        """Lets others have it."""
        os.close(self._file)


def _end(where: Place) -> str:
    return f"{where.host}:{where.port}"


class Migration:
    """`check`, then `run`."""

    def __init__(
        self,
        source: Place,
        destination: Place,
        state: StateDirectory,
        rate_per_s: float = 0.0,
        patience_s: float = PATIENCE_S,
        tell: Callable[[], object] = lambda: None,
        say: Callable[[str], object] = lambda _: None,
    ) -> None:
        """`rate_per_s`: of all queues together; 0: as fast as it goes. `tell`: hears of progress. `say`: gets a line
        when the destination takes nothing, and when it does again."""
        self.jobs: dict[tuple[str, str], Job] = {}
        self.counted = True
        """The destination knows numbers: nothing is doubled there."""
        self._source, self._destination, self._state = source, destination, state
        self._rate_per_s, self._patience_s, self._tell, self._say = rate_per_s, patience_s, tell, say
        self._blocked = ""
        self._gate = asyncio.Semaphore(AT_ONCE)

    async def check(self, vhost: str) -> None:
        """Both ends can be reached, and they are two. `vhost`: one of those that are moved. Raises NotBegun."""
        name = f"clusterbroker.migration.{uuid.uuid4().hex}"
        try:
            source = await Channel.open(self._source._replace(vhost=vhost))
            try:
                destination = await Channel.open(self._destination._replace(vhost=vhost))
                try:
                    self.counted = is_ours(destination)
                    await source.call(m.QueueDeclare(queue=name, exclusive=True, auto_delete=True), m.QueueDeclareOk)
                    with contextlib.suppress(Lost):
                        await destination.call(m.QueueDeclare(queue=name, passive=True), m.QueueDeclareOk)
                    ended = destination.lost.result() if destination.lost.done() else None
                    if not isinstance(ended, Lost) or ended.code != 404:
                        raise NotBegun("source and destination are the same broker")
                finally:
                    await destination.close()
            finally:
                await source.close()
        except Lost as lost:
            raise NotBegun(str(lost)) from None

    def add(self, jobs: Iterable[Job]) -> None:
        """More queues, or the same ones, with what they have now."""
        for job in jobs:
            known = self.jobs.setdefault((job.vhost, job.queue), job)
            if known is not job and known.state in ("done", "failed"):
                known.expected = job.expected if job.stream else known.moved + job.expected
                known.state = "waiting"

    async def run(self) -> None:
        """All jobs that wait, once. Nothing is raised: each job has its state."""
        waiting = [job for job in self.jobs.values() if job.state == "waiting"]
        share = self._rate_per_s / max(1, min(AT_ONCE, len(waiting)))
        await asyncio.gather(*(self._move(job, share) for job in waiting))

    async def _move(self, job: Job, rate_per_s: float) -> None:
        async with self._gate:
            job.state, job.why = "moving", ""
            until_s = time.monotonic() + self._patience_s
            while True:
                before = job.moved
                try:
                    await self._moved(job, rate_per_s)
                except (Refused, BadLedger, OSError) as error:
                    job.state, job.why = "failed", str(error)
                except Lost as lost:
                    job.why = str(lost)
                    if job.moved > before:
                        until_s = time.monotonic() + self._patience_s
                    if lost.code in GIVEN_UP or time.monotonic() > until_s:
                        job.state = "failed"
                else:
                    job.state, job.why = "done", ""
                job.keep()
                self._tell()
                if job.state != "moving":
                    return
                await asyncio.sleep(AGAIN_S)

    async def _moved(self, job: Job, rate_per_s: float) -> None:
        source = destination = ledger = None
        exchange = EXCHANGE + job.key
        try:
            destination = await Channel.open(self._destination._replace(vhost=job.vhost))
            destination.on_blocked = partial(self._is_blocked, destination)
            declare = m.QueueDeclare(queue=job.queue, passive=True)
            await destination.call(declare, m.QueueDeclareOk)
            await destination.call(
                m.ExchangeDeclare(exchange=exchange, type="fanout", durable=True), m.ExchangeDeclareOk
            )
            await destination.call(m.QueueBind(queue=job.queue, exchange=exchange), m.QueueBindOk)
            source = await Channel.open(self._source._replace(vhost=job.vhost), frame_max=destination.frame_max)
            await locked(source, job.key)
            if job.stream:
                await self._stream_moved(job, source, destination, rate_per_s)
                await destination.call(m.ExchangeDelete(exchange=exchange), m.ExchangeDeleteOk)
                return
            ledger = self._state.ledger(job) if self.counted else None
            producer = ledger.state.producer if ledger is not None else b""
            carrier = Carrier(
                source,
                job.queue,
                destination,
                Rewriter(exchange, None, producer, b"", destination.frame_max, source.frame_max, CONTENT_BYTES_MAX),
                Plan(rate_per_s=rate_per_s),
                (ledger, ledger.state) if ledger is not None else None,
                lambda mover: self._progress(job, mover),
            )
            await carrier.run()
            await destination.call(m.ExchangeDelete(exchange=exchange), m.ExchangeDeleteOk)
        finally:
            if ledger is not None:
                ledger.close()
            for channel in (source, destination):
                if channel is not None:
                    await channel.close()

    async def _stream_moved(self, job: Job, source: Channel, destination: Channel, rate_per_s: float) -> None:
        place = self._state.place(job)
        producer = place.producer if self.counted else b""
        sizes = destination.frame_max, source.frame_max, CONTENT_BYTES_MAX
        rewriter = Rewriter(EXCHANGE + job.key, None, producer, b"", *sizes, True)
        window = min(STREAM_WINDOW, max(1, int(rate_per_s))) if rate_per_s else STREAM_WINDOW
        mover = StreamMover(window, place.offset, numbered=self.counted, rate_per_s=rate_per_s)
        progress: Callable[[StreamMover], None] = lambda mover: self._progress(job, mover)  # noqa: E731
        await StreamCarrier(source, job.queue, destination, rewriter, mover, place, progress).run()

    def _is_blocked(self, destination: Channel) -> None:
        """One line for all queues."""
        if destination.blocked != self._blocked:
            self._blocked = destination.blocked
            why = f"takes nothing at the moment, so messages wait at the source: {self._blocked[:200]}"
            self._say(f"{destination.where} {why if self._blocked else 'takes messages again'}")

    def _progress(self, job: Job, mover: Mover | StreamMover) -> None:
        job.tell(mover)
        self._tell()
