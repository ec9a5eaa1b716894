"""Links whose state a node keeps: resumed over another connection to the same node (rules R)."""

from __future__ import annotations

from clusterbroker.broker.wire.amqp10.performatives import (
    Accepted,
    Detach,
    Disposition,
    Error,
    Flow,
    Received,
    Target,
    Transfer,
)
from tests.support.amqp10 import message

from ..marks import rule
from ..target import PASSWORD
from ..wire import Channel
from .conftest import Connect10
from .recovering import (
    KEPT_S,
    ready,
    receiver,
    sender,
    states,
    suspend,
    tag_of,
)
from .test_links import fill
from .wire import Session


@rule("R160", "R162")
def test_a_sender_comes_back_over_a_new_connection(connect_here: Connect10, queue: str, channel: Channel) -> None:
    first = connect_here(container=queue)
    link = sender(first.session(), queue, name="s")
    assert link.outcome(link.post(b"1", tag=b"told")) == Accepted()
    link.transfer(message(b"2")[:3], delivery_tag=b"cut", more=True)
    link.session.settle_down()
    first.abandon()
    session = connect_here(container=queue).session()
    again = sender(session, queue, name="s", unsettled={b"told": None, b"cut": None, b"lost": None})
    told = states(again.attach)
    assert told[b"told"] == Accepted()
    assert isinstance(told[b"cut"], Received)
    assert b"lost" not in told
    assert again.outcome(again.transfer(message(b"2"), delivery_tag=b"cut", resume=True)) == Accepted()
    assert again.outcome(again.transfer(message(b"3"), delivery_tag=b"lost", resume=True)) == Accepted()
    ready(channel, queue, 3)


@rule("R160", "R165")
def test_a_receiver_comes_back_over_a_new_connection(connect_here: Connect10, queue: str) -> None:
    first = connect_here(container=queue)
    fill(first.session(), queue, 4)
    link = receiver(first.session(), queue, unsettled={}, timeout=KEPT_S)
    link.grant(3)
    held = link.deliveries(3)
    first.abandon()
    peer = connect_here(container=queue)
    other = peer.session().receiver(f"/queues/{queue}", credit=9)
    assert other.delivery().message.body == b"3"
    assert other.waiting() == 0, "nobody else gets what the link holds"
    again = receiver(
        peer.session(), queue, unsettled={tag_of(held[0]): Accepted(), tag_of(held[1]): None}, timeout=KEPT_S
    )
    again.grant(9)
    found = [again.frames() for _ in range(3)]
    assert [frame.body.delivery_tag for frame in found] == [tag_of(held[2]), tag_of(held[1]), tag_of(held[0])]
    assert [frame.body.settled for frame in found] == [False, False, True]


@rule("R163")
def test_what_comes_again_is_stored_once(connect_here: Connect10, queue: str, channel: Channel) -> None:
    """Whatever of it had come before the connection was lost."""
    first = connect_here(container=queue)
    link = sender(first.session(), queue, name="s")
    tags = [b"t%03d" % number for number in range(200)]
    for tag in tags:
        link.post(tag, tag=tag)
    first.abandon()
    again = sender(connect_here(container=queue).session(), queue, name="s", unsettled=dict.fromkeys(tags))
    told = states(again.attach)
    for tag in tags:
        if tag not in told:
            assert again.outcome(again.transfer(message(tag), delivery_tag=tag, resume=True)) == Accepted()
    ready(channel, queue, len(tags))
    bodies = again.session.receiver(f"/queues/{queue}", credit=300).bodies(len(tags))
    assert sorted(bodies) == tags


@rule("R164")
def test_an_exchange_brings_it_to_each_queue_once(connect_here: Connect10, channel: Channel, name: object) -> None:
    exchange, queues = name("x"), [name("q") for _ in range(3)]  # type: ignore[operator]
    channel.exchange_declare(exchange, "fanout")
    for queue in queues:
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, exchange, "")
    place = f"/exchanges/{exchange}"
    first = connect_here(container=queue)
    link = first.session().sender(place, name="s", target=Target(address=place, timeout=KEPT_S))
    tags = [b"t%03d" % number for number in range(50)]
    for tag in tags:
        link.post(tag, tag=tag)
    first.abandon()
    session = connect_here(container=queue).session()
    again = session.sender(place, name="s", target=Target(address=place, timeout=KEPT_S), unsettled=dict.fromkeys(tags))
    told = states(again.attach)
    for tag in tags:
        if tag not in told:
            assert again.outcome(again.transfer(message(tag), delivery_tag=tag, resume=True)) == Accepted()
    for queue in queues:
        ready(channel, queue, len(tags))


@rule("R169")
def test_expiry_returns_all_and_refuses_a_map(connect_here: Connect10, queue: str, channel: Channel) -> None:
    first = connect_here(container=queue)
    fill(first.session(), queue, 2)
    link = receiver(first.session(), queue, timeout=1)
    link.grant(2)
    tag = tag_of(link.deliveries(2)[0])
    first.abandon()
    ready(channel, queue, 2)
    session = connect_here(container=queue).session()
    receiver(session, queue, unsettled={tag: None}, timeout=1).detached("amqp:resource-deleted")
    again = receiver(session, queue)
    again.grant(2)
    found = again.deliveries(2)
    assert [one.message.header.delivery_count for one in found] == [0, 0], "the client has not failed at them"
    assert not any(one.message.header.first_acquirer for one in found)


@rule("R169")
def test_a_map_for_a_link_that_nobody_knows(session: Session, queue: str) -> None:
    link = session.sender(f"/queues/{queue}", unsettled={b"t": None}, waits=False)
    link.detached("amqp:resource-deleted")
    receiver(session, queue, unsettled={b"t": None}).detached("amqp:resource-deleted")
    assert session.sender(f"/queues/{queue}", unsettled={}).send(b"x") == Accepted()


@rule("A59")
def test_a_name_is_stolen_over_connections(connect_here: Connect10, queue: str) -> None:
    one, two = connect_here(container=queue), connect_here(container=queue)
    fill(one.session(), queue, 2)
    older = receiver(one.session(), queue, timeout=KEPT_S)
    older.grant(1)
    held = older.delivery()
    newer = receiver(two.session(), queue, unsettled={tag_of(held): None}, timeout=KEPT_S)
    older.detached("amqp:link:stolen")
    newer.grant(2)
    assert [one.message.body for one in newer.deliveries(2)] == [b"0", b"1"]


def test_a_link_of_another_user_is_refused(provisioned: object, connect_here: Connect10, queue: str) -> None:
    one = connect_here(container=queue)
    fill(one.session(), queue, 1)
    link = receiver(one.session(), queue, timeout=KEPT_S)
    link.grant(1)
    tag = tag_of(link.delivery())
    one.abandon()
    stranger = connect_here(user="conf-all", password=PASSWORD, container=queue).session()
    receiver(stranger, queue, unsettled={tag: None}, timeout=KEPT_S).detached("amqp:unauthorized-access")


@rule("R173")
def test_a_tag_that_is_used_again_is_a_new_delivery(connect_here: Connect10, queue: str, channel: Channel) -> None:
    session = connect_here(container=queue).session()
    link = sender(session, queue, name="s")
    for number in range(5):
        assert link.outcome(link.post(b"%d" % number, tag=b"same")) == Accepted()
    ready(channel, queue, 5)
    suspend(link)
    again = sender(session, queue, name="s", unsettled={})
    for number in range(5):
        assert again.outcome(again.post(b"%d" % number, tag=b"same")) == Accepted()
    ready(channel, queue, 10)


@rule("R174")
def test_the_answer_to_an_echo_forgets(connect_here: Connect10, queue: str) -> None:
    first = connect_here(container=queue)
    session = first.session()
    link = sender(session, queue, name="s")
    assert link.outcome(link.post(b"1", tag=b"proven")) == Accepted()
    asked = session.wait(Flow, lambda known: known.handle == link.handle and known.echo)
    total = asked.delivery_count + asked.link_credit
    session.say(session.flow(link.handle, delivery_count=1, link_credit=total - 1))
    session.settle_down()
    assert link.outcome(link.post(b"2", tag=b"doubt")) == Accepted()
    session.wait(Flow, lambda known: known.handle == link.handle and known.echo)
    first.abandon()
    unsettled = {b"proven": None, b"doubt": None}
    again = sender(connect_here(container=queue).session(), queue, name="s", unsettled=unsettled)
    assert states(again.attach) == {b"doubt": Accepted()}


@rule("R174")
def test_an_older_flow_proves_nothing(connect_here: Connect10, queue: str) -> None:
    first = connect_here(container=queue)
    session = first.session()
    link = sender(session, queue, name="s")
    assert link.outcome(link.post(b"1", tag=b"doubt")) == Accepted()
    session.wait(Flow, lambda known: known.handle == link.handle and known.echo)
    session.say(session.flow(link.handle, delivery_count=1, link_credit=999))
    session.settle_down()
    first.abandon()
    again = sender(connect_here(container=queue).session(), queue, name="s", unsettled={b"doubt": None})
    assert states(again.attach) == {b"doubt": Accepted()}


@rule("R175")
def test_bounds_hold_credit_back(connect_here: Connect10, queue: str) -> None:
    session = connect_here(container=queue).session()
    link = sender(session, queue, name="s", second=True)
    credit, sent, first = int(link.granted.link_credit or 0), 0, session.next_id
    while credit:
        for _ in range(credit):
            link.post(b"x")
            sent += 1
        link.disposition(session.next_id - 1)
        session.say(session.flow(link.handle, delivery_count=sent, link_credit=0, echo=True))
        told = session.wait(Flow, lambda known, sent=sent: known.handle == link.handle and known.delivery_count == sent)
        credit = int(told.link_credit or 0)
    assert sent == 4096
    session.say(Disposition(role=False, first=first, last=first + 2999, settled=True))
    assert session.wait(Flow, lambda known: known.handle == link.handle and bool(known.link_credit)).link_credit == 1000


def test_a_map_that_is_none(session: Session, queue: str) -> None:
    for bad in ({"text": None}, {b"t" * 33: None}, {b"t": 7}, {b"t": Error(condition="x")}):
        link = session.sender(f"/queues/{queue}", unsettled=bad, waits=False)
        link.detached("amqp:invalid-field")


def test_a_detached_delivery_is_cut_on_the_wire(connect_here: Connect10, queue: str) -> None:
    """What waits for the session's window does not come for a link that is not there."""
    peer = connect_here(max_frame_size=512)
    filler = peer.session()
    assert filler.sender(f"/queues/{queue}").send(b"x" * 200) == Accepted()
    session = peer.session(incoming_window=0)
    link = receiver(session, queue)
    link.grant(1)
    session.settle_down()
    suspend(link)
    session.incoming_window = 100
    session.say(session.flow())
    session.settle_down()
    assert not [known for known in peer.inbox if isinstance(known.body, (Transfer, Detach))]
