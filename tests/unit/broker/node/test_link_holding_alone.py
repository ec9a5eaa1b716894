"""Recoverable receiver links of a node that is alone: what they hold survives its restart."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.queues.link_holding import NOT_KEPT, HeldMessages
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.ids import LOCAL_NODE, LogIndex
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import World
from tests.unit.broker.node.link_clients import Client, Receiver, message


class Alone:
    """A node as the clients see a cluster of it."""

    def __init__(self, *, auto_delete: bool = False, **options: Any) -> None:
        self.world = World(**options)
        self.world.client().ask(m.QueueDeclare(queue="q", durable=True, auto_delete=auto_delete))

    def __getitem__(self, _: str) -> Alone:
        return self

    @property
    def node(self) -> Any:
        return self.world.node

    @property
    def incarnation(self) -> int:
        return self.world.node.options.incarnation

    @property
    def now_ms(self) -> int:
        return self.world.now_ms

    def turn(self) -> None:
        self.world.turn()

    @property
    def queue(self) -> Any:
        return self.world.queue("q")

    def publish(self, *bodies: bytes) -> None:
        self.queue.publish([message(body) for body in bodies], None, self.now_ms)
        self.turn()


@pytest.fixture
def alone() -> Alone:
    return Alone()


@pytest.mark.parametrize("backlog", [False, True])
def test_deliveries_wait_for_their_group_and_are_settled_once(alone: Alone, backlog: bool) -> None:
    receiver = Receiver(alone, LOCAL_NODE)
    if backlog:
        alone.publish(b"1", b"2")
    alone.world.disk_waits = True
    receiver.consume(prefetch=2)
    if not backlog:
        alone.publish(b"1", b"2")
    assert receiver.read() == []
    assert alone.queue.ring.links() == {receiver.link.link: 2}
    alone.world.disk_waits = False
    assert receiver.read() == [(b"1", False), (b"2", False)]
    alone.publish(b"3")
    assert receiver.read() == [], "it has no room"
    receiver.ack(b"2")
    assert receiver.bodies() == [b"3"]
    assert receiver.held() == [HeldMessages(1, 1, 0), HeldMessages(3, 3, 0)]
    receiver.give_back(b"1")
    assert receiver.read() == [(b"1", True)]


def test_a_restart_and_a_crash_know_what_was_held(alone: Alone) -> None:
    receiver = Receiver(alone, LOCAL_NODE)
    receiver.consume(prefetch=3)
    alone.publish(b"1", b"2", b"3", b"4")
    receiver.read()
    receiver.ack(b"1")
    receiver.read()
    alone.world.checkpoint()
    receiver.ack(b"3")
    assert alone.world.journal is not None
    alone.world.crash(kept=alone.world.journal.unsynced)
    resumed = Receiver(alone, LOCAL_NODE, resumes=True)
    assert resumed.seqs() == [2, 4]
    other = Client(alone, LOCAL_NODE)
    other.consume()
    assert other.read() == []
    resumed.leave()
    assert alone.world.command(c.ExpireLink(link=LogIndex(resumed.link.link), attach=2)).ok
    assert other.read() == [(b"2", True), (b"4", True)]


def test_a_queue_that_its_last_link_has_held_over_a_restart_ends_with_it() -> None:
    alone = Alone(auto_delete=True)
    receiver = Receiver(alone, LOCAL_NODE)
    receiver.consume()
    alone.publish(b"1")
    assert receiver.bodies() == [b"1"]
    assert alone.world.journal is not None
    alone.world.crash(kept=alone.world.journal.unsynced)
    assert alone.queue.ring.links() == {receiver.link.link: 1}
    assert alone.world.command(c.ExpireLink(link=LogIndex(receiver.link.link), attach=1)).ok
    alone.turn()
    assert "q" not in alone.node.vhosts["/"].queues


def test_a_transient_queue_holds_nothing_for_links() -> None:
    alone = Alone(journaled=False)
    receiver = Receiver(alone, LOCAL_NODE)
    assert (receiver.consume(), receiver.held()) == (NOT_KEPT, NOT_KEPT)


def test_a_deleted_queue_holds_nothing(alone: Alone) -> None:
    receiver = Receiver(alone, LOCAL_NODE)
    receiver.consume()
    alone.publish(b"1")
    receiver.read()
    alone.world.disk_waits = True
    alone.publish(b"2")
    answers: list[Any] = []
    queue = alone.queue
    queue.held_by(receiver.link, answers.append)
    alone.world.command(c.DeleteQueue(vhost="/", name="q", queue_id=queue.entity.queue_id))
    assert answers == [[]]
    queue.leave_to_link([1])
    assert receiver.subscription is None
