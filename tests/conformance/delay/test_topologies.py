"""What libraries declare for the plug-in, and how they publish: the exchanges, arguments and headers are theirs."""

from __future__ import annotations

from ..channel import Channel
from ..encoding import Field
from ..marks import rule
from .conftest import Name


@rule("73")
def test_laravel(channel: Channel, name: Name) -> None:
    """A direct exchange of delays beside the queue's own; failed jobs are published again with their attempts."""
    exchange, queue = name("delayed"), name("default")
    arguments = {"x-delayed-type": "direct"}
    channel.exchange_declare(exchange, "x-delayed-message", durable=True, arguments=arguments)
    channel.queue_declare(queue, durable=True)
    channel.queue_bind(queue, exchange, queue)
    channel.basic_publish(
        exchange, queue, b'{"job":"Send","attempts":1}', content_type="application/json", delivery_mode=2,
        correlation_id="1", headers={"x-delay": Field("I", 100), "laravel": {"attempts": 1}},
    )  # fmt: skip
    channel.consume(queue, no_ack=True)
    got = channel.delivery()
    assert got.headers == {"x-delay": -100, "laravel": {"attempts": 1}}


@rule("73", "89")
def test_masstransit(channel: Channel, name: Name) -> None:
    """An exchange `QUEUE_delay` that is bound to the fanout exchange of the queue."""
    queue = name("order")
    delay = name(f"{queue}_delay")
    channel.exchange_declare(queue, "fanout", durable=True)
    channel.queue_declare(queue, durable=True)
    channel.queue_bind(queue, queue)
    channel.exchange_declare(delay, "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"})
    channel.exchange_bind(queue, delay)
    headers = {"x-delay": Field("l", 100), "Content-Type": "application/vnd.masstransit+json", "MT-Scheduled": "1"}
    channel.basic_publish(delay, "", b"{}", delivery_mode=2, message_id="1", headers=headers)
    channel.consume(queue, no_ack=True)
    got = channel.delivery()
    assert (got.exchange, got.headers["x-delay"]) == (delay, -100)


@rule("73")
def test_a_redeclaration_by_another_process_is_the_same(channel: Channel, name: Name) -> None:
    exchange = name("delayed")
    for _ in range(2):
        channel.exchange_declare(exchange, "x-delayed-message", durable=True, arguments={"x-delayed-type": "topic"})
    channel.exchange_declare(exchange, passive=True)
