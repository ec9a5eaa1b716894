"""A map of three becomes that of one survivor: what it holds is kept, what it lacks is said."""

from __future__ import annotations

import pytest

from clusterbroker.cluster.errors import PreconditionFailed
from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.map import ClusterMap
from clusterbroker.cluster.wiring.rescue import Copy, alone, judged
from tests.unit.cluster.cluster_world import ClusterWorld

A = NodeId("a")
ABOVE = 5000


def copies(map_: ClusterMap) -> dict[str, Copy]:
    return {one.queue.name: one.copy for one in judged(map_, A)}


def world_of_all_kinds() -> ClusterWorld:
    world = ClusterWorld()
    world.declare("whole", at="b")
    world.declare("volatile", at="b", x={"durability": "memory"})
    world.declare("elsewhere", at="b", x={"replicas": 1, "queue_leader_locator": "client-local"})
    world.declare("reply", at="b", durable=False)
    world.fail("a")
    world.declare("behind", at="b")
    world.register("a")
    return world


def test_what_a_survivor_has() -> None:
    map_ = world_of_all_kinds().map
    found = copies(map_)
    assert found == {
        "whole": Copy.BEHIND,  # b and c are enough without it, and it has not caught up since
        "volatile": Copy.MEMORY,
        "elsewhere": Copy.NONE,
        "behind": Copy.BEHIND,
    }
    assert copies(_declared("q"))["q"] is Copy.WHOLE


def _declared(name: str) -> ClusterMap:
    world = ClusterWorld()
    world.declare(name, at="b")
    return world.map


def test_the_survivor_owns_all_and_knows_what_it_lacks() -> None:
    world = world_of_all_kinds()
    world.declare("new", at="c")
    map_ = world.map
    before = {queue.name: queue for queue in map_.lasting_queues()}
    alone(map_, A, "disk of a", "another log", ABOVE)
    after = {queue.name: queue for queue in map_.lasting_queues()}
    assert after.keys() == before.keys(), "no durable queue is forgotten, and no transient one is left"
    for name, queue in after.items():
        assert (queue.owner, queue.replicas, queue.in_sync, queue.eligible) == (A, (A,), (A,), ())
        assert queue.queue_id == before[name].queue_id
        assert (queue.gap_epoch > before[name].epoch) is (name != "new"), "who lacks something begins with a gap"
        assert queue.epoch > before[name].epoch
        assert map_.min_in_sync(queue) == 1, "it confirms by itself"
    assert after["elsewhere"].begins_empty
    assert map_.applied > ABOVE
    (member,) = map_.members()
    assert (member.name, member.log_id, member.voter, member.draining) == (A, "another log", True, False)
    registered = world.register("a")
    assert registered.alive
    with pytest.raises(PreconditionFailed, match="was that of member 'b', which was forgotten"):
        world.add("b")
        world.register("b", disk="disk of b")
    assert world.register("b", disk="a new disk").incarnation > 1


@pytest.mark.parametrize("state", ["in sync alone", "eligible alone", "leaving"])
def test_what_the_survivor_has_all_of_has_no_gap(state: str) -> None:
    """The order in which the others are taken out must not strike its copy off."""
    world = ClusterWorld()
    world.declare("q", at="b")
    if state == "in sync alone":
        world.fail("b")
        world.fail("c")
    elif state == "eligible alone":
        world.fail("c")
        world.fail("a")
    else:
        world.drain("a", leaving=True)
    assert copies(world.map)["q"] is Copy.WHOLE
    alone(world.map, A, "disk of a", "log", 0)
    queue = world.map.queue("/", "q")
    assert queue is not None
    assert (queue.owner, queue.gap_epoch) == (A, 0)


def test_who_cannot_be_rescued() -> None:
    world = ClusterWorld("ab", "w")
    with pytest.raises(PreconditionFailed, match="'w' is a witness"):
        judged(world.map, NodeId("w"))
    world.do(c.FailNode(node=NodeId("b"), incarnation=world.member("b").incarnation))
    world.forget("b", accept_loss=True)
    with pytest.raises(PreconditionFailed, match="'b' was no member"):
        alone(world.map, NodeId("b"), "d", "l", 0)
