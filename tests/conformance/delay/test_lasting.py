"""Delays over restarts and lost owners (rules 81, 82 and 90), each on nodes that the test starts for itself."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterbroker.broker.trial.nodes import LocalCluster

from ..channel import Channel
from ..marks import rule
from ..own_nodes import PATIENCE_S, OwnNodes
from ..wire import eventually

pytestmark = [pytest.mark.skipif("CONFORMANCE_URL" in os.environ, reason="it kills nodes of its own")]
EXCHANGE, QUEUE = "later", "q"
DELAY_QUEUE = f"amq.delay.{EXCHANGE}"


def wired(channel: Channel, **arguments: Any) -> Channel:
    channel.exchange_declare(
        EXCHANGE, "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct", **arguments}
    )
    channel.queue_declare(QUEUE, durable=True)
    channel.queue_bind(QUEUE, EXCHANGE, "k")
    channel.confirm_select()
    return channel


def publish(channel: Channel, bodies: list[bytes], at_ms: int) -> None:
    """All are due in their order; transient ones as well."""
    for place, body in enumerate(bodies):
        headers = {"x-deliver-at": at_ms + place}
        channel.basic_publish(EXCHANGE, "k", body, headers=headers, delivery_mode=1 + place % 2)
    assert set(channel.confirms(len(bodies))) == {"ack"}


BODIES = [b"%d" % n for n in range(20)]


@pytest.fixture
def nodes(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[OwnNodes]:
    made = OwnNodes(LocalCluster(tmp_path, request.param))
    try:
        yield made
    finally:
        made.end()


BOTH = pytest.mark.parametrize("nodes", [1, 3], indirect=True)


@rule("81")
@BOTH
def test_what_waits_survives_that_all_nodes_end(nodes: OwnNodes) -> None:
    """Also what is due while none runs."""
    at = int(time.time() * 1000)
    channel = wired(nodes.channel("a"))
    publish(channel, BODIES, at + 1500)
    channel.basic_publish(EXCHANGE, "k", b"later", headers={"x-deliver-at": at + 15_000})
    assert channel.confirms(len(BODIES) + 1)[-1] == "ack"
    nodes.restart()
    taker = nodes.channel("a")
    taker.consume(QUEUE, no_ack=True)
    taker.wait(lambda: len(taker.delivered) > len(BODIES), "what was due", PATIENCE_S)
    assert time.time() * 1000 >= at + 15_000
    assert [taker.delivered.popleft().body for _ in range(len(BODIES) + 1)] == [*BODIES, b"later"]
    taker.nothing_delivered()


@rule("90")
@BOTH
def test_a_delayed_retry_waits_out_its_time_over_a_restart(nodes: OwnNodes) -> None:
    channel = nodes.channel("a")
    retries = {"x-delayed-retry-type": "all", "x-delayed-retry-min": 15_000, "x-queue-type": "quorum"}
    channel.queue_declare(QUEUE, durable=True, arguments=retries)
    channel.confirm_select()
    channel.basic_publish("", QUEUE, b"x", delivery_mode=2)
    assert channel.confirms(1) == ["ack"]
    channel.basic_nack(channel.basic_get(QUEUE).delivery_tag, requeue=True)
    began = time.time()
    channel.basic_publish("", QUEUE, b"durable behind it", delivery_mode=2)
    assert channel.confirms(2)[-1] == "ack"
    nodes.restart()
    taker = nodes.channel("a")
    taker.consume(QUEUE)
    assert taker.delivery(PATIENCE_S).body == b"durable behind it"
    got = taker.delivery(PATIENCE_S)
    assert (got.body, got.redelivered) == (b"x", True)
    assert time.time() - began >= 14.9


@rule("82")
@pytest.mark.parametrize("when", ["before", "at", "after"])
@BOTH
def test_it_arrives_once_though_its_owner_dies(nodes: OwnNodes, when: str) -> None:
    channel = wired(nodes.channel("a"))
    owner = nodes.owner(DELAY_QUEUE)
    at_ms = int(time.time() * 1000) + {"before": 4000, "at": 1000, "after": 1}[when]
    if owner == "a":  # a client of the one that dies, if another one is there
        channel = nodes.channel(nodes.other("a"))
        channel.confirm_select()
    publish(channel, BODIES, at_ms)
    if when == "at":
        time.sleep(max(0.0, at_ms / 1000 + 0.005 - time.time()))  # in the midst of them
    if when == "after":
        eventually(lambda: channel.message_count(QUEUE) > 0)
    nodes.lose(owner)
    taker = nodes.channel(nodes.other(owner))
    taker.consume(QUEUE, no_ack=True)
    taker.wait(lambda: len(taker.delivered) >= len(BODIES), "what was due", PATIENCE_S)
    assert sorted(one.body for one in taker.delivered) == sorted(BODIES)
    taker.delivered.clear()
    taker.nothing_delivered()
