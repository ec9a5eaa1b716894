"""No event of a client holds the loop of a member for 100 ms: not of the one that it speaks with, of no owner, no copy.

As in test_loop_held.py; a frame of another member is an event, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from clusterbroker.broker.fronts.amqp091.connection import Connection
from clusterbroker.broker.node.core import Node
from clusterbroker.broker.node.hub import Hub
from clusterbroker.broker.wire.amqp091 import methods as m
from tests.unit.broker.fronts.amqp091.harness import Client
from tests.unit.broker.node.node_cluster import Cluster
from tests.unit.broker.node.test_loop_held import HELD_S, Watch, watching

STEPS = (
    (Connection, "receive"),
    (Node, "turn"),
    (Node, "write_group"),
    (Node, "group_committed"),
    (Node, "loaded"),
    (Hub, "received"),
)
Shape = Callable[[Cluster, Client], Callable[[], object]]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    with watching(monkeypatch, STEPS) as seen:
        yield seen


def at_another(cluster: Cluster, queue: str) -> Client:
    """A client of a member that does not own the queue."""
    return cluster[next(name for name in cluster.sites if name != cluster.queue(queue).owner)].client()


def staged(cluster: Cluster, count: int, **arguments: Any) -> Client:
    cluster["a"].client().declare("q", **arguments)
    client = at_another(cluster, "q")
    client.say(m.TxSelect())
    content = client.content("", "q", bytes(16)) * 10_000
    for _ in range(count // 10_000):
        client.raw(content)
        cluster.turn()
    return client


def very_many_messages_are_committed(cluster: Cluster, client: Client) -> Callable[[], object]:
    count = 190_000
    client = staged(cluster, count)

    def committed() -> None:
        assert client.say(m.TxCommit()) == [m.TxCommitOk()]
        assert client.ask(m.QueueDeclare(queue="q", passive=True)) == m.QueueDeclareOk("q", count, 0)

    return committed


def most_of_what_is_committed_is_too_much(cluster: Cluster, client: Client) -> Callable[[], object]:
    client = staged(cluster, 190_000, x_max_length=1000)

    def committed() -> None:
        assert client.say(m.TxCommit()) == [m.TxCommitOk()]
        assert client.ask(m.QueueDeclare(queue="q", passive=True)) == m.QueueDeclareOk("q", 1000, 0)

    return committed


def a_commit_is_refused(cluster: Cluster, client: Client) -> Callable[[], object]:
    client = staged(cluster, 190_000, x_max_length=1000, x_overflow="reject-publish")
    return lambda: (client.say(m.TxCommit()), refused_by_queue(client))


def refused_by_queue(client: Client) -> None:
    (closed,) = client.hear(0)
    assert (type(closed), closed.reply_code) == (m.ConnectionClose, 541), closed


def a_large_message_to_many_queues(cluster: Cluster, client: Client) -> Callable[[], object]:
    client.say(m.ExchangeDeclare(exchange="f", type="fanout"))
    for number in range(45):
        client.declare(f"q{number}", x_replicas=1)
        client.say(m.QueueBind(queue=f"q{number}", exchange="f", routing_key=""))
    client.ask(m.ConfirmSelect())
    content = client.content("f", "", bytes(8 << 20))

    def published() -> None:
        client.raw(content)
        cluster.turn()
        assert [said.delivery_tag for said in client.hear(1)] == [1]
        assert client.ask(m.QueueDeclare(queue="q44", passive=True)) == m.QueueDeclareOk("q44", 1, 0)

    return published


SHAPES: list[Shape] = [
    very_many_messages_are_committed, most_of_what_is_committed_is_too_much, a_commit_is_refused,
    a_large_message_to_many_queues,
]  # fmt: skip


@pytest.mark.matrix
@pytest.mark.parametrize("shape", SHAPES)
def test_no_event_holds_a_loop_of_the_cluster(shape: Shape, watch: Watch) -> None:
    for _ in range(3):
        cluster = Cluster("a", "b", "c")
        event = shape(cluster, cluster["b"].client())
        watch.longest = 0.0
        event()
        if watch.longest < HELD_S:
            return
    raise AssertionError(f"{watch.what} took {watch.longest * 1000:.0f} ms")
