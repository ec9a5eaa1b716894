"""The load of a trial: publishers with confirms and consumers of three kinds, which write down all that they see.

Publishers number their messages, keep what is not confirmed, and publish it again on the next connection, in order.
They are of four kinds:

    confirms    publisher confirms
    commits     transactions of up to 20 messages
    numbered    confirms, and the broker is told the numbers (x-producer): what is published again comes once
    dying       confirms, through a queue of their own whose messages expire soon and go on as dead letters

Consumers take by push, by basic.get, or by either in turn; they hold what they got for a moment before they
acknowledge, so that every fault meets messages that are held. Whoever loses a connection dials another node.

Everything is in one queue or a few of one prefix; a message goes to the queue of its publisher. A round ends with
`settle`: nothing is published any more, all is confirmed, delivered and acknowledged, and the queues are empty.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from clusterbroker.broker.trial.client import Client, ClientLost, Delivery, Target
from clusterbroker.broker.trial.history import History, What
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp091.fields import Table

TICK_S: Final = 0.005
REDIAL_S: Final = 0.02
KINDS: Final = ("push", "get", "either")
CONFIRMS: Final = "confirms"
COMMITS: Final = "commits"
NUMBERED: Final = "numbered"
DYING: Final = "dying"
PUBLISHER_KINDS: Final = (CONFIRMS, COMMITS, NUMBERED, DYING)
QUEUE_KINDS: Final[tuple[Table, ...]] = (
    {},
    {"x-single-active-consumer": True},
    {"x-ownership": "rotating", "x-ownership-hold-ms": 100},
    {"x-max-priority": 3},
)
BATCH_MAX: Final = 20
"""messages of one transaction"""
DYING_MS: Final = 30


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """How much load, and where."""

    targets: tuple[Target, ...]
    prefix: str
    """the queues are PREFIX-0, PREFIX-1, ..."""
    queues: int = 3
    publishers: int = 3
    consumers: int = 6
    """the first of each queue takes by push, the second by get, the third by either, changing at each connection"""
    rate_per_s: float = 600
    """of all publishers together"""
    window: int = 100
    """unconfirmed messages of one publisher"""
    prefetch: int = 50
    hold_s: float = 0.05
    """a consumer acknowledges after up to so long"""
    body_bytes: int = 100
    arguments: Table = field(default_factory=lambda: {"x-queue-type": "quorum"})
    kinds: tuple[str, ...] = (CONFIRMS,)
    """of publishers: the first is of the first kind, and so on, over and over"""
    committing: int = 0
    """every so many-th consumer acknowledges in transactions; 0: none does"""
    extras: tuple[Table, ...] = ({},)
    """more arguments of the first queue, of the second, and so on, over and over"""

    def queue(self, number: int) -> str:
        return f"{self.prefix}-{number % self.queues}"

    def kind(self, publisher: int) -> str:
        return self.kinds[publisher % len(self.kinds)]

    @property
    def declared(self) -> dict[str, Table]:
        """All queues with their arguments."""
        dying = {
            f"{self.prefix}-dying-{number}": {
                **self.arguments,
                "x-message-ttl": DYING_MS,
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": self.queue(number),
            }
            for number in range(self.publishers)
            if self.kind(number) == DYING
        }
        extras = self.extras
        return {
            **{self.queue(n): {**self.arguments, **extras[n % len(extras)]} for n in range(self.queues)},
            **dying,
        }

    @property
    def numbered(self) -> frozenset[int]:
        """The publishers whose messages come once, however often they are published."""
        return frozenset(number for number in range(self.publishers) if self.kind(number) == NUMBERED)


class Load:
    """`start`, rounds of `publish` and `settle`, `stop`. `history` is replaced at each `new_history`."""

    def __init__(self, plan: LoadPlan, seed: int) -> None:
        self.plan = plan
        self.random = random.Random(seed)  # noqa: S311 - chooses nodes, not secrets
        self.history = History()
        self.publishing = asyncio.Event()
        self.ended = False
        self.unseen: set[tuple[int, int]] = set()
        """confirmed and not yet delivered"""
        self._early: set[tuple[int, int]] = set()
        """delivered before the confirm came"""
        self.confirmed = self.delivered = 0
        self.last_confirm_s = self.last_delivery_s = time.monotonic()
        self.mistakes: list[BaseException] = []
        self._sessions = 0
        self._publishers = [_Publisher(self, number) for number in range(plan.publishers)]
        self._consumers = [_Consumer(self, number) for number in range(plan.consumers)]
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, timeout_s: float = 30) -> None:
        """Declares the queues and starts the clients. Raises ClientLost when no node declares within the timeout."""
        for queue, arguments in self.plan.declared.items():
            await self._anywhere(m.QueueDeclare(queue=queue, durable=True, arguments=arguments), timeout_s)
        for client in self.clients:
            self._tasks.append(asyncio.create_task(self._watched(client)))

    async def _watched(self, client: _Session) -> None:
        try:
            await client.run()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.mistakes.append(error)
            raise

    def resume(self) -> None:
        """Publish on."""
        self.publishing.set()

    @property
    def clients(self) -> list[_Session]:
        """All publishers and consumers."""
        return [*self._publishers, *self._consumers]

    @property
    def settled(self) -> bool:
        """Everything that was published is confirmed, delivered and acknowledged, as far as the clients know."""
        waiting = any(publisher.unconfirmed for publisher in self._publishers)
        return not waiting and not self.unseen and not any(consumer.held for consumer in self._consumers)

    async def settle(self, timeout_s: float) -> str:
        """Stops publishing and waits until all is through; what is missing when the time is over, "" for nothing."""
        self.publishing.clear()
        deadline_s = time.monotonic() + timeout_s
        waiting = -1
        while time.monotonic() < deadline_s:
            if self.settled:
                try:
                    waiting = await self.depth(timeout_s=5)
                except ClientLost:
                    waiting = -1
                await asyncio.sleep(0.1)  # what is on its way to a consumer is in no count
                if waiting == 0 and self.settled:
                    return ""
            await asyncio.sleep(0.02)
        unconfirmed = sum(len(publisher.unconfirmed) for publisher in self._publishers)
        ready = "an unknown number" if waiting < 0 else f"{waiting:,}"
        return (
            f"after {timeout_s:g} s {unconfirmed:,} messages are not confirmed, {len(self.unseen):,} confirmed ones "
            f"not delivered, {ready} in the queues"
        )

    def new_history(self) -> tuple[History, dict[int, int]]:
        """The history so far, and per publisher the first number of the next one; the load goes on with a new one."""
        old, self.history = self.history, History()
        return old, {publisher.number: publisher.next for publisher in self._publishers}

    async def depth(self, timeout_s: float = 30) -> int:
        """Messages that wait in all queues. Raises ClientLost."""
        total = 0
        for queue in self.plan.declared:
            answer = await self._anywhere(m.QueueDeclare(queue=queue, passive=True), timeout_s)
            assert isinstance(answer, m.QueueDeclareOk), "the answer to a declare"
            total += answer.message_count
        return total

    async def stop(self, delete: bool = False) -> None:
        """Ends all clients; with `delete` the queues as well."""
        self.ended = True
        self.publishing.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if delete:
            for queue in self.plan.declared:
                try:
                    await self._anywhere(m.QueueDelete(queue=queue), 10)
                except ClientLost:
                    return

    async def _anywhere(self, method: m.Method, timeout_s: float) -> object:
        """One method on a connection of its own, to whichever node answers it."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                client = await Client.open(self.random.choice(self.plan.targets))
                try:
                    return await client.call(method, 10)
                finally:
                    await client.close()
            except ClientLost:
                if time.monotonic() > deadline_s:
                    raise
                await asyncio.sleep(REDIAL_S)

    def now_confirmed(self, publisher: int, number: int) -> None:
        """A confirm came: the message is to be delivered, if it was not already."""
        message = (publisher, number)
        if message in self._early:
            self._early.discard(message)
        else:
            self.unseen.add(message)

    def now_delivered(self, publisher: int, number: int) -> None:
        """A message was handed out, for the first time or again."""
        message = (publisher, number)
        if message in self.unseen:
            self.unseen.discard(message)
        elif publisher >= 0 and number in self._publishers[publisher].unconfirmed:
            self._early.add(message)

    def session(self) -> int:
        """A number for a new session."""
        self._sessions += 1
        return self._sessions


class _Session:
    """What publishers and consumers share: dialling, and writing down when a session begins and is lost."""

    def __init__(self, load: Load, name: str, number: int) -> None:
        self.load = load
        self.name = f"{name} {number}"
        self.number = number
        self.session = 0
        self.dials = 0
        self.port = 0
        """of the node that it is connected to, or was"""
        self.polls = False
        """this session asks for its messages by basic.get"""

    async def run(self) -> None:
        while not self.load.ended:
            targets = self.load.plan.targets
            where = targets[(self.number + self.dials) % len(targets)]  # spread, so that no fault hits all of a kind
            self.dials += 1
            try:
                client = await Client.open(where)
            except ClientLost:
                await asyncio.sleep(REDIAL_S)
                continue
            self.port = where.port
            self.session = self.load.session()
            self.choose()
            self.load.history.add(time.monotonic(), What.BEGAN, self.name, self.session, polled=self.polls)
            try:
                await self.serve(client)
            except ClientLost:
                pass
            finally:
                client.abandon("given up")
                self.load.history.add(time.monotonic(), What.LOST, self.name, self.session)
                self.over()

    async def serve(self, client: Client) -> None:
        raise NotImplementedError

    def choose(self) -> None:
        """What kind of session it is going to be."""

    def over(self) -> None:
        """The session is gone."""


class _Publisher(_Session):
    def __init__(self, load: Load, number: int) -> None:
        super().__init__(load, "publisher", number)
        self.next = 0
        self.unconfirmed: dict[int, None] = {}
        """numbers in the order of publishing"""
        self._again: deque[int] = deque()

    async def serve(self, client: Client) -> None:
        plan, load = self.load.plan, self.load
        kind = plan.kind(self.number)
        queue = f"{plan.prefix}-dying-{self.number}" if kind == DYING else plan.queue(self.number)
        in_flight: deque[tuple[int, int]] = deque()  # (delivery tag, number)

        def publish(number: int) -> None:
            body = b"%s %d %d " % (plan.prefix.encode(), self.number, number)
            headers: Table = {"x-producer": self.name, "x-seq": number + 1} if kind == NUMBERED else {}
            tag = client.publish(queue, body.ljust(plan.body_bytes, b"x"), headers)
            in_flight.append((tag, number))
            load.history.add(time.monotonic(), What.PUBLISHED, self.name, self.session, self.number, number)

        def answered(ack: bool, upto: int, multiple: bool) -> None:
            at_s = time.monotonic()
            for entry in list(in_flight):
                tag, number = entry
                if tag > upto:
                    break
                if tag != upto and not multiple:
                    continue
                in_flight.remove(entry)
                what = What.CONFIRMED if ack else What.REFUSED
                load.history.add(at_s, what, self.name, self.session, self.number, number)
                if ack:
                    self.unconfirmed.pop(number, None)
                    load.confirmed += 1
                    load.last_confirm_s = at_s
                    load.now_confirmed(self.number, number)
                else:
                    self._again.append(number)

        client.on_confirm = answered
        await client.call(m.TxSelect() if kind == COMMITS else m.ConfirmSelect())
        self._again = deque(self.unconfirmed)
        window = BATCH_MAX if kind == COMMITS else plan.window
        interval_s = plan.publishers / plan.rate_per_s
        due_s = time.monotonic()
        while not client.lost.is_set() and not load.ended:
            while self._again and len(in_flight) < window:
                publish(self._again.popleft())
            now_s = time.monotonic()
            due_s = max(due_s, now_s - 10 * interval_s)  # what was missed in a gap is not made up for
            while due_s <= now_s and load.publishing.is_set() and len(self.unconfirmed) < window:
                self.unconfirmed[self.next] = None
                publish(self.next)
                self.next += 1
                due_s += interval_s
            if kind == COMMITS and in_flight:
                last = in_flight[-1][0]
                await client.call(m.TxCommit())
                answered(True, last, True)
            await asyncio.sleep(TICK_S)


class _Consumer(_Session):
    def __init__(self, load: Load, number: int) -> None:
        super().__init__(load, "consumer", number)
        self.kind = KINDS[number // load.plan.queues % len(KINDS)]
        self.commits = load.plan.committing > 0 and number % load.plan.committing == load.plan.committing - 1
        self.held: deque[tuple[float, int, int, int]] = deque()
        """(acknowledge at, tag, publisher, number)"""

    def choose(self) -> None:
        self.polls = (self.load.random.choice(("push", "get")) if self.kind == "either" else self.kind) == "get"

    def over(self) -> None:
        self.held.clear()

    async def serve(self, client: Client) -> None:
        load = self.load
        queue = load.plan.queue(self.number)
        if self.commits:
            await client.call(m.TxSelect())
        if not self.polls:
            client.on_deliver = self._take
            await client.call(m.BasicQos(prefetch_count=load.plan.prefetch))
            await client.call(m.BasicConsume(queue=queue))
        while not client.lost.is_set() and not load.ended:
            if self.polls and len(self.held) < load.plan.prefetch:
                got = await client.call(m.BasicGet(queue=queue))
                if isinstance(got, Delivery):
                    self._take(got)
                    await self._acknowledge(client)
                    continue
            await self._acknowledge(client)
            await asyncio.sleep(TICK_S)

    def _take(self, delivery: Delivery) -> None:
        prefix, publisher, number, _ = delivery.body.split(b" ", 3)
        at_s = time.monotonic()
        which = (int(publisher), int(number)) if prefix.decode() == self.load.plan.prefix else (-1, -1)
        self.load.history.add(at_s, What.DELIVERED, self.name, self.session, *which, delivery.flagged, self.polls)
        self.load.now_delivered(*which)
        self.load.delivered += 1
        self.load.last_delivery_s = at_s
        self.held.append((at_s + self.load.random.random() * self.load.plan.hold_s, delivery.tag, *which))

    async def _acknowledge(self, client: Client) -> None:
        now_s = time.monotonic()
        last = 0
        while self.held and self.held[0][0] <= now_s:
            _, last, publisher, number = self.held.popleft()
            self.load.history.add(now_s, What.ACKNOWLEDGED, self.name, self.session, publisher, number)
        if last:
            client.acknowledge(last, multiple=True)
            if self.commits:
                await client.call(m.TxCommit())
