"""A client of AMQP 1.0 in the tests' worlds: it says performatives, and hears frames.

peer = Peer(world).enter()                       header, SASL, open, begin on channel 0
peer.sender("s", "/queues/q").send(b"hello")     attaches, and returns what was heard
link = peer.receiver("r", "/queues/q", credit=10)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from clusterbroker.broker.fronts.opening import FRONTS, Opening
from clusterbroker.broker.node.clients import Accepted
from clusterbroker.broker.wire.amqp10.performatives import (
    Attach,
    Begin,
    Composite,
    Flow,
    Open,
    SaslInit,
    SaslOutcome,
    Source,
    Target,
    Transfer,
)
from tests.support.amqp10 import HEADER, SASL_HEADER, Frame, Message, Reader, frame, message, read
from tests.unit.broker.fronts.amqp091.harness import World

_P = TypeVar("_P", bound=Composite)


def world_with(*queues: str) -> World:
    """A node on which a client of 0-9-1 has declared `queues`."""
    world = World()
    client = world.client()
    for queue in queues:
        client.declare(queue)
    return world


def bodies(frames: Iterable[Any], kind: type) -> list[Any]:
    """The performatives of one kind in `frames`, in their order."""
    return [each.body for each in frames if isinstance(each.body, kind)]


class Peer:
    """`heard`: frames that nobody has asked for yet. `ended` is how the server ended the connection."""

    def __init__(self, world: Any, identity: str | None = None, loopback: bool = True) -> None:
        self.world = world
        accepted = Accepted("192.0.2.9:7", loopback, world.now_ms, identity)
        self.core: Any = Opening(world.node, accepted, FRONTS, self._become)
        self.ended: str | None = None
        self.unsent = b""
        self.heard: list[Frame] = []
        self.reader = Reader()
        self.handles = 0
        self.next_id = 0
        self.receivers: dict[int, Receiver] = {}
        world.clients[self.core] = self

    def _become(self, core: Any) -> None:
        del self.world.clients[self.core]
        self.core = core
        self.world.clients[core] = self

    # -- as the worlds see their clients

    def deliver(self) -> bool:
        if not self.unsent or not self.core.reading or self.ended is not None:
            return False
        data, self.unsent = self.unsent, b""
        self.core.receive(self.core.undecoded + data, self.world.now_ms)
        return True

    def flush(self) -> None:
        if self.core.out.size and not self.core.out.paused:
            self.heard += self.reader.feed(bytes(self.core.out.take()))
            self.core.sent(self.world.now_ms)
        if self.core.ending is not None and self.ended is None:
            self.ended = self.core.ending
            self.leave()

    def leave(self) -> None:
        self.world.clients.pop(self.core, None)
        self.core.lost(self.world.now_ms)

    # -- talk

    def raw(self, data: bytes) -> list[Frame]:
        """Sends bytes, lets the node work, and returns what was heard since, but for deliveries to receivers."""
        self.unsent += data
        self.deliver()
        self.world.turn()
        heard, self.heard = self.heard, []
        others = []
        for each in heard:
            receiver = self.receivers.get(each.body.handle) if isinstance(each.body, Transfer) else None
            (others if receiver is None else receiver.heard).append(each)
        return others

    def say(self, *performatives: Composite, channel: int = 0, payload: bytes = b"") -> list[Frame]:
        return self.raw(b"".join(frame(channel, each, payload) for each in performatives))

    def ask(self, performative: Composite, kind: type[_P], channel: int = 0) -> _P:
        """Says it; the one answer of this kind."""
        (found,) = [each.body for each in self.say(performative, channel=channel) if isinstance(each.body, kind)]
        return found

    def enter(self, user: str = "guest", hostname: str | None = None, **properties: Any) -> Peer:
        self.login(user)
        container = properties.pop("container_id", "test")
        heard = self.raw(
            HEADER + frame(0, Open(container_id=container, hostname=hostname, **properties)) + frame(0, BEGIN)
        )
        assert [type(each.body) for each in heard[1:]] == [Open, Begin], heard
        return self

    def login(self, user: str = "guest", password: str | None = None) -> None:
        secret = f"\0{user}\0{user if password is None else password}".encode()
        init = SaslInit(mechanism="PLAIN", initial_response=secret)
        heard = self.raw(SASL_HEADER + frame(0, init, kind=1))
        assert heard[-1].body == SaslOutcome(code=0), heard

    # -- links

    def handle(self) -> int:
        self.handles += 1
        return self.handles - 1

    def sender(self, name: str, address: str | None, *, settle: int = 2, second: int = 0) -> Sender:
        handle = self.handle()
        attach = Attach(
            name=name, handle=handle, role=False, snd_settle_mode=settle, rcv_settle_mode=second, source=Source(),
            target=Target(address=address), initial_delivery_count=0,
        )  # fmt: skip
        heard = self.say(attach)
        return Sender(self, handle, heard)

    def receiver(
        self, name: str, address: str, *, credit: int = 0, second: int = 0, settle: int = 2, **more: Any
    ) -> Receiver:
        handle = self.handle()
        properties = more.pop("properties", None)
        attach = Attach(
            name=name, handle=handle, role=True, snd_settle_mode=settle, rcv_settle_mode=second,
            source=Source(address=address, **more), target=Target(), properties=properties,
        )  # fmt: skip
        link = Receiver(self, handle, self.say(attach))
        if credit:
            link.grant(credit)
        return link

    def flow(self, handle: int | None = None, **fields: Any) -> Flow:
        return Flow(
            next_incoming_id=fields.pop("next_incoming_id", 0), incoming_window=fields.pop("incoming_window", 10_000),
            next_outgoing_id=self.next_id, outgoing_window=10_000, handle=handle, **fields,
        )  # fmt: skip


BEGIN = Begin(next_outgoing_id=0, incoming_window=10_000, outgoing_window=10_000)


class Sender:
    def __init__(self, peer: Peer, handle: int, heard: list[Frame]) -> None:
        self.peer, self.number, self.attached = peer, handle, heard

    def send(
        self, body: bytes = b"", *, settled: bool | None = None, tag: bytes | None = None, **parts: Any
    ) -> list[Frame]:
        payload = parts.pop("payload", None)
        return self.transfer(message(body, **parts) if payload is None else payload, settled=settled, delivery_tag=tag)

    def transfer(self, payload: bytes, **fields: Any) -> list[Frame]:
        number = self.peer.next_id
        self.peer.next_id += 1
        if fields.get("delivery_tag") is None:
            fields["delivery_tag"] = b"t%d" % number
        transfer = Transfer(handle=self.number, delivery_id=number, **fields)
        return self.peer.say(transfer, payload=payload)


class Receiver:
    def __init__(self, peer: Peer, handle: int, heard: list[Frame]) -> None:
        self.peer, self.number, self.attached = peer, handle, heard
        self.heard: list[Frame] = []
        """Transfer frames that `take` has not seen."""
        self.count = 0
        peer.receivers[handle] = self

    def grant(self, credit: int, **fields: Any) -> list[Frame]:
        return self.peer.say(self.peer.flow(self.number, delivery_count=self.count, link_credit=credit, **fields))

    def take(self) -> list[tuple[Transfer, Message]]:
        """Deliveries since the last call; those in several frames are joined."""
        self.peer.raw(b"")
        found: list[tuple[Transfer, Message]] = []
        payload, first = b"", None
        for each in self.heard:
            first = first or each.body
            payload += each.payload
            if not each.body.more:
                found.append((first, read(payload)))
                payload, first = b"", None
        self.heard = []
        self.count += len(found)
        return found

    def bodies(self) -> list[bytes]:
        return [known.body for _, known in self.take()]
