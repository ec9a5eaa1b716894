"""Placement of new queues and of further replicas: from the map alone, ties by name.

Replicas go to the members with the fewest, and the owner is the one of them with the fewest queues: counts, not
sizes, because the map knows counts, equal on every node. A queue is placed on members that are alive and not
draining. If those are too few, absent members (registered once) complete the set, so that a queue declared during a
rolling restart has all its replicas after the restart; they are not in sync, of course.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from clusterbroker.cluster.errors import PreconditionFailed
from clusterbroker.cluster.ids import NodeId

from .entities import Member
from .members import Members

NOWHERE: Final = "no member that is alive holds messages: start one that is no witness"


class Place(NamedTuple):
    """Owner, replicas and first in-sync set of a new queue."""

    owner: Member
    replicas: tuple[NodeId, ...]
    in_sync: tuple[NodeId, ...]


def place(members: Members, wanted: int, *, local: NodeId | None) -> Place:
    """The place of a new queue with so many replicas; `local`: the node that shall own it if it can.

    Raises PreconditionFailed when no member that is alive may hold messages.
    """
    assert wanted >= 1, "a queue has at least one replica"
    storing = [member for member in members.all() if not member.witness]
    alive = [member for member in storing if member.alive]
    if not alive:
        raise PreconditionFailed(NOWHERE)
    ready = [member for member in alive if not member.draining] or alive
    chosen = _emptiest(members, ready, first=local)[:wanted]
    away = [member for member in storing if not member.alive and member.incarnation and not member.draining]
    chosen += _emptiest(members, away)[: wanted - len(chosen)]
    in_sync = [member for member in chosen if member.alive]
    owner = min(in_sync, key=lambda member: (member.name != local, members.owned(member.name), member.name))
    return Place(
        owner=owner,
        replicas=tuple(sorted(member.name for member in chosen)),
        in_sync=tuple(sorted(member.name for member in in_sync)),
    )


def one_more(members: Members, replicas: tuple[NodeId, ...]) -> NodeId | None:
    """The member for one replica more: alive, not draining, with fewest replicas. None: there is none."""
    free = [
        member
        for member in members.all()
        if member.alive and not member.draining and not member.witness and member.name not in replicas
    ]
    return _emptiest(members, free)[0].name if free else None


def _emptiest(members: Members, of: Iterable[Member], first: NodeId | None = None) -> list[Member]:
    return sorted(of, key=lambda member: (member.name != first, members.held(member.name), member.name))
