"""Worker pools: their exchanges, queues and groups, with the commands about them (launches: pool_launches.py).

    pool     declared --DeletePool--> deleting --last EndPoolQueue--> ended
    group    absent --RequireGroups, DirectGroup--> active <--RequireGroups, BindGroup-- unbound --DropGroup--> absent
                                       active ---------UnbindGroup--------> unbound

A pool is one thing with its exchanges, queues and bindings: no other command touches them (pool_table.py). A group is
one thing with its queue, and with the binding by its raw key while it is active.

Two guards keep those of before from ordering anything. The controller's commands carry the epoch of the orphan queue;
those about an idle group carry the epoch of its queue, and its generation: whoever required it since has made them
void. And a group that was required is `moving` until the controller has settled it: what is on its way there finds it.

Invariants: (1) a group's queue exists, and is bound exactly while the group is active; (2) the queues of a pool exist
until it is deleted, then end in the order groups, orphans and delayed, dead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from msgspec.structs import replace

from clusterbroker.cluster.errors import (
    InUse,
    LimitReached,
    NotFound,
    PreconditionFailed,
    exchange_text,
    queue_text,
)
from clusterbroker.cluster.ids import QueueId

from . import commands as c
from . import pool_rules as rules
from .changes import (
    Bound,
    Change,
    GroupDirected,
    LaunchEnded,
    PoolChanged,
    PoolEnded,
    QueueSet,
)
from .delays import delay_queue
from .entities import Binding, Queue, in_part
from .exchange_rules import DELAYED, DELAYED_TYPE
from .passing import LogClock
from .pool_entities import EventStream, Group, MoreSettings, Pool
from .pool_names import PoolNames, encoded
from .pool_rules import EVENTS, KEYS_PER_WORKER, SPARES
from .pool_table import PoolHeld, PoolQueue, PoolTable, check_count, pool_text
from .queue_index import QueueIndex
from .replicas import Replicas
from .topology import Topology
from .vhosts import Vhosts

STOPPED: Final = "stopped by an operator"
POOLS_MAX: Final = 100
"""Of a vhost."""


class Pools:
    """The part of the map that has pools."""

    __slots__ = ("_clock", "_index", "_replicas", "_vhosts", "table")

    def __init__(self, clock: LogClock, vhosts: Vhosts, index: QueueIndex, replicas: Replicas) -> None:
        """None."""
        self._clock = clock
        self._vhosts = vhosts
        self._index = index
        self._replicas = replicas
        self.table: Final = PoolTable(vhosts, index)

    # ---- pools ----

    def declare(self, command: c.DeclarePool, changes: list[Change]) -> Pool:
        """Fold DeclarePool."""
        if (known := self.tried(command)) is not None:
            return known
        topology, names = self._vhosts.require(command.vhost), PoolNames(command.name)
        self._wire(topology, names, command, changes)
        ids = {name: topology.queues[name].queue_id for name in (*names.queues, _delay_queue(names))}
        pool = Pool(
            command.vhost, command.name, self._clock.applied, command.template, command.settings,
            orphans=ids[names.orphans], dead=ids[names.dead], activity=ids[names.activity], poison=ids[names.poison],
            delayed=ids[_delay_queue(names)],
        )  # fmt: skip
        held = PoolHeld(pool)
        held.spares, held.keys_per_worker, held.more = command.spares, command.keys_per_worker, command.more
        self.table.put_pool(held)
        if command.events:
            self._tell_events(held, topology, 5, command.at_ms, changes)
        changes.append(PoolChanged(pool))
        return pool

    def tried(self, command: c.DeclarePool) -> Pool | None:
        """What a declaration would find: the same pool; None: it would make one. Raises what would refuse it."""
        topology = self._vhosts.require(command.vhost)
        rules.check_name(command.name)
        rules.check_settings(command.settings)
        rules.check_spares(command.spares, command.settings)
        rules.check_keys_per_worker(command.keys_per_worker, command.settings)
        rules.check_more(command.more)
        known = self.table.held(command.vhost, command.name)
        if known is not None:
            return self._same(known, command)
        names = PoolNames(command.name)
        self._check_free(topology, names)
        if command.events:
            self._check_events_free(topology, names)
        if len(self.table.all(command.vhost)) >= POOLS_MAX:
            raise LimitReached(f"vhost '{command.vhost}' has {POOLS_MAX} pools")
        self._replicas.check_places()
        topology.check_queue_limit(names.orphans, 5 + command.events)
        return None

    def _same(self, held: PoolHeld, command: c.DeclarePool) -> Pool:
        known = held.pool
        where = pool_text(known.vhost, known.name)
        if known.deleting:
            raise PreconditionFailed(f"{where} is being deleted: wait until it is gone")
        if known.template != command.template:
            raise PreconditionFailed(
                f"{where} has template '{known.template}', and not '{command.template}': delete it first"
            )
        settings = [
            (name, getattr(is_, name), getattr(asked, name))
            for is_, asked in ((known.settings, command.settings), (held.more, command.more))
            for name in is_.__struct_fields__
        ]
        beside = (
            (SPARES, held.spares, command.spares),
            (KEYS_PER_WORKER, held.keys_per_worker, command.keys_per_worker),
            (EVENTS, self.table.tells_events(known.pool_id), command.events),
        )
        for name, is_, asked in (*settings, *beside):
            if is_ != asked:
                raise PreconditionFailed(f"{where} has {name} {is_!r}, and not {asked!r}: change it with set")
        return known

    def _check_free(self, topology: Topology, names: PoolNames) -> None:
        vhost = topology.vhost.name
        for name in names.exchanges:
            if name in topology.exchanges or name in topology.ledger.segments:
                raise PreconditionFailed(f"{exchange_text(vhost, name)} is there, and the pool would need its name")
        for name in (*topology.queues, *([_delay_queue(names)] if _delay_queue(names) in topology.queues else ())):
            if names.has_queue(name) or name == _delay_queue(names):
                raise PreconditionFailed(f"{queue_text(vhost, name)} is there, and the pool would need its name")

    @staticmethod
    def _check_events_free(topology: Topology, names: PoolNames) -> None:
        if names.events in topology.queues:
            raise PreconditionFailed(
                f"{queue_text(topology.vhost.name, names.events)} is there, and the pool's events would need its name"
            )

    def _tell_events(self, held: PoolHeld, topology: Topology, nth: int, at_ms: int, changes: list[Change]) -> None:
        """From now on, in the stream that the pool has, or in a new one."""
        stream = held.events
        if stream is None:
            self._declare_queue(topology, nth, held.names.events, rules.events_arguments(), at_ms, changes)
            stream = EventStream(held.pool.pool_id, topology.queues[held.names.events].queue_id)
        self.table.put_events(held, replace(stream, told=True))

    def _wire(self, topology: Topology, names: PoolNames, command: c.DeclarePool, changes: list[Change]) -> None:
        """Exchanges, queues and bindings of a new pool."""
        vhost = command.vhost
        around = [names.exchange_of(queue) for queue in (names.orphans, names.dead, names.activity)]
        for name, kind, alternate in (
            *((name, "fanout", "") for name in around),
            (names.requests, "direct", around[0]), (names.exchange, "fanout", ""),
        ):  # fmt: skip
            arguments = {"alternate-exchange": alternate} if alternate else {}
            topology.declare_exchange(
                c.DeclareExchange(vhost=vhost, name=name, type=kind, durable=True, arguments=arguments), changes
            )
        self._numbered(
            4,
            lambda queue_id: topology.declare_queued_exchange(
                queue_id,
                c.DeclareDelayedExchange(
                    vhost=vhost, name=names.delayed, type=DELAYED, durable=True, arguments={DELAYED_TYPE: "fanout"}
                ),
                changes,
                self._replicas.placed,
            ),
        )
        settings = command.settings
        for nth, (name, arguments) in enumerate(
            (
                (names.orphans, rules.orphan_arguments(names, settings)), (names.dead, rules.dead_arguments()),
                (names.activity, rules.bounded_arguments(rules.ACTIVITY_MAX)),
                (names.poison, rules.bounded_arguments(rules.POISON_MAX)),
            )
        ):  # fmt: skip
            self._declare_queue(topology, nth, name, arguments, command.at_ms, changes)
        for name in (names.orphans, names.dead, names.activity):
            _bind(topology, names.exchange_of(name), name, "queue", "", changes)
        for source in (names.exchange, names.delayed):
            _bind(topology, source, names.requests, "exchange", "", changes)

    def _numbered(self, nth: int, declare: Callable[[QueueId], object]) -> None:
        """Declares a queue with an id of its own, of several in one command."""
        before = self._clock.nth
        self._clock.nth = nth
        try:
            declare(self._clock.queue_id())
        finally:
            self._clock.nth = before

    def _declare_queue(
        self, topology: Topology, nth: int, name: str, arguments: Mapping[str, Any], at_ms: int, changes: list[Change]
    ) -> None:
        declare = c.DeclareQueue(
            vhost=topology.vhost.name, name=name, durable=True, arguments=dict(arguments), at_ms=at_ms
        )
        self._numbered(nth, lambda queue_id: topology.declare_queue(queue_id, declare, changes, self._replicas.placed))

    def set(self, command: c.SetPool, changes: list[Change]) -> Pool:
        """Fold SetPool."""
        held = self._require(command.vhost, command.name)
        only = tuple(name for name in command.only if name not in rules.BESIDE)
        settings = held.pool.settings
        if only or not command.only:
            settings = in_part(settings, command.settings, only)
        spares = command.spares if SPARES in command.only else held.spares
        rules.check_settings(settings)
        keys = command.keys_per_worker if KEYS_PER_WORKER in command.only else held.keys_per_worker
        rules.check_spares(spares, settings)
        rules.check_keys_per_worker(keys, settings)
        also = tuple(name for name in command.only if name in MoreSettings.__struct_fields__)
        more = in_part(held.more, command.more, also) if also else held.more
        rules.check_more(more)
        if keys != held.keys_per_worker and held.launches:
            raise PreconditionFailed(
                f"{pool_text(command.vhost, command.name)} has {len(held.launches)} workers: {KEYS_PER_WORKER} changes "
                "while it has none"
            )
        told = self.table.tells_events(held.pool.pool_id)
        tells = command.events if EVENTS in command.only else told
        if (settings, spares, keys, more, tells) == (
            held.pool.settings, held.spares, held.keys_per_worker, held.more, told
        ):  # fmt: skip
            return held.pool
        topology = self._vhosts.require(command.vhost)
        if tells and not told:
            if held.events is None:
                self._check_events_free(topology, held.names)
                self._replicas.check_places()
                topology.check_queue_limit(held.names.events, 1)
            self._tell_events(held, topology, 0, command.at_ms, changes)
        elif held.events is not None:
            held.events = replace(held.events, told=tells)
        held.spares, held.keys_per_worker, held.more = spares, keys, more
        before = held.pool.settings
        held.pool = replace(held.pool, settings=settings)
        changes.append(PoolChanged(held.pool))
        waiting = rules.orphan_arguments(held.names, settings)
        if waiting != rules.orphan_arguments(held.names, before):
            self._set_queue(topology, held.pool.orphans, waiting, changes)
        requests = rules.request_arguments(held.names, settings)
        if requests != rules.request_arguments(held.names, before):
            for group in held.groups.values():
                self._set_queue(topology, group.queue_id, requests, changes)
        return held.pool

    def _set_queue(
        self, topology: Topology, queue_id: QueueId, arguments: Mapping[str, Any], changes: list[Change]
    ) -> None:
        known = self._index.by_id.get(queue_id)
        if known is not None:  # else its vhost is on its way out
            changes.append(QueueSet(topology.adopt_queue(replace(known, arguments=dict(arguments)))))

    def pause(self, command: c.PausePool, changes: list[Change]) -> None:
        """Fold PausePool."""
        held = self._require(command.vhost, command.name)
        if held.pool.paused is not command.paused:
            held.pool = replace(held.pool, paused=command.paused)
            changes.append(PoolChanged(held.pool))

    def delete(self, command: c.DeletePool, changes: list[Change]) -> bool:
        """Fold DeletePool."""
        held = self.table.held(command.vhost, command.name)
        if held is None:
            return False
        if held.pool.deleting:
            return True
        if held.groups and not command.force:
            raise InUse(
                f"{pool_text(command.vhost, command.name)} has {len(held.groups)} groups: wait until they are idle, or "
                "force it"
            )
        topology = self._vhosts.require(command.vhost)
        if not command.delayed:
            self.table.delayed.pop(held.pool.delayed, None)
        for name in (held.names.exchange, held.names.delayed, held.names.requests):
            waits = name == held.names.delayed and command.delayed
            self._end_exchange(topology, name, changes, part=not waits)  # with its bindings
        for group in tuple(held.groups.values()):
            if group.state == "active":
                self.table.put_group(held, replace(group, state="unbound"), changes)
        for launch in tuple(held.launches.values()):
            if not launch.revoked:
                self.table.put_launch(held, replace(launch, revoked="pool_deleted"), changes)
        held.pool = replace(held.pool, deleting=True)
        changes.append(PoolChanged(held.pool))
        return True

    def end_queue(self, command: c.EndPoolQueue, changes: list[Change]) -> bool:
        """Fold EndPoolQueue."""
        held, queue = self.table.by_id.get(command.pool_id), self._index.by_id.get(command.queue_id)
        if held is None or queue is None or not held.pool.deleting or queue.epoch != command.epoch or held.groups:
            return False
        topology = self._vhosts.require(held.pool.vhost)
        before = {held.pool.orphans, held.pool.delayed}
        if command.queue_id in before:
            self.table.queues.pop(command.queue_id, None)
            self.table.delayed.pop(command.queue_id, None)
            topology.end_queue(queue, changes)
            changes.append(PoolChanged(held.pool))  # who owns the last one waits for that
            return True
        if command.queue_id != held.pool.dead or not before.isdisjoint(self._index.by_id):
            return False
        self._end(held, topology, changes)
        return True

    def _end(self, held: PoolHeld, topology: Topology, changes: list[Change]) -> None:
        """The pool is gone, but for workers that are not gone: nobody wants them."""
        pool = held.pool
        for queue_id in (pool.dead, pool.activity, pool.poison, *_events_of(held)):
            queue = self._index.by_id.get(queue_id)
            if queue is not None:
                topology.end_queue(queue, changes)
        for name in (held.names.orphans, held.names.dead, held.names.activity):
            self._end_exchange(topology, held.names.exchange_of(name), changes)
        self._forget(held, changes)

    @staticmethod
    def _end_exchange(topology: Topology, name: str, changes: list[Change], part: bool = True) -> None:
        """Of a vhost that is on its way out some are gone. See `Topology.end_exchange`."""
        exchange = topology.exchanges.get(name)
        if exchange is not None:
            topology.end_exchange(exchange, changes, part)

    def _forget(self, held: PoolHeld, changes: list[Change]) -> None:
        pool = held.pool
        for group in tuple(held.groups.values()):
            self.table.remove_group(held, group, changes)
        for launch in tuple(held.launches.values()):
            del self.table.launched[launch.launch_id]
            changes.append(LaunchEnded(launch))
        for queue_id in (pool.orphans, pool.dead, pool.activity, pool.poison, *_events_of(held)):
            self.table.queues.pop(queue_id, None)
        self.table.delayed.pop(pool.delayed, None)
        del self.table.by_id[pool.pool_id], self.table.by_prefix[pool.vhost, encoded(pool.name)]
        changes.append(PoolEnded(pool))

    def end_of_vhost(self, vhost: str, changes: list[Change]) -> None:
        """The vhost is deleted: its queues and exchanges have ended."""
        for held in [held for held in self.table.by_id.values() if held.pool.vhost == vhost]:
            self._forget(held, changes)

    # ---- groups ----

    def require(self, command: c.RequireGroups, changes: list[Change]) -> tuple[str, ...]:
        """Fold RequireGroups."""
        held = self.table.controlled(command)
        check_count(command.keys)
        for key in command.keys:
            _check_key(key)
        topology, refused = self._vhosts.require(held.pool.vhost), []
        if held.names.requests not in topology.exchanges:
            raise NotFound(f"{pool_text(held.pool.vhost, held.pool.name)} goes with its vhost")
        new = len([key for key in command.keys if key not in held.groups])
        if new:
            self._replicas.check_places()
        for nth, key in enumerate(command.keys):
            if not self._require_group(held, topology, nth, key, command.at_ms, changes):
                refused.append(key)
        return tuple(refused)

    def _require_group(
        self, held: PoolHeld, topology: Topology, nth: int, key: str, at_ms: int, changes: list[Change]
    ) -> bool:
        """Whether the key has a bound group now; without: there is no room."""
        known = held.groups.get(key)
        if known is not None and known.queue_id in self._index.by_id:
            group = replace(known, generation=self._clock.applied, state="active", moving=True)
            if known.state == "unbound":
                self._bind_group(held, topology, group, changes)
            self.table.put_group(held, group, changes)
            return True
        if known is None and self._has_room(held, topology, key):
            self._begin_group(held, topology, nth, key, at_ms, changes)
            return True
        return False

    def direct(self, command: c.DirectGroup, changes: list[Change]) -> bool:
        """Fold DirectGroup."""
        held, key, word = self._require(command.vhost, command.name), command.key, command.word
        _check_key(key)
        where = f"key '{key}' of {pool_text(command.vhost, command.name)}"
        if word in ("start", "pin"):
            self._start(held, where, command, changes)
        group = held.groups.get(key)
        if word == "unpin":
            if key not in held.pins:
                return False
            del held.pins[key]
        elif group is None:
            raise NotFound(f"{where} has no group")
        elif word == "pin":
            held.pins[key] = None
        elif word == "stop":
            if key in held.pins:
                raise PreconditionFailed(f"{where} is pinned: unpin it first")
            self._stop(held, group, changes)
        if group is not None:
            changes.append(GroupDirected(held.groups[key], word))
        return True

    def _start(self, held: PoolHeld, where: str, command: c.DirectGroup, changes: list[Change]) -> None:
        if held.pool.paused:
            raise PreconditionFailed(f"{where} cannot begin: the pool is paused, resume it first")
        topology = self._vhosts.require(held.pool.vhost)
        if held.names.requests not in topology.exchanges:
            raise NotFound(f"{pool_text(held.pool.vhost, held.pool.name)} goes with its vhost")
        if command.key not in held.groups:
            self._replicas.check_places()
        if not self._require_group(held, topology, 0, command.key, command.at_ms, changes):
            raise LimitReached(f"{where} would be one group too many: raise max_groups, or the vhost's limit of queues")

    def _stop(self, held: PoolHeld, group: Group, changes: list[Change]) -> None:
        """Its workers get no more; unbound, the pool begins none without a request. One that requests are on their way
        to stays bound, so that its next worker begins at once."""
        for launch in self.table.launches_of(held.pool.pool_id, group.key):
            if not launch.retired and not launch.revoked:
                self.table.put_launch(held, replace(launch, retired=STOPPED), changes)
        for one in held.assignments.of_key(group.key):
            held.assignments.retire(one, STOPPED, changes)
        queue = self._index.by_id.get(group.queue_id)
        if group.state == "active" and not group.moving and queue is not None:
            self._unbind_group(held, group, queue, changes)

    def _has_room(self, held: PoolHeld, topology: Topology, key: str) -> bool:
        name = held.names.request_queue(key)
        return (
            len(held.groups) < held.pool.settings.max_groups
            and name not in topology.queues
            and topology.has_room_for_queues()
        )

    def _begin_group(
        self, held: PoolHeld, topology: Topology, nth: int, key: str, at_ms: int, changes: list[Change]
    ) -> None:
        name = held.names.request_queue(key)
        arguments = rules.request_arguments(held.names, held.pool.settings)
        self._declare_queue(topology, nth, name, arguments, at_ms, changes)
        group = Group(held.pool.pool_id, key, topology.queues[name].queue_id, self._clock.applied)
        self.table.queues[group.queue_id] = PoolQueue(held.pool.pool_id, "requests", key)
        self._bind_group(held, topology, group, changes)
        self.table.put_group(held, group, changes)

    def settle(self, command: c.SettleGroups, changes: list[Change]) -> None:
        """Fold SettleGroups."""
        held = self.table.controlled(command, deleting=True)
        check_count(command.keys)
        for nth, key in enumerate(command.keys):
            group = held.groups.get(key)
            if group is not None and command.generations[nth : nth + 1] in ((), (group.generation,)):
                self.table.put_group(held, replace(group, moving=False), changes)

    def unbind(self, command: c.UnbindGroup, changes: list[Change]) -> bool:
        """Fold UnbindGroup."""
        found = self._idle(command)
        if found is None:
            return False
        held, group, queue = found
        if group.state == "active":
            self._unbind_group(held, group, queue, changes)
        return True

    def bind(self, command: c.BindGroup, changes: list[Change]) -> bool:
        """Fold BindGroup."""
        found = self._idle(command)
        if found is None or found[0].pool.deleting:
            return False
        held, group, _ = found
        topology = self._vhosts.require(held.pool.vhost)
        if held.names.requests not in topology.exchanges:
            return False
        if group.state == "unbound":
            group = replace(group, state="active")
            self._bind_group(held, topology, group, changes)
            self.table.put_group(held, group, changes)
        return True

    def drop(self, command: c.DropGroup, changes: list[Change]) -> bool:
        """Fold DropGroup."""
        found = self._idle(command)
        if found is None or found[1].state != "unbound":
            return False
        held, group, queue = found
        self._vhosts.require(held.pool.vhost).end_queue(queue, changes)
        self.table.remove_group(held, group, changes)
        return True

    def _idle(self, command: c.UnbindGroup | c.BindGroup | c.DropGroup) -> tuple[PoolHeld, Group, Queue] | None:
        """The group, if the command is by the owner of its queue, and nobody has required it since."""
        held = self.table.by_id.get(command.pool_id)
        group = None if held is None else held.groups.get(command.key)
        queue = self._index.by_id.get(command.queue_id)
        if held is None or group is None or queue is None or group.queue_id != command.queue_id:
            return None
        if group.moving or (queue.epoch, group.generation) != (command.epoch, command.generation):
            return None
        return held, group, queue

    def _bind_group(self, held: PoolHeld, topology: Topology, group: Group, changes: list[Change]) -> None:
        _bind(topology, held.names.requests, held.names.request_queue(group.key), "queue", group.key, changes)

    def _unbind_group(self, held: PoolHeld, group: Group, queue: Queue, changes: list[Change]) -> None:
        binding = c.Unbind(vhost=queue.vhost, source=held.names.requests, destination=queue.name, routing_key=group.key)
        self._vhosts.require(queue.vhost).unbind(binding, changes)
        self.table.put_group(held, replace(group, state="unbound"), changes)

    # ---- who may ----

    def _require(self, vhost: str, name: str) -> PoolHeld:
        self._vhosts.require(vhost)
        held = self.table.held(vhost, name)
        if held is None or held.pool.deleting:
            raise NotFound(f"no {pool_text(vhost, name)}")
        return held


def _bind(
    topology: Topology, source: str, destination: str, kind: Literal["queue", "exchange"], key: str,
    changes: list[Change],
) -> None:  # fmt: skip
    """Without a look at the vhost's limit of bindings, which is of clients."""
    changes.append(Bound(topology.adopt_binding(Binding(topology.vhost.name, source, destination, kind, key, {}))))


def _check_key(key: str) -> None:
    """406 for what is no key of a group: its requests are answered and never require one."""
    try:
        raw = key.encode()
    except UnicodeEncodeError:
        raise PreconditionFailed("a key of a group is UTF-8") from None
    if len(raw) > rules.KEY_BYTES_MAX or b"\0" in raw:
        raise PreconditionFailed(f"a key of a group has at most {rules.KEY_BYTES_MAX} bytes and no NUL")


def _events_of(held: PoolHeld) -> tuple[QueueId, ...]:
    return () if held.events is None else (held.events.queue_id,)


def _delay_queue(names: PoolNames) -> str:
    return delay_queue(names.delayed)
