"""Credit and windows as large as their fields can say: 2^32 - 1."""

from __future__ import annotations

import pytest

from clusterbroker.broker.wire.amqp10.performatives import Flow
from tests.unit.broker.fronts.amqp10.harness import Peer, world_with

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
