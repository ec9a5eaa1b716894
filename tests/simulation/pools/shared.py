"""A pool whose workers serve several keys, in virtual time, around the real policy; and one run of it.

Invariants, judged from what is true in the world:

    room  a worker has `keys_per_worker` keys at most, the pool `max_workers` workers, a place what it has
    I10   no key is taken from a worker that holds a request of it; one that is busy gives way to a starved one alone
    lru   of a worker's keys that hold nothing the least recently used one gives way
    I8    the key that starves longest gets a worker within the bound, while one serves at a place that takes keys
    I11   rest: without load everything is gone after the delays, and nothing ticks
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Final

from clusterbroker.broker.pools.facts import Gone, GroupFacts, PoolFacts, Settings, WorkerFacts, WorkerState
from clusterbroker.broker.pools.holdings import of_seat, seat_of
from clusterbroker.broker.pools.orders import Assign, Launch, Order, Retire, Stop
from clusterbroker.cluster.wiring.pool_entities import NO_KEY

from .checkers import Checkers, require
from .run import QUIET_S, _arrivals, _disturb, _driver
from .world import DELIVERY_LIMIT, LOST_PLACE_S, NOTICE_S, Driver, Group, Nature, Worker, World

BOUND_S: Final = 15.0
"""Beside `min_run_s`, and what is at work: revocation, assignment, load."""


@dataclass(slots=True)
class Seat(Worker):
    """A key at a worker."""

    host: Worker | None = None

    @property
    def takes(self) -> bool:
        host = self.host
        assert host is not None, "a key is at a worker"
        return self.state is WorkerState.READY and host.state is WorkerState.READY and not host.dead


class SharedWorld(World):
    """See the module. `hosts`: workers by id; a group's workers are its seats."""

    def __init__(self, seed: int, settings: Settings, unbind_s: float = 30.0, stop_s: float = 30.0) -> None:
        super().__init__(seed, settings, unbind_s, stop_s)
        self.hosts: dict[str, Worker] = {}
        self.spares_wanted = 0
        self.checkers = SharedCheckers(self)

    def seats(self, host: Worker) -> list[tuple[Group, Seat]]:
        """Of a worker."""
        return [
            (group, seat)
            for group in self.groups.values()
            for seat in group.workers.values()
            if isinstance(seat, Seat) and seat.host is host
        ]

    # ---- facts ----

    def facts(self) -> PoolFacts:
        hosts = tuple(self._host_facts(host) for host in self.hosts.values())
        return replace(super().facts(), spares=hosts, spares_wanted=self.spares_wanted)

    def _host_facts(self, host: Worker) -> WorkerFacts:
        held = sum(len(seat.held) for _, seat in self.seats(host))
        return WorkerFacts(host.id, host.place, host.state, host.since_s, held, version=host.version)

    def _group_facts(self, group: Group) -> GroupFacts:
        workers = tuple(self._seat_facts(seat) for seat in group.workers.values() if isinstance(seat, Seat))
        return replace(super()._group_facts(group), workers=workers)

    @staticmethod
    def _seat_facts(seat: Seat) -> WorkerFacts:
        host, state, since_s = seat.host, seat.state, seat.since_s
        assert host is not None, "a key is at a worker"
        if host.state in (WorkerState.RETIRING, WorkerState.STOPPING):
            state, since_s = host.state, host.since_s
        elif state is WorkerState.STARTING and host.state is not WorkerState.READY:
            state, since_s = WorkerState.WANTED, math.inf
        return WorkerFacts(
            seat.id, seat.place, state, since_s, len(seat.held), seat.idle_since_s, version=seat.version, host=host.id
        )

    # ---- orders ----

    def _carry_out(self, orders: list[Order]) -> None:
        for order in orders:
            if isinstance(order, (Assign, Retire, Stop)):
                self.after(NOTICE_S, self.wake)  # the log has it
            match order:
                case Assign():
                    self._assign(order.key, self.hosts[order.worker])
                case Retire() | Stop() if (of := of_seat(order.worker)) is not None:
                    seat = self.groups[of[1]].workers[order.worker]
                    if isinstance(order, Stop):
                        del self.groups[of[1]].workers[order.worker]
                    elif seat.state is not WorkerState.RETIRING:
                        self.counts["given back"] += 1
                        seat.state, seat.since_s = WorkerState.RETIRING, self.now_s
                case Retire():
                    host = self.hosts[order.worker]
                    host.state, host.since_s = WorkerState.RETIRING, self.now_s
                case Stop():
                    self._stop(self.hosts[order.worker])
                case _:
                    super()._carry_out([order])

    def _launch(self, order: Launch) -> None:
        host = Worker(
            f"w{next(self._ids)}", NO_KEY, order.place, order.version, order.memory, WorkerState.WANTED, self.now_s
        )
        self.hosts[host.id] = host
        place = self.places[order.place]
        if not place.alive or self.rng.random() < place.driver.forgets:
            return
        takes_s = self.default.start_s * self.rng.uniform(0.9, 1.1) + place.driver.slow_s
        if self.rng.random() < place.driver.fails:
            self.after(takes_s / 2, lambda: self._ends(host, "exit status 70"))
            return
        self.after(takes_s, lambda: self._is_ready(host))
        if self.rng.random() < place.driver.dies:
            self.after(takes_s + self.rng.uniform(0, 60), lambda: self._ends(host, "killed"))

    def _is_ready(self, worker: Worker) -> None:
        if worker.id not in self.hosts or worker.dead or worker.state is not WorkerState.WANTED:
            return
        worker.state, worker.ready_s = WorkerState.READY, self.now_s
        self.policy.worker_ready(NO_KEY, worker.place, self.now_s - worker.since_s, self.now_s)
        worker.since_s = self.now_s
        for group, seat in self.seats(worker):
            self._load(group, seat)
        self.wake()

    def _assign(self, key: str, host: Worker) -> None:
        self.counts["assigned"] += 1
        name = seat_of(host.id, key)
        group = self.groups[key]
        require(name not in group.workers, f"{host.id} gets {key!r} twice")
        seat = Seat(name, key, host.place, host.version, 0, WorkerState.STARTING, self.now_s, host=host)
        group.workers[name] = seat
        if host.state is WorkerState.READY:
            self._load(group, seat)

    def _load(self, group: Group, seat: Seat) -> None:
        seat.since_s = self.now_s
        nature = self.nature(group.key)

        def loaded() -> None:
            if group.workers.get(seat.id) is not seat or seat.state is not WorkerState.STARTING:
                return
            if self.rng.random() < nature.fails:
                gone = Gone(seat.key, seat.id, seat.place, ready=False, asked=False, detail="no key")
                del group.workers[seat.id]
                self._carry_out(self.policy.worker_gone(gone, self.now_s))
            else:
                seat.state, seat.since_s, seat.ready_s = WorkerState.READY, self.now_s, self.now_s
                seat.idle_since_s = self.now_s
                self.policy.worker_ready(seat.key, seat.place, nature.start_s, self.now_s)
                self._hand_out(group)
            self.wake()

        self.after(nature.start_s, loaded)

    def _ends(self, worker: Worker, detail: str) -> None:
        host = worker.host if isinstance(worker, Seat) else worker
        if host is None or host.id not in self.hosts or host.dead:
            return
        host.dead = True
        for group, seat in self.seats(host):
            for message in seat.held.values():
                if message.deliveries >= DELIVERY_LIMIT:
                    self.counts["delivery_limit"] += 1
                else:
                    group.queue.appendleft(message)
            seat.held.clear()
        asked = host.asked or host.state in (WorkerState.RETIRING, WorkerState.STOPPING)

        def told() -> None:
            seats = self.seats(host)
            del self.hosts[host.id]
            for group, seat in seats:
                del group.workers[seat.id]
            orders: list[Order] = []
            served = host.ready_s is not None and bool(seats)
            for _, seat in seats if served else ():
                gone = Gone(seat.key, seat.id, host.place, seat.ready_s is not None, asked, detail=detail)
                orders += self.policy.worker_gone(gone, self.now_s)
            own = Gone(NO_KEY, host.id, host.place, host.ready_s is not None, asked or served, 0, detail)
            orders += self.policy.worker_gone(own, self.now_s)
            self._carry_out(orders)
            self.wake()

        self.after(NOTICE_S, told)

    def lose_place(self, name: str, back_after_s: float) -> None:
        place = self.places[name]
        place.alive = False
        for host in [host for host in self.hosts.values() if host.place == name]:
            for _, seat in self.seats(host):
                self._return_held(seat)
            host.state, host.since_s, host.asked = WorkerState.STOPPING, self.now_s, True
            self.after(LOST_PLACE_S, lambda host=host: self._ends(host, "its place is lost"))  # type: ignore[misc]

        def back() -> None:
            place.alive = True
            self.wake()

        self.after(back_after_s, back)
        self.wake()


class SharedCheckers(Checkers):
    """See the module."""

    _world: SharedWorld

    def __init__(self, world: SharedWorld) -> None:
        super().__init__(world)
        self._longest: tuple[str, float] | None = None

    def after(self, facts: PoolFacts, orders: list[Order]) -> None:
        self._room(facts, orders)
        for order in orders:
            if isinstance(order, Stop) and (of := of_seat(order.worker)) is not None:
                held = len(self._world.groups[of[1]].workers[order.worker].held)
                late = "not ready" in order.why
                require(late or not held, f"I10: {order.worker!r} holds {held}, and loses the key")
        self._gives_way(facts, orders)
        self._starving(facts, orders)

    def _room(self, facts: PoolFacts, orders: list[Order]) -> None:
        world = self._world
        keys = {host: len(world.seats(worker)) for host, worker in world.hosts.items()}
        memory = dict.fromkeys(facts.places, 0.0)
        for host in world.hosts.values():
            memory[host.place] += world.settings.memory
        launches = 0
        for order in orders:
            if isinstance(order, Assign):
                keys[order.worker] += 1
                most = world.settings.keys_per_worker
                require(keys[order.worker] <= most, f"room: {order.worker} has {keys[order.worker]} keys")
                state = world.hosts[order.worker].state
                require(state not in (WorkerState.RETIRING, WorkerState.STOPPING), f"room: {order.worker} leaves")
            elif isinstance(order, Launch):
                launches += 1
                require(order.key == NO_KEY, "room: a worker of several keys begins without one")
                memory[order.place] += world.settings.memory
                place = facts.places[order.place]
                require(memory[order.place] <= place.memory, f"room: {order.place} has {memory[order.place]} claimed")
        count = len(world.hosts) + launches
        require(not launches or count <= world.settings.max_workers, f"room: there are {count} workers")

    def _gives_way(self, facts: PoolFacts, orders: list[Order]) -> None:
        gone: set[str] = set()
        for order in orders:
            if not isinstance(order, Retire) or not order.why.startswith("room for") or of_seat(order.worker) is None:
                continue
            group = facts.groups[order.key]
            (seat,) = [each for each in group.workers if each.id == order.worker]
            idle = [
                each.idle_since_s
                for other in facts.groups.values()
                if not other.busy and not other.pinned and len(other.active) > self._world.settings.min
                for each in other.workers
                if each.state is WorkerState.READY and each.id not in gone and each.host == seat.host
            ]
            if group.busy:
                wanted = next(key for key in facts.groups if order.why == f"room for {key!r}")
                require(self._starved(facts, wanted), f"I10: {order.key!r} is busy, and gives way to {wanted!r}")
            elif idle:
                require(seat.idle_since_s <= min(idle) + 1e-9, f"lru: {order.key!r} was used later than another one")
            gone.add(order.worker)

    def _starving(self, facts: PoolFacts, orders: list[Order]) -> None:
        world = self._world
        served = {order.key for order in orders if isinstance(order, Assign)}
        starving = sorted(
            (since_s, key)
            for key in facts.groups
            if (since_s := world.policy.waiting_since(key)) is not None and key not in served
            if self._starved(facts, key) and facts.groups[key].ready
        )
        takes = {name for name, place in facts.places.items() if not (place.alarm or place.suspended)}
        serves = any(
            host.state is WorkerState.READY and not host.dead and host.place in takes for host in world.hosts.values()
        )
        if not starving or not serves or world.settings.min or len({each.version for each in facts.spares}) > 1:
            self._longest = None
            return
        key = starving[0][1]
        if self._longest is None or self._longest[0] != key:
            self._longest = key, self._now_s
        waited_s = self._now_s - self._longest[1]
        at_work_s = max(nature.service_s for nature in (world.default, *world.natures.values())) * 1.2
        bound_s = world.settings.min_run_s + at_work_s * world.settings.prefetch + BOUND_S
        require(waited_s <= bound_s, f"I8: {key!r} starves longest, and had {bound_s:.0f} s for a worker")

    def ended(self, gone: Gone) -> None:
        """Starts of a key are no workers' here."""

    def rest(self) -> None:
        require(not self._world.hosts, f"I11: without load these workers stay: {sorted(self._world.hosts)}")
        super().rest()


@dataclass(frozen=True, slots=True)
class Report:
    """Course of a run."""

    accepted: int
    acked: int
    launches: int
    assigned: int
    given_back: int
    steps: int


def run(seed: int) -> Report:
    """Live one seed; raises Violation."""
    rng = random.Random(f"shared {seed}")
    settings = Settings(
        min=0,
        max=rng.choice((1, 1, 3)),
        max_workers=rng.choice((1, 2, 5)),
        keys_per_worker=rng.choice((2, 3, 5)),
        prefetch=rng.choice((1, 4)),
        service_s=0.1,
        memory=100,
        start_timeout_s=30.0,
        grace_s=5.0,
        scale_to_zero_while_bound=rng.random() < 0.3,
    )
    world = SharedWorld(seed, settings, unbind_s=rng.choice((10.0, 60.0)), stop_s=rng.choice((0.0, 30.0)))
    world.default = Nature(start_s=2.0)
    calm = rng.random() < 0.3
    for number in range(rng.randint(1, 3)):
        world.add_place(f"p{number}", rng.choice((150, 300, 1_000)), _driver(rng, calm))
    hot = rng.random() < 0.3
    for number in range(6 if hot else rng.choice((2, 6, 15))):
        key = f"k{number}"
        world.natures[key] = Nature(
            rng.uniform(0.1, 2), rng.uniform(0.02, 1), fails=rng.choice((0, 0, 0, 0.3)), poison=rng.choice((0, 0, 0.02))
        )
        rate = 3.0 if hot else rng.choice((0.05, 0.3, 2.0))
        _arrivals(world, rng, key, 0, 240, lambda _time_s, rate=rate: rate)  # type: ignore[misc]
    if not calm:
        _disturb(world, rng, 240)
    world.run(240)
    for place in world.places.values():
        place.driver = Driver(slow_s=place.driver.slow_s)
        place.alarm = False
    for nature in world.natures.values():
        nature.fails = 0.0
    world.wake()
    world.run(240 + QUIET_S)
    world.checkers.rest()
    counts = world.counts
    ended = counts["acked"] + counts["delivery_limit"] + counts["start_failed"] + counts["expired"]
    require(ended == counts["accepted"], f"I1: {counts['accepted']} accepted, {ended} ended: {dict(counts)}")
    return Report(
        counts["accepted"], counts["acked"], counts["launches"], counts["assigned"], counts["given back"], world.steps
    )
