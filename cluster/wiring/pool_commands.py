"""Commands about worker pools (pools.py): what commands.py says holds for them as well.

A pool's controller owns its orphan queue. What it orders carries that queue's epoch: the word of an owner of before is
void, and refused.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from clusterbroker.cluster.ids import Epoch, LogIndex, QueueId

from .command import Command, OfProcess
from .pool_entities import NO_MORE, MoreSettings, PoolSettings


class DeclarePool(Command, frozen=True, kw_only=True, tag="declare_pool"):
    """A pool with its exchanges and queues; the same again is a success and changes nothing. Result: the Pool. Refused:
    406 for other settings than those of a pool that is there, for settings out of range, and for names that are in
    use."""

    vhost: str
    name: str
    template: str = ""
    settings: PoolSettings = PoolSettings()
    spares: int = 0
    """Workers that are kept ready without a key (feature level 7)."""
    keys_per_worker: int = 1
    """Keys that a worker serves at most (feature level 7)."""
    more: MoreSettings = NO_MORE
    """Feature level 8."""
    events: bool = False
    """Each thing that happens to a request or a worker is told in a stream (feature level 9)."""


class SetPool(Command, frozen=True, kw_only=True, tag="set_pool"):
    """Set some of a pool's settings (404 without it). Result: the Pool."""

    vhost: str
    name: str
    settings: PoolSettings
    only: tuple[str, ...] = ()
    """The settings that are set; none: all of `settings`. Those beside it (`pool_rules.BESIDE`) are set by name."""
    spares: int = 0
    """See DeclarePool (feature level 7)."""
    keys_per_worker: int = 1
    """Likewise. Refused: 406 for another one while the pool has workers."""
    more: MoreSettings = NO_MORE
    """Feature level 8."""
    events: bool = False
    """Feature level 9."""


class PausePool(Command, frozen=True, kw_only=True, tag="pause_pool"):
    """Nothing begins in the pool from now on, or it goes on (404 without it)."""

    vhost: str
    name: str
    paused: bool = True


class DeletePool(Command, frozen=True, kw_only=True, tag="delete_pool"):
    """End a pool: its exchanges at once, its queues when what waits in them is answered (EndPoolQueue). A missing one
    is a success. Result: whether it was there. Refused: 406 while it has groups, unless forced.

    delayed    requests that wait for their time are answered too (feature level 10); without, they are dropped
    """

    vhost: str
    name: str
    force: bool = False
    delayed: bool = False


GroupWord = Literal["start", "stop", "retry", "pin", "unpin"]


class DirectGroup(Command, frozen=True, kw_only=True, tag="direct_group"):
    """An operator's word about one key (feature level 6). Result: whether it changed anything. Refused: 404 without the
    pool, and without the group that `stop` or `retry` is about; 406 for `start` and `pin` in a pool that is paused, and
    for `stop` of a pinned key; a limit for a group too many.

    start   the key has a group, bound: its pool keeps a worker for it
    stop    its workers finish what they hold and end; the next begins with the next request
    retry   its starts are tried again at once
    pin     start, and it is neither idle nor evicted until `unpin`
    """

    vhost: str
    name: str
    key: str
    word: GroupWord


class OfController(Command, frozen=True, kw_only=True):
    """By a pool's controller."""

    pool_id: LogIndex
    epoch: Epoch
    """Of the pool's orphan queue: the proposer owns it."""


class RequireGroups(OfController, frozen=True, kw_only=True, tag="require_groups"):
    """Each of these keys has a group with a bound queue. Result: the keys for which there is no room."""

    keys: tuple[str, ...]


class SettleGroups(OfController, frozen=True, kw_only=True, tag="settle_groups"):
    """The controller has no request on its way to these groups, for which it has required them."""

    keys: tuple[str, ...]
    generations: tuple[LogIndex, ...] = ()
    """Of the groups, as the controller knows them (feature level 6): one that was required since is not settled by a
    command that was given up and comes late. None: whatever they are."""


class _OfGroupQueue(Command, frozen=True, kw_only=True):
    pool_id: LogIndex
    key: str
    queue_id: QueueId
    epoch: Epoch
    """Of the group's queue: the proposer owns it, and has seen that it is idle."""
    generation: LogIndex
    """Of the group: it was not required since."""


class UnbindGroup(_OfGroupQueue, frozen=True, kw_only=True, tag="unbind_group"):
    """No request reaches an idle group's queue by its key any more. Result: whether that is so now."""


class BindGroup(_OfGroupQueue, frozen=True, kw_only=True, tag="bind_group"):
    """An unbound group is not idle any more. Result: whether it is bound now."""


class DropGroup(_OfGroupQueue, frozen=True, kw_only=True, tag="drop_group"):
    """End an unbound group with its queue, which is empty and takes nothing. Result: whether it ended."""


class EndPoolQueue(Command, frozen=True, kw_only=True, tag="end_pool_queue"):
    """Of a pool that is deleted: one of its queues is empty. The pool ends with the last one. Result: whether the queue
    ended now."""

    pool_id: LogIndex
    queue_id: QueueId
    epoch: Epoch
    """The proposer owns the queue in it."""


class LaunchWorkers(OfController, frozen=True, kw_only=True, tag="launch_workers"):
    """Order workers, each (key, place, version); of a key without a group none, with NO_KEY a spare (feature level 7).
    Result: the Launches."""

    workers: tuple[tuple[str, str, str], ...]


class AssignWorkers(OfController, frozen=True, kw_only=True, tag="assign_workers"):
    """Give spares their keys, each (launch id, key); none that is no spare, or is retired or revoked, and none to a key
    without a group. In a pool whose workers serve several keys it is one key more, an Assignment; none that it has, and
    none beyond keys_per_worker. Result: the ids of those that have their key by it. Feature level 7."""

    workers: tuple[tuple[str, str], ...]


class RetireKeys(OfController, frozen=True, kw_only=True, tag="retire_keys"):
    """Workers of several keys get no more requests of these, each (launch id, key), and may finish what they hold: a
    RevokeKeys follows. Result: those that were retired by it. Feature level 7."""

    keys: tuple[tuple[str, str], ...]
    why: str


class RevokeKeys(OfController, frozen=True, kw_only=True, tag="revoke_keys"):
    """Keys, each (launch id, key), are not these workers' any more. Result: those that were. Feature level 7."""

    keys: tuple[tuple[str, str], ...]


class RevokeWorkers(OfController, frozen=True, kw_only=True, tag="revoke_workers"):
    """These workers may work no more. Result: the ids of those that were revoked by it."""

    launches: tuple[str, ...]
    why: str


class RetireWorkers(OfController, frozen=True, kw_only=True, tag="retire_workers"):
    """These workers get no more requests, and may finish what they hold: a revocation by their controller follows. An
    operator orders it as well, with the controller's epoch. Result: the ids of those that were retired by it."""

    launches: tuple[str, ...]
    why: str


class Ended(msgspec.Struct, frozen=True, array_like=True):
    """The end of one worker."""

    launch_id: str
    exit_status: int | None = None
    peak_bytes: int = 0
    out_of_memory: bool = False
    """The kernel ended it for its memory, as its driver says. A release that does not know it passes it over."""


class WorkersGone(OfProcess, frozen=True, kw_only=True, tag="workers_gone"):
    """A place reports that workers are gone for ever. Result: the Launches that ended with it."""

    ended: tuple[Ended, ...]
