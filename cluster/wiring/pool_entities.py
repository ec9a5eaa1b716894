"""Entities of worker pools: frozen values as those of entities.py, stored in the order of their fields.

A pool is keyed by its id, a group by (pool id, key), a launch by its id.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from clusterbroker.cluster.ids import LogIndex, QueueId

NOOP: Final = "noop"
"""The template that every cluster has: workers come by themselves."""
SCALED_OUTSIDE: Final = ("hpa", "keda")
"""Words of `scaling`: the workers of a key are one launch, and something else has their number."""
NO_KEY: Final = "\0"
"""In place of the key of a launch that has none yet (feature level 7). No group's key has a NUL."""


class PoolSettings(msgspec.Struct, frozen=True, array_like=True):
    """What an operator sets of a pool; each may be changed while the pool lives."""

    request_ttl_ms: int = 900_000
    """So long a request waits, in its first queue and in its group's together."""
    process_timeout_ms: int = 1_800_000
    """So long a worker may hold a request."""
    delivery_limit: int = 3
    """Returns of a request after failures; one more is its death."""
    max_length: int = 10_000
    """Waiting requests of one key, and of all keys without a group."""
    max_length_bytes: int = 256 << 20
    unbind_delay_s: int = 600
    """An idle group is unbound after it."""
    stop_delay_s: int = 600
    """An idle group that is unbound ends after it."""
    min: int = 0
    """Workers of a key."""
    max: int = 8
    max_workers: int = 1000
    """Of the pool."""
    max_groups: int = 10_000
    prefetch: int = 1
    """Requests that a worker holds at once."""
    start_timeout_s: int = 120
    start_failures_max: int = 5
    grace_s: int = 30
    ready: Literal["consumer", "event"] = "consumer"
    """A worker is ready by its first consumer, or by its event `ready`."""
    scaling: Literal["own", "hpa", "keda", "fixed"] = "own"
    status_type: Literal["bytes", "text"] = "bytes"
    """Of the header `x-status` of answers."""
    keys: str = ""
    """A regular expression (RE2) that a key must match; empty: any key."""


class Pool(msgspec.Struct, frozen=True, array_like=True):
    """A pool with its five exchanges, its delayed one and its four queues."""

    vhost: str
    name: str
    pool_id: LogIndex
    """Index of the command that declared it."""
    template: str
    """A section of the members' configuration; empty, or `noop`: workers come by themselves."""
    settings: PoolSettings
    orphans: QueueId
    """The queue of requests whose key has no group: its owner is the pool's controller."""
    dead: QueueId
    """The queue of requests that died: its owner is the pool's responder."""
    activity: QueueId
    poison: QueueId
    delayed: QueueId
    paused: bool = False
    """Nothing begins: no group, no worker."""
    deleting: bool = False
    """What waits is answered, then the pool ends."""

    @property
    def starts_workers(self) -> bool:
        """Else they come by themselves."""
        return self.template not in ("", NOOP)


GroupState = Literal["active", "unbound"]


class Group(msgspec.Struct, frozen=True, array_like=True):
    """The workers of one pool and key, with their queue. A group that is absent has no entity."""

    pool_id: LogIndex
    key: str
    queue_id: QueueId
    generation: LogIndex
    """Index of the command that required it last: it rises over all lives of a key."""
    state: GroupState = "active"
    moving: bool = True
    """The controller may have requests on their way to its queue: it is neither unbound nor dropped."""


class Pin(msgspec.Struct, frozen=True, array_like=True):
    """A key that an operator keeps: its group is neither idle nor evicted (feature level 6)."""

    pool_id: LogIndex
    key: str


class Spares(msgspec.Struct, frozen=True, array_like=True):
    """So many workers of a pool are kept ready without a key; a pool that keeps none has no entity (feature level 7).
    No setting as the others: with one more, members below the level would have another map."""

    pool_id: LogIndex
    count: int


class KeysPerWorker(msgspec.Struct, frozen=True, array_like=True):
    """A worker of a pool serves so many keys at most; a pool whose workers serve one has no entity (level 7)."""

    pool_id: LogIndex
    count: int


class MoreSettings(msgspec.Struct, frozen=True, array_like=True):
    """What an operator sets of a pool since feature level 8 (see `Spares`)."""

    tenant_separator: str = ""
    """A key's tenant is what stands before it; keys without it are one tenant, and so are all where it is empty."""
    tenant_weights: tuple[tuple[str, int], ...] = ()
    """(tenant, its share of the starts while several wait), by tenant; any other one has 1."""
    workers_may_call: bool = False
    """Workers that the pool has started may publish requests to it."""
    target_wait_ms: int = 5000
    """In this time the backlog of a key is to be gone: more workers are started for it."""
    service_ms: int = 1000
    """So long a request takes, until a key's first ones have told."""
    start_ms: int = 5000
    """So long a worker takes to be ready, until one has told."""
    eager: bool = False
    """A key may have more than one worker before its first requests have told how long they take."""
    scale_to_zero_while_bound: bool = False
    """A key without a request for a while has no worker, though its group is kept."""
    starve_s: int = 30
    """A key that waits for so long goes before all others."""
    min_run_s: int = 10
    """So long a worker has run before its room is taken for such a key."""
    max_share_percent: int = 50
    """Of a place's memory for further workers of one key, while others wait."""


NO_MORE: Final = MoreSettings()


class More(msgspec.Struct, frozen=True, array_like=True):
    """`MoreSettings` of a pool; one that has none of them has no entity."""

    pool_id: LogIndex
    settings: MoreSettings


class EventStream(msgspec.Struct, frozen=True, array_like=True):
    """The stream of a pool's events; a pool that has never told any has no entity (feature level 9)."""

    pool_id: LogIndex
    queue_id: QueueId
    told: bool = True
    """Else it is kept, until the pool ends, and gets nothing more."""


class Learnt(msgspec.Struct, frozen=True, array_like=True):
    """How much memory a worker of a key takes, as its pool has seen it (feature level 8)."""

    pool_id: LogIndex
    key: str
    peak_bytes: int


class Launch(msgspec.Struct, frozen=True, array_like=True):
    """One worker that was ordered, until its place has said that it is gone."""

    launch_id: str
    """`w`, the index of its command, `-`, and its place there: unique for ever."""
    pool_id: LogIndex
    key: str
    place: str
    version: str
    """Hash of the template that it was started from."""
    generation: LogIndex
    """Of its group, when it was ordered."""
    revoked: str = ""
    """Why it may not work any more; empty: it may."""
    retired: str = ""
    """Why it gets no more requests, and may finish what it holds; empty: it gets them (feature level 6)."""

    @property
    def spare(self) -> bool:
        """It has no key yet."""
        return self.key == NO_KEY


class Assignment(msgspec.Struct, frozen=True, array_like=True):
    """A worker of several keys has this one, until that is revoked, or the worker gone (feature level 7). Its launch
    has no key."""

    pool_id: LogIndex
    launch_id: str
    key: str
    assigned: LogIndex
    """Index of its command: a key that is given to the same worker again is another assignment."""
    retired: str = ""
    """Why the worker gets no more requests of the key, and may finish what it holds; empty: it gets them."""
