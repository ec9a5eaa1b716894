"""Members of the cluster, with the queues that each owns and holds.

The second half is an index over all queues, kept with every change, so that no command scans: how many queues a
member owns is asked for each queue that is placed, and a member's failure visits its own queues only.

Transient queues are listed apart. They live and die with their node, so they count neither as owned nor as held
when places are compared: thousands of reply queues of one client say nothing about where a replica should go.
"""

from __future__ import annotations

from collections.abc import Iterable

from clusterbroker.cluster.errors import NotFound
from clusterbroker.cluster.ids import Incarnation, NodeId, QueueId

from .entities import ForgottenDisk, Member, Queue
from .snapshot import Snapshot

_Ids = dict[QueueId, None]


class Members:
    """Members by name, forgotten disks by id, and the index of queues by member.

    Invariant: a queue stands under exactly the members that its entity names; `short` holds the queues with a
    non-empty eligible set.
    """

    __slots__ = ("_disks", "_members", "_owned", "_replicas", "_transient", "short", "storing")

    def __init__(self) -> None:
        """Nobody: the map of a single node."""
        self._members: dict[NodeId, Member] = {}
        self._disks: dict[str, ForgottenDisk] = {}
        self._owned: dict[NodeId, _Ids] = {}
        self._replicas: dict[NodeId, _Ids] = {}
        self._transient: dict[NodeId, _Ids] = {}
        self.short: _Ids = {}
        self.storing = 0
        """How many members are no witnesses."""

    # ---- members ----

    def __bool__(self) -> bool:
        """Whether this is a cluster."""
        return bool(self._members)

    def get(self, name: NodeId) -> Member | None:
        """The member of this name."""
        return self._members.get(name)

    def require(self, name: NodeId) -> Member:
        """The member of this name. Raises NotFound."""
        member = self._members.get(name)
        if member is None:
            raise NotFound(f"no member '{name}'")
        return member

    def all(self) -> tuple[Member, ...]:
        """All members, oldest first."""
        return tuple(self._members.values())

    def is_alive(self, name: NodeId) -> bool:
        """Whether there is such a member and it is alive."""
        member = self._members.get(name)
        return member is not None and member.alive

    def is_current(self, name: NodeId, incarnation: Incarnation) -> bool:
        """Whether the member is alive in just this incarnation."""
        member = self._members.get(name)
        return member is not None and member.alive and member.incarnation == incarnation

    def put(self, member: Member) -> None:
        """Add or replace a member."""
        known = self._members.get(member.name)
        assert known is None or known.witness == member.witness, "a member never becomes, or ceases to be, a witness"
        if known is None and not member.witness:
            self.storing += 1
        self._members[member.name] = member

    def retire(self, name: NodeId) -> None:
        """Take a member out, and remember its disk; the queues that name it are the caller's next care."""
        member = self._members.pop(name)
        if not member.witness:
            self.storing -= 1
        if member.disk_id:
            self.forbid(ForgottenDisk(member.disk_id, name, member.incarnation))

    def forbid(self, disk: ForgottenDisk) -> None:
        """Remember a disk that shall not return."""
        self._disks[disk.disk_id] = disk

    def forgotten(self, disk_id: str) -> ForgottenDisk | None:
        """What is remembered of this disk, if it must not return."""
        return self._disks.get(disk_id)

    def forgotten_disks(self) -> tuple[ForgottenDisk, ...]:
        """All disks that must not return, oldest first."""
        return tuple(self._disks.values())

    def last_incarnation(self, name: NodeId) -> Incarnation:
        """The highest that forgotten members of this name had; 0: nobody had the name."""
        return max((disk.incarnation for disk in self._disks.values() if disk.name == name), default=Incarnation(0))

    def save(self, snapshot: Snapshot) -> None:
        """Write this part of the map into a snapshot."""
        snapshot.members = list(self.all())
        snapshot.forgotten_disks = list(self.forgotten_disks())

    def restore(self, snapshot: Snapshot) -> None:
        """Read this part of the map from a snapshot."""
        for member in snapshot.members:
            self.put(member)
        for disk in snapshot.forgotten_disks:
            self.forbid(disk)

    # ---- queues by member ----

    def replaced(self, before: Queue | None, after: Queue | None) -> None:
        """A queue came (`before` is None), changed, or went (`after` is None)."""
        if before is not None and after is not None and not before.transient and not after.transient:
            self._changed(before, after)
            return
        if before is not None:
            self._list(before, listed=False)
        if after is not None:
            self._list(after, listed=True)

    def _changed(self, before: Queue, after: Queue) -> None:
        """The commonest change, of thousands at once: another owner, or copies in sync, and the same replicas."""
        assert before.queue_id == after.queue_id, "a queue takes the place of its former self"
        if before.owner != after.owner:
            if before.owner is not None:
                _mark(self._owned, (before.owner,), before.queue_id, listed=False)
            if after.owner is not None:
                _mark(self._owned, (after.owner,), after.queue_id, listed=True)
        if before.replicas != after.replicas:
            _mark(self._replicas, before.replicas, before.queue_id, listed=False)
            _mark(self._replicas, after.replicas, after.queue_id, listed=True)
        if after.eligible:
            self.short[after.queue_id] = None
        elif before.eligible:
            del self.short[before.queue_id]

    def owned(self, node: NodeId) -> int:
        """How many queues it owns, the transient ones not counted: what placement compares."""
        return len(self._owned.get(node, ()))

    def held(self, node: NodeId) -> int:
        """How many queues name it as a replica, the transient ones not counted: what placement compares."""
        return len(self._replicas.get(node, ()))

    def owned_ids(self, node: NodeId) -> list[QueueId]:
        """What it owns, ascending, with the transient ones."""
        return sorted([*self._owned.get(node, ()), *self._transient.get(node, ())])

    def held_ids(self, node: NodeId) -> list[QueueId]:
        """What it is a replica of, ascending, without the transient ones."""
        return sorted(self._replicas.get(node, ()))

    def transient_ids(self, node: NodeId) -> list[QueueId]:
        """The transient queues that it owns, ascending."""
        return sorted(self._transient.get(node, ()))

    def _list(self, queue: Queue, *, listed: bool) -> None:
        owners = () if queue.owner is None else (queue.owner,)
        if queue.transient:
            _mark(self._transient, owners, queue.queue_id, listed=listed)
            return
        _mark(self._owned, owners, queue.queue_id, listed=listed)
        _mark(self._replicas, queue.replicas, queue.queue_id, listed=listed)
        if queue.eligible:
            if listed:
                self.short[queue.queue_id] = None
            else:
                del self.short[queue.queue_id]


def _mark(index: dict[NodeId, _Ids], nodes: Iterable[NodeId], queue_id: QueueId, *, listed: bool) -> None:
    for node in nodes:
        if listed:
            index.setdefault(node, {})[queue_id] = None
        else:
            ids = index[node]
            del ids[queue_id]
            if not ids:
                del index[node]
