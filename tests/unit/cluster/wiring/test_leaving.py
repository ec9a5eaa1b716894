"""A member that leaves while it lives: its copies are made elsewhere first, and the map says when it may go."""

import pytest

from clusterbroker.cluster.errors import PreconditionFailed
from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.wiring.balance import reconfigurations
from tests.unit.cluster.cluster_world import ClusterWorld
from tests.unit.cluster.wiring.test_balance import carry_out


def short(world: ClusterWorld, name: str) -> list[tuple[str, int, int, bool]]:
    return [(one.queue.name, one.in_sync, one.wanted, one.hopeful) for one in world.map.counting_on(NodeId(name))]


def hand_over(world: ClusterWorld, name: str) -> None:
    for queue in list(world.map.queues_of(NodeId(name))):
        others = [node for node in queue.in_sync if node != name]
        if others:
            world.transfer(queue.name, others[0])


def test_a_copy_is_made_elsewhere_before_the_one_that_leaves_is_removed() -> None:
    world = ClusterWorld("abcd")
    assert world.declare("q").replicas == ("a", "b", "c")
    world.drain("b", leaving=True)
    assert world.told == ["member b"]
    assert (world.member("b").draining, world.member("b").leaving) == (True, True)
    assert short(world, "b") == [("q", 2, 3, True)]
    (added,) = reconfigurations(world.map)
    assert (added.add, added.remove) == (("d",), ())
    world.do(added)
    assert reconfigurations(world.map) == [], "the newcomer has to catch up first"
    assert short(world, "b") == [("q", 2, 3, True)], "and until then nothing may go"
    assert world.in_sync("q", "abcd")
    assert short(world, "b") == []
    (removed,) = reconfigurations(world.map)
    assert (removed.add, removed.remove) == ((), ("b",))
    world.do(removed)
    assert world.sets("q") == ("a", "acd", "")
    world.leave("b")
    assert world.told == ["forgotten b"]


def test_it_is_refused_while_a_queue_counts_on_its_copy() -> None:
    """As it was with simulated seed 2100834: two in sync, one leaves, and the disk of the other one is lost."""
    world = ClusterWorld("abcd")
    world.declare("q")
    assert world.in_sync("q", "ab")
    world.drain("b", leaving=True)
    with pytest.raises(PreconditionFailed, match=r"1 queues count on the copy of member 'b'.* 1 of 3 copies in sync"):
        world.leave("b")
    assert world.in_sync("q", "abc")
    with pytest.raises(PreconditionFailed, match=r"2 of 3 copies in sync without it: let others catch up"):
        world.leave("b")
    world.leave("b", accept_fewer=True)
    assert world.sets("q") == ("a", "ac", "")


def test_a_former_command_means_what_it_meant() -> None:
    """What stands in logs was applied without that look, and has to be when it is read again."""
    world = ClusterWorld("abcd")
    world.declare("q")
    world.drain("b")
    world.forget("b")
    assert world.sets("q") == ("a", "ac", "")


def test_of_those_who_are_left_no_more_copies_are_asked_than_there_can_be() -> None:
    world = ClusterWorld("abc")
    world.declare("q")
    world.drain("a", leaving=True)
    hand_over(world, "a")
    assert short(world, "a") == []
    assert world.in_sync("q", "ab")
    assert short(world, "a") == [("q", 1, 2, True)]
    assert world.in_sync("q", "abc")
    assert carry_out(world) == 0
    assert world.queue("q").replicas == ("a", "b", "c"), "its own goes with it, and not before"
    world.leave("a")
    assert world.sets("q") == ("b", "bc", "")
    assert world.map.wanted_replicas(world.queue("q")) == 2


def test_an_owner_that_leaves_costs_nobody_else_his_copy() -> None:
    world = ClusterWorld("abcd")
    world.declare("q")
    world.drain("a", leaving=True)
    assert carry_out(world) == 1
    assert world.sets("q") == ("a", "abcd", ""), "its own is there until it has handed the queue over"
    with pytest.raises(PreconditionFailed, match="alive and leads 1 queues"):
        world.leave("a")
    hand_over(world, "a")
    assert carry_out(world) == 1
    assert world.sets("q") == ("b", "bcd", "")
    world.leave("a")


def test_who_is_away_is_replaced_for_one_that_leaves() -> None:
    world = ClusterWorld("abcde")
    world.declare("q")
    world.fail("c")
    assert reconfigurations(world.map) == [], "it may return"
    world.drain("b", leaving=True)
    assert short(world, "b") == [("q", 1, 3, True)]
    assert carry_out(world) == 3
    assert world.sets("q") == ("a", "ade", "")
    world.leave("b")


def test_when_nobody_can_hold_a_copy_there_is_no_hope() -> None:
    world = ClusterWorld("abcd", witnesses="w")
    world.declare("q")
    world.drain("b", leaving=True)
    world.drain("d")
    assert short(world, "b") == [("q", 2, 3, False)], "d is drained, and a witness holds nothing"
    world.drain("d", draining=False)
    world.fail("d")
    assert reconfigurations(world.map) == []
    assert short(world, "b") == [("q", 2, 3, False)], "d is away"
    world.register("d")
    assert short(world, "b") == [("q", 2, 3, True)]


def test_two_that_leave_do_not_count_for_each_other() -> None:
    world = ClusterWorld("abcde")
    world.declare("q")
    world.drain("b", leaving=True)
    world.drain("c", leaving=True)
    assert short(world, "b") == short(world, "c") == [("q", 1, 3, True)]
    assert carry_out(world) == 3
    assert world.sets("q") == ("a", "ade", "")
    world.leave("b")
    world.leave("c")
    assert world.sets("q") == ("a", "ade", "")


def test_who_changes_his_mind_stays() -> None:
    world = ClusterWorld("abcd")
    world.declare("q")
    world.drain("b", leaving=True)
    world.drain("b", draining=False)
    assert (world.member("b").draining, world.member("b").leaving) == (False, False)
    assert reconfigurations(world.map) == []
    world.drain("b", draining=False, leaving=True)
    assert not world.member("b").leaving, "who does not drain does not leave"


def test_it_leaves_with_a_single_copy_and_with_what_lives_with_it() -> None:
    world = ClusterWorld("ab")
    world.declare("single", at="b", x={"replicas": 1, "queue-leader-locator": "client-local"})
    world.declare("transient", at="b", durable=False)
    world.drain("b", leaving=True)
    assert short(world, "b") == [("single", 0, 1, True)]
    assert carry_out(world) == 1
    hand_over(world, "b")
    with pytest.raises(PreconditionFailed, match="alive and leads 1 queues"):
        world.forget("b")
    world.leave("b")
    assert world.told == ["QueueDeleted transient", "forgotten b", "replicas of single: a", "in sync single: a"]


def test_it_survives_a_restart_and_a_snapshot_and_ends_with_a_death() -> None:
    world = ClusterWorld("abcd")
    world.declare("q")
    world.drain("b", leaving=True)
    world.register("b")
    assert world.member("b").leaving
    assert world.restored().digest() == world.map.digest()
    world.fail("b")
    assert carry_out(world) == 1
    assert world.sets("q") == ("a", "acd", "")
    assert short(world, "b") == []


def test_many_queues_keep_their_copies_all_the_way() -> None:
    world = ClusterWorld("abcde")
    for number in range(40):
        world.declare(f"q{number}", x={"replicas": number % 5 + 1})
    world.drain("c", leaving=True)
    hand_over(world, "c")
    carry_out(world, at_most=7)
    hand_over(world, "c")
    carry_out(world, at_most=7)
    assert {queue.name for queue in world.map.replicas_of(NodeId("c"))} == {f"q{number}" for number in range(4, 40, 5)}
    world.leave("c")
    assert all(len(queue.in_sync) == min(4, number % 5 + 1) for number, queue in enumerate(world.map.queues()))
