"""Bugs that are put into the parts of a pool that work together, and the scenario in which each shows."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final

import pytest
from msgspec.structs import replace

from clusterbroker.broker.access.worker_rights import WorkerRights
from clusterbroker.broker.delay.delay_queue import DelayQueue
from clusterbroker.broker.foreman import foreman as foreman_module
from clusterbroker.broker.foreman.drivers.port import DriverError
from clusterbroker.broker.foreman.foreman import Foreman
from clusterbroker.broker.foreman.reconcile import Books, Seen, View
from clusterbroker.broker.node import dead_letters as dead_letters_module
from clusterbroker.broker.node import pools as pools_module
from clusterbroker.broker.node.dead_letters import DeadLetters
from clusterbroker.broker.node.pool_desk import PoolDesk
from clusterbroker.broker.node.pools import NodePools
from clusterbroker.broker.pools import policy as policy_module
from clusterbroker.broker.pools.fleet import Fleet
from clusterbroker.broker.pools.group_queue import GroupQueue
from clusterbroker.broker.pools.holdings import Holdings
from clusterbroker.broker.pools.later_queue import LaterQueue
from clusterbroker.broker.pools.request_events import RequestEvents
from clusterbroker.broker.pools.suspects import Suspects
from clusterbroker.broker.queues.dead_lettering.replicated import Dead, ReplicatedDeadLetters
from clusterbroker.broker.queues.producers import dead_letter_producer
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.changes import Bound
from clusterbroker.cluster.wiring.pool_entities import NO_KEY
from clusterbroker.cluster.wiring.pool_table import PoolTable
from clusterbroker.cluster.wiring.pools import Pools
from tests.simulation.pools.bugs import old_ones_leave_before_new_ones_are_ready

Bug = Callable[[pytest.MonkeyPatch], None]


def launch_without_the_epochs_guard(patch: pytest.MonkeyPatch) -> None:
    """A controller of before launches."""
    _unguarded(patch, c.LaunchWorkers)


def revoke_without_the_epochs_guard(patch: pytest.MonkeyPatch) -> None:
    """A controller of before revokes."""
    _unguarded(patch, c.RevokeWorkers)


def _unguarded(patch: pytest.MonkeyPatch, kind: type[Any]) -> None:
    controlled = PoolTable.controlled

    def unguarded(self: PoolTable, command: Any, deleting: bool = False) -> Any:
        held = self.by_id.get(command.pool_id)
        orphans = None if held is None else self._index.by_id.get(held.pool.orphans)
        if isinstance(command, kind) and orphans is not None:
            command = replace(command, epoch=orphans.epoch)
        return controlled(self, command, deleting)

    patch.setattr(PoolTable, "controlled", unguarded)


def unknown_list_taken_for_empty(patch: pytest.MonkeyPatch) -> None:
    """A driver that does not answer has no workers."""
    bounded = foreman_module.bounded

    async def answered(driver: str, what: str, call: Any, bound_s: float = 10.0) -> Any:
        try:
            return await bounded(driver, what, call, bound_s)
        except DriverError:
            if what == "list":
                return ()
            raise

    patch.setattr(foreman_module, "bounded", answered)


def label_without_cluster(patch: pytest.MonkeyPatch) -> None:
    """Whatever runs at the place is this cluster's."""

    def is_ours(self: Books, seen: Seen) -> bool:
        return seen.place == self.place

    patch.setattr(Books, "is_ours", is_ours)


def drop_without_asking_the_owner(patch: pytest.MonkeyPatch) -> None:
    """The queue takes requests while its group's end is ordered."""
    order = GroupQueue._order

    def open_(self: GroupQueue, kind: Any, pool: Any, group: Any) -> None:
        self.limits.closed = False
        order(self, kind, pool, group)

    patch.setattr(GroupQueue, "_order", open_)


def move_without_numbers(patch: pytest.MonkeyPatch) -> None:
    """An orphan that is moved again is another request to its queue."""
    numbers, publish_once = itertools.count(), DeadLetters.publish_once

    def unnumbered(self: DeadLetters, queue: Any, message: Any, reason: Any, number: int, ticket: Any) -> bool:
        with pytest.MonkeyPatch.context() as inner:
            if reason == "moved":
                inner.setattr(dead_letters_module, "dead_letter_producer", lambda *of: _another(numbers, *of))
            return publish_once(self, queue, message, reason, number, ticket)

    patch.setattr(DeadLetters, "publish_once", unnumbered)


def _another(numbers: Any, *of: Any) -> bytes:
    """No producer that there was before."""
    return dead_letter_producer(*of) + b".%d" % next(numbers)


def answer_without_number(patch: pytest.MonkeyPatch) -> None:
    """A dead request that is answered again has another answer."""
    numbers = itertools.count()
    patch.setattr(pools_module, "dead_letter_producer", lambda *of: _another(numbers, *of))


def settle_before_the_targets_commit(patch: pytest.MonkeyPatch) -> None:
    """What is moved, or answered, has left as it is sent."""

    def sent(self: ReplicatedDeadLetters, dead: Dead, message: Any) -> None:
        ticket = Ticket(dead.number, dead.number, lambda _ticket: None)
        self._underway += 1
        dead.tries += 1
        if not self._queue.host.dead_letter_once(self._queue, message, dead.reason, dead.number, ticket):
            ticket.rejected = True
        self._answered(dead, ticket)

    patch.setattr(ReplicatedDeadLetters, "_publish", sent)


def time_to_live_begun_anew_by_the_move(patch: pytest.MonkeyPatch) -> None:
    """A moved request is as old as its stay in its second queue."""
    patch.setattr(GroupQueue, "keeps_times_of", lambda _self, _producer: False)


def binding_before_the_queue(patch: pytest.MonkeyPatch) -> None:
    """Nodes hear of a key's binding, and then of its queue."""
    begin = Pools._begin_group

    def begun(self: Pools, held: Any, topology: Any, nth: int, key: str, at_ms: int, changes: list[Any]) -> None:
        told: list[Any] = []
        begin(self, held, topology, nth, key, at_ms, told)
        changes += sorted(told, key=lambda change: not isinstance(change, Bound))

    patch.setattr(Pools, "_begin_group", begun)


def idle_clocks_of_a_take_over_are_zero(patch: pytest.MonkeyPatch) -> None:
    """A controller that takes over knows at once what is idle."""
    patch.setattr(policy_module, "SETTLE_S", 0.0)


def readiness_of_a_former_launch(patch: pytest.MonkeyPatch) -> None:
    """A key whose worker was ready once has ready workers."""
    know = Fleet._know

    def known(self: Fleet, launch: Any, now_s: float) -> Any:
        found = know(self, launch, now_s)
        keys = self.__dict__.setdefault("keys_ready", set())
        if found.ready_s is not None:
            keys.add(launch.key)
        elif launch.key in keys:
            found.ready_s = now_s
        return found

    patch.setattr(Fleet, "_know", known)


def credential_valid_after_revoke(patch: pytest.MonkeyPatch) -> None:
    """A revoked worker goes on as long as the map has its launch."""

    def gone(self: WorkerRights) -> str:
        return "" if self._map.pools.launch(self.launch_id) is not None else "over"

    patch.setattr(WorkerRights, "_launch", property(lambda self: self._map.pools.launch(self.launch_id)))
    patch.setattr(WorkerRights, "gone", property(gone))


def pods_of_other_places_left_alone(patch: pytest.MonkeyPatch) -> None:
    """A foreman looks after its own, where the place is shared as well."""
    patch.setattr(Books, "is_others", lambda _self, _seen: False)


def pods_of_other_places_are_nobodys(patch: pytest.MonkeyPatch) -> None:
    """What is no launch of its own has no launch."""
    patch.setattr(View, "is_over_elsewhere", lambda self, _seen: self.fresh)


def foreman_acts_without_lease(patch: pytest.MonkeyPatch) -> None:
    """What the node told last is taken for what is."""
    view = Foreman.view
    patch.setattr(Foreman, "view", lambda self, hand: View(view(self, hand).launches, True, None))


def spares_of_any_key(patch: pytest.MonkeyPatch) -> None:
    """A spare that asks is told of a key, whether it was given one or not, and may read what it wants."""
    await_key = PoolDesk.await_key

    def told(self: PoolDesk, launch_id: str, known: Any, tell: Any) -> None:
        launch = self._node.map.pools.launch(launch_id)
        groups = () if launch is None else self._node.map.pools.groups(launch.pool_id)
        if launch is not None and launch.spare and groups:
            tell(replace(launch, key=groups[0].key))
        else:
            await_key(self, launch_id, known, tell)

    patch.setattr(PoolDesk, "await_key", told)
    patch.setattr(WorkerRights, "allowed", lambda *_: True)


def spares_that_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    """What is not answered by the log yet is not counted: spares are started over and over."""
    coming = Fleet._coming
    patch.setattr(Fleet, "_coming", lambda self, key, now_s: () if key == NO_KEY else coming(self, key, now_s))


def due_by_the_bindings_of_then(patch: pytest.MonkeyPatch) -> None:
    """Where a due request went its record does not say: the next owner goes by what is bound."""
    patch.setattr(LaterQueue, "letter_targets", DelayQueue.letter_targets)


def keys_served_after_they_were_given_back(patch: pytest.MonkeyPatch) -> None:
    """A worker gets requests of a key as long as it consumes them: that the key is another's by now says nobody."""

    def retire(self: GroupQueue) -> None:
        self._retires = False
        launches = self.node.map.pools.launches_of(self._part.pool_id, self._part.key)
        self.subscriptions.retire(frozenset(one.launch_id for one in launches if one.retired or one.revoked))

    patch.setattr(GroupQueue, "_retire", retire)
    patch.setattr(NodePools, "key_ended", lambda _self, _one: None)


def keys_taken_while_they_hold(patch: pytest.MonkeyPatch) -> None:
    """A key that is retired holds what was told of it last, whatever its worker got since."""
    held = Holdings.silent

    def silent(self: Holdings, group: Any) -> None:
        held(self, group)
        for known in self._known.values():
            known.silent, known.held = True, 0

    patch.setattr(Holdings, "silent", silent)


def suspects_handed_out_together(patch: pytest.MonkeyPatch) -> None:
    """A consumer that holds a suspect gets more, as far as its prefetch goes."""
    patch.setattr(Suspects, "holds_none", lambda _self, _member: True)


def held_before_is_not_known(patch: pytest.MonkeyPatch) -> None:
    """What consumers held as an owner began, and acknowledge later, is never told."""

    def adopt(self: RequestEvents) -> None:
        self._before = None

    patch.setattr(RequestEvents, "_adopt", adopt)


FOUND_IN: Final[dict[Bug, tuple[str, int, str]]] = {
    launch_without_the_epochs_guard: ("controllers", 1, "I3:"),
    revoke_without_the_epochs_guard: ("controllers", 1, "I12:"),
    unknown_list_taken_for_empty: ("drivers", 0, "I4:"),
    label_without_cluster: ("owners", 0, "I6:"),
    drop_without_asking_the_owner: ("idle", 28, "I7:"),
    move_without_numbers: ("controllers", 47, "I1:"),
    answer_without_number: ("owners", 3, "I1:"),
    settle_before_the_targets_commit: ("owners", 29, "I1:"),
    time_to_live_begun_anew_by_the_move: ("pauses", 0, "I1:"),
    binding_before_the_queue: ("controllers", 0, "a binding points to"),
    idle_clocks_of_a_take_over_are_zero: ("controllers", 0, "I12:"),
    readiness_of_a_former_launch: ("hangs", 0, "I8:"),
    credential_valid_after_revoke: ("operators", 0, "I5:"),
    old_ones_leave_before_new_ones_are_ready: ("rolling", 0, "59:"),
    pods_of_other_places_left_alone: ("shared_place", 0, "I6:"),
    pods_of_other_places_are_nobodys: ("shared_place", 0, "I6:"),
    foreman_acts_without_lease: ("places", 24, "I6:"),
    suspects_handed_out_together: ("company", 0, "rule 35:"),
    spares_of_any_key: ("spares", 0, "I2:"),
    spares_that_are_not_counted: ("spares", 1, "I3:"),
    keys_served_after_they_were_given_back: ("several", 0, "I11:"),
    keys_taken_while_they_hold: ("several", 0, "I10:"),
    held_before_is_not_known: ("drivers", 3, "events:"),
    due_by_the_bindings_of_then: ("later", 9, "I1:"),
}
"""Scenario, the seed to begin with, and how the violation begins that says so: a seed may also find what was not put
in. With the seven of `tests/simulation/pools/bugs.py` these are all of the design page's, two of spares, two of keys
at workers that serve several, two of a place that is shared, and one each of a new version, of what the pool tells, and
of requests that are delayed."""
