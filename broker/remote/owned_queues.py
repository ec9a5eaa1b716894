"""All queues that this node owns, towards the remote queues of all nodes: frames in, frames out.

A frame is handed to the `OwnedQueue` of its queue. One for a queue that this node does not own (any more) is dropped:
its sender learns the owner from the wiring, and attaches there. Deliveries leave once per turn, one frame per node
with the deliveries of all queues for it, cut at FRAME_BYTES. A node without room (`OwnedQueueHost.room`) keeps its
deliveries waiting in their consumers' buffers, which bounds them, and `drained` continues.

The node calls, in the order of the wiring: `begin` at a declaration and when it becomes owner, `end` when it is not
any more, `members_changed`; and `synced`, `freeze`, `thaw`, `lease` as they happen. After `received` and after every
turn of its queues it calls `turn`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from clusterbroker.broker.content.numbers import are_rising
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.queues.producers import forget_proxies, is_dead_letter
from clusterbroker.broker.remote.attachment import Attachment
from clusterbroker.broker.remote.host import OwnedQueueHost
from clusterbroker.broker.remote.messages import (
    Ask,
    Attach,
    AttachedQueue,
    Cancel,
    Commit,
    Consume,
    Credit,
    Deliver,
    NamedPublish,
    Publish,
    Settle,
    TaggedPublish,
)
from clusterbroker.broker.remote.owned_queue import OwnedQueue
from clusterbroker.broker.remote.parts import check_parts
from clusterbroker.journal.record import DamagedRecord, verify_records
from clusterbroker.replication.errors import BadMessage

EPOCH_MAX: Final = 2**32 - 1
FRAME_BYTES: Final = 1 << 20
BAD: Final = (BadMessage, DamagedRecord)
"""What no correct member says: it costs the link, and no queue."""
Payload = bytes | bytearray | memoryview
Behind = Callable[[str, int, Callable[[], None], bool], bool]


class Found(NamedTuple):
    """The queue of a frame, and its sender's attachment to it."""

    owned: OwnedQueue
    attachment: Attachment


class OwnedQueues:
    """The owner's side of one node."""

    def __init__(self, host: OwnedQueueHost, behind: Behind = lambda _peer, _queue_id, _what, _sooner: False) -> None:
        """`behind(peer, queue_id, what, soon)`: if this node has not carried out yet what the wiring said of a queue,
        `what` is called after that, unless the peer's link is another one then; else False."""
        self.host = host
        self._behind = behind
        self.queues: dict[int, OwnedQueue] = {}
        self._alive: dict[str, int] = {}
        self._leased = False
        self._touched: dict[OwnedQueue, None] = {}
        self._stalled: dict[OwnedQueue, None] = {}
        self._handlers: dict[type, Callable[[str, Any, memoryview], None]] = {
            Attach: self._attach,
            Publish: self._publish,
            NamedPublish: self._publish_named,
            Commit: self._commit,
            TaggedPublish: self._publish_tagged,
            Consume: self._consume,
            Cancel: self._cancel,
            Credit: self._credit,
            Settle: self._settle,
            Ask: self._ask,
        }

    @property
    def handles(self) -> Sequence[type]:
        """The heads that `received` takes."""
        return tuple(self._handlers)

    # -- what the node tells --------------------------------------------------------------------------------------

    def begin(
        self, queue: LocalQueue, epoch: int, granted_index: int, alive: Mapping[str, int], synced: bool = True
    ) -> OwnedQueue:
        """This node owns the queue at this epoch; its ring has been taken over already.

        alive          members (with incarnations) that may hold deliveries of an earlier epoch: all alive ones at a
                       take-over, none at a declaration
        granted_index  wiring index at which the epoch began: an Attach that knows less says nothing about it
        synced         whether the in-sync replicas have all that this owner has; otherwise `synced` is called later
        """
        assert queue.ring.epoch == epoch, "the ring has begun the epoch"
        queue_id = queue.entity.queue_id
        self.end(queue_id)
        if queue.ring.replicated:
            queue.begin_epoch(self.host.now_ms)
            if alive:
                forget_proxies(queue.ring, alive)
        owned = OwnedQueue(queue, self.host, self._touch, granted_index, alive, synced, self._leased)
        self.queues[queue_id] = owned
        return owned

    def end(self, queue_id: int) -> None:
        """The epoch is over, or the queue is deleted. The queue itself is stepped down or dropped by its node."""
        owned = self.queues.pop(queue_id, None)
        if owned is not None:
            owned.end()
            self._touched.pop(owned, None)
            self._stalled.pop(owned, None)

    def synced(self, queue_id: int) -> None:
        """The first sync of the epoch is complete."""
        if queue_id in self.queues:
            self.queues[queue_id].synced()

    def freeze(self, queue_id: int, until_ms: int) -> None:
        """A hand-over begins; at this time it has failed, unless `end` comes before."""
        self.queues[queue_id].freeze(until_ms)

    def resumed(self, queue_id: int) -> None:
        """The queue was set aside, and tries again."""
        if queue_id in self.queues:
            self.queues[queue_id].resumed()

    def thaw(self, queue_id: int) -> None:
        """The hand-over or deletion will not be."""
        if queue_id in self.queues:
            self.queues[queue_id].thaw()

    def lease(self, leased: bool) -> None:
        """Without a lease nothing is handed out."""
        self._leased = leased
        for owned in self.queues.values():
            owned.lease(leased)

    def members_changed(self, alive: Mapping[str, int]) -> None:
        """The alive members with their incarnations, this node included."""
        gone = [(node, start) for node, start in self._alive.items() if alive.get(node) != start]
        self._alive = dict(alive)
        for node, start in gone:
            self.member_failed(node, start)

    def member_failed(self, node: str, incarnation: int) -> None:
        if self._alive.get(node) == incarnation:
            del self._alive[node]
        for owned in self.queues.values():
            self._work(owned, owned.failed, node, incarnation)

    def unlinked(self, node: str) -> None:
        """The link to a node is gone, and all frames that were on it."""
        for owned in self.queues.values():
            owned.unlinked(node)

    def drained(self) -> None:
        """There is room for deliveries again, to one of the nodes that had none."""
        self._touched.update(self._stalled)
        self._stalled.clear()

    def _work(self, owned: OwnedQueue, what: Callable[..., None], *given: Any) -> None:
        """Lets a queue carry out what it was told; what raises is its own affair, but for what no member says."""
        try:
            what(*given)
        except BAD:
            raise
        except Exception as error:
            owned.suspect = True
            self.host.stumbled(owned.queue, error)

    def _touch(self, owned: OwnedQueue) -> None:
        self._touched[owned] = None

    # -- frames in ------------------------------------------------------------------------------------------------

    def received(self, peer: str, message: Any, payload: memoryview) -> None:
        """A frame from a proxy, this node's own included; this node has applied the index that came with it."""
        self._handlers[type(message)](peer, message, payload)

    def _attach(self, peer: str, message: Attach, _: memoryview) -> None:
        if self._alive.get(peer) != message.incarnation:
            return  # of a start that is over
        listed: dict[int, None] = dict.fromkeys(message.before)
        for entry in message.queues:
            listed[entry.queue_id] = None
            if not self._behind(
                peer, entry.queue_id, partial(self._attach_queue, peer, message.incarnation, entry), True
            ):
                self._attach_queue(peer, message.incarnation, entry)
        for queue_id in message.silent:
            if not self._behind(peer, queue_id, partial(self._silent, peer, message, queue_id), False):
                self._silent(peer, message, queue_id)
        if message.partial:
            return
        for queue_id, owned in self.queues.items():
            if queue_id not in listed and owned.granted_index <= message.index:
                self._work(owned, owned.nothing, peer)

    def _attach_queue(self, peer: str, incarnation: int, entry: AttachedQueue) -> None:
        owned = self.queues.get(entry.queue_id)
        if owned is not None and owned.epoch == entry.epoch and self._alive.get(peer) == incarnation:
            self._work(owned, owned.attach, peer, incarnation, entry)
            self.host.hurry(entry.queue_id)

    def _silent(self, peer: str, message: Attach, queue_id: int) -> None:
        owned = self.queues.get(queue_id)
        lives = self._alive.get(peer) == message.incarnation
        if owned is not None and owned.granted_index <= message.index and lives:
            self._work(owned, owned.nothing, peer)

    def _found(self, peer: str, queue_id: int, epoch: int | None, gen: int, asks: bool = False) -> Found | None:
        """Whom a frame concerns; None: nobody, it is dropped. With epoch None the gen alone tells its time, for a proxy
        never uses one again. Questions are heard by a queue that looks at nothing else."""
        owned = self.queues.get(queue_id)
        if owned is None or epoch not in (None, owned.epoch) or (owned.suspect and not asks):
            return None
        attachment = owned.attachment(peer, gen)
        return None if attachment is None else Found(owned, attachment)

    def _publish(self, peer: str, message: Publish, payload: memoryview) -> None:
        check_parts(message.parts, payload)
        if peer != self.host.name:
            at = 0
            for queue_id, _, _, _, count, size in message.parts:
                if (held := verify_records(payload[at : at + size], queue_id, EPOCH_MAX, True)) != count or not count:
                    raise BadMessage(f"{count} messages for queue {queue_id} are {held} records")
                at += size
        at = 0
        for queue_id, epoch, gen, first, count, size in message.parts:
            records = payload[at : at + size]
            at += size
            if (found := self._found(peer, queue_id, epoch, gen)) is not None:
                self._work(found.owned, found.owned.intake.publish, found.attachment, first, count, records)

    def _publish_named(self, peer: str, message: NamedPublish, payload: memoryview) -> None:
        count = 1 + len(message.more)
        if (held := verify_records(payload, message.queue_id, EPOCH_MAX, True)) != count:
            raise BadMessage(f"{count} numbered messages for queue {message.queue_id} are {held} records")
        if message.more and not (is_dead_letter(message.producer) or are_rising((message.sequence, *message.more))):
            raise BadMessage(f"numbers of a client's messages for queue {message.queue_id} do not rise")
        if (found := self._found(peer, message.queue_id, message.epoch, message.gen)) is not None:
            self._work(found.owned, found.owned.intake.publish_named, found.attachment, message, payload)

    def _commit(self, peer: str, message: Commit, payload: memoryview) -> None:
        if (held := verify_records(payload, message.queue_id, EPOCH_MAX, True)) != message.count:
            raise BadMessage(f"a commit of {message.count} messages to queue {message.queue_id} holds {held} records")
        last = message.first + message.count - 1
        if not all(message.first <= number <= last for number, _, _ in message.named):
            raise BadMessage(f"a commit of publishes {message.first} to {last} names another one")
        if (found := self._found(peer, message.queue_id, message.epoch, message.gen)) is not None:
            self._work(found.owned, found.owned.intake.commit, found.attachment, message, payload)

    def _publish_tagged(self, peer: str, message: TaggedPublish, payload: memoryview) -> None:
        held = verify_records(payload, message.queue_id, EPOCH_MAX, True)
        if held != len(message.tags):
            raise BadMessage(f"{len(message.tags)} deliveries for queue {message.queue_id} are {held} records")
        if (found := self._found(peer, message.queue_id, message.epoch, message.gen)) is not None:
            self._work(found.owned, found.owned.intake.publish_tagged, found.attachment, message, payload)

    def _consume(self, peer: str, message: Consume, _: memoryview) -> None:
        if (found := self._found(peer, message.queue_id, message.epoch, message.gen)) is not None:
            self._work(found.owned, found.owned.consume, found.attachment, message)

    def _cancel(self, peer: str, message: Cancel, _: memoryview) -> None:
        if (found := self._found(peer, message.queue_id, message.epoch, message.gen)) is not None:
            self._work(found.owned, found.owned.cancel, found.attachment, message.consumer)

    def _credit(self, peer: str, message: Credit, _: memoryview) -> None:
        for queue_id, gen, consumer, upto, held in message.grants:
            if (found := self._found(peer, queue_id, None, gen)) is not None:
                self._work(found.owned, found.owned.credit, found.attachment, consumer, upto, held)

    def _settle(self, peer: str, message: Settle, _: memoryview) -> None:
        if (found := self._found(peer, message.queue_id, message.epoch, message.gen)) is not None:
            self._work(found.owned, found.owned.settling.settle, found.attachment, message.settlements)

    def _ask(self, peer: str, message: Ask, _: memoryview) -> None:
        if (found := self._found(peer, message.queue_id, message.epoch, message.gen, True)) is not None:
            self._work(found.owned, found.owned.asking.ask, found.attachment, message)

    # -- the turn -------------------------------------------------------------------------------------------------

    @property
    def touched(self) -> bool:
        """Something happened to a queue, and `turn` has not looked at it."""
        return bool(self._touched)

    def turn(self, now_ms: int) -> None:
        """Answers and delivers for all queues to which something happened."""
        if not self._touched:
            return
        touched, self._touched = self._touched, {}
        for owned in touched:
            if self.queues.get(owned.queue_id) is owned:
                self._work(owned, owned.turn, now_ms)
        self._deliver(touched)

    def _deliver(self, touched: Iterable[OwnedQueue]) -> None:
        own = self.host.name  # its parts go apart: parts of one frame to the node itself would be copied together
        frames: dict[str, Frame] = {}
        for owned in touched:
            waiting, owned.outgoing = owned.outgoing, {}
            for member in waiting:
                if not member.attachment.attached or not member.due:
                    continue
                frame = frames.get(member.node)
                if frame is None:
                    frame = frames[member.node] = Frame(self.host.room(member.node))
                if frame.room <= 0:
                    owned.outgoing[member] = None
                    self._stalled[owned] = None
                    continue
                data = member.take()
                if frame.parts and frame.size + len(data) > (0 if member.node == own else FRAME_BYTES):
                    self.host.send(member.node, Deliver(tuple(frame.parts)), frame.payload)
                    frame.cut()
                frame.add((owned.queue_id, owned.epoch, member.attachment.gen, member.number, len(data)), data)
                if owned.queue.ring.ready:
                    owned.queue.ring.mark()  # its buffer has room again
        for node, frame in frames.items():
            if frame.parts:
                self.host.send(node, Deliver(tuple(frame.parts)), frame.payload)


class Frame:
    """Deliveries to one node."""

    __slots__ = ("parts", "payload", "room", "size")

    def __init__(self, room: int) -> None:
        self.room = room
        self.cut()

    def cut(self) -> None:
        self.parts: list[tuple[int, int, int, int, int]] = []
        self.payload: list[bytes] = []
        self.size = 0

    def add(self, part: tuple[int, int, int, int, int], data: bytes) -> None:
        self.parts.append(part)
        self.payload.append(data)
        self.size += len(data)
        self.room -= len(data)
