"""Consuming: tags, prefetch, requeue, cancel, exclusive and single active consumers (5.5)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .conftest import Connect
from .marks import differs_from_rabbitmq_3_10, rule
from .wire import Channel, Connection, eventually

Name = Callable[[str], str]


def fill(channel: Channel, queue: str, count: int) -> None:
    """Publish b"0", b"1", ... and wait until they are there."""
    before = channel.message_count(queue)
    for i in range(count):
        channel.basic_publish("", queue, b"%d" % i)
    eventually(lambda: channel.message_count(queue) == before + count)


def numbers(*values: int) -> list[bytes]:
    return [b"%d" % value for value in values]


@rule("5.5/tags")
def test_delivery_tags_count_per_channel_from_1(connection: Connection, queue: str) -> None:
    for _ in range(2):
        channel = connection.channel()
        fill(channel, queue, 3)
        channel.consume(queue, no_ack=True)
        assert [delivery.delivery_tag for delivery in channel.deliveries(3)] == [1, 2, 3]
        channel.channel_close(200, "")


@rule("5.5/tags")
def test_gets_and_deliveries_share_the_tags(channel: Channel, queue: str) -> None:
    fill(channel, queue, 1)
    assert channel.basic_get(queue).delivery_tag == 1
    channel.consume(queue)
    fill(channel, queue, 0)
    channel.basic_publish("", queue, b"x")
    assert channel.delivery().delivery_tag == 2


@rule("5.5/tags-other-channel")
def test_an_ack_on_another_channel_is_406(connection: Connection, queue: str) -> None:
    channel, other = connection.channel(), connection.channel()
    fill(channel, queue, 1)
    channel.consume(queue)
    tag = channel.delivery().delivery_tag
    with other.closes(406, f"unknown delivery tag {tag}"):
        other.basic_ack(tag)


@rule("5.5/multiple-zero")
def test_multiple_with_tag_0_is_all(connection: Connection, queue: str) -> None:
    channel = connection.channel()
    fill(channel, queue, 3)
    channel.consume(queue)
    channel.deliveries(3)
    channel.basic_ack(0, multiple=True)
    with channel.closes(406, "unknown delivery tag 3"):
        channel.basic_ack(3)


def test_multiple_is_up_to_and_including(channel: Channel, queue: str) -> None:
    fill(channel, queue, 4)
    for _ in range(4):
        channel.basic_get(queue)
    channel.basic_ack(2, multiple=True)
    channel.basic_nack(0, multiple=True, requeue=True)
    eventually(lambda: channel.message_count(queue) == 2)
    assert channel.basic_get(queue).body == b"2"


@rule("5.5/prefetch")
def test_prefetch_counts_unacknowledged(channel: Channel, queue: str) -> None:
    fill(channel, queue, 5)
    channel.basic_qos(prefetch_count=2)
    channel.consume(queue)
    assert channel.bodies(2) == numbers(0, 1)
    channel.nothing_delivered()
    channel.basic_ack(1)
    assert channel.bodies(1) == numbers(2)
    channel.nothing_delivered()
    channel.basic_ack(3, multiple=True)
    assert channel.bodies(2) == numbers(3, 4)


@rule("5.5/prefetch-new-consumers")
def test_prefetch_applies_to_new_consumers(channel: Channel, name: Name) -> None:
    first, second = name("q"), name("q")
    for queue in (first, second):
        channel.queue_declare(queue)
        fill(channel, queue, 3)
    channel.basic_qos(prefetch_count=1)
    channel.consume(first, "first")
    assert channel.bodies(1) == numbers(0)
    channel.basic_qos(prefetch_count=2)
    channel.nothing_delivered()
    channel.consume(second, "second")
    assert [delivery.consumer_tag for delivery in channel.deliveries(2)] == ["second", "second"]
    channel.nothing_delivered()


@rule("more/global-qos")
def test_a_global_prefetch_limits_the_channel(channel: Channel, name: Name) -> None:
    first, second = name("q"), name("q")
    for queue in (first, second):
        channel.queue_declare(queue)
        fill(channel, queue, 3)
    channel.basic_qos(prefetch_count=2, global_=True)
    channel.consume(first)
    channel.deliveries(2)
    channel.consume(second)
    channel.nothing_delivered()
    channel.basic_ack(1)
    channel.deliveries(1)
    channel.nothing_delivered()


@rule("more/global-qos")
def test_a_global_prefetch_and_one_per_consumer_both_hold(channel: Channel, name: Name) -> None:
    first, second = name("q"), name("q")
    for queue in (first, second):
        channel.queue_declare(queue)
        fill(channel, queue, 5)
    channel.basic_qos(prefetch_count=2, global_=False)
    channel.basic_qos(prefetch_count=3, global_=True)
    channel.consume(first, "first")
    channel.deliveries(2)
    channel.nothing_delivered()
    channel.consume(second, "second")
    assert channel.delivery().consumer_tag == "second"
    channel.nothing_delivered()


@rule("more/global-qos")
def test_a_raised_global_prefetch_takes_effect_at_once(channel: Channel, queue: str) -> None:
    fill(channel, queue, 4)
    channel.basic_qos(prefetch_count=1, global_=True)
    channel.consume(queue)
    channel.deliveries(1)
    channel.basic_qos(prefetch_count=3, global_=True)
    channel.deliveries(2)
    channel.nothing_delivered()


@rule("5.5/prefetch-zero")
def test_prefetch_0_is_unlimited(channel: Channel, queue: str) -> None:
    fill(channel, queue, 300)
    channel.basic_qos(prefetch_count=0)
    channel.consume(queue)
    channel.deliveries(300)


@rule("5.5/prefetch-auto-ack")
def test_auto_ack_ignores_prefetch(channel: Channel, queue: str) -> None:
    fill(channel, queue, 20)
    channel.basic_qos(prefetch_count=1)
    channel.consume(queue, no_ack=True)
    channel.deliveries(20)


@rule("5.5/no-local")
def test_no_local_is_ignored(channel: Channel, queue: str) -> None:
    channel.consume(queue, no_local=True, no_ack=True)
    channel.basic_publish("", queue, b"my own")
    assert channel.delivery().body == b"my own"


@rule("5.5/close-requeues", "5.5/redelivered")
@pytest.mark.parametrize("how", ["channel", "connection", "cut"])
def test_a_close_requeues_all_unacknowledged(connect: Connect, channel: Channel, queue: str, how: str) -> None:
    fill(channel, queue, 3)
    connection = connect()
    consumer = connection.channel()
    consumer.consume(queue)
    assert [delivery.redelivered for delivery in consumer.deliveries(3)] == [False] * 3
    consumer.basic_ack(2)
    consumer.basic_qos_probe()
    if how == "channel":
        consumer.channel_close(200, "")
    elif how == "connection":
        connection.close()
    else:
        connection.abandon()
    eventually(lambda: channel.message_count(queue) == 2)
    got = [channel.basic_get(queue) for _ in range(2)]
    assert [(message.body, message.redelivered) for message in got] == [(b"0", True), (b"2", True)]


@rule("5.5/cancel-keeps")
def test_cancel_does_not_requeue(channel: Channel, queue: str) -> None:
    fill(channel, queue, 2)
    tag = channel.consume(queue)
    channel.deliveries(2)
    assert channel.basic_cancel(tag).consumer_tag == tag
    assert channel.message_count(queue) == 0
    channel.basic_ack(2, multiple=True)
    channel.basic_qos_probe()


def test_no_delivery_after_cancel_ok(channel: Channel, queue: str) -> None:
    tag = channel.consume(queue)
    channel.basic_cancel(tag)
    channel.basic_publish("", queue, b"x")
    channel.nothing_delivered()
    assert channel.message_count(queue) == 1


def test_a_chosen_tag_may_be_used_again_after_cancel(channel: Channel, queue: str) -> None:
    channel.consume(queue, "mine")
    channel.basic_cancel("mine")
    assert channel.consume(queue, "mine") == "mine"


def test_a_tag_is_chosen_for_an_empty_one(channel: Channel, queue: str) -> None:
    first, second = channel.consume(queue), channel.consume(queue)
    assert first
    assert first != second


@rule("5.4/requeue-position")
def test_a_requeued_message_returns_to_its_place(channel: Channel, queue: str) -> None:
    fill(channel, queue, 5)
    tags = [channel.basic_get(queue).delivery_tag for _ in range(3)]
    channel.basic_nack(tags[1], requeue=True)
    channel.basic_reject(tags[0], requeue=True)
    eventually(lambda: channel.message_count(queue) == 4)
    got = [channel.basic_get(queue) for _ in range(4)]
    assert [message.body for message in got] == numbers(0, 1, 3, 4)
    assert [message.redelivered for message in got] == [True, True, False, False]


@rule("5.5/redelivered")
def test_recover_redelivers_all_unacknowledged(channel: Channel, queue: str) -> None:
    fill(channel, queue, 3)
    channel.consume(queue)
    channel.deliveries(3)
    channel.basic_ack(1)
    channel.basic_recover(requeue=True)
    again = channel.deliveries(2)
    assert [(message.body, message.redelivered) for message in again] == [(b"1", True), (b"2", True)]
    assert [message.delivery_tag for message in again] == [4, 5]


@rule("5.5/delivery-count")
def test_quorum_adds_x_delivery_count(channel: Channel, name: Name) -> None:
    """By reject: since 4.3 a nack with requeue counts as acquired only, a reject as a failed delivery."""
    queue = name("quorum")
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
    channel.confirm_select()
    channel.basic_publish("", queue, b"x")
    channel.confirms(1)
    channel.consume(queue)
    first = channel.delivery()
    assert "x-delivery-count" not in first.headers or first.headers["x-delivery-count"] == 0
    for count in (1, 2):
        channel.basic_reject(count, requeue=True)
        assert channel.delivery().headers["x-delivery-count"] == count


@rule("5.5/delivery-count")
@differs_from_rabbitmq_3_10("x-acquired-count came with 4.3")
def test_quorum_adds_x_acquired_count(channel: Channel, name: Name) -> None:
    queue = name("quorum")
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
    channel.basic_publish("", queue, b"x")
    channel.consume(queue)
    channel.basic_nack(channel.delivery().delivery_tag, requeue=True)
    assert channel.delivery().headers["x-acquired-count"] == 1


@rule("5.5/cancel-notice-delete")
def test_consumers_of_a_deleted_queue_are_told(connection: Connection, queue: str) -> None:
    channel, other = connection.channel(), connection.channel()
    tag = channel.consume(queue)
    other.queue_delete(queue)
    notice = channel.cancel_notice()
    assert (notice.consumer_tag, notice.nowait) == (tag, True)
    channel.basic_qos_probe()


@rule("5.5/cancel-notice-capable")
def test_clients_without_the_capability_are_not_told(connect: Connect, channel: Channel, queue: str) -> None:
    old = connect(capabilities={}).channel()
    old.consume(queue)
    channel.queue_delete(queue)
    old.nothing_delivered()
    assert not old.cancelled


@rule("5.5/sac-first", "5.5/sac-switch")
@pytest.mark.parametrize("how", ["cancel", "disconnect"])
def test_the_first_consumer_is_active_until_it_goes(connect: Connect, channel: Channel, name: Name, how: str) -> None:
    queue = name("sac")
    channel.queue_declare(queue, arguments={"x-single-active-consumer": True})
    connection = connect()
    first = connection.channel()
    second, third = channel.connection.channel(), channel.connection.channel()
    first.consume(queue, "first", no_ack=True)
    second.consume(queue, "second", no_ack=True)
    third.consume(queue, "third", no_ack=True)
    fill(channel, queue, 0)
    for i in range(4):
        channel.basic_publish("", queue, b"%d" % i)
    assert first.bodies(4) == numbers(0, 1, 2, 3)
    second.nothing_delivered()
    if how == "cancel":
        first.basic_cancel("first")
    else:
        connection.close()
        while channel.queue_declare(queue, passive=True).consumer_count > 2:
            pass  # the queue hears of it later than the client that went
    for i in range(4):
        channel.basic_publish("", queue, b"%d" % i)
    assert second.bodies(4) == numbers(0, 1, 2, 3)
    third.nothing_delivered()


@rule("5.5/sac-priority")
@differs_from_rabbitmq_3_10("quorum queues know consumer priorities with single active consumer since 4.0")
def test_a_higher_priority_takes_over(connection: Connection, name: Name) -> None:
    queue = name("sac")
    low, high = connection.channel(), connection.channel()
    arguments = {"x-single-active-consumer": True, "x-queue-type": "quorum"}
    low.queue_declare(queue, durable=True, arguments=arguments)
    low.consume(queue, no_ack=True)
    high.consume(queue, no_ack=True, arguments={"x-priority": 5})
    low.basic_publish("", queue, b"x")
    assert high.delivery(timeout_s=1).body == b"x"


@rule("5.5/exclusive-consume")
def test_an_exclusive_consume_with_others_present_is_403(connection: Connection, queue: str) -> None:
    connection.channel().consume(queue)
    channel = connection.channel()
    with channel.closes(403, f"queue '{queue}' in vhost '/' in exclusive use"):
        channel.basic_consume(queue, exclusive=True)


def test_consumers_of_equal_priority_take_turns(connection: Connection, queue: str) -> None:
    consumers = [connection.channel() for _ in range(2)]
    for consumer in consumers:
        consumer.basic_qos(prefetch_count=1)
        consumer.consume(queue)
    fill(consumers[0], queue, 0)
    for i in range(2):
        consumers[0].basic_publish("", queue, b"%d" % i)
    assert sorted(consumers[0].bodies(1) + consumers[1].bodies(1)) == numbers(0, 1)


def test_a_higher_priority_gets_all_while_it_has_credit(connection: Connection, queue: str) -> None:
    low, high = connection.channel(), connection.channel()
    low.consume(queue)
    high.basic_qos(prefetch_count=3)
    high.consume(queue, arguments={"x-priority": 10})
    for i in range(5):
        low.basic_publish("", queue, b"%d" % i)
    assert high.bodies(3) == numbers(0, 1, 2)
    assert low.bodies(2) == numbers(3, 4)
    high.basic_ack(1)
    low.basic_publish("", queue, b"5")
    assert high.bodies(1) == numbers(5)


def test_get_counts_what_is_left(channel: Channel, queue: str) -> None:
    fill(channel, queue, 3)
    assert channel.basic_get(queue).message_count == 2
    channel.queue_purge(queue)
    assert channel.basic_get(queue) is None


def test_consume_without_waiting(channel: Channel, queue: str) -> None:
    fill(channel, queue, 1)
    channel.basic_consume(queue, "quick", nowait=True)
    assert channel.delivery().consumer_tag == "quick"
    assert not channel.replies
