"""Why a client that publishes is not read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from clusterbroker.broker.node.backpressure import Backpressure


class Client:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def alarmed(self) -> None:
        self.heard.append("alarmed")

    def review_reading(self) -> None:
        self.heard.append("review")


class Queue:
    """As much of a queue as matters."""

    def __init__(self, owner: str) -> None:
        self.entity = SimpleNamespace(owner=owner)
        self.deleted = False


def made() -> tuple[Any, Client, Backpressure]:
    node = SimpleNamespace(alarms={}, alarms_elsewhere={}, throttled=False)
    client = Client()
    return node, client, Backpressure(node, client)


def test_only_who_publishes_is_held_up() -> None:
    node, client, backpressure = made()
    node.alarms["disk"] = None
    assert (backpressure.alarms, backpressure.holds) == ([], False)
    backpressure.begin()
    assert client.heard == ["alarmed"]
    assert (backpressure.alarms, backpressure.holds) == (["disk"], True)
    node.alarms.clear()
    assert not backpressure.holds
    node.throttled = True
    assert backpressure.holds


def test_alarms_elsewhere_concern_who_publishes_to_queues_there() -> None:
    node, client, backpressure = made()
    backpressure.begin()
    node.alarms_elsewhere["b"] = ("memory",)
    here, there = Queue("a"), Queue("b")
    backpressure.feeds([here])
    assert not backpressure.holds
    backpressure.feeds([there])
    backpressure.feeds([there])
    assert client.heard == ["alarmed", "alarmed"], "of each queue once"
    assert backpressure.alarms == ["memory at node b"]
    there.deleted = True
    assert not backpressure.holds


def test_a_queue_that_is_congested_is_waited_for() -> None:
    _, client, backpressure = made()
    backpressure.begin()
    one, other = Queue("b"), Queue("c")
    backpressure.waits_for(one)
    assert backpressure.holds
    backpressure.relieved(other)
    assert backpressure.holds
    backpressure.relieved(one)
    assert not backpressure.holds
    assert client.heard == ["alarmed", "review", "review"]
