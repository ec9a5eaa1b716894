"""Publishing: confirms, returns, transactions, order (5.4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .conftest import Connect
from .marks import differs_from_rabbitmq_3_10, rule
from .wire import Channel, Connection, eventually

Name = Callable[[str], str]


def names(channel: Channel) -> list[str]:
    return [method.name for method in channel.log]


@rule("5.4/confirm-sequence")
def test_the_sequence_starts_at_1_at_the_first_select(channel: Channel, queue: str) -> None:
    channel.basic_publish("", queue, b"before")
    channel.confirm_select()
    channel.basic_publish("", queue, b"1")
    assert channel.confirms(1) == ["ack"]
    channel.confirm_select()
    channel.basic_publish("", queue, b"2")
    assert channel.confirms(2) == ["ack", "ack"]
    assert max(channel.confirmed) == 2


@rule("5.4/confirm-once")
def test_every_publish_is_confirmed_once(channel: Channel, queue: str) -> None:
    channel.confirm_select()
    for i in range(500):
        channel.basic_publish("", queue if i % 3 else "nowhere", b"x", delivery_mode=1 + i % 2)
    assert channel.confirms(500) == ["ack"] * 500, "wire.py asserts that none is confirmed twice"
    channel.nothing_delivered()
    assert max(channel.confirmed) == 500


@rule("5.4/confirm-unroutable")
def test_an_unroutable_publish_is_confirmed(channel: Channel) -> None:
    channel.confirm_select()
    channel.basic_publish("amq.direct", "nobody is bound here", b"x")
    assert channel.confirms(1) == ["ack"]


@rule("5.4/mandatory-return")
def test_a_return_comes_before_its_ack(channel: Channel) -> None:
    channel.confirm_select()
    channel.basic_publish("amq.direct", "nobody", b"body", mandatory=True, message_id="m1", headers={"a": 1})
    assert channel.confirms(1) == ["ack"]
    returned = channel.returns()[0]
    assert (returned.reply_code, returned.reply_text) == (312, "NO_ROUTE")
    assert (returned.exchange, returned.routing_key, returned.body) == ("amq.direct", "nobody", b"body")
    assert returned.properties == {"message_id": "m1", "headers": {"a": 1}}
    assert names(channel)[-2:] == ["basic.return", "basic.ack"]


@rule("5.4/mandatory-return")
def test_returns_keep_the_order_of_publishing(channel: Channel, queue: str) -> None:
    for i in range(20):
        channel.basic_publish("", "nobody" if i % 2 else queue, b"%d" % i, mandatory=True)
    assert [returned.body for returned in channel.returns(10)] == [b"%d" % i for i in range(1, 20, 2)]


@rule("5.4/confirm-all-queues")
def test_an_ack_says_that_every_queue_has_it(channel: Channel, name: Name) -> None:
    exchange, queues = name("x"), [name("q") for _ in range(3)]
    channel.exchange_declare(exchange, "fanout")
    for queue in queues:
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, exchange)
    channel.confirm_select()
    channel.basic_publish(exchange, "", b"x", delivery_mode=2)
    assert channel.confirms(1) == ["ack"]
    assert [channel.message_count(queue) for queue in queues] == [1, 1, 1]


@rule("5.4/nack-any-reject")
def test_a_nack_if_any_queue_rejects(channel: Channel, name: Name) -> None:
    exchange, full, open_ = name("x"), name("full"), name("open")
    channel.exchange_declare(exchange, "fanout")
    channel.queue_declare(full, arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    channel.queue_declare(open_)
    for queue in (full, open_):
        channel.queue_bind(queue, exchange)
    channel.confirm_select()
    channel.basic_publish(exchange, "", b"x")
    assert channel.confirms(1) == ["nack"]
    eventually(lambda: channel.message_count(open_) == 1)
    assert channel.message_count(full) == 0


@rule("5.4/mandatory-direct-reply")
@differs_from_rabbitmq_3_10("returned it before 4.2")
def test_mandatory_to_a_direct_reply_queue_counts_as_routed(channel: Channel, connect: Connect, queue: str) -> None:
    channel.basic_consume("amq.rabbitmq.reply-to", no_ack=True)
    channel.confirm_select()
    channel.basic_publish("", queue, b"request", reply_to="amq.rabbitmq.reply-to")
    assert channel.confirms(1) == ["ack"], "else another connection may ask before it is there"
    server = connect().channel()
    request = server.basic_get(queue, no_ack=True)
    server.confirm_select()
    server.basic_publish("", request.properties["reply_to"], b"reply", mandatory=True)
    assert server.confirms(1) == ["ack"]
    assert channel.delivery().body == b"reply"
    assert not server.returned


@rule("5.4/tx-staged")
def test_publishes_are_staged_until_commit(connection: Connection, queue: str) -> None:
    channel, other = connection.channel(), connection.channel()
    channel.tx_select()
    channel.basic_publish("", queue, b"1")
    channel.basic_publish("", queue, b"2")
    channel.basic_qos_probe()
    assert other.message_count(queue) == 0
    channel.tx_commit()
    assert other.message_count(queue) == 2
    channel.basic_publish("", queue, b"3")
    channel.tx_rollback()
    channel.tx_commit()
    assert other.message_count(queue) == 2


@rule("5.4/tx-staged")
def test_what_a_transaction_returns_comes_again(connection: Connection, queue: str) -> None:
    channel = connection.channel()
    channel.basic_publish("", queue, b"1")
    channel.tx_select()
    channel.basic_consume(queue)
    first = channel.delivery()
    channel.basic_publish("", queue, b"2")
    channel.basic_nack(first.delivery_tag, requeue=True)
    channel.tx_commit()
    again = [channel.delivery() for _ in range(2)]
    assert sorted((one.body, one.redelivered) for one in again) == [(b"1", True), (b"2", False)]


@rule("5.4/tx-staged", "5.4/tx-ack-received")
def test_acks_and_rejects_are_staged_until_commit(connection: Connection, connect: Connect, queue: str) -> None:
    channel = connection.channel()
    for i in range(3):
        channel.basic_publish("", queue, b"%d" % i)
    channel.tx_select()
    tags = [channel.basic_get(queue).delivery_tag for _ in range(3)]
    channel.basic_ack(tags[0])
    channel.basic_reject(tags[1], requeue=True)
    channel.basic_qos_probe()
    assert channel.message_count(queue) == 0, "the reject is only staged"
    channel.tx_commit()
    eventually(lambda: channel.message_count(queue) == 1)
    connection.close()
    other = connect().channel()
    eventually(lambda: other.message_count(queue) == 2)


@rule("5.4/tx-rollback")
def test_rollback_does_not_requeue(channel: Channel, queue: str) -> None:
    channel.basic_publish("", queue, b"x")
    channel.tx_select()
    tag = channel.basic_get(queue).delivery_tag
    channel.basic_ack(tag)
    channel.tx_rollback()
    assert channel.message_count(queue) == 0
    channel.basic_ack(tag)
    channel.tx_commit()
    channel.basic_qos_probe()


@rule("5.4/tx-checks-immediate")
def test_checks_are_immediate(channel: Channel) -> None:
    channel.tx_select()
    with channel.closes(404, "no exchange 'nosuch'", "basic.publish"):
        channel.basic_publish("nosuch", "", b"x")


@rule("5.4/tx-returns")
def test_returns_come_before_commit_ok(channel: Channel) -> None:
    channel.tx_select()
    channel.basic_publish("", "nobody", b"x", mandatory=True)
    channel.basic_qos_probe()
    assert not channel.returned, "routing waits for the commit"
    channel.tx_commit()
    assert names(channel)[-2:] == ["basic.return", "tx.commit-ok"]


@rule("5.4/fifo")
def test_a_channels_messages_stay_in_order(channel: Channel, queue: str) -> None:
    for i in range(1000):
        channel.basic_publish("", queue, b"%d" % i, delivery_mode=1 + i % 2)
    channel.basic_consume(queue, no_ack=True)
    assert channel.bodies(1000) == [b"%d" % i for i in range(1000)]


@pytest.mark.parametrize("size", [0, 1, 131063, 131064, 131065, 400_000])
def test_bodies_of_every_frame_count_come_back(channel: Channel, queue: str, size: int) -> None:
    body = bytes(i % 251 for i in range(size))
    channel.basic_publish("", queue, body)
    assert channel.basic_get(queue, no_ack=True).body == body


def test_all_properties_come_back(channel: Channel, queue: str) -> None:
    properties: dict[str, Any] = {
        "content_type": "text/plain",
        "content_encoding": "utf-8",
        "headers": {"text": "ß", "deep": {"list": [1, -1, 2**40, 1.5, True, None, b"\0\xff"]}},
        "delivery_mode": 2,
        "priority": 7,
        "correlation_id": "c",
        "reply_to": "r",
        "expiration": "60000",
        "message_id": "m",
        "timestamp": 1_700_000_000,
        "type": "t",
        "user_id": "guest",
        "app_id": "a",
        "cluster_id": "k",
    }
    channel.basic_publish("", queue, b"x", **properties)
    assert channel.basic_get(queue, no_ack=True).properties == properties
