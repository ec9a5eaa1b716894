"""Spares of a pool: workers that run without a key, so that a key's first call starts no process (design page, 4.6).

    starting --it asks for its key--> ready --Assign--> a worker of the key, which loads it
                                        |Retire: too many, an older version, room for a key, a place short of memory
                                        v
                                      retiring

*A spare is taken before anything is started*, whether it is ready or still starts: it began earlier than a new one
would. It must have room for what its key takes. *Spares never keep a key waiting*: none is started in a step in which
a key gets no worker, and they make room first. They count as workers of the pool and of their place. One whose start
fails waits as a key does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from clusterbroker.cluster.wiring.pool_entities import NO_KEY

from .facts import PoolFacts, WorkerFacts, WorkerState
from .failures import Failures
from .orders import Launch, Order, Retire
from .placement import Costs, Placement


class Spares:
    """Of one policy. Each step: `open`, `surplus`, then `take` or `make_room` for each wish, then `starts`."""

    def __init__(self, costs: Costs, placement: Placement, failures: Failures) -> None:
        self._costs = costs
        self._placement = placement
        self.failures = failures
        self._facts = PoolFacts({}, {})
        self._free: dict[str, WorkerFacts] = {}
        """Those that may get a key: the first to be ready first."""
        self._missing = 0
        """That are started as soon as a place has room."""
        self._started = False

    def open(self, facts: PoolFacts) -> None:
        """Begin a step, with the books of placement open."""
        self._facts = facts
        self._missing = 0
        self._started = False
        active = (worker for worker in facts.spares if worker.active)
        order = sorted(active, key=lambda each: (each.state is not WorkerState.READY, each.since_s, each.id))
        self._free = {each.id: each for each in order}

    def surplus(self) -> Iterator[Order]:
        """Those that are not to be kept. What starts goes first, and of what is ready the newest."""
        facts = self._facts
        for worker in list(self._free.values()):
            if facts.version and worker.version != facts.version:
                yield self._retire(worker, "an older version")
            elif (book := self._placement.books.get(worker.place)) is not None and book.short:
                yield self._retire(worker, "the place is short of memory")
        for worker in list(self._free.values())[facts.spares_wanted :]:
            yield self._retire(worker, "surplus")

    def _retire(self, worker: WorkerFacts, why: str) -> Retire:
        del self._free[worker.id]
        if (book := self._placement.books.get(worker.place)) is not None:
            book.leave(self._costs.claim(NO_KEY, worker))
        return Retire(NO_KEY, worker.id, why)

    def take(self, key: str, now_s: float) -> WorkerFacts | None:
        """The spare that a key gets, if one has room for it: of the place where the key was last before others."""
        recent, memory = self._costs.recent_place(key, now_s), self._costs.memory(key)
        fit = [
            each
            for each in self._free.values()
            if not each.pending
            and (book := self._placement.books.get(each.place)) is not None
            and book.usable
            and book.free + self._costs.claim(NO_KEY, each) >= memory
        ]
        if not fit:
            return None
        found = min(fit, key=lambda each: (each.state is not WorkerState.READY, each.place != recent))
        del self._free[found.id]
        self._placement.assign(key, found, now_s)
        return found

    def make_room(self, key: str) -> list[Order] | None:
        """One that goes, for a key that finds no room; none, while room is coming to another one, which the key takes
        then. None: spares cannot help."""
        memory, books = self._costs.memory(key), self._placement.books
        if any(book.usable and book.will_have_room(memory) for book in books.values()):
            return None
        here = [each for each in reversed(self._free.values()) if each.place in books and books[each.place].usable]
        for worker in here:
            book = books[worker.place]
            if book.leaving and book.free + book.leaving + self._costs.claim(NO_KEY, worker) >= memory:
                return []
        for worker in here:
            if memory <= books[worker.place].facts.memory:
                return [self._retire(worker, f"room for {key!r}")]
        return None

    def starts(self, facts: PoolFacts, left: int, now_s: float) -> Iterator[Order]:
        """As many as are missing, `left` at most, at the places that have the fewest."""
        self._missing = max(0, min(facts.spares_wanted - len(self._free), left))
        if self.failures.on_trial(NO_KEY):
            starting = any(each.state is not WorkerState.READY for each in self._free.values())
            self._missing = min(self._missing, 0 if starting else 1)
        here = Counter(each.place for each in self._free.values())
        while self._missing and self.failures.may_start(NO_KEY, now_s):
            place = self._placement.spread(self._costs.memory(NO_KEY), here, now_s)
            if place is None:
                return
            here[place] += 1
            self._missing -= 1
            self._started = True
            yield Launch(NO_KEY, place, facts.version, self._placement.launch(NO_KEY, place, now_s))

    def restless(self, now_s: float) -> bool:
        """Something of them changes without an event."""
        if self._started or any(each.state is not WorkerState.READY for each in self._facts.spares):
            return True
        return self._missing > 0 and not self._placement.is_full(now_s)
