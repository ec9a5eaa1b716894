"""Scaling policy of a pool: facts and time in, orders out. docs/design/012-pool-policy-and-library.md

    facts --> demand (need, window) --> surplus --> Retire --> Stop
                       |missing workers
                       v
              failures (back-off) --> admission (whose turn) --> placement (where, or who makes room) --> Launch
                                                                                   |--> Evict, Retire

The policy decides how many workers a group has and where; the states of groups (bound, unbound, draining) are the
controller's, which asks `idle_s` for them. No clock, no chance, no socket: policies with the same past say the same.

Of one step, in this order, since each may read what the one before it has done:

    1  measurements of each group that is not at rest
    2  starts that took too long end, and count as failures; retired workers stop: empty, or `grace_s` later
    3  surplus is retired: the window's, of draining groups all, old versions one by one
    4  starts by turn, of spares before others; room is made for first workers of keys; then spares are started
    5  over-committed places give back
    6  old versions whose successors start after them (`replacing`)

Rules: *retire before stop* (a worker that holds a message is stopped `grace_s` after it was retired, at the earliest).
*The need is counted against launches*, ready or not, so a slow start is not started again. *For SETTLE_S after a
take-over nothing is retired or evicted*: what this policy does not know yet may be why it is there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from clusterbroker.cluster.wiring.pool_entities import NO_KEY

from .admission import Admission, Parked, Wish
from .demand import Demand
from .facts import COMING, Gone, GroupFacts, GroupState, PoolFacts, Scaling, Settings, WorkerFacts, WorkerState
from .failures import Failures
from .orders import Assign, Evict, Fail, Launch, Order, Retire, Stop, SuspendPlace
from .placement import EVICT_IDLE_S, Costs, Placement, Victim
from .pool_limit import PoolLimit
from .replacing import OLDER, Replacing
from .shared_workers import SharedWorkers
from .spares import Spares

TICK_S: Final = 1.0
SETTLE_S: Final = 10.0
ROOM_TRIES: Final = 16
"""Keys of a step for which room is looked for in vain, of the starved ones and of the others."""
VICTIMS_MAX: Final = 20
"""Keys of a step for which workers are retired: each is a look at all workers of all places."""
LOOK_EFFORT: Final = 200
"""Of a look at all workers of all places: in groups that are measured."""
EVICTIONS, START_FAILURES = "evictions", "start_failures"
PARKED_PART: Final = 10
"""Groups at rest that wait for a worker cost as much as one that is measured."""


class Policy:
    """The policy of one pool, from one take-over of its controller to the next."""

    def __init__(
        self, settings: Settings, begun_s: float, *, taken_over: bool = False, learnt: Mapping[str, int] | None = None
    ) -> None:
        """`learnt`: key -> bytes that its workers have taken at most, as the map knows it."""
        self.settings = settings
        self.costs = Costs(settings)
        for key, peak in (learnt or {}).items():
            self.costs.learn_peak(key, peak)
        self.placement = Placement(settings, self.costs)
        self.replacing = Replacing(settings, self.costs, self.placement)
        self.failures = Failures(settings.start_failures_max)
        self.admission = Admission(settings.weights)
        self.spares = Spares(self.costs, self.placement, self.failures, self.replacing)
        self.shared: SharedWorkers | None = None
        """In place of spares, where workers serve several keys."""
        if settings.keys_per_worker > 1:
            self.shared = SharedWorkers(settings, self.costs, self.placement, self.failures, self.replacing)
        self.facts = PoolFacts({}, {})
        """Of the last step."""
        self.needs: dict[str, int] = {}
        """Of the last step, by key."""
        self._settled_s = begun_s + (SETTLE_S if taken_over else 0.0)
        self._demands: dict[str, Demand] = {}
        self._waiting: dict[str, float] = {}
        """Keys without a worker, and since when."""
        self.evicted: set[str] = set()
        """Groups that made room, and had no message since."""
        self._timed_out: set[str] = set()
        """Launches whose failure is counted already."""
        self._rested: dict[str, GroupFacts] = {}
        self._parked = Parked(settings)
        self._ungranted: set[str] = set()
        """Keys with wishes, of which this step granted none."""
        self._stepped_s = begun_s
        self._idlers: list[str] | None = None
        self._restless = True
        self.effort = 0
        """Of the last step: groups that were measured, and looks at places."""
        self.suspended: dict[str, tuple[float, str]] = {}
        """Places where nothing is started: until when, and why."""
        self.counts: Counter[str] = Counter()
        """EVICTIONS, and START_FAILURES; whoever takes them clears it."""

    def fail_as(self, before: Policy) -> None:
        """Back-off, runs of failures and suspended places are those of a policy of other settings."""
        self.failures = self.spares.failures = before.failures
        if self.shared is not None:
            self.shared.failures = before.failures
        self.failures.failures_max = self.settings.start_failures_max
        self._timed_out, self.suspended = before._timed_out, before.suspended

    # ---- questions ----

    def is_settled(self, now_s: float) -> bool:
        """Whether what is missing in the facts is so. For SETTLE_S after a take-over workers come back."""
        return now_s >= self._settled_s

    def idle_s(self, key: str, now_s: float) -> float:
        """Seconds without a message waiting or held, and without an event. 0 for a key that no step has seen."""
        demand = self._demands.get(key)
        if key in self._parked.wishes and self._rested[key].busy:
            return 0.0
        return now_s - demand.idle_since_s if demand is not None else 0.0

    def waiting_since(self, key: str) -> float | None:
        """Since when a key waits for its first worker."""
        return self._waiting.get(key)

    def demand(self, key: str) -> Demand | None:
        """Measurements of a key; None: no step has seen it."""
        return self._demands.get(key)

    def failed_until(self, key: str, now_s: float) -> float | None:
        """Requests of the key are answered `start_failed` until then; None: they are not."""
        until_s = self.failures.failed_until(key, now_s)
        if until_s is None and self.shared is not None:
            until_s = self.failures.failed_until(NO_KEY, now_s)
        return until_s

    def failed(self, key: str, now_s: float) -> Fail | None:
        """What was ordered when the key failed, as long as it holds."""
        until_s = self.failed_until(key, now_s)
        return (
            None if until_s is None else Fail(key, until_s, self.failures.detail(key) or self.failures.detail(NO_KEY))
        )

    def next_s(self, now_s: float) -> float | None:
        """Time of the next step without an event; None: at rest, nothing changes by itself."""
        return now_s + TICK_S if self._restless else None

    # ---- events ----

    def worker_ready(self, key: str, place: str, took_s: float, now_s: float) -> None:
        """A launch is ready for the first time, seconds after its order; 0: it was a spare, which began before."""
        self.failures.became_ready(key, place)
        if took_s:
            self.costs.learn_start(key, took_s)
        self.costs.seen(key, place, now_s)
        self.suspended.pop(place, None)
        self._wake(key)

    def worker_gone(self, gone: Gone, now_s: float) -> list[Order]:
        """A launch has ended; `facts` do not have it any more."""
        self.costs.learn_peak(gone.key, gone.peak)
        self.costs.seen(gone.key, gone.place, now_s)
        self._wake(gone.key)
        if gone.worker in self._timed_out:
            self._timed_out.discard(gone.worker)
            return []
        if gone.asked:
            return []
        if gone.ready:
            self.failures.crashed(gone.key, now_s)
            return []
        return self._failed(gone.key, gone.place, gone.detail or "ended before it was ready", now_s)

    def retry(self, key: str) -> None:
        """An operator's word: start again now."""
        self.failures.forget(key)
        self._wake(key)

    def _failed(self, key: str, place: str, detail: str, now_s: float) -> list[Order]:
        self.counts[START_FAILURES] += 1
        until_s = self.failures.failed_start(key, place, detail, now_s)
        if until_s is None:
            return []
        if key != NO_KEY:
            return [Fail(key, until_s, detail)]
        groups = () if self.shared is None else self.facts.groups.values()
        ready = WorkerState.READY
        return [
            Fail(each.key, until_s, detail)
            for each in groups
            if each.busy and not any(worker.state is ready for worker in each.workers)
        ]

    def _wake(self, key: str) -> None:
        self._unpark(key)
        self._restless = True

    def _unpark(self, key: str) -> None:
        """Its figures count up to the last step: what came since then came since then."""
        group = self._rested.pop(key, None)
        if self._parked.wishes.pop(key, None) is not None and group is not None:
            self._measure(group, self._stepped_s)

    # ---- one step ----

    def step(self, facts: PoolFacts, now_s: float) -> list[Order]:
        """Orders of now, in the sequence in which they are to be carried out."""
        orders: list[Order] = []
        self._restless = False
        rested = self._rested if facts.version == self.facts.version else {}  # workers of another one are old
        self.facts = facts
        self._forget(facts, now_s)
        awake = [group for key, group in facts.groups.items() if rested.get(key) is not group]
        self.effort, self._idlers = len(awake) + len(self._parked.wishes) // PARKED_PART, None
        for group in awake:
            self._unpark(group.key)
        self._stepped_s = now_s
        for group in awake:
            self._measure(group, now_s)
            orders += self._timeouts(group, now_s)
        spares = GroupFacts(NO_KEY, GroupState.UNBOUND, workers=facts.spares)
        self._proved(spares, now_s)
        late = list(self._timeouts(spares, now_s))
        orders += late
        orders += self._suspend(facts, now_s)
        for group in (*awake, spares):
            orders += self._stops(group, now_s)
        if self.settings.scaling is Scaling.NONE:
            return orders
        retired: set[str] = set()
        if self.is_settled(now_s):
            for group in awake:
                for worker, why in self._surplus(group, facts, now_s):
                    retired.add(worker.id)
                    orders.append(Retire(group.key, worker.id, why))
        if self.shared is not None:
            stopped = {order.worker for order in orders if isinstance(order, Stop)}
            left = self.settings.max_workers - len(facts.spares) - facts.strays
            orders += self._share(self.shared, awake, facts, retired, stopped, left, now_s)
            orders += self._yields(awake, facts, orders, left, now_s)
            return orders
        self.placement.open(facts, set(self.suspended), retired)
        self.spares.open(facts, {order.worker for order in late if isinstance(order, Stop)})
        limit = PoolLimit(self.settings.max_workers, facts, retired)
        left = limit.left
        if self.is_settled(now_s):
            orders += self.spares.surplus(limit.but_spares)
        orders += self._starts(awake, facts, retired, limit, now_s)
        if self.is_settled(now_s):
            for place, victim in self.placement.over_committed(facts, self._idle(facts, now_s), now_s):
                orders += self._evict(victim, place, "", facts)
        orders += self._yields(awake, facts, orders, left, now_s)
        for group in awake:
            self._rest(group, facts, now_s)
        self._restless |= self.spares.restless(now_s, bool(self.suspended))
        return orders

    def _forget(self, facts: PoolFacts, now_s: float) -> None:
        if len(self._demands) == len(facts.groups) and self._demands.keys() == facts.groups.keys():
            return
        for key in [key for key in self._demands if key not in facts.groups]:
            del self._demands[key]
            self.needs.pop(key, None)
            self._rested.pop(key, None)
            self._parked.wishes.pop(key, None)
            self._waiting.pop(key, None)
            self.evicted.discard(key)
            self.placement.forget(key)
            self.failures.gone(key, now_s)

    def _measure(self, group: GroupFacts, now_s: float) -> None:
        key = group.key
        demand = self._demands.get(key)
        if demand is None:
            demand = self._demands[key] = Demand(self.settings.service_s)
        demand.observe(group, now_s)
        if demand.idle_since_s == now_s:
            self.placement.touch(key)
        if group.busy:
            self.evicted.discard(key)
        need = 0 if key in self.evicted else demand.need(group, self.settings)
        self.needs[key] = need
        demand.remember(need, now_s)
        self._proved(group, now_s)

    def _proved(self, group: GroupFacts, now_s: float) -> None:
        """Workers that stay ready say that the key's can."""
        for worker in group.workers:
            if worker.state is WorkerState.READY:
                self.failures.stayed(group.key, worker.since_s, now_s)

    def _timeouts(self, group: GroupFacts, now_s: float) -> Iterator[Order]:
        """A start has `start_timeout_s`."""
        for worker in group.workers:
            late = worker.state in COMING and now_s - worker.since_s >= self.settings.start_timeout_s
            if not late:
                continue
            detail = f"not ready after {self.settings.start_timeout_s:g} s"
            if worker.host and self.shared is not None and not self.shared.serves(worker.host):
                yield Stop(NO_KEY, worker.host, detail)  # it hangs, as far as is known
            yield Stop(group.key, worker.id, detail)  # each time: the log may have refused the one before
            if worker.id not in self._timed_out:
                self._timed_out.add(worker.id)
                yield from self._failed(group.key, worker.place, detail, now_s)

    def _suspend(self, facts: PoolFacts, now_s: float) -> Iterator[Order]:
        """A place whose starts fail for all keys is suspended, not the keys."""
        self.suspended = {place: found for place, found in self.suspended.items() if now_s < found[0]}
        for name in facts.places:
            others = any(
                other != name and not (place.suspended or place.alarm or other in self.suspended)
                for other, place in facts.places.items()
            )
            if name not in self.suspended and (found := self.failures.suspend(name, others, now_s)) is not None:
                until_s, detail = found
                self.suspended[name] = found
                yield SuspendPlace(name, until_s, detail)

    def _stops(self, group: GroupFacts, now_s: float) -> Iterator[Order]:
        """Retire before stop. No key is taken from a worker of several that holds a request of it, however long."""
        for worker in group.workers:
            if worker.state is WorkerState.RETIRING:
                if not worker.held:
                    yield Stop(group.key, worker.id, "retired and empty")
                elif now_s - worker.since_s >= self.settings.grace_s and not worker.host:
                    yield Stop(
                        group.key, worker.id, f"held a message for {self.settings.grace_s:g} s after it was retired"
                    )

    # ---- down ----

    def _surplus(self, group: GroupFacts, facts: PoolFacts, now_s: float) -> Iterator[tuple[WorkerFacts, str]]:
        """Workers to retire, and why."""
        demand, active = self._demands[group.key], list(group.active)
        active.sort(
            key=lambda worker: (worker.held > 0, worker.version == facts.version, worker.idle_since_s, worker.id)
        )
        if group.state is GroupState.DRAINING:
            if not group.busy:
                yield from ((worker, "its group ends") for worker in active)
            return
        surge = self.settings.surge if self.replacing.old(active, facts) else 0
        count = demand.surplus(group, len(active) - surge, now_s, self.settings)
        if group.state is GroupState.UNBOUND and not self.settings.scale_to_zero_while_bound:
            count = min(count, len(active) - 1)  # a request may still come back to it
        if count > 0:
            demand.down_s = now_s
            yield from ((worker, "surplus") for worker in active[:count])
        elif surge and (old := self.replacing.due(active, facts)):
            least = max(self.settings.min, 1 if group.state is GroupState.UNBOUND else 0)
            if len(active) > max(demand.largest(now_s), least):
                yield old[0], OLDER

    def _yields(
        self, awake: list[GroupFacts], facts: PoolFacts, orders: list[Order], left: int, now_s: float
    ) -> list[Order]:
        """`left`: so many more the pool might have had as the step began."""
        if self.settings.surge or facts.paused or left < 0 or not self.is_settled(now_s):
            return []
        gone = {order.worker for order in orders if isinstance(order, (Retire, Stop))}
        return [
            *self.replacing.yields(
                awake, facts, gone, self._ungranted, self.needs, lambda key: self._demands[key].largest(now_s),
                lambda key: self.failures.may_start(key, now_s),
            )
        ]  # fmt: skip

    # ---- up ----

    def _wishes(self, group: GroupFacts, facts: PoolFacts, retired: set[str], now_s: float) -> Iterator[Wish]:
        """One for each worker that is missing and would pay."""
        key, demand = group.key, self._demands[group.key]
        active = [worker for worker in group.active if worker.id not in retired]
        have, target = self._counted(active), self.needs[key]
        if have >= target and (old := self.replacing.due(active, facts)) and len(active) == len(group.active):
            most = min(self.settings.max, demand.largest(now_s)) + self.settings.surge
            target = max(have, min(most, have + len(old)))
        elif group.state is GroupState.DRAINING:
            target = 0
        target -= self.replacing.in_the_way(group, facts)
        if have >= target or not self.failures.may_start(key, now_s):
            self._waiting.pop(key, None)
            return
        if self.failures.on_trial(key):
            if any(worker.state in COMING for worker in active):
                return
            target = have + 1
        cost = self.costs.memory(key) * self.costs.start_s(key)
        if have:
            self._waiting.pop(key, None)
            since_s = now_s
        else:
            since_s = self._waiting.setdefault(key, now_s)
        starved = not have and group.busy and now_s - since_s > self.settings.starve_s
        for number in range(have, target):
            extra = number >= self.needs[key]  # of a new version
            if not extra and not demand.pays(group, number, self.costs.start_s(key), self.settings):
                return
            if not extra and not demand.may_start(number, number - have, now_s):
                return
            yield Wish(key, group.tenant, cost, since_s, number, extra, starved and not number)

    def _counted(self, active: list[WorkerFacts]) -> int:
        """What counts against the need: launches, whether they are seen running or not (2.6)."""
        return len(active)

    def _starts(
        self, awake: list[GroupFacts], facts: PoolFacts, retired: set[str], limit: PoolLimit, now_s: float
    ) -> Iterator[Order]:
        if facts.paused:
            return
        wishes = [wish for group in awake for wish in self._wishes(group, facts, retired, now_s)]
        wishes += self._parked.of_now(facts, now_s)
        self._ungranted = {wish.key for wish in wishes}
        if not wishes:
            yield from self.spares.starts(facts, limit.left, now_s)
            return
        self._restless = True
        waiting = {wish.key for wish in wishes if wish.first}
        tries, victims_left = {True: ROOM_TRIES, False: ROOM_TRIES}, VICTIMS_MAX
        place: str | None
        vain: dict[bool, float] = {True: math.inf, False: math.inf}
        unfit = math.inf
        granted = 0
        for wish in self.admission.order(wishes):
            spare = self.spares.take(wish.key, wish.extra, now_s) if wish.first or not waiting else None
            if spare is not None:
                granted += 1
                self._grant(wish, waiting, now_s)
                yield Assign(wish.key, spare.id)
                continue
            if limit.left <= 0:
                if wish.first and self.is_settled(now_s):
                    if (given := self.spares.give_way(wish.key)) is not None:
                        yield from given
                        continue
                    if limit.comes():
                        continue
                    if victims_left and tries[wish.starved]:
                        self.effort += LOOK_EFFORT
                        place, victims = self.placement.slot(
                            wish.key, facts, self._idle(facts, now_s), wish.starved, now_s
                        )
                        limit.replace(victims)
                        tries[wish.starved] -= not victims
                        victims_left -= bool(victims)
                        for victim in victims:
                            yield from self._evict(victim, place, wish.key, facts)
                        continue
                if wish.starved or self.spares.are_left:
                    continue
                break
            over = not tries[wish.starved] or not wish.first or not victims_left or not self.is_settled(now_s)
            if over and unfit <= 0:
                if wish.starved or self.spares.are_left:
                    continue
                break
            memory = self.costs.memory(wish.key)
            place = None
            if memory < unfit:
                self.effort += 1
                place = self.placement.fit(wish.key, wish.first, len(waiting) > (wish.key in waiting), now_s)
                if place is None and wish.first:  # nor does any that takes more: places do not empty within a step
                    unfit = 0 if self.placement.is_full(now_s) else memory
            if place is not None:
                granted += 1
                limit.left -= 1
                self._grant(wish, waiting, now_s)
                yield Launch(wish.key, place, facts.version, self.placement.launch(wish.key, place, now_s))
            elif wish.first and self.is_settled(now_s) and (room := self.spares.make_room(wish.key)) is not None:
                yield from room
            elif not over and memory < vain[wish.starved]:
                self.effort += 1
                found = self.placement.room(wish.key, facts, self._idle(facts, now_s), wish.starved, now_s)
                if found is None:
                    tries[wish.starved] -= 1
                    vain[wish.starved] = memory  # a key without a worker is no victim: larger ones fail as well
                    self.effort += LOOK_EFFORT
                elif found[1]:
                    victims_left -= 1
                    self.effort += LOOK_EFFORT
                    for victim in found[1]:
                        yield from self._evict(victim, found[0], wish.key, facts)
        self._parked.park(wishes, awake, self._waiting)
        if granted == len(wishes):
            yield from self.spares.starts(facts, limit.left, now_s)

    def _share(
        self, shared: SharedWorkers, awake: list[GroupFacts], facts: PoolFacts, retired: set[str], stopped: set[str],
        left: int, now_s: float,
    ) -> Iterator[Order]:  # fmt: skip
        """`_starts` and what follows it, where workers serve several keys: their groups take no room at places."""
        settled = self.is_settled(now_s)
        self.placement.open(replace(facts, groups={}), set(self.suspended), set())
        shared.open(facts, stopped, retired)
        wishes: list[Wish] = []
        if not facts.paused:
            wishes = [wish for group in awake for wish in self._wishes(group, facts, retired, now_s)]
            wishes += self._parked.of_now(facts, now_s)
        self._ungranted = {wish.key for wish in wishes}
        self._restless |= bool(wishes)
        waiting, granted = {wish.key for wish in wishes if wish.first}, 0
        for wish in self.admission.order(wishes):
            order = shared.answer(wish, left, settled, now_s)
            if isinstance(order, Assign):
                granted += 1
                self._grant(wish, waiting, now_s)
            elif isinstance(order, Launch):
                left -= 1
            elif isinstance(order, Retire) and order.key != NO_KEY:
                self.counts[EVICTIONS] += 1
                self._gives_way(facts.groups[order.key], {order.worker})
            if order is not None:
                yield order
        self._parked.park(wishes, awake, self._waiting)
        for retire in shared.isolate() if settled else ():
            self._gives_way(facts.groups[retire.key], {retire.worker})
            yield retire
        yield from shared.rest(left, granted == len(wishes), settled, now_s)
        if settled:
            idle_s = {key: self.idle_s(key, now_s) for key in self._idle(facts, now_s)}
            for order in shared.over_committed(idle_s):
                for key in shared.keys_of(order.worker):
                    group = facts.groups[key]
                    self.counts[EVICTIONS] += 1
                    self._gives_way(group, {one.id for one in group.workers if one.host == order.worker})
                yield order
        for group in awake:
            self._rest(group, facts, now_s)
        self._restless |= shared.restless(now_s, bool(self.suspended))

    def _gives_way(self, group: GroupFacts, leaving: set[str]) -> None:
        """A group that is left without a worker is not started again without a message."""
        if not group.busy and not {worker.id for worker in group.active} - leaving:
            self.evicted.add(group.key)
        self._wake(group.key)

    def _grant(self, wish: Wish, waiting: set[str], now_s: float) -> None:
        self.admission.admitted(wish)
        self._waiting.pop(wish.key, None)
        self._ungranted.discard(wish.key)
        waiting.discard(wish.key)
        if wish.key in self._parked.wishes:
            self._unpark(wish.key)
        if not wish.extra and self.shared is None:
            self._demands[wish.key].started(wish.workers, now_s)

    # ---- room ----

    def _idle(self, facts: PoolFacts, now_s: float) -> Iterator[str]:
        """Groups with workers that may be evicted: never one with backlog, `min` > 0, or pinned. Looked for when it is
        asked for the first time."""
        if self._idlers is None:
            groups = () if self.settings.min else facts.groups.values()
            self._idlers = [group.key for group in groups if group.workers and self._evictable(group, now_s)]
        yield from self._idlers

    def _evictable(self, group: GroupFacts, now_s: float) -> bool:
        return not group.busy and not group.pinned and self.idle_s(group.key, now_s) >= EVICT_IDLE_S

    def _evict(self, victim: Victim, place: str, wanted_by: str, facts: PoolFacts) -> Iterator[Order]:
        self.counts[EVICTIONS] += 1
        if victim.whole:
            self._gives_way(facts.groups[victim.key], {worker.id for worker in victim.workers})
        self._wake(victim.key)
        yield Evict(victim.key, place, wanted_by)
        why = f"room for {wanted_by!r}" if wanted_by else "the place is short of memory"
        for worker in victim.workers:
            yield Retire(victim.key, worker.id, why)

    # ---- rest ----

    def _rest(self, group: GroupFacts, facts: PoolFacts, now_s: float) -> None:
        """A group is at rest when no step changes it without an event."""
        if group.key in self._parked.wishes:
            self._rested[group.key] = group
            return
        demand, need = self._demands[group.key], self.needs[group.key]
        active = len(group.active)
        kept = max(need, 1 if group.state is GroupState.UNBOUND and active else 0)
        at_rest = (
            not group.busy
            and self.is_settled(now_s)
            and demand.settles(need, now_s)
            and all(worker.state is WorkerState.READY for worker in group.workers)
            and (active == kept or facts.paused)
            and not self.replacing.due(group.active, facts)
        )
        if at_rest:
            self._rested[group.key] = group
        else:
            self._rested.pop(group.key, None)
            self._restless = True
