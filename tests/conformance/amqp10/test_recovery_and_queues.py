"""Links in the queues' logs, and what becomes of their queues, exchanges and names meanwhile (rules R)."""

from __future__ import annotations

import time

import pytest

from clusterbroker.broker.wire.amqp10.performatives import Accepted, Disposition
from tests.support.amqp10 import message

from ..channel import Channel
from ..marks import rule
from ..target import PASSWORD
from ..test_declare import missing
from ..wire import Connection, eventually
from .conftest import Connect10
from .recovering import lasting, lasting_receiver, ready, receiver, suspend, tag_of
from .test_links import fill
from .wire import Delivery, Receiver, Session


def one(link: Receiver) -> Delivery:
    """The next delivery."""
    link.grant(1)
    return link.delivery()


@rule("R164")
@pytest.mark.parametrize("kind", ["x-random", "x-local-random"])
def test_an_exchange_that_chooses_gives_a_repeat_to_the_same_queue(
    connect10: Connect10, queue: str, channel: Channel, kind: str
) -> None:
    exchange, names = f"{queue}-x", [f"{queue}-{number}" for number in range(5)]
    channel.exchange_declare(exchange, kind, durable=True)
    for name in names:
        channel.queue_declare(name, durable=True)
        channel.queue_bind(name, exchange)
    tags = [b"%d" % number for number in range(20)]
    first = connect10(container=queue)
    link = lasting(first.session(), f"/exchanges/{exchange}")
    for tag in tags:
        assert link.outcome(link.post(tag, tag=tag)) == Accepted()
    first.abandon()
    again = lasting(connect10(container=queue).session(), f"/exchanges/{exchange}", unsettled=dict.fromkeys(tags))
    for tag in tags:
        assert again.outcome(again.transfer(message(tag), delivery_tag=tag, resume=True)) == Accepted()
    assert sum(channel.message_count(name) for name in names) == len(tags)


@rule("R164")
def test_what_has_waited_at_an_exchange_is_known_there_when_its_time_is_over(
    connect10: Connect10, queue: str, channel: Channel
) -> None:
    exchange = f"{queue}-x"
    channel.exchange_declare(exchange, "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"})
    channel.queue_bind(queue, exchange)
    first = connect10(container=queue)
    link = lasting(first.session(), f"/exchanges/{exchange}")
    late = message(b"late", annotations={"x-opt-delivery-time": int(time.time() * 1000) + 300})
    assert link.outcome(link.transfer(late, delivery_tag=b"late")) == Accepted()
    first.abandon()
    ready(channel, queue, 1)
    again = lasting(connect10(container=queue).session(), f"/exchanges/{exchange}", unsettled={b"late": None})
    assert again.outcome(again.transfer(late, delivery_tag=b"late", resume=True)) == Accepted()
    over = message(b"over", annotations={"x-opt-delivery-time": 1})
    assert again.outcome(again.transfer(over, delivery_tag=b"over")) == Accepted()
    eventually(lambda: channel.message_count(queue) > 1)
    assert [channel.basic_get(queue, no_ack=True).body for _ in range(2)] == [b"late", b"over"]
    ready(channel, queue, 0)


@rule("R164")
def test_a_delivery_in_doubt_that_comes_again_settled_is_stored_once(
    connect10: Connect10, queue: str, channel: Channel
) -> None:
    place = f"/exchanges/amq.direct/{queue}"
    channel.queue_bind(queue, "amq.direct", queue)
    first = connect10(container=queue)
    link = lasting(first.session(), place)
    assert link.outcome(link.post(b"1", tag=b"t")) == Accepted()
    first.abandon()
    again = lasting(connect10(container=queue).session(), place, unsettled={b"t": None, b"lost": None})
    again.transfer(message(b"1"), delivery_tag=b"t", resume=True, settled=True)
    again.transfer(message(b"2"), delivery_tag=b"lost", resume=True, settled=True)
    assert again.outcome(again.post(b"3", tag=b"t")) == Accepted()  # another delivery of that tag
    assert [channel.basic_get(queue, no_ack=True).body for _ in range(3)] == [b"1", b"2", b"3"]


@rule("R169")
def test_another_queue_of_the_name_knows_nothing_of_a_map(connect10: Connect10, queue: str, channel: Channel) -> None:
    first = connect10(container=queue)
    session = first.session()
    fill(session, queue, 1)
    tag = tag_of(one(lasting_receiver(session, queue)))
    first.abandon()
    channel.queue_delete(queue)
    channel.queue_declare(queue, durable=True)
    later = connect10(container=queue).session()
    fill(later, queue, 1)
    ended = lasting_receiver(later, queue, {tag: Accepted()})
    ended.detached("amqp:resource-deleted")
    new = one(lasting_receiver(later, queue))
    assert (new.message.body, tag_of(new)[:8], tag_of(new) != tag) == (b"0", tag[:8], True)


@rule("R165")
def test_a_queue_is_in_use_while_a_suspended_link_holds_its_messages(
    connect10: Connect10, queue: str, channel: Channel, connection: Connection
) -> None:
    name = f"{queue}-a"
    channel.queue_declare(name, durable=True, auto_delete=True)
    session = connect10(container=queue).session()
    fill(session, name, 1)
    link = lasting_receiver(session, name)
    tag = tag_of(one(link))
    suspend(link)
    again = lasting_receiver(session, name, {tag: None})
    again.accept(one(again))
    again.detach()
    eventually(lambda: missing(connection, name))


@rule("R168")
@pytest.mark.parametrize("is_attached", [False, True])
def test_a_plain_link_takes_the_place_of_one_in_the_logs(
    connect10: Connect10, queue: str, channel: Channel, is_attached: bool
) -> None:
    first = connect10(container=queue)
    session = first.session()
    fill(session, queue, 1)
    link = lasting_receiver(session, queue)
    one(link)
    if not is_attached:
        first.abandon()
    plain = receiver(connect10(container=queue).session(), queue)
    assert one(plain).message.body == b"0"


@rule("R168")
def test_nobody_takes_the_name_of_another_users_link(connect10: Connect10, provisioned: object, queue: str) -> None:
    first = connect10(container=queue)
    lasting_receiver(first.session(), queue)
    first.abandon()
    other = connect10(user="conf-all", password=PASSWORD, container=queue).session()
    receiver(other, queue, waits=False).detached("amqp:unauthorized-access")


@rule("D104", "D107")
def test_a_range_over_links_of_both_modes_is_settled(session: Session, queue: str) -> None:
    fill(session, queue, 2)
    first = session.receiver(f"/queues/{queue}", credit=1).delivery()
    second = one(receiver(session, queue, second=True))
    session.say(Disposition(role=True, first=first.id, last=second.id, settled=False, state=Accepted()))
    session.wait_settled(first.id)
    session.wait_settled(second.id)
