"""Invariants of the scaling policy, numbered as on its design page, each judged from what is true in the world.

No checker asks the policy what it counted: launches, claims, windows and shares are kept here a second time.

    I3   launches in the log are at most the need at the time of the order (beside workers of an older version the
         largest need of the last minute, and `surge`)
    I8   the key that waits longest gets a start within the bound, when room for one worker can be had
    I9   memory promised is at most the capacity, at every place, by what was learnt until then
    I10  no worker that holds a message is stopped before `grace_s` after it was retired; no busy group is evicted
    I11  rest: without load everything is gone after the delays, and nothing ticks
    I13  starts of a key in a minute are at most 6 (or its workers, if more), beside those that its growth takes;
         a group that was dropped, by delays below a minute, begins anew
    back a group waits 1, 2, 4 .. 60 s after failed starts in a row, whatever was begun in between
    idle a group that holds or has messages is neither unbound nor drained nor dropped
    down a surplus leaves at least the largest need of the last minute
    59   a worker of an older version is retired alone, when nothing of its key starts and those that stay are as many
         as were needed lately (with `surge` 0: one less, where a successor has room; and it starts when the old one
         has ended)
    fair tenants that wait all the time differ by at most a largest cost of each
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Final

from clusterbroker.broker.pools.facts import COMING, Gone, GroupState, PlaceFacts, PoolFacts, WorkerState
from clusterbroker.broker.pools.orders import Evict, Launch, Order, Retire, Stop, SuspendPlace

if TYPE_CHECKING:
    from .world import Group, World

STARTS_MAX: Final = 6
MINUTE_S: Final = 60.0


class Violation(AssertionError):
    """An invariant is broken."""


def require(holds: bool, text: str) -> None:
    if not holds:
        raise Violation(text)


class Checkers:
    """All invariants, told what happens."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._peaks: dict[str, float] = {}
        self._starts: dict[str, deque[tuple[float, int]]] = defaultdict(deque)
        """By key: (time, active workers before)."""
        self._needs: dict[str, deque[tuple[float, int]]] = defaultdict(deque)
        """By key: (time until which it held, need) of the last minute."""
        self._paid: dict[str, float] = defaultdict(float)
        self._both: tuple[float, dict[str, float], dict[str, float]] | None = None
        """(since, costs of tenants until then, the largest cost of each since)."""
        self._head: tuple[str, float] | None = None
        """The starved key that waits longest, and since when it is that."""
        self._failed: dict[str, tuple[int, float]] = {}
        """By key: failed starts in a row, and the time of the last one."""
        self._late: set[str] = set()
        self._ended: set[str] = set()
        """Keys whose group was dropped since it failed last."""
        self._surplus_of_step: dict[str, int] = {}

    @property
    def _now_s(self) -> float:
        return self._world.now_s

    # ---- one step ----

    def before(self, facts: PoolFacts) -> None:
        for group in facts.groups.values():
            require(len({each.id for each in group.workers}) == len(group.workers), "a launch is in the facts twice")

    def after(self, facts: PoolFacts, orders: list[Order]) -> None:
        self._remember_needs(facts)
        self._surplus_of_step.clear()
        for order in orders:
            match order:
                case Retire(why="surplus"):
                    self._surplus(facts, order)
                case Retire(why="an older version"):
                    self._replaced(facts, order, orders)
                case Evict():
                    group = facts.groups[order.key]
                    starved = bool(order.wanted_by) and self._starved(facts, order.wanted_by)
                    workers = len(group.active)
                    require(
                        not group.busy or starved or workers > 1, f"I10: busy group {order.key!r} is evicted as idle"
                    )
                    require(not group.pinned, f"pinned group {order.key!r} is evicted")
                case Stop():
                    self._stop(facts, order)
                case SuspendPlace():
                    self._failed.clear()  # the place is charged, and not its keys
                case _:
                    pass
        self._launches(facts, orders)
        self._waiting(facts, orders)
        self._fair(facts, orders)

    def _starved(self, facts: PoolFacts, key: str) -> bool:
        since_s = self._world.policy.waiting_since(key)
        return since_s is not None and facts.groups[key].busy and self._now_s - since_s > self._world.settings.starve_s

    def _remember_needs(self, facts: PoolFacts) -> None:
        for key in facts.groups:
            need, past = self._world.policy.needs.get(key, 0), self._needs[key]
            if past:
                past.append((self._now_s, past[-1][1]))
            past.append((self._now_s, need))
            while len(past) > 1 and past[0][0] < self._now_s - MINUTE_S:
                past.popleft()

    def _surplus(self, facts: PoolFacts, order: Retire) -> None:
        """Judged with all that this step retires of the group: the last one decides."""
        group = facts.groups[order.key]
        taken = self._surplus_of_step.setdefault(order.key, 0) + 1
        self._surplus_of_step[order.key] = taken
        largest = max(need for _, need in self._needs[order.key])
        require(
            len(group.active) - taken >= largest,
            f"down: {order.key!r} keeps {len(group.active) - taken} workers, and needed {largest} a minute ago",
        )

    def _replaced(self, facts: PoolFacts, order: Retire, orders: list[Order]) -> None:
        group, settings = facts.groups[order.key], self._world.settings
        leaving = [each.worker for each in orders if isinstance(each, Retire) and each.key == order.key]
        stay = [each for each in group.active if each.id not in leaving]
        what = f"59: {order.worker} of {order.key!r}"
        require(len(leaving) == 1, f"{what} is replaced beside {leaving}")
        require(settings.rolling, f"{what} is replaced, and none is to be")
        ready = sum(each.state is WorkerState.READY for each in stay)
        least = max(settings.min, max(need for _, need in self._needs[order.key])) - (not settings.surge)
        require(ready == len(stay) >= least, f"{what} is replaced beside {ready} of {len(stay)}, {least} were needed")
        if not settings.surge:
            places = [place for place in facts.places.values() if not (place.suspended or place.alarm)]
            own = next(each.place for each in group.workers if each.id == order.worker)
            need = self._claim(order.key)
            holds = any(
                place.memory - self._claimed(facts, place) + need * (place.name == own) >= need for place in places
            )
            require(holds, f"{what} is replaced, and no place has room for its successor")

    def _stop(self, facts: PoolFacts, order: Stop) -> None:
        worker = next(each for each in facts.groups[order.key].workers if each.id == order.worker)
        if worker.state in COMING:
            self._late.add(order.worker)
            self._fails(order.key)
        if not worker.held:
            return
        since_s = self._now_s - worker.since_s
        require(
            worker.state is WorkerState.RETIRING and since_s >= self._world.settings.grace_s - 1e-6,
            f"I10: {order.worker} of {order.key!r} is stopped {since_s:.1f} s into {worker.state.value}, and holds",
        )

    def _launches(self, facts: PoolFacts, orders: list[Order]) -> None:
        claims = dict.fromkeys(facts.places, 0.0)
        active: dict[str, int] = {}
        old: set[str] = set()
        leaving: dict[str, int] = {}
        for key, group in facts.groups.items():
            active[key] = len(group.active)
            leaving[key] = sum(each.version != facts.version and not each.active for each in group.workers)
            if any(each.version != facts.version for each in group.active):
                old.add(key)
            for worker in group.workers:
                if worker.place in claims:
                    claims[worker.place] += self._claim(key)
        for order in orders:
            if isinstance(order, Retire):
                active[order.key] -= 1
        for order in orders:
            if not isinstance(order, Launch):
                continue
            key, need = order.key, self._world.policy.needs.get(order.key, 0)
            place = facts.places[order.place]
            require(not place.suspended and not place.alarm, f"{key!r} is started at {order.place}, which takes none")
            settings = self._world.settings
            largest = max(each for _, each in self._needs[key])
            most = max(need, min(settings.max, largest) + settings.surge) if key in old and settings.rolling else need
            require(
                active[key] < most, f"I3: {active[key]} launches of {key!r} stand for a need of {need}, and one more"
            )
            if settings.rolling and not settings.surge:
                alive = active[key] + leaving[key]
                require(alive < most, f"59: {key!r} has {alive} workers that run, and its template no surge")
            claims[order.place] += self._claim(key)
            require(
                claims[order.place] <= place.memory,
                f"I9: {order.place} is promised {claims[order.place]:.0f} of {place.memory} bytes",
            )
            if key not in old:  # workers of a new version come one by one
                self._restarts(key, active[key])
            active[key] += 1
            failures, last_s = self._failed.get(key, (0, 0.0))
            least_s = min(2.0 ** (failures - 1), MINUTE_S) - 1e-6 if failures else 0.0
            passed_s = self._now_s - last_s
            require(
                passed_s >= least_s, f"back: {key!r} is started {passed_s:.1f} s after {failures} failures in a row"
            )

    def _claim(self, key: str) -> float:
        peak = self._peaks.get(key, 0.0)
        largest = max(place.memory for place in self._world.places.values())
        return min(math.ceil(peak * 1.15), largest) if peak else self._world.settings.memory

    def _claimed(self, facts: PoolFacts, place: PlaceFacts) -> float:
        return sum(
            self._claim(key)
            for key, group in facts.groups.items()
            for each in group.workers
            if each.place == place.name
        )

    def _restarts(self, key: str, active: int) -> None:
        starts = self._starts[key]
        starts.append((self._now_s, active))
        while starts[0][0] <= self._now_s - MINUTE_S:
            starts.popleft()
        peak = max(before for _, before in starts) + 1
        again = len(starts) - (peak - starts[0][1])
        most = max(STARTS_MAX, peak)
        require(again <= most, f"I13: {key!r} was started {len(starts)} times in a minute, and had {peak} at most")

    # ---- waiting ----

    def _waiting(self, facts: PoolFacts, orders: list[Order]) -> None:
        """I8. Keys that starve get their turns in the order of waiting; each turn has its bound."""
        world = self._world
        launched = {order.key for order in orders if isinstance(order, Launch)}
        starving = sorted(
            (since_s, key)
            for key in facts.groups
            if (since_s := world.policy.waiting_since(key)) is not None
            and key not in launched
            and self._starved(facts, key)
        )
        fits = any(
            not place.suspended and not place.alarm and place.memory >= max(map(self._claim, facts.groups), default=0)
            for place in facts.places.values()
        )
        if not starving or not fits or world.settings.min:  # `min` workers of other keys never make room
            self._head = None
            return
        head = starving[0][1]
        if self._head is None or self._head[0] != head:
            self._head = (head, self._now_s)
            return
        slowest_s = max((world.nature(key).start_s * 1.1 for key in facts.groups), default=0.0)
        slowest_s += max((place.driver.slow_s for place in world.places.values()), default=0.0)
        bound_s = world.settings.min_run_s + world.settings.grace_s + slowest_s + 3
        if any(place.driver.forgets for place in world.places.values()):
            bound_s += world.settings.start_timeout_s
        require(
            self._now_s - self._head[1] <= bound_s,
            f"I8: {head!r} waits {self._now_s - starving[0][0]:.0f} s, longest of all, and had {bound_s:.0f} s for it",
        )

    def _fair(self, facts: PoolFacts, orders: list[Order]) -> None:
        """While the same tenants wait, what they got differs by at most one largest cost of each (Goyal et al.)."""
        world = self._world
        if not world.fairness:
            return
        waiting = {facts.groups[key].tenant for key in facts.groups if world.policy.waiting_since(key) is not None}
        granted = [order for order in orders if isinstance(order, Launch)]
        if not world.fairness <= waiting:
            self._both = None
            return
        if self._both is None:
            self._both = (self._now_s, dict(self._paid), defaultdict(float))
        _, before, largest = self._both
        for key, group in facts.groups.items():
            if world.policy.waiting_since(key) is not None:
                cost = self._claim(key) * world.policy.costs.start_s(key)
                largest[group.tenant] = max(largest[group.tenant], cost)
        for order in granted:
            tenant = facts.groups[order.key].tenant
            cost = self._claim(order.key) * world.policy.costs.start_s(order.key)
            self._paid[tenant] += cost
            largest[tenant] = max(largest[tenant], cost)
        shares = {tenant: self._paid[tenant] - before.get(tenant, 0.0) for tenant in world.fairness}
        for one in world.fairness:
            for other in world.fairness:
                bound = largest[one] + largest[other]
                require(
                    shares[one] - shares[other] <= bound + 1e-6,
                    f"fair: {one!r} got {shares[one]:.0f}, {other!r} {shares[other]:.0f}; at most {bound:.0f} apart",
                )

    # ---- other events ----

    def ready(self, key: str) -> None:
        self._failed.pop(key, None)

    def _fails(self, key: str) -> None:
        count, last_s = self._failed.get(key, (0, 0.0))
        if key in self._ended and self._now_s - last_s >= min(2.0 ** max(0, count - 1), MINUTE_S):
            count = 0  # its group is another one than that which failed, and the wait was over
        self._ended.discard(key)
        self._failed[key] = (count + 1, self._now_s)

    def ended(self, gone: Gone) -> None:
        if not gone.ready and not gone.asked and gone.worker not in self._late:
            self._fails(gone.key)
        if gone.peak:
            peak = self._peaks.get(gone.key, 0.0)
            self._peaks[gone.key] = float(gone.peak) if gone.peak >= peak else peak + (gone.peak - peak) * 0.25

    def idle(self, group: Group) -> None:
        held = group.held
        require(not held and not group.queue, f"idle: {group.key!r} holds {held} and has {len(group.queue)} waiting")

    def dropped(self, group: Group) -> None:
        self.idle(group)
        self._ended.add(group.key)
        self._starts[group.key].clear()  # the pool's delays let it go: no flapping of the policy
        require(group.state is GroupState.DRAINING, f"idle: {group.key!r} is dropped out of {group.state.value}")

    def rest(self) -> None:
        """I11, at the end: no load since long."""
        world = self._world
        left = {key: (group.state.value, len(group.workers)) for key, group in world.groups.items()}
        require(not left, f"I11: without load these stay: {left}")
        require(world.policy.next_s(world.now_s) is None, "I11: nothing is there, and the policy ticks")
        require(world.pending == 0, f"I11: nothing is there, and {world.pending} things will happen")
