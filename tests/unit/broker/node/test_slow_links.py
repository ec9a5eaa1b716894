"""Queues of other nodes over links whose frames take long, and over those that lose one: when they are served."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from clusterbroker.broker.remote.messages import Attach
from clusterbroker.broker.remote.remote_queues import RETRY_MS
from clusterbroker.broker.wire.amqp091 import methods as m
from tests.unit.broker.fronts.amqp091.harness import Client, bodies
from tests.unit.broker.node.node_cluster import Cluster, Site

STEP_MS = 100


class SlowCluster(Cluster):
    """Three nodes with a queue `q`. Frames between them take `delay_ms`, and so many Attach frames are lost."""

    def __init__(self) -> None:
        self.delay_ms = self.lost = 0
        self.underway: list[tuple[int, str, str, int, bytes]] = []
        super().__init__("a", "b", "c")
        self["a"].client().declare("q")
        self.wait(500)

    def _round(self) -> bool:
        due = [one for one in self.underway if one[0] <= self.now_ms]
        self.underway = [one for one in self.underway if one[0] > self.now_ms]
        for _, source, target, session, frame in due:
            if (source, target) in self.links and session == self.sessions:
                self._hand(source, target, frame)
        return super()._round() or bool(due)

    def _deliver(self, source: str, target: str, frame: bytes) -> None:
        if self.delay_ms:
            self.underway.append((self.now_ms + self.delay_ms, source, target, self.sessions, frame))
        else:
            self._hand(source, target, frame)

    def _hand(self, source: str, target: str, frame: bytes) -> None:
        role = self[target].node.role
        assert role is not None
        for index, head, payload in self.readers[target, source].feed(frame):
            if self.lost and isinstance(head, Attach) and head.queues:
                self.lost -= 1
            else:
                role.hub.received(source, index, head, payload)

    @property
    def owner(self) -> str:
        return str(self.queue("q").owner)

    def until(self, condition: Callable[[], bool], within_ms: int) -> int:
        """Ms that pass until then."""
        began_ms = self.now_ms
        while not condition():
            assert self.now_ms - began_ms < within_ms
            self.wait(STEP_MS, step_ms=STEP_MS)
        return self.now_ms - began_ms


def using(site: Site) -> tuple[Client, list[Any]]:
    """Somebody who publishes to the queue and reads it, and what was heard so far."""
    client = site.client()
    heard = client.say(m.BasicConsume(queue="q", consumer_tag="c", no_ack=True))
    return client, heard + client.publish("", "q", b"x")


def is_attached(cluster: SlowCluster, site: Site) -> bool:
    assert site.node.role is not None
    return site.node.role.remote_queues.queues[cluster.queue("q").queue_id].attached


@pytest.mark.parametrize("delay_ms", [600, 2000, 5000])
def test_a_queue_over_slow_links_is_attached(delay_ms: int) -> None:
    """Also if an answer takes longer than any Attach was waited for: one that comes late tells how long it takes."""
    cluster = SlowCluster()
    site = next(one for one in cluster.running if one.name != cluster.owner)
    cluster.delay_ms = delay_ms
    client, heard = using(site)
    cluster.until(lambda: is_attached(cluster, site), 5 * delay_ms)
    if delay_ms < 5000:  # beyond it its owner is moved meanwhile
        cluster.until(lambda: bool(bodies(heard) or bodies(client.hear())), 5 * delay_ms)


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize(("lost", "spans"), [(0, 0), (1, 1), (2, 3)])
def test_a_lost_attach_to_a_new_owner_costs_one_wait(lost: int, spans: int, slow: bool) -> None:
    """`slow`: the owner before had answered late for long, so its Attach was waited for the longest."""
    cluster = SlowCluster()
    first = cluster.owner
    if slow:
        cluster.delay_ms = 5000
        others = [one for one in cluster.running if one.name != first]
        clients = [using(site)[0] for site in others]
        cluster.wait(9000, step_ms=STEP_MS)
        assert not any(is_attached(cluster, site) for site in others)
        for each in clients:
            each.leave()
    cluster.delay_ms, cluster.underway = 0, []
    cluster.kill(first)
    cluster.until(lambda: cluster.owner not in (first, "None"), 5000)
    site = next(one for one in cluster.running if one.name != cluster.owner)
    cluster.lost = lost
    client, heard = using(site)
    assert cluster.until(lambda: bool(bodies(heard) or bodies(client.hear())), 5000) <= spans * RETRY_MS + STEP_MS
