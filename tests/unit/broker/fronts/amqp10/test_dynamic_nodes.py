"""Attaches that wait for what they have ordered, and clients that do not wait for it."""

from __future__ import annotations

import pytest

from clusterbroker.broker.wire.amqp10.performatives import (
    Accepted,
    Attach,
    DeleteOnNoMessages,
    Detach,
    Disposition,
    End,
    Released,
    Source,
    Target,
)
from clusterbroker.broker.wire.amqp10.types import Symbol
from tests.unit.broker.fronts.amqp091.harness import World
from tests.unit.broker.fronts.amqp10.harness import BEGIN, Peer, Sender, bodies

DYNAMIC = Attach(name="d", handle=0, role=True, source=Source(dynamic=True), target=Target())
SUBSCRIPTION = Attach(
    name="sub", handle=0, role=True, source=Source(address="news", durable=2, capabilities=("topic",)), target=Target()
)


def made(world: World) -> list[str]:
    return sorted(world.node.vhosts["/"].queues)


def test_an_attach_is_answered_when_its_queue_is_there() -> None:
    world = World()
    peer = Peer(world).enter()
    world.wiring_waits = True
    assert peer.say(DYNAMIC) == []
    assert made(world) == []
    world.wiring_waits = False
    world.answer_proposals()
    (answer,) = bodies(peer.raw(b""), Attach)
    assert answer.source.address == f"/queues/{made(world)[0]}"


@pytest.mark.parametrize("ends", ["detach", "session", "again"])
def test_what_nobody_waits_for_any_more_is_deleted(ends: str) -> None:
    world = World()
    peer = Peer(world).enter()
    world.wiring_waits = True
    peer.say(DYNAMIC)
    last = {"detach": Detach(handle=0, closed=True), "session": End(), "again": SUBSCRIPTION}[ends]
    if ends == "again":
        peer.say(Detach(handle=0, closed=True), last)
    else:
        assert type(peer.say(last)[0].body) is type(last)
    world.wiring_waits = False
    world.answer_proposals()
    heard = bodies(peer.raw(b""), Attach)
    assert [one.name for one in heard] == (["sub"] if ends == "again" else [])
    assert made(world) == (["test|sub"] if ends == "again" else [])
    if ends == "session":
        peer.say(BEGIN)
    assert peer.ended is None


def test_a_connection_that_is_lost_meanwhile_leaves_nothing() -> None:
    world = World()
    peer = Peer(world).enter()
    world.wiring_waits = True
    peer.say(DYNAMIC)
    peer.leave()
    world.wiring_waits = False
    world.answer_proposals()
    world.turn()
    assert made(world) == []


def test_the_same_name_again_takes_the_place_of_one_that_waits() -> None:
    world = World()
    peer = Peer(world).enter()
    world.wiring_waits = True
    peer.say(SUBSCRIPTION)
    again = Attach(name="sub", handle=1, role=True, source=SUBSCRIPTION.source, target=Target())
    (detach,) = bodies(peer.say(again), Detach)
    assert (detach.handle, detach.error.condition) == (0, "amqp:link:stolen")
    world.wiring_waits = False
    world.answer_proposals()
    (answer,) = bodies(peer.raw(b""), Attach)
    assert answer.handle == 1
    assert made(world) == ["test|sub"]


def test_containers_and_names_are_kept_apart() -> None:
    world = World()
    for container in ("a", "a|b", "a%7Cb"):
        Peer(world).enter(container_id=container).say(SUBSCRIPTION)
    assert made(world) == ["a%257Cb|sub", "a%7Cb|sub", "a|sub"]


def test_what_a_receiver_takes_before_the_deletion_has_its_turn_keeps_the_queue() -> None:
    world = World()
    peer = Peer(world).enter()
    asked = {Symbol("lifetime-policy"): DeleteOnNoMessages()}
    target = Target(dynamic=True, dynamic_node_properties=asked)
    made_by = Attach(
        name="m", handle=peer.handle(), role=False, source=Source(), target=target, initial_delivery_count=0
    )
    heard = peer.say(made_by)
    (answer,) = bodies(heard, Attach)
    creator = Sender(peer, made_by.handle, heard)
    creator.send(b"x", settled=True)
    receiver = peer.receiver("r", answer.target.address)
    peer.say(Detach(handle=creator.number, closed=True))
    (name,) = made(world)
    node = peer.core.dynamic_nodes[name]
    node.review()  # as about twice a second: a message is ready, and nobody holds one
    deletion = world.node.postponed.soon.pop()
    receiver.grant(1)
    ((transfer, message),) = receiver.take()
    assert message.body == b"x"
    world.node.soon(deletion)
    assert not bodies(peer.raw(b""), Detach)
    assert made(world) == [name], "the receiver holds a message of it"
    peer.say(Disposition(role=True, first=transfer.delivery_id, settled=True, state=Released()))
    node.review()
    assert not bodies(peer.raw(b""), Detach)
    assert made(world) == [name], "one came back"
    receiver.grant(1)
    ((transfer, _),) = receiver.take()
    peer.say(Disposition(role=True, first=transfer.delivery_id, settled=True, state=Accepted()))
    node.review()
    (detach,) = bodies(peer.raw(b""), Detach)
    assert detach.error.condition == "amqp:resource-deleted"
    assert made(world) == []
