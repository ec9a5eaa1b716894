"""Recoverable receiver links when nodes are lost, or are all started anew: three nodes of each test's own."""

from __future__ import annotations

import asyncio
import os

import pytest

from clusterbroker.broker.wire.amqp10.performatives import Accepted, Modified, Released
from tests.support.amqp10 import read

from ..marks import rule
from .recovering import RECOVERY, ResumingReceiver, lasting_receiver, states, tag_of
from .test_filters import JMS, filters, numbered
from .test_links import fill
from .test_recovery_elsewhere import World
from .test_recovery_elsewhere import world as world  # a fixture
from .test_recovery_filters import RED
from .wire import Delivery

pytestmark = pytest.mark.skipif("CONFORMANCE_URL" in os.environ, reason="it kills nodes of its own")


def holding(world: World, home: str) -> list[Delivery]:
    """Four of five messages are with a link at this node; the last of the four is accepted."""
    session = world.session(home)
    fill(session, "q", 5)
    link = lasting_receiver(session, "q")
    assert link.attach.offered_capabilities == (RECOVERY,)
    link.grant(4)
    held = link.deliveries(4)
    assert [each.message.body for each in held] == [b"0", b"1", b"2", b"3"]
    link.accept(held[3])
    session.settle_down()
    return held


def go_on(world: World, there: str, held: list[Delivery]) -> ResumingReceiver:
    """The client comes back: of what it held it has accepted one, and has one; of a third it has nothing."""
    doubt = {tag_of(held[0]): Accepted(), tag_of(held[1]): None, tag_of(held[3]): Accepted()}
    link = lasting_receiver(world.session(there), "q", doubt)
    known = set(states(link.attach))
    assert known - {tag_of(held[3])} == set(map(tag_of, held[:3]))
    link.grant(9)
    found = [link.frames() for _ in range(len(known))]
    assert [frame.body.delivery_tag for frame in found[:2]] == [tag_of(held[2]), tag_of(held[1])]
    assert [read(frame.payload).body for frame in found[:2]] == [b"2", b"1"]
    assert all(frame.body.settled for frame in found[2:]), "outcomes that the client said"
    link.dispose(found[0].body.delivery_id, found[1].body.delivery_id, state=Accepted())
    return link


@rule("R161", "R165")
@pytest.mark.parametrize("lost", ["the client's node", "the owner", "both"])
def test_what_a_link_holds_is_nobody_elses_when_nodes_are_lost(world: World, lost: str) -> None:
    owner = world.owner("q")
    home = owner if lost == "both" else world.others(owner)[0]
    held = holding(world, home)
    world.kill(owner if lost == "the owner" else home)
    there = world.others(owner, home)[0]
    other = world.session(there).receiver("/queues/q", credit=9)
    assert other.delivery().message.body == b"4"
    assert other.waiting() == 0, "nobody else gets what the link holds"
    link = go_on(world, there, held)
    fill(world.session(there), "q", 2)
    assert sorted((link.delivery().message.body, other.delivery().message.body)) == [b"0", b"1"], "both go on"
    link.detach()
    other.detach()
    assert sorted(world.bodies(there, 3)) == [b"0", b"1", b"4"], "all else was accepted"


def restart(world: World) -> None:
    """All nodes are killed and started."""
    for name in world.cluster.names:
        world.kill(name)

    async def start() -> None:
        await asyncio.gather(*(world.cluster.start(name) for name in world.cluster.names))

    asyncio.run(start())


@rule("R172")
def test_what_a_link_holds_survives_a_full_restart(world: World) -> None:
    held = holding(world, "a")
    restart(world)
    other = world.session("c").receiver("/queues/q", credit=9)
    assert other.delivery().message.body == b"4"
    assert other.waiting() == 0
    go_on(world, "b", held).detach()
    other.detach()
    assert world.bodies("c", 1) == [b"4"]


@rule("R161", "R165", "E143")
def test_what_a_link_with_a_filter_holds_when_owner_and_node_are_lost(world: World) -> None:
    owner = world.owner("q")
    session = world.session(owner)
    numbered(session, "q", 6)
    link = lasting_receiver(session, "q", filter=filters((JMS, RED)))
    link.grant(2)
    held = link.deliveries(2)
    assert [each.message.body for each in held] == [b"0", b"2"]
    world.kill(owner)
    there, last = world.others(owner)
    other = world.session(there).receiver("/queues/q", credit=9)
    assert other.bodies(4) == [b"1", b"3", b"4", b"5"], "nobody else gets what the link holds"
    doubt = {tag_of(held[0]): None, tag_of(held[1]): Accepted()}
    again = lasting_receiver(world.session(last), "q", doubt, filter=filters((JMS, RED)))
    assert set(states(again.attach)) == {tag_of(held[0]), tag_of(held[1])}
    other.detach()
    again.grant(9)
    found = [again.frames() for _ in range(3)]
    assert [read(frame.payload).body for frame in found if frame.payload] == [b"0", b"4"]


@rule("D102", "R161", "R172")
@pytest.mark.parametrize("lost", ["the owner", "all"])
def test_what_a_link_never_wants_again_is_known_to_the_next_owner(world: World, lost: str) -> None:
    owner = world.owner("q")
    home, there = world.others(owner)
    session = world.session(home)
    fill(session, "q", 4)
    link = lasting_receiver(session, "q")
    link.grant(3)
    one, two, three = link.deliveries(3)
    link.dispose(one.id, state=Modified(undeliverable_here=True))
    link.dispose(two.id, state=Modified(delivery_failed=True, undeliverable_here=True))
    session.settle_down()
    other = world.session(there).receiver("/queues/q", credit=1)
    returned = other.delivery()
    assert returned.message.body == b"0", "it has returned"
    other.dispose(returned.id, state=Released())
    other.detach()
    if lost == "all":
        restart(world)
    else:
        world.kill(owner)
    session = world.session(home)
    link = lasting_receiver(session, "q", {tag_of(three): None})
    link.grant(9)
    found = [link.frames() for _ in range(2)]
    assert sorted(read(frame.payload).body for frame in found) == [b"2", b"3"]
    assert link.waiting() == 0, "what it excluded passes it by"
    assert sorted(world.session(there).receiver("/queues/q", credit=9).bodies(2)) == [b"0", b"1"]
