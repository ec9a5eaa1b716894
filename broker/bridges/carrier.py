"""Carries out what a mover wants, between two open channels (waits).

Effects are carried out at once and in their order. Records go to the ledger in groups: what was asked for while one
group was written is the next one. While the destination takes nothing, the source is not read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Final, Protocol

from clusterbroker.broker.bridges.channel import Channel, Lost, Refused
from clusterbroker.broker.bridges.errors import Malformed
from clusterbroker.broker.bridges.ledger import State
from clusterbroker.broker.bridges.mover import (
    Cancel,
    Consume,
    Effect,
    End,
    Look,
    Mover,
    Phase,
    Plan,
    Publish,
    Record,
    Settle,
)
from clusterbroker.broker.bridges.rewriting import Parcel, Rewriter
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring.queue_rules import MOVER_PREFIX

TAG: Final = "mover"
WINDOW_MAX: Final = 65535
"""Of a prefetch count."""


class Ledger(Protocol):
    """Where records are kept."""

    async def append(self, bodies: Sequence[bytes]) -> None:
        """Returns when they are durable. Raises OSError, Lost."""


def lock_name(name: str) -> str:
    """The exclusive queue at a source that a mover has as long as it is connected, so that there is one of its name."""
    return MOVER_PREFIX + name


async def locked(source: Channel, name: str) -> None:
    """Raises Lost (405) while another connection has the lock, or (403) without the right to it."""
    queue = lock_name(name)
    try:
        await source.call(m.QueueDeclare(queue=queue, exclusive=True, auto_delete=True), m.QueueDeclareOk)
    except Lost as lost:
        if lost.code == 405:
            raise Lost("another mover of this name is connected to the source: end it, or wait", 405) from None
        if lost.code == 403:
            user, where = source.where.user, source.where
            raise Lost(f"user '{user}' needs configure on '^clusterbroker\\.mover\\.' at {where}", 403) from None
        raise


def refused(destination: Channel) -> Lost:
    """The destination has sent basic.nack."""
    return Lost(f"{destination.where}: a message was refused: the queue is full, or without a leader")


class Carrier:
    """One queue. `run` returns when the mover is over."""

    def __init__(
        self,
        source: Channel,
        queue: str,
        destination: Channel,
        rewriter: Rewriter,
        plan: Plan,
        ledger: tuple[Ledger, State] | None,
        tell: Callable[[Mover], object] = lambda _: None,
        gather_s: float = 0.0,
    ) -> None:
        """`ledger` with its state: counted; None: plain. `tell`: hears of progress. `gather_s`: records that come
        within this time are written together."""
        self.mover = Mover(plan, ledger[1] if ledger is not None else None)
        self._source, self._queue, self._destination = source, queue, destination
        self._ledger = ledger[0] if ledger is not None else None
        self._tell, self._gather_s = tell, gather_s
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._records: deque[tuple[bytes, ...]] = deque()
        self._record_asked = asyncio.Event()
        self._prefetch = 0
        self._qos: deque[bool] = deque()  # answers that will come; True: of a Settle
        self._tasks: set[asyncio.Task[None]] = set()
        source.on_parcel, source.on_method = self._delivered, self._from_source
        destination.on_method = self._from_destination
        destination.on_writable = source.reading
        source.rewrite(rewriter)

    async def run(self) -> Mover:
        """Raises Lost, Refused, OSError (the ledger)."""
        await self._destination.call(m.ConfirmSelect(), m.ConfirmSelectOk)
        if self._ledger is not None:
            self._begin(self._write_records(self._ledger))
        for channel in (self._source, self._destination):
            channel.lost.add_done_callback(self._lost)
        try:
            self._carry_out(self.mover.tick(self._loop.time()))
            await self._over
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._source.on_parcel = lambda _: None
            self._source.on_method = self._destination.on_method = lambda _: None
        return self.mover

    def _begin(self, work: Coroutine[object, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _lost(self, lost: asyncio.Future[Exception]) -> None:
        self._fail(lost.result())

    def _fail(self, error: BaseException) -> None:
        if not self._over.done():
            self._over.set_exception(error)

    # -- effects ----------------------------------------------------------------------------------------------

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        if self._over.done():
            return
        for effect in effects:
            match effect:
                case Publish(parcel):
                    self._destination.write(parcel.frames)
                case Record(bodies):
                    self._records.append(bodies)
                    self._record_asked.set()
                case Consume(count):
                    self._consume(min(count, WINDOW_MAX))
                case Cancel():
                    self._source.send(m.BasicCancel(consumer_tag=TAG))
                case Settle(tag, sync):
                    self._source.send(m.BasicAck(delivery_tag=tag, multiple=True))
                    if sync:
                        self._ask_qos(settles=True)
                case Look():
                    self._begin(self._look())
                case End():
                    self._over.set_result(None)
        self._tell(self.mover)
        self._watch()

    def _consume(self, count: int) -> None:
        if count != self._prefetch:
            self._prefetch = count
            self._ask_qos(settles=False)
        self._source.send(m.BasicConsume(queue=self._queue, consumer_tag=TAG))

    def _ask_qos(self, *, settles: bool) -> None:
        self._qos.append(settles)
        self._source.send(m.BasicQos(prefetch_count=self._prefetch))

    async def _look(self) -> None:
        """By a declaration, which takes nothing; RabbitMQ refuses basic.get where one consumer is active alone."""
        told = await self._source.call(m.QueueDeclare(queue=self._queue, passive=True), m.QueueDeclareOk)
        self._carry_out(self.mover.depth(told.message_count, self._loop.time()))

    async def _write_records(self, ledger: Ledger) -> None:
        while True:
            await self._record_asked.wait()
            if self._gather_s:
                await asyncio.sleep(self._gather_s)
            self._record_asked.clear()
            asked = list(self._records)
            self._records.clear()
            bodies = [body for each in asked for body in each]
            if bodies:
                await ledger.append(bodies)
            for _ in asked:
                self._carry_out(self.mover.recorded(self._loop.time()))

    # -- events -----------------------------------------------------------------------------------------------

    def _delivered(self, parcel: Parcel) -> None:
        self._carry_out(self.mover.delivered(parcel, self._loop.time()))

    def _from_source(self, method: m.Method) -> None:
        now_s = self._loop.time()
        match method:
            case m.BasicQosOk():
                if not self._qos:
                    raise Malformed("an answer to basic.qos that nobody waits for")
                if self._qos.popleft():
                    self._carry_out(self.mover.synced(now_s))
            case m.BasicConsumeOk():
                self._carry_out(self.mover.begun(now_s))
            case m.BasicCancelOk():
                self._carry_out(self.mover.cancelled(now_s))
            case m.BasicCancel():
                raise Lost(f"{self._source.where}: queue '{self._queue}' was deleted, or moves to another node")

    def _from_destination(self, method: m.Method) -> None:
        match method:
            case m.BasicAck():
                now_s = self._loop.time()
                self._carry_out(self.mover.confirmed(method.delivery_tag, method.multiple, now_s))
            case m.BasicNack():
                raise refused(self._destination)
            case m.BasicReturn():
                key, exchange = method.routing_key, method.exchange
                told = f"by exchange '{exchange}' and key '{key}'" if exchange else f"to queue '{key}'"
                self._fail(Refused(f"{self._destination.where}: no way {told}: declare the queue, or bind one"))
                raise Lost("returned")

    def _watch(self) -> None:
        """The timer is set for the mover's time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_s = self.mover.due_s
        if due_s != float("inf") and not self._over.done() and self.mover.phase is not Phase.OVER:
            self._timer = self._loop.call_at(due_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._carry_out(self.mover.tick(self._loop.time()))
