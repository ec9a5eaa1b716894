"""Where a new queue goes."""

import pytest

from clusterbroker.cluster.errors import PreconditionFailed
from clusterbroker.cluster.ids import NodeId
from tests.unit.cluster.cluster_world import ClusterWorld


def spread(world: ClusterWorld) -> dict[str, tuple[int, int]]:
    """(owned, held) by member."""
    return {m.name: (world.map.owned(m.name), world.map.held(m.name)) for m in world.map.data_members()}


def test_three_replicas_by_default_or_as_many_as_there_are_members() -> None:
    for members, replicas in (("a", 1), ("ab", 2), ("abc", 3), ("abcde", 3)):
        world = ClusterWorld(members, witnesses="w")
        queue = world.declare("q")
        assert (len(queue.replicas), queue.in_sync) == (replicas, queue.replicas)
        assert world.map.wanted_replicas(queue) == replicas


def test_the_settings_say_how_many() -> None:
    world = ClusterWorld("abcde")
    assert len(world.declare("one", x={"replicas": 1}).replicas) == 1
    assert len(world.declare("many", x={"replicas": 9}).replicas) == 5
    assert len(world.declare("group", x={"quorum-initial-group-size": 2}).replicas) == 2
    world.policy(replicas=5, min_in_sync=2)
    queue = world.declare("by policy")
    assert len(queue.replicas) == 5
    assert world.map.min_in_sync(queue) == 2


def test_replicas_and_owners_are_spread_evenly() -> None:
    world = ClusterWorld("abcde")
    for number in range(20):
        world.declare(f"q{number}", at="a")
    assert spread(world) == dict.fromkeys("abcde", (4, 12))


def test_deleted_queues_make_room() -> None:
    world = ClusterWorld("abc")
    for number in range(4):
        world.declare(f"q{number}", x={"replicas": 1})
    assert spread(world) == {"a": (2, 2), "b": (1, 1), "c": (1, 1)}
    world.delete("q1")
    assert spread(world)["b"] == (0, 0)
    assert world.declare("next", x={"replicas": 1}).owner == "b"


def test_client_local() -> None:
    world = ClusterWorld("abcde", witnesses="w")
    for number in range(3):
        queue = world.declare(f"q{number}", at="d", x={"queue-leader-locator": "client-local"})
        assert queue.owner == "d"
    world.drain("d")
    assert world.declare("elsewhere", at="d", x={"queue-leader-locator": "client-local"}).owner != "d"
    assert world.declare("witness", at="w", x={"queue-leader-locator": "client-local"}).owner != "w"
    world = ClusterWorld("abc")
    owners = [world.declare(f"q{n}", at="c", x={"queue-leader-locator": "balanced"}).owner for n in range(3)]
    assert owners == ["a", "b", "c"]


def test_who_is_away_for_the_moment_completes_the_set() -> None:
    world = ClusterWorld("abc")
    world.add("d")
    world.fail("b")
    queue = world.declare("q")
    assert (queue.owner, queue.replicas, queue.in_sync) == ("a", ("a", "b", "c"), ("a", "c"))
    world.drain("b")
    assert world.declare("r").replicas == ("a", "c"), "neither who leaves nor who never came"


def test_a_witness_holds_nothing() -> None:
    world = ClusterWorld("ab", witnesses="w")
    assert world.declare("q").replicas == ("a", "b")
    with pytest.raises(PreconditionFailed, match="cannot live at 'w'"):
        world.declare("t", at="w", durable=False)


def test_only_draining_members_are_better_than_none() -> None:
    world = ClusterWorld("ab")
    world.drain("a")
    world.drain("b")
    assert world.declare("q").replicas == ("a", "b")
    world.fail("a")
    world.fail("b")
    with pytest.raises(PreconditionFailed, match="no member that is alive holds messages"):
        world.declare("r")
    assert world.map.queue("/", "r") is None


def test_a_redeclared_queue_stays_where_it_is() -> None:
    world = ClusterWorld("abc")
    queue = world.declare("q", at="a")
    assert world.declare("q", at="c") is queue
    assert world.told == []
    assert world.map.owned(NodeId("a")) == 1
