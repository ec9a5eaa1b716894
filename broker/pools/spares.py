"""Spares of a pool: workers that run without a key, so that a key's first call starts no process (design page, 4.6).

    starting --it asks for its key--> ready --Assign--> a worker of the key, which loads it
                                        |Retire: too many, an older version, room for a key, a place short of memory
                                        v
                                      retiring

*A spare is taken before anything is started*, whether it is ready or still starts: it began earlier than a new one
would. It must have room for what its key takes. *Spares never keep a key waiting*: none is started in a step in which
a key gets no worker, and they make room first, at their places and in the pool. They count as workers of both. One
whose start fails waits as a key does, and comes at another place, if there is one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator

from clusterbroker.cluster.wiring.pool_entities import NO_KEY

from .facts import PoolFacts, WorkerFacts, WorkerState
from .failures import Failures
from .keyless import Keyless
from .orders import Launch, Order, Retire
from .placement import Costs, Placement
from .replacing import OLDER, Replacing


class Spares(Keyless):
    """Of one policy. Each step: `open`, `surplus`, then `take` or `make_room` for each wish, then `starts`."""

    def __init__(self, costs: Costs, placement: Placement, failures: Failures, replacing: Replacing) -> None:
        super().__init__(costs, placement, failures)
        self._replacing = replacing
        self._free: dict[str, WorkerFacts] = {}
        """Those that may get a key: the first to be ready first."""
        self._going = 0
        """That are on their way out, and whose end no key has been promised yet."""
        self._unfit: float = math.inf
        """None has room for a key that takes so much."""
        self._roomless: float = math.inf
        """None can make room for a key that takes so much."""
        self._wayless: float = math.inf
        """None can give way to a key that takes so much."""

    def open(self, facts: PoolFacts, stopped: Collection[str]) -> None:
        """Begin a step, with the books of placement open. `stopped`: those that this step has stopped already."""
        self._open(facts)
        self._unfit = self._roomless = self._wayless = math.inf
        active = [worker for worker in facts.spares if worker.active and worker.id not in stopped]
        self._going = len(facts.spares) - len(active)
        order = sorted(active, key=lambda each: (each.state is not WorkerState.READY, each.since_s, each.id))
        self._free = {each.id: each for each in order}

    def surplus(self, most: int) -> Iterator[Order]:
        """Those that are not to be kept, of which the pool may have `most`. What starts goes first, and of what is
        ready the newest."""
        before, facts = len(self._free), self._facts
        for worker in list(self._free.values()):
            if self._replacing.is_old(worker, facts):
                yield self._retire(worker, OLDER)
            elif (book := self._placement.books.get(worker.place)) is not None and book.short:
                yield self._retire(worker, "the place is short of memory")
        for worker in list(self._free.values())[max(0, min(facts.spares_wanted, most)) :]:
            yield self._retire(worker, "surplus")
        self._going += before - len(self._free)

    def _retire(self, worker: WorkerFacts, why: str) -> Retire:
        del self._free[worker.id]
        self._roomless = self._wayless = math.inf
        if (book := self._placement.books.get(worker.place)) is not None:
            book.leave(self._costs.claim(NO_KEY, worker))
        return Retire(NO_KEY, worker.id, why)

    def take(self, key: str, extra: bool, now_s: float) -> WorkerFacts | None:
        """The spare that a key gets, if one has room for it: of the place where the key was last before others.
        `extra`: for one of an older version, which another one of an older version does not replace."""
        memory = self._costs.memory(key)
        if memory >= self._unfit:
            return None
        recent = self._costs.recent_place(key, now_s)
        fit = [
            each
            for each in self._free.values()
            if not each.pending
            and not (extra and each.version != self._facts.version)
            and (book := self._placement.books.get(each.place)) is not None
            and book.usable
            and book.free + self._costs.claim(NO_KEY, each) >= memory
        ]
        if not fit:
            if not extra:
                self._unfit = memory
            return None
        self._unfit = math.inf  # a key that takes less than its spare did leaves room
        found = min(fit, key=lambda each: (each.state is not WorkerState.READY, each.place != recent))
        del self._free[found.id]
        self._placement.assign(key, found, now_s)
        return found

    def make_room(self, key: str) -> list[Order] | None:
        """One that goes, for a key that finds no room; none, while room is coming to another one, which the key takes
        then. None: spares cannot help."""
        memory, books = self._costs.memory(key), self._placement.books
        if memory >= self._roomless or any(book.usable and book.will_have_room(memory) for book in books.values()):
            return None
        here = [each for each in reversed(self._free.values()) if each.place in books and books[each.place].usable]
        for worker in here:
            book = books[worker.place]
            if book.leaving and book.free + book.leaving + self._costs.claim(NO_KEY, worker) >= memory:
                return []
        for worker in here:
            if memory <= books[worker.place].facts.memory:
                return [self._retire(worker, f"room for {key!r}")]
        self._roomless = memory
        return None

    @property
    def are_left(self) -> bool:
        """A key that takes less may get one."""
        return bool(self._free)

    def give_way(self, key: str) -> list[Order] | None:
        """One that goes, for a key that would be a worker too many for the pool; none, while one goes already. None:
        spares cannot help."""
        memory, books = self._costs.memory(key), self._placement.books
        if self._going:
            self._going -= 1
            return []
        if memory >= self._wayless:
            return None
        has_room = any(book.usable and book.will_have_room(memory) for book in books.values())
        for worker in reversed(self._free.values()):
            book = books.get(worker.place)
            helps = has_room or (book is not None and book.usable and memory <= book.facts.memory)
            if helps and not worker.pending:
                return [self._retire(worker, f"room for {key!r}")]
        self._wayless = memory
        return None

    def starts(self, facts: PoolFacts, left: int, now_s: float) -> Iterator[Order]:
        """As many as are missing, `left` at most, at the places that have the fewest."""
        self._missing = max(0, min(facts.spares_wanted - len(self._free), left))
        if self.failures.on_trial(NO_KEY):
            starting = any(each.state is not WorkerState.READY for each in self._free.values())
            self._missing = min(self._missing, 0 if starting else 1)
        here = Counter(each.place for each in self._free.values())
        while self._missing and self.failures.may_start(NO_KEY, now_s):
            place = self._placement.spread(self._costs.memory(NO_KEY), self._failed_at, here, now_s)
            if place is None:
                return
            here[place] += 1
            self._missing -= 1
            self._started = True
            yield Launch(NO_KEY, place, facts.version, self._placement.launch(NO_KEY, place, now_s))

    def _failed_at(self, place: str) -> int:
        return self.failures.failed_at(NO_KEY, place)
