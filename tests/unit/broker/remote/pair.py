"""The client side of a queue, and its owner played by the test.

    pair = Pair()
    pair.queue.publish(messages, ticket, 0)
    pair.turn()
    (publish,) = pair.heard(Publish)            what the owner hears, in order; each frame is encoded and decoded
    pair.say(Published(pair.id, pair.gen, 2))   what the owner answers

`pair.attach()` does what every attachment begins with. Channels are real ledgers and output buffers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from clusterbroker.broker.fronts.amqp091.delivery import Ledger
from clusterbroker.broker.fronts.amqp091.subscription import Subscription
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.remote.messages import AnyProxy, Attach, Attached, Consuming, Deliver, ProxyMessage
from clusterbroker.broker.remote.remote_queue import RemoteQueue
from clusterbroker.broker.remote.remote_queues import RemoteQueues
from clusterbroker.broker.wire.amqp091.codec import OutBuffer
from clusterbroker.cluster.ids import Epoch, NodeId, QueueId
from clusterbroker.cluster.link.frames import FrameReader, decoder, encode
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from clusterbroker.cluster.wiring.queue_settings import QueueSettings
from clusterbroker.journal.layout import PERSISTENT
from clusterbroker.journal.record import Message, RecordBuffer, read_records

HEADS = decoder(AnyProxy)
BASE = {"vhost": "/", "durable": True, "auto_delete": False, "exclusive_owner": None, "arguments": {}}


def entity(queue_id: int = 7, owner: str | None = "owner", epoch: int = 1, **more: Any) -> QueueEntity:
    return QueueEntity(
        name=f"q{queue_id}",
        queue_id=QueueId(queue_id),
        owner=None if owner is None else NodeId(owner),
        epoch=Epoch(epoch),
        **{**BASE, **more},
    )


def message(body: bytes = b"body") -> Message:
    return Message(b"\0\2q7", b"\x10\0\2" + body, 3, PERSISTENT)  # its only property: delivery mode 2


class Channel:
    """A holder of consumers: a ledger, an output buffer, and what it was told."""

    def __init__(self, prefetch: int = 0) -> None:
        self.out = OutBuffer(131072)
        self.ledger = Ledger(1, self.out)
        self.ledger.prefetch = prefetch
        self.told: list[str] = []
        self.wants = 0

    def cancelled(self, subscription: Subscription) -> None:
        self.told.append(subscription.tag)

    def want_send(self) -> None:
        self.wants += 1


class Pair:
    """A node with proxies, and what it says to others. It is linked to "owner" and "other"."""

    def __init__(self, *queue_ids: int, owner: str | None = "owner", **arguments: Any) -> None:
        self.name = "self"
        self.now_ms = 1000
        self.applied_index = 50
        self.agenda: list[RemoteQueue] = []
        self.frames: list[tuple[str, Any, bytes]] = []
        self.flow = 0
        self.links = {"owner", "other"}
        self.remote_queues = RemoteQueues(self, incarnation=3)
        self.settings = QueueSettings(**arguments)
        for node in ("owner", "other"):
            self.remote_queues.linked(node)
        for queue_id in queue_ids or (7,):
            self.add(entity(queue_id, owner))
        self.queue = self.remote_queues.queues[(queue_ids or (7,))[0]]
        self.turn()
        self.frames.clear()

    def add(self, new: QueueEntity) -> RemoteQueue:
        ring = Ring(new.queue_id, agenda=self.agenda, proxy=True)
        return self.remote_queues.add(new, self.settings, ring)

    # -- the host

    def send(self, node: str, head: ProxyMessage, payload: Iterable[Any] = ()) -> bool:
        if node not in self.links:
            return False
        for _, raw, data in FrameReader().feed(encode(head, self.applied_index, payload)):
            self.frames.append((node, HEADS.decode(raw), bytes(data)))
        return True

    def soon(self, goes_on: Any) -> None:
        goes_on()

    def flow_changed(self) -> None:
        self.flow += 1

    # -- the node

    def turn(self, later_ms: int = 0) -> None:
        self.now_ms += later_ms
        while True:
            while self.agenda:
                due = self.agenda[:]
                self.agenda.clear()
                for queue in due:
                    queue.turn(self.now_ms)
            self.remote_queues.turn(self.now_ms)
            if not self.agenda:
                return

    def cut(self, node: str = "owner") -> None:
        self.links.discard(node)
        self.remote_queues.unlinked(node)

    def link(self, node: str = "owner") -> None:
        self.links.add(node)
        self.remote_queues.linked(node)
        self.turn()

    # -- the owner

    @property
    def id(self) -> int:
        return int(self.queue.entity.queue_id)

    @property
    def gen(self) -> int:
        return self.queue.gen

    def all(self) -> list[tuple[str, Any, bytes]]:
        frames, self.frames = self.frames, []
        return frames

    def heard(self, *kinds: type) -> list[Any]:
        """The heads of these kinds since the last call; what else was said is forgotten."""
        return [head for _, head, _ in self.all() if not kinds or type(head) in kinds]

    def say(self, head: ProxyMessage, payload: bytes = b"", peer: str = "owner") -> None:
        self.remote_queues.received(peer, head, memoryview(payload))
        self.turn()

    def attach(self, accepted: int = 0, queue: RemoteQueue | None = None, peer: str = "owner") -> Any:
        """Answers the attachment that the queue has just asked for; returns what it said in it."""
        queue = queue or self.queue
        attaches = self.heard(Attach)
        found = [one for attach in attaches for one in attach.queues if one.queue_id == queue.entity.queue_id]
        assert found, f"no attachment of {queue} among {attaches}"
        assert found[-1].gen == queue.gen, "the newest attachment is in force"
        self.say(Attached(queue.entity.queue_id, queue.entity.epoch, queue.gen, accepted), peer=peer)
        return found[-1]

    def deliver(
        self, line: int, *seqs: int, body: bytes = b"body", redelivered: bool = False, gen: int | None = None,
        queue: RemoteQueue | None = None, count: int = 0,
    ) -> None:  # fmt: skip
        queue = queue or self.queue
        data = records(queue.entity.queue_id, *seqs, body=body, redelivered=redelivered, count=count)
        part = (queue.entity.queue_id, queue.entity.epoch, queue.gen if gen is None else gen, line, len(data))
        self.say(Deliver((part,)), data)

    # -- clients

    def consume(
        self,
        channel: Channel,
        tag: str = "c",
        queue: RemoteQueue | None = None,
        prefetch: int = 0,
        no_ack: bool = False,
    ) -> tuple[Subscription, int]:
        """An accepted consumer, and its number."""
        queue = queue or self.queue
        subscription = Subscription(
            channel, channel.ledger, queue, tag, no_ack=no_ack, exclusive=False, prefetch=prefetch, priority=0,
            arguments={},
        )  # fmt: skip
        answers: list[str] = []
        queue.subscribe(subscription, self.now_ms, answers.append)
        self.turn()
        if not queue.attached:
            self.attach(queue=queue)
        consumer = max(queue._lines)
        self.say(Consuming(queue.entity.queue_id, queue.gen, consumer))
        assert answers == [""]
        return subscription, consumer


def records(queue_id: int, *seqs: int, body: bytes = b"body", redelivered: bool = False, count: int = 0) -> bytes:
    buffer = RecordBuffer()
    for seq in seqs:
        buffer.enqueue(queue_id, 1, seq, message(body), count, redelivered)
    return buffer.take()


def numbers(payload: bytes) -> list[int]:
    return [record[0] for record in read_records(payload)]


class Receipt(Ticket):
    """A ticket that its publisher has let go of, and whether it is answered."""

    def __init__(self) -> None:
        self.answers = 0
        super().__init__(1, 1, self._answered)

    def _answered(self, _: Ticket) -> None:
        self.answers += 1

    @property
    def answered(self) -> str:
        if not self.answers:
            return ""
        return "nack" if self.rejected else "ack"
