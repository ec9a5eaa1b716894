"""Workers of an older version: which are to be replaced, and when one ends before its successor starts (pure).

    surge > 0    new one starts --> ready --> an old one is retired
    surge = 0    an old one is retired --> ended --> its successor starts --> ready --> the next old one

*With `surge` = 0 an old one yields only to a successor that may start*: the pool is not paused, the key does not back
off, and a place that starts workers has room for the successor once the old one is gone. So many are down at once as
starts may be in flight: keys that wait for a start count among them, and a key that yielded does until its successor is
ready. So a version that does not start takes away no more than these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from typing import Final

from clusterbroker.cluster.wiring.pool_entities import NO_KEY

from .facts import COMING, GroupFacts, GroupState, PoolFacts, Settings, WorkerFacts
from .orders import Retire
from .placement import STARTS_IN_FLIGHT_MAX, Costs, Placement

OLDER: Final = "an older version"


class Replacing:
    """Of one policy."""

    def __init__(self, settings: Settings, costs: Costs, placement: Placement) -> None:
        self._settings = settings
        self._costs = costs
        self._placement = placement
        self._down: dict[str, str] = {}
        """Keys that yielded a worker, and have no successor that is ready -> what ended: the worker of several keys, or
        the key's own."""

    def is_old(self, worker: WorkerFacts, facts: PoolFacts) -> bool:
        """It is to be replaced."""
        return self._settings.rolling and bool(facts.version) and worker.version != facts.version

    def old(self, workers: Iterable[WorkerFacts], facts: PoolFacts) -> list[WorkerFacts]:
        """Those to be replaced."""
        return [worker for worker in workers if self.is_old(worker, facts)]

    def due(self, active: Iterable[WorkerFacts], facts: PoolFacts) -> list[WorkerFacts]:
        """Those that one may be replaced of: nothing is starting, so the new ones are ready."""
        active = list(active)
        return [] if any(worker.state in COMING for worker in active) else self.old(active, facts)

    def in_the_way(self, group: GroupFacts, facts: PoolFacts) -> int:
        """With `surge` = 0: workers on their way out, which have to end before others of their key start."""
        if self._settings.surge:
            return 0
        return len(self.old((worker for worker in group.workers if not worker.active), facts))

    def yields(
        self,
        groups: Iterable[GroupFacts],
        facts: PoolFacts,
        left: Set[str],
        waiting: Collection[str],
        needs: Mapping[str, int],
        largest: Callable[[str], int],
        may_start: Callable[[str], bool],
    ) -> Iterator[Retire]:
        """With `surge` = 0, at the end of a step, its books open. `left`: workers that the step has put out. `waiting`:
        keys that it gave no start. `largest`: need of the last minute of a key that was measured."""
        hosts = {one.id: one for one in facts.spares}
        groups = [group for group in groups if group.state is not GroupState.DRAINING]
        for group in groups:
            for worker in self.old((one for one in group.workers if not one.active), facts):
                self._down.setdefault(group.key, worker.host or group.key)
        self._down = {key: what for key, what in self._down.items() if self._is_down(key, facts, needs)}
        under_way = {*self._down.values(), *(key for key in waiting if key not in self._down)}
        found: list[tuple[GroupFacts, WorkerFacts]] = []
        for group in groups:
            coming = [one for one in group.workers if one.state in COMING]
            if group.key not in self._down:
                under_way.update(one.host or group.key for one in coming)
            old = self.due(group.active, facts)
            if old and len(group.active) == largest(group.key) and left.isdisjoint(_ids(group)):
                found.append((group, min(old, key=lambda one: (one.held > 0, one.idle_since_s, one.id))))
        usable = [book for book in self._placement.books.values() if book.usable]
        for group, worker in found:
            what, host = worker.host or group.key, hosts.get(worker.host)
            ends, key = (worker, group.key) if host is None else (host, NO_KEY)
            if not may_start(key):
                continue
            if what not in under_way:
                full = len(under_way) >= STARTS_IN_FLIGHT_MAX * len(usable)
                if full or not self._has_room(key, ends, elsewhere=not waiting):
                    continue
                under_way.add(what)
            self._down[group.key] = what
            yield Retire(group.key, worker.id, OLDER)

    def _is_down(self, key: str, facts: PoolFacts, needs: Mapping[str, int]) -> bool:
        group = facts.groups.get(key)
        if group is None:
            return False
        coming = any(worker.state in COMING for worker in group.workers)
        return coming or self.in_the_way(group, facts) > 0 or len(group.active) < needs.get(key, 0)

    def _has_room(self, key: str, ends: WorkerFacts, elsewhere: bool) -> bool:
        """For the successor: where the old one is, once that is gone; else at another place, where room is kept."""
        memory, books = self._costs.memory(key), self._placement.books
        own = books.get(ends.place)
        ended = own is not None and own.usable and own.free_workers >= 0
        if own is not None and ended and own.free + self._costs.claim(key, ends) >= memory:
            return True
        found = [name for name, book in books.items() if book.usable and book.has_room(memory)]
        if not (found and elsewhere):
            return False
        books[min(found)].reserve(memory)
        return True


def _ids(group: GroupFacts) -> set[str]:
    """Of its workers, and of those that serve it among other keys."""
    return {name for worker in group.workers for name in (worker.id, worker.host)}
