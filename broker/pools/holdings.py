"""Keys of workers that serve several, at their pool's controller: what is known of each beside the map (pure).

    ordered --AssignWorkers--> starting --consumer--> ready --RetireKeys--> retiring --empty, RevokeKeys--> ended

To the policy such a key is a worker of its group whose `host` is the process: its id is the worker's, a NUL and the
key. The process itself is a worker without a key (`Fleet`). A key that leaves, or whose worker does, holds nothing when
the owner of its queue has told so since.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from clusterbroker.broker.pools.facts import WorkerFacts, WorkerState
from clusterbroker.broker.pools.messages import GroupTold
from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.wiring.pool_entities import Assignment
from clusterbroker.cluster.wiring.pool_table import PoolTable

Of = tuple[str, str]
"""Worker and key."""


def seat_of(worker: str, key: str) -> str:
    """The id of a key at its worker. No id of a worker has a NUL."""
    return f"{worker}\0{key}"


def of_seat(worker: str) -> Of | None:
    """The worker and key behind such an id; None: it is a worker's own."""
    host, nul, key = worker.partition("\0")
    return (host, key) if nul else None


@dataclass(slots=True)
class _Held:
    """One key at one worker."""

    since_s: float
    whole: bool
    """Its order was seen."""
    ready_s: float | None = None
    idle_s: float = 0.0
    held: int = 0
    silent: bool = False
    """The owner of the queue gives the worker nothing more."""
    leaving_s: float | None = None
    stopping: bool = False


class Holdings:
    """Of one pool."""

    def __init__(self, pool_id: LogIndex, table: PoolTable) -> None:
        self._pool_id = pool_id
        self._table = table
        self._known: dict[Of, _Held] = {}
        self.ordered: dict[Of, None] = {}
        """Assignments that the log has not answered."""
        self.absent: dict[Of, float] = {}
        """Workers that consumed from the key's queue and do not any more, and since when."""
        self._lost: dict[str, dict[str, bool]] = {}
        """Workers that are gone -> the keys that they had until then, and whether these were ready."""

    # ---- the map ----

    def changed(self, one: Assignment, now_s: float, whole: bool = True) -> None:
        """A worker has the key, or gets no more requests of it."""
        of = one.launch_id, one.key
        known = self._known.setdefault(of, _Held(now_s, whole))
        self.ordered.pop(of, None)
        if one.retired and known.leaving_s is None:
            known.leaving_s = now_s

    def ended(self, one: Assignment) -> None:
        """It is not the worker's any more, or the worker is gone, or the group is."""
        of = one.launch_id, one.key
        known = self._known.pop(of, None)
        self.absent.pop(of, None)
        if known is not None and self._table.launch(one.launch_id) is None:
            self._lost.setdefault(one.launch_id, {})[one.key] = known.ready_s is not None

    def lost(self, worker: str) -> dict[str, bool]:
        """The keys of a worker that has ended, and whether they were ready."""
        for of in [of for of in self.ordered if of[0] == worker]:
            del self.ordered[of]
        return self._lost.pop(worker, {})

    def answered(self, of: Of, carried_out: bool) -> None:
        """An order about the key; the map has what came of it."""
        self.ordered.pop(of, None)
        known, one = self._known.get(of), self._table.assignment(*of)
        if not carried_out and known is not None and one is not None:
            known.stopping = False
            known.leaving_s = known.leaving_s if one.retired else None

    # ---- what is told ----

    def told(self, worker: str, group: GroupTold, settled: bool, now_s: float) -> float | None:
        """The worker consumes from the group's queue. How long it took to get ready if that is news: 0 says nothing."""
        of = worker, group.key
        self.absent.pop(of, None)
        known = self._known.get(of)
        if known is None:
            return None
        held = group.workers[worker]
        if held or known.held or settled:
            known.idle_s = now_s
        known.held = held
        if known.ready_s is not None:
            return None
        known.ready_s = known.idle_s = now_s
        return now_s - known.since_s if known.whole else 0.0

    def silent(self, group: GroupTold) -> None:
        """Whom the owner of the group's queue gives nothing more."""
        for one in self._table.assignments_of(self._pool_id, group.key):
            if (known := self._known.get((one.launch_id, group.key))) is not None:
                known.silent = one.launch_id in group.retired

    def left(self, worker: str, key: str, now_s: float) -> None:
        """It does not consume from the key's queue any more."""
        known = self._known.get((worker, key))
        if known is not None:
            known.held = 0
            if known.leaving_s is None:
                self.absent[worker, key] = now_s

    # ---- orders ----

    def assign(self, of: Of) -> None:
        """Is ordered."""
        self.ordered[of] = None

    def leaves(self, of: Of, stopping: bool, now_s: float) -> bool:
        """Whether that is news."""
        known = self._known.get(of)
        if known is None or known.stopping or (known.leaving_s is not None and not stopping):
            return False
        known.stopping = stopping
        known.leaving_s = now_s if known.leaving_s is None else known.leaving_s
        return True

    # ---- questions ----

    def keys_of(self, worker: str) -> Iterator[str]:
        """Of a worker that there is."""
        for one in self._table.assignments(worker):
            yield one.key

    def held_by(self, worker: str, leaving: bool) -> int:
        """Requests of all keys. `leaving`: what is not told yet counts."""
        known = (self._known.get((worker, key)) for key in self.keys_of(worker))
        return sum(one.held if one.silent or not leaving else max(1, one.held) for one in known if one is not None)

    def of_key(self, key: str, hosts: dict[str, WorkerFacts], now_s: float) -> Iterator[WorkerFacts]:
        """The key's workers. `hosts`: those that have it, or will."""
        for one in self._table.assignments_of(self._pool_id, key):
            host, known = hosts.get(one.launch_id), self._known.get((one.launch_id, key))
            if host is not None and known is not None:
                yield self._facts(host, key, known, now_s)
        for worker, ordered in self.ordered:
            if ordered == key and (host := hosts.get(worker)) is not None and (worker, key) not in self._known:
                yield self._seat(host, key, WorkerState.STARTING, now_s)

    def _facts(self, host: WorkerFacts, key: str, known: _Held, now_s: float) -> WorkerFacts:
        if host.state is WorkerState.STOPPING or known.stopping:
            return self._seat(host, key, WorkerState.STOPPING, known.leaving_s or now_s, known)
        if host.state is WorkerState.RETIRING or known.leaving_s is not None:
            since_s = host.since_s if known.leaving_s is None else known.leaving_s
            return self._seat(host, key, WorkerState.RETIRING, since_s, known)
        if known.ready_s is not None:
            return self._seat(host, key, WorkerState.READY, known.ready_s, known)
        if host.state is WorkerState.READY:
            return self._seat(host, key, WorkerState.STARTING, max(host.since_s, known.since_s), known)
        return self._seat(host, key, WorkerState.WANTED, math.inf, known)  # its worker's start is what takes long

    @staticmethod
    def _seat(
        host: WorkerFacts, key: str, state: WorkerState, since_s: float, known: _Held | None = None
    ) -> WorkerFacts:
        held = 0 if known is None else known.held
        if known is not None and state is WorkerState.RETIRING and not known.silent:
            held = max(1, held)
        idle_s = 0.0 if known is None else known.idle_s
        return WorkerFacts(
            seat_of(host.id, key), host.place, state, since_s, held, idle_s, version=host.version, host=host.id
        )
