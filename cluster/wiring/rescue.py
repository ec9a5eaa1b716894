"""The map of one survivor after the permanent loss of the majority (pure).

    judged(map, me)         what may be lost, for each queue; to be asked before
    alone(map, me, ...)     the others are failed and forgotten, so that nothing is struck off that is here

It is a run of commands that an operator could give if there were a majority, so every rule of the map holds; what they
come to is the first snapshot of a cluster of one. The others' disks are forgotten ones from then on.

*Order.* The others are failed while this member counts as alive, so that a queue with nobody else in sync keeps it in
sync, and never the other way round. Then they are forgotten with their copies, and every queue has this member as its
one replica. Then it registers: it is elected for what it has all of, and forced for the rest, whose `gap_epoch` says
so. When its process starts it registers anew, as after any crash.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from clusterbroker.cluster.errors import PreconditionFailed
from clusterbroker.cluster.ids import Incarnation, LogIndex, NodeId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.entities import Member, Queue
from clusterbroker.cluster.wiring.levels import LEVEL
from clusterbroker.cluster.wiring.map import ClusterMap


class Copy(enum.Enum):
    """What this node has of a queue."""

    WHOLE = "all that this node had heard of"
    BEHIND = "a copy that was not in sync: what was confirmed without it is lost"
    MEMORY = "nothing: it was kept in memory"
    NONE = "nothing: it had no copy here"


@dataclass(frozen=True, slots=True)
class Judged:
    """A queue, and what this node has of it."""

    queue: Queue
    copy: Copy


def judged(map_: ClusterMap, me: NodeId) -> list[Judged]:
    """The durable queues, by vhost and name. PreconditionFailed: this member cannot be a cluster's only one."""
    _survivor(map_, me)
    queues = sorted(map_.lasting_queues(), key=lambda queue: (queue.vhost, queue.name))
    return [Judged(queue, _copy(map_, queue, me)) for queue in queues if not queue.transient]


def _survivor(map_: ClusterMap, me: NodeId) -> Member:
    member = map_.member(me)
    if member is None:
        raise PreconditionFailed(f"'{me}' was no member of its cluster any more")
    if member.witness:
        raise PreconditionFailed(f"'{me}' is a witness: it holds no messages, so there is nothing to rescue here")
    return member


def _copy(map_: ClusterMap, queue: Queue, me: NodeId) -> Copy:
    if me not in queue.replicas:
        return Copy.NONE
    if map_.terms(queue).memory:
        return Copy.MEMORY
    return Copy.WHOLE if me in (*queue.in_sync, *queue.eligible) else Copy.BEHIND


def alone(map_: ClusterMap, me: NodeId, disk_id: str, log_id: str, above: int) -> None:
    """Makes the map that of a cluster of one; its indices go on above this one. PreconditionFailed: see `judged`."""
    member = _survivor(map_, me)
    wanted = [one for one in judged(map_, me) if one.copy is not Copy.WHOLE]
    orders = _Orders(map_, max(above, map_.applied))
    others = [other for other in map_.members() if other.name != me]
    for other in others:
        if other.alive:
            orders.give(c.FailNode(node=other.name, incarnation=other.incarnation))
    for other in others:
        orders.give(c.ForgetNode(node=other.name, accept_loss=True))
    if member.draining:
        orders.give(c.DrainNode(node=me, draining=False))
    register = c.RegisterNode(
        node=me,
        disk_id=disk_id,
        incarnation=Incarnation(member.incarnation + 1),
        address=member.address,
        amqp=member.amqp,
        log_id=log_id,
        level=LEVEL,
    )
    orders.give(register)
    for one in wanted:
        queue = map_.queue_by_id(one.queue.queue_id)
        if queue is not None and queue.owner is None:
            orders.give(c.ForceOwner(queue_id=queue.queue_id, node=me))
    orders.give(c.SetVoters(voters=(me,)))
    assert [one.name for one in map_.members()] == [me], "a cluster of one"
    assert all((queue.owner, queue.replicas) == (me, (me,)) for queue in map_.lasting_queues()), "it has all queues"


class _Orders:
    """Commands with the next indices."""

    def __init__(self, map_: ClusterMap, last: int) -> None:
        self._map = map_
        self._last = last

    def give(self, command: c.AnyCommand) -> None:
        self._last += 1
        applied = self._map.apply(LogIndex(self._last), command)
        assert applied.error is None, f"{command}: {applied.error}"
