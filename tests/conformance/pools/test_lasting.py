"""Requests over lost owners and restarts (rule 22), on nodes that the test starts for itself."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.authority import Authority

from ..channel import Channel
from ..cluster_target import WITH_HTTP, ServedCluster
from ..marks import rule
from ..own_nodes import PATIENCE_S, OwnNodes

pytestmark = [pytest.mark.skipif("CONFORMANCE_URL" in os.environ, reason="it kills nodes of its own")]
KEYS = tuple(str(number) for number in range(10))
ANSWERS = "answers"


class PoolNodes(OwnNodes):
    """Three nodes with a pool."""

    def __init__(self, directory: Path) -> None:
        Authority(directory)
        cluster = ServedCluster(directory, directory)
        super().__init__(cluster)
        self._http = f"http://{cluster.listeners(WITH_HTTP)['http']}/api/pools/%2F/core"
        httpx.put(self._http, json={}, auth=("guest", "guest"), timeout=PATIENCE_S, verify=False).raise_for_status()

    def act(self, action: str) -> None:
        httpx.post(
            f"{self._http}/{action}", json={}, auth=("guest", "guest"), timeout=PATIENCE_S, verify=False
        ).raise_for_status()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[PoolNodes]:
    made = PoolNodes(tmp_path)
    try:
        yield made
    finally:
        made.end()


def taken(channel: Channel, count: int) -> list[bytes]:
    for key in KEYS:
        channel.consume(f"core-req-{key}")
    channel.wait(lambda: len(channel.delivered) >= count, f"{count} requests", PATIENCE_S)
    bodies = [channel.delivered.popleft().body for _ in range(count)]
    channel.nothing_delivered(2)
    return bodies


@rule("22")
@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.1])
def test_an_orphan_is_moved_once_though_its_owner_dies(nodes: PoolNodes, after_s: float) -> None:
    owner = nodes.owner("core-orphan")
    alive = nodes.other(owner)
    channel = nodes.channel(alive)
    channel.confirm_select()
    nodes.act("pause")
    bodies = [b"%d" % number for number in range(100)]
    for number, body in enumerate(bodies):
        channel.basic_publish("core", KEYS[number % len(KEYS)], body, delivery_mode=1 + number % 2)
    assert set(channel.confirms(len(bodies), PATIENCE_S)) == {"ack"}
    nodes.act("resume")
    time.sleep(after_s)
    nodes.kill(owner)
    assert sorted(taken(channel, len(bodies)), key=int) == bodies


@rule("22")
def test_what_waits_survives_that_all_nodes_end(nodes: PoolNodes) -> None:
    channel = nodes.channel("a")
    channel.confirm_select()
    nodes.act("pause")
    bodies = [b"%d" % number for number in range(20)]
    for number, body in enumerate(bodies):
        channel.basic_publish("core", KEYS[number % len(KEYS)], body)
    assert set(channel.confirms(len(bodies))) == {"ack"}
    nodes.act("resume")
    nodes.restart()
    assert sorted(taken(nodes.channel("b"), len(bodies)), key=int) == bodies


@rule("24")
def test_answers_come_once_though_the_responder_dies(nodes: PoolNodes) -> None:
    owner = nodes.owner("core-dl")
    channel = nodes.channel(nodes.other(owner))
    channel.confirm_select()
    channel.queue_declare(ANSWERS, durable=True)
    nodes.act("pause")
    for number in range(50):
        channel.basic_publish(
            "core", "42", b"x", reply_to=ANSWERS, correlation_id=str(number), expiration=str(2000 + 10 * number)
        )
    assert set(channel.confirms(50)) == {"ack"}
    time.sleep(2.2)  # some are answered, some on their way, some not due
    nodes.kill(owner)
    channel.consume(ANSWERS, no_ack=True)
    channel.wait(lambda: len(channel.delivered) >= 50, "all answers", PATIENCE_S)
    answers = [channel.delivered.popleft().properties["correlation_id"] for _ in range(50)]
    channel.nothing_delivered(2)
    assert sorted(answers, key=int) == [str(number) for number in range(50)]
