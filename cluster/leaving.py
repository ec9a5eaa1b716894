"""A living member that leaves: queues that count on its copy, and their new copies.

A plain departure would take the member's copies along, and its queues would have one copy less until another has
caught up: a disk lost in that time may have held the last one. A member therefore leaves in three steps, each of them
a command:

    DrainNode(leaving)              it gets nothing new, hands over its queues, and its copies count for nothing;
    MoveReplica add, remove         so the leader sees queues with a copy too few (balance.py), and has others made, one
                                    at a time; when enough of the staying members are in sync, its own is removed
    ForgetNode(leaves)              refused as long as a queue counts on it: the map alone decides, on every node alike

Its copies count until they are removed: commits wait for them as for any others, and elections may choose them. The
copies needed without it are those of the queue's settings, but no more than the staying members: if those are too
few, its copy goes with the last step. Of two members that leave at once neither counts for the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .entities import Queue
from .ids import NodeId
from .view import ClusterView


class Short(NamedTuple):
    """A queue that counts on the copy of a member that leaves."""

    queue: Queue
    in_sync: int
    """How many of those who stay are in sync."""
    wanted: int
    """How many there shall be, of those who stay."""
    hopeful: bool
    """Somebody who is alive is catching up, or can be given a copy: waiting may help."""


def counting_on(view: ClusterView, name: NodeId) -> Iterator[Short]:
    """The queues that would have too few copies in sync without this member, in ascending queue_id."""
    stay = {member.name: member for member in view.data_members() if not member.leaving and member.name != name}
    for queue in view.replicas_of(name):
        if name not in queue.in_sync and name not in queue.eligible:
            continue
        in_sync = sum(node in stay for node in queue.in_sync)
        wanted = max(1, min(view.wanted_replicas(queue), len(stay)))
        if in_sync < wanted:
            hopeful = queue.owner is not None and any(
                member.alive and node not in queue.in_sync and (node in queue.replicas or not member.draining)
                for node, member in stay.items()
            )
            yield Short(queue, in_sync, wanted, hopeful)
