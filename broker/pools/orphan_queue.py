"""The queue of requests whose key has no group, at its owner: the shell of the pool's controller.

A request waits here until its key's group is in the map. Then it is moved, as it is, to the group's queue: numbered,
once, over failovers, with the time at which it was published, so its time to live and its `expiration` go on. What
cannot be served leaves to the pool's dead-letter exchange with a word as its reason, and is answered from there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from clusterbroker.broker.pools.controller import Controller, key_of
from clusterbroker.broker.pools.ending import AGAIN_MS
from clusterbroker.broker.pools.events import Event, Name, ids_of
from clusterbroker.broker.pools.explaining import Document
from clusterbroker.broker.pools.fleet import Fleet
from clusterbroker.broker.pools.history import History
from clusterbroker.broker.pools.known import Known
from clusterbroker.broker.pools.messages import ControllerTold, GroupTold, SpareTold, WorkerTold
from clusterbroker.broker.pools.orders import Ordered
from clusterbroker.broker.pools.passing_queue import PassingPoolQueue
from clusterbroker.broker.pools.times import Arrivals
from clusterbroker.broker.queues.dead_lettering.death import Reason
from clusterbroker.broker.queues.dead_lettering.dropped import died_of
from clusterbroker.cluster.errors import NotFound, Unavailable
from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.wiring.commands import (
    AssignWorkers,
    LaunchWorkers,
    RequireGroups,
    RetireKeys,
    RetireWorkers,
    RevokeKeys,
    RevokeWorkers,
    SettleGroups,
)
from clusterbroker.cluster.wiring.levels import STARTED_WORKERS
from clusterbroker.cluster.wiring.map import Applied
from clusterbroker.cluster.wiring.pool_entities import Assignment, Launch
from clusterbroker.journal.record import Message

STEP_MS: Final = 20
"""Events of so long make one step of the policy."""
STEP_MS_A_GROUP: Final = 0.25
"""And of so long for each group that the step before had to measure: ten times what that takes, so the policy leaves
nine tenths of the node to messages."""


class OrphanQueue(PassingPoolQueue):
    """See the module."""

    __slots__ = (
        "_again_ms", "_arrivals", "_controller", "_history", "_rest_ms", "_step_ms", "_stepped_ms", "_told", "fleet",
    )  # fmt: skip

    def _begin(self) -> None:
        super()._begin()
        self._again_ms = 0
        """When a command is ordered again that could not be ordered."""
        self._controller: Controller | None = None
        self._arrivals = Arrivals(self.ring)
        self._told = self.ring.next_seq
        """Requests before it have come to who owned the queue then, who told of them."""
        self._step_ms: int | None = None
        self._stepped_ms = 0
        self._rest_ms = STEP_MS
        self.fleet: Fleet | None = None
        """Its workers; None: this node does not own the queue, or they come by themselves."""
        self._history = History(self.node.now_ms)
        letters = self.dead_letters.replicated
        pool = self.pool
        if pool is not None and letters is not None:
            moving = (group.key for group in self.node.map.pools.groups(pool.pool_id) if group.moving)
            self._controller = Controller(pool, moving, (seq for seq, *_ in self.ring.dead()))
            letters.left = self._left
            if pool.starts_workers:
                self.fleet = Fleet(pool, self.node.map.pools, self.node.now_ms / 1000)
                for key, until_ms, detail in self.node.pool_desk.failed(pool.pool_id):
                    self.fleet.failed_before(key, until_ms / 1000, detail)
                self.node.pool_desk.ask(pool.pool_id)

    def _left(self, seq: int) -> None:
        if self._controller is not None:
            self._controller.left(seq)
            self.ring.mark()

    def group_required(self, key: str) -> None:
        """The group of a key is kept in the map from now on, until it is settled."""
        if self._controller is not None:
            self._controller.required(key)
            self.ring.mark()

    def pool_changed(self) -> None:
        pool = self.pool
        if pool is not None and self._controller is not None:
            self._controller.pool_changed(pool)
            if self.fleet is not None:
                self.fleet.pool_changed(pool)
        super().pool_changed()

    def _came(self, seq: int, message: Message) -> None:
        assert self._controller is not None, "a pool that there is has a controller"
        self._controller.came(seq, message.routing_key)
        if seq >= self._told and self.node.map.pools.tells_events(self._part.pool_id):
            about = {"queue": self.name, "queue_id": self.entity.queue_id, "seq": seq, **ids_of(message).fields}
            self._tell("received", key_of(message.routing_key) or "", **about)

    def _tell(self, name: Name, key: str, **about: Any) -> None:
        """An event, if the pool tells them."""
        self.node.pool_desk.events.tell(self._part.pool_id, Event(name, self.node.now_ms, key, about))

    def _pass(self) -> None:
        controller = self._controller
        if controller is None:
            return
        self._arrivals.look(self.node.pool_desk.times, self._part.pool_id)
        while controller.leaving and self._has_room:
            seq, reason = controller.leaving.popleft()
            if self.ring.set_aside(seq):
                self._hold(seq, self._way_out(seq) if reason == "moved" else reason)
            else:  # it has left otherwise, and perhaps its content with it
                controller.left(seq)
        if controller.leaving and self.node.effort.spent:
            self.node.later(self)
        self._order(controller)
        if self.fleet is not None:
            self._scale(self.fleet)

    def _way_out(self, seq: int) -> Reason:
        """Its time may be over, behind others whose time is not. Moved, a worker that waits might get it all the
        same."""
        message = self.ring.message(seq)
        return "moved" if message is None else died_of(self.ring, message, "moved", self.node.now_ms)

    def remove(self, seq: int) -> None:
        """A request that waits is cancelled, and its caller hears of it. No group is made for it from now on."""
        if self.ring.set_aside(seq):
            self._left(seq)
            self.dead_letters.give_up(seq, self.ring.message(seq), "cancelled")
        else:
            super().remove(seq)

    # -- commands -----------------------------------------------------------------------------------------------

    def _order(self, controller: Controller) -> None:
        pool = self.pool
        if pool is None or self.node.now_ms < self._again_ms:
            return
        order = controller.order()
        if order is None:
            later = self.node.map.queue_by_id(pool.delayed)  # it may have given requests to this queue
            if pool.deleting and later is None and self._is_done and not controller.busy:
                self.ending.order()
            return
        kind, keys = order
        at_ms, epoch = self.node.now_ms, self.entity.epoch
        command: RequireGroups | SettleGroups
        if kind == "require":
            command = RequireGroups(at_ms=at_ms, pool_id=pool.pool_id, epoch=epoch, keys=keys)
        else:
            generations = self._generations(pool.pool_id, keys) if self.node.map.level >= STARTED_WORKERS else ()
            command = SettleGroups(at_ms=at_ms, pool_id=pool.pool_id, epoch=epoch, keys=keys, generations=generations)

        def done(applied: Applied) -> None:
            if self.deleted or self._controller is not controller:
                return
            if applied.ok:
                controller.done(applied.result or ())
            else:
                controller.failed()
                if isinstance(applied.error, (Unavailable, NotFound)):
                    self._again_ms = self.node.now_ms + AGAIN_MS
            self.ring.mark()

        self.node.propose(command, done)

    def _generations(self, pool_id: LogIndex, keys: tuple[str, ...]) -> tuple[LogIndex, ...]:
        groups = (self.node.map.pools.group(pool_id, key) for key in keys)
        return tuple(LogIndex(0) if group is None else group.generation for group in groups)

    # -- workers ------------------------------------------------------------------------------------------------

    def places_changed(self) -> None:
        """What a place can start, or whether its node lives."""
        if self.fleet is not None:
            self.fleet.places_changed()
            self.ring.mark()

    def group_changed(self, key: str) -> None:
        """It came, changed or ended in the map."""
        if self.fleet is not None:
            self.fleet.group_changed(key)
            self.ring.mark()

    def group_directed(self, key: str, word: str) -> None:
        """By an operator; the map has what it changed."""
        if self.fleet is not None:
            if word in ("start", "retry", "pin"):
                self.fleet.retry(key)
            self.group_changed(key)

    def explained(self, keys: Iterable[str] | None, places: bool = True) -> Document:
        """Why the pool has the workers that it has; `keys`: of these keys alone; `places`: of its places as well.
        Empty: this pool starts none, or has not begun."""
        wanted = frozenset(keys).__contains__ if keys is not None else lambda _: True
        return {} if self.fleet is None else self.fleet.explained(wanted, places, self.node.now_ms / 1000)

    def history(self, keys: Iterable[str] | None) -> Document:
        """Starts and ends of workers of late; `keys`: of these keys alone."""
        return self._history.document(frozenset(keys).__contains__ if keys is not None else lambda _: True)

    def told(self, told: ControllerTold) -> None:
        """Of a group by the owner of its queue, of a worker by its place, by itself, or by the node where it asks."""
        if self.fleet is None:
            return
        now_s = self.node.now_ms / 1000
        if isinstance(told, GroupTold):
            self.fleet.told(told, now_s)
        elif isinstance(told, WorkerTold):
            self.fleet.worker_told(told, now_s)
        elif isinstance(told, SpareTold):
            self.fleet.spare_told(told, now_s)
        else:
            self.fleet.key_failed(told, now_s)
        self.ring.mark()

    def launch_changed(self, launch: Launch) -> None:
        """It was ordered, assigned, retired or revoked."""
        if self.fleet is not None:
            now_ms, of = self.node.now_ms, (launch.launch_id, launch.key, launch.place)
            news = self.fleet.launch_changed(launch, now_ms / 1000)
            if news == "started":
                self._tell("started", launch.key, worker=launch.launch_id, place=launch.place)
            if news is not None:
                self._history.note(now_ms, news, *of, why=launch.revoked or launch.retired)
            self.ring.mark()

    def key_changed(self, one: Assignment, ended: bool) -> None:
        """Of a worker that serves several."""
        if self.fleet is not None:
            if ended:
                self.fleet.key_ended(one)
            else:
                self.fleet.key_changed(one, self.node.now_ms / 1000)
            self.ring.mark()

    def launch_ended(self, launch: Launch, exit_status: int | None, peak_bytes: int) -> None:
        """It is gone."""
        if self.fleet is not None:
            self._tell(
                "exited", launch.key, worker=launch.launch_id, place=launch.place, exit_status=exit_status,
                why=launch.revoked or launch.retired,
            )  # fmt: skip
            self._note_end(launch, self.fleet.known(launch.launch_id), exit_status, peak_bytes)
            self.fleet.launch_ended(launch, exit_status, peak_bytes, self.node.now_ms / 1000)
            self.ring.mark()

    def _note_end(self, launch: Launch, known: Known | None, exit_status: int | None, peak_bytes: int) -> None:
        now_ms, ready_s = self.node.now_ms, None
        if known is not None:
            ready_s = known.spare_s if known.ready_s is None else known.ready_s
        self._history.note(
            now_ms, "exited", launch.launch_id, launch.key, launch.place, why=launch.retired or launch.revoked,
            detail="" if known is None else known.why, exit_status=exit_status, peak_bytes=peak_bytes,
            took_ms=None if ready_s is None else now_ms - round(1000 * ready_s),
            was_ready=ready_s is not None if known is not None and (known.whole or ready_s is not None) else None,
        )  # fmt: skip

    def _scale(self, fleet: Fleet) -> None:
        """Workers come and go. Below their feature level none is started: an older member could not retire it."""
        now_ms, node = self.node.now_ms, self.node
        due = fleet.wakes or (self._step_ms is not None and now_ms >= self._step_ms)
        if not due or now_ms < self._stepped_ms + self._rest_ms or node.map.level < STARTED_WORKERS:
            return
        self._stepped_ms = now_ms
        desk, pool_id = node.pool_desk, fleet.pool.pool_id
        others = desk.others_bytes(pool_id)
        places = {name: place._replace(others_bytes=others.get(name, 0)) for name, place in desk.places.items()}
        fleet.step(places, desk.own_place, now_ms / 1000)
        self._rest_ms = max(STEP_MS, int(fleet.effort * STEP_MS_A_GROUP))
        next_s = fleet.next_s(now_ms / 1000)
        self._step_ms = None if next_s is None else int(next_s * 1000)
        starts, fleet.starts = fleet.starts, []
        for one in starts:
            desk.started(fleet.pool, one)
            if not one.failed:
                took_ms = round(1000 * one.took_s)
                self._tell("ready", one.key, worker=one.worker_id, place=one.place, took_ms=took_ms)
                self._history.note(now_ms, "ready", one.worker_id, one.key, one.place, took_ms=took_ms)
                node.log.worker_ready(fleet.pool, one)
        lost, fleet.lost = fleet.lost, Counter()
        for place, workers in lost.items():
            node.log.place_lost(fleet.pool, place, workers)
        desk.times(pool_id).counts.update(fleet.counts)
        fleet.counts.clear()
        fails, fleet.fails = fleet.fails, []
        for told in fails:
            desk.tell_failure(told)
            node.log.starts_fail(fleet.pool, told.key, -(-told.for_ms // 1000), told.detail)
        commands, fleet.commands = fleet.commands, []
        for ordered in commands:
            self._propose(fleet, ordered)

    def _propose(self, fleet: Fleet, ordered: Ordered) -> None:
        pool_id, epoch, at_ms = fleet.pool.pool_id, self.entity.epoch, self.node.now_ms
        command: LaunchWorkers | AssignWorkers | RetireKeys | RevokeKeys | RetireWorkers | RevokeWorkers
        if ordered.kind == "launch":
            workers = tuple(launch[1:] for launch in ordered.launches)
            command = LaunchWorkers(at_ms=at_ms, pool_id=pool_id, epoch=epoch, workers=workers)
        elif ordered.kind == "assign":
            command = AssignWorkers(at_ms=at_ms, pool_id=pool_id, epoch=epoch, workers=ordered.assigned)
        elif ordered.kind == "retire_keys":
            keys = ordered.assigned
            command = RetireKeys(at_ms=at_ms, pool_id=pool_id, epoch=epoch, keys=keys, why=ordered.why)
        elif ordered.kind == "revoke_keys":
            command = RevokeKeys(at_ms=at_ms, pool_id=pool_id, epoch=epoch, keys=ordered.assigned)
        else:
            kind = RetireWorkers if ordered.kind == "retire" else RevokeWorkers
            command = kind(at_ms=at_ms, pool_id=pool_id, epoch=epoch, launches=ordered.workers, why=ordered.why)

        def done(applied: Applied) -> None:
            if applied.ok and ordered.kind in ("retire", "revoke"):
                self.node.log.workers_leave(fleet.pool, ordered.kind == "revoke", applied.result, ordered.why)
            if not self.deleted and self.fleet is fleet:
                fleet.answered(ordered, applied.ok)
                self.ring.mark()

        self.node.propose(command, done)

    def _schedule(self, now_ms: int) -> None:
        super()._schedule(now_ms)
        if self._again_ms > now_ms and not self.paused:
            self.node.wake(self, self._again_ms)
        if self.fleet is not None and not self.paused and self.node.map.level >= STARTED_WORKERS:
            due_ms = now_ms if self.fleet.wakes else self._step_ms
            if due_ms is not None:
                self.node.wake(self, max(due_ms, self._stepped_ms + self._rest_ms, now_ms + 1))

    def end_epoch(self) -> None:
        super().end_epoch()
        self._controller = None
        self.fleet = None
