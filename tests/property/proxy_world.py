"""Three nodes with clients, one queue, its owner, and everything between them that may break; by seed.

The owner's side is the real one with its disk and copies played (`owner_support.Stage`), the client's side is real down
to ledgers and output buffers. Frames between them are queued per direction; a cut loses what is under way, a failover
loses the owner and leaves its copy, wiring is heard late, and whoever has not heard it waits with the frame.

What is checked, always:

    once        a body is acknowledged by one client only, and nobody gets it afterwards
    alone       no message is in the hands of two clients at a time
    flagged     who gets a message first gets it without the flag, whoever gets it later gets it with the flag
    kept        at the end every body was confirmed and acknowledged
    in order    what one consumer gets of one publisher for the first time
    rest        at the end nothing is outstanding, unsettled or unconfirmed anywhere
"""

from __future__ import annotations

import random
import struct
from collections import deque
from typing import Any

import msgspec

from clusterbroker.broker.fronts.amqp091.delivery import Ledger
from clusterbroker.broker.fronts.amqp091.subscription import Subscription
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.remote.remote_queues import RemoteQueues
from clusterbroker.broker.wire.amqp091.codec import OutBuffer
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from tests.unit.broker.remote.owner_support import EVERYBODY, QUEUE_ID, Stage, message


class Client:
    """One channel with perhaps one consumer, and the messages in its hands: delivery tag -> body."""

    def __init__(self, node: Node, number: int, prefetch: int, shared_limit: int) -> None:
        self.node = node
        self.name = f"{node.name}{number}"
        self.out = OutBuffer(131072)
        self.ledger = Ledger(1, self.out)
        self.ledger.prefetch = shared_limit
        self.prefetch = prefetch
        self.hands: dict[int, bytes] = {}
        self.subscription: Subscription | None = None
        self.published = 0

    def cancelled(self, _: Subscription) -> None:
        raise AssertionError("nobody ends a consumer here")

    def want_send(self) -> None:
        pass

    def consume(self) -> None:
        if self.subscription is None:
            queue = self.node.queue
            subscription = self.subscription = Subscription(
                self, self.ledger, queue, self.name, no_ack=False, exclusive=False, prefetch=self.prefetch, priority=0,
                arguments={},
            )  # fmt: skip
            queue.subscribe(subscription, self.node.now_ms, self._consuming)

    def _consuming(self, refused: str) -> None:
        assert not refused

    def cancel(self) -> None:
        if self.subscription is not None:
            self.node.queue.unsubscribe(self.subscription, 0)
            self.subscription = None

    def close(self) -> None:
        """The channel ends; what it held returns."""
        self.cancel()
        self.read()
        for _, _, seq in self.ledger.drain():
            self.node.queue.requeue(seq, True)
        self.hands.clear()

    def read(self) -> None:
        """Takes deliveries out of the socket."""
        data = bytes(self.out.take())
        at, redelivered, tag = 0, False, 0
        while at < len(data):
            kind, _, size = struct.unpack_from(">BHI", data, at)
            payload = data[at + 7 : at + 7 + size]
            at += size + 8
            if kind == 1:
                tag_length = payload[4]
                tag, redelivered = struct.unpack_from(">Q?", payload, 5 + tag_length)
            elif kind == 3:
                self.node.world.handed(self, payload, redelivered)
                self.hands[tag] = payload

    def ack(self, rng: random.Random) -> None:
        self.read()
        if self.hands:
            tag = rng.choice(sorted(self.hands))
            assert not self.ledger.ack([tag * 2])
            self.node.world.acknowledged(self, self.hands.pop(tag))

    def nack(self, rng: random.Random) -> None:
        self.read()
        if self.hands:
            tag = rng.choice(sorted(self.hands))
            ((_, _, seq),) = self.ledger.collect(tag, False) or []
            self.hands.pop(tag)
            self.node.queue.requeue(seq, rng.random() < 0.5)

    def publish(self, count: int) -> None:
        bodies = []
        for _ in range(count):
            self.published += 1
            bodies.append(f"{self.name}.{self.node.incarnation}.{self.published}".encode())
        world = self.node.world
        world.published.update(dict.fromkeys(bodies))
        ticket = Ticket(1, count, lambda ticket: None if ticket.rejected else world.confirmed(bodies))
        self.node.queue.publish([message(body) for body in bodies], ticket, 0)
        ticket.pass_()


class Node:
    """A node's proxies, and its two ways to the owner."""

    def __init__(self, world: World, name: str, rng: random.Random) -> None:
        self.world = world
        self.name = name
        self.incarnation = 0
        self.to_owner: deque[tuple[Any, bytes]] = deque()
        self.from_owner: deque[tuple[int, Any, bytes]] = deque()
        self.news: deque[tuple[int, QueueEntity]] = deque()  # wiring that it has not applied
        self.begin()
        limits = [(rng.choice((0, 1, 5)), rng.choice((0, 0, 2))) for _ in range(2)]
        self.clients = [Client(self, number, *limit) for number, limit in enumerate(limits)]

    def begin(self) -> None:
        """A start: nothing of an earlier one is known any more."""
        self.incarnation += 1
        self.applied_index = self.world.stage.index
        self.news.clear()
        self.agenda: list[Any] = []
        self.up = True
        self.remote_queues = RemoteQueues(self, self.incarnation)
        ring = Ring(QUEUE_ID, agenda=self.agenda, proxy=True)
        self.queue = self.remote_queues.add(self.world.entity(), self.world.stage.queue.settings, ring)
        self.remote_queues.linked("a")

    @property
    def now_ms(self) -> int:
        return self.world.stage.now_ms

    def send(self, node: str, head: Any, payload: Any = ()) -> bool:
        if self.up:
            self.to_owner.append((head, b"".join(payload)))
        return self.up

    def soon(self, goes_on: Any) -> None:
        goes_on()

    def flow_changed(self) -> None:
        pass

    def turn(self) -> None:
        for _ in range(100):
            due, self.agenda[:] = self.agenda[:], []
            for queue in due:
                queue.turn(self.now_ms)
            self.remote_queues.turn(self.now_ms)
            if not self.agenda:
                return
        raise AssertionError("a proxy never comes to rest")

    def apply(self) -> None:
        """Hears one piece of news."""
        if self.news:
            self.applied_index, entity = self.news.popleft()
            self.remote_queues.owner_changed(entity)

    def hear(self) -> None:
        """Takes one frame of the owner, if its wiring is known here."""
        if self.from_owner and self.from_owner[0][0] <= self.applied_index:
            _, head, payload = self.from_owner.popleft()
            self.remote_queues.received("a", head, memoryview(payload))

    def cut(self) -> None:
        """The link breaks; what was under way is lost."""
        if self.up:
            self.up = False
            self.to_owner.clear()
            self.from_owner.clear()
            self.remote_queues.unlinked("a")

    def link(self) -> None:
        if not self.up:
            self.up = True
            self.remote_queues.linked("a")


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.stage = Stage()
        self.nodes = [Node(self, name, self.rng) for name in EVERYBODY]
        self.seen: dict[bytes, None] = {}
        self.acked: dict[bytes, str] = {}
        self.sure: dict[bytes, None] = {}
        self.published: dict[bytes, None] = {}
        self.unsure: dict[bytes, None] = {}  # published or acknowledged at a node that was declared dead
        self.newest: dict[tuple[str, bytes], int] = {}
        self.count = 0

    def entity(self) -> QueueEntity:
        return msgspec.structs.replace(self.stage.entity, epoch=self.stage.epoch)

    # -- what clients tell

    def handed(self, client: Client, body: bytes, redelivered: bool) -> None:
        assert body not in self.acked, f"{body!r} comes after {self.acked[body]} acknowledged it"
        for node in self.nodes:
            for other in node.clients:
                assert body not in other.hands.values(), f"{client.name} gets {body!r}, which {other.name} holds"
        assert redelivered or body not in self.seen, f"{body!r} comes again without the flag"
        if not redelivered:
            publisher, _, number = body.rpartition(b".")
            line = client.name, publisher
            assert int(number) > self.newest.get(line, 0), f"{body!r} comes after a later one"
            self.newest[line] = int(number)
        self.seen[body] = None

    def acknowledged(self, client: Client, body: bytes) -> None:
        assert body not in self.acked
        self.acked[body] = client.name

    def confirmed(self, bodies: list[bytes]) -> None:
        for body in bodies:
            assert body not in self.sure
            self.sure[body] = None

    # -- what happens

    def step(self) -> None:
        rng = self.rng
        node = rng.choice(self.nodes)
        client = rng.choice(node.clients)
        roll = rng.random()
        if roll < 0.10:
            client.publish(rng.choice((1, 1, 3)))
        elif roll < 0.14:
            client.consume()
        elif roll < 0.16:
            client.cancel()
        elif roll < 0.17:
            client.close()
        elif roll < 0.30:
            client.ack(rng)
        elif roll < 0.34:
            client.nack(rng)
        elif roll < 0.345:
            self.cut(node)
        elif roll < 0.36:
            node.link()
        elif roll < 0.363:
            node.remote_queues.lease_regained()
        elif roll < 0.367:
            self.fail_over()
        elif roll < 0.370:
            self.fail_node(node)
        elif roll < 0.42:
            node.apply()
        elif roll < 0.50:
            self.stage.commit()
        elif roll < 0.55:
            self.stage.turn(later_ms=rng.choice((1, 50, 500)))
        elif roll < 0.70:
            node.turn()
        elif roll < 0.85:
            self.owner_hears(node)
        else:
            node.hear()
        self.deliver()

    def owner_hears(self, node: Node) -> None:
        if node.to_owner:
            self.stage.receive(node.name, *node.to_owner.popleft())

    def deliver(self) -> None:
        """What the owner has said is under way to its nodes."""
        sent, self.stage.sent = self.stage.sent, []
        for name, head, payload in sent:
            node = self.nodes[EVERYBODY.index(name)]
            if node.up:
                node.from_owner.append((self.stage.index, head, payload))
        for node in self.nodes:
            self.stage.linked[node.name] = node.up

    def cut(self, node: Node) -> None:
        node.cut()
        self.stage.linked[node.name] = False
        self.stage.unlink(node.name)

    def fail_over(self) -> None:
        """The owner dies and its copy takes over; links of the dead process are gone with it."""
        for node in self.nodes:
            node.cut()
            self.stage.linked[node.name] = False
        self.stage.fail_over()
        for node in self.nodes:
            node.news.append((self.stage.index, self.entity()))

    def fail_node(self, node: Node) -> None:
        """The others declare a node dead that lives: its clients are closed, and it begins again. What these have
        acknowledged may come again, flagged, and what was not confirmed to them may be lost."""
        if node.name == "a":
            return  # the owner's own node dies with the owner
        for client in node.clients:
            client.close()
        self.cut(node)
        for body in self.published:
            if body.startswith(node.name.encode()):
                self.unsure[body] = None
        for body in [body for body, name in self.acked.items() if name.startswith(node.name)]:
            del self.acked[body]
            self.unsure[body] = None
        self.stage.fail(node.name)
        self.stage.owned_queues.members_changed(self.stage.incarnations)
        node.begin()

    def settle_down(self) -> None:
        """Everything heals, consumers take what is left and acknowledge it, and nothing is left to do."""
        for node in self.nodes:
            while node.news:
                node.apply()
            node.link()
        for _ in range(400):
            self.deliver()
            for node in self.nodes:
                for client in node.clients:
                    client.consume()
                    client.read()
                    client.ack(self.rng)
                node.turn()
                while node.to_owner:
                    self.owner_hears(node)
                self.deliver()
                while node.from_owner:
                    node.hear()
            self.stage.commit()
            self.stage.turn(later_ms=10)
            if self.at_rest:
                return
        raise AssertionError(f"no rest: {[node.queue for node in self.nodes]}, {self.stage.ring.ready} ready")

    @property
    def at_rest(self) -> bool:
        ring = self.stage.ring
        quiet = not any(node.agenda or node.to_owner or node.from_owner for node in self.nodes)
        silent = not any(node.queue._backlog or node.queue._settlements or node.queue._questions for node in self.nodes)
        return quiet and silent and not ring.ready and not ring.unacked and not self.stage.sent

    def run(self, steps: int) -> None:
        for self.count in range(steps):
            self.step()
        self.settle_down()
        for node in self.nodes:
            assert not node.queue.outstanding()
            assert node.remote_queues.unacknowledged_bytes == 0
        lost = [body for body in self.sure if body not in self.acked and body not in self.unsure]
        assert not lost, f"confirmed and gone: {lost[:5]}"
        assert all(body in self.sure or body in self.unsure for body in self.published)
