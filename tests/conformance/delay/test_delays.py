"""What is delayed, for how long, and how it comes (rules 72 to 78, 83 and 89)."""

from __future__ import annotations

import time
from typing import Any

import pytest

from ..channel import Channel
from ..encoding import Field
from ..marks import rule
from .conftest import LATE_S, Delayed, Name, declare


@rule("72")
@pytest.mark.parametrize("arguments", [{}, {"x-delayed-type": "unknown"}, {"x-delayed-type": "x-delayed-message"}])
def test_the_type_must_be_one_that_routes(channel: Channel, name: Name, arguments: dict[str, str]) -> None:
    exchange = name("later")
    with channel.closes(406, "x-delayed-type"):
        channel.exchange_declare(exchange, "x-delayed-message", durable=True, arguments=arguments)


@rule("73")
@pytest.mark.parametrize(
    ("kind", "binding", "key", "headers"),
    [
        ("direct", {"routing_key": "a.b"}, "a.b", {}),
        ("topic", {"routing_key": "a.*"}, "a.b", {}),
        ("fanout", {}, "whatever", {}),
        ("headers", {"arguments": {"x-match": "all", "colour": "red"}}, "", {"colour": "red"}),
        ("x-consistent-hash", {"routing_key": "1"}, "anything", {}),
    ],
)
def test_each_type_routes_when_due(
    channel: Channel, name: Name, kind: str, binding: dict[str, Any], key: str, headers: dict[str, str]
) -> None:
    exchange, right, wrong = name("later"), name("right"), name("wrong")
    declare(channel, exchange, kind)
    for queue in (right, wrong):
        channel.queue_declare(queue, durable=True)
    channel.queue_bind(right, exchange, **binding)
    if kind in ("direct", "topic"):
        channel.queue_bind(wrong, exchange, routing_key="other")
    if kind == "headers":
        channel.queue_bind(wrong, exchange, arguments={"x-match": "all", "colour": "blue"})
    channel.consume(right, no_ack=True)
    channel.basic_publish(exchange, key, b"x", headers={"x-delay": 50, **headers})
    got = channel.delivery()
    assert (got.body, got.exchange, got.routing_key) == (b"x", exchange, key)
    assert channel.message_count(wrong) == 0


@rule("74", "75")
def test_it_comes_when_it_is_due_with_its_delay_negated(delayed: Delayed) -> None:
    delayed.listen()
    began = delayed.publish(b"x", x_delay=400)
    got = delayed.comes()
    assert 0.39 <= time.time() - began <= 0.4 + LATE_S
    assert got.headers == {"x-delay": -400}
    assert got.redelivered is False


@rule("75")
@pytest.mark.parametrize("value", [0, -5, "soon", "", "nan", "inf", True, None, [], {"a": 1}])
def test_what_is_no_delay_passes_at_once_unchanged(delayed: Delayed, value: object) -> None:
    delayed.publish(b"x", x_delay=value)
    got = delayed.channel.basic_get(delayed.queue, no_ack=True)
    assert got.body == b"x"
    assert got.headers == {"x-delay": value}


@rule("75")
def test_what_says_nothing_passes_at_once(delayed: Delayed) -> None:
    delayed.channel.basic_publish(delayed.exchange, delayed.key, b"x")
    assert delayed.channel.basic_get(delayed.queue, no_ack=True).body == b"x"


@rule("76")
@pytest.mark.parametrize(
    "value",
    [Field("b", 90), Field("s", 90), Field("I", 90), Field("l", 90), "90", 90.0, "90.5"],
)
def test_numbers_of_every_kind_delay(delayed: Delayed, value: object) -> None:
    delayed.listen()
    began = delayed.publish(b"x", x_delay=value)
    got = delayed.comes()
    assert time.time() - began >= 0.08
    assert got.headers == {"x-delay": -90}


@rule("77")
def test_the_order_is_that_of_due_times_then_of_publication(delayed: Delayed) -> None:
    delayed.listen()
    at = int(time.time() * 1000) + 500
    for body, later in ((b"3", 20), (b"1", 0), (b"2", 0), (b"5", 40), (b"4", 20)):
        delayed.publish(body, x_deliver_at=at + later)
    assert delayed.channel.bodies(5) == [b"1", b"2", b"3", b"4", b"5"]


@rule("78")
@pytest.mark.parametrize("delay", [2**32, 365 * 24 * 3_600_000])
def test_long_delays_wait(delayed: Delayed, delay: int) -> None:
    channel = delayed.channel
    channel.confirm_select()
    delayed.publish(b"x", x_delay=delay)
    assert channel.confirms(1) == ["ack"]
    assert channel.message_count(delayed.queue) == 0


@rule("78")
@pytest.mark.parametrize("delay", [11 * 365 * 24 * 3_600_000, 2**63 - 1, "9" * 30])
def test_delays_beyond_ten_years_are_refused(delayed: Delayed, delay: object) -> None:
    with delayed.channel.closes(406, "a message waits for"):
        delayed.publish(b"x", x_delay=delay)


@rule("83")
@pytest.mark.parametrize("ago_ms", [0, 1, 3_600_000])
def test_a_time_in_the_past_is_now(delayed: Delayed, ago_ms: int) -> None:
    delayed.publish(b"x", x_deliver_at=int(time.time() * 1000) - ago_ms, x_delay=60_000)
    assert delayed.channel.basic_get(delayed.queue, no_ack=True).body == b"x"


@rule("83")
def test_the_time_goes_before_the_delay(delayed: Delayed) -> None:
    delayed.listen()
    delayed.publish(b"x", x_deliver_at=int(time.time() * 1000) + 100, x_delay=3_600_000)
    assert delayed.comes().headers["x-delay"] == -3_600_000


@rule("89")
def test_a_chain_delays_by_its_first_exchange_only(delayed: Delayed, name: Name) -> None:
    channel, second, queue = delayed.channel, name("second"), name("behind")
    declare(channel, second, "fanout")
    channel.queue_declare(queue, durable=True)
    channel.exchange_bind(second, delayed.exchange, delayed.key)
    channel.queue_bind(queue, second)
    channel.consume(queue, no_ack=True)
    began = delayed.publish(b"x", x_delay=300)
    assert channel.delivery().body == b"x"
    assert 0.29 <= time.time() - began < 0.3 + LATE_S


@rule("89")
def test_a_binding_from_another_exchange_leads_to_the_delay(channel: Channel, name: Name) -> None:
    first, later, now, then = name("first"), name("later"), name("now"), name("then")
    channel.exchange_declare(first, "fanout", durable=True)
    declare(channel, later, "fanout")
    for queue, source in ((now, first), (then, later)):
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, source)
    channel.exchange_bind(later, first)
    channel.basic_publish(first, "", b"x", headers={"x-delay": 200})
    assert channel.basic_get(now, no_ack=True).headers == {"x-delay": 200}
    assert channel.message_count(then) == 0
    channel.consume(then, no_ack=True)
    got = channel.delivery()
    assert (got.exchange, got.headers) == (first, {"x-delay": -200})


@rule("89")
def test_its_own_time_to_live_begins_when_it_is_due(delayed: Delayed) -> None:
    delayed.channel.basic_publish(
        delayed.exchange, delayed.key, b"x", headers={"x-delay": 150}, expiration="60000", priority=3, delivery_mode=1
    )
    delayed.listen()
    got = delayed.comes()
    assert (got.properties["expiration"], got.properties["priority"]) == ("60000", 3)
    assert got.properties["delivery_mode"] == 1
