"""Placement: memory of keys as learnt, the place of a launch, and which workers make room for it (design page, 4.5).

*Memory* of a key is the learnt peak and some more, else the template's (`pool_rules.promised_bytes`; the map keeps the
peak from feature level 8 on). A worker's *claim* on its place is the larger of its key's memory and of what it takes
now.

*Place*: best fit among places with room; places where the key ran within AFFINITY_S before others; ties by name. One
key gets at most `max_share` of a place for further workers while others wait.

*Eviction* when nothing fits: GreedyDual-Size (Cao, Irani 1997). Each use of a group sets H = clock + L/m; the lowest H
goes first, and the clock becomes that H. Cheap to bring back, big and long unused goes first. In this order:

    1  groups that idle for EVICT_IDLE_S, by H; never one with backlog, `min` > 0, or pinned
    2  a second worker of a group, of the one with most workers
    3  for a starved key only: any group whose workers ran `min_run_s`, those that hold nothing first; never one with
       `min` > 0, or pinned. If those are not enough yet, a place is kept for the key until they are

An over-committed place (memory alarm, or claims above its capacity, since a learnt cost was wrong) evicts by 1 and 2.
Whoever is evicted is retired, and stopped when nothing is held or `grace_s` later: room comes later, and is reserved
for the key that it was made for, within each step anew.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from clusterbroker.cluster.wiring.pool_entities import NO_KEY
from clusterbroker.cluster.wiring.pool_rules import LEARNT_MAX, learnt_peak, promised_bytes

from .facts import COMING, PlaceFacts, PoolFacts, Settings, WorkerFacts, WorkerState

START_WEIGHT: Final = 0.3
"""Of one start in the EWMA of `L`."""
AFFINITY_S: Final = 3_600.0
EVICT_IDLE_S: Final = 10.0
COSTS_MAX: Final = LEARNT_MAX
"""Keys with learnt costs; the longest unused are forgotten."""
STARTS_IN_FLIGHT_MAX: Final = 8
STARTS_PER_S: Final = 20
"""Of one place (2.8)."""


@dataclass(slots=True)
class Cost:
    """Learnt of a key."""

    peak: int = 0
    start_s: float = 0.0
    place: str = ""
    at_s: float = -math.inf
    """Time at which its last worker was seen."""


class Costs:
    """Learnt costs of keys, bounded."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._known: OrderedDict[str, Cost] = OrderedDict()
        self.most = 0
        """Memory of the largest place: a key that takes more has it alone, and does not wait for ever. 0: no place."""

    def _of(self, key: str) -> Cost:
        cost = self._known.get(key)
        if cost is None:
            cost = self._known[key] = Cost()
            if len(self._known) > COSTS_MAX:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return cost

    def learn_peak(self, key: str, peak: int) -> None:
        """Peak memory of a worker that ended, bytes; 0 says nothing."""
        if peak <= 0:
            return
        cost = self._of(key)
        cost.peak = learnt_peak(cost.peak, peak)

    def learn_start(self, key: str, took_s: float) -> None:
        cost = self._of(key)
        cost.start_s = took_s if not cost.start_s else cost.start_s + (took_s - cost.start_s) * START_WEIGHT

    def seen(self, key: str, place: str, now_s: float) -> None:
        cost = self._of(key)
        cost.place, cost.at_s = place, now_s

    def memory(self, key: str) -> int:
        """`m`: bytes to promise to a worker."""
        cost = self._known.get(key)
        if cost is None or not cost.peak:
            return self._settings.memory
        learnt = promised_bytes(cost.peak)
        return min(learnt, self.most) if self.most else learnt

    def start_s(self, key: str) -> float:
        """`L`: seconds from the launch to readiness."""
        cost = self._known.get(key)
        return cost.start_s if cost is not None and cost.start_s else self._settings.start_s

    def claim(self, key: str, worker: WorkerFacts) -> int:
        """Bytes that a worker counts for at its place."""
        return max(self.memory(key), worker.memory)

    def recent_place(self, key: str, now_s: float) -> str | None:
        cost = self._known.get(key)
        return cost.place if cost is not None and now_s - cost.at_s <= AFFINITY_S else None

    def __len__(self) -> int:
        return len(self._known)


@dataclass(slots=True)
class Book:
    """One place within one step."""

    facts: PlaceFacts
    usable: bool
    claimed: int = 0
    leaving: int = 0
    """Part of `claimed` whose workers are on their way out."""
    reserved: int = 0
    workers: int = 0
    leaving_workers: int = 0
    reserved_workers: int = 0
    coming: int = 0
    by_key: dict[str, int] = field(default_factory=dict)
    """Claims."""
    active: dict[str, list[WorkerFacts]] = field(default_factory=dict)
    """Workers that are not on their way out, as the step found them."""

    @property
    def free(self) -> int:
        return self.facts.memory - self.claimed - self.reserved

    @property
    def free_workers(self) -> float:
        most = self.facts.workers_max
        return math.inf if most is None else most - self.workers - self.reserved_workers

    def has_room(self, memory: int) -> bool:
        return self.free >= memory and self.free_workers >= 1

    def will_have_room(self, memory: int) -> bool:
        return self.free + self.leaving >= memory and self.free_workers + self.leaving_workers >= 1

    @property
    def short(self) -> bool:
        """Its workers claim more than there is, or its machine is short of memory."""
        return self.claimed - self.leaving > self.facts.memory or (self.facts.alarm and not self.leaving)

    def add(self, key: str, claim: int, *, active: bool, coming: bool) -> None:
        self.claimed += claim
        self.workers += 1
        self.by_key[key] = self.by_key.get(key, 0) + claim
        if not active:
            self.leaving += claim
            self.leaving_workers += 1
        if coming:
            self.coming += 1

    def leave(self, claim: int) -> None:
        """A worker is on its way out from now on."""
        self.leaving += claim
        self.leaving_workers += 1

    def reserve(self, memory: int) -> None:
        self.reserved += memory
        self.reserved_workers += 1


@dataclass(frozen=True, slots=True)
class Victim:
    """Workers that make room at one place."""

    key: str
    workers: tuple[WorkerFacts, ...]
    whole: bool
    """The group is left without workers at the place."""


class Placement:
    """Places, claims and the clock of GreedyDual-Size."""

    def __init__(self, settings: Settings, costs: Costs) -> None:
        self._settings = settings
        self._costs = costs
        self._clock = 0.0
        self._worth: dict[str, float] = {}
        """H of groups."""
        self._rates: dict[str, tuple[float, float]] = {}
        """Of places: (tokens, time): STARTS_PER_S, saved for a second."""
        self.books: dict[str, Book] = {}
        self._leaving: set[str] = set()
        """Workers that this step has retired."""
        self._staying: dict[str, int] = {}
        """Workers of groups that are not on their way out."""

    # ---- use ----

    def touch(self, key: str) -> None:
        """A group is in use."""
        self._worth[key] = self._clock + self._costs.start_s(key) / self._costs.memory(key)

    def worth(self, key: str) -> float:
        """H."""
        return self._worth.get(key, self._clock)

    def forget(self, key: str) -> None:
        self._worth.pop(key, None)

    # ---- one step ----

    def open(self, facts: PoolFacts, suspended: set[str], retired: set[str]) -> None:
        """Begin a step: the claims of all workers. `retired`: workers that this step has retired already."""
        self.books = {
            name: Book(place, not (place.suspended or place.alarm or name in suspended))
            for name, place in facts.places.items()
        }
        self._leaving = set(retired)
        self._staying.clear()
        self._costs.most = max((place.memory for place in facts.places.values()), default=0)
        for worker in facts.spares:  # not `active`: they are no victims
            if (book := self.books.get(worker.place)) is not None:
                coming = worker.state in COMING
                book.add(NO_KEY, self._costs.claim(NO_KEY, worker), active=worker.active, coming=coming)
        for key, group in facts.groups.items():
            for worker in group.workers:
                if (book := self.books.get(worker.place)) is not None:
                    claim = self._costs.claim(key, worker)
                    active = worker.active and worker.id not in retired
                    book.add(key, claim, active=active, coming=worker.state in COMING)
                    if active:
                        book.active.setdefault(key, []).append(worker)
                        self._staying[key] = self._staying.get(key, 0) + 1

    def spread(self, memory: int, failed_at: Callable[[str], int], here: Mapping[str, int], now_s: float) -> str | None:
        """The place of a launch now, of those with room the one where fewest failed, then the one with the fewest;
        None: none has room."""
        found = [
            (failed_at(name), here.get(name, 0), name)
            for name, book in self.books.items()
            if book.usable
            and book.has_room(memory)
            and book.coming < STARTS_IN_FLIGHT_MAX
            and self._tokens(name, now_s) >= 1
        ]
        return min(found)[2] if found else None

    def may_have_room(self, memory: int) -> bool:
        """A place takes such a worker, now or as soon as it starts any."""
        return any(book.usable and book.has_room(memory) for book in self.books.values())

    def assign(self, key: str, worker: WorkerFacts, now_s: float) -> None:
        """Enter that a spare is a worker of a key from now on."""
        book, before, memory = self.books[worker.place], self._costs.claim(NO_KEY, worker), self._costs.memory(key)
        book.claimed += memory - before
        book.by_key[NO_KEY] -= before
        book.by_key[key] = book.by_key.get(key, 0) + memory
        self._costs.seen(key, worker.place, now_s)
        self.touch(key)

    def fit(self, key: str, first: bool, others_wait: bool, now_s: float) -> str | None:
        """The place of a launch now; None: none has room."""
        memory = self._costs.memory(key)
        recent = self._costs.recent_place(key, now_s)
        found = [
            (name != recent, book.free - memory, name)
            for name, book in self.books.items()
            if book.usable
            and book.has_room(memory)
            and book.coming < STARTS_IN_FLIGHT_MAX
            and self._tokens(name, now_s) >= 1
            and (first or not others_wait or self._within_share(book, key, memory))
        ]
        return min(found)[2] if found else None

    def is_full(self, now_s: float) -> bool:
        """No place takes any worker now, however little it takes."""
        return not any(
            book.usable and book.has_room(1) and book.coming < STARTS_IN_FLIGHT_MAX and self._tokens(name, now_s) >= 1
            for name, book in self.books.items()
        )

    def _within_share(self, book: Book, key: str, memory: int) -> bool:
        return book.by_key.get(key, 0) + memory <= self._settings.max_share * book.facts.memory

    def launch(self, key: str, place: str, now_s: float) -> int:
        """Enter a launch; the bytes promised to it."""
        book, memory = self.books[place], self._costs.memory(key)
        book.add(key, memory, active=True, coming=True)
        assert book.claimed <= book.facts.memory, "no place is promised more than it has"
        self._rates[place] = (self._tokens(place, now_s) - 1, now_s)
        self._costs.seen(key, place, now_s)
        self.touch(key)
        return memory

    def _tokens(self, place: str, now_s: float) -> float:
        tokens, at_s = self._rates.get(place, (float(STARTS_PER_S), now_s))
        return min(tokens + (now_s - at_s) * STARTS_PER_S, float(STARTS_PER_S))

    # ---- room ----

    def _by_worth(self, keys: Iterable[str]) -> list[str]:
        """Those that are evicted first come first."""
        return sorted(keys, key=lambda key: (self.worth(key), key))

    def room(
        self, wanted: str, facts: PoolFacts, idle: Iterable[str], starved: bool, now_s: float
    ) -> tuple[str, list[Victim]] | None:
        """(place, victims there) for a first worker of a key; no victims: its room is coming already. The room is
        reserved for the rest of the step. None: nowhere, now."""
        memory = self._costs.memory(wanted)
        coming = [name for name, book in self.books.items() if book.usable and self._comes(book, memory)]
        if coming:
            self.books[min(coming)].reserve(memory)
            return min(coming), []
        order = self._by_worth(idle)
        best: tuple[tuple[int, int, float, str], list[Victim]] | None = None
        for name, book in self.books.items():
            if not book.usable or memory > book.facts.memory:
                continue
            plan = self._plan(name, book, memory, wanted, facts, order, starved, now_s)
            if plan is not None:
                rank, victims = plan
                cost = (rank, len(victims), sum(self.worth(victim.key) for victim in victims), name)
                if best is None or cost < best[0]:
                    best = cost, victims
        if best is None:
            return self._hold(memory, wanted, facts, now_s) if starved else None
        (rank, _, _, place), victims = best
        for victim in victims:
            self.evict(victim, place, by_worth=rank == 1)
        self.books[place].reserve(memory)
        return place, victims

    def slot(
        self, wanted: str, facts: PoolFacts, idle: Iterable[str], starved: bool, now_s: float
    ) -> tuple[str, list[Victim]]:
        """(place, victims) for a first worker of a key that would be one too many for the pool: the least of what would
        leave room for it, at any place. No victims: there are none now."""
        memory = self._costs.memory(wanted)
        has_room = any(book.usable and self._comes(book, memory) for book in self.books.values())
        order = self._by_worth(idle)
        best: tuple[tuple[int, float, str], Victim] | None = None
        for name, book in self.books.items():
            for rank, victim in self._candidates(name, wanted, facts, order, starved, now_s):
                free = book.free + book.leaving + sum(self._costs.claim(victim.key, each) for each in victim.workers)
                if has_room or (book.usable and memory <= min(free, book.facts.memory)):
                    cost = rank, self.worth(victim.key), name
                    if best is None or cost < best[0]:
                        best = cost, victim
                    break
        if best is None:
            return (None if has_room else self.room(wanted, facts, order, starved, now_s)) or ("", [])
        (rank, _, place), victim = best
        self.evict(victim, place, by_worth=rank == 1)
        return place, [victim]

    @staticmethod
    def _comes(book: Book, memory: int) -> bool:
        return memory <= book.facts.memory and book.will_have_room(memory)

    def _hold(self, memory: int, wanted: str, facts: PoolFacts, now_s: float) -> tuple[str, list[Victim]] | None:
        """A place for a starved key that takes the room of several, of whom some have not run `min_run_s` yet.

        Those that have make room now, and the place is kept from all others until the rest has: else keys that take
        less would come into each gap first, for ever.
        """
        best: tuple[int, str] | None = None
        for name, book in self.books.items():
            staying = [
                self._costs.claim(key, each)
                for key in book.active
                if key != wanted and not facts.groups[key].pinned and not self._settings.min
                for each in self._here(key, name)
            ]
            coming = book.free + book.leaving
            if book.usable and memory <= book.facts.memory and coming + sum(staying) >= memory:
                best = max(best or (coming, name), (coming, name))
        if best is None:
            return None
        place = best[1]
        victims = [each for each in self._after_min_run(place, facts, now_s) if each.key != wanted]
        for victim in victims:
            self.evict(victim, place, by_worth=False)
        self.books[place].reserve(memory)
        return place, victims

    def _plan(
        self,
        place: str,
        book: Book,
        memory: int,
        wanted: str,
        facts: PoolFacts,
        idle: list[str],
        starved: bool,
        now_s: float,
    ) -> tuple[int, list[Victim]] | None:
        """(worst kind of victim, victims) that make room at a place."""
        victims: list[Victim] = []
        free, slots = book.free + book.leaving, book.free_workers + book.leaving_workers
        if free >= memory and slots >= 1:
            return 0, victims
        taken: set[str] = set()
        for rank, victim in self._candidates(place, wanted, facts, idle, starved, now_s):
            fresh = tuple(each for each in victim.workers if each.id not in taken)
            if not fresh:
                continue
            taken.update(each.id for each in fresh)
            victims.append(Victim(victim.key, fresh, victim.whole))
            free += sum(self._costs.claim(victim.key, each) for each in fresh)
            slots += len(fresh)
            if free >= memory and slots >= 1:
                return rank, victims
        return None

    def _candidates(
        self, place: str, wanted: str, facts: PoolFacts, idle: list[str], starved: bool, now_s: float
    ) -> Iterator[tuple[int, Victim]]:
        for key in idle:
            if key != wanted and (workers := self._here(key, place)):
                yield 1, Victim(key, workers, whole=True)
        for victim in self._seconds(place, facts, now_s):
            if victim.key != wanted:
                yield 2, victim
        if starved:
            for victim in self._after_min_run(place, facts, now_s):
                if victim.key != wanted:
                    yield 3, victim

    def _here(self, key: str, place: str) -> tuple[WorkerFacts, ...]:
        return tuple(each for each in self.books[place].active.get(key, ()) if each.id not in self._leaving)

    def _ran(self, worker: WorkerFacts, now_s: float) -> bool:
        """A start is not thrown away before it was of use."""
        return worker.state is WorkerState.READY and now_s - worker.since_s >= self._settings.min_run_s

    def _seconds(self, place: str, facts: PoolFacts, now_s: float) -> Iterator[Victim]:
        """Second workers at a place, one by one, always from the group with most."""
        least = max(1, self._settings.min)
        counts: dict[str, int] = {}
        spare: dict[str, list[WorkerFacts]] = {}
        for key in self.books[place].active:
            if self._staying[key] > least and not facts.groups[key].pinned:
                counts[key] = self._staying[key]
                here = [each for each in self._here(key, place) if self._ran(each, now_s)]
                spare[key] = sorted(here, key=lambda each: (each.held > 0, each.idle_since_s, each.id), reverse=True)
        while open_keys := [key for key in counts if counts[key] > least and spare[key]]:
            key = max(open_keys, key=lambda each: (counts[each], each))
            counts[key] -= 1
            yield Victim(key, (spare[key].pop(),), whole=False)

    def _after_min_run(self, place: str, facts: PoolFacts, now_s: float) -> Iterator[Victim]:
        found = []
        for key in self.books[place].active:
            if facts.groups[key].pinned or self._settings.min:
                continue
            workers = self._here(key, place)
            if workers and all(self._ran(each, now_s) for each in workers):
                holds = any(each.held for each in workers)
                found.append((holds, self.worth(key), key, workers))
        for _, _, key, workers in sorted(found, key=lambda each: each[:3]):
            yield Victim(key, workers, whole=True)

    def evict(self, victim: Victim, place: str, by_worth: bool) -> None:
        """Enter that workers are on their way out."""
        if by_worth:
            self._clock = max(self._clock, self.worth(victim.key))
        for worker in victim.workers:
            self._leaving.add(worker.id)
            self._staying[victim.key] -= 1
            self.books[place].leave(self._costs.claim(victim.key, worker))

    def over_committed(self, facts: PoolFacts, idle: Iterable[str], now_s: float) -> Iterator[tuple[str, Victim]]:
        """Victims at places whose workers claim more than there is, or whose machine is short of memory."""
        order: list[str] | None = None
        for name, book in self.books.items():
            excess = book.claimed - book.leaving - book.facts.memory
            if book.facts.alarm and not book.leaving:
                excess = max(excess, 1)
            if excess <= 0:
                continue
            if order is None:
                order = self._by_worth(idle)
            for rank, victim in list(self._candidates(name, "", facts, order, starved=False, now_s=now_s)):
                fresh = Victim(
                    victim.key, tuple(each for each in victim.workers if each.id not in self._leaving), victim.whole
                )
                if not fresh.workers:
                    continue
                self.evict(fresh, name, by_worth=rank == 1)
                yield name, fresh
                excess -= sum(self._costs.claim(fresh.key, each) for each in fresh.workers)
                if excess <= 0:
                    break
