"""Real proxies of three nodes and the real owner, with a link between each that may break."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from clusterbroker.broker.fronts.amqp091.subscription import Subscription
from clusterbroker.broker.queues.handle import CommitPart, Decided
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.remote.remote_queue import RemoteQueue
from clusterbroker.broker.remote.remote_queues import RemoteQueues
from tests.unit.broker.remote.owner_support import EVERYBODY, QUEUE_ID, Stage, message
from tests.unit.broker.remote.pair import Channel


class Node:
    """One node with clients."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.agenda: list[RemoteQueue] = []
        self.out: list[tuple[Any, bytes]] = []
        self.remote_queues = RemoteQueues(self, 1)
        self.channel = Channel()
        self.ring = Ring(QUEUE_ID, agenda=self.agenda, proxy=True)
        self.queue = self.remote_queues.add(world.stage.entity, world.stage.queue.settings, self.ring)
        self.remote_queues.linked("a")

    @property
    def now_ms(self) -> int:
        return self.world.stage.now_ms

    @property
    def applied_index(self) -> int:
        return self.world.stage.index

    def send(self, node: str, head: Any, payload: Iterable[Any] = ()) -> bool:
        self.out.append((head, b"".join(payload)))
        return True

    def soon(self, goes_on: Any) -> None:
        goes_on()

    def flow_changed(self) -> None:
        pass

    def turn(self) -> None:
        while True:
            while self.agenda:
                due, self.agenda[:] = self.agenda[:], []
                for queue in due:
                    queue.turn(self.now_ms)
            self.remote_queues.turn(self.now_ms)
            if not self.agenda:
                return

    def consume(self, prefetch: int) -> None:
        subscription = Subscription(
            self.channel, self.channel.ledger, self.queue, "t", no_ack=False, exclusive=False, prefetch=prefetch,
            priority=0, arguments={},
        )  # fmt: skip
        self.queue.subscribe(subscription, self.now_ms, lambda refused: None)


class World:
    def __init__(self, **arguments: Any) -> None:
        self.stage = Stage(**arguments)
        self.nodes = {name: Node(self, name) for name in EVERYBODY}
        self.answers: list[tuple[int, bool]] = []
        self.acked = 0

    def publish(self, name: str, number: int) -> None:
        ticket = Ticket(number, number, lambda done: self.answers.append((done.first, done.rejected)))
        self.nodes[name].queue.publish((message(b"%d" % number, time_ms=self.stage.now_ms),), ticket, self.stage.now_ms)
        ticket.pass_()

    def run(self, rounds: int = 30) -> None:
        for _ in range(rounds):
            for name, node in self.nodes.items():
                node.turn()
                out, node.out = node.out, []
                for head, payload in out:
                    self.stage.receive(name, head, payload)
            self.route()
            self.stage.commit()
            self.route()
            self.stage.now_ms += 10

    def route(self) -> None:
        sent, self.stage.sent = self.stage.sent, []
        for name, head, payload in sent:
            self.nodes[name].remote_queues.received("a", head, memoryview(payload))

    def acknowledge(self) -> None:
        for node in self.nodes.values():
            held = node.channel.ledger.unacked
            if held:
                assert node.channel.ledger.ack([1]) == 0
                self.acked += held
            node.ring.mark()

    def cut(self, name: str) -> None:
        self.nodes[name].out.clear()
        self.stage.unlink(name)
        self.nodes[name].remote_queues.unlinked("a")
        self.nodes[name].remote_queues.linked("a")

    def fail_over(self) -> None:
        """Another process owns it then, under the same name here."""
        for node in self.nodes.values():
            node.out.clear()
            node.remote_queues.unlinked("a")
        self.stage.fail_over()
        self.stage.entity = msgspec.structs.replace(self.stage.entity, epoch=self.stage.epoch)
        for node in self.nodes.values():
            node.remote_queues.owner_changed(self.stage.entity)
            node.remote_queues.linked("a")


@pytest.mark.parametrize("seed", range(12))
def test_publishes_are_answered_and_deliveries_settled_whatever_breaks(seed: int) -> None:
    chance = random.Random(seed)
    limits = {"max_length": 20, "overflow": "reject-publish"} if seed % 3 == 0 else {}
    world = World(**limits)
    for node in world.nodes.values():
        node.consume(prefetch=chance.choice((0, 1, 5)))
    published = 0
    for _ in range(60):
        for _ in range(chance.randrange(6)):
            published += 1
            world.publish(chance.choice(EVERYBODY), published)
        world.run(chance.randrange(3))
        happens = chance.random()
        if happens < 0.1:
            world.cut(chance.choice(EVERYBODY))
        elif happens < 0.15:
            world.fail_over()
        elif happens < 0.5:
            world.acknowledge()
    for _ in range(40):
        world.run(10)
        world.acknowledge()
    world.run(20)
    assert sorted(number for number, _ in world.answers) == list(range(1, published + 1)), "each publish is answered"
    refused = sum(rejected for _, rejected in world.answers)
    assert (world.stage.ring.ready, world.stage.ring.unacked) == (0, 0)
    assert world.acked >= published - refused
    assert not any(node.ring.unacked for node in world.nodes.values())


@pytest.mark.parametrize("seed", range(12))
def test_transactions_that_pass_tokens_on_keep_their_number(seed: int) -> None:
    """Each commit takes one token and puts one: half a commit would lose a token or make one."""
    chance = random.Random(seed)
    world = World()
    tokens = 20
    for number in range(1, tokens + 1):
        world.publish(chance.choice(EVERYBODY), number)
    for node in world.nodes.values():
        node.consume(prefetch=chance.choice((0, 2, 5)))
    committed = 0
    answers: list[bool] = []

    def pass_on(node: Node, outcome: str) -> int:
        entries = node.channel.ledger.collect(0, True) or []
        for _, _, seq in entries:
            part = CommitPart()
            part.publishes.append(([message(b"token", time_ms=world.stage.now_ms)], None))
            part.settles.append(Decided(seq, outcome))
            ticket = Ticket(1, 1, lambda done: answers.append(done.rejected))
            node.queue.commit(part, ticket, world.stage.now_ms)
            ticket.pass_()
        return len(entries)

    for _ in range(60):
        committed += pass_on(world.nodes[chance.choice(EVERYBODY)], chance.choice(("ack", "reject")))
        world.run(chance.randrange(3))
        happens = chance.random()
        if happens < 0.15:
            world.cut(chance.choice(EVERYBODY))
        elif happens < 0.25:
            world.fail_over()
    world.run(60)
    assert committed > 50
    assert answers == [False] * committed
    assert world.stage.ring.ready + world.stage.ring.unacked == tokens
