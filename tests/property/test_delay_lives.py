"""Random lives of a delayed exchange in a cluster of three: its leader and those of its targets die and come back, a
target refuses, another one's disk stands still.

What was confirmed comes to each target once, and not before its time; to those that refuse nothing in the order of due
times, as long as one node leads. (What others have taken before a leader dies, and one has not, may come behind what
was held then.)
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from clusterbroker.broker.wire.amqp091 import methods as m
from tests.budget import examples
from tests.unit.broker.fronts.amqp091.harness import Client
from tests.unit.broker.node.node_cluster import Cluster

TARGETS = ("q1", "q2", "full")
NODES = ("a", "b", "c")


class Life:
    """One, by its seed."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.cluster = Cluster(*NODES)
        client = self.cluster["a"].client()
        client.ask(
            m.ExchangeDeclare(0, "later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"})
        )
        client.declare("q1")
        client.declare("q2", x_queue_leader_locator="client-local", x_replicas=self.chance.choice((1, 3)))
        client.declare("full", x_max_length=5, x_overflow="reject-publish")
        for queue in TARGETS:
            client.ask(m.QueueBind(0, queue, "later", ""))
        self.due: dict[bytes, int] = {}
        """Body to due time."""
        self.confirmed: dict[bytes, int] = {}
        """... to when its publisher heard so, at the latest."""
        self.publishers: list[tuple[Client, list[bytes]]] = []
        self.leader = str(self.cluster.queue("amq.delay.later").owner)
        self.led_on = True
        """Whether it has had one leader."""
        self.down: str | None = None

    def some(self) -> Client:
        return self.chance.choice(self.cluster.running).client()

    def publish(self) -> None:
        client = self.some()
        client.ask(m.ConfirmSelect())
        sent: list[bytes] = []
        heard = []
        for _ in range(self.chance.randrange(1, 40)):
            body = b"%d" % len(self.due)
            at_ms = self.cluster.now_ms + self.chance.randrange(1, 4000)
            self.due[body] = at_ms
            heard += client.publish("later", "", body, headers={"x-deliver-at": at_ms})
            sent.append(body)
        self.publishers.append((client, sent))
        self._confirm(sent, heard)
        self.cluster.wait(self.chance.randrange(50, 1000))

    def _confirm(self, sent: list[bytes], heard: list[Any]) -> None:
        for one in heard:
            assert isinstance(one, m.BasicAck), one
            first = 1 if one.multiple else one.delivery_tag
            for body in sent[first - 1 : one.delivery_tag]:
                self.confirmed.setdefault(body, self.cluster.now_ms)

    def step(self) -> None:
        match self.chance.randrange(6):
            case 0 | 1:
                self.publish()
            case 2 if self.down is None:
                self.down = self.chance.choice(NODES)
                self.cluster.kill(self.down)
                self.led_on = self.led_on and self.down != self.leader
            case 3 if self.down is not None:
                self.cluster.restart(self.down)
                self.down = None
            case 4:
                site = self.chance.choice(self.cluster.running)
                site.disk_waits = not site.disk_waits
            case _:
                self.cluster.wait(self.chance.randrange(100, 3000))
        self.look()

    def look(self) -> None:
        """Nothing is early; publishers hear what was confirmed."""
        for client, sent in self.publishers:
            if client.ended is None:
                self._confirm(sent, client.hear())
        ripe = sum(at_ms <= self.cluster.now_ms for at_ms in self.due.values())
        for name in TARGETS:
            entity = self.cluster.queue(name)
            for site in self.cluster.running:
                queue = site.node.queues.get(entity.queue_id)
                assert queue is None or queue.ring.ready <= ripe, f"{name} has what is not due"

    def end(self) -> dict[str, list[bytes]]:
        """All that came, by queue."""
        for site in self.cluster.sites.values():
            site.disk_waits = False
        if self.down is not None:
            self.cluster.restart(self.down)
        self.cluster.wait(10_000)
        came: dict[str, list[bytes]] = {name: [] for name in TARGETS}
        client = self.cluster["a"].client(channels=3)
        for channel, name in enumerate(TARGETS, 1):
            at_once = client.say(m.BasicConsume(queue=name, no_ack=True), channel=channel)
            came[name] += [one.body for one in at_once if hasattr(one, "body")]
        for _ in range(40):
            self.cluster.wait(5000, step_ms=500)
            for channel, name in enumerate(TARGETS, 1):
                came[name] += [one.body for one in client.hear(channel) if hasattr(one, "body")]
        return came


@pytest.mark.parametrize("seed", range(examples(6)))
def test_each_comes_once_to_each_target_in_time_and_in_order(seed: int) -> None:
    life = Life(seed)
    for _ in range(life.chance.randrange(10, 30)):
        life.step()
    came = life.end()
    for name, bodies in came.items():
        twice = [body for body, count in Counter(bodies).items() if count > 1]
        assert not twice, f"{name} has some twice"
    seen = [set(bodies) for bodies in came.values()]
    assert seen[0] == seen[1] == seen[2], "what has come to one has come to all"
    assert life.confirmed.keys() <= seen[0]
    for name in ("q1", "q2") if life.led_on else ():
        for one, other in pairwise(came[name]):
            waited = life.confirmed.get(other, 2**62) < life.due[other]
            assert life.due[one] <= life.due[other] or not waited, f"{name}: {one!r} before {other!r}"
