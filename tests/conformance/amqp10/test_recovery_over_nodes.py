"""Links whose state the queues' logs keep: resumed at any node (rules R)."""

from __future__ import annotations

import pytest

from clusterbroker.broker.wire.amqp10.performatives import (
    Accepted,
    Detach,
    Disposition,
    Error,
    Rejected,
    Released,
    Target,
)
from tests.support.amqp10 import message, read

from ..marks import rule
from ..target import PASSWORD
from ..wire import Channel, eventually
from .conftest import Connect10
from .recovering import (
    RECOVERY,
    lasting,
    lasting_receiver,
    ready,
    receiver,
    states,
    suspend,
    tag_of,
)
from .test_links import fill
from .wire import Peer


@rule("R161", "R162", "R163")
@pytest.mark.parametrize("second", [False, True])
def test_a_sender_comes_back_at_any_node(connect10: Connect10, queue: str, channel: Channel, second: bool) -> None:
    place = f"/queues/{queue}"
    first = connect10(container=queue)
    link = lasting(first.session(), place, second=second)
    assert link.attach.offered_capabilities == (RECOVERY,)
    assert isinstance(link.attach.target, Target)
    assert link.attach.target.durable == 2
    assert link.outcome(link.post(b"1", tag=b"told")) == Accepted()
    tags = [b"t%03d" % number for number in range(200)]
    for tag in tags:
        link.post(tag, tag=tag)
    first.abandon()
    doubt = dict.fromkeys((b"told", *tags, b"lost"))
    again = lasting(connect10(container=queue).session(), place, second=second, unsettled=doubt)
    told = states(again.attach)
    assert told.get(b"told") == Accepted()
    assert b"lost" not in told
    for tag in (*tags, b"lost"):
        if tag not in told:
            assert again.outcome(again.transfer(message(tag), delivery_tag=tag, resume=True)) == Accepted()
    ready(channel, queue, 202)


@rule("R164")
def test_an_exchange_of_a_sender_that_comes_back_at_any_node(
    connect10: Connect10, channel: Channel, name: object
) -> None:
    exchange, queues = name("x"), [name("q") for _ in range(3)]  # type: ignore[operator]
    channel.exchange_declare(exchange, "fanout")
    for queue in queues:
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, exchange, "")
    place = f"/exchanges/{exchange}"
    first = connect10(container=queue)
    link = lasting(first.session(), place)
    tags = [b"t%03d" % number for number in range(50)]
    for tag in tags:
        link.post(tag, tag=tag)
    link.disposition(10)
    first.abandon()
    again = lasting(connect10(container=queue).session(), place, unsettled=dict.fromkeys(tags))
    assert states(again.attach) == {}, "for an exchange nobody is asked"
    for tag in tags:
        assert again.outcome(again.transfer(message(tag), delivery_tag=tag, resume=True)) == Accepted()
    for queue in queues:
        ready(channel, queue, len(tags))


@rule("R170")
def test_a_name_is_stolen_over_nodes(connect10: Connect10, queue: str, channel: Channel) -> None:
    place = f"/queues/{queue}"
    older = lasting(connect10(container=queue).session(), place)
    assert older.outcome(older.post(b"1", tag=b"told")) == Accepted()
    newer = lasting(connect10(container=queue).session(), place, unsettled={b"told": None})
    assert states(newer.attach) == {b"told": Accepted()}
    older.detached("amqp:link:stolen")
    assert newer.send(b"2") == Accepted()
    ready(channel, queue, 2)


@rule("R173", "R176")
def test_tags_are_used_again_at_any_node(connect10: Connect10, queue: str, channel: Channel) -> None:
    place = f"/queues/{queue}"
    link = lasting(connect10(container=queue).session(), place, second=True)
    for _ in range(3):
        number = link.post(b"x", tag=b"same")
        assert link.outcome(number) == Accepted()
        link.session.say(Disposition(role=False, first=number, settled=True))
    suspend(link)
    again = lasting(connect10(container=queue).session(), place, second=True, unsettled={})
    assert again.outcome(again.post(b"y", tag=b"same")) == Accepted()
    ready(channel, queue, 4)
    again.detach()
    eventually(lambda: refusal(connect10, queue) == "amqp:resource-deleted")


def refusal(connect10: Connect10, queue: str) -> str:
    """Why a link with a map is refused; empty: it is not, and suspended again."""
    peer = connect10(container=queue)
    session = peer.session()
    place = f"/queues/{queue}"
    target = Target(address=place, durable=2, timeout=1)
    link = session.sender(
        place, name="s", target=target, desired_capabilities=(RECOVERY,), unsettled={b"same": None}, waits=False
    )
    if link.attach.target is not None:
        peer.abandon()
        return ""
    detach = session.wait(Detach)
    assert isinstance(detach.error, Error)
    return str(detach.error.condition)


@rule("R169")
def test_a_lasting_link_expires(connect10: Connect10, queue: str) -> None:
    place = f"/queues/{queue}"
    first = connect10(container=queue)
    target = Target(address=place, durable=2, timeout=1)
    link = first.session().sender(place, name="s", target=target, desired_capabilities=(RECOVERY,))
    assert link.outcome(link.post(b"1", tag=b"same")) == Accepted()
    first.abandon()
    eventually(lambda: refusal(connect10, queue) == "amqp:resource-deleted", 40, pause_s=4)


def test_a_lasting_link_of_another_user(provisioned: object, connect10: Connect10, queue: str) -> None:
    place = f"/queues/{queue}"
    link = lasting(connect10(container=queue).session(), place)
    suspend(link)
    stranger = connect10(container=queue, user="conf-all", password=PASSWORD).session()
    lasting(stranger, place, waits=False).detached("amqp:unauthorized-access")


def test_the_node_offers_links_that_last(peer: Peer) -> None:
    assert RECOVERY in peer.opened.offered_capabilities


@rule("R161", "R165", "R167")
def test_a_receiver_comes_back_at_any_node(connect10: Connect10, queue: str, channel: Channel) -> None:
    first = connect10(container=queue)
    fill(first.session(), queue, 5)
    link = lasting_receiver(first.session(), queue, {})
    assert link.attach.offered_capabilities == (RECOVERY,)
    link.grant(4)
    held = link.deliveries(4)
    link.accept(held[3])
    link.session.settle_down()
    first.abandon()
    other = connect10().session().receiver(f"/queues/{queue}", credit=9)
    assert other.delivery().message.body == b"4"
    assert other.waiting() == 0, "nobody else gets what the link holds"
    doubt = {tag_of(held[0]): Accepted(), tag_of(held[1]): None, tag_of(held[3]): Accepted()}
    again = lasting_receiver(connect10(container=queue).session(), queue, doubt)
    assert set(states(again.attach)) == set(map(tag_of, held[:3])), "what was accepted is settled"
    again.grant(9)
    found = [again.frames() for _ in range(3)]
    assert [frame.body.delivery_tag for frame in found] == [tag_of(held[2]), tag_of(held[1]), tag_of(held[0])]
    assert [frame.body.settled for frame in found] == [False, False, True]
    assert [read(frame.payload).body for frame in found[:2]] == [b"2", b"1"]
    again.dispose(found[0].body.delivery_id, found[1].body.delivery_id, state=Accepted())
    fill(again.session, queue, 1)
    assert again.delivery().message.body == b"0", "and it goes on"
    again.detach()
    other.detach()
    ready(channel, queue, 2)


@rule("R168", "R176")
def test_a_receiver_that_resumes_nothing_at_any_node(connect10: Connect10, queue: str, channel: Channel) -> None:
    first = connect10(container=queue)
    fill(first.session(), queue, 3)
    link = lasting_receiver(first.session(), queue)
    link.grant(2)
    link.deliveries(2)
    first.abandon()
    again = lasting_receiver(connect10(container=queue).session(), queue)
    assert again.attach.unsettled is None
    again.grant(9)
    assert sorted(again.bodies(3)) == [b"0", b"1", b"2"]
    again.detach()
    ready(channel, queue, 3)


@rule("R166")
def test_a_receivers_outcome_is_carried_out_at_any_node(connect10: Connect10, queue: str, channel: Channel) -> None:
    first = connect10(container=queue)
    fill(first.session(), queue, 3)
    link = lasting_receiver(first.session(), queue)
    link.grant(3)
    held = link.deliveries(3)
    first.abandon()
    outcomes = {tag_of(held[0]): Accepted(), tag_of(held[1]): Released(), tag_of(held[2]): Rejected()}
    again = lasting_receiver(connect10(container=queue).session(), queue, outcomes)
    again.detach()
    ready(channel, queue, 1)


@rule("R170")
def test_a_receiver_is_stolen_over_nodes(connect10: Connect10, queue: str) -> None:
    one = connect10(container=queue).session()
    fill(one, queue, 2)
    older = lasting_receiver(one, queue)
    older.grant(1)
    held = older.delivery()
    newer = lasting_receiver(connect10(container=queue).session(), queue, {tag_of(held): None})
    older.detached("amqp:link:stolen")
    newer.grant(2)
    assert sorted(newer.bodies(2)) == [b"0", b"1"]


@rule("R169")
def test_what_a_lasting_receiver_held_returns(connect10: Connect10, queue: str, channel: Channel) -> None:
    first = connect10(container=queue)
    fill(first.session(), queue, 2)
    link = receiver(first.session(), queue, timeout=1, lasting=True)
    link.grant(2)
    tag = tag_of(link.deliveries(2)[0])
    first.abandon()
    ready(channel, queue, 2)
    session = connect10(container=queue).session()
    receiver(session, queue, unsettled={tag: None}, timeout=1, lasting=True).detached("amqp:resource-deleted")
