"""What subscriptions of JMS topics leave out: by their selectors, which keep nothing else (rule Z185), and by no-local
(E148)."""

from __future__ import annotations

import pytest

from clusterbroker.broker.wire.amqp10.performatives import Accepted, Header, Properties, Released, Source
from clusterbroker.broker.wire.amqp10.types import Described, Symbol
from clusterbroker.broker.wire.numbers import Int8, UInt64

from ..marks import rule
from ..wire import Channel, eventually
from .conftest import Connect10
from .test_subscriptions import DURABLE, Clients, publisher, selected, subscribe, taken
from .test_subscriptions import clients as clients  # a fixture
from .test_subscriptions import topic as topic  # a fixture
from .test_transactions import Coordinating, post
from .wire import Receiver, Session


def at_rest(channel: Channel, queue: str, count: int) -> None:
    """So many messages are in the queue of a subscription."""
    eventually(lambda: channel.message_count(queue) == count)


@rule("Z185", "E143")
def test_a_subscription_keeps_what_its_selector_takes(clients: Clients, topic: str, channel: Channel) -> None:
    peer = clients.peer()
    session, queue = peer.session(), f"{clients.container}|sub"
    receiver = subscribe(session, topic, name="sub", filter=selected("n > 6"), **DURABLE)
    every = subscribe(session, topic, credit=20)
    sender = publisher(session, topic)
    for number in range(10):
        sent = sender.send(b"%d" % number, application={"n": number}, header=Header(durable=True))
        assert sent == Accepted()
    assert len(every.bodies(10)) == 10, "others of the topic have all"
    assert channel.message_count(queue) == 3
    receiver.detach(closed=False)
    for number in range(10):
        assert sender.send(b"%d" % number, application={"n": number}) == Accepted(), "while it is away"
    channel.basic_publish("amq.topic", topic, b"of the other protocol", headers={"n": 8})
    at_rest(channel, queue, 7)
    peer.close()
    receiver = subscribe(clients.session(), topic, name="sub", credit=20, filter=selected("n > 6"), **DURABLE)
    assert sorted(taken(receiver, 7)) == sorted([*[b"7", b"8", b"9"] * 2, b"of the other protocol"])
    at_rest(channel, queue, 0)
    receiver.detach()


@rule("Z185", "E143")
@pytest.mark.parametrize("overflow", ["reject-publish", "drop-head"])
def test_what_is_not_kept_takes_no_room(channel: Channel, topic: str, overflow: str) -> None:
    queue = channel.queue_declare("", exclusive=True, arguments={
        "x-subscription": topic, "x-selector": "n = 1", "x-max-length": 2, "x-overflow": overflow,
    }).queue  # fmt: skip
    channel.queue_bind(queue, "amq.topic", topic)
    channel.confirm_select()
    numbers = [1, *range(2, 12), 1]
    for number in numbers:
        channel.basic_publish("amq.topic", topic, b"%d" % number, headers={"n": number})
    assert set(channel.confirms(len(numbers))) == {"ack"}
    assert channel.message_count(queue) == 2
    assert [channel.basic_get(queue, no_ack=True).body for _ in range(2)] == [b"1", b"1"]


@rule("Z185", "E142")
def test_a_queue_with_a_bad_selector_is_a_queue(channel: Channel, topic: str) -> None:
    queue = channel.queue_declare("", exclusive=True, arguments={"x-subscription": topic, "x-selector": "n ="}).queue
    channel.basic_publish("", queue, b"x")
    at_rest(channel, queue, 1)


@rule("Z185", "E143")
def test_a_shared_subscription_keeps_what_its_selector_takes(clients: Clients, topic: str, channel: Channel) -> None:
    one, two = clients.session(), clients.session()
    first = subscribe(one, topic, "shared", name="sub", filter=selected("n = 1"), **DURABLE)
    second = subscribe(two, topic, "shared", name="sub|2", filter=selected("n = 1"), **DURABLE)
    third = subscribe(two, topic, "shared", name="sub|3", filter=selected("n = 2"), **DURABLE)
    third.detached("amqp:precondition-failed")
    sender = publisher(one, topic)
    for number in (1, 2, 1, 3):
        assert sender.send(b"%d" % number, application={"n": number}) == Accepted()
    at_rest(channel, f"{clients.container}|sub", 2)
    first.grant(1)
    second.grant(1)
    assert taken(first, 1) + taken(second, 1) == [b"1", b"1"]
    second.detach()
    first.detach()


@rule("Z185", "E143")
def test_dead_letters_and_transactions_are_judged_as_well(clients: Clients, topic: str, channel: Channel) -> None:
    session, queue = clients.session(), f"{clients.container}|sub"
    receiver = subscribe(session, topic, name="sub", filter=selected("n = 1"), **DURABLE)
    source = channel.queue_declare("", exclusive=True, arguments={
        "x-dead-letter-exchange": "amq.topic", "x-dead-letter-routing-key": topic, "x-message-ttl": 0,
    }).queue  # fmt: skip
    for number in (1, 2, 1):
        channel.basic_publish("", source, b"%d" % number, headers={"n": number})
    at_rest(channel, queue, 2)
    channel.tx_select()
    for number in (2, 1):
        channel.basic_publish("amq.topic", topic, b"%d" % number, headers={"n": number})
    channel.tx_commit()
    at_rest(channel, queue, 3)
    receiver.grant(5)
    assert taken(receiver, 3) == [b"1"] * 3
    receiver.detach()


# -- no-local

NO_LOCAL = {Symbol("no-local"): Described(UInt64(0x0000468C00000003), [])}


def is_local(receiver: Receiver) -> bool:
    """Whether it has messages of its own container: no-local is not in force."""
    assert isinstance(receiver.attach.source, Source)
    return Symbol("no-local") not in (receiver.attach.source.filter or {})


@rule("E148")
def test_no_local_leaves_out_what_the_same_client_publishes(
    clients: Clients, connect10: Connect10, topic: str, channel: Channel
) -> None:
    session, other = clients.session(), connect10(container="another").session()
    receiver = subscribe(session, topic, credit=9, filter=NO_LOCAL)
    assert not is_local(receiver)
    every = subscribe(session, topic, credit=9)
    own = publisher(session, topic)
    assert own.send(b"own") == Accepted()
    to_topic = {"annotations": {Symbol("x-opt-jms-dest"): Int8(1)}, "properties": Properties(to=topic)}
    assert session.sender(None).send(b"anonymous", **to_topic) == Accepted()
    assert own.send(b"copied", annotations={Symbol("x-cc"): [f"{topic}.more"]}) == Accepted()
    assert publisher(clients.session(), topic).send(b"over another connection") == Accepted()
    assert publisher(other, topic).send(b"of another client") == Accepted()
    assert receiver.bodies(1) == [b"of another client"]
    channel.basic_publish("amq.topic", topic, b"of the other protocol")
    assert receiver.bodies(1) == [b"of the other protocol"]
    assert receiver.waiting() == 0
    assert len(every.bodies(6)) == 6, "another subscription has all"
    every.detach()
    assert own.send(b"to nobody") == Accepted(), "a topic takes what nobody wants"
    assert session.sender(f"/exchanges/amq.topic/{topic}").send(b"to nobody") == Released()


@rule("E148", "Y150")
def test_no_local_holds_in_transactions(clients: Clients, topic: str) -> None:
    session = clients.session()
    receiver, every = subscribe(session, topic, credit=9, filter=NO_LOCAL), subscribe(session, topic, credit=9)
    coordinator = Coordinating(session)
    transaction = coordinator.declare()
    assert post(publisher(session, topic), transaction, b"own") == Accepted()
    assert coordinator.discharge(transaction) == Accepted()
    assert every.bodies(1) == [b"own"]
    assert receiver.waiting() == 0


@rule("E148", "Z185")
def test_no_local_of_a_durable_subscription(clients: Clients, connect10: Connect10, topic: str) -> None:
    peer = clients.peer()
    both = NO_LOCAL | selected("n = 1")
    receiver = subscribe(peer.session(), topic, name="sub", filter=both, **DURABLE)
    assert not is_local(receiver)
    receiver.detach(closed=False)
    peer.close()
    session, other = clients.session(), connect10(container="another").session()
    own, theirs = publisher(session, topic), publisher(other, topic)
    for number in (1, 2):
        assert own.send(b"own", application={"n": number}) == Accepted()
        assert theirs.send(b"%d" % number, application={"n": number}) == Accepted()
    found = session.receiver(None, name="sub", sourceless=True)
    assert not is_local(found), "the subscription that is looked up says so"
    found.detach(closed=False)
    receiver = subscribe(session, topic, name="sub", credit=9, filter=both, **DURABLE)
    assert taken(receiver, 1) == [b"1"]
    assert receiver.waiting() == 0
    receiver.detach(closed=False)
    assert theirs.send(b"1", application={"n": 1}) == Accepted()
    receiver = subscribe(session, topic, name="sub", credit=9, filter=selected("n = 1"), **DURABLE)
    assert is_local(receiver)
    assert receiver.waiting() == 0, "without no-local it is another subscription"
    assert own.send(b"own", application={"n": 1}) == Accepted()
    assert taken(receiver, 1) == [b"own"]
    receiver.detach()


@rule("E148")
def test_where_no_local_is_not_in_force(session: Session, topic: str, queue: str) -> None:
    """Of what others share, and of queues: it is absent from the answer, and own messages come."""
    shared = subscribe(session, topic, "shared", name="sub|volatile1", credit=1, filter=NO_LOCAL)
    assert is_local(shared)
    assert publisher(session, topic).send(b"own") == Accepted()
    assert shared.bodies(1) == [b"own"]
    receiver = session.receiver(f"/queues/{queue}", credit=1, filter=NO_LOCAL)
    assert is_local(receiver)
    assert session.sender(f"/queues/{queue}").send(b"own") == Accepted()
    assert receiver.bodies(1) == [b"own"]
