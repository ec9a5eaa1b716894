"""Dead lettering: reasons, the x-death headers, routing, cycles (5.6)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from .marks import differs_from_rabbitmq_3_10, rule
from .test_ttl import dead_letter_pair
from .wire import Channel, Method, eventually

Name = Callable[[str], str]


def die(channel: Channel, queue: str, reason: str) -> None:
    """Publish a message into the queue and let it die there."""
    channel.basic_publish("", queue, b"x", expiration="1" if reason == "expired" else None)
    if reason == "rejected":
        channel.basic_reject(channel.basic_get(queue).delivery_tag)
    elif reason == "maxlen":
        channel.basic_publish("", queue, b"pushes the first out")


def letter(channel: Channel, queue: str) -> Method:
    eventually(lambda: channel.message_count(queue) >= 1)
    got: Method | None = channel.basic_get(queue, no_ack=True)
    assert got is not None
    return got


@rule("5.6/reasons", "5.6/x-death")
@pytest.mark.parametrize("reason", ["rejected", "expired", "maxlen"])
def test_the_death_is_recorded(channel: Channel, name: Name, reason: str) -> None:
    source, dead = dead_letter_pair(channel, name, **({"x_max_length": 1} if reason == "maxlen" else {}))
    began = int(time.time()) - 1
    die(channel, source, reason)
    got = letter(channel, dead)
    death = got.headers["x-death"][0]
    assert began <= death.pop("time") <= time.time() + 1
    expected: dict[str, Any] = {
        "queue": source,
        "reason": reason,
        "count": 1,
        "exchange": "",
        "routing-keys": [source],
    }
    if reason == "expired":
        expected["original-expiration"] = "1"
    assert death == expected
    assert (got.exchange, got.routing_key) == ("", dead)
    assert got.redelivered is False


@rule("5.6/reasons")
@differs_from_rabbitmq_3_10("has delivery limits on quorum queues only, and none by default")
def test_the_delivery_limit_is_a_reason_too(channel: Channel, name: Name) -> None:
    source, dead = dead_letter_pair(channel, name, x_delivery_limit=1)
    channel.basic_publish("", source, b"x")
    for _ in range(2):
        channel.basic_reject(channel.basic_get(source).delivery_tag, requeue=True)
    assert letter(channel, dead).headers["x-death"][0]["reason"] == "delivery_limit"


def chain(channel: Channel, name: Name) -> tuple[str, str]:
    """Two queues that dead-letter into each other."""
    a, b = name("a"), name("b")
    for queue, other in ((a, b), (b, a)):
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": other}
        channel.queue_declare(queue, arguments=arguments)
    return a, b


@rule("5.6/x-death", "5.6/x-first-death", "5.6/x-last-death")
@pytest.mark.parametrize(
    "last_death", [False, pytest.param(True, marks=differs_from_rabbitmq_3_10("has no x-last-death-*"))]
)
def test_deaths_are_merged_newest_first(channel: Channel, name: Name, last_death: bool) -> None:
    a, b = chain(channel, name)
    channel.basic_publish("", a, b"x", headers={"mine": 1})
    for queue in (a, b, a):
        channel.basic_reject(letter_unacked(channel, queue).delivery_tag)
    got = letter(channel, b)
    deaths = got.headers["x-death"]
    assert [(d["queue"], d["reason"], d["count"]) for d in deaths] == [(a, "rejected", 2), (b, "rejected", 1)]
    assert got.headers["mine"] == 1
    assert got.headers["x-first-death-queue"] == a
    assert got.headers["x-first-death-reason"] == "rejected"
    assert got.headers["x-first-death-exchange"] == ""
    if last_death:
        assert got.headers["x-last-death-queue"] == a
        assert got.headers["x-last-death-reason"] == "rejected"
        assert got.headers["x-last-death-exchange"] == ""


@rule("5.6/x-death")
def test_the_time_is_that_of_the_first_death(channel: Channel, name: Name) -> None:
    queue = name("self")
    channel.queue_declare(queue, arguments={"x-dead-letter-exchange": ""})
    channel.basic_publish("", queue, b"x")
    channel.basic_reject(letter_unacked(channel, queue).delivery_tag)
    first = letter_unacked(channel, queue)
    time.sleep(1.1)
    channel.basic_reject(first.delivery_tag)
    death = letter(channel, queue).headers["x-death"][0]
    assert (death["count"], death["time"]) == (2, first.headers["x-death"][0]["time"])


@rule("5.6/x-first-death", "5.6/x-last-death")
@differs_from_rabbitmq_3_10("has no x-last-death-*")
def test_the_first_death_stays_and_the_last_follows(channel: Channel, name: Name) -> None:
    a, b = chain(channel, name)
    channel.basic_publish("", a, b"x", expiration="1")
    eventually(lambda: channel.message_count(b) == 1)
    channel.basic_reject(channel.basic_get(b).delivery_tag)
    got = letter(channel, a)
    first = [got.headers[f"x-first-death-{key}"] for key in ("queue", "reason")]
    last = [got.headers[f"x-last-death-{key}"] for key in ("queue", "reason")]
    assert (first, last) == ([a, "expired"], [b, "rejected"])


def cc_setup(channel: Channel, name: Name, **arguments: Any) -> tuple[str, str, str, str]:
    """A DLX (direct) with one queue for each of the keys `key`, `cc`, `bcc`, and a source that dead-letters to it."""
    exchange, source = name("dlx"), name("source")
    channel.exchange_declare(exchange, "direct")
    channel.queue_declare(source, arguments={"x-dead-letter-exchange": exchange} | arguments)
    queues = []
    for key in (source, f"{source}-cc", f"{source}-bcc"):
        queue = name("dead")
        channel.queue_declare(queue)
        channel.queue_bind(queue, exchange, key)
        queues.append(queue)
    return source, queues[0], queues[1], queues[2]


def publish_with_cc(channel: Channel, source: str) -> None:
    headers = {"CC": [f"{source}-cc"], "BCC": [f"{source}-bcc"]}
    channel.basic_publish("", source, b"x", headers=headers)
    got = letter_unacked(channel, source)
    assert got.headers == {"CC": [f"{source}-cc"]}, "BCC is removed before delivery"
    channel.basic_reject(got.delivery_tag)


def letter_unacked(channel: Channel, queue: str) -> Method:
    eventually(lambda: channel.message_count(queue) >= 1)
    got: Method | None = channel.basic_get(queue)
    assert got is not None
    return got


@rule("5.6/dlrk", "5.6/x-death-cc-bcc")
def test_without_dlrk_all_original_keys_are_used(channel: Channel, name: Name) -> None:
    source, dead, dead_cc, dead_bcc = cc_setup(channel, name)
    publish_with_cc(channel, source)
    got = letter(channel, dead)
    assert letter(channel, dead_cc).body == b"x"
    bcc = letter(channel, dead_bcc)
    assert got.headers["x-death"][0]["routing-keys"] == [source, f"{source}-cc"], "CC yes, BCC no"
    assert "BCC" not in bcc.headers
    assert bcc.headers["CC"] == [f"{source}-cc"]


@rule("5.6/dlrk", "5.6/dlrk-removes-cc")
def test_dlrk_replaces_all_keys_and_removes_cc(channel: Channel, name: Name) -> None:
    source = name("s")
    dead = name("dead")
    channel.queue_declare(dead)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    channel.queue_declare(source, arguments=arguments)
    publish_with_cc(channel, source)
    got = letter(channel, dead)
    assert "CC" not in got.headers
    assert "BCC" not in got.headers
    assert got.headers["x-death"][0]["routing-keys"] == [source, f"{source}-cc"]
    assert channel.message_count(dead) == 0


@rule("5.6/dlrk")
def test_without_dlrk_a_default_exchange_dlx_returns_to_the_same_queue(channel: Channel, name: Name) -> None:
    """The original key is the queue's own name; a rejection makes the cycle legal."""
    queue = name("self")
    channel.queue_declare(queue, arguments={"x-dead-letter-exchange": ""})
    channel.basic_publish("", queue, b"x")
    channel.basic_reject(letter_unacked(channel, queue).delivery_tag)
    got = letter(channel, queue)
    assert got.headers["x-death"][0]["count"] == 1


@rule("5.6/missing-dlx")
def test_a_missing_dlx_drops_in_silence(channel: Channel, name: Name) -> None:
    queue = name("q")
    channel.queue_declare(queue, arguments={"x-dead-letter-exchange": name("nosuch")})
    channel.basic_publish("", queue, b"x")
    channel.basic_reject(letter_unacked(channel, queue).delivery_tag)
    channel.basic_qos_probe()
    assert channel.message_count(queue) == 0


@rule("5.6/cycle")
def test_an_automatic_cycle_drops_the_message(channel: Channel, name: Name) -> None:
    """a and b let everything expire into each other: the message dies in a, then in b, and may not enter a again."""
    a, b = name("a"), name("b")
    for queue, other in ((a, b), (b, a)):
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": other, "x-message-ttl": 30}
        channel.queue_declare(queue, arguments=arguments)
    channel.basic_publish("", a, b"x")
    eventually(lambda: channel.message_count(b) == 1)
    eventually(lambda: channel.message_count(b) == 0)
    time.sleep(0.1)
    assert (channel.message_count(a), channel.message_count(b)) == (0, 0)


@rule("5.6/cycle")
def test_a_queue_that_expires_into_itself_drops_the_message(channel: Channel, name: Name) -> None:
    queue = name("self")
    channel.queue_declare(queue, arguments={"x-dead-letter-exchange": "", "x-message-ttl": 30})
    channel.basic_publish("", queue, b"x")
    eventually(lambda: channel.message_count(queue) == 0)
    time.sleep(0.1)
    assert channel.message_count(queue) == 0


@rule("5.6/cycle-rejected")
def test_a_cycle_with_a_rejection_goes_on(channel: Channel, name: Name) -> None:
    """The retry pattern: rejected from work, waits in retry, expires back into work."""
    work, retry = name("work"), name("retry")
    arguments: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": retry}
    channel.queue_declare(work, arguments=arguments)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": work, "x-message-ttl": 20}
    channel.queue_declare(retry, arguments=arguments)
    channel.basic_publish("", work, b"x")
    for round_ in range(3):
        got = letter_unacked(channel, work)
        counts = {(d["queue"], d["reason"]): d["count"] for d in got.headers.get("x-death", [])}
        assert counts == ({(retry, "expired"): round_, (work, "rejected"): round_} if round_ else {})
        channel.basic_reject(got.delivery_tag)


@rule("5.6/dead-letter-leaves")
def test_a_dead_lettered_message_has_left_its_source(channel: Channel, name: Name) -> None:
    source, dead = dead_letter_pair(channel, name)
    channel.basic_publish("", source, b"x")
    channel.basic_reject(letter_unacked(channel, source).delivery_tag)
    letter(channel, dead)
    assert channel.message_count(source) == 0
    assert channel.basic_get(source) is None


def test_a_nack_of_many_keeps_their_order(channel: Channel, name: Name) -> None:
    source, dead = dead_letter_pair(channel, name)
    for i in range(5):
        channel.basic_publish("", source, b"%d" % i)
    channel.consume(source)
    channel.deliveries(5)
    channel.basic_nack(0, multiple=True, requeue=False)
    eventually(lambda: channel.message_count(dead) == 5)
    assert [channel.basic_get(dead, no_ack=True).body for _ in range(5)] == [b"%d" % i for i in range(5)]


def test_a_purge_and_a_delete_do_not_dead_letter(channel: Channel, name: Name) -> None:
    source, dead = dead_letter_pair(channel, name)
    for _ in range(2):
        channel.basic_publish("", source, b"x")
    channel.queue_purge(source)
    channel.basic_publish("", source, b"x")
    channel.queue_delete(source)
    channel.nothing_delivered()
    assert channel.message_count(dead) == 0
