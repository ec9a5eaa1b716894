"""A queue's owner without a cluster: its disk, its copies and its proxies are played by the test.

stage = Stage(x_max_length=3)          one queue of node "a", epoch 1; members a, b and c
stage.attach("b", outstanding=...)     what a proxy says
stage.commit()                         a group is written and every copy has it
stage.said("b", Published)             what the owner told a node since the last look
stage.fail_over()                      another replica takes the queue over, epoch + 1
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from clusterbroker.broker.queues.effort import Effort
from clusterbroker.broker.queues.host import Loaded
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.queues.queue import Queue
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.remote.messages import (
    Ask,
    Attach,
    AttachedQueue,
    Cancel,
    Consume,
    ConsumerHead,
    Credit,
    Deliver,
    Publish,
    Range,
    Settle,
    Settlement,
)
from clusterbroker.broker.remote.owned_queues import OwnedQueues
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from clusterbroker.cluster.wiring.queue_settings import resolve
from clusterbroker.journal.layout import PERSISTENT, Location
from clusterbroker.journal.record import GroupWriter, Message, RecordBuffer, SegmentUse, read_message, read_records

QUEUE_ID = 7
EVERYBODY = ("a", "b", "c")


def message(body: bytes = b"body", **fields: Any) -> Message:
    values = {"flags": PERSISTENT, "priority": 0, "time_ms": 0, "ttl_ms": -1} | fields
    return Message(b"\x02ex\x03key", b"\x00\x00" + body, 2, *values.values())


def records(first: int, bodies: Iterable[bytes], **fields: Any) -> bytes:
    buffer = RecordBuffer()
    for number, body in enumerate(bodies, first):
        buffer.enqueue(QUEUE_ID, 1, number, message(body, **fields), 0, False)
    return buffer.take()


def head(consumer: int = 1, **fields: Any) -> ConsumerHead:
    values: dict[str, Any] = {
        "tag": "t", "priority": 0, "exclusive": False, "no_ack": False, "prefetch": 0, "upto": 100, "held": 0,
        "order": consumer,
    }  # fmt: skip
    return ConsumerHead(consumer, *(values | fields).values())


class Stage:
    """The owner, and what it says."""

    def __init__(
        self, *, transient: bool = False, attached: bool = True, auto_delete: bool = False, now_ms: int = 1_000_000,
        **arguments: Any,
    ) -> None:  # fmt: skip
        self.now_ms = now_ms
        self.name = "a"
        self.arguments = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
        self.entity = QueueEntity("/", "q", QUEUE_ID, not transient, auto_delete, None, self.arguments, "a")  # type: ignore[arg-type]
        self.transient = transient
        self.incarnations = dict.fromkeys(EVERYBODY, 1)
        self.gens = dict.fromkeys(EVERYBODY, 0)
        self.linked = dict.fromkeys(EVERYBODY, True)
        self.in_sync_names: Sequence[str] = EVERYBODY
        self.rooms: dict[str, int] = {}
        self.transfers: list[str] = []
        self.sent: list[tuple[str, Any, bytes]] = []
        self.ended: list[LocalQueue] = []
        self.dead: list[tuple[bytes, str]] = []
        self.buried: list[tuple[int, str, bytes, Ticket]] = []
        self.finds_targets = True
        self.wakes: list[int] = []
        self.epoch = 1
        self.index = 10
        self.segment = 1
        self.in_flight: int | None = None
        self.disk: dict[int, bytes] = {}
        self.history: list[tuple[bytes, int, int]] = []
        self.loads: list[tuple[list[Location], Loaded]] = []
        self.agenda: list[Any] = []
        self.effort = Effort()
        self.dead_lettering = False
        self.ring = self.new_ring()
        self.replica = self.new_ring(replica=True)
        self.begin(alive={} if attached else self.incarnations)

    # -- the owner's node (log.Host and OwnedQueueHost)

    def new_ring(self, replica: bool = False) -> Ring:
        journaled = not self.transient
        priorities = self.arguments.get("x-max-priority", 0)
        use = SegmentUse() if journaled else None
        ring = Ring(QUEUE_ID, journaled, priorities, use, self.agenda, None, replica=replica)
        ring.replicated = journaled
        return ring

    def begin(self, alive: dict[str, int], synced: bool = True) -> None:
        if self.ring.replicated:
            self.ring.begin_epoch(self.epoch)
        self.queue = Queue(self.entity, resolve(self.arguments, transient=self.transient), self.ring, self, self.now_ms)
        self.owned_queues = OwnedQueues(self)
        self.owned_queues.lease(True)
        self.owned_queues.members_changed(self.incarnations)
        self.owned = self.owned_queues.begin(self.queue, self.epoch, self.index, alive, synced)
        self.turn()

    def send(self, node: str, head: Any, payload: Iterable[Any] = ()) -> bool:
        if self.linked[node]:
            self.sent.append((node, head, b"".join(payload)))
        return self.linked[node]

    def room(self, node: str) -> int:
        return self.rooms.get(node, 1 << 20)

    def published(self, size: int) -> None:
        assert size > 0

    def in_sync(self, queue_id: int) -> Sequence[str]:
        return self.in_sync_names

    def transfer(self, queue_id: int, to: str) -> None:
        self.transfers.append(to)

    def dead_letter(self, queue: LocalQueue, dead: Message, reason: Any) -> None:
        self.dead.append((dead.body, reason))

    def dead_letter_once(self, queue: LocalQueue, dead: Message, reason: Any, number: int, ticket: Ticket) -> bool:
        if self.finds_targets:
            ticket.hold()
            self.buried.append((number, reason, dead.body, ticket))
        return self.finds_targets

    def soon(self, goes_on: Any) -> None:
        goes_on()

    def later(self, queue: LocalQueue) -> None:
        queue.ring.mark()

    def hurry(self, queue_id: int) -> None:
        """Its copies are in sync from the beginning."""

    def stumbled(self, queue: LocalQueue, error: Exception, seq: int = 0) -> None:
        raise error

    def load(self, queue: LocalQueue, locations: list[Location], loaded: Loaded) -> None:
        self.loads.append((locations, loaded))

    def write(self, queue: LocalQueue) -> None:
        pass

    def rest(self, queue: LocalQueue) -> None:
        pass  # a turn too many does no harm

    def wake(self, queue: LocalQueue, at_ms: int) -> None:
        self.wakes.append(at_ms)

    def end(self, queue: LocalQueue) -> None:
        self.ended.append(queue)

    def turn(self, later_ms: int = 0) -> None:
        self.now_ms += later_ms
        self.effort.renew()
        if later_ms:
            self.ring.mark()
        for _ in range(100):
            due, self.agenda[:] = self.agenda[:], []
            for _queue in due:
                self.queue.turn(self.now_ms)
            loads, self.loads = self.loads, []
            for places, loaded in loads:
                found = [read_message(self.disk[segment], at, QUEUE_ID, seq) for seq, segment, at, _ in places]
                loaded(places, found, places)
            self.owned_queues.turn(self.now_ms)
            if not self.owned_queues.touched and not self.agenda:
                return
        raise AssertionError("the owner never comes to rest")

    # -- its disk and its copies

    def write_group(self) -> None:
        assert self.in_flight is None, "one group at a time"
        writer = GroupWriter(self.segment, 0)
        start = writer.size
        upto = self.ring.write(writer)
        data = writer.span(start, writer.size)
        if self.ring.replicated:
            self.history.append((data, self.segment, start))
            self.replica.fold(data, self.segment, start)
        self.disk[self.segment] = bytes(start) + data
        self.segment += 1
        self.in_flight = upto

    def group_durable(self) -> None:
        assert self.in_flight is not None, "a group is under way"
        upto, self.in_flight = self.in_flight, None
        self.queue.committed(upto)
        self.turn()

    def commit(self) -> None:
        """Until nothing is left to write."""
        if self.in_flight is not None:
            self.group_durable()
        self.turn()
        for _ in range(20):
            if not self.ring.needs_write:
                return
            self.write_group()
            self.group_durable()
        raise AssertionError("there is always something to write")

    def fail_over(self, alive: dict[str, int] | None = None) -> None:
        """The owner's process dies; the replica becomes the owner."""
        self.owned_queues.end(QUEUE_ID)
        self.queue.end_epoch()
        self.agenda.clear()
        self.sent.clear()
        self.epoch += 1
        self.index += 1
        self.in_flight = None
        self.ring = self.replica
        self.ring.take_over(self.epoch)
        self.replica = self.new_ring(replica=True)
        for data, segment, start in self.history:
            self.replica.fold(data, segment, start)
        self.begin(self.incarnations if alive is None else alive)

    # -- what proxies say

    def receive(self, node: str, head: Any, payload: bytes = b"") -> None:
        self.owned_queues.received(node, head, memoryview(payload))
        self.turn()

    def attach(
        self, node: str, *, consumers: Sequence[ConsumerHead] = (), outstanding: Sequence[Range] = (),
        settlements: Sequence[Settlement] = (), next_number: int = 1, partial: bool = False, index: int | None = None,
        asking: Sequence[ConsumerHead] = (),
    ) -> int:  # fmt: skip
        """Returns the gen."""
        self.gens[node] += 1
        entry = AttachedQueue(
            QUEUE_ID, self.epoch, self.gens[node], tuple(consumers), tuple(outstanding), tuple(settlements),
            next_number, tuple(asking),
        )  # fmt: skip
        self.receive(
            node, Attach(self.incarnations[node], self.index if index is None else index, (entry,), partial)
        )  # fmt: skip
        return self.gens[node]

    def nothing(self, node: str, index: int | None = None) -> None:
        self.receive(node, Attach(self.incarnations[node], self.index if index is None else index, ()))

    def publish(self, node: str, first: int, *bodies: bytes, gen: int | None = None, **fields: Any) -> None:
        data = records(first, bodies, **({"time_ms": self.now_ms} | fields))
        gen = self.gens[node] if gen is None else gen
        self.receive(node, Publish(((QUEUE_ID, self.epoch, gen, first, len(bodies), len(data)),)), data)

    def consume(self, node: str, consumer: ConsumerHead) -> None:
        self.receive(node, Consume(QUEUE_ID, self.epoch, self.gens[node], consumer))

    def cancel(self, node: str, consumer: int) -> None:
        self.receive(node, Cancel(QUEUE_ID, self.epoch, self.gens[node], consumer))

    def credit(self, node: str, consumer: int, upto: int, held: int = 0) -> None:
        self.receive(node, Credit(((QUEUE_ID, self.gens[node], consumer, upto, held),)))

    def settle(self, node: str, id: int, outcome: int, *ranges: Range, count: int = 0) -> None:
        self.receive(node, Settle(QUEUE_ID, self.epoch, self.gens[node], (Settlement(id, outcome, ranges, count),)))

    def ask(self, node: str, request: int, what: int, **more: bool) -> None:
        self.receive(node, Ask(QUEUE_ID, self.epoch, self.gens[node], request, what, **more))

    def unlink(self, node: str) -> None:
        self.sent = [entry for entry in self.sent if entry[0] != node]
        self.owned_queues.unlinked(node)
        self.turn()

    def fail(self, node: str) -> None:
        self.owned_queues.members_changed({name: n for name, n in self.incarnations.items() if name != node})
        self.incarnations[node] += 1
        self.turn()

    # -- what they hear

    def said(self, node: str, kind: type | None = None) -> list[Any]:
        """The owner's words to a node, taken out."""
        mine = [head for to, head, _ in self.sent if to == node and (kind is None or isinstance(head, kind))]
        self.sent = [
            entry for entry in self.sent if entry[0] != node or not (kind is None or isinstance(entry[1], kind))
        ]  # fmt: skip
        return mine

    def delivered(self, node: str) -> list[tuple[int, int, bytes, bool]]:
        """(consumer, seq, body, redelivered) of deliveries to a node, taken out."""
        found = []
        for to, head, payload in self.sent:
            if to != node or not isinstance(head, Deliver):
                continue
            at = 0
            for _, _, gen, consumer, size in head.parts:
                assert gen == self.gens[node], "deliveries are of the present attachment"
                for seq, got, _, redelivered in read_records(payload[at : at + size]):
                    found.append((consumer, seq, got.body, redelivered))
                at += size
            assert at == len(payload), "parts and payload agree"
        self.said(node, Deliver)
        return found

    def bodies_at(self, node: str) -> list[bytes]:
        return [body for _, _, body, _ in self.delivered(node)]


def handed_out(count: int = 3, **arguments: object) -> Stage:
    """Messages 1 to count are at a consumer of "b"; "c" has a consumer that would take them."""
    stage = Stage(**arguments)
    stage.attach("b", consumers=[head()])
    stage.publish("b", 1, *(b"%d" % number for number in range(1, count + 1)))
    stage.commit()
    assert [entry[:2] + entry[3:] for entry in stage.delivered("b")] == [(1, n, False) for n in range(1, count + 1)]
    stage.attach("c", consumers=[head()])
    return stage
