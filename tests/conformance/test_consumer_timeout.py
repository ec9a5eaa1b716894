"""A delivery that stays unacknowledged too long costs the consumer its subscription (the page's last section)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .conftest import Connect
from .marks import differs_from_rabbitmq_3_10, rule
from .wire import Channel, ChannelClosed, eventually

Name = Callable[[str], str]
SINCE = "x-consumer-timeout came with 3.11, basic.cancel on it with 4.3"


@rule("more/consumer-timeout", "5.5/cancel-notice-timeout")
@differs_from_rabbitmq_3_10(SINCE, hangs=True)
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_consumer_that_times_out_is_cancelled(channel: Channel, name: Name, kind: str) -> None:
    queue = name("slow")
    arguments = {"x-queue-type": kind, "x-consumer-timeout": 500}
    channel.queue_declare(queue, durable=True, arguments=arguments)
    channel.basic_publish("", queue, b"x")
    tag = channel.consume(queue)
    channel.delivery()
    assert channel.cancel_notice(timeout_s=10).consumer_tag == tag
    eventually(lambda: channel.message_count(queue) == 1)
    again = channel.basic_get(queue)
    assert again.redelivered is True


@rule("more/consumer-timeout")
@differs_from_rabbitmq_3_10(SINCE, hangs=True)
def test_a_client_that_cannot_be_told_loses_its_channel(connect: Connect, name: Name) -> None:
    queue = name("slow")
    channel = connect(capabilities={}).channel()
    channel.queue_declare(queue, durable=True, arguments={"x-consumer-timeout": 500})
    channel.basic_publish("", queue, b"x")
    channel.consume(queue)
    channel.delivery()
    with pytest.raises(ChannelClosed) as closed:
        channel.wait(lambda: False, "channel.close", timeout_s=10)
    assert closed.value.close is not None
    assert closed.value.close.reply_code == 406


@rule("more/consumer-timeout")
@differs_from_rabbitmq_3_10(SINCE, hangs=True)
def test_a_consumer_that_acknowledges_in_time_stays(channel: Channel, name: Name) -> None:
    queue = name("brisk")
    channel.queue_declare(queue, durable=True, arguments={"x-consumer-timeout": 500})
    channel.consume(queue)
    for _ in range(4):
        channel.basic_publish("", queue, b"x")
        tag = channel.delivery().delivery_tag
        channel.nothing_delivered(quiet_s=0.3)
        channel.basic_ack(tag)
    assert not channel.cancelled
