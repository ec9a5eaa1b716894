"""Subscriptions of JMS topics (rule Z185)."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from clusterbroker.broker.wire.amqp10.performatives import Accepted, Properties, Released, Source, Target
from clusterbroker.broker.wire.amqp10.types import Described, Symbol
from clusterbroker.broker.wire.numbers import Int8, UInt64

from ..marks import rule
from ..wire import Channel, eventually
from .conftest import Connect10
from .wire import Peer, Receiver, Sender, Session

DURABLE = {"durable": 2, "expiry_policy": "never"}


@pytest.fixture
def topic() -> str:
    return f"conf.topic.{uuid.uuid4().hex}"


class Clients:
    """Connections of one container, and so of one subscriber."""

    def __init__(self, connect10: Connect10, container: str) -> None:
        self._connect10 = connect10
        self.container = container

    def peer(self) -> Peer:
        return self._connect10(container=self.container)

    def session(self) -> Session:
        return self.peer().session()


@pytest.fixture
def clients(connect10: Connect10) -> Clients:
    return Clients(connect10, f"conf-{uuid.uuid4().hex}")


def subscribe(session: Session, address: str, *capabilities: str, name: str = "", **fields: Any) -> Receiver:
    """A receiver of a topic."""
    return session.receiver(address, name=name, capabilities=("topic", *capabilities), **fields)


def publisher(session: Session, address: str) -> Sender:
    return session.sender(None, target=Target(address=address, capabilities=("topic",)))


def nobody(session: Session, topic: str) -> bool:
    """Whether nobody subscribes to the topic: what is sent to its exchange finds no queue."""
    return session.sender(f"/exchanges/amq.topic/{topic}").send(b"for nobody") == Released()


def unsubscribed(session: Session, name: str, **fields: Any) -> None:
    """Ends a durable subscription as clients of JMS do."""
    link = session.receiver(None, name=name, sourceless=True, **fields)
    assert link.attach.source is not None, link.attach
    assert link.detach().error is None


def taken(receiver: Receiver, count: int) -> list[bytes]:
    """Bodies of so many deliveries, which are accepted."""
    deliveries = receiver.deliveries(count)
    receiver.accept(*deliveries)
    return [known.message.body for known in deliveries]


@rule("Z185")
def test_each_subscription_has_each_message(session: Session, topic: str) -> None:
    one, two = subscribe(session, topic, credit=10), subscribe(session, topic, credit=10)
    sender = publisher(session, topic)
    assert [sender.send(b"%d" % number) for number in range(3)] == [Accepted()] * 3
    for receiver in (one, two):
        assert receiver.bodies(3) == [b"0", b"1", b"2"]
    one.detach()
    two.detach(closed=False)
    assert nobody(session, topic), "they were not durable"
    assert sender.send(b"to nobody") == Accepted(), "a topic takes what nobody subscribes to"


@rule("Z185")
def test_wildcards_and_other_exchanges(session: Session, topic: str) -> None:
    receiver = subscribe(session, f"{topic}.#", credit=10)
    assert publisher(session, f"{topic}.a.b").send(b"x") == Accepted()
    assert receiver.bodies(1) == [b"x"]
    receiver = subscribe(session, f"/exchanges/amq.fanout/{topic}", credit=10)
    assert session.sender("/exchanges/amq.fanout").send(b"y") == Accepted()
    assert receiver.bodies(1) == [b"y"]
    subscribe(session, f"/exchanges/conf-none/{topic}").detached("amqp:not-found")
    subscribe(session, f"/queues/{topic}").detached("amqp:invalid-field")


@rule("Z185")
def test_a_topic_is_no_queue_of_its_name(session: Session, queue: str) -> None:
    receiver = subscribe(session, queue, credit=1)
    assert publisher(session, queue).send(b"to the topic") == Accepted()
    assert receiver.bodies(1) == [b"to the topic"]
    assert session.receiver(f"/queues/{queue}", credit=1).waiting() == 0


@rule("Z185")
def test_an_anonymous_sender_says_that_it_means_a_topic(session: Session, queue: str) -> None:
    receiver = subscribe(session, queue, credit=1)
    sender = session.sender(None)
    annotations = {Symbol("x-opt-jms-dest"): Int8(1)}
    assert sender.send(b"x", annotations=annotations, properties=Properties(to=queue)) == Accepted()
    assert receiver.bodies(1) == [b"x"]
    assert sender.send(b"y", properties=Properties(to=queue)) == Accepted(), "the queue"
    assert receiver.waiting() == 0
    annotated = {"annotations": annotations, "properties": Properties(to=f"{queue}.none")}
    assert sender.send(b"z", **annotated) == Accepted(), "a topic without subscribers"


@rule("Z185")
def test_a_durable_subscription_outlives_its_connection(clients: Clients, topic: str) -> None:
    peer = clients.peer()
    receiver = subscribe(peer.session(), topic, name="sub", **DURABLE)
    source = receiver.attach.source
    assert isinstance(source, Source)
    assert (source.address, source.expiry_policy, source.capabilities) == (topic, "never", ("topic",))
    receiver.detach(closed=False)
    peer.close()
    session = clients.session()
    assert publisher(session, topic).send(b"while it was away") == Accepted()
    receiver = subscribe(session, topic, name="sub", credit=1, **DURABLE)
    assert taken(receiver, 1) == [b"while it was away"]
    receiver.detach()
    assert nobody(session, topic), "closing it has ended it"


@rule("Z185")
def test_unsubscribe_looks_the_subscription_up(clients: Clients, topic: str) -> None:
    session = clients.session()
    selector = {Symbol("s"): Described(UInt64(0x0000468C00000004), "colour = 'red'")}
    subscribe(session, topic, name="sub", filter=selector, **DURABLE).detach(closed=False)
    found = session.receiver(None, name="sub", sourceless=True)
    source = found.attach.source
    assert isinstance(source, Source)
    assert str(source.address).endswith(topic)
    assert source.durable
    assert "topic" in source.capabilities
    found.detach(closed=False)
    unsubscribed(session, "sub")
    session.receiver(None, name="sub", sourceless=True).detached("amqp:not-found", "sub")
    assert nobody(session, topic)


@rule("Z185")
def test_sharers_of_a_subscription(clients: Clients, topic: str) -> None:
    one, two = clients.session(), clients.session()
    first = subscribe(one, topic, "shared", name="sub", credit=1, **DURABLE)
    second = subscribe(two, topic, "shared", name="sub|2", credit=1, **DURABLE)
    sender = publisher(one, topic)
    assert [sender.send(b"%d" % number) for number in range(2)] == [Accepted()] * 2
    assert sorted(taken(first, 1) + taken(second, 1)) == [b"0", b"1"]
    assert first.detach().error is None
    assert sender.send(b"2") == Accepted(), "the other one goes on"
    second.grant(1)
    assert taken(second, 1) == [b"2"]
    second.detach()
    assert nobody(one, topic)


@rule("Z185")
def test_one_that_is_not_shared_is_one_link_s(clients: Clients, topic: str) -> None:
    """Of two with the same identity the later one has it; another node refuses it as long as it has a consumer."""
    one, two = clients.session(), clients.session()
    receiver = subscribe(one, topic, name="sub", **DURABLE)
    later = subscribe(two, topic, name="sub", **DURABLE)
    if one.peer.socket.getpeername() == two.peer.socket.getpeername():
        receiver.detached("amqp:link:stolen")
    else:
        later.detached("amqp:resource-locked")
        later = receiver
    later.detach()


@rule("Z185")
def test_a_global_subscription_is_everybodys(connect10: Connect10, topic: str) -> None:
    name = f"sub-{uuid.uuid4().hex}"
    one, two = connect10().session(), connect10().session()
    first = subscribe(one, topic, "shared", "global", name=f"{name}|global", **DURABLE)
    subscribe(two, topic, "shared", "global", name=f"{name}|global2", credit=1, **DURABLE)
    source = first.attach.source
    assert isinstance(source, Source)
    assert set(source.capabilities) == {"topic", "shared", "global"}
    first.detach(closed=False)
    assert publisher(one, topic).send(b"x") == Accepted()
    one.peer.close()
    two.peer.close()
    session = connect10().session()
    receiver = subscribe(session, topic, "shared", "global", name=f"{name}|global", credit=1, **DURABLE)
    assert taken(receiver, 1) == [b"x"]
    receiver.detach(closed=False)
    unsubscribed(session, f"{name}|global")


@rule("Z185")
def test_a_shared_subscription_that_is_not_durable(clients: Clients, topic: str) -> None:
    one, two = clients.session(), clients.session()
    first = subscribe(one, topic, "shared", name="sub|volatile1")
    second = subscribe(two, topic, "shared", name="sub|volatile2")
    sender = publisher(one, topic)
    first.detach()
    assert sender.send(b"x") == Accepted()
    second.grant(1)
    assert taken(second, 1) == [b"x"]
    second.detach()
    eventually(lambda: nobody(one, topic))


@rule("Z185")
def test_another_topic_or_selector_is_another_subscription(clients: Clients, topic: str) -> None:
    session = clients.session()
    old, new = publisher(session, topic), publisher(session, f"{topic}.new")
    subscribe(session, topic, name="sub", **DURABLE).detach(closed=False)
    assert old.send(b"old") == Accepted()
    receiver = subscribe(session, f"{topic}.new", name="sub", credit=5, **DURABLE)
    assert nobody(session, topic)
    assert new.send(b"new") == Accepted()
    assert taken(receiver, 1) == [b"new"]
    receiver.detach(closed=False)
    assert new.send(b"for no selector") == Accepted()
    selector = {Symbol("s"): Described(Symbol("apache.org:selector-filter:string"), "n > 3")}
    receiver = subscribe(session, f"{topic}.new", name="sub", credit=5, filter=selector, **DURABLE)
    assert receiver.waiting() == 0
    receiver.detach()
    shared = subscribe(session, topic, "shared", name="shared", **DURABLE)
    subscribe(session, f"{topic}.new", "shared", name="shared|2", **DURABLE).detached("amqp:precondition-failed")
    shared.detach()


def selected(selector: str) -> dict[Any, Any]:
    return {Symbol("s"): Described(Symbol("apache.org:selector-filter:string"), selector)}


@rule("Z185")
def test_selectors_of_subscriptions(clients: Clients, topic: str) -> None:
    session = clients.session()
    odd = subscribe(session, topic, credit=10, filter=selected("n IN (1, 3)"))
    even = subscribe(session, topic, name="sub", credit=10, filter=selected("n = 2"), **DURABLE)
    source = even.attach.source
    assert isinstance(source, Source)
    assert source.filter, "it is in force"
    sender = publisher(session, topic)
    for number in range(4):
        assert sender.send(b"%d" % number, application={"n": number}) == Accepted()
    assert odd.bodies(2) == [b"1", b"3"]
    assert taken(even, 1) == [b"2"]
    even.detach(closed=False)
    assert sender.send(b"again", application={"n": 2}) == Accepted()
    subscribe(session, topic, name="sub", filter=selected("n ="), **DURABLE).detached("amqp:invalid-field")
    even = subscribe(session, topic, name="sub", credit=10, filter=selected("n = 2"), **DURABLE)
    assert taken(even, 1) == [b"again"], "a bad selector has not ended it"
    even.detach()


@rule("Z185")
def test_what_is_no_subscription(clients: Clients, topic: str) -> None:
    session = clients.session()
    session.sender(None, target=Target(address=topic, capabilities=("queue",)), waits=False).detached("amqp:not-found")
    subscribe(session, topic, name="|x", **DURABLE).detached("amqp:invalid-field")
    session.receiver(None, name="never-was", sourceless=True).detached("amqp:not-found", "never-was")
    subscribe(session, topic, name="x" * 250, **DURABLE).detached("amqp:invalid-field", "255 bytes")


@rule("Z185")
def test_a_queue_that_is_no_subscription_is_left_alone(clients: Clients, topic: str, channel: Channel) -> None:
    name = f"{clients.container}|sub"
    channel.queue_declare(name, exclusive=False, auto_delete=True)
    channel.consume(name)
    session = clients.session()
    eventually(lambda: session.sender(f"/queues/{name}", waits=False).attach.target is not None)
    subscribe(session, topic, name="sub", **DURABLE).detached("amqp:precondition-failed", "no subscription")
    session.receiver(None, name="sub", sourceless=True).detached("amqp:not-found")


@rule("Z185")
def test_durable_and_volatile_ones_of_one_name_are_two(clients: Clients, topic: str) -> None:
    session = clients.session()
    durable = subscribe(session, topic, "shared", name="sub", credit=1, **DURABLE)
    volatile = subscribe(session, topic, "shared", name="sub|volatile1", credit=1)
    assert publisher(session, topic).send(b"to both") == Accepted()
    assert taken(durable, 1) == taken(volatile, 1) == [b"to both"]
    volatile.detach()
    durable.detach()


@rule("Z185")
def test_rights_on_subscriptions(connect10_as: Connect10, topic: str) -> None:
    session = connect10_as("conf-reader").session()
    subscribe(session, topic).detached("amqp:unauthorized-access")
    subscribe(session, topic, name="sub", **DURABLE).detached("amqp:unauthorized-access")
    session.receiver(None, name="sub", sourceless=True).detached("amqp:unauthorized-access")


@rule("Z185")
def test_temporary_topics(connect10: Connect10) -> None:
    session, other = connect10().session(), connect10().session()
    creator = session.sender(None, target=Target(dynamic=True, capabilities=("temporary-topic",)))
    target = creator.attach.target
    assert isinstance(target, Target)
    assert target.dynamic
    address = target.address
    assert isinstance(address, str)
    one, two = (session.receiver(address, credit=1, capabilities=("temporary-topic",)) for _ in range(2))
    sender = other.sender(None, target=Target(address=address, capabilities=("temporary-topic",)))
    eventually(lambda: sender.send(b"x") == Accepted())
    assert one.bodies(1) == two.bodies(1) == [b"x"]
    receiver = session.receiver(None, dynamic=True, capabilities=("temporary-topic",), credit=1)
    source = receiver.attach.source
    assert isinstance(source, Source)
    assert str(source.address).startswith("/exchanges/amq.topic/amq.gen-")
    assert session.sender(source.address).send(b"y") == Accepted()
    assert receiver.bodies(1) == [b"y"]


@rule("Z185")
def test_shared_subscriptions_are_offered(peer: Peer) -> None:
    assert "SHARED-SUBS" in peer.opened.offered_capabilities
