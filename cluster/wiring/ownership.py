"""Ownership and in-sync sets: pure functions from a queue to the queue after a change.

    in_sync     hold every committed record; a record is committed when all of them have it durably, and at least
                `least` of them there are
    eligible    outside in_sync, and hold every committed record all the same

Elections rest on one sentence: *every member of in_sync or eligible has everything that was ever committed*. A member
leaves in_sync with everything up to now, and becomes eligible. It stays so exactly as long as nothing is committed
without it: while the queue has no owner, or in_sync is smaller than `least`. When both are repaired, often within the
same command, the set is emptied (`settled`). When an eligible member is elected, the former in-sync ones become
eligible by the same reasoning: nothing was committed since.

The last in-sync member is not dropped for being dead: it alone has all committed records. It is dropped when they are
gone: another disk, a damaged replica, or the memory of a process that ended (`lost`).

Epochs: each election and transfer raises `epoch`, also an election without a result (later frames of the former owner
are then of the past), and also the election of the same node. `version` rises with each change of owner, in_sync,
eligible or replicas, once per command (`versioned`): a report that a copy has caught up must mean the present copy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from msgspec.structs import replace

from clusterbroker.cluster.ids import Epoch, Incarnation, NodeId

from .changes import Change, InSyncChanged, OwnerChanged, ReplicasChanged
from .entities import Member, Queue

REPLICAS_DEFAULT = 3
SETS_MAX = 1024
"""Sets of nodes are few, and a member may fail that 10,000 queues have: what was worked out for one is remembered."""
Nodes = tuple[NodeId, ...]


class Terms(NamedTuple):
    """What a queue's settings say about its copies."""

    wanted: int
    """How many replicas it shall have."""
    least_asked: int | None = None
    """The minimum in sync that somebody asked for; None: nobody."""
    memory: bool = False
    """Nothing is on disk: the end of a process empties its replica."""

    def least(self, replicas: int) -> int:
        """How many must be in sync for anything to be committed, when the queue has so many replicas.

        By default a majority, except that two are content with one. It goes by the replicas that the queue has, not
        by those it shall have, so that a cluster may grow without stopping its publishers. What was asked for is
        never more than there shall be.
        """
        if self.least_asked is not None:
            return max(1, min(self.least_asked, self.wanted))
        return 1 if replicas <= 2 else replicas // 2 + 1


Lookup = Callable[[NodeId], Member | None]
Count = Callable[[NodeId], int]


def is_short(queue: Queue, terms: Terms) -> bool:
    """Whether too few are in sync for anything to be committed."""
    return len(queue.in_sync) < terms.least(len(queue.replicas))


@lru_cache(SETS_MAX)
def ordered(nodes: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
    """Sets of nodes are kept sorted, without doubles, so that equal ones are equal tuples."""
    return tuple(sorted(set(nodes)))


@lru_cache(SETS_MAX)
def without(nodes: tuple[NodeId, ...], node: NodeId) -> tuple[NodeId, ...]:
    """All but this one."""
    return tuple(other for other in nodes if other != node) if node in nodes else nodes


def dropped(queue: Queue, node: NodeId) -> Queue:
    """The drop rule, for a member that fails: from in_sync to the eligible set, unless it is the last in sync."""
    if node not in queue.in_sync or len(queue.in_sync) == 1:
        return queue
    return replace(queue, in_sync=without(queue.in_sync, node), eligible=ordered((*queue.eligible, node)))


def lost(queue: Queue, node: NodeId) -> Queue:
    """What the node held is gone: it is neither in sync nor eligible, be it the last."""
    return replace(queue, in_sync=without(queue.in_sync, node), eligible=without(queue.eligible, node))


def elected(queue: Queue, terms: Terms, member: Lookup, owned: Count) -> Queue:
    """The queue under a new owner, or under none when nobody alive has all of it.

    Alive members of in_sync, else of eligible; of those who are not draining if there are any, the one that owns
    fewest queues, then the lowest name. A "memory" queue of which nobody has anything starts empty at an alive
    replica.
    """
    chosen = _best(queue.in_sync, queue, member, owned)
    in_sync, eligible, gap_epoch = queue.in_sync, queue.eligible, queue.gap_epoch
    if chosen is None:
        chosen = _best(queue.eligible, queue, member, owned)
        if chosen is not None:
            in_sync, eligible = (chosen.name,), without(ordered(in_sync + eligible), chosen.name)
    if chosen is None and terms.memory and not in_sync and not eligible:
        chosen = _best(queue.replicas, queue, member, owned)
        in_sync = (chosen.name,) if chosen is not None else ()
        gap_epoch = Epoch(queue.epoch + 1)
    if chosen is None:
        return queue if queue.owner is None else replace(queue, owner=None, epoch=Epoch(queue.epoch + 1))
    return replace(
        queue,
        owner=chosen.name,
        epoch=Epoch(queue.epoch + 1),
        incarnation=chosen.incarnation,
        in_sync=in_sync,
        eligible=eligible,
        gap_epoch=gap_epoch,
    )


def _best(nodes: tuple[NodeId, ...], queue: Queue, member: Lookup, owned: Count) -> Member | None:
    best: tuple[bool, int, NodeId] | None = None
    chosen: Member | None = None
    for node in nodes:
        candidate = member(node)
        if candidate is None or not candidate.alive:
            continue
        # the queue itself does not count, or a member that restarts would lose one queue for nothing
        rank = (candidate.draining, owned(node) - (node == queue.owner), node)
        if best is None or rank < best:
            best, chosen = rank, candidate
    return chosen


def proposed(queue: Queue, in_sync: tuple[NodeId, ...]) -> Queue:
    """The owner's proposal, already checked: members that leave become eligible."""
    kept = ordered(in_sync)
    eligible = tuple(node for node in ordered(queue.eligible + queue.in_sync) if node not in kept)
    return replace(queue, in_sync=kept, eligible=eligible)


def transferred(queue: Queue, to: Member) -> Queue:
    """Handed over to an alive in-sync member."""
    assert to.alive, "an owner is alive"
    assert to.name in queue.in_sync, "an owner is in sync"
    return replace(queue, owner=to.name, epoch=Epoch(queue.epoch + 1), incarnation=to.incarnation)


def given_up(
    queue: Queue,
    node: NodeId,
    heir: Member | None,
    terms: Terms,
    member: Lookup,
    owned: Count,
    *,
    doubted: bool = False,
) -> Queue:
    """Without the copy of `node` (with it, if it is only `doubted`), and if that owned the queue, under the heir:
    alive, and in sync or eligible."""
    left = queue if doubted else lost(queue, node)
    if queue.owner != node:
        return left
    if heir is None:
        return elected(left, terms, member, owned)
    if heir.name not in left.in_sync:
        rest = without(ordered(left.in_sync + left.eligible), heir.name)
        left = replace(left, in_sync=(heir.name,), eligible=rest)
    return transferred(left, heir)


def forced(queue: Queue, to: Member) -> Queue:
    """An operator's choice: this replica is the queue from now on. Who chooses the owner that there is chooses it
    before copies that know more (replication/places.py): what they know is not the queue's any more."""
    after = replace(transferred(replace(queue, in_sync=(to.name,)), to), eligible=())
    whole = to.name in (*queue.in_sync, *queue.eligible) and to.name != queue.owner
    return after if whole else replace(after, gap_epoch=after.epoch, begins_empty=False)


def adopted(queue: Queue, node: NodeId) -> Queue:
    """A single node's queue when that node becomes the first member, under the name of the member."""
    return replace(
        queue,
        owner=None,
        epoch=Epoch(queue.epoch + 1),
        incarnation=Incarnation(0),
        replicas=(node,),
        in_sync=(node,),
        eligible=(),
    )


def settled(queue: Queue, terms: Terms) -> Queue:
    """The eligible set ends as soon as something can be committed without it."""
    if queue.eligible and queue.owner is not None and not is_short(queue, terms):
        return replace(queue, eligible=())
    return queue


def versioned(before: Queue, after: Queue, *, anew: bool = False) -> tuple[Queue, list[Change]]:
    """The queue with its version, and the changes of it to emit; `anew`: the version rises in any case."""
    changes: list[Change] = []
    owner_changed = after.epoch != before.epoch
    changed = anew or owner_changed or after.in_sync != before.in_sync or after.eligible != before.eligible
    if changed or after.replicas != before.replicas:
        after = replace(after, version=before.version + 1)
    check(after)
    assert after.epoch >= before.epoch, "an epoch never falls"
    assert owner_changed or after.owner == before.owner, "another owner is another epoch"
    if after.replicas != before.replicas:
        changes.append(ReplicasChanged(after, before.replicas))
    if owner_changed:
        changes.append(OwnerChanged(after, before.owner, before.epoch))
    elif changed:
        changes.append(InSyncChanged(after))
    return after, changes


def check(queue: Queue) -> None:
    """What holds of every queue of a cluster after every command."""
    _check(queue.owner, queue.replicas, queue.in_sync, queue.eligible)


@lru_cache(SETS_MAX)
def _check(owner: NodeId | None, replicas: Nodes, in_sync: Nodes, eligible: Nodes) -> None:
    assert owner is None or owner in in_sync, "an owner is in sync"
    assert all(node in replicas for node in in_sync), "a node in sync is a replica"
    assert all(node in replicas for node in eligible), "an eligible node is a replica"
    assert not any(node in in_sync for node in eligible), "an eligible node is not in sync"
