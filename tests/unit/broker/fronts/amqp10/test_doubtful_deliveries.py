"""Deliveries in doubt of a recoverable sender whose repeat is refused by the node, before any queue has judged it."""

from __future__ import annotations

from typing import Any

from clusterbroker.broker.fronts.amqp10.resuming import RECOVERY
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp10.performatives import (
    Accepted,
    Attach,
    Detach,
    Disposition,
    Rejected,
    Source,
    Target,
)
from tests.unit.broker.fronts.amqp10.harness import Peer, Sender, bodies, world_with

PLACE = "/exchanges/x/k"


def attach(peer: Peer, unsettled: dict[bytes, Any] | None = None) -> Sender:
    target, number = Target(address=PLACE, durable=2, timeout=60), peer.handle()
    asked = Attach(
        name="s", handle=number, role=False, rcv_settle_mode=1, source=Source(), target=target,
        initial_delivery_count=0, unsettled=unsettled, desired_capabilities=(RECOVERY,),
    )  # fmt: skip
    return Sender(peer, number, peer.say(asked) + peer.raw(b""))


def outcomes(peer: Peer, heard: list[Any]) -> list[Any]:
    return [one.state for one in bodies(heard + peer.raw(b""), Disposition)]


def in_doubt() -> tuple[Any, Any, Peer, Sender]:
    """A delivery `t` is stored, its client does not know it and has come back. The world, and a client of 0-9-1."""
    world = world_with("q")
    other = world.client()
    other.ask(m.ExchangeDeclare(exchange="x", type="direct", durable=True))
    other.ask(m.QueueBind(queue="q", exchange="x", routing_key="k"))
    peer = Peer(world).enter()
    link = attach(peer)
    assert outcomes(peer, link.send(b"1", tag=b"t")) == [Accepted()]
    peer.say(Detach(handle=link.number))
    return world, other, peer, attach(peer, {b"t": None})


def test_another_delivery_of_its_tag_is_a_new_one() -> None:
    _, _, peer, link = in_doubt()
    (refused,) = outcomes(peer, link.send(b"1", tag=b"t", annotations={"x-opt-producer": "p", "x-opt-seq": 1}))
    assert isinstance(refused, Rejected)
    peer.say(Disposition(role=False, first=peer.next_id - 1, settled=True, state=refused))
    assert outcomes(peer, link.send(b"2", tag=b"t")) == [Accepted()]
    assert peer.receiver("r", "/queues/q", credit=9).bodies() == [b"1", b"2"]


def test_one_that_comes_settled_and_is_refused_ends_its_link() -> None:
    """As any that is sent settled: its client would not hear of it otherwise. It is in doubt no more."""
    _, _, peer, link = in_doubt()
    heard = link.send(b"1", tag=b"t", settled=True, annotations={"x-opt-producer": "p", "x-opt-seq": 1})
    (told,) = bodies(heard + peer.raw(b""), Detach)
    assert told.error.condition == "amqp:precondition-failed"
    peer.say(Detach(handle=link.number, closed=True))
    (session,) = peer.core.sessions.values()
    assert (session.outcomes.waiting, session.owed) == (0, 0)
    again = attach(peer)
    assert outcomes(peer, again.send(b"2", tag=b"t")) == [Accepted()]
    assert peer.receiver("r", "/queues/q", credit=9).bodies() == [b"1", b"2"]


def test_nobody_waits_for_one_that_comes_settled_when_its_exchange_is_gone() -> None:
    _, other, peer, link = in_doubt()
    other.ask(m.ExchangeDelete(exchange="x"))
    (told,) = bodies(link.send(b"1", tag=b"t", settled=True), Detach)
    assert told.error.condition == "amqp:not-found"
    (session,) = peer.core.sessions.values()
    assert not session.owed
