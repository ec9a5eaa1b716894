"""A pool in virtual time: queues, workers, places and a driver around the real policy.

The controller of this world is what the policy needs of one: it enters launches into a log that answers late, tells
readiness and ends, and leads groups through active, unbound, draining, absent. Everything follows from the seed.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from clusterbroker.broker.pools.facts import (
    Gone,
    GroupFacts,
    GroupState,
    PlaceFacts,
    PoolFacts,
    Settings,
    WorkerFacts,
    WorkerState,
)
from clusterbroker.broker.pools.orders import Evict, Fail, Launch, Order, Retire, Stop, SuspendPlace
from clusterbroker.broker.pools.policy import Policy

from .checkers import Checkers

BATCH_S: Final = 0.2
"""Between two steps, at least."""
NOTICE_S: Final = 0.05
"""From an end to the policy's knowledge of it."""
LOST_PLACE_S: Final = 30.0
REQUEST_TTL_S: Final = 900.0
DELIVERY_LIMIT: Final = 3


@dataclass(slots=True)
class Nature:
    """What is true of a key, and learnt only by trying."""

    start_s: float = 3.0
    service_s: float = 0.1
    memory: int = 100
    fails: float = 0.0
    """Chance that a start fails."""
    poison: float = 0.0
    """Chance that a message kills its worker."""
    tenant: str = ""


@dataclass(slots=True)
class Driver:
    """Temper of a place's driver."""

    slow_s: float = 0.0
    fails: float = 0.0
    dies: float = 0.0
    """Chance that a ready worker dies within its first minute."""
    forgets: float = 0.0
    """Chance that a start is lost, and nothing comes of it."""
    doubles: float = 0.0
    """Chance that a start is carried out twice: the second one is "exists already"."""


@dataclass(slots=True)
class Message:
    born_s: float
    poison: bool
    deliveries: int = 0


@dataclass(slots=True)
class Worker:
    id: str
    key: str
    place: str
    version: str
    promised: int
    state: WorkerState
    since_s: float
    ready_s: float | None = None
    held: dict[int, Message] = field(default_factory=dict)
    idle_since_s: float = 0.0
    asked: bool = False
    dead: bool = False
    """It has ended, and nobody knows yet."""

    @property
    def takes(self) -> bool:
        return self.state is WorkerState.READY and not self.dead


@dataclass(slots=True)
class Group:
    key: str
    state: GroupState = GroupState.ACTIVE
    queue: deque[Message] = field(default_factory=deque)
    arrived: int = 0
    settled: int = 0
    service_s: float = 0.0
    workers: dict[str, Worker] = field(default_factory=dict)
    unbound_s: float = 0.0
    timed_s: float = -1.0
    """Idle time for whose end a timer is set."""

    @property
    def held(self) -> int:
        return sum(len(worker.held) for worker in self.workers.values())


@dataclass(slots=True)
class Place:
    name: str
    memory: int
    driver: Driver
    alive: bool = True
    alarm: bool = False


class World:
    """Everything that happens, in order of time."""

    def __init__(self, seed: int, settings: Settings, unbind_s: float = 30.0, stop_s: float = 30.0) -> None:
        self.rng = random.Random(seed)
        self.settings = settings
        self.now_s = 0.0
        self.version = "v1"
        self.policy = Policy(settings, 0.0)
        self.groups: dict[str, Group] = {}
        self.places: dict[str, Place] = {}
        self.natures: dict[str, Nature] = {}
        self.default = Nature()
        self.fairness: set[str] = set()
        """Tenants whose shares are compared."""
        self.unbind_s, self.stop_s = unbind_s, stop_s
        self.counts: Counter[str] = Counter()
        self.steps = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._ids = itertools.count(1)
        self._step_at: float | None = None
        self._stepped_s = 0.0
        self.checkers = Checkers(self)

    # ---- time ----

    def at(self, time_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (max(time_s, self.now_s), next(self._order), action))

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self.at(self.now_s + delay_s, action)

    def run(self, until_s: float) -> None:
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, action = heapq.heappop(self._events)
            action()
        self.now_s = until_s

    @property
    def pending(self) -> int:
        """Things that will happen by themselves."""
        return len(self._events)

    def nature(self, key: str) -> Nature:
        return self.natures.get(key, self.default)

    def add_place(self, name: str, memory: int, driver: Driver | None = None) -> None:
        self.places[name] = Place(name, memory, driver or Driver())

    # ---- messages ----

    def publish(self, key: str, count: int = 1) -> None:
        group = self.groups.setdefault(key, Group(key))
        group.state = GroupState.ACTIVE
        for _ in range(count):
            message = Message(self.now_s, self.rng.random() < self.nature(key).poison)
            group.queue.append(message)
            group.arrived += 1
            self.counts["accepted"] += 1
        if self.policy.failed_until(key, self.now_s) is not None:
            self._answer_all(group, "start_failed")
        else:
            self._hand_out(group)
        self.wake()

    def _answer_all(self, group: Group, reason: str) -> None:
        self.counts[reason] += len(group.queue)
        group.queue.clear()

    def _hand_out(self, group: Group) -> None:
        for worker in group.workers.values():
            while worker.takes and group.queue and len(worker.held) < self.settings.prefetch:
                message = group.queue.popleft()
                if self.now_s - message.born_s > REQUEST_TTL_S:
                    self.counts["expired"] += 1
                    continue
                self._deliver(group, worker, message)

    def _deliver(self, group: Group, worker: Worker, message: Message) -> None:
        number = next(self._ids)
        worker.held[number] = message
        message.deliveries += 1
        begun_s = self.now_s
        service_s = self.nature(group.key).service_s * self.rng.uniform(0.8, 1.2)

        def done() -> None:
            if worker.held.get(number) is not message:
                return  # it went back to the queue
            if message.poison:
                self._ends(worker, "killed by its message")
                return
            del worker.held[number]
            worker.idle_since_s = self.now_s
            group.settled += 1
            group.service_s += self.now_s - begun_s
            self.counts["acked"] += 1
            self._hand_out(group)
            self.wake()

        self.after(service_s, done)

    # ---- workers ----

    def _launch(self, order: Launch) -> None:
        worker_id = f"w{next(self._ids)}"
        group = self.groups[order.key]
        worker = Worker(
            worker_id, order.key, order.place, order.version, order.memory, WorkerState.WANTED, self.now_s,
        )  # fmt: skip
        group.workers[worker_id] = worker
        place = self.places[order.place]
        nature, driver, rng = self.nature(order.key), place.driver, self.rng
        if not place.alive or rng.random() < driver.forgets:
            return  # nothing comes of it
        takes_s = nature.start_s * rng.uniform(0.9, 1.1) + driver.slow_s
        if rng.random() < max(nature.fails, driver.fails):
            self.after(takes_s / 2, lambda: self._ends(worker, "exit status 70"))
            return
        self.after(min(0.1, takes_s), lambda: self._begins(worker))
        self.after(takes_s, lambda: self._is_ready(worker))
        if rng.random() < driver.doubles:
            self.after(takes_s, lambda: self._is_ready(worker))
        if rng.random() < driver.dies:
            self.after(takes_s + rng.uniform(0, 60), lambda: self._ends(worker, "killed"))

    def _begins(self, worker: Worker) -> None:
        if worker.state is WorkerState.WANTED and self._lives(worker):
            worker.state = WorkerState.STARTING

    def _lives(self, worker: Worker) -> bool:
        group = self.groups.get(worker.key)
        return group is not None and worker.id in group.workers and not worker.dead and self.places[worker.place].alive

    def _is_ready(self, worker: Worker) -> None:
        if not self._lives(worker) or worker.state not in (WorkerState.WANTED, WorkerState.STARTING):
            return
        took_s = self.now_s - worker.since_s
        worker.state, worker.since_s, worker.ready_s = WorkerState.READY, self.now_s, self.now_s
        worker.idle_since_s = self.now_s
        self.checkers.ready(worker.key)
        self.policy.worker_ready(worker.key, worker.place, took_s, self.now_s)
        self._hand_out(self.groups[worker.key])
        self.wake()

    def _ends(self, worker: Worker, detail: str) -> None:
        """A process ends: its messages return at once, the books are closed a moment later."""
        group = self.groups.get(worker.key)
        if group is None or worker.id not in group.workers or worker.dead:
            return
        worker.dead = True
        for message in worker.held.values():
            if message.deliveries >= DELIVERY_LIMIT:
                self.counts["delivery_limit"] += 1
            else:
                group.queue.appendleft(message)
        worker.held.clear()
        peak = self.nature(worker.key).memory if worker.ready_s is not None else 0
        asked = worker.asked or worker.state in (WorkerState.RETIRING, WorkerState.STOPPING)
        gone = Gone(worker.key, worker.id, worker.place, worker.ready_s is not None, asked, peak, detail)

        def told() -> None:
            del group.workers[worker.id]
            self.checkers.ended(gone)
            self._carry_out(self.policy.worker_gone(gone, self.now_s))
            self._hand_out(group)
            self.wake()

        self.after(NOTICE_S, told)

    def lose_place(self, name: str, back_after_s: float) -> None:
        """A node dies with its workers; its launches are revoked LOST_PLACE_S later."""
        place = self.places[name]
        place.alive = False
        lost = [each for group in self.groups.values() for each in group.workers.values() if each.place == name]
        for worker in lost:
            self._return_held(worker)
            worker.state = WorkerState.STOPPING if worker.state is not WorkerState.WANTED else worker.state
            worker.asked = True
            self.after(LOST_PLACE_S, lambda worker=worker: self._ends(worker, "its place is lost"))  # type: ignore[misc]

        def back() -> None:
            place.alive = True
            self.wake()

        self.after(back_after_s, back)
        self.wake()

    def _return_held(self, worker: Worker) -> None:
        self.groups[worker.key].queue.extendleft(worker.held.values())
        worker.held.clear()

    # ---- the controller's part ----

    def wake(self) -> None:
        """Something happened: a step soon. Events that come close together have one."""
        self._plan(max(self.now_s, self._stepped_s + BATCH_S))

    def _plan(self, time_s: float) -> None:
        if self._step_at is None or time_s < self._step_at:
            self._step_at = time_s
            self.at(time_s, lambda: self._step(time_s))

    def _step(self, planned_s: float) -> None:
        if self._step_at != planned_s:
            return  # an earlier one took its place
        self._step_at, self._stepped_s = None, self.now_s
        self.steps += 1
        facts = self.facts()
        self.checkers.before(facts)
        orders = self.policy.step(facts, self.now_s)
        self.checkers.after(facts, orders)
        self._carry_out(orders)
        self._lead()
        if (next_s := self.policy.next_s(self.now_s)) is not None:
            self._plan(next_s)

    def facts(self) -> PoolFacts:
        return PoolFacts(
            groups={key: self._group_facts(group) for key, group in self.groups.items()},
            places={
                name: PlaceFacts(name, place.memory, suspended=not place.alive, alarm=place.alarm)
                for name, place in self.places.items()
            },
            version=self.version,
        )

    def _group_facts(self, group: Group) -> GroupFacts:
        workers = tuple(
            WorkerFacts(
                worker.id, worker.place, worker.state, worker.since_s, len(worker.held), worker.idle_since_s,
                version=worker.version,
            )
            for worker in group.workers.values()
        )  # fmt: skip
        return GroupFacts(
            group.key, group.state, len(group.queue), group.held, group.arrived, group.settled, group.service_s,
            workers, self.nature(group.key).tenant,
        )  # fmt: skip

    def _carry_out(self, orders: list[Order]) -> None:
        for order in orders:
            match order:
                case Launch():
                    self.counts["launches"] += 1
                    self._launch(order)
                case Retire():
                    worker = self.groups[order.key].workers[order.worker]
                    worker.state, worker.since_s = WorkerState.RETIRING, self.now_s
                case Stop():
                    self._stop(self.groups[order.key].workers[order.worker])
                case Fail():
                    self.counts["fails"] += 1
                    if (group := self.groups.get(order.key)) is not None:
                        self._answer_all(group, "start_failed")
                case Evict():
                    self.counts["evictions"] += 1
                case SuspendPlace():
                    self.counts["suspensions"] += 1

    def _stop(self, worker: Worker) -> None:
        worker.state, worker.asked = WorkerState.STOPPING, True
        self.after(0.2, lambda: self._ends(worker, "stopped"))

    def _lead(self) -> None:
        """Idle groups are unbound, drained and dropped, by the policy's own idle clocks."""
        for key, group in list(self.groups.items()):
            idle_s = self.policy.idle_s(key, self.now_s)
            busy = bool(group.queue or group.held)
            if not busy and abs(self.now_s - idle_s - group.timed_s) > 1e-3:  # the controller's own timer
                group.timed_s = self.now_s - idle_s
                self.after(self.unbind_s - idle_s + 1e-3, self.wake)
            if group.queue:
                group.state = GroupState.ACTIVE
            elif group.state is GroupState.ACTIVE and idle_s >= self.unbind_s:
                self.checkers.idle(group)
                group.state, group.unbound_s = GroupState.UNBOUND, self.now_s
                self.after(self.stop_s + 1e-3, self.wake)
            elif group.state is GroupState.UNBOUND and idle_s >= self.unbind_s + self.stop_s:
                self.checkers.idle(group)
                group.state = GroupState.DRAINING
                self.after(0, self.wake)
            elif group.state is GroupState.DRAINING and not group.workers:
                self.checkers.dropped(group)
                del self.groups[key]
                self.wake()
