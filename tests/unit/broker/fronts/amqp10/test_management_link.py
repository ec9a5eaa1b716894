"""Requests that have to wait: for the wiring log, for a token, for their turn."""

from __future__ import annotations

from typing import Any

from clusterbroker.broker.oauth2.scopes import granted
from clusterbroker.broker.oauth2.verifier import Token
from clusterbroker.broker.wire.amqp10.performatives import Attach, Close, Detach, Flow, Source, Target, Transfer
from tests.conformance.amqp10.management import MANAGEMENT, PAIRED, read, request
from tests.support.amqp10 import HEADER, frame
from tests.unit.broker.fronts.amqp091.harness import World
from tests.unit.broker.fronts.amqp10.harness import BEGIN, Open, Peer


class Pair:
    def __init__(self, peer: Peer, name: str = "pair") -> None:
        self.peer = peer
        self.sender, self.receiver = peer.handle(), peer.handle()
        source, target = Source(address=MANAGEMENT), Target(address=MANAGEMENT)
        peer.say(
            Attach(
                name=name, handle=self.sender, role=False, snd_settle_mode=1, source=source, target=target,
                initial_delivery_count=0, properties=PAIRED,
            ),
            Attach(name=name, handle=self.receiver, role=True, source=source, target=target, properties=PAIRED),
            peer.flow(self.receiver, delivery_count=0, link_credit=100),
        )  # fmt: skip

    def say(self, method: str, path: str, body: Any = None) -> list[Any]:
        """Frames that the node says meanwhile."""
        number = self.peer.next_id
        self.peer.next_id += 1
        transfer = Transfer(handle=self.sender, delivery_id=number, delivery_tag=b"%d" % number, settled=True)
        return self.peer.say(transfer, payload=request(method, path, body))

    def ask(self, method: str, path: str, body: Any = None) -> list[tuple[str | None, Any]]:
        return answers(self.say(method, path, body))


def answers(frames: list[Any]) -> list[tuple[str | None, Any]]:
    """Statuses and bodies of responses."""
    found = [read(each.payload) for each in frames if isinstance(each.body, Transfer)]
    return [(each.properties.subject, each.body) for each in found]


def statuses(frames: list[Any]) -> list[str | None]:
    return [status for status, _ in answers(frames)]


def test_requests_take_effect_one_after_another() -> None:
    world = World()
    pair = Pair(Peer(world).enter())
    world.wiring_waits = True
    assert pair.ask("PUT", "/queues/q", {}) == []
    assert pair.ask("GET", "/queues/q") == [], "it is not asked before the queue is there"
    assert pair.ask("GET", "/queues/none") == []
    world.wiring_waits = False
    assert statuses(pair.peer.raw(b"")) == ["201", "200", "404"]


def test_credit_comes_back_with_responses() -> None:
    world = World()
    pair = Pair(Peer(world).enter())
    world.wiring_waits = True
    heard = [each for _ in range(8) for each in pair.say("PUT", "/queues/q", {})]
    assert [each for each in heard if isinstance(each.body, Flow)] == [], "none is free"
    world.wiring_waits = False
    heard = pair.peer.raw(b"")
    assert statuses(heard) == ["201", *["200"] * 7]
    flows = [each.body for each in heard if isinstance(each.body, Flow)]
    assert [(flow.handle, flow.delivery_count) for flow in flows] == [(pair.sender, 8)] * len(flows)
    assert flows[-1].link_credit in range(5, 9)


def test_what_waits_ends_with_its_link() -> None:
    world = World()
    pair = Pair(Peer(world).enter())
    world.wiring_waits = True
    pair.say("PUT", "/queues/first", {})
    pair.say("PUT", "/queues/second", {})
    pair.peer.say(Detach(handle=pair.sender, closed=True))
    world.wiring_waits = False
    assert answers(pair.peer.raw(b"")) == []
    assert set(world.node.vhosts["/"].queues) == {"first"}, "it was ordered; the other was not taken up"


def test_a_response_without_its_link_is_dropped() -> None:
    world = World()
    pair = Pair(Peer(world).enter())
    world.wiring_waits = True
    pair.say("PUT", "/queues/q", {})
    pair.peer.say(Detach(handle=pair.receiver, closed=True))
    world.wiring_waits = False
    assert answers(pair.peer.raw(b"")) == []
    assert "q" in world.node.vhosts["/"].queues


def test_exclusive_queues_are_gone_when_close_is_answered() -> None:
    world = World()
    peer = Peer(world).enter()
    pair = Pair(peer)
    assert statuses(pair.say("PUT", "/queues/own", {"exclusive": True})) == ["201"]
    world.wiring_waits = True
    assert peer.say(Close()) == []
    assert "own" in world.node.vhosts["/"].queues
    world.wiring_waits = False
    assert [type(each.body) for each in peer.raw(b"")] == [Close]
    assert ("own" in world.node.vhosts["/"].queues, peer.ended) == (False, "flush")


def test_an_exclusive_queue_that_is_on_its_way_ends_with_a_lost_connection() -> None:
    world = World()
    peer = Peer(world).enter()
    world.wiring_waits = True
    Pair(peer).say("PUT", "/queues/own", {"exclusive": True})
    peer.leave()
    world.wiring_waits = False
    world.turn()
    assert "own" not in world.node.vhosts["/"].queues


def entered(world: World, secret: bytes) -> Peer:
    peer = Peer(world)
    peer.login("whoever", secret.decode())
    peer.raw(HEADER + frame(0, Open(container_id="test")) + frame(0, BEGIN))
    return peer


def put(world: World, secret: bytes, for_s: int = 60) -> None:
    rights = granted(["mq.configure:%2F/*", "mq.write:%2F/*", "mq.read:%2F/*"], "mq.")
    world.tokens[secret] = Token("ann", rights, world.now_ms / 1000 + for_s)


def test_one_token_is_verified_at_a_time() -> None:
    """Each costs as much as a login."""
    world = World()
    put(world, b"t")
    put(world, b"later", for_s=600)
    peer = entered(world, b"t")
    pair, other = Pair(peer, "one"), Pair(peer, "other")
    world.passwords_wait = True
    assert pair.ask("PUT", "/auth/tokens", b"later") == []
    assert other.ask("PUT", "/auth/tokens", b"later") == [("400", "another token before the last one was answered")]
    world.passwords_wait = False
    assert statuses(peer.raw(b"")) == ["204"]
    world.wait(90_000)
    assert peer.ended is None, "it goes on with the later one"


def test_a_token_that_was_verified_too_late() -> None:
    world = World()
    put(world, b"t")
    put(world, b"later")
    pair = Pair(entered(world, b"t"))
    world.passwords_wait = True
    assert pair.ask("PUT", "/auth/tokens", b"later") == []
    pair.peer.core.force_close("maintenance")
    assert [type(each.body) for each in pair.peer.raw(b"")] == [Close]
    world.answer_passwords()
    world.turn()
    assert pair.peer.raw(b"") == []
