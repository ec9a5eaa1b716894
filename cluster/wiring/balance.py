"""Wanted moves: replica sets that differ from their settings, and unevenly spread owners.

Both are questions to the map, asked by the leader of the wiring log (replicas) or by an operator (owners). The
answers are proposals, and the fold checks them again. They scan all queues, so ask now and then, not per command.

A replica set changes in small steps that never reduce the copies: *add* one and let it catch up; when all wanted
replicas are in sync, *remove* a surplus one. Adding one at a time matters, because `least` grows with the number of
replicas: two newcomers at once would stop the publishers of a queue with one copy in sync until one has caught up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import pairwise

from clusterbroker.cluster.ids import NodeId, QueueId

from . import commands as c
from .entities import Queue
from .view import ClusterView

NOBODY: tuple[NodeId, ...] = ()
MOVES_AT_ONCE = 64
"""How many queues change their replicas at the same time: each newcomer copies a whole queue."""


def reconfigurations(view: ClusterView, at_most: int = MOVES_AT_ONCE) -> list[c.MoveReplica]:
    """The replica sets that should change now, in ascending queue_id, so that at most so many queues are copied.

    A queue lacks replicas (a policy asks for more, a member joined, one leaves), has too many (a policy asks for less,
    a newcomer caught up), or, when all that is done, its members hold more than others do. Replicas at members that
    leave are too many, whatever the number of the others, and removed when enough of the others are in sync.
    """
    if not view.is_cluster:
        return []
    load = Load(view)
    moves: list[c.MoveReplica] = []
    copying = 0
    idle: list[Queue] = []
    for queue in view.lasting_queues():
        if queue.owner is None:
            continue
        wanted = view.wanted_replicas(queue)
        stay = [node for node in queue.replicas if not load.leaves(node)]
        there, away = stay, NOBODY
        if len(stay) < len(queue.replicas):  # absent members may return, those that leave need not wait for that
            there, away = [node for node in stay if load.is_alive(node)], _away(queue, load)
        catching_up = any(load.is_alive(node) and node not in queue.in_sync for node in stay)
        copying += catching_up
        if len(there) >= wanted and len(queue.replicas) > wanted:
            # the replica behind may be the newcomer for which another one shall go
            removed = () if catching_up else _too_many(queue, stay, wanted, load)
            if removed:
                moves.append(c.MoveReplica(queue_id=queue.queue_id, remove=removed))
                load.less(removed)
        elif len(there) < wanted:
            added = None if catching_up or copying >= at_most else load.emptiest(queue)
            if added is not None:
                # else there was one replica more, and publishers might wait until it has caught up
                moves.append(c.MoveReplica(queue_id=queue.queue_id, add=(added,), remove=away))
                load.more(added)
                load.less(away)
                copying += 1
        elif not catching_up:
            idle.append(queue)
    return moves if moves or copying else list(_levelled(idle, load, at_most))


def waits_for(view: ClusterView) -> dict[str, int]:
    """Members without which so many queues have no leader, by name: each of them may have all that is committed."""
    awaited: dict[str, int] = {}
    for queue in view.lasting_queues():
        if queue.owner is None:
            for name in (*queue.in_sync, *queue.eligible):
                awaited[name] = awaited.get(name, 0) + 1
    return dict(sorted(awaited.items()))


class Load:
    """How many replicas each member holds that may be given more: alive, not draining, no witness."""

    __slots__ = ("_alive", "_held", "_leaving", "ready")

    def __init__(self, view: ClusterView) -> None:
        self._alive = {member.name: None for member in view.alive_members()}
        self.ready = sorted(m.name for m in view.data_members() if m.alive and not m.draining)
        self._held = {member.name: view.held(member.name) for member in view.data_members()}
        self._leaving = {member.name: None for member in view.data_members() if member.leaving}

    def leaves(self, node: NodeId) -> bool:
        """Whether the member leaves."""
        return node in self._leaving

    def is_alive(self, node: NodeId) -> bool:
        """Whether the member is alive."""
        return node in self._alive

    def held(self, node: NodeId) -> int:
        """How many replicas it has, with those that were given and taken here."""
        return self._held[node]

    def more(self, node: NodeId) -> None:
        """It was given one more."""
        self._held[node] += 1

    def less(self, nodes: tuple[NodeId, ...]) -> None:
        """Each was freed of one."""
        for node in nodes:
            self._held[node] -= 1

    def emptiest(self, queue: Queue) -> NodeId | None:
        """The member for one replica more of a queue."""
        free = [node for node in self.ready if node not in queue.replicas]
        return min(free, key=lambda node: (self._held[node], node), default=None)


def _away(queue: Queue, load: Load) -> tuple[NodeId, ...]:
    """Replicas at absent members, with nothing that a commit or an election counts on."""
    counts = (*queue.in_sync, *queue.eligible)
    return tuple(node for node in queue.replicas if not load.is_alive(node) and node not in counts)


def _too_many(queue: Queue, stay: list[NodeId], wanted: int, load: Load) -> tuple[NodeId, ...]:
    """Replicas to remove, if enough of the others are in sync then: at members that leave, and of the rest, as far as
    they are more than wanted, first at absent members, then at draining ones, or those that hold most."""

    def rank(node: NodeId) -> tuple[bool, bool, int, NodeId]:
        return (load.is_alive(node), node in load.ready, -load.held(node), node)

    free = sorted((node for node in stay if node != queue.owner), key=rank)
    going = [node for node in queue.replicas if load.leaves(node) and node != queue.owner]
    removed = (*going, *free[: max(0, len(stay) - wanted)])
    left = sum(node in stay and node not in removed for node in queue.in_sync)
    return removed if left >= wanted else ()


def _levelled(idle: list[Queue], load: Load, at_most: int) -> Iterator[c.MoveReplica]:
    """Replicas that should go from the fullest to the emptiest member, while they differ by more than one."""
    for queue in idle:
        if at_most <= 0 or not load.ready:
            return
        emptiest = load.emptiest(queue)
        movable = [node for node in queue.replicas if node != queue.owner and node in load.ready]
        fullest = max(movable, key=lambda node: (load.held(node), node), default=None)
        if emptiest is None or fullest is None or load.held(fullest) - load.held(emptiest) <= 1:
            continue
        # the fullest one is removed when the newcomer is in sync, see _too_many
        load.more(emptiest)
        load.less((fullest,))
        at_most -= 1
        yield c.MoveReplica(queue_id=queue.queue_id, add=(emptiest,))


def rebalance(view: ClusterView) -> list[tuple[QueueId, NodeId]]:
    """Owner moves within the in-sync sets after which all members own as many queues as is possible, about.

    Members are places, and a queue that one owns and another has in sync is a way between them. As long as there is a
    path from one place to another that has at least two fewer, one queue is moved along each of its ways: the
    shortest path first, so that few queues move. Draining members give away all that they can.
    """
    ways = _Ways(view)
    while (path := ways.best_path()) is not None:
        for origin, end in pairwise(path):
            ways.move(origin, end)
    return ways.moved()


_Way = tuple[dict[QueueId, None], dict[QueueId, None], dict[QueueId, None]]


class _Ways:
    """(origin, end) -> the queues that origin owns and end has in sync.

    Of each way there are three lists, of which the first that has one gives the next queue: those that go home to
    their present owner, those that are on their way already, all others. So a queue on its way costs no second move.
    """

    __slots__ = ("_owner", "_owns", "_queues", "_ready", "_ways")

    def __init__(self, view: ClusterView) -> None:
        self._ready = sorted(m.name for m in view.data_members() if m.alive and not m.draining)
        self._owns = {member.name: 0 for member in view.data_members()}
        self._owner: dict[QueueId, NodeId] = {}
        self._queues: dict[QueueId, Queue] = {}
        self._ways: dict[tuple[NodeId, NodeId], _Way] = {}
        if not view.is_cluster:
            return
        for queue in view.lasting_queues():
            if queue.owner is not None:
                self._queues[queue.queue_id] = queue
                self._list(queue, queue.owner)

    def best_path(self) -> list[NodeId] | None:
        """From the member that should give most, by the shortest way to the one that has least."""
        draining = sorted(node for node, owns in self._owns.items() if owns and node not in self._ready)
        fullest = sorted(self._ready, key=lambda node: (-self._owns[node], node))
        for origin in (*draining, *fullest):
            paths = self._paths(origin)
            ends = [
                end
                for end in paths
                if end in self._ready and (origin in draining or self._owns[origin] - self._owns[end] >= 2)
            ]
            if ends:
                return paths[min(ends, key=lambda end: (self._owns[end], len(paths[end]), end))]
        return None

    def _paths(self, origin: NodeId) -> dict[NodeId, list[NodeId]]:
        """The shortest paths to all that can be reached through those who are ready."""
        paths: dict[NodeId, list[NodeId]] = {}
        waiting = deque([[origin]])
        while waiting:
            path = waiting.popleft()
            for end in self._ready:
                if end != origin and end not in paths and any(self._ways.get((path[-1], end), ())):
                    paths[end] = [*path, end]
                    waiting.append(paths[end])
        return paths

    def move(self, origin: NodeId, end: NodeId) -> None:
        """Give one queue on."""
        queue_id = next(iter(next(queues for queues in self._ways[origin, end] if queues)))
        queue = self._queues[queue_id]
        for other in queue.in_sync:
            if other != origin:
                del self._list_of(queue, origin, other)[queue_id]
        self._owns[origin] -= 1
        self._list(queue, end)

    def _list(self, queue: Queue, owner: NodeId) -> None:
        self._owner[queue.queue_id] = owner
        self._owns[owner] += 1
        for other in queue.in_sync:
            if other != owner:
                self._list_of(queue, owner, other)[queue.queue_id] = None

    def _list_of(self, queue: Queue, origin: NodeId, end: NodeId) -> dict[QueueId, None]:
        home, on_its_way, at_home = self._ways.setdefault((origin, end), ({}, {}, {}))
        return home if queue.owner == end else on_its_way if queue.owner != origin else at_home

    def moved(self) -> list[tuple[QueueId, NodeId]]:
        """The queues whose owner should be another one, ascending."""
        return [(queue_id, owner) for queue_id, owner in self._owner.items() if owner != self._queues[queue_id].owner]
