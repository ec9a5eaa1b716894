"""Workers that serve several keys: which of them a key gets, and which key gives way (design page, 4.6).

    a worker has room for a key --> Assign
    none has, and there is room for one more --> Launch, without a key; the keys that it has room for wait for it
    none has, nor is there room --> the least recently used key that holds nothing is retired, and then revoked

A worker's room at its place counts once, whatever its keys are. *Filled before started*: the fullest worker with room
gets the key, so those that are to be kept without one (`spares`) stay so. *Least recently used* is whose last request
is longest ago, of the keys of which nothing waits or is held; a key that starves takes any that has run `min_run_s`,
those that hold nothing first. Keys that are pinned, or have `min`, give way to none; and none does to a key of which no
request waits.

A key that has *suspects* (`suspects.py`) needs a worker that serves no other one: it gets one without a key, which gets
no other; where it shares one, the others there are retired. Where no worker is without a key one is emptied for it, all
of whose keys may give way, and gets no other key until then: else each key that left would be back before the next.

An assignment is no start: it does not count among the starts of a minute, since keys may come and go more often.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

from clusterbroker.cluster.wiring.pool_entities import NO_KEY

from .admission import Wish
from .facts import GroupFacts, PoolFacts, Settings, WorkerFacts, WorkerState
from .failures import Failures
from .keyless import Keyless
from .orders import Assign, Launch, Order, Retire
from .placement import EVICT_IDLE_S, Costs, Placement
from .replacing import OLDER, Replacing


class SharedWorkers(Keyless):
    """Of one policy. Each step: `open`, then `answer` for each wish, then `rest`."""

    def __init__(
        self, settings: Settings, costs: Costs, placement: Placement, failures: Failures, replacing: Replacing
    ) -> None:
        self._settings = settings
        self._replacing = replacing
        super().__init__(costs, placement, failures)
        self._hosts: list[WorkerFacts] = []
        """That are not on their way out: ready ones first."""
        self._seats: dict[str, dict[str, WorkerFacts]] = {}
        """Host -> key -> the key's worker there, leaving ones too."""
        self._given: dict[str, set[str]] = {}
        """Host -> keys that it gets by this step."""
        self._leaving: set[str] = set()
        """Seats that are on their way out."""
        self._emptied: dict[str, str] = {}
        """Host -> the key with suspects for which it is emptied."""
        self._promised = 0
        """Keys for which workers are on their way that the log has not named yet."""
        self._returning = 0
        """Seats that come free, and that no key has been promised yet."""

    def open(self, facts: PoolFacts, stopped: Collection[str], retired: Collection[str]) -> None:
        """Begin a step, with the books of placement open. `stopped`, `retired`: workers, and keys at workers, that this
        step has put out already."""
        self._open(facts)
        active = [one for one in facts.spares if one.active and one.id not in stopped]
        self._hosts = sorted(active, key=lambda one: (one.state is not WorkerState.READY, one.since_s, one.id))
        self._seats = {one.id: {} for one in facts.spares}
        self._given = {}
        self._leaving = set()
        for group in facts.groups.values():
            for seat in group.workers:
                if seat.host in self._seats:
                    self._seats[seat.host][group.key] = seat
                    if not seat.active or seat.id in retired:
                        self._leaving.add(seat.id)
        self._emptied = {host: key for host, key in self._emptied.items() if self._is_emptied_for(host, key)}
        pending = sum(one.pending for one in self._hosts)
        self._promised = pending * self._settings.keys_per_worker
        takes = {one.id for one in self._hosts if self._takes_keys(one)} - self._emptied.keys()
        self._returning = sum(seat.id in self._leaving for host in takes for seat in self._seats[host].values())

    def _is_emptied_for(self, host: str, key: str) -> bool:
        """Still."""
        group = self._facts.groups.get(key)
        waits = group is not None and group.suspects and group.busy and not group.active
        return waits and any(one.id == host and self._takes_keys(one) for one in self._hosts)

    def serves(self, host: str) -> bool:
        """A key of this worker is ready."""
        return any(seat.state is WorkerState.READY for seat in self._seats.get(host, {}).values())

    def _takes_keys(self, host: WorkerFacts) -> bool:
        book = self._placement.books.get(host.place)
        return not (host.pending or self._is_old(host)) and book is not None and book.usable and not book.short

    def _count(self, host: str) -> int:
        return len(self._seats.get(host, ())) + len(self._given.get(host, ()))

    def _has(self, host: str, key: str) -> bool:
        return key in self._seats.get(host, ()) or key in self._given.get(host, ())

    def _suits(self, host: str, key: str) -> bool:
        """The key may come to a worker that has room."""
        if self._emptied.get(host, key) != key:
            return False
        if self._suspected(key):
            return not self._count(host)
        return not self._has(host, key) and not self._is_kept_alone(host)

    def _suspected(self, key: str) -> bool:
        return self._facts.groups[key].suspects

    def _is_kept_alone(self, host: str) -> bool:
        """It has a key with suspects, or is to have it."""
        return any(self._suspected(key) for key in (*self._seats.get(host, ()), *self._given.get(host, ())))

    # ---- up ----

    def answer(self, wish: Wish, left: int, may_return: bool, now_s: float) -> Order | None:
        """What a wish comes to: its Assign; a Launch, or a key or worker that is to be retired; None: it waits.
        `left`: so many more workers the pool may have. `may_return`: a key may be taken from its worker."""
        host = self._room(wish.key, now_s)
        if host is not None:
            self._given.setdefault(host.id, set()).add(wish.key)
            return Assign(wish.key, host.id)
        if self._promised:
            self._promised -= 1
            return None
        if left > 0 and (launch := self._launch(now_s)) is not None:
            self._promised += self._settings.keys_per_worker - 1
            return launch
        group = self._facts.groups[wish.key]
        if not (wish.first and may_return and (group.ready or group.pinned)):
            return None
        if self._suspected(wish.key):
            return self._empty(wish, now_s) or self._replace()
        if self._returning:
            self._returning -= 1
            return None
        return self._give_way(wish, self._hosts, now_s) or self._replace()

    def _room(self, key: str, now_s: float) -> WorkerFacts | None:
        recent, most = self._costs.recent_place(key, now_s), self._settings.keys_per_worker
        found = [
            one
            for one in self._hosts
            if self._takes_keys(one) and self._count(one.id) < most and self._suits(one.id, key)
        ]
        if not found:
            return None
        return min(
            found,
            key=lambda one: (one.state is not WorkerState.READY, -self._count(one.id), one.place != recent, one.id),
        )

    def _launch(self, now_s: float) -> Launch | None:
        if not self.failures.may_start(NO_KEY, now_s):
            return None
        if self.failures.on_trial(NO_KEY) and any(one.state is not WorkerState.READY for one in self._hosts):
            return None
        place = self._placement.fit(NO_KEY, True, False, now_s)
        return None if place is None else self._begin(place, now_s)

    def _begin(self, place: str, now_s: float) -> Launch:
        self._started = True
        return Launch(NO_KEY, place, self._facts.version, self._placement.launch(NO_KEY, place, now_s))

    def _empty(self, wish: Wish, now_s: float) -> Retire | None:
        """The next key of the worker that is emptied for one with suspects; of another one only if none is yet."""
        host = next((one for one in self._hosts if self._emptied.get(one.id) == wish.key), None)
        if host is None:
            found = [one for one in self._hosts if self._may_be_emptied(one, wish, now_s)]
            if not found:
                return None
            host = min(found, key=lambda one: (len(self._seats[one.id]), one.id))
            self._emptied[host.id] = wish.key
        return self._give_way(wish, [host], now_s)

    def _may_be_emptied(self, host: WorkerFacts, wish: Wish, now_s: float) -> bool:
        if not self._takes_keys(host) or host.id in self._emptied or host.id in self._given:
            return False
        seats = self._seats[host.id].items()
        return not self._is_kept_alone(host.id) and all(
            seat.id in self._leaving or self._rank(key, seat, wish, now_s) is not None for key, seat in seats
        )

    def _give_way(self, wish: Wish, hosts: Collection[WorkerFacts], now_s: float) -> Retire | None:
        """The key that makes room at one of these."""
        found: list[tuple[tuple[bool, bool, float], str, str]] = []
        for host in hosts:
            if not self._takes_keys(host) or self._has(host.id, wish.key) or self._is_kept_alone(host.id):
                continue
            if self._emptied.get(host.id, wish.key) != wish.key:
                continue
            for key, seat in self._seats[host.id].items():
                rank = None if seat.id in self._leaving else self._rank(key, seat, wish, now_s)
                if rank is not None:
                    found.append((rank, seat.id, key))
        if not found:
            return None
        _, seat_id, key = min(found)
        self._leaving.add(seat_id)
        return Retire(key, seat_id, f"room for {wish.key!r}")

    def _rank(self, key: str, seat: WorkerFacts, wish: Wish, now_s: float) -> tuple[bool, bool, float] | None:
        """Of a key that may give way to the wish: the lowest goes first. None: it may not."""
        group = self._facts.groups[key]
        if seat.state is not WorkerState.READY or not self._may_leave(group):
            return None
        if not group.busy:
            return False, False, seat.idle_since_s
        if wish.starved and now_s - seat.since_s >= self._settings.min_run_s:
            return True, seat.held > 0, seat.since_s
        return None

    def _replace(self) -> Retire | None:
        """A worker that gets no key, while others wait, goes where there is no room beside it: one of an older version;
        or one without a key, whose place takes none now and another place would. One at a time."""
        if any(not one.active for one in self._facts.spares):
            return None
        old = [one for one in self._hosts if not one.pending and self._is_old(one)]
        if old:
            host, why = min(old, key=lambda one: (self._count(one.id), one.id)), f"{OLDER}, and a key waits"
        else:
            memory, books = self._costs.memory(NO_KEY), self._placement.books.values()
            found = [one for one in self._hosts if not (one.pending or self._count(one.id) or self._takes_keys(one))]
            if not found or not any(book.usable and book.will_have_room(memory) for book in books):
                return None
            host, why = found[-1], "its place takes no key, and one waits"
        self._hosts.remove(host)
        return self._retire(host, why)

    def _is_old(self, host: WorkerFacts) -> bool:
        return self._replacing.is_old(host, self._facts)

    def _may_leave(self, group: GroupFacts) -> bool:
        return not group.pinned and len(group.active) > self._settings.min

    def isolate(self) -> Iterator[Retire]:
        """Keys that share a worker with one that has suspects. Of several such keys at one worker the first by name
        stays."""
        for host in self._hosts:
            seats = self._seats[host.id]
            stays = min((key for key in seats if self._suspected(key)), default=None)
            for key, seat in seats.items() if stays is not None else ():
                if key != stays and seat.id not in self._leaving:
                    self._leaving.add(seat.id)
                    yield Retire(key, seat.id, f"{stays!r} has lost workers: it is tried alone")

    # ---- down ----

    def rest(self, left: int, all_served: bool, may_retire: bool, now_s: float) -> Iterator[Order]:
        """Workers without a key that are not to be kept, places that are short of memory, and spares that are missing.
        `all_served`: no key waits for a worker."""
        free = [one for one in self._hosts if not one.pending and not self._count(one.id)]
        gone = set[str]()
        if may_retire:
            for order in self._surplus(free):
                gone.add(order.worker)
                yield order
        kept = len(free) - len(gone) + self._promised // self._settings.keys_per_worker
        self._missing = max(0, min(self._facts.spares_wanted - kept, left))
        if not all_served or self._facts.paused:
            return
        if self.failures.on_trial(NO_KEY):
            starting = any(one.state is not WorkerState.READY for one in self._hosts)
            self._missing = min(self._missing, 0 if starting else 1)
        while self._missing and self.failures.may_start(NO_KEY, now_s):
            place = self._placement.fit(NO_KEY, True, False, now_s)
            if place is None:
                return
            self._missing -= 1
            yield self._begin(place, now_s)

    def _surplus(self, free: list[WorkerFacts]) -> Iterator[Retire]:
        kept = []
        for host in free:
            book = self._placement.books.get(host.place)
            if self._is_old(host):
                yield self._retire(host, OLDER)
            elif book is not None and book.short:
                yield self._retire(host, "the place is short of memory")
            else:
                kept.append(host)
        for host in kept[self._facts.spares_wanted :]:
            yield self._retire(host, "surplus")

    def _retire(self, host: WorkerFacts, why: str) -> Retire:
        if (book := self._placement.books.get(host.place)) is not None:
            book.leave(self._costs.claim(NO_KEY, host))
        return Retire(NO_KEY, host.id, why)

    def over_committed(self, idle_s: dict[str, float]) -> Iterator[Retire]:
        """One worker of each place that is short of memory and has none without a key: all of whose keys idle, the
        longest first. `idle_s`: of groups that may be evicted."""
        for name, book in self._placement.books.items():
            if not book.short:
                continue
            found = [
                (-min(idle_s.get(key, -math.inf) for key in self._seats[one.id]), one.id, one)
                for one in self._hosts
                if one.place == name and self._seats.get(one.id) and one.id not in self._given
            ]
            if found and min(found)[0] <= -EVICT_IDLE_S:
                yield self._retire(min(found)[2], "the place is short of memory")

    def keys_of(self, host: str) -> Collection[str]:
        """As the step found them."""
        return self._seats.get(host, {}).keys()
