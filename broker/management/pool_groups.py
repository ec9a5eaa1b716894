"""Keys of a worker pool: their groups as documents, and all of them at a glance.

States, for people. They are derived from the map and from what owners and the controller have told last:

    unscheduled   no worker has the key, and none is ordered as things are: the pool is paused, or is being deleted, or
                  has no controller, or no request asks for one
    waiting       no worker has it: for room; where workers come by themselves, for one of these
    failed        its starts fail, for `failed_for_s` more
    starting      a worker was ordered, and does not consume yet
    ready, busy   a worker consumes; of `busy` it holds a request
    idle          unbound: nothing happened for `unbind_delay_s`, and a request would find its worker still there
    draining      unbound, and all its workers are told to end
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final

from msgspec import Meta

from clusterbroker.broker.pools.places import MEMORY
from clusterbroker.broker.stats.pools import TemplateRow
from clusterbroker.cluster.wiring.pool_entities import Group, Pool
from clusterbroker.cluster.wiring.pool_names import PoolNames
from clusterbroker.cluster.wiring.pool_rules import promised_bytes

from .errors import object_not_found
from .forms import Form
from .paging import PAGE_SIZE_MAX, Listing
from .pool_places import controller_row
from .pools import controller, found_pool, may_read, numbers, oldest_s
from .reading import Document, Reading

DRAWN: Final = 200
"""Keys that a glance has one by one."""


class Glance(Form):
    """Of a query."""

    limit: Annotated[int, Meta(ge=1, le=PAGE_SIZE_MAX, description="Keys that are told one by one, the largest")] = (
        DRAWN
    )


class Keys:
    """Of one pool, for one answer: what all its keys have in common is looked up once."""

    def __init__(self, reading: Reading, pool: Pool) -> None:
        self._reading = reading
        self._pool = pool
        self._pools = reading.map.pools
        track = reading.replica.node_track(reading.replica.node)
        rows = () if track is None else track.row.pools
        self._failed = next((row.failed for row in rows if row.pool_id == pool.pool_id), {})
        self._learnt = self._pools.learnt(pool.pool_id)
        self._each_bytes = _template_bytes(reading, pool)
        self._stands = pool.paused or pool.deleting or controller(reading.replica, pool) is None

    def readable(self) -> list[Group]:
        """Those whose queues the user may read."""
        groups = self._pools.groups(self._pool.pool_id)
        return [one for one in groups if may_read(self._reading, self._pool, self._queue(one))]

    def _queue(self, found: Group) -> str:
        queue = self._reading.map.queue_by_id(found.queue_id)
        assert queue is not None, "a group has its queue"
        return queue.name

    def memory_bytes(self, key: str) -> int | None:
        """What a worker of the key is promised: learnt, or the template's; None: workers come by themselves."""
        if not self._pool.starts_workers:
            return None
        peak = self._learnt.get(key, 0)
        return promised_bytes(peak) if peak else self._each_bytes

    def glance(self, found: Group) -> Document:
        """What is drawn of a key."""
        held = numbers(self._reading, found.queue_id)
        workers = self._pools.workers_of(self._pool.pool_id, found.key)
        return {
            "key": found.key,
            "state": self._state(found, held, workers),
            "queue": self._queue(found),
            "memory_bytes": self.memory_bytes(found.key),
            "workers": len(workers),
            **held,
        }

    def document(self, found: Group) -> Document:
        """One group, with what its queue holds."""
        failed_s, why = self._failure(found.key)
        return {
            "vhost": self._pool.vhost,
            "pool": self._pool.name,
            **self.glance(found),
            "failed_for_s": failed_s,
            "failed_why": why,
            "bound": found.state == "active",
            "generation": found.generation,
            "pinned": self._pools.pinned(self._pool.pool_id, found.key),
            "oldest_s": oldest_s(self._reading, (found.queue_id,)),
        }

    def _state(self, found: Group, held: dict[str, int], workers: dict[str, bool]) -> str:
        """`workers`: id -> whether it gets no more requests of the key."""
        if found.state == "unbound":
            return "draining" if workers and all(workers.values()) else "idle"
        if held["consumers"]:
            return "busy" if held["held"] else "ready"
        if self._failure(found.key)[0]:
            return "failed"
        if not all(workers.values()):
            return "starting"
        return "unscheduled" if self._is_unscheduled(found.key, held) else "waiting"

    def _is_unscheduled(self, key: str, held: dict[str, int]) -> bool:
        if not self._pool.starts_workers:
            return False
        asks = held["waiting"] or held["held"] or self._pool.settings.min
        return self._stands or not (asks or self._pools.pinned(self._pool.pool_id, key))

    def _failure(self, key: str) -> tuple[int, str]:
        """For how many seconds from now starts of the key fail, and why; 0: they do not."""
        for_ms, why = self._failed.get(key, (0, ""))
        return -(-for_ms // 1000), why


def _template_bytes(reading: Reading, pool: Pool) -> int:
    """Of a worker of whose key nothing is learnt: as the version says that is started, else as any."""
    version = controller_row(reading.replica, pool).version
    tracks = filter(None, map(reading.replica.node_track, reading.replica.node_names()))
    places = [track.row.place for track in tracks if track.row.place is not None]
    templates: list[TemplateRow] = [one for place in places if (one := place.templates.get(pool.template)) is not None]
    found = max(templates, key=lambda one: one.version == version, default=None)
    return MEMORY if found is None else found.memory_bytes or MEMORY


def groups(reading: Reading, vhost: str, name: str) -> Listing[Group]:
    """The groups of a pool whose queues the user may read."""
    pool = found_pool(reading, vhost, name)
    keys = Keys(reading, pool)

    def quick(path: str) -> Callable[[Group], Any] | None:
        if path in ("key", "generation"):
            return lambda group: getattr(group, path)
        return (lambda group: keys.memory_bytes(group.key)) if path == "memory_bytes" else None

    return Listing(
        sorted(keys.readable(), key=lambda group: group.key),
        name=lambda group: group.key,
        place=lambda group: (pool.vhost, group.key),
        document=keys.document,
        quick=quick,
    )


def group(reading: Reading, vhost: str, name: str, key: str) -> Document:
    """One group. Refused (404) without one of this key."""
    pool = found_pool(reading, vhost, name)
    found = reading.map.pools.group(pool.pool_id, key)
    if found is None or not may_read(reading, pool, PoolNames(name).request_queue(key)):
        raise object_not_found()
    return Keys(reading, pool).document(found)


def glance(reading: Reading, vhost: str, name: str) -> Document:
    """All keys whose queues the user may read: the largest one by one, the others in sum."""
    limit = Glance.of(reading.query).limit
    keys = Keys(reading, found_pool(reading, vhost, name))
    found = sorted(map(keys.glance, keys.readable()), key=_size)
    return {
        "keys": found[:limit],
        "rest": {
            "keys": len(found[limit:]),
            "memory_bytes": _sum(found[limit:], "memory_bytes"),
            "waiting": _sum(found[limit:], "waiting"),
            "by_state": _by_state(found[limit:]),
        },
        "by_state": _by_state(found),
    }


def _size(one: Document) -> tuple[int, int, str]:
    """The largest first; then the one with most waiting requests."""
    return -(one["memory_bytes"] or 0), -one["waiting"], one["key"]


def _sum(found: Iterable[Document], field: str) -> int:
    return sum(one[field] or 0 for one in found)


def _by_state(found: Iterable[Document]) -> dict[str, int]:
    return dict(Counter(one["state"] for one in found))
