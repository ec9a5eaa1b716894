"""Damage of single records: a matter of their queue, and of nothing else in the node.

    another living member may    this copy is given up (GiveUpCopy): the queue goes to that member if this node owns
    have all of the queue        it, and the copy begins anew, empty, and is synced
    nobody else, and this        the message is *held back*: unacknowledged, at no consumer and no node; everything else
    node owns it                 is served. An operator deletes it, or others return and the first row is tried
    nobody else, and it is       only a report is possible; tried again
    a copy

The wiring decides the row when the command is applied, so two members with damage cannot give up each other's last
copy. Each queue with damage here is an alert, `message.damaged`. It ends when the copy was made anew, when the last
held-back message has left, and with the queue or this node's copy of it; not with another member's ownership: the
damage is the disk's. Only this process knows the held-back messages: after a restart they are found again when they
are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from clusterbroker.broker.streams.stream import Stream
from clusterbroker.cluster.errors import queue_text
from clusterbroker.cluster.ids import Incarnation, NodeId, QueueId
from clusterbroker.cluster.wiring.commands import GiveUpCopy
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from clusterbroker.cluster.wiring.map import Applied

if TYPE_CHECKING:
    from clusterbroker.broker.node.ports import NodeCore

DAMAGED: Final = "message.damaged"
FOLDED: Final = "queue.read_from_log"
AGAIN_MS: Final = 5_000
"""So often it is tried whether somebody else has the queue by now."""
SEQS_SHOWN: Final = 10


class Hurt(NamedTuple):
    """What a start found wrong with single queues; the rest of the journal is whole."""

    damaged: Mapping[int, Mapping[int, str]]
    """Per queue, seq to what is wrong; 0: with no single message."""
    folded: Mapping[int, str]
    """Queues that were read from the log, for the index was wrong about them."""

    @property
    def queue_ids(self) -> tuple[QueueId, ...]:
        return tuple(QueueId(queue_id) for queue_id in sorted({*self.damaged, *self.folded}))


class Damages:
    """Of one node."""

    def __init__(self, node: NodeCore) -> None:
        self._node = node
        self._found: dict[int, dict[int, str]] = {}  # per queue, seq to what is wrong; 0: it is not known which
        self._asking: dict[int, list[Callable[[], None]]] = {}  # queues whose copy this node wants to give up
        self._again_ms = 0
        self._folded: dict[int, None] = {}
        self._subjects: dict[int, str] = {}  # of the queues that have alerts: a deleted one has no name any more
        self._begun_anew: set[int] = set()  # since the start

    def found(self, queue_id: int, seqs: Iterable[int], what: str, then: Callable[[], None] = lambda: None) -> None:
        """Records of these messages are damaged, or something of the queue whose seq is not known. `then` is called
        when they are held back, and not when the copy is given up: who wanted them is gone with it."""
        known = self._found.setdefault(queue_id, {})
        for seq in seqs:
            known[seq] = what
        if not known:
            known[0] = what
        self._treat(queue_id, then)

    def found_at_start(self, hurt: Hurt) -> None:
        """A member calls this when it has registered: copies of which others have all were begun anew with that."""
        for queue_id, what in hurt.folded.items():
            if self._holds(queue_id):
                self._folded[queue_id] = None
                self._node.alerts.set(
                    FOLDED,
                    self._subject(queue_id),
                    f"the index of its messages was damaged ({what}), so they were read from the log, and a "
                    "stream's from its files: what was acknowledged may come once more, marked as redelivered; look at "
                    "the disk",
                )
        for queue_id, seqs in hurt.damaged.items():
            if self._holds(queue_id):
                for seq, what in seqs.items():
                    self.found(queue_id, (seq,) if seq else (), what)

    def _holds(self, queue_id: int) -> bool:
        """Whether what the start has read of the queue is still what this node has of it."""
        if self._node.map.queue_by_id(QueueId(queue_id)) is None or queue_id in self._begun_anew:
            return False
        role = self._node.role
        return queue_id in self._node.queues or (role is not None and queue_id in role.copying.replicas)

    def held_back(self, queue_id: int) -> tuple[int, ...]:
        """The seqs of what no consumer gets, ascending."""
        if not self._found or queue_id not in self._node.queues:
            return ()
        return tuple(sorted(seq for seq in self._found.get(queue_id, ()) if seq))

    def left(self, queue_id: int, seq: int) -> None:
        """An operator has deleted what was held back."""
        known = self._found.get(queue_id, {})
        known.pop(seq, None)
        if self._node.role is not None:
            self._node.role.copying.begin_syncs_anew(queue_id)  # one may wait for that very message
        if known:
            self._set_alert(queue_id)
        else:
            self.ended(queue_id)

    def rebuilt(self, queue: QueueEntity) -> None:
        """This node's copy begins anew."""
        self._asking.pop(queue.queue_id, None)
        self._begun_anew.add(queue.queue_id)
        self.ended(queue.queue_id)

    def ended(self, queue_id: int) -> None:
        """The queue ended, or this node has nothing of it any more."""
        if queue_id in self._folded:
            del self._folded[queue_id]
            self._node.alerts.clear(FOLDED, self._subject(queue_id))
        if self._found.pop(queue_id, None) is not None:
            self._node.alerts.clear(DAMAGED, self._subject(queue_id))
        self._subjects.pop(queue_id, None)

    def stepped_down(self, queue_id: int) -> None:
        """Another node owns the queue, and this one has its copy with all that is damaged in it."""
        self._set_alert(queue_id)
        self._again_ms = 0

    def tick(self, now_ms: int) -> None:
        """To be called from time to time."""
        if self._found and now_ms - self._again_ms >= AGAIN_MS:
            self._again_ms = now_ms
            for queue_id in tuple(self._found):
                self._treat(queue_id, lambda: None)

    # -- which way

    def _treat(self, queue_id: int, then: Callable[[], None]) -> None:
        waiting = self._asking.get(queue_id)
        if waiting is not None:
            waiting.append(then)
            return
        entity = self._node.map.queue_by_id(QueueId(queue_id))
        if entity is None or not self._others(entity):
            self._hold(queue_id)
            then()
            return
        self._asking[queue_id] = [then]
        options = self._node.options
        command = GiveUpCopy(
            node=NodeId(options.name), incarnation=Incarnation(options.incarnation), queue_id=entity.queue_id,
            epoch=entity.epoch, damaged=True,
        )  # fmt: skip
        self._node.propose(command, lambda applied: self._answered(command, applied))

    def _others(self, entity: QueueEntity) -> bool:
        """Whether somebody else who is alive may have all of it."""
        map_, me = self._node.map, self._node.options.name
        members = (map_.member(name) for name in (*entity.in_sync, *entity.eligible) if name != me)
        return not entity.transient and any(member is not None and member.alive for member in members)

    def _answered(self, command: GiveUpCopy, applied: Applied) -> None:
        queue_id = command.queue_id
        waiting = self._asking.pop(queue_id, [])
        if applied.error is None or queue_id not in self._found:
            return
        entity = self._node.map.queue_by_id(queue_id)
        if entity is not None and entity.epoch != command.epoch:  # that was refused for the epoch alone
            for then in waiting:
                self._treat(queue_id, then)
            return
        self._hold(queue_id)
        for then in waiting:
            then()

    def _hold(self, queue_id: int) -> None:
        queue = self._node.queues.get(queue_id)
        if queue is not None and not queue.deleted:
            for seq in self._found.get(queue_id, ()):
                queue.ring.set_aside(seq)  # what is not ready is a consumer's, or dies, and its content is not wanted
        self._set_alert(queue_id)

    # -- for operators

    def _subject(self, queue_id: int) -> str:
        entity = self._node.map.queue_by_id(QueueId(queue_id))
        if queue_id not in self._subjects and entity is not None:
            which = "staged rows of " if entity.staging else ""
            self._subjects[queue_id] = f"{which}{queue_text(entity.vhost, entity.name)}"
        return self._subjects.get(queue_id, f"queue {queue_id}")

    def _advice(self, queue_id: int) -> str:
        """What is served meanwhile, and what ends it."""
        entity = self._node.queues[queue_id].entity
        if isinstance(self._node.queues[queue_id], Stream):
            return "readers wait there. Let them begin behind it (x-stream-offset), or delete the stream"
        if entity.staging:
            return (
                "those behind it wait. Delete it with clusterbroker queues delete-messages --staged NAME --seq NUMBER"
            )
        return "everything else is served. Delete them with clusterbroker queues delete-messages NAME --seq NUMBER"

    def _set_alert(self, queue_id: int) -> None:
        known = self._found.get(queue_id)
        if not known:
            return
        what = next(iter(known.values()))
        seqs = sorted(seq for seq in known if seq)
        if not seqs and self._node.role is None:
            text = f"something of it cannot be read from the disk ({what}); everything else is served: look at the disk"
        elif not seqs or queue_id not in self._node.queues:
            text = f"the copy here is damaged ({what}), and no other member that is here has all of the queue"
        else:
            some = ", ".join(map(str, seqs[:SEQS_SHOWN])) + (" and more" if len(seqs) > SEQS_SHOWN else "")
            text = (
                f"{len(seqs)} messages cannot be read from the disk and are held back, seq {some} ({what}); "
                f"{self._advice(queue_id)}, and look at the disk"
            )
        self._node.alerts.set(DAMAGED, self._subject(queue_id), text)
