"""Worker pools by name, by id and by the queues that are theirs: what the map answers about them (pools.py folds).

What is a pool's is closed to the commands of others (`refuse`): its exchanges, its queues, and each name that a queue
of a key of it would have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Final, Literal, NamedTuple

from clusterbroker.cluster.errors import AccessRefused, NotFound, PreconditionFailed, exchange_text, queue_text
from clusterbroker.cluster.ids import LogIndex, QueueId

from . import commands as c
from .changes import Change, GroupChanged, GroupEnded, LaunchChanged
from .pool_assignments import Assignments
from .pool_entities import (
    NO_MORE,
    Assignment,
    EventStream,
    Group,
    KeysPerWorker,
    Launch,
    Learnt,
    More,
    MoreSettings,
    Pin,
    Pool,
    Spares,
)
from .pool_names import PoolNames, encoded
from .pool_rules import LEARNT_MAX, learnt_peak
from .queue_index import QueueIndex
from .snapshot import Snapshot
from .vhosts import Vhosts

ENTRIES_MAX: Final = 100
"""Of one command."""
PoolPart = Literal["orphans", "dead", "activity", "poison", "requests", "events"]


class PoolQueue(NamedTuple):
    """What a queue is to its pool."""

    pool_id: LogIndex
    part: PoolPart
    key: str = ""
    """Of a group."""


class PoolHeld:
    """A pool with what hangs on it."""

    __slots__ = (
        "assignments", "by_key", "events", "groups", "keys_per_worker", "launches", "learnt", "more", "names", "pins",
        "pool", "spares",
    )  # fmt: skip

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.names = PoolNames(pool.name)
        self.groups: dict[str, Group] = {}
        self.launches: dict[str, Launch] = {}
        self.pins: dict[str, None] = {}
        """Keys that are neither idle nor evicted."""
        self.by_key: dict[str, dict[str, None]] = {}
        """Ids of launches by key, oldest first."""
        self.spares = 0
        """Workers that are kept ready without a key."""
        self.keys_per_worker = 1
        self.more = NO_MORE
        self.events: EventStream | None = None
        self.learnt: dict[str, int] = {}
        """Peak bytes of a worker by key, the one that was seen last at the end."""
        self.assignments = Assignments()
        """Of workers that serve several keys."""

    def learn(self, key: str, peak_bytes: int) -> None:
        """A worker of a key has ended, and so much it has taken."""
        self.learnt[key] = learnt_peak(self.learnt.pop(key, 0), peak_bytes)
        if len(self.learnt) > LEARNT_MAX:
            del self.learnt[next(iter(self.learnt))]

    def keep(self, launch: Launch) -> None:
        """A launch came, or changed; a spare may have got its key."""
        before = self.launches.get(launch.launch_id)
        self.launches[launch.launch_id] = launch
        ids = self.by_key.setdefault(launch.key, {})
        if before is not None and before.key != launch.key:
            self.forget(before)
            if ids:  # a map that is restored has them in this order, so each must
                self.by_key[launch.key] = dict.fromkeys(sorted((*ids, launch.launch_id), key=_age))
                return
        ids[launch.launch_id] = None

    def forget(self, launch: Launch) -> None:
        """A launch of this key is none any more."""
        ids = self.by_key[launch.key]
        del ids[launch.launch_id]
        if not ids:
            del self.by_key[launch.key]


def _age(launch_id: str) -> tuple[int, int]:
    index, _, nth = launch_id[1:].partition("-")
    return int(index), int(nth)


class PoolTable:
    """All pools. Its attributes are for the fold; others ask its methods."""

    __slots__ = ("_index", "_vhosts", "by_id", "by_prefix", "delayed", "launched", "queues")

    def __init__(self, vhosts: Vhosts, index: QueueIndex) -> None:
        """None."""
        self._vhosts = vhosts
        self._index = index
        self.by_id: dict[LogIndex, PoolHeld] = {}
        self.by_prefix: dict[tuple[str, str], PoolHeld] = {}
        """Vhost and encoded name."""
        self.queues: dict[QueueId, PoolQueue] = {}
        self.launched: dict[str, PoolHeld] = {}
        self.delayed: dict[QueueId, LogIndex] = {}
        """Queues in which requests of later wait, each of the pool of this id."""

    # ---- questions ----

    def __len__(self) -> int:
        """Pools, groups and launches."""
        return len(self.by_id) + len(self.queues) + len(self.launched)

    def find(self, vhost: str, name: str) -> Pool | None:
        """The pool of this name."""
        held = self.held(vhost, name)
        return None if held is None else held.pool

    def get(self, pool_id: LogIndex) -> Pool | None:
        """The pool of this declaration."""
        held = self.by_id.get(pool_id)
        return None if held is None else held.pool

    def all(self, vhost: str | None = None) -> tuple[Pool, ...]:
        """All pools, or those of a vhost, oldest first."""
        return tuple(held.pool for held in self.by_id.values() if vhost in (None, held.pool.vhost))

    def names(self, pool_id: LogIndex) -> PoolNames:
        """The names of a pool that there is."""
        return self.by_id[pool_id].names

    def group(self, pool_id: LogIndex, key: str) -> Group | None:
        """The group of a key; None: it is absent."""
        held = self.by_id.get(pool_id)
        return None if held is None else held.groups.get(key)

    def standing(self, pool_id: LogIndex, key: str) -> tuple[Pool, Group, bool] | None:
        """A pool, the group of a key in it, and whether an operator keeps that; None: one of the two is absent. Each
        turn of the group's queue asks."""
        held = self.by_id.get(pool_id)
        group = None if held is None else held.groups.get(key)
        return None if held is None or group is None else (held.pool, group, key in held.pins)

    def groups(self, pool_id: LogIndex) -> tuple[Group, ...]:
        """Of a pool, oldest first."""
        held = self.by_id.get(pool_id)
        return () if held is None else tuple(held.groups.values())

    def pinned(self, pool_id: LogIndex, key: str) -> bool:
        """Whether an operator keeps the group of a key."""
        held = self.by_id.get(pool_id)
        return held is not None and key in held.pins

    def spares(self, pool_id: LogIndex) -> int:
        """How many workers of a pool are kept ready without a key."""
        held = self.by_id.get(pool_id)
        return 0 if held is None else held.spares

    def is_free(self, launch: Launch) -> bool:
        """Whether a worker has no key yet, or none any more."""
        return launch.spare and not self.assignments(launch.launch_id)

    def keys_per_worker(self, pool_id: LogIndex) -> int:
        """How many keys a worker of a pool serves at most."""
        held = self.by_id.get(pool_id)
        return 1 if held is None else held.keys_per_worker

    def more(self, pool_id: LogIndex) -> MoreSettings:
        """Settings of a pool since feature level 8."""
        held = self.by_id.get(pool_id)
        return NO_MORE if held is None else held.more

    def tells_events(self, pool_id: LogIndex) -> bool:
        """Whether a pool tells what happens in it."""
        held = self.by_id.get(pool_id)
        return held is not None and held.events is not None and held.events.told

    def has_events(self, pool_id: LogIndex) -> bool:
        """Whether it has the stream of them."""
        held = self.by_id.get(pool_id)
        return held is not None and held.events is not None

    def learnt(self, pool_id: LogIndex) -> Mapping[str, int]:
        """Key -> peak bytes of its workers, of a pool."""
        held = self.by_id.get(pool_id)
        return {} if held is None else held.learnt

    def assignment(self, launch_id: str, key: str) -> Assignment | None:
        """A key of a worker that serves several; None: it is not this worker's."""
        held = self.launched.get(launch_id)
        return None if held is None else held.assignments.get(launch_id, key)

    def assignments(self, launch_id: str) -> tuple[Assignment, ...]:
        """The keys of a worker that serves several, in the order in which it got them."""
        held = self.launched.get(launch_id)
        return () if held is None else held.assignments.of_worker(launch_id)

    def assignments_of(self, pool_id: LogIndex, key: str) -> tuple[Assignment, ...]:
        """The workers of several keys that have this one, in the order in which they got it."""
        held = self.by_id.get(pool_id)
        return () if held is None else held.assignments.of_key(key)

    def workers_of(self, pool_id: LogIndex, key: str) -> dict[str, bool]:
        """Ids of the workers that have a key, alone or among others; True: it gets no more requests of it."""
        found = {one.launch_id: bool(one.retired or one.revoked) for one in self.launches_of(pool_id, key)}
        for one in self.assignments_of(pool_id, key):
            launch = self.by_id[pool_id].launches[one.launch_id]
            found[one.launch_id] = bool(one.retired or launch.retired or launch.revoked)
        return found

    def launch(self, launch_id: str) -> Launch | None:
        """The launch of this id, until it is gone."""
        held = self.launched.get(launch_id)
        return None if held is None else held.launches[launch_id]

    def launches(self, pool_id: LogIndex) -> tuple[Launch, ...]:
        """Of a pool, oldest first."""
        held = self.by_id.get(pool_id)
        return () if held is None else tuple(held.launches.values())

    def launches_of(self, pool_id: LogIndex, key: str) -> tuple[Launch, ...]:
        """Of one key, oldest first."""
        held = self.by_id.get(pool_id)
        return () if held is None else tuple(held.launches[one] for one in held.by_key.get(key, ()))

    def queue(self, queue_id: QueueId) -> PoolQueue | None:
        """What a queue is to a pool; None: nothing."""
        return self.queues.get(queue_id)

    def absent_group(self, vhost: str, queue: str) -> tuple[Pool, str] | None:
        """The pool and key of a request queue that is not there, by its name; None: no pool could have it, or it is
        there, or the name does not tell the key."""
        held = self.by_prefix.get((vhost, queue.partition("-")[0]))
        key = None if held is None else held.names.key_of(queue)
        if held is None or key is None or key in held.groups or held.pool.deleting:
            return None
        return held.pool, key

    def delays(self, queue_id: QueueId) -> LogIndex | None:
        """The pool whose requests of later a queue holds; None: it is no such queue."""
        return self.delayed.get(queue_id)

    def dead_letters_of(self, vhost: str, exchange: str) -> Pool | None:
        """The pool whose requests die to this exchange."""
        held = self.by_prefix.get((vhost, exchange.partition("-")[0]))
        return held.pool if held is not None and exchange == held.names.exchange_of(held.names.dead) else None

    def owner_of_exchange(self, vhost: str, name: str) -> Pool | None:
        """The pool that an exchange belongs to."""
        held = self.by_prefix.get((vhost, name.partition("-")[0]))
        return held.pool if held is not None and name in held.names.exchanges else None

    def takes_no_keys(self, queue_id: QueueId) -> bool:
        """Whether a queue is a pool's to which nobody else publishes: what died, and what is told."""
        part = self.queues.get(queue_id)
        return part is not None and part.part in ("dead", "events")

    def owner_of_queue(self, vhost: str, name: str) -> Pool | None:
        """The pool that a queue of this name belongs to, or would belong to."""
        held = self.by_prefix.get((vhost, name.partition("-")[0]))
        return held.pool if held is not None and held.names.has_queue(name, held.events is not None) else None

    def held(self, vhost: str, name: str) -> PoolHeld | None:
        """The pool of this name, for the fold."""
        try:
            return self.by_prefix.get((vhost, encoded(name)))
        except UnicodeEncodeError:
            return None

    def controlled(self, command: c.OfController, deleting: bool = False) -> PoolHeld:
        """The pool that its controller orders something of, for the fold. Refused: it is gone, or has another one."""
        held = self.by_id.get(command.pool_id)
        orphans = None if held is None else self._index.by_id.get(held.pool.orphans)
        if held is None or orphans is None or held.pool.deleting > deleting:
            raise NotFound(f"pool {command.pool_id} is gone")
        if orphans.epoch != command.epoch:
            raise PreconditionFailed(
                f"{pool_text(held.pool.vhost, held.pool.name)} has a controller of epoch {orphans.epoch}: one of "
                f"{command.epoch} orders nothing"
            )
        return held

    # ---- closed to all others ----

    def refuse(self, command: c.AnyCommand) -> None:
        """403 for a command of somebody else about what is a pool's."""
        match command:
            case c.Loosen():
                self.refuse(command.ending)
            case c.ExchangeDeclaration() | c.DeleteExchange():
                self._refuse_exchange(command.vhost, command.name)
            case c.DeclareQueue() | c.DeleteQueue():
                self._refuse_queue(command.vhost, command.name)
            case c.Bind() | c.Unbind():
                held = self.by_prefix.get((command.vhost, command.source.partition("-")[0]))
                if held is None or command.source != held.names.exchange_of(held.names.activity):
                    self._refuse_exchange(command.vhost, command.source)
                ends = self._refuse_queue if command.destination_kind == "queue" else self._refuse_exchange
                ends(command.vhost, command.destination)

    def _refuse_exchange(self, vhost: str, name: str) -> None:
        if (pool := self.owner_of_exchange(vhost, name)) is not None:
            raise AccessRefused(f"{exchange_text(vhost, name)} {closed(pool)}")

    def _refuse_queue(self, vhost: str, name: str) -> None:
        if (pool := self.owner_of_queue(vhost, name)) is not None:
            raise AccessRefused(f"{queue_text(vhost, name)} {closed(pool)}")

    # ---- changes ----

    def put_group(self, held: PoolHeld, group: Group, changes: list[Change]) -> None:
        """A group came, or changed."""
        if held.groups.get(group.key) != group:
            held.groups[group.key] = group
            changes.append(GroupChanged(group))

    def remove_group(self, held: PoolHeld, group: Group, changes: list[Change]) -> None:
        """A group ended; its queue has."""
        del held.groups[group.key]
        del self.queues[group.queue_id]
        for one in held.assignments.of_key(group.key):
            held.assignments.end(one, changes)
        changes.append(GroupEnded(group))

    def put_launch(self, held: PoolHeld, launch: Launch, changes: list[Change]) -> None:
        """A launch came, or changed."""
        held.keep(launch)
        self.launched[launch.launch_id] = held
        changes.append(LaunchChanged(launch))

    def put_pool(self, held: PoolHeld) -> None:
        """A pool came."""
        pool = held.pool
        self.by_id[pool.pool_id] = self.by_prefix[pool.vhost, encoded(pool.name)] = held
        parts: tuple[tuple[QueueId, PoolPart], ...] = (
            (pool.orphans, "orphans"), (pool.dead, "dead"), (pool.activity, "activity"), (pool.poison, "poison"),
        )  # fmt: skip
        for queue_id, part in parts:
            if queue_id in self._index.by_id:
                self.queues[queue_id] = PoolQueue(pool.pool_id, part)
        if pool.delayed in self._index.by_id:
            self.delayed[pool.delayed] = pool.pool_id

    def put_events(self, held: PoolHeld, stream: EventStream) -> None:
        """A pool tells its events, or does not any more."""
        held.events = stream
        if stream.queue_id in self._index.by_id:
            self.queues[stream.queue_id] = PoolQueue(held.pool.pool_id, "events")

    def save(self, snapshot: Snapshot) -> None:
        """Write this part of the map into a snapshot."""
        snapshot.pools = list(self.all())
        snapshot.groups = [group for held in self.by_id.values() for group in held.groups.values()]
        snapshot.launches = [launch for held in self.by_id.values() for launch in held.launches.values()]
        snapshot.pins = [Pin(held.pool.pool_id, key) for held in self.by_id.values() for key in held.pins]
        snapshot.spares = [Spares(held.pool.pool_id, held.spares) for held in self.by_id.values() if held.spares]
        several = [held for held in self.by_id.values() if held.keys_per_worker > 1]
        snapshot.keys_per_worker = [KeysPerWorker(held.pool.pool_id, held.keys_per_worker) for held in several]
        snapshot.assignments = [one for held in several for one in held.assignments.all()]
        snapshot.more = [More(held.pool.pool_id, held.more) for held in self.by_id.values() if held.more != NO_MORE]
        snapshot.learnt = [
            Learnt(held.pool.pool_id, key, peak) for held in self.by_id.values() for key, peak in held.learnt.items()
        ]
        snapshot.event_streams = [held.events for held in self.by_id.values() if held.events is not None]

    def restore(self, snapshot: Snapshot) -> None:
        """Read this part of the map from a snapshot. KeyError, AssertionError: the snapshot contradicts itself."""
        for pool in snapshot.pools:
            self._vhosts.by_name[pool.vhost]
            self.put_pool(PoolHeld(pool))
        for group in snapshot.groups:
            self.by_id[group.pool_id].groups[group.key] = group
            self.queues[group.queue_id] = PoolQueue(group.pool_id, "requests", group.key)
        for launch in snapshot.launches:
            held = self.by_id[launch.pool_id]
            held.keep(launch)
            self.launched[launch.launch_id] = held
        for pin in snapshot.pins:
            self.by_id[pin.pool_id].pins[pin.key] = None
        for spares in snapshot.spares:
            self.by_id[spares.pool_id].spares = spares.count
        for several in snapshot.keys_per_worker:
            self.by_id[several.pool_id].keys_per_worker = several.count
        for one in snapshot.assignments:
            self.by_id[one.pool_id].assignments.keep(one)
        for more in snapshot.more:
            self.by_id[more.pool_id].more = more.settings
        for learnt in snapshot.learnt:
            self.by_id[learnt.pool_id].learnt[learnt.key] = learnt.peak_bytes
        for stream in snapshot.event_streams:
            self.put_events(self.by_id[stream.pool_id], stream)


def check_count(entries: Sized) -> None:
    """406 for a command about too many."""
    if len(entries) > ENTRIES_MAX:
        raise PreconditionFailed(f"a command about a pool has at most {ENTRIES_MAX} entries")


def pool_text(vhost: str, name: str) -> str:
    """A pool in error texts."""
    return f"pool '{name[:255]}' in vhost '{vhost}'"


def closed(pool: Pool) -> str:
    """Why nobody else changes what is a pool's."""
    return f"belongs to pool '{pool.name}': it is closed to clients"
