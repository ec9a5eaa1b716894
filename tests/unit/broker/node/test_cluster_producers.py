"""What a queue remembers of producers that number their messages, when it changes hands."""

from __future__ import annotations

import pytest

from broker.amqp import methods as m
from broker.queues import producers
from tests.unit.broker.node.node_cluster import Cluster
from tests.unit.broker.session.harness import bodies


def test_a_copy_that_was_synced_knows_who_was_silent_for_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync told the producers by name, so the next owner forgot the one that had just been heard, and stored its
    repeat."""
    monkeypatch.setattr(producers, "NAMED_MAX", 3)
    cluster = Cluster("a", "b", "c")
    alice = cluster["a"].client()
    alice.declare("q", x_queue_leader_locator="client-local", x_replicas=2)
    assert cluster.queue("q").replicas == ("a", "b")
    cluster.kill("b")
    carol = cluster["c"].client()
    carol.ask(m.ConfirmSelect())

    def publish(name: str) -> None:
        headers = {"x-producer": name, "x-seq": 1}
        assert [type(said) for said in carol.publish("", "q", name.encode(), headers=headers)] == [m.BasicAck]

    for name in ("z", "y", "x"):
        publish(name)
    cluster.restart("b")
    cluster.wait(3000)
    assert cluster.queue("q").in_sync == ("a", "b")
    cluster.kill("a")
    cluster.wait(1000)
    publish("w")
    publish("x")
    assert bodies(cluster["c"].client().consume("q")) == [b"z", b"y", b"x", b"w"]
