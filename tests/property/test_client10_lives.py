"""A client of AMQP 1.0 and its peer over connections that break anywhere: nothing is lost, doubled or reordered.

The peer is written for itself (`client10_peer`). Frames are small, so that messages and maps need several.
"""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from clusterbroker.amqp10.client.core import Closed, Connection, Opened, Options
from clusterbroker.amqp10.client.links import (
    SECOND,
    Decided,
    Delivered,
    Incoming,
    Lost,
    ReceiverLink,
    SenderLink,
    Settled,
    Terms,
)
from clusterbroker.amqp10.client.message import Message
from clusterbroker.amqp10.client.session import Begun, Session
from clusterbroker.broker.wire.amqp10.performatives import Accepted, Header, Released, Source, Target
from tests.budget import examples
from tests.property.client10_peer import FRAME_MAX, Memory, Peer

HEADER_BYTES = len(Header(durable=True).encoded())
STEPS = 300


class World:
    """The client, and connections to the peer that break."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.memory = Memory(keeps=chance.random() < 0.5)
        self.collects = chance.random() < 0.4
        """The program has many in hand before it says what becomes of them."""
        self.sender = SenderLink(_terms("out"))
        self.receiver = ReceiverLink(_terms("in"))
        self.submitted: list[bytes] = []
        self.offered = 0
        self.decided: dict[bytes, object] = {}
        self.seen: list[bytes] = []
        self.mine: list[Incoming] = []
        """Deliveries that have no outcome yet."""
        self.unsettled: list[bytes] = []
        """Tags of deliveries that were sent and are decided; the program has not settled them yet."""
        self.given: dict[bytes, object] = {}
        self.settled: set[bytes] = set()
        self.calm = False
        self.connect()

    def connect(self) -> None:
        self.peer = Peer(self.memory, self.chance, HEADER_BYTES)
        self.core = Connection(Options("client", frame_max=FRAME_MAX))
        self.core.start(0.0)
        self.session: Session | None = None
        self.up = b""
        """On its way to the peer."""

    def lose(self) -> None:
        self.core.lost("cut")
        self.connect()

    # -- what a program does

    def submit(self) -> None:
        for _ in range(self.chance.choice((1, 1, 1, 30))):
            self.submit_one()
        self.pump()

    def submit_one(self) -> None:
        payload = Message(body=b"%d." % len(self.submitted) + bytes(self.chance.choice((0, 5, 400, 900)))).encoded()
        self.submitted.append(payload)
        self.sender.send(payload, b"t%07d" % len(self.submitted))

    def pump(self) -> None:
        if self.session is not None:
            for event in self.session.pump():
                self.take(event)

    def offer(self) -> None:
        self.offered += 1
        number = len(self.memory.outcomes) + len(self.memory.line) + len(self.memory.held) + len(self.seen)
        tag = b"r%07d" % (self.offered * 1000 + self.chance.randrange(1000))
        self.memory.line.append((tag, tag + bytes(number * 20)))

    def settle(self) -> None:
        if self.unsettled:
            delivery = self.sender.settle(self.unsettled.pop(self.chance.randrange(len(self.unsettled))))
            if delivery is not None and self.session is not None:
                self.session.settle(delivery)

    def dispose(self) -> None:
        if not self.mine:
            return
        delivery = self.mine.pop(self.chance.randrange(len(self.mine)))
        outcome = self.chance.choice((Accepted(), Released()))
        self.given[delivery.tag] = outcome
        if self.receiver.dispose(delivery, outcome, False) and self.session is not None:
            self.session.dispose(self.receiver, delivery, outcome, False)

    def credit(self) -> None:
        if self.session is not None and self.receiver.credit < 3:
            self.session.grant(self.receiver, 60 if self.collects else 8)

    # -- what happens on the way

    def up_some(self) -> None:
        self.up += self.core.take_bytes()
        count = len(self.up) if self.calm else self.chance.choice((1, 30, 700, 5000))
        self.peer.feed(self.up[:count])
        self.up = self.up[count:]

    def down_some(self) -> None:
        count = len(self.peer.out) if self.calm else self.chance.choice((1, 30, 700, 5000))
        data = bytes(self.peer.out[:count])
        del self.peer.out[:count]
        for event in self.core.receive(data, 0.0):
            self.take(event)

    def take(self, event: object) -> None:
        match event:
            case Opened():
                self.core.session()
            case Begun():
                self.session = event.session
                for link in (self.sender, self.receiver):
                    event.session.attach(link)
            case Decided():
                assert event.delivery.tag not in self.decided, "an outcome is told once"
                self.decided[event.delivery.tag] = event.delivery.state
                if not event.settled:
                    self.unsettled.append(event.delivery.tag)
            case Delivered():
                assert event.delivery.tag not in self.seen, "a delivery is seen once"
                self.seen.append(event.delivery.tag)
                assert event.delivery.payload == self.memory.held[event.delivery.tag]
                self.mine.append(event.delivery)
            case Settled():
                assert event.delivery.tag not in self.settled
                self.settled.add(event.delivery.tag)
            case Lost() | Closed():
                raise AssertionError(event)

    def step(self) -> None:
        offers, disposes, losses = (20, 1, 2) if self.collects else (6, 6, 1)
        deeds = (
            (self.submit, 6), (self.offer, offers), (self.dispose, disposes), (self.settle, 6), (self.credit, 4),
            (self.up_some, 20), (self.down_some, 20), (self.peer.answer, 6), (self.peer.deliver, 6),
            (self.lose, losses),
        )  # fmt: skip
        self.chance.choices([deed for deed, _ in deeds], [weight for _, weight in deeds])[0]()

    def settle_down(self) -> None:
        """No connection breaks any more, and everything comes to its end."""
        self.calm = self.memory.calm = True
        for _ in range(400):
            self.credit()
            self.dispose()
            self.settle()
            self.pump()
            self.up_some()
            self.peer.answer()
            self.peer.deliver()
            self.down_some()


def _terms(name: str) -> Terms:
    return Terms(name, Source(address="q"), Target(address="q"), recoverable=True, rcv_settle_mode=SECOND)


@settings(max_examples=examples(60))
@given(st.integers(0, 2**32))
def test_nothing_is_lost_doubled_or_reordered(seed: int) -> None:
    world = World(random.Random(seed))
    for _ in range(STEPS):
        world.step()
    world.settle_down()
    assert world.given == world.memory.outcomes, "an outcome is said without another loss"
    world.lose()  # what a lost settlement has left in the maps
    world.settle_down()
    memory = world.memory
    accepted = [p for i, p in enumerate(world.submitted, 1) if isinstance(world.decided[b"t%07d" % i], Accepted)]
    assert memory.stored == accepted, "what is accepted is there once, in the order of sending"
    assert len(world.decided) == len(world.submitted)
    assert not world.sender.unsettled
    assert not memory.taken
    assert not memory.line
    assert world.given == memory.outcomes, "each outcome is carried out, and it is the one that was given"
    assert sorted(world.seen) == sorted(world.given)
    assert not world.receiver.unsettled
    assert not memory.held
