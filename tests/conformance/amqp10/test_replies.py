"""Direct reply-to between the two protocols, on one node and across nodes (rule P133)."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.wire.amqp10.performatives import Accepted, Attach, Detach, Properties, Released, Source
from clusterbroker.broker.wire.amqp10.types import Symbol

from ..marks import rule
from ..wire import Channel
from .conftest import Connect10
from .management import Pair
from .wire import Receiver, Session, check

VOLATILE: dict[str, Any] = {
    "dynamic": True, "expiry_policy": "link-detach", "capabilities": (Symbol("rabbitmq:volatile-queue"),),
}  # fmt: skip


def requester(session: Session, credit: int = 10) -> tuple[Receiver, str]:
    link = session.receiver(None, settle=1, credit=credit, **VOLATILE)  # type: ignore[arg-type]
    source = link.attach.source
    assert isinstance(source, Source)
    assert source.dynamic
    assert source.address.startswith("/queues/amq.rabbitmq.reply-to.")
    return link, source.address


@rule("P133")
@pytest.mark.parametrize("anonymous", [True, False])
def test_requester_and_responder_of_amqp_10(connect10: Connect10, queue: str, anonymous: bool) -> None:
    asking = connect10().session()
    link, address = requester(asking)
    asking.sender(f"/queues/{queue}").send(b"what?", properties=Properties(reply_to=address, message_id="1"))
    answering = connect10().session()
    server = answering.receiver(f"/queues/{queue}", credit=1)
    request = server.delivery()
    server.accept(request)
    to = request.message.properties.reply_to
    assert to == address
    sender = answering.sender(None if anonymous else to)
    outcome = sender.send(b"that", properties=Properties(to=to, correlation_id="1"))
    assert outcome == Accepted()
    reply = link.delivery()
    assert reply.transfer.settled
    assert (reply.message.body, reply.message.properties.correlation_id) == (b"that", "1")


@rule("P133")
def test_a_requester_of_amqp_10_and_a_responder_of_0_9_1(connect10: Connect10, queue: str, channel: Channel) -> None:
    asking = connect10().session()
    link, address = requester(asking)
    asking.sender(f"/queues/{queue}").send(b"what?", properties=Properties(reply_to=address, message_id="7"))
    request = channel.basic_get(queue, no_ack=True)
    key = request.properties["reply_to"]
    assert key == address.removeprefix("/queues/")
    channel.basic_publish("", key, b"that", correlation_id="7", headers={"n": 1})
    reply = link.delivery().message
    assert (reply.body, reply.properties.correlation_id, reply.application) == (b"that", "7", {"n": 1})


@rule("P133")
def test_a_requester_of_0_9_1_and_a_responder_of_amqp_10(connect10: Connect10, queue: str, channel: Channel) -> None:
    channel.consume("amq.rabbitmq.reply-to", no_ack=True)
    channel.basic_publish("", queue, b"what?", reply_to="amq.rabbitmq.reply-to", correlation_id="3")
    session = connect10().session()
    server = session.receiver(f"/queues/{queue}", credit=1)
    request = server.delivery()
    server.accept(request)
    to = request.message.properties.reply_to
    outcome = session.sender(None).send(b"that", properties=Properties(to=to, correlation_id="3"), application={"n": 1})
    assert outcome == Accepted()
    reply = channel.delivery()
    assert reply.body == b"that"
    assert (reply.properties["correlation_id"], reply.headers["n"]) == ("3", 1)


@rule("P133")
def test_without_credit_a_reply_is_dropped_and_the_address_ends_with_its_link(connect10: Connect10) -> None:
    asking = connect10().session()
    link, address = requester(asking, credit=1)
    answering = connect10().session()
    sender = answering.sender(address)
    assert [sender.send(b"%d" % number) for number in range(2)] == [Accepted()] * 2
    assert link.delivery().message.body == b"0"
    assert link.waiting() == 0
    link.detach()
    assert type(sender.send(b"2")) in (Accepted, Released), "who is at another node is told once, and not asked"
    late = answering.handle()
    attach = sender.attach
    answering.say(Attach(name="late", handle=late, role=False, target=attach.target, initial_delivery_count=0))
    detach = answering.wait(Detach, lambda known: known.handle == late)
    check(detach.error, "amqp:not-found")


@rule("P133")
@pytest.mark.parametrize("wrong", [{"settle": 0}, {"expiry_policy": "never"}, {"durable": 1}, {"timeout": 3}])
def test_what_no_such_address_can_be(connect10: Connect10, wrong: dict[str, Any]) -> None:
    session = connect10().session()
    link = session.receiver(None, **({"settle": 1} | VOLATILE | wrong))  # type: ignore[arg-type]
    link.detached("amqp:invalid-field")


@rule("P133")
def test_a_key_that_nobody_has(connect10: Connect10) -> None:
    session = connect10().session()
    _, address = requester(session)
    session.sender(address[:-8] + "00000000", waits=False).detached("amqp:not-found")


@rule("P133", "G136")
def test_a_responder_asks_whether_its_requester_is_there(connect10: Connect10) -> None:
    link, address = requester(connect10().session())
    pair = Pair(connect10().session())
    answer = pair.ask("GET", address)
    assert (answer.status, answer.body["consumer_count"]) == (200, 1)
    link.detach()
    assert pair.ask("GET", address).status == 404
