"""Who owns a queue and whose copy counts: the rows of the failure table that concern the map, one test each."""

import pytest

from clusterbroker.cluster.errors import NotFound, PreconditionFailed
from clusterbroker.cluster.ids import Epoch, Incarnation, NodeId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.ownership import Terms
from tests.unit.cluster.cluster_world import ClusterWorld


@pytest.mark.parametrize(
    ("replicas", "least"),
    [(1, 1), (2, 1), (3, 2), (4, 3), (5, 3), (7, 4)],
)
def test_the_minimum_in_sync_by_default(replicas: int, least: int) -> None:
    assert Terms(wanted=replicas).least(replicas) == least


def test_the_minimum_that_was_asked_for_is_never_more_than_there_shall_be() -> None:
    assert Terms(wanted=3, least_asked=3).least(1) == 3
    assert Terms(wanted=1, least_asked=2).least(1) == 1


def test_owner_killed() -> None:
    world = ClusterWorld()
    world.declare("q")
    world.fail("a")
    assert world.told == ["member a", "owner of q: a -> b"]
    queue = world.queue("q")
    assert world.sets("q") == ("b", "bc", "")
    assert (queue.epoch, queue.version, queue.incarnation) == (2, 2, world.member("b").incarnation)


def test_the_queues_of_a_failed_member_spread_over_the_others_in_order_of_their_ids() -> None:
    world = ClusterWorld("abcd")
    for number in range(12):
        world.declare(f"q{number}", x={"replicas": 4})
    assert {node: world.map.owned(NodeId(node)) for node in "abcd"} == {"a": 3, "b": 3, "c": 3, "d": 3}
    world.fail("a")
    assert {node: world.map.owned(NodeId(node)) for node in "abcd"} == {"a": 0, "b": 4, "c": 4, "d": 4}
    assert [word for word in world.told if word.startswith("owner")] == [
        "owner of q0: a -> b",
        "owner of q4: a -> c",
        "owner of q8: a -> d",
    ]


def test_a_draining_member_is_elected_only_if_there_is_no_other() -> None:
    world = ClusterWorld()
    world.declare("q")
    world.drain("b")
    world.fail("a")
    assert world.sets("q") == ("c", "bc", "")
    world.fail("c")
    assert world.sets("q") == ("b", "b", "c")


def test_backup_killed() -> None:
    world = ClusterWorld()
    world.declare("q")
    world.fail("b")
    assert world.told == ["member b", "in sync q: ac"]
    assert world.sets("q") == ("a", "ac", "")
    assert (world.queue("q").epoch, world.queue("q").version) == (1, 2)
    world.fail("c")
    assert world.sets("q") == ("a", "a", "c"), (
        "nothing is committed by one of three, so the last to go may still own it"
    )


def test_slow_backup_is_proposed_out_and_in_again() -> None:
    world = ClusterWorld()
    world.declare("q")
    assert world.in_sync("q", "ab")
    assert world.told == ["in sync q: ab"]
    assert world.in_sync("q", "a")
    assert world.sets("q") == ("a", "a", "b")
    assert world.in_sync("q", "ac")
    assert world.sets("q") == ("a", "ac", ""), "two commit again, of which the eligible one knows nothing"


def test_two_failures_at_once() -> None:
    world = ClusterWorld()
    world.declare("q")
    world.fail("a")
    world.fail("b")
    assert world.sets("q") == ("c", "c", "b")
    world.fail("c")
    assert world.sets("q") == (None, "c", "b"), "the last one is not dropped for being dead"
    assert world.told == ["member c", "owner of q: c -> None"]
    epoch = world.queue("q").epoch
    world.register("a")
    assert world.sets("q") == (None, "c", "b"), "a left when b and c went on without it"
    assert world.queue("q").epoch == epoch
    world.register("b")
    assert world.sets("q") == ("b", "b", "c"), "whoever returns first serves"
    assert world.queue("q").epoch == epoch + 1


def test_owner_dies_while_a_member_comes_in_sync() -> None:
    world = ClusterWorld()
    world.declare("q")
    assert world.in_sync("q", "ab")
    before = world.queue("q")
    world.fail("a")
    proposal = {"node": "a", "incarnation": before.incarnation, "epoch": before.epoch, "version": before.version}
    assert not world.in_sync("q", "abc", **proposal), "the proposal of an epoch that is over"
    assert world.told == []
    assert world.sets("q") == ("b", "b", "a"), "the newcomer was not in sync, so nobody elects it"


def test_a_proposal_must_be_of_the_present() -> None:
    world = ClusterWorld()
    queue = world.declare("q")
    assert world.in_sync("q", "ab")
    now = world.queue("q")
    assert not world.in_sync("q", "abc", version=queue.version)
    assert not world.in_sync("q", "abc", epoch=Epoch(2))
    assert not world.in_sync("q", "abc", node="b", incarnation=Incarnation(1)), "only the owner proposes"
    assert not world.in_sync("q", "abc", incarnation=Incarnation(2))
    assert not world.in_sync("q", "bc"), "not without the owner"
    assert not world.in_sync("q", "abz"), "only replicas"
    assert not world.in_sync("q", "abc", incarnations=(Incarnation(1), Incarnation(1)))
    world.register("c")
    assert not world.in_sync("q", "abc", incarnations=(1, 1, 1)), "another life than the one that caught up"
    assert world.queue("q") == now
    assert world.in_sync("q", "abc")


def test_the_same_set_again_cancels_what_was_proposed_before() -> None:
    world = ClusterWorld()
    queue = world.declare("q")
    assert world.in_sync("q", "abc")
    assert world.told == ["in sync q: abc"]
    assert not world.in_sync("q", "ab", version=queue.version)


def test_a_member_that_restarts_before_anybody_noticed() -> None:
    world = ClusterWorld()
    world.declare("q")
    world.declare("r")
    assert [world.sets(name)[0] for name in "qr"] == ["a", "b"]
    world.register("a")
    assert world.told == ["member a", "owner of q: a -> a"], "elected anew: what its former life sent is of the past"
    queue = world.queue("q")
    assert (queue.epoch, queue.incarnation, queue.in_sync) == (2, 2, ("a", "b", "c"))
    assert world.queue("r").epoch == 1


def test_full_power_loss() -> None:
    """Nobody can fail anybody; all return, one after another, and nothing was lost."""
    world = ClusterWorld()
    world.declare("q")
    for name in "bca":
        world.register(name)
    assert world.sets("q") == ("a", "abc", "")
    assert world.queue("q").epoch == 2


def test_rejoin_with_a_stale_disk() -> None:
    world = ClusterWorld()
    world.declare("q")
    world.fail("a")
    world.register("a")
    assert world.sets("q") == ("b", "bc", ""), "not in sync before it has caught up"
    assert world.in_sync("q", "abc")


def test_rejoin_with_a_lost_disk() -> None:
    world = ClusterWorld()
    world.declare("q")
    world.register("a", disk="new")
    assert world.sets("q") == ("b", "bc", ""), "the owner lost what it owned"
    world.fail("c")
    assert world.sets("q") == ("b", "b", "c")
    world.register("c", disk="also new")
    assert world.sets("q") == ("b", "b", ""), "neither in sync nor eligible"


def test_more_disks_lost_than_may_be() -> None:
    world = ClusterWorld()
    world.declare("q")
    world.fail("c")
    world.fail("b")
    assert world.sets("q") == ("a", "a", "b")
    world.register("b", disk="new")
    with pytest.raises(PreconditionFailed, match="had another disk, which may have the only copy of 1 queues"):
        world.register("a", disk="new as well")
    world.fail("a")
    world.register("c")
    assert world.sets("q") == (None, "a", ""), "c may lack what a and b have confirmed: an operator decides"
    world.force("q", "c")
    assert world.told == ["owner of q: None -> c"]
    assert world.sets("q") == ("c", "c", "")
    world.register("a", disk="new as well")


def test_a_disk_that_was_not_mounted_is_not_given_up() -> None:
    """Its member began with an empty directory; when the disk was there again, nobody waited for it any more."""
    world = ClusterWorld()
    world.declare("q", x={"replicas": 1})
    world.fail("a")
    with pytest.raises(PreconditionFailed, match="start it with that disk, or take it out and accept the loss"):
        world.register("a", disk="an empty directory")
    assert world.sets("q") == (None, "a", "")
    world.register("a")
    assert world.sets("q") == ("a", "a", "")


def test_damaged_replicas_do_not_count() -> None:
    world = ClusterWorld()
    queue = world.declare("q")
    world.declare("r")
    world.register("a", damaged=(queue.queue_id, 4711))
    assert world.sets("q") == ("c", "bc", "")
    assert world.sets("r") == ("b", "abc", "")


def test_a_damaged_replica_begins_anew_unless_nobody_else_may_have_all() -> None:
    world = ClusterWorld()
    queue, lone = world.declare("q"), world.declare("lone", x={"replicas": 1})
    owner = world.queue("lone").owner
    assert owner is not None
    world.register(owner, damaged=(queue.queue_id, lone.queue_id))
    assert world.told.count("CopyLost") == 1
    assert owner not in world.queue("q").in_sync
    assert world.sets("lone") == (owner, owner, "")


def test_all_that_a_member_has_is_damaged() -> None:
    """Without a list: of very many queues none would fit into a command."""
    world = ClusterWorld()
    world.declare("one", x={"replicas": 2})
    world.declare("lone", x={"replicas": 1})
    world.declare("two")
    assert (world.queue("one").replicas, world.queue("lone").replicas) == (("a", "b"), ("c",))
    world.register("a", all_damaged=True, spare_last=True)
    assert world.sets("one") == ("b", "b", "")
    assert world.sets("two")[1] == "bc"
    with pytest.raises(PreconditionFailed, match="'c' may be the only ones of 1 queues, the first is queue 'lone'"):
        world.register("c", all_damaged=True, spare_last=True)
    assert world.sets("lone") == ("c", "c", "")
    command = c.RegisterNode(node=NodeId("a"), disk_id="d", incarnation=Incarnation(1), address="a:1", all_damaged=True)
    assert len(c.encode(command)) < 300


def test_who_gives_up_its_copies_gets_no_queues_before_it_has_begun_again() -> None:
    """A queue that was declared in between would lose its only copy with the others, and wait for an operator."""
    world = ClusterWorld("ab")
    world.declare("q")
    world.register("b", all_damaged=True, spare_last=True)
    assert not world.member("b").alive
    world.declare("new", x={"replicas": 1})
    assert world.sets("new") == ("a", "a", "")
    world.register("b", all_damaged=True)
    assert world.sets("q") == ("a", "a", "")
    world.declare("newer", x={"replicas": 1})
    assert world.queue("newer").owner is not None


def test_what_was_given_up_is_given_up_once() -> None:
    """The node died before it had heard that its registration was applied, but not before its copies were made anew;
    then the others died. Before, its next registration struck off what it had, which nobody else had."""
    world = ClusterWorld("ab")
    world.declare("q", x={"min_in_sync": 1})
    world.register("b", all_damaged=True, spare_last=True)
    given_up_as = world.member("b").incarnation
    world.register("b", all_damaged=True, given_up_as=given_up_as)
    assert world.sets("q") == ("a", "a", "")
    world.in_sync("q", "ab")
    world.fail("a")
    assert world.sets("q") == ("b", "b", "")
    world.register("b", all_damaged=True, given_up_as=given_up_as)
    assert world.sets("q") == ("b", "b", "")
    world.register("b", all_damaged=True, given_up_as=world.member("b").incarnation)
    assert world.sets("q")[1] == "", "what is damaged anew is"


def test_a_damaged_replica_that_may_be_the_last_is_not_given_up() -> None:
    world = ClusterWorld()
    queue = world.declare("q")
    world.declare("r")
    world.register("a", damaged=(queue.queue_id,), spare_last=True)
    world.register("b", damaged=(queue.queue_id,), spare_last=True)
    assert world.sets("q") == ("c", "c", "")
    with pytest.raises(PreconditionFailed, match="'c' may be the only ones of 1 queues, the first is queue 'q'"):
        world.register("c", damaged=(queue.queue_id,), spare_last=True)
    assert world.sets("q") == ("c", "c", "")
    assert world.sets("r")[1] == "abc"


def test_force_owner() -> None:
    world = ClusterWorld("abcd")
    world.declare("q")
    with pytest.raises(PreconditionFailed, match="no replica at 'd': choose of a, b, c"):
        world.force("q", "d")
    world.fail("c")
    with pytest.raises(PreconditionFailed, match="member 'c' is not alive"):
        world.force("q", "c")
    world.force("q", "b")
    assert world.sets("q") == ("b", "b", "")
    with pytest.raises(NotFound):
        world.force("q", "z")


def test_an_owner_that_lacks_something_is_out_and_one_that_may_lack_something_is_not() -> None:
    world = ClusterWorld()
    for name in ("lacks", "doubted"):
        world.declare(name)
    world.fail("b")
    world.fail("c")
    world.register("b")
    assert world.sets("lacks") == world.sets("doubted") == ("a", "a", "c"), "b was dropped when two were enough"
    with pytest.raises(PreconditionFailed, match="cannot go to 'b', which may lack something itself, or is away"):
        world.give_up("doubted", "a", "b", doubted=True)
    world.register("c")
    world.give_up("lacks", "a", "c")
    world.give_up("doubted", "a", "c", doubted=True)
    assert world.sets("lacks") == ("c", "c", "")
    assert world.sets("doubted") == ("c", "c", "a"), "if c goes, a may own it again"


def test_hand_over() -> None:
    world = ClusterWorld("abcd")
    queue = world.declare("q")
    world.transfer("q", "b")
    assert world.told == ["owner of q: a -> b"]
    assert world.sets("q") == ("b", "abc", "")
    for late in ({"epoch": queue.epoch, "version": queue.version}, {"version": 1}, {"node": "a"}, {"incarnation": 9}):
        with pytest.raises(PreconditionFailed):
            world.transfer("q", "c", **late)
    with pytest.raises(PreconditionFailed, match="not another in-sync replica"):
        world.transfer("q", "d")
    with pytest.raises(PreconditionFailed, match="not another in-sync replica"):
        world.transfer("q", "b")
    assert world.in_sync("q", "ab")
    with pytest.raises(PreconditionFailed):
        world.transfer("q", "c")


def test_clean_shutdown_one_after_another_leaves_the_last_eligible_ones() -> None:
    world = ClusterWorld()
    world.declare("q")
    world.transfer("q", "b")
    assert world.in_sync("q", "bc")
    world.fail("a")
    world.transfer("q", "c")
    assert world.in_sync("q", "c")
    world.fail("b")
    world.fail("c")
    assert world.sets("q") == (None, "c", "b")
    world.register("a")
    assert world.sets("q")[0] is None, "a start without the last to leave waits"
    world.register("b")
    assert world.sets("q") == ("b", "b", "c")


def test_two_of_two_commit_alone_so_nobody_is_eligible() -> None:
    world = ClusterWorld("ab")
    world.declare("q")
    world.fail("a")
    assert world.sets("q") == ("b", "b", "")
    world.fail("b")
    world.register("a")
    assert world.sets("q") == (None, "b", ""), "b may have committed alone"


def test_a_lower_minimum_ends_the_eligible_set_since_the_owner_commits_alone_now() -> None:
    world = ClusterWorld()
    world.declare("q")
    world.fail("b")
    world.fail("c")
    assert world.sets("q") == ("a", "a", "c")
    world.policy(min_in_sync=1)
    assert world.told == ["PolicyChanged", "in sync q: a"]
    assert world.sets("q") == ("a", "a", "")


def test_a_lower_minimum_keeps_the_eligible_of_a_queue_without_owner() -> None:
    """Nobody commits; and who lowers it wants the queue back from whoever returns first."""
    world = ClusterWorld()
    world.declare("q")
    for name in "abc":
        world.fail(name)
    assert world.sets("q") == (None, "c", "b")
    world.policy(min_in_sync=1)
    assert world.sets("q") == (None, "c", "b")
    world.register("b")
    assert world.sets("q") == ("b", "b", ""), "now it commits alone"


def test_memory_queues_are_emptied_by_the_restart_of_a_member() -> None:
    world = ClusterWorld()
    world.declare("m", x={"durability": "memory"})
    world.register("b")
    assert world.sets("m") == ("a", "ac", "")
    world.register("a")
    assert world.sets("m") == ("c", "c", ""), "its owner has nothing of it any more"
    assert world.in_sync("m", "abc")
    world.fail("c")
    world.fail("a")
    assert world.sets("m") == ("b", "b", ""), "what was in the memory of c and a is gone: they are not eligible"


def test_a_memory_queue_of_which_nobody_is_left_starts_empty() -> None:
    world = ClusterWorld()
    world.declare("m", x={"durability": "memory"})
    world.fail("c")
    world.fail("b")
    world.register("b")
    assert world.sets("m") == ("a", "a", "")
    world.fail("a")
    assert world.sets("m") == ("b", "b", ""), "b had left before, but there is nothing else"
    world.fail("b")
    assert world.sets("m") == (None, "", "")
    world.register("c")
    assert world.sets("m") == ("c", "c", "")


def test_a_queue_knows_since_when_its_copies_may_lack_something() -> None:
    world = ClusterWorld()
    world.declare("q")
    world.fail("c")
    world.register("c")
    world.force("q", "b")
    assert world.queue("q").gap_epoch == 0, "it was in sync"
    world.force("q", "c")
    assert world.queue("q").gap_epoch == world.queue("q").epoch
    gap = world.queue("q").gap_epoch
    world.in_sync("q", "bc")
    world.fail("c")
    assert world.sets("q")[0] == "b"
    assert world.queue("q").gap_epoch == gap
    world.declare("m", x={"durability": "memory"})
    for name in "ab":
        world.register(name)
        world.fail(name)
    world.register("c")
    assert world.queue("m").gap_epoch == world.queue("m").epoch, "nobody was left"


def test_move_replica() -> None:
    world = ClusterWorld("abcd", witnesses="w")
    world.declare("q")
    world.move("q", add="d")
    assert world.told == ["replicas of q: abcd"]
    assert world.sets("q") == ("a", "abc", "")
    world.move("q", add="d", remove="w")
    assert world.told == []
    assert world.in_sync("q", "abcd")
    world.move("q", remove="b")
    assert world.told == ["replicas of q: acd", "in sync q: acd"]
    with pytest.raises(PreconditionFailed, match="led by 'a': hand it to another"):
        world.move("q", remove="a")
    with pytest.raises(PreconditionFailed, match="'w' is a witness"):
        world.move("q", add="w")
    assert world.in_sync("q", "ac")
    with pytest.raises(PreconditionFailed, match="too few replicas in sync, 1"):
        world.move("q", add="b", remove="c")
    world.fail("c")
    world.fail("a")
    assert world.sets("q") == (None, "a", "c")
    for node in "ac":
        with pytest.raises(PreconditionFailed):
            world.move("q", remove=node)
