"""Celery's countdowns with the policy keys `delay-bits` and `delay-exchange`, beside those without them (rule 91)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from clusterbroker.broker.wire.amqp10.performatives import Accepted

from ..amqp10.conftest import connect10  # noqa: F401
from ..amqp10.management import Pair
from ..channel import Channel
from ..conftest import Connect
from ..marks import rule
from ..target import Target
from ..wire import eventually
from .conftest import Name
from .test_amqp10 import annotated
from .test_delay_words import Asker

BITS = 28
EARLY_S = 0.1
"""Queues count whole milliseconds from when a message came, at a node's own clock."""


def key_of(delay_s: int) -> str:
    return ".".join(f"{delay_s:0{BITS}b}") + ".a.task"


class Levels:
    """Exchanges and queues as Kombu declares them, under a prefix: the highest level, and the two lowest ones. A queue
    gets what leaves them, as Kombu binds it."""

    def __init__(self, channel: Channel, prefix: str) -> None:
        self.channel = channel
        self.delivery = f"{prefix}_celery_delayed_delivery"
        levels = {level: f"{prefix}_celery_delayed_{level}" for level in (BITS - 1, 1, 0)}
        self.levels = [*levels.values()]
        self.entry = self.levels[0]
        self.queue, self.exchange = f"{prefix}_tasks", f"{prefix}_celery"
        for each in (*self.levels, self.delivery, self.exchange):
            channel.exchange_declare(each, "topic", durable=True)
        for (level, here), below in zip(levels.items(), (*self.levels[1:], self.delivery), strict=True):
            arguments = {
                "x-queue-type": "quorum", "x-overflow": "reject-publish", "x-message-ttl": 1000 << level,
                "x-dead-letter-exchange": below, "x-dead-letter-strategy": "at-least-once",
            }  # fmt: skip
            channel.queue_declare(here, durable=True, arguments=arguments)
            before = "*." * (BITS - 1 - level)
            channel.queue_bind(here, here, before + "1.#")
            channel.exchange_bind(below, here, before + "0.#")
        channel.queue_declare(self.queue, durable=True, arguments={"x-queue-type": "quorum"})
        channel.exchange_bind(self.exchange, self.delivery, "#.a.task")
        channel.queue_bind(self.queue, self.exchange, "#.a.task")

    def publish(self, delay_s: int, body: bytes) -> None:
        key = key_of(delay_s)
        self.channel.basic_publish(self.entry, key, body, headers={"task": "add"}, correlation_id="c", delivery_mode=2)

    def end(self) -> None:
        for queue in (*self.levels, self.queue):
            self.channel.queue_delete(queue)
        for exchange in (*self.levels, self.delivery, self.exchange):
            self.channel.exchange_delete(exchange)


@pytest.fixture
def by_levels(channel: Channel, name: Name) -> Iterator[Levels]:
    made = Levels(channel, name("levels"))
    yield made
    made.end()


@pytest.fixture
def by_policy(channel: Channel, name: Name, target: Target) -> Iterator[Levels]:
    made = Levels(channel, name("once"))
    definition = {"delay-bits": BITS, "delay-exchange": made.delivery}
    policy = {"pattern": f"^{made.entry}$", "apply-to": "exchanges", "definition": definition}
    target.api("PUT", f"policies/%2F/{made.entry}", policy)
    eventually(lambda: waiting(target, made) == 0)
    yield made
    target.api("DELETE", f"policies/%2F/{made.entry}")
    made.end()


def waiting(target: Target, levels: Levels) -> object:
    return target.api("GET", f"exchanges/%2F/{levels.entry}").json().get("messages_delayed")


@rule("91")
def test_a_countdown_comes_as_by_the_levels(
    channel: Channel, target: Target, by_levels: Levels, by_policy: Levels
) -> None:
    channel.confirm_select()
    due: dict[str, float] = {}
    for levels in (by_levels, by_policy):
        for delay_s in range(4):
            body = f"{levels.queue} {delay_s}"
            due[body] = time.time() + delay_s
            levels.publish(delay_s, body.encode())
    by_policy.publish(2**BITS - 1, b"waits")
    assert set(channel.confirms(9)) == {"ack"}
    assert [channel.message_count(level) for level in by_policy.levels] == [0, 0, 0]
    for levels in (by_levels, by_policy):
        channel.consume(levels.queue, no_ack=True)
    came = {}
    for _ in due:
        one = channel.delivery(15)
        body = one.body.decode()
        early_s = due[body] - time.time()
        assert early_s < EARLY_S, f"{body} came {early_s} s early"
        came[body] = one
    for delay_s in range(4):
        right, got = (came[f"{levels.queue} {delay_s}"] for levels in (by_levels, by_policy))
        assert got.routing_key == right.routing_key
        assert got.exchange.removeprefix(by_policy.entry[:-3]) == right.exchange.removeprefix(by_levels.entry[:-3])
        assert got.redelivered is right.redelivered is False
        assert got.headers == {"task": "add"}  # nothing has died
        assert {name: right.headers[name] for name in got.headers} == got.headers
        assert got.properties["correlation_id"] == right.properties["correlation_id"] == "c"
    channel.nothing_delivered()
    eventually(lambda: waiting(target, by_policy) == 1)


@rule("91")
def test_without_the_policy_what_waits_still_comes(channel: Channel, target: Target, by_policy: Levels) -> None:
    channel.confirm_select()
    by_policy.publish(2, b"x")
    assert channel.confirms(1) == ["ack"]
    target.api("DELETE", f"policies/%2F/{by_policy.entry}")
    channel.consume(by_policy.queue, no_ack=True)
    got = channel.delivery(15)
    assert (got.body, got.headers) == (b"x", {"task": "add"})


@rule("91")
def test_a_message_of_amqp_1_0_waits_by_its_key_too(
    channel: Channel, target: Target, by_policy: Levels, connect10: Any  # noqa: F811
) -> None:  # fmt: skip
    began_s = time.time()
    for delay_s in (1, 2**BITS - 1):
        sender = connect10().session().sender(f"/exchanges/{by_policy.entry}/{key_of(delay_s)}")
        assert sender.outcome(sender.transfer(annotated(b"x", x_delay=3_600_000))) == Accepted()
    channel.consume(by_policy.queue, no_ack=True)
    got = channel.delivery(15)
    assert time.time() > began_s + 1 - EARLY_S, "it waited"
    assert (got.exchange, got.routing_key) == (by_policy.delivery, key_of(1))
    assert got.headers["x-delay"] == 3_600_000, "that is no delay of this exchange"
    eventually(lambda: waiting(target, by_policy) == 1)


@rule("91")
def test_clients_ask_for_what_waits_as_of_a_delayed_exchange(
    channel: Channel, connect: Connect, by_policy: Levels, connect10: Any  # noqa: F811
) -> None:  # fmt: skip
    channel.confirm_select()
    by_policy.publish(2**BITS - 1, b"x")
    assert channel.confirms(1) == ["ack"]
    asker = Asker(connect().channel())
    assert asker.ask("count", exchange=by_policy.entry) == {"outcome": "counted", "messages": 1}
    assert asker.ask("stored", exchange=by_policy.entry, key="k")["messages"] == 0, "no header says under which key"
    assert asker.ask("count", exchange=by_policy.delivery)["code"] == 404
    asked = Pair(connect10().session()).ask("GET", f"/exchanges/{by_policy.entry}/delayed")
    assert asked == (200, {"message_count": 1})


@rule("91")
@pytest.mark.parametrize("definition", [{"delay-bits": 28}, {"delay-bits": 29, "delay-exchange": "x"}])
def test_a_policy_that_cannot_hold_is_refused(target: Target, name: Name, definition: dict[str, object]) -> None:
    policy = {"pattern": ".*", "apply-to": "exchanges", "definition": definition}
    refused = target.api("PUT", f"policies/%2F/{name('bits')}", policy)
    assert refused.status_code == 400
    assert "delay-" in refused.text
