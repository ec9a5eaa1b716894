"""Credit and windows as large as their fields can say: 2^32 - 1. Deliveries of one attach: 2^40."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.fronts.amqp10.resuming import RECOVERY
from clusterbroker.broker.queues.link_deliveries import NUMBERS_MAX
from clusterbroker.broker.wire.amqp10.performatives import Accepted, Attach, Detach, Disposition, Flow, Source, Target
from tests.unit.broker.fronts.amqp10.harness import Peer, Sender, bodies, world_with

LARGE = (2**31 - 1, 2**31, 2**32 - 1)


@pytest.mark.parametrize("credit", LARGE)
def test_link_credit(credit: int) -> None:
    world = world_with("q")
    peer = Peer(world).enter()
    sender = peer.sender("s", "/queues/q")
    link = peer.receiver("r", "/queues/q", credit=credit)
    for body in (b"1", b"2"):
        sender.send(body)
        assert link.bodies() == [body]
        link.grant(credit)
    (told,) = [each.body for each in link.grant(credit, echo=True) if isinstance(each.body, Flow)]
    assert told.link_credit == credit, "and the client hears of all of it"


@pytest.mark.parametrize("window", LARGE)
def test_session_window(window: int) -> None:
    world = world_with("q")
    peer = Peer(world).enter()
    sender = peer.sender("s", "/queues/q")
    link = peer.receiver("r", "/queues/q", credit=10)
    for number, body in enumerate((b"1", b"2")):
        peer.say(peer.flow(next_incoming_id=number, incoming_window=window))
        sender.send(body)
        assert link.bodies() == [body]


def test_an_attach_whose_deliveries_are_used_up_ends_and_the_next_one_goes_on() -> None:
    """A higher number would be one of the next attach."""
    world = world_with("q")
    peer = Peer(world).enter()

    def attach(unsettled: dict[bytes, Any] | None = None) -> Sender:
        target, number = Target(address="/queues/q", durable=2, timeout=60), peer.handle()
        asked = Attach(
            name="s", handle=number, role=False, rcv_settle_mode=1, source=Source(), target=target,
            initial_delivery_count=0, unsettled=unsettled, desired_capabilities=(RECOVERY,),
        )  # fmt: skip
        return Sender(peer, number, peer.say(asked) + peer.raw(b""))

    def outcomes(heard: list[Any]) -> list[Any]:
        return [one.state for one in bodies(heard, Disposition)]

    first = attach()
    (session,) = peer.core.sessions.values()
    session.links[first.number].store._number = NUMBERS_MAX - 1
    assert outcomes(first.send(b"last", tag=b"a") + peer.raw(b"")) == [Accepted()]
    (told,) = bodies(first.send(b"more", tag=b"b"), Detach)
    assert told.error.condition == "amqp:resource-limit-exceeded"
    peer.say(Detach(handle=first.number, closed=True))
    again = attach({b"a": None, b"b": None})
    (answer,) = bodies(again.attached, Attach)
    assert list(answer.unsettled or {}) == [b"a"], "what came in vain is not there, and comes again"
    assert outcomes(again.send(b"more", tag=b"b") + peer.raw(b"")) == [Accepted()]
    assert peer.receiver("r", "/queues/q", credit=9).bodies() == [b"last", b"more"]
