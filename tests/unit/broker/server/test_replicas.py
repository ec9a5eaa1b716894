"""Which replicas hold requests, as the node finds it that they are connected to."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.server.replicas import LOOK_MS, REPLICA, Replicas
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring.pool_entities import PoolSettings
from tests.unit.broker.fronts.amqp091.harness import Client, Content
from tests.unit.broker.node.test_pool_workers import KEY, Broker, user_of


class Node:
    """With two replicas of one launch, and a worker of the same credential that tells no name."""

    def __init__(self, scaling: Any = "hpa") -> None:
        self.broker = Broker(1, settings=PoolSettings(scaling=scaling))
        self.replicas = Replicas()
        self.now_ms = 0
        assert self.broker.alone is not None
        self.world = self.broker.alone
        self.first, self.second = self.worker(**{REPLICA: "pod-1"}), self.worker(**{REPLICA: "pod-2"})
        self.worker()

    def worker(self, **properties: Any) -> Client:
        user = user_of(self.broker.launch.launch_id)
        self.world.passwords[user] = KEY.password(self.broker.launch.launch_id).encode()
        return self.world.client(user, **properties)

    def look(self) -> dict[str, bool] | None:
        self.now_ms += LOOK_MS
        return self.replicas.look(self.broker.node, self.now_ms)

    def takes(self, worker: Client) -> int:
        heard = worker.consume("core-req-42")
        self.broker.settle()
        (got,) = [one for one in (*heard, *worker.hear()) if isinstance(one, Content)]
        tag: int = got.method.delivery_tag
        return tag


def test_a_replica_is_busy_when_two_looks_agree() -> None:
    node = Node()
    assert node.look() == {"pod-1": False, "pod-2": False}
    tag = node.takes(node.second)
    assert node.look() is None, "it may be done in a moment"
    assert node.look() == {"pod-1": False, "pod-2": True}
    assert node.look() is None
    node.second.say(m.BasicAck(tag))
    node.broker.settle()
    assert node.look() is None
    assert node.look() == {"pod-1": False, "pod-2": False}
    node.first.leave()
    assert node.look() == {"pod-2": False}


def test_it_does_not_look_all_the_time() -> None:
    node = Node()
    assert node.look() is not None
    node.first.leave()
    assert node.replicas.look(node.broker.node, node.now_ms + LOOK_MS - 1) is None
    assert node.look() == {"pod-2": False}


@pytest.mark.parametrize("scaling", ["own", "fixed"])
def test_workers_of_other_pools_are_no_replicas(scaling: str) -> None:
    assert not Node(scaling).look()
