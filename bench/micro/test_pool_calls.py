"""What a call of a pool costs, on one node and on three, in one process: no sockets, no disk, no generator.

python -m pytest bench/micro/test_pool_calls.py

A round is a call of each key: requests of a caller at each node, answers by direct reply-to, acknowledgements, in
QUARTERS turns each. The clock is processor time, so the least of the rounds can be compared on a busy machine.
`extra_info.us_per_call` is the figure.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from typing import Any, Final

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp091.codec import OutBuffer
from clusterbroker.broker.wire.amqp091.properties import Properties, encode
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.pool_entities import PoolSettings
from tests.unit.broker.fronts.amqp091.harness import Client, World
from tests.unit.broker.node.node_cluster import Cluster

CHANNELS: Final = 10
QUARTERS: Final = 4
ROUNDS: Final = 20
BODY: Final = bytes(100)
ID: Final = "0123456789abcdef"
REPLY_TO: Final = "amq.rabbitmq.reply-to"


def frames(channel: int, exchange: str, key: str, properties: Properties) -> bytes:
    """A publish."""
    out = OutBuffer(131072)
    out.method(channel, m.encode(m.BasicPublish(exchange=exchange, routing_key=key)))
    out.frame(2, channel, struct.pack(">HHQ", 60, 0, len(BODY)) + encode(properties))
    out.frame(3, channel, BODY)
    return bytes(out.take())


class Heard:
    """In place of what a client makes of its bytes: how many deliveries they are, and nothing else is paid for."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.count = 0
        client.flush = self.flush  # type: ignore[method-assign]

    def flush(self) -> None:
        """The shell sends what is in the buffer."""
        self.count += bytes(self._client.connection.out.take()).count(BODY)
        self._client.connection.sent(self._client.world.now_ms)


class Calls:
    """A caller and a worker at each node."""

    def __init__(self, clock: World | Cluster, sites: list[World], keys: int) -> None:
        self._clock = clock
        self.keys = keys
        self._workers = [site.client(channels=CHANNELS) for site in sites]
        self._callers = [site.client() for site in sites]
        for key in range(keys):
            worker, channel = self._worker(key)
            worker.say(m.BasicConsume(queue=f"core-req-{key}", consumer_tag=str(key)), channel=channel)
        for caller in self._callers:
            caller.say(m.BasicConsume(queue=REPLY_TO, consumer_tag="r", no_ack=True))
        clock.wait(3000)
        asks = Properties(delivery_mode=2, correlation_id=ID, reply_to=REPLY_TO)
        answers = Properties(delivery_mode=1, correlation_id=ID)
        self._requests = [frames(1, "core", str(key), asks) for key in range(keys)]
        self._answers = [
            frames(self._worker(key)[1], "", self._caller(key).connection.channels[1].reply_key, answers)  # type: ignore[attr-defined]
            for key in range(keys)
        ]
        self._tags: Counter[tuple[Client, int]] = Counter()
        self.heard = [Heard(client) for client in self._callers]
        for client in self._workers:
            Heard(client)

    def _worker(self, key: int) -> tuple[Client, int]:
        nodes = len(self._workers)
        return self._workers[key % nodes], 1 + key // nodes % CHANNELS

    def _caller(self, key: int) -> Client:
        return self._callers[key * 7 // 3 % len(self._callers)]

    def _say(self, said: dict[Client, list[bytes]]) -> None:
        for client, parts in said.items():
            client.raw(b"".join(parts))
        self._clock.now_ms += 1
        self._clock.turn()

    def round(self) -> None:
        """A call of each key."""
        parts = [range(at, self.keys, QUARTERS) for at in range(QUARTERS)]
        for part in parts:
            said: dict[Client, list[bytes]] = {}
            for key in part:
                said.setdefault(self._caller(key), []).append(self._requests[key])
            self._say(said)
        for part in parts:
            said, answered = {}, Counter(map(self._worker, part))
            for key in part:
                said.setdefault(self._worker(key)[0], []).append(self._answers[key])
            for (client, channel), count in answered.items():
                self._tags[client, channel] += count
                out = OutBuffer(131072)
                out.method(channel, m.encode(m.BasicAck(self._tags[client, channel], True)))
                said.setdefault(client, []).append(bytes(out.take()))
            self._say(said)


def one_node(events: bool = False) -> Calls:
    world = World(segment_bytes=64 << 20)
    world.command(c.DeclarePool(vhost="/", name="core", settings=PoolSettings(), events=events))
    return Calls(world, [world], 1000)


def one_node_that_tells() -> Calls:
    """Three events a call."""
    return one_node(events=True)


def three_nodes() -> Calls:
    cluster = Cluster("a", "b", "c")
    cluster.order(c.DeclarePool(vhost="/", name="core", settings=PoolSettings()))
    cluster.wait(200)
    return Calls(cluster, list(cluster.sites.values()), 300)


@pytest.mark.parametrize("make", [one_node, one_node_that_tells, three_nodes])
@pytest.mark.benchmark(timer=time.process_time, warmup=False)
def test_a_call(benchmark: BenchmarkFixture, make: Any) -> None:
    calls = make()
    calls.round()
    benchmark.pedantic(calls.round, rounds=ROUNDS)
    assert sum(heard.count for heard in calls.heard) == (ROUNDS + 1) * calls.keys, "each was answered once"
    benchmark.extra_info["us_per_call"] = benchmark.stats.stats.min / calls.keys * 1e6
