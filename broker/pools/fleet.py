"""The workers of a pool at its controller: facts for the policy, and commands out of its orders (pure).

    map (pool, groups, launches) --+
    GroupTold, WorkerTold ---------+--> PoolFacts --> Policy.step --> LaunchWorkers, RetireWorkers, RevokeWorkers
    places ------------------------+                             \\--> StartsFail

    wanted --place tells--> starting --first consumer--> ready --Retire--> retiring --Stop--> revoked --place--> gone
    spare: starting --it asks for its key--> ready --Assign--> starting (of its key) --first consumer--> ready ...

An order is in the facts of the next step though the wiring log has not answered: a launch under a number of its own
until the log gives it its id, a retired or revoked worker in its new state. What the log refuses leaves the facts.
Launches are counted as the log has them, not as they are seen running: a controller that takes over starts none twice.

Beside the policy four things end a worker: its group is gone; its place is without its node for LOST_PLACE_S; it does
not consume any more, for as long as a start or an end may take; and a start on which no place has the template any more
times out as others do.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Literal

from clusterbroker.broker.pools.explaining import Document, Explanation
from clusterbroker.broker.pools.facts import Gone, GroupFacts, GroupState, PoolFacts, WorkerFacts, WorkerState
from clusterbroker.broker.pools.figures import Figures, by_state, of_places
from clusterbroker.broker.pools.history import Word
from clusterbroker.broker.pools.holdings import Holdings, of_seat, seat_of
from clusterbroker.broker.pools.known import Known, Started
from clusterbroker.broker.pools.messages import GroupTold, KeyFailed, SpareTold, StartsFail, TemplateTold, WorkerTold
from clusterbroker.broker.pools.orders import Assign, Fail, Launch, Order, Ordered, Retire, Stop
from clusterbroker.broker.pools.places import Place, chosen, is_there, rooms, settings_of, there
from clusterbroker.broker.pools.policy import Policy
from clusterbroker.cluster.wiring.pool_entities import NO_KEY, NOOP, Assignment, Pool
from clusterbroker.cluster.wiring.pool_entities import Launch as LaunchEntity
from clusterbroker.cluster.wiring.pool_rules import tenant_of
from clusterbroker.cluster.wiring.pool_table import PoolTable

LOST_PLACE_S: Final = 30.0
"""A foreman whose node has no lease has killed its workers by then."""
NO_TEMPLATE: Final = TemplateTold("", "")
"""Of a controller that never saw one: no place starts anything by it."""
BATCH: Final = 100


class Fleet:
    """Of one pool and epoch. After each event or `next_s`, `step`; then take `commands` and `fails`."""

    def __init__(self, pool: Pool, table: PoolTable, now_s: float) -> None:
        self.pool = pool
        self._table = table
        self._begun_s = now_s
        self._template: TemplateTold | None = None
        self._policy: Policy | None = None
        self._before: Policy | None = None
        """Of other settings: what it knows of failures goes on."""
        self._failed: list[tuple[str, float, str]] = []
        """Keys that a controller before has failed: until when, and why."""
        self._facts: dict[str, GroupFacts] = {}
        self._dirty: dict[str, None] = {group.key: None for group in table.groups(pool.pool_id)}
        self._told: dict[str, GroupTold] = {}
        self._known: dict[str, Known] = {}
        self._pending: dict[str, dict[str, tuple[str, str]]] = {}
        """Key -> number -> (place, version)."""
        self._assigning: dict[str, str] = {}
        """Spares whose keys are ordered, and these."""
        self._holdings = Holdings(pool.pool_id, table)
        """Of workers that serve several keys."""
        self._keys_per_worker, self._more = table.keys_per_worker(pool.pool_id), table.more(pool.pool_id)
        self._number = 0
        self._lost: dict[str, float] = {}
        self._absent: dict[str, float] = {}
        """Workers that consumed and do not any more, and since when."""
        self._unreported: dict[str, float] = {}
        """Workers that consume and have not reported (`ready=event`), and until when that is waited for."""
        self._ends: list[Gone] = []
        self._readies: list[tuple[str, str, float]] = []
        """(key, place, what its start took: 0 says nothing)."""
        self._wakes = True
        self.commands: list[Ordered] = []
        self.fails: list[StartsFail] = []
        self.counts: Counter[str] = Counter()
        """Of the policy, since they were taken."""
        self.lost: Counter[str] = Counter()
        """Workers that are ended with their places, since these were taken."""
        self.starts: list[Started] = []
        """Workers that got ready, or were gone before, unasked."""
        for launch in table.launches(pool.pool_id):
            self._know(launch, now_s).whole = False
            for one in table.assignments(launch.launch_id):
                self._holdings.changed(one, now_s, whole=False)
        self._taken_over = bool(self._known)

    # -- events -------------------------------------------------------------------------------------------------

    def pool_changed(self, pool: Pool) -> None:
        """It was set, paused, resumed or deleted."""
        keys, more = self._table.keys_per_worker(pool.pool_id), self._table.more(pool.pool_id)
        if (pool.settings, keys, more) != (self.pool.settings, self._keys_per_worker, self._more):
            self._before, self._policy = self._policy or self._before, None
        if more.tenant_separator != self._more.tenant_separator:
            self._dirty.update(dict.fromkeys(self._facts))
        self.pool, self._keys_per_worker, self._more = pool, keys, more
        self._wakes = True

    def group_changed(self, key: str) -> None:
        """It came, changed or ended in the map."""
        self._dirty[key] = None
        self._wakes = True

    def launch_changed(self, launch: LaunchEntity, now_s: float) -> Word | None:
        """It was ordered, assigned, retired or revoked: which of these; None: nothing that is new."""
        is_new = launch.launch_id not in self._known
        known = self._know(launch, now_s)
        news: Word | None = "revoked" if launch.revoked else "retired" if launch.retired else None
        if is_new:
            news = "started"
        if known.key != launch.key:
            known.key, known.ordered_s, known.whole = launch.key, now_s, True
            news = "assigned"
        self._look_again(launch)
        return news

    def _look_again(self, launch: LaunchEntity) -> None:
        """At its key, or keys."""
        self._dirty[launch.key] = None
        for key in self._holdings.keys_of(launch.launch_id):
            self._dirty[key] = None
        self._wakes = True

    def key_changed(self, one: Assignment, now_s: float) -> None:
        """A worker of several keys has one more, or gets no more requests of it."""
        self._holdings.changed(one, now_s)
        self._dirty[one.key] = None
        self._wakes = True

    def key_ended(self, one: Assignment) -> None:
        """It has it no more."""
        self._holdings.ended(one)
        self._dirty[one.key] = None
        self._wakes = True

    def key_failed(self, told: KeyFailed, now_s: float) -> None:
        """A worker of several keys says that it cannot serve this one."""
        launch = self._table.launch(told.worker_id)
        if launch is None or launch.revoked or self._table.assignment(told.worker_id, told.key) is None:
            return
        seat = seat_of(told.worker_id, told.key)
        if self._take((Stop(told.key, seat, told.why),), now_s):
            self._ends.append(Gone(told.key, seat, launch.place, ready=False, asked=False, detail=told.why))
        self._wakes = True

    def launch_ended(self, launch: LaunchEntity, exit_status: int | None, peak_bytes: int, now_s: float) -> None:
        """Its place has said that it is gone."""
        known = self._known.pop(launch.launch_id, None)
        self._absent.pop(launch.launch_id, None)
        self._look_again(launch)
        if launch.launch_id in self._assigning:
            self._dirty[self._assigning.pop(launch.launch_id)] = None
        keys = self._holdings.lost(launch.launch_id)
        self._dirty.update(dict.fromkeys(keys))
        if known is None:
            return
        detail = f"exit status {exit_status}" if exit_status is not None else "no exit status"
        if known.why and known.why not in detail:
            detail += f": {known.why}"
        ready = (known.spare_s if launch.spare else known.ready_s) is not None
        before = not (known.whole or ready)  # an earlier controller's: it may have been ready, and ended with its node
        asked = before or bool(launch.revoked) or bool(launch.retired) or known.leaving is not None
        if ready and keys:  # whichever of them has ended it
            for key, served in keys.items():
                seat = seat_of(launch.launch_id, key)
                self._ends.append(Gone(key, seat, launch.place, served, asked, detail=detail))
            asked = True
        self._ends.append(Gone(launch.key, launch.launch_id, launch.place, ready, asked, peak_bytes, detail))
        if not (ready or asked) and known.whole:
            took_s = now_s - known.ordered_s
            self.starts.append(Started(launch.key, launch.launch_id, launch.place, took_s, detail))

    def told(self, group: GroupTold, now_s: float) -> None:
        """By the owner of a group's queue."""
        if self._table.group(self.pool.pool_id, group.key) is None:
            return
        before = self._told.get(group.key)
        if before is not None and group.declared and group.told_by < before.told_by:
            return
        self._told[group.key] = group
        if before is None or before.told_by != group.told_by:
            self._tell_failure(group.key, now_s)
        for worker_id, held in group.workers.items():
            known = self._known.get(worker_id)
            launch = self._table.launch(worker_id)
            self._absent.pop(worker_id, None)
            if known is None or launch is None:
                continue
            settled = before is not None and group.settled != before.settled
            if launch.spare:
                self._serves(launch, known, group, settled, now_s)
                continue
            if self.pool.settings.ready == "consumer" or not known.whole:
                self._ready(launch, known, now_s)  # what one of before has told of itself is not told again
            elif known.ready_s is None:
                self._unreported.setdefault(worker_id, known.ordered_s + self.pool.settings.start_timeout_s)
            if held or known.held or settled:
                known.idle_s = now_s
            known.held = held
        for worker_id in () if before is None else before.workers.keys() - group.workers.keys():
            self._unreported.pop(worker_id, None)
            if worker_id in self._known and self._known[worker_id].key == NO_KEY:
                self._holdings.left(worker_id, group.key, now_s)
            elif worker_id in self._known:
                self._known[worker_id].held = 0
                self._absent[worker_id] = now_s
        self._holdings.silent(group)
        self._dirty[group.key] = None
        self._wakes = True

    def _serves(self, launch: LaunchEntity, known: Known, group: GroupTold, settled: bool, now_s: float) -> None:
        """A worker of several keys consumes this one's. It has asked for it, whoever was told so."""
        took_s = self._holdings.told(launch.launch_id, group, settled, now_s)
        if known.spare_s is None:
            known.spare_s = now_s
            self._look_again(launch)
        if took_s is not None:
            self._readies.append((group.key, launch.place, took_s))
            if took_s:
                self.starts.append(Started(group.key, launch.launch_id, launch.place, took_s))
        if launch.retired or known.leaving is not None:
            self._dirty[NO_KEY] = None

    def _tell_failure(self, key: str, now_s: float) -> None:
        """Whoever has just begun to own a queue of the key does not know that its starts fail."""
        policy = self._policy or self._before
        fail = None if policy is None else policy.failed(key, now_s)
        if fail is not None:
            self._take((fail,), now_s)

    def worker_told(self, told: WorkerTold, now_s: float) -> None:
        """By its place, or by itself."""
        known, launch = self._known.get(told.worker_id), self._table.launch(told.worker_id)
        if known is None or launch is None or launch.pool_id != self.pool.pool_id:
            return
        if told.running and known.starting_s is None:
            known.starting_s = now_s
        if told.ready and self.pool.settings.ready == "event" and not launch.spare:
            self._ready(launch, known, now_s)
        known.memory = told.memory_bytes or known.memory
        known.why = told.why or known.why
        self._look_again(launch)

    def spare_told(self, told: SpareTold, now_s: float) -> None:
        """By the node where it waits for its key."""
        known, launch = self._known.get(told.worker_id), self._table.launch(told.worker_id)
        if known is None or launch is None or launch.pool_id != self.pool.pool_id or known.spare_s is not None:
            return
        known.spare_s = now_s
        if launch.spare:
            self._took(launch, known, now_s)
        self._look_again(launch)

    def places_changed(self) -> None:
        """One of them can start other things than before, or came, or went."""
        self._wakes = True

    def failed_before(self, key: str, until_s: float, detail: str) -> None:
        """A controller before has told so. Before the first step."""
        self._failed.append((key, until_s, detail))

    def retry(self, key: str) -> None:
        """An operator's word: start again now."""
        self._failed = [one for one in self._failed if one[0] != key]
        for policy in (self._policy, self._before):
            if policy is not None:
                policy.retry(key)
        self._wakes = True

    def known(self, launch_id: str) -> Known | None:
        """Of a launch that is not gone."""
        return self._known.get(launch_id)

    def _know(self, launch: LaunchEntity, now_s: float) -> Known:
        known = self._known.get(launch.launch_id)
        if known is None:
            known = self._known[launch.launch_id] = Known(now_s, launch.key)
        if (launch.retired or launch.revoked) and known.leaving_s is None:
            known.leaving_s = now_s
        return known

    def _ready(self, launch: LaunchEntity, known: Known, now_s: float) -> None:
        if known.ready_s is None:
            known.ready_s = known.idle_s = now_s
            self._took(launch, known, now_s, was_spare=known.spare_s is not None)

    def _took(self, launch: LaunchEntity, known: Known, now_s: float, was_spare: bool = False) -> None:
        """It is ready. What a key costs to start a spare does not say, nor does an order of unknown time."""
        took_s = now_s - known.ordered_s if known.whole else 0.0
        if known.whole:
            self.starts.append(Started(launch.key, launch.launch_id, launch.place, took_s))
        self._readies.append((launch.key, launch.place, 0.0 if was_spare else took_s))

    # -- the log's answers --------------------------------------------------------------------------------------

    def answered(self, command: Ordered, carried_out: bool) -> None:
        """The map has what came of it by now; or the log refused it."""
        for number, key, _, _ in command.launches:
            numbers = self._pending.get(key, {})
            numbers.pop(number, None)
            if not numbers:
                self._pending.pop(key, None)
            self._dirty[key] = None
        for worker_id, key in command.assigned:
            if self._assigning.pop(worker_id, None) is not None:
                self._dirty[key] = None
            self._holdings.answered((worker_id, key), carried_out)
            self._dirty[key] = None
        for worker_id in command.workers:
            known, launch = self._known.get(worker_id), self._table.launch(worker_id)
            if known is not None and launch is not None:
                if not carried_out:
                    known.leaving = WorkerState.RETIRING if launch.retired else None
                self._look_again(launch)
        self._wakes = True

    # -- a step -------------------------------------------------------------------------------------------------

    @property
    def wakes(self) -> bool:
        """Something happened since the last step."""
        return self._wakes

    def next_s(self, now_s: float) -> float | None:
        """Time of the next step without an event; None: at rest."""
        if self._lost or self._absent or self._holdings.absent:
            return now_s + 1.0
        return None if self._policy is None else self._policy.next_s(now_s)

    @property
    def effort(self) -> int:
        """Of the last step, in groups that were measured."""
        return 0 if self._policy is None else self._policy.effort

    def figures(self, now_s: float) -> Figures:
        """For people."""
        workers = by_state(
            (worker.state, self._table.is_free(launch), worker.held)
            for launch in self._table.launches(self.pool.pool_id)
            for worker in (self._worker(launch, frozenset(), now_s),)
        )
        books, suspended = ({}, {}) if self._policy is None else (self._policy.placement.books, self._policy.suspended)
        version = "" if self._template is None else self._template.version
        return Figures(workers, of_places(books, suspended, now_s), version)

    def explained(self, wanted: Callable[[str], bool], places: bool, now_s: float) -> Document:
        """Reasons of the last step, of the pool and of keys that are wanted; empty: there was no step."""
        return {} if self._policy is None else Explanation(self._policy, now_s, places).document(wanted)

    def step(self, places: Mapping[str, Place], own: str, now_s: float) -> None:
        """`own`: the controller's place, whose version of the template counts if as many places have another one."""
        self._wakes = False
        if self.pool.deleting or not self.pool.starts_workers:
            return
        self._late_reports(now_s)
        template = chosen(self.pool, places, own)
        if template is None:  # nothing is started; what runs ends as ever
            template = self._template or NO_TEMPLATE
        if self._policy is None or self._assumed_of(template) != self._assumed_of(self._template):
            taken_over = self._taken_over and now_s < self._begun_s + LOST_PLACE_S
            before, self._before = self._policy or self._before, None
            self._policy = Policy(
                settings_of(self.pool.settings, template, self._keys_per_worker, self._more), now_s,
                taken_over=taken_over, learnt=self._table.learnt(self.pool.pool_id),
            )  # fmt: skip
            if before is not None:
                self._policy.fail_as(before)
            failed, self._failed = self._failed, []
            for key, until_s, detail in failed:
                self._policy.failures.resume(key, until_s, detail, now_s)
        self._template = template
        policy = self._policy
        self._renew(places, now_s)
        for key, place, took_s in self._readies:
            policy.worker_ready(key, place, took_s, now_s)
        orders: list[Order] = []
        for gone in self._ends:
            orders += policy.worker_gone(gone, now_s)
        self._readies, self._ends = [], []
        launches = self._table.launches(self.pool.pool_id)
        strays = [one for one in launches if not one.spare and self._table.group(self.pool.pool_id, one.key) is None]
        facts = PoolFacts(
            self._facts, rooms(self.pool, places, template, strays), template.version, self.pool.paused,
            self._spares(places, now_s), self._table.spares(self.pool.pool_id) if template.version else 0, len(strays),
        )  # fmt: skip
        orders += policy.step(facts, now_s)
        self.counts.update(policy.counts)
        policy.counts.clear()
        self._take(orders, now_s)
        self._end_lost(launches, places, now_s)
        self._end_absent(now_s)
        self._end_stray(strays)

    def _late_reports(self, now_s: float) -> None:
        """A report may be lost, and is made once: a worker that consumes as its start times out counts as ready."""
        for worker_id, until_s in [*self._unreported.items()]:
            known, launch = self._known.get(worker_id), self._table.launch(worker_id)
            if known is None or launch is None or known.ready_s is not None:
                del self._unreported[worker_id]
            elif now_s >= until_s:
                self._ready(launch, known, now_s)
                self._look_again(launch)

    @staticmethod
    def _assumed_of(template: TemplateTold | None) -> tuple[object, ...]:
        """What of it is among the policy's settings."""
        one = template or NO_TEMPLATE
        return one.memory_bytes, one.driver == NOOP, one.rolling, one.surge

    def _spares(self, places: Mapping[str, Place], now_s: float) -> tuple[WorkerFacts, ...]:
        """Workers without a key, but those whose key is ordered; all, where they serve several keys."""
        launches = self._table.launches_of(self.pool.pool_id, NO_KEY)
        workers = [
            self._worker(one, frozenset((one.launch_id,)), now_s)
            for one in launches
            if one.launch_id not in self._assigning
        ]
        return (*there(workers, places), *self._coming(NO_KEY, now_s))

    def _coming(self, key: str, now_s: float) -> Iterator[WorkerFacts]:
        """Workers that the log has not told of yet."""
        for number, (place, version) in self._pending.get(key, {}).items():
            yield WorkerFacts(number, place, WorkerState.WANTED, now_s, version=version, pending=True)

    def _renew(self, places: Mapping[str, Place], now_s: float) -> None:
        dirty, self._dirty = self._dirty, {}
        for key in dirty:
            facts = self._group(key, places, now_s)
            if facts is None:
                self._facts.pop(key, None)
                self._told.pop(key, None)
            elif self._facts.get(key) != facts:
                self._facts[key] = facts

    def _group(self, key: str, places: Mapping[str, Place], now_s: float) -> GroupFacts | None:
        group = self._table.group(self.pool.pool_id, key)
        if group is None:
            return None
        told = self._told.get(key)
        pinned = self._table.pinned(self.pool.pool_id, key)
        state = GroupState.ACTIVE if group.state == "active" else GroupState.UNBOUND
        if state is GroupState.UNBOUND and told is not None and told.draining:
            state = GroupState.DRAINING
        silent = frozenset(() if told is None else told.retired)
        workers = [self._worker(launch, silent, now_s) for launch in self._table.launches_of(self.pool.pool_id, key)]
        workers = there(workers, places)
        workers += self._coming(key, now_s)
        for worker_id in [worker_id for worker_id, to in self._assigning.items() if to == key]:
            if (launch := self._table.launch(worker_id)) is not None and launch.spare:
                workers.append(
                    WorkerFacts(worker_id, launch.place, WorkerState.STARTING, now_s, version=launch.version)
                )
        if self._keys_per_worker > 1:
            workers += self._sharing(key, places, now_s)
        tenant = tenant_of(self._more, key)
        if told is None:
            return GroupFacts(key, state, workers=tuple(workers), tenant=tenant, pinned=pinned)
        return GroupFacts(
            key, state, told.ready, told.held, told.arrived, told.settled, told.service_ms / 1000, tuple(workers),
            tenant, pinned, told.suspects,
        )  # fmt: skip

    def _sharing(self, key: str, places: Mapping[str, Place], now_s: float) -> Iterator[WorkerFacts]:
        """Workers of several keys that have this one, or will."""
        ids = {one.launch_id: None for one in self._table.assignments_of(self.pool.pool_id, key)}
        ids.update((worker_id, None) for worker_id, ordered in self._holdings.ordered if ordered == key)
        launches = [launch for one in ids if (launch := self._table.launch(one)) is not None]
        hosts = {one.launch_id: self._worker(one, frozenset(), now_s) for one in launches}
        return iter(there(self._holdings.of_key(key, hosts, now_s), places))

    def _worker(self, launch: LaunchEntity, silent: frozenset[str], now_s: float) -> WorkerFacts:
        """`silent`: those of which the owner of the queue has told that they get nothing more. A retired one may have
        got a request that is not told yet, until then."""
        known = self._know(launch, now_s)
        since_s, held = known.ordered_s, known.held
        if launch.spare:
            held = self._holdings.held_by(launch.launch_id, bool(launch.retired) or known.leaving is not None)
        if launch.revoked or known.leaving is WorkerState.STOPPING:
            state, since_s = WorkerState.STOPPING, known.leaving_s or now_s
        elif launch.retired or known.leaving is WorkerState.RETIRING:
            state, since_s = WorkerState.RETIRING, math.inf if known.leaving_s is None else known.leaving_s
            held = held if launch.launch_id in silent or launch.spare else max(1, held)
        elif (ready_s := known.spare_s if launch.spare else known.ready_s) is not None:
            state, since_s = WorkerState.READY, ready_s
        else:
            state = WorkerState.WANTED if known.starting_s is None else WorkerState.STARTING
        return WorkerFacts(
            launch.launch_id, launch.place, state, since_s, held, known.idle_s, known.memory, launch.version
        )

    # -- orders -------------------------------------------------------------------------------------------------

    def _take(self, orders: Iterable[Order], now_s: float) -> int:
        """How many commands that makes."""
        before = len(self.commands)
        launches: list[tuple[str, str, str, str]] = []
        leaving: dict[tuple[Literal["retire", "revoke"], str], list[str]] = {}
        assigned: list[tuple[str, str]] = []
        keys: dict[tuple[Literal["retire_keys", "revoke_keys"], str], list[tuple[str, str]]] = {}
        for order in orders:
            if isinstance(order, Launch):
                self._number += 1
                number = f"+{self._number}"
                self._pending.setdefault(order.key, {})[number] = order.place, order.version
                self._dirty[order.key] = None
                launches.append((number, order.key, order.place, order.version))
            elif isinstance(order, Assign):
                if self._keys_per_worker > 1:
                    self._holdings.assign((order.worker, order.key))
                else:
                    self._assigning[order.worker] = order.key
                self._dirty[order.key] = None
                assigned.append((order.worker, order.key))
            elif isinstance(order, (Retire, Stop)) and (of := of_seat(order.worker)) is not None:
                stop = isinstance(order, Stop)
                if self._holdings.leaves(of, stop, now_s):
                    self._dirty[order.key] = None
                    keys.setdefault(("revoke_keys" if stop else "retire_keys", order.why), []).append(of)
            elif isinstance(order, Retire) and self._leaves(order.worker, WorkerState.RETIRING):
                leaving.setdefault(("retire", order.why), []).append(order.worker)
            elif isinstance(order, Stop) and self._leaves(order.worker, WorkerState.STOPPING):
                leaving.setdefault(("revoke", order.why), []).append(order.worker)
            elif isinstance(order, Fail):
                for_ms = max(0, round(1000 * (order.until_s - now_s)))
                self.fails.append(StartsFail(self.pool.pool_id, order.key, for_ms, order.detail[:1000]))
        for at in range(0, len(assigned), BATCH):
            self.commands.append(Ordered("assign", assigned=tuple(assigned[at : at + BATCH])))
        for (word, why), some in keys.items():
            for at in range(0, len(some), BATCH):
                self.commands.append(Ordered(word, assigned=tuple(some[at : at + BATCH]), why=why))
        for (kind, why), workers in leaving.items():
            for at in range(0, len(workers), BATCH):
                self.commands.append(Ordered(kind, workers=tuple(workers[at : at + BATCH]), why=why))
        for at in range(0, len(launches), BATCH):  # behind those that leave: else there were too many for a moment
            self.commands.append(Ordered("launch", tuple(launches[at : at + BATCH])))
        return len(self.commands) - before

    def _leaves(self, worker_id: str, state: WorkerState) -> bool:
        """Whether that is news; a launch that has no id yet is retired when it has one."""
        known, launch = self._known.get(worker_id), self._table.launch(worker_id)
        if known is None or launch is None or launch.revoked or known.leaving in (state, WorkerState.STOPPING):
            return False
        if state is WorkerState.RETIRING and launch.retired:
            return False
        known.leaving = state
        self._look_again(launch)
        return True

    def _end_lost(self, launches: Iterable[LaunchEntity], places: Mapping[str, Place], now_s: float) -> None:
        """Of places whose node is gone for long."""
        used = {launch.place for launch in launches if not launch.revoked}
        absent = {place for place in used if not is_there(places, place)}
        self._lost = {name: self._lost.get(name, now_s) for name in absent}
        over = {name for name, since_s in self._lost.items() if now_s >= since_s + LOST_PLACE_S}
        if not over:
            return
        ends = [one for one in launches if one.place in over and not (one.revoked or self._is_stopping(one))]
        self.lost.update(one.place for one in ends)
        self._take((Stop(one.key, one.launch_id, "its place is lost") for one in ends), now_s)

    def _is_stopping(self, launch: LaunchEntity) -> bool:
        known = self._known.get(launch.launch_id)
        return known is not None and known.leaving is WorkerState.STOPPING

    def _end_absent(self, now_s: float) -> None:
        """Of those that hang, or were told to leave and have not. A retired one ends as the policy says."""
        if not (self._absent or self._holdings.absent) or self._policy is None or not self._policy.is_settled(now_s):
            return
        limit_s = max(self.pool.settings.start_timeout_s, self.pool.settings.grace_s)
        for worker_id, since_s in list(self._absent.items()):
            launch = self._table.launch(worker_id)
            if launch is None or launch.retired or launch.revoked:
                del self._absent[worker_id]
            elif now_s >= since_s + limit_s:
                self._take((Stop(launch.key, worker_id, f"it did not consume for {limit_s} s"),), now_s)
        for (worker_id, key), since_s in list(self._holdings.absent.items()):
            if now_s >= since_s + limit_s:
                self._take((Stop(NO_KEY, worker_id, f"it did not consume {key!r} for {limit_s} s"),), now_s)

    def _end_stray(self, strays: Iterable[LaunchEntity]) -> None:
        """Of groups that are gone."""
        ends = (launch for launch in strays if not launch.revoked)
        self._take((Stop(one.key, one.launch_id, "its group has ended") for one in ends), self._begun_s)
