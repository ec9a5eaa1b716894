"""Rules about nodes that are lost, on a cluster of three which each test starts for itself and takes apart."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterbroker.broker.server.control.client import ask
from clusterbroker.broker.trial.nodes import LocalCluster

from .channel import Channel
from .marks import not_on_a_cluster, rule
from .wire import Connection, eventually

pytestmark = [
    pytest.mark.skipif("CONFORMANCE_URL" in os.environ, reason="it kills nodes of its own"),
]
PATIENCE_S = 60.0


class Losing:
    """The cluster, and its clients."""

    def __init__(self, directory: Path) -> None:
        self.cluster = LocalCluster(directory)
        self._opened: list[Connection] = []

    def connect(self, name: str) -> Connection:
        target = self.cluster.target(name)
        self._opened.append(Connection(f"amqp://guest:guest@{target.host}:{target.port}/"))
        return self._opened[-1]

    def owner(self, queue: str) -> str:
        rows = (ask(self.cluster.data_dir("a"), "queues") or {})["queues"]
        return str(next(row["owner"] for row in rows if row["name"] == queue))

    def kill(self, name: str) -> None:
        asyncio.run(self.cluster.kill(name))

    def end(self) -> None:
        for connection in self._opened:
            connection.abandon()
        asyncio.run(self.cluster.end())


@pytest.fixture
def losing(tmp_path: Path) -> Iterator[Losing]:
    losing = Losing(tmp_path)
    try:
        asyncio.run(losing.cluster.begin())
        yield losing
    finally:
        losing.end()


@rule("5.5/cancel-notice-leader")
def test_consumers_are_told_when_the_leader_is_lost(losing: Losing) -> None:
    """Of a queue with copies they notice nothing; one without ends with its node."""
    lasting, passing = losing.connect("b").channel(), losing.connect("b").channel()
    lasting.queue_declare("lasting", durable=True)
    losing.connect("a").channel().queue_declare("passing")
    lasting.consume("lasting", "l")
    passing.consume("passing", "p")
    losing.kill("a")
    assert passing.cancel_notice(PATIENCE_S).consumer_tag == "p"
    lasting.basic_publish("", "lasting", b"goes on")
    assert lasting.delivery(PATIENCE_S).body == b"goes on"
    assert not lasting.cancelled


ASKS: dict[str, Callable[[Channel], None]] = {
    "queue.declare": lambda channel: channel.send("queue.declare", queue="q", passive=True),
    "basic.consume": lambda channel: channel.send("basic.consume", queue="q"),
    "basic.get": lambda channel: channel.send("basic.get", queue="q"),
    "queue.purge": lambda channel: channel.send("queue.purge", queue="q"),
}


@rule("5.1/404-node-down")
def test_a_durable_queue_of_a_stopped_node_is_404(losing: Losing) -> None:
    losing.connect("a").channel().queue_declare("q", durable=True, arguments={"x-replicas": 1})
    home = losing.owner("q")
    other = next(name for name in losing.cluster.names if name != home)
    losing.kill(home)
    eventually(lambda: losing_member(losing, other, home) is False, PATIENCE_S)
    connection = losing.connect(other)
    channels = {name: connection.channel() for name in ASKS}
    for name, channel in channels.items():
        ASKS[name](channel)
    for channel in channels.values():
        text = f"home node '{home}' of durable queue 'q' in vhost '/' is down or inaccessible"
        with channel.closes(404, text):
            channel.wait(lambda: False, "channel.close", PATIENCE_S)


def losing_member(losing: Losing, at: str, name: str) -> bool:
    """Whether a member is alive, as another one has it."""
    rows = (ask(losing.cluster.data_dir(at), "members") or {})["members"]
    return bool(next(row["alive"] for row in rows if row["name"] == name))


@rule("5.1/541-metadata-timeout")
def test_without_a_majority_nothing_is_answered_and_the_connection_is_ended(losing: Losing) -> None:
    """RabbitMQ's 541 comes after a minute. Ours is told sooner, and by another code: with 320 clients go elsewhere."""
    connection = losing.connect("a")
    channel = connection.channel()
    for name in ("b", "c"):
        losing.kill(name)
    channel.send("queue.declare", queue="q", durable=True)
    with connection.closes(320, timeout_s=PATIENCE_S):
        pass
    assert not channel.replies


@rule("5.1/541-quorum-timeout")
@not_on_a_cluster("an owner out of reach is replaced within seconds; tests/unit/broker/node/test_cluster_unanswered.py")
def test_a_consume_without_an_answer_from_the_leader_is_541() -> None: ...
