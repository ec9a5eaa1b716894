"""Reasons of a pool's controller, for people: why a key has as many workers as it has, and why it waits for one.

Read off the last step of the policy, whose rules they repeat in words and in its order (`Policy._wishes`, `_starts`); a
step changes nothing without an event. Values only: an operator asks over the network.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from heapq import nsmallest
from typing import Any, Final

from clusterbroker.cluster.wiring.pool_entities import NO_KEY

from .demand import SAMPLES_MIN, Demand
from .facts import COMING, GroupFacts, GroupState, PoolFacts, Scaling, WorkerState
from .placement import STARTS_IN_FLIGHT_MAX, Book
from .policy import Policy

KEYS_MAX: Final = 200
"""Keys of one answer: those that lack a worker first."""
Document = dict[str, Any]


class Explanation:
    """Of one moment."""

    def __init__(self, policy: Policy, now_s: float, places: bool = True) -> None:
        """`places`: whether those may be named."""
        self._policy = policy
        self._places = policy.placement.books if places else {}
        self._settings = policy.settings
        self._facts: PoolFacts = policy.facts
        self._now_s = now_s
        launches = [worker for group in self._facts.groups.values() for worker in group.workers if not worker.host]
        self._workers = [*launches, *self._facts.spares]

    def document(self, wanted: Callable[[str], bool]) -> Document:
        """Of the pool, and of the keys that are wanted."""
        found = [group for key, group in self._facts.groups.items() if wanted(key)]
        keys = nsmallest(KEYS_MAX, found, key=lambda group: (not self._lacks(group), group.key))
        return {
            "workers": dict(Counter(worker.state.value for worker in self._workers)),
            "workers_max": self._settings.max_workers,
            "settled": self._policy.is_settled(self._now_s),
            "version": self._facts.version or None,
            "places": [self._place(name, book) for name, book in sorted(self._places.items())],
            "keys": [self._key(group) for group in keys],
            "keys_left_out": len(found) - len(keys),
        }

    def _place(self, name: str, book: Book) -> Document:
        return {
            "name": name,
            "memory_bytes": book.facts.memory,
            "promised_bytes": book.claimed,
            "workers": book.workers,
            "workers_max": book.facts.workers_max,
            "starting": book.coming,
            "suspended": not book.usable and not book.facts.alarm,
            "alarm": book.facts.alarm,
        }

    def _need(self, group: GroupFacts) -> int:
        return 0 if group.state is GroupState.DRAINING else self._policy.needs.get(group.key, 0)

    def _lacks(self, group: GroupFacts) -> bool:
        return len(group.active) < self._need(group)

    def _key(self, group: GroupFacts) -> Document:
        policy, key = self._policy, group.key
        demand = policy.demand(key)
        since_s = policy.waiting_since(key)
        return {
            "key": key,
            "state": group.state.value,
            "waiting": group.ready,
            "held": group.held,
            "workers": dict(Counter(worker.state.value for worker in group.workers)),
            "need": self._need(group),
            "largest_need": None if demand is None else demand.largest(self._now_s),
            "arrivals_per_s": None if demand is None else round(demand.arrivals, 3),
            "service_ms": None if demand is None else round(1000 * self._service_s(demand)),
            "measured": demand is not None and demand.samples >= SAMPLES_MIN,
            "start_ms": round(1000 * policy.costs.start_s(key)),
            "memory_bytes": policy.costs.memory(key),
            "waits_s": None if since_s is None else round(self._now_s - since_s, 1),
            "why": [] if demand is None else list(self._why(group, demand)),
        }

    def _service_s(self, demand: Demand) -> float:
        return demand.service_s if demand.samples >= SAMPLES_MIN else self._settings.service_s

    # -- in words -----------------------------------------------------------------------------------------------

    def _why(self, group: GroupFacts, demand: Demand) -> Iterator[str]:
        """The need first, then why there are fewer workers, or more."""
        yield self._why_needed(group, demand)
        have, need = len(group.active), self._need(group)
        if have < need:
            yield self._why_fewer(group, demand, have)
        elif have > need:
            yield self._why_more(group, demand, have)
        if leaving := len(group.workers) - have:
            yield f"{leaving} more are on their way out"

    def _why_needed(self, group: GroupFacts, demand: Demand) -> str:
        s = self._settings
        if group.state is GroupState.DRAINING:
            return "needs 0: it was idle for unbind_delay_s and stop_delay_s, and its group ends"
        if group.key in self._policy.evicted:
            return "needs 0: it made room for other keys, and had no request since"
        need, rule = demand.reasoned(group, s)
        service = f"{self._service_s(demand):.3g} s a request"
        wait_ms = round(1000 * s.target_wait_s)
        rules = {
            "arrivals": f"{demand.arrivals:.3g} requests/s arrive, {service}, prefetch={s.prefetch}",
            "backlog": f"{group.backlog} requests wait or are held, {service}, target_wait_ms={wait_ms}",
            "guess": f"fewer than {SAMPLES_MIN} requests have told how long they take, and eager=false",
            "bound": "its group is kept, and scale_to_zero_while_bound=false",
            "idle": "nothing waits or is held",
            "min": f"min={s.min}",
            "max": f"max={s.max}",
            "outside": "one launch stands for all its workers, and Kubernetes has their number (scaling=hpa, keda)",
            "fixed": f"scaling={s.scaling.value}, min={s.min}",
        }
        return f"needs {need}: {rules[rule]}"

    def _why_more(self, group: GroupFacts, demand: Demand, have: int) -> str:
        if have <= demand.largest(self._now_s):
            return f"keeps {have}: it needed {demand.largest(self._now_s)} within the last minute"
        if have <= math.ceil(group.held / self._settings.prefetch):
            return f"keeps {have}: they hold {group.held} requests"
        if group.state is GroupState.UNBOUND and have == 1:
            return "keeps 1: its group is unbound, and a request may still come back to it"
        if not self._policy.is_settled(self._now_s):
            return f"keeps {have}: its controller has just taken over"
        return f"has {have}: the surplus is taken back by and by"

    def _why_fewer(self, group: GroupFacts, demand: Demand, have: int) -> str:
        """The first thing in the way of one more."""
        policy, key, now_s = self._policy, group.key, self._now_s
        coming = sum(worker.state in COMING for worker in group.active)
        if self._settings.scaling is Scaling.NONE:
            return "workers come by themselves: the pool starts none"
        if self._facts.paused:
            return "no start: the pool is paused"
        if leaving := policy.replacing.in_the_way(group, self._facts):
            return f"no start until {leaving} of an older version have ended: its template has surge = 0"
        if not policy.failures.may_start(key, now_s):
            return f"no start for {self._left_s(key)} s: {self._failure(key)}"
        if policy.failures.on_trial(key) and coming:
            return f"no other start until this one has succeeded: {self._failure(key)}"
        if not demand.pays(group, have, policy.costs.start_s(key), self._settings):
            return f"no start: the {have} it has are done before another one is up ({policy.costs.start_s(key):.3g} s)"
        if not demand.may_start(have, 0, now_s):
            return "no start: too many within a minute"
        return self._without_room(key)

    def _left_s(self, key: str) -> int:
        until_s = self._policy.failures.waits_until(key)
        return 0 if until_s is None else max(0, math.ceil(until_s - self._now_s))

    def _failure(self, key: str) -> str:
        detail = self._policy.failures.detail(key) or "a worker that was ready ended unasked"
        return (
            f"its starts failed {self._settings.start_failures_max} times in a row; the last one: {detail}"
            if (self._policy.failed_until(key, self._now_s) is not None)
            else detail
        )

    def _without_room(self, key: str) -> str:
        books = self._policy.placement.books
        if self._settings.keys_per_worker > 1:
            ready = sum(worker.state is WorkerState.READY for worker in self._facts.spares)
            seats = f"none of {ready} ready workers gives a key away (keys_per_worker={self._settings.keys_per_worker})"
            return f"waits: {seats}; {self._no_launch(NO_KEY)}"
        if not self._facts.version and not books:
            return "waits: no member has the pool's template"
        return f"waits: {self._no_launch(key)}" if not self._may_launch(key) else "one is about to be started"

    def _may_launch(self, key: str) -> bool:
        memory = self._policy.costs.memory(key)
        books = self._policy.placement.books.values()
        return self._total < self._settings.max_workers and any(
            book.usable and book.has_room(memory) and book.coming < STARTS_IN_FLIGHT_MAX for book in books
        )

    @property
    def _total(self) -> int:
        return len(self._workers) + self._facts.strays

    def _no_launch(self, key: str) -> str:
        if self._total >= self._settings.max_workers:
            return f"the pool has max_workers={self._settings.max_workers}"
        if self._may_launch(key):
            return "a worker is about to be started"
        memory = self._policy.costs.memory(key)
        if not self._policy.placement.books:
            return "no member has the pool's template"
        told = [f"'{name}' {self._full(book, memory)}" for name, book in sorted(self._places.items())]
        return f"no place has room: {', '.join(told)}" if told else "no place has room"

    @staticmethod
    def _full(book: Book, memory: int) -> str:
        if book.facts.alarm:
            return "is short of memory"
        if not book.usable:
            return "is suspended, or its node is away"
        if book.free < memory:
            return f"has {max(0, book.free) >> 20} MiB left, and a worker takes {memory >> 20}"
        if book.free_workers < 1:
            return f"has its {book.facts.workers_max} workers"
        return f"starts {book.coming} workers at once already"
