"""What a node knows of pools' places and workers, and whom it tells (`broker.pools.messages`).

A node that is alone tells itself. Of a cluster each member knows all places, and the controllers of pools hear of
groups and workers. A new link hears of the place at its other end; a controller that begins asks all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.node.pool_events import PoolEvents
from clusterbroker.broker.node.pool_spans import PoolSpans
from clusterbroker.broker.pools.group_queue import GroupQueue
from clusterbroker.broker.pools.known import Started
from clusterbroker.broker.pools.messages import (
    AskPool,
    ControllerTold,
    GroupTold,
    KeyFailed,
    PlaceTold,
    SpareTold,
    StartsFail,
    WorkerTold,
)
from clusterbroker.broker.pools.orphan_queue import OrphanQueue
from clusterbroker.broker.pools.places import MEMORY, OFF_THE_MACHINE, InUse, Place, check_scaling
from clusterbroker.broker.pools.telling import TellPace
from clusterbroker.broker.pools.times import PoolTimes
from clusterbroker.cluster.errors import PreconditionFailed
from clusterbroker.cluster.ids import LogIndex, NodeId
from clusterbroker.cluster.wiring.commands import DeclarePool, SetPool
from clusterbroker.cluster.wiring.levels import STARTED_WORKERS
from clusterbroker.cluster.wiring.pool_entities import NOOP, Assignment, Launch, Pool

if TYPE_CHECKING:
    from typing import Protocol

    import msgspec

    from clusterbroker.broker.node.ports import NodeCore
    from clusterbroker.broker.node.watching import Watching

    class HubPort(Protocol):
        """The frames between this node and the others."""

        linked: dict[str, int]

        def send(self, peer: str, head: msgspec.Struct) -> bool: ...

    class RolePort(Protocol):
        """The node's part in a cluster."""

        @property
        def hub(self) -> HubPort: ...

    class DeskNode(NodeCore, Protocol):
        """The node."""

        watching: Watching


FAILURES_MAX: Final = 1000
"""Keys whose failed starts are remembered, for what callers are told."""


class PoolDesk:
    """Of one node.

    launches_told   called with a place whose launches may be others than before
    """

    def __init__(self, node: DeskNode) -> None:
        self._node = node
        self._told: dict[str, PlaceTold] = {}
        self.pace = TellPace()
        """Of what this node tells of groups."""
        self.in_use = InUse()
        """Of this place; its foreman tells."""
        self._failures: dict[tuple[int, str], tuple[int, str]] = {}
        """(pool, key) -> until when its starts fail, and why they did last."""
        self._times: dict[LogIndex, PoolTimes] = {}
        self.spans = PoolSpans(node)
        self.events = PoolEvents(node)
        self._asking: dict[str, tuple[Mapping[str, int], Callable[[Launch], object]]] = {}
        """Spares that wait here for their keys, and workers of several keys for a change of these, from what they know
        (key -> index of its assignment)."""
        self._sends = False
        """The cluster is at the level of these frames, as far as was looked."""
        self.launches_told: Callable[[str], None] = _nobody
        self.tell_again: Callable[[int], None] = _nobody
        """A controller asks for the workers of its pool."""
        self.handlers: dict[type, Callable[[str, Any, memoryview], object]] = {
            PlaceTold: lambda peer, told, _: self._place(peer, told),
            GroupTold: lambda _peer, told, _: self.tell_controller(told, again=False),
            WorkerTold: lambda _peer, told, _: self.tell_controller(told, again=False),
            StartsFail: lambda _peer, told, _: self._failure(told),
            SpareTold: lambda _peer, told, _: self.tell_controller(told, again=False),
            KeyFailed: lambda _peer, told, _: self.tell_controller(told, again=False),
            AskPool: lambda _peer, told, _: self._tell_all(told.pool_id),
        }

    # -- places -------------------------------------------------------------------------------------------------

    @property
    def own_place(self) -> str:
        """This node's name."""
        return self._node.options.name

    @property
    def places(self) -> Mapping[str, Place]:
        """All of which something is known."""
        return {name: Place(told, self._alive(name)) for name, told in self._told.items()}

    def _alive(self, name: str) -> bool:
        if name == self.own_place:
            return True
        member = self._node.map.member(NodeId(name))
        return member is not None and member.alive

    def others_bytes(self, pool_id: int) -> Mapping[str, int]:
        """Memory of places' machines that is promised to workers of other pools."""
        promised: dict[str, int] = {}
        pools = self._node.map.pools
        for pool in pools.all():
            if pool.pool_id == pool_id or not pool.starts_workers:
                continue
            for launch in pools.launches(pool.pool_id):
                told = self._told.get(launch.place)
                template = None if told is None else told.templates.get(pool.template)
                if template is not None and template.driver in OFF_THE_MACHINE:
                    continue
                each = MEMORY if template is None or not template.memory_bytes else template.memory_bytes
                promised[launch.place] = promised.get(launch.place, 0) + each
        return promised

    def times(self, pool_id: int) -> PoolTimes:
        """What is counted here of a pool."""
        of = LogIndex(pool_id)
        found = self._times.get(of)
        if found is None:  # each turn of a group asks
            found = self._times[of] = PoolTimes()
        return found

    def started(self, pool: Pool, one: Started) -> None:
        """A worker's start is over, says its controller here."""
        if not one.failed:
            self.times(pool.pool_id).start.note(round(1000 * one.took_s))
        self.spans.started(pool, one, self._node.now_ms)

    def timed(self) -> Mapping[LogIndex, PoolTimes]:
        """Of all pools of which something is."""
        return self._times

    def pool_ended(self, pool_id: LogIndex) -> None:
        """Nobody asks for its numbers any more."""
        self._times.pop(pool_id, None)
        self.spans.pool_ended(pool_id)
        self.events.pool_ended(pool_id)

    @property
    def templates(self) -> tuple[str, ...]:
        """Names of those that some member has."""
        return tuple(sorted({NOOP, *(name for told in self._told.values() for name in told.templates)}))

    def check(self, command: DeclarePool | SetPool) -> None:
        """406 for a template that no member has, and for what none of its drivers does. Judged here, for the fold knows
        no templates."""
        pools = self._node.map.pools
        pool, template, settings = pools.find(command.vhost, command.name), "", command.settings
        if isinstance(command, DeclarePool):
            template = command.template
            if template and template not in (known := self.templates):
                raise PreconditionFailed(f"no template '{template[:64]}': known are {', '.join(known)}")
        elif pool is None or "scaling" not in command.only:
            return
        else:
            template = pool.template
        drivers = [told.templates[template].driver for told in self._told.values() if template in told.templates]
        some = pool is not None and bool(pools.launches(pool.pool_id))
        check_scaling(settings, pool, template, drivers, some)

    @property
    def own_told(self) -> PlaceTold | None:
        """Of this place; None: it has no templates."""
        return self._told.get(self.own_place)

    def tell_place(self, told: PlaceTold) -> None:
        """This place is another one than before."""
        if self._told.get(self.own_place) == told:
            return
        self._place(self.own_place, told)
        self._send(self._peers, told)

    def _place(self, name: str, told: PlaceTold) -> None:
        self._told[name] = told
        self._each_fleet(lambda queue: queue.places_changed())

    def members_changed(self) -> None:
        """A member came, failed or went."""
        for name in [name for name in self._told if name != self.own_place]:
            if self._node.map.member(NodeId(name)) is None:
                del self._told[name]
        if not self.level_raised():
            self._each_fleet(lambda queue: queue.places_changed())

    def _each_fleet(self, what: Callable[[OrphanQueue], None]) -> None:
        for pool in self._node.map.pools.all():
            queue = self._node.queues.get(pool.orphans)
            if isinstance(queue, OrphanQueue):
                what(queue)

    # -- frames -------------------------------------------------------------------------------------------------

    @property
    def _hub(self) -> HubPort | None:
        role: Any = self._node.role
        return None if role is None else role.hub

    @property
    def _peers(self) -> tuple[str, ...]:
        hub = self._hub
        return () if hub is None else tuple(peer for peer in hub.linked if peer != self.own_place)

    def _send(self, peers: Iterable[str], head: msgspec.Struct) -> None:
        """Below the level of these frames nothing is sent: a member of a release before it drops the link for one."""
        hub = self._hub
        if hub is not None and self._node.map.level >= STARTED_WORKERS:
            for peer in peers:
                hub.send(peer, head)

    def linked(self, peer: str) -> None:
        """A new link: what was sent on the one before may be lost."""
        own = self._told.get(self.own_place)
        if peer == self.own_place:
            return
        if own is not None:
            self._send((peer,), own)
        for pool in self._node.map.pools.all():
            if not pool.starts_workers:
                continue
            if self._controller(pool) == peer:
                self._tell_all(pool.pool_id)
            elif isinstance(self._node.queues.get(pool.orphans), OrphanQueue):
                self._send((peer,), AskPool(pool.pool_id))

    def level_raised(self) -> bool:
        """What was not sent below the level is sent now; also if the map came as a snapshot. Whether there was any, and
        fleets were told."""
        before, self._sends = self._sends, self._node.map.level >= STARTED_WORKERS
        if self._sends and not before:
            for peer in self._peers:
                self.linked(peer)
            self._each_fleet(lambda queue: queue.places_changed())
            return True
        return False

    def _controller(self, pool: Pool) -> str | None:
        queue = self._node.map.queue_by_id(pool.orphans)
        return None if queue is None else queue.owner

    def _fleet_of(self, pool_id: int) -> OrphanQueue | None:
        pool = self._node.map.pools.get(LogIndex(pool_id))
        queue = None if pool is None else self._node.queues.get(pool.orphans)
        return queue if isinstance(queue, OrphanQueue) else None

    def _to_controller(self, pool_id: int, head: msgspec.Struct) -> None:
        pool = self._node.map.pools.get(LogIndex(pool_id))
        owner = None if pool is None else self._controller(pool)
        if owner is not None and owner != self.own_place:
            self._send((owner,), head)

    # -- what is told -------------------------------------------------------------------------------------------

    def tell_controller(self, told: ControllerTold, again: bool = True) -> None:
        """Of a group, or a worker. `again`: the controller may be elsewhere."""
        queue = self._fleet_of(told.pool_id)
        if queue is not None:
            queue.told(told)
        elif again:
            self._to_controller(told.pool_id, told)

    def tell_failure(self, told: StartsFail) -> None:
        """To all: the owner of the group's queue answers what waits, the responder says why."""
        self._failure(told)
        self._send(self._peers, told)

    def _failure(self, told: StartsFail) -> None:
        of = told.pool_id, told.key
        self._failures.pop(of, None)
        if len(self._failures) >= FAILURES_MAX:
            del self._failures[next(iter(self._failures))]  # the oldest: it is over first
        self._failures[of] = self._node.now_ms + told.for_ms, told.detail
        group = self._node.map.pools.group(LogIndex(told.pool_id), told.key)
        queue = None if group is None else self._node.queues.get(group.queue_id)
        if isinstance(queue, GroupQueue):
            queue.starts_fail(self._node.now_ms + told.for_ms)

    def failure(self, pool_id: int, key: str) -> str:
        """Why starts of the key failed last; empty: not known here."""
        return self._failures.get((pool_id, key), (0, ""))[1]

    @property
    def failing(self) -> set[int]:
        """Pools with such keys, or that had some."""
        return {pool_id for pool_id, _ in self._failures}

    def failed(self, pool_id: int) -> Iterable[tuple[str, int, str]]:
        """Keys whose starts fail for now: until when, and why."""
        for (of, key), (until_ms, detail) in self._failures.items():
            if of == pool_id and until_ms > self._node.now_ms:
                yield key, until_ms, detail

    def directed(self, pool_id: int, key: str, word: str) -> None:
        """By an operator: starts are tried again."""
        if word in ("start", "retry", "pin"):
            self._failures.pop((pool_id, key), None)

    def ask(self, pool_id: int) -> None:
        """A controller begins here."""
        self._node.soon(lambda: self._tell_all(pool_id))
        self._send(self._peers, AskPool(pool_id))

    def _tell_all(self, pool_id: int) -> None:
        for group in self._node.map.pools.groups(LogIndex(pool_id)):
            queue = self._node.queues.get(group.queue_id)
            if isinstance(queue, GroupQueue):
                queue.tell_again()
        for worker_id in self._asking:
            launch = self._node.map.pools.launch(worker_id)
            if launch is not None and launch.pool_id == pool_id:
                self.tell_controller(SpareTold(pool_id, worker_id))
        self.tell_again(pool_id)

    # -- launches -----------------------------------------------------------------------------------------------

    def await_key(self, launch_id: str, known: Mapping[str, int], told: Callable[[Launch], object]) -> None:
        """`told` is called with the launch as soon as it has its key, of the last one that asked for it; of a worker of
        several keys, as soon as they are others than it knows."""
        launch = self._node.map.pools.launch(launch_id)
        if launch is None or launch.revoked:
            return  # its connection ends
        if self._has_news(launch, known):
            told(launch)
        else:
            self._asking[launch_id] = known, told
        if launch.spare:
            self.tell_controller(SpareTold(launch.pool_id, launch_id))

    def _has_news(self, launch: Launch, known: Mapping[str, int]) -> bool:
        pools = self._node.map.pools
        return not launch.spare or {one.key: one.assigned for one in pools.assignments(launch.launch_id)} != known

    def _tell_key(self, launch: Launch, over: bool) -> None:
        known, told = self._asking.get(launch.launch_id, ({}, None))
        if told is not None and (over or self._has_news(launch, known)):
            del self._asking[launch.launch_id]
            if not over:
                told(launch)

    def key_changed(self, one: Assignment, ended: bool) -> None:
        """A worker of several keys has another one, gets no more of it, or has it no more."""
        launch = self._node.map.pools.launch(one.launch_id)
        if launch is not None:
            self._tell_key(launch, bool(launch.revoked))
        for key in (one.key, *(other.key for other in self._node.map.pools.assignments(one.launch_id))):
            self._workers_changed(one.pool_id, key)
        orphans = self._fleet_of(one.pool_id)
        if orphans is not None:
            orphans.key_changed(one, ended)

    def _workers_changed(self, pool_id: LogIndex, key: str) -> None:
        """Of a key; which others its workers have is among that."""
        group = self._node.map.pools.group(pool_id, key)
        queue = None if group is None else self._node.queues.get(group.queue_id)
        if isinstance(queue, GroupQueue):
            queue.launches_changed()

    def launch_changed(self, launch: Launch, ended: bool, exit_status: int | None = None, peak: int = 0) -> None:
        """One was ordered, assigned, retired, revoked, or is gone."""
        self._tell_key(launch, ended or bool(launch.revoked))
        keys = [one.key for one in self._node.map.pools.assignments(launch.launch_id)]
        for key in (launch.key, *keys):
            self._workers_changed(launch.pool_id, key)
        orphans = self._fleet_of(launch.pool_id)
        if orphans is not None:
            if ended:
                orphans.launch_ended(launch, exit_status, peak)
            else:
                orphans.launch_changed(launch)
        self.launches_told(launch.place)


def _nobody(of: object) -> None:
    """Until a foreman's node listens."""
