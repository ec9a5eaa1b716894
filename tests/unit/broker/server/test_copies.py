"""What a member says of its copies, and what `clusterbroker health` makes of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from clusterbroker.broker.cli.health import Asked, _lacking, _trouble
from clusterbroker.broker.server.control.cluster_operations import CLUSTER
from clusterbroker.cluster.ids import NodeId
from tests.unit.cluster.cluster_world import ClusterWorld


class Looking:
    """Member c of three that have a copy of q; a new life of it begins with each of these."""

    def __init__(self, world: ClusterWorld) -> None:
        cluster = SimpleNamespace(name=NodeId("c"), caught_up=False)
        self.shell: Any = SimpleNamespace(cluster=cluster, node=SimpleNamespace(map=world.map))

    async def answer(self, asked: Asked) -> str:
        """Why not; empty: it is so."""
        copies = {"ok": True, **await CLUSTER["copies"](self.shell, {})}
        return _trouble({"ok": True}, asked) or _lacking(copies, asked)


async def test_ready_is_who_has_been_in_sync_since_it_began() -> None:
    """Two members that are behind in one queue each, while both are served, must not both be without clients."""
    world = ClusterWorld("abc")
    world.declare("q")
    world.in_sync("q", "ab")
    node = Looking(world)
    ready, in_sync = Asked(ready=True), Asked(in_sync=True)
    assert "1 replica here has not been in sync since it began, the first is of queue 'q'" in await node.answer(ready)
    world.in_sync("q", "abc")
    assert await node.answer(ready) == ""
    world.in_sync("q", "ab")
    assert await node.answer(ready) == "", "it fell behind for a moment"
    assert "1 replica here is not in sync" in await node.answer(in_sync)
    assert "not been in sync" in await Looking(world).answer(ready), "a life of its own"


async def test_a_queue_that_nobody_owns_keeps_no_node_from_clients() -> None:
    world = ClusterWorld("abc")
    world.declare("q", x={"min_in_sync": 1})
    world.in_sync("q", "a")
    world.fail("a")
    assert world.queue("q").owner is None
    node = Looking(world)
    assert await node.answer(Asked(ready=True)) == "", "nobody can bring that copy up to date"
    assert "1 replica here is not in sync" in await node.answer(Asked(in_sync=True))


def test_an_alarm_keeps_no_consumer_away() -> None:
    facts = {"ok": True, "alarms": ["memory"], "lease": "leased"}
    assert "the memory alarm is raised" in _trouble(facts, Asked())
    assert "the memory alarm is raised" in _trouble(facts, Asked(in_sync=True))
    assert _trouble(facts, Asked(ready=True)) == ""
    for bad in ({"lease": "fenced"}, {"draining": True}, {"state": "waits", "waits_for": ["for x"]}):
        assert _trouble({"ok": True, **bad}, Asked(ready=True)), bad
    assert _trouble({"ok": True, "draining": True}, Asked(spare=True)) == ""
