"""All queues of all vhosts: by id, by the member and by the connection that owns them, and which were deleted.

Each topology keeps the queues of its vhost by name, and puts each that comes, changes or ends into the index.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from clusterbroker.cluster.ids import NodeId, QueueId

from .entities import Queue
from .members import Members
from .snapshot import Snapshot

DELETED_KEPT: Final = 1 << 16
"""So many deleted queues are remembered, for journals that have not heard of it."""

QUEUES_AT_ONCE: Final = 1000
"""So many queues of a connection end with one command: the loops of all nodes would stand still for all that a single
client may have, some 30 us for each."""


class QueueIndex:
    """The queues of all vhosts, those that hold staged rows with them.

    Invariant: `by_id` holds exactly the queues of all topologies, `_exclusive` those of them that a connection owns,
    and `Members` lists each of them under the members that it names.
    """

    __slots__ = ("_deleted", "_exclusive", "_members", "by_id")

    def __init__(self, members: Members) -> None:
        """An index without queues; `members` keeps the part of it that goes by member."""
        self._members = members
        self.by_id: dict[QueueId, Queue] = {}
        self._deleted: dict[QueueId, None] = {}  # oldest first
        self._exclusive: dict[str, dict[QueueId, Queue]] = {}

    # ---- changes ----

    def put(self, before: Queue | None, queue: Queue) -> None:
        """A queue came (`before` is None), or changed."""
        self.by_id[queue.queue_id] = queue
        self._members.replaced(before, queue)
        if queue.exclusive_owner is not None:
            self._exclusive.setdefault(queue.exclusive_owner, {})[queue.queue_id] = queue

    def remove(self, queue: Queue) -> None:
        """A queue ended."""
        del self.by_id[queue.queue_id]
        self._members.replaced(queue, None)
        if not queue.transient:
            self._deleted[queue.queue_id] = None
            if len(self._deleted) > DELETED_KEPT:
                del self._deleted[next(iter(self._deleted))]
        if queue.exclusive_owner is not None:
            owned = self._exclusive[queue.exclusive_owner]
            del owned[queue.queue_id]
            if not owned:
                del self._exclusive[queue.exclusive_owner]

    # ---- questions ----

    def was_deleted(self, queue_id: QueueId) -> bool:
        """Whether this id is of the last DELETED_KEPT queues that were deleted, transient ones not counted. Of an id
        that was neither deleted nor is in use nothing is known: a journal that has messages of it keeps them."""
        return queue_id in self._deleted

    def lasting(self) -> tuple[Queue, ...]:
        """All queues that a restart does not end, those that hold staged rows with them, by queue_id."""
        lasting = (queue for queue in self.by_id.values() if not queue.transient)
        return tuple(sorted(lasting, key=lambda queue: queue.queue_id))

    def exclusive_to(self, connection: str) -> tuple[Queue, ...]:
        """The queues that are exclusive to a connection, oldest first."""
        owned = self._exclusive.get(connection, {})
        return tuple(owned[queue_id] for queue_id in sorted(owned))

    def ending_with(self, connection: str) -> tuple[Queue, ...]:
        """Those of them that one RemoveConnection ends."""
        return self.exclusive_to(connection)[:QUEUES_AT_ONCE]

    def owned_by(self, node: NodeId) -> Iterator[Queue]:
        """All queues that a node owns, transient ones too, in ascending queue_id; the map may change meanwhile."""
        return self._living(self._members.owned_ids(node))

    def held_by(self, node: NodeId) -> Iterator[Queue]:
        """All queues that a node is a replica of (transient ones have none), as `owned_by`."""
        return self._living(self._members.held_ids(node))

    def transient_of(self, node: NodeId) -> Iterator[Queue]:
        """All transient queues that a node owns, as `owned_by`."""
        return self._living(self._members.transient_ids(node))

    def _living(self, ids: Iterable[QueueId]) -> Iterator[Queue]:
        for queue_id in ids:
            queue = self.by_id.get(queue_id)
            if queue is not None:
                yield queue

    # ---- snapshots; the queues themselves are saved with their vhosts ----

    def save(self, snapshot: Snapshot) -> None:
        """Write this part of the map into a snapshot."""
        snapshot.deleted_queues = list(self._deleted)

    def restore(self, snapshot: Snapshot) -> None:
        """Read this part of the map from a snapshot."""
        self._deleted = dict.fromkeys(snapshot.deleted_queues)
