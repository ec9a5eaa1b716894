"""What a queue remembers of producers that number their messages, when it changes hands."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.queues import client_numbers, producers
from clusterbroker.broker.wire.amqp091 import methods as m
from tests.unit.broker.fronts.amqp091.harness import bodies
from tests.unit.broker.node.node_cluster import Cluster


def test_a_copy_that_was_synced_knows_who_was_silent_for_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync told the producers by name, so the next owner forgot the one that had just been heard, and stored its
    repeat."""
    monkeypatch.setattr(client_numbers, "NAMED_MAX", 3)
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


def test_a_copy_hears_in_one_group_who_was_heard_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that was heard twice before a group was written stood in it where it had been heard first."""
    monkeypatch.setattr(client_numbers, "NAMED_MAX", 2)
    cluster = Cluster("a", "b", "c")
    alice = cluster["a"].client()
    alice.declare("q", x_queue_leader_locator="client-local", x_replicas=2)
    carol = cluster["c"].client()
    carol.ask(m.ConfirmSelect())

    def content(name: str, number: int) -> bytes:
        headers = {"x-producer": name, "x-seq": number}
        return carol.content("", "q", f"{name}{number}".encode(), headers=headers)

    carol.raw(content("v", 1) + content("w", 1) + content("v", 2))
    cluster.wait(1000)
    cluster.kill("a")
    cluster.wait(1000)
    assert cluster.queue("q").owner == "b"
    carol.raw(content("x", 1))  # one too many: w was silent for longest
    carol.raw(content("v", 2))
    cluster.wait(1000)
    assert bodies(cluster["c"].client().consume("q")) == [b"v1", b"w1", b"v2", b"x1"]


def test_who_was_refused_was_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next owner went by the numbers that were taken alone."""
    cluster = Cluster("a")
    alice = cluster["a"].client()
    alice.declare("q", x_queue_leader_locator="client-local")
    ring = cluster["a"].node.queues[cluster.queue("q").queue_id].ring
    known = producers.Producers(ring)
    known.note(b"v", 1)
    known.note(b"w", 1)
    known.refuse(b"v", 2)
    monkeypatch.setattr(client_numbers, "NAMED_MAX", 2)
    again = producers.Producers(ring)
    again.note(b"x", 1)
    assert again.knows(b"v", 1)
    assert not again.knows(b"w", 1)


def test_what_is_refused_again_before_its_number_is_committed_is_told_no_sooner() -> None:
    """Its client went on to later numbers, the owner died, and the next one took the number for one that it had: what
    was sent again was confirmed and nowhere."""
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare(
        "q", x_queue_leader_locator="client-local", x_max_length=1, x_overflow="reject-publish"
    )
    carol = cluster["c"].client()
    carol.ask(m.ConfirmSelect())

    def said(client: Any, number: int) -> list[type]:
        headers = {"x-producer": "v", "x-seq": number}
        return [type(one) for one in client.publish("", "q", b"%d" % number, headers=headers)]

    assert said(carol, 1) == [m.BasicAck]
    for name in "bc":
        cluster[name].disk_waits = True
    assert said(carol, 2) == [], "that it is not here has to be known to the copies first"
    dora = cluster["a"].client()
    dora.ask(m.ConfirmSelect())
    assert said(dora, 2) == [], "nor is it told who asks once more at another node"
    for name in "bc":
        cluster[name].disk_waits = False
    cluster.wait(1000)
    assert [type(one) for one in (*carol.hear(1), *dora.hear(1))] == [m.BasicNack, m.BasicNack]


def test_a_batch_is_stored_once_over_a_failover_and_a_repeat_with_more() -> None:
    """One read with a run of numbers, through a node that does not lead the queue."""
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare("q", x_queue_leader_locator="client-local", x_replicas=3)

    def batch(client: Any, *numbers: int) -> bytes:
        headers = ({"x-producer": "press", "x-seq": number} for number in numbers)
        return b"".join(client.content("", "q", b"%d" % each["x-seq"], headers=each) for each in headers)

    carol = cluster["c"].client()
    carol.ask(m.ConfirmSelect())
    carol.raw(batch(carol, *range(1, 41)))
    cluster.wait(1000)
    cluster.kill("a")
    cluster.wait(1000)
    assert cluster.queue("q").owner in ("b", "c")
    again = cluster["b"].client()
    again.ask(m.ConfirmSelect())
    again.raw(batch(again, *range(20, 61)) + batch(again, 3, 61))
    cluster.wait(1000)
    assert bodies(cluster["c"].client().consume("q")) == [b"%d" % number for number in range(1, 62)]
