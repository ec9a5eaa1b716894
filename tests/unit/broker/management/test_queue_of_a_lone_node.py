"""A node that was never in a cluster calls itself `local` in its wiring log; people and clients hear its name."""

from __future__ import annotations

from clusterbroker.broker.management import queues
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.management.set_up import NODE, recorded_place


def test_its_queues_are_its_own_by_name() -> None:
    place = recorded_place()
    place.must(c.DeclareQueue(vhost="/", name="alone", durable=True))
    found = queues.full(place.reading(), "/", "alone")
    assert {found[field] for field in ("owner", "leader", "node")} == {NODE}
    assert [found[field] for field in ("replicas", "in_sync", "members", "online")] == [[NODE]] * 4
