"""The life of a member: added, registered, failed, registered again, drained, forgotten."""

from typing import Any

import msgspec
import pytest

from clusterbroker.cluster.errors import AccessRefused, AlreadyExists, NotFound, PreconditionFailed
from clusterbroker.cluster.ids import Incarnation, LogIndex, NodeId
from clusterbroker.cluster.wiring import changes as told
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring import snapshot
from clusterbroker.cluster.wiring.entities import Member
from clusterbroker.cluster.wiring.map import ClusterMap
from tests.unit.cluster.cluster_world import ClusterWorld


def test_without_members_nothing_changes() -> None:
    world = ClusterWorld(members="")
    assert not world.map.is_cluster
    queue = world.declare("q", at="local")
    assert (queue.owner, queue.replicas, queue.in_sync, queue.epoch) == ("local", ("local",), ("local",), 1)
    world.do(c.ForgetTransient(node=NodeId("local")))
    with pytest.raises(NotFound, match="no member 'local'"):
        world.drain("local")
    with pytest.raises(PreconditionFailed, match="lives and dies with its node"):
        world.move("q", add="a")


def test_a_member_is_added_then_registers() -> None:
    world = ClusterWorld(members="")
    member = world.add("a")
    assert member == Member(NodeId("a"), "a:1", joined_index=world.map.applied)
    assert world.told == ["member a", "ExchangeDeclared"]
    assert (world.map.is_cluster, world.map.alive_members()) == (True, ())
    member = world.register("a")
    assert (member.alive, member.incarnation, member.disk_id, member.amqp) == (True, 1, "disk of a", ("amqp://a:5672",))
    assert world.map.alive_members() == (member,)
    with pytest.raises(AlreadyExists, match="member 'a' is there already"):
        world.add("a")
    world.add("w", witness=True)
    assert [member.name for member in world.map.members()] == ["a", "w"]
    assert [member.name for member in world.map.data_members()] == ["a"]


def test_every_vhost_of_a_cluster_has_the_exchange_that_tells_of_members() -> None:
    world = ClusterWorld(members="")
    world.do(c.AddVhost(name="before"))
    assert world.map.exchange("/", "amq.failover") is None
    world.add("a")
    world.do(c.AddVhost(name="behind"))
    for vhost in ("/", "before", "behind"):
        exchange = world.map.exchange(vhost, "amq.failover")
        assert exchange is not None
        assert (exchange.type, exchange.internal, exchange.durable) == ("fanout", True, True)
    world.add("b")
    assert len(world.map.exchanges("/")) == len(world.map.exchanges("behind")), "it is declared once"
    with pytest.raises(AccessRefused, match="deletion of system exchange"):
        world.do(c.DeleteExchange(vhost="/", name="amq.failover"))


def test_the_first_member_takes_over_what_the_single_node_had() -> None:
    world = ClusterWorld(members="")
    kept = world.declare("kept", at="local")
    world.declare("gone", at="local", durable=False)
    with pytest.raises(PreconditionFailed, match="cannot be a witness"):
        world.add("w", witness=True)
    world.add("a")
    assert world.told == [
        *("member a", "QueueDeleted gone", "ExchangeDeclared"),
        *("replicas of kept: a", "owner of kept: local -> None"),
    ]
    assert world.sets("kept") == (None, "a", "")
    world.register("a")
    assert world.told == ["member a", "owner of kept: None -> a"]
    assert world.queue("kept").queue_id == kept.queue_id, "what is in the journal under this id is still the queue's"
    with pytest.raises(PreconditionFailed, match="in a cluster"):
        world.do(c.ForgetTransient(node=NodeId("local")))


def test_who_registers_is_new_and_known_and_on_its_own_disk() -> None:
    world = ClusterWorld("ab")

    def register(node: str, disk: str, incarnation: int) -> Any:
        return world.do(
            c.RegisterNode(node=NodeId(node), disk_id=disk, incarnation=Incarnation(incarnation), address="x:1")
        )

    with pytest.raises(PreconditionFailed, match=r"registered as incarnation 1 before.*register as 2"):
        register("a", "disk of a", 1)
    with pytest.raises(NotFound):
        register("z", "disk of z", 1)
    with pytest.raises(PreconditionFailed, match="is that of member 'b'"):
        register("a", "disk of b", 2)
    with pytest.raises(PreconditionFailed, match="names no disk"):
        register("a", "", 2)
    assert register("a", "disk of a", 5).incarnation == 5, "incarnations may have gaps"


def test_a_failure_is_of_one_life_and_told_once() -> None:
    world = ClusterWorld("ab")
    first = world.member("a").incarnation
    world.register("a")
    late = c.FailNode(node=NodeId("a"), incarnation=first)
    assert world.do(late) is False, "it was failed as what it is no more"
    assert world.fail("a") is True
    assert world.member("a").alive is False
    assert world.fail("a") is False


def test_transient_queues_live_and_die_with_their_node() -> None:
    world = ClusterWorld()
    for at in "ab":
        world.declare(f"t{at}", at=at, durable=False)
        world.declare(f"x{at}", at=at, exclusive=True, connection=f"{at}.1")
    assert (world.queue("ta").replicas, world.queue("ta").in_sync) == (("a",), ("a",))
    assert world.map.held(NodeId("a")) == world.map.owned(NodeId("a")) == 0
    assert [queue.name for queue in world.map.queues_of(NodeId("b"))] == ["tb", "xb"]
    world.fail("a")
    assert world.told == ["member a", "QueueDeleted ta", "QueueDeleted xa"]
    world.register("b")
    assert world.told == ["member b", "QueueDeleted tb", "QueueDeleted xb"], "a restart that nobody noticed ends them"
    assert world.map.exclusive_queues("b.1") == ()
    with pytest.raises(PreconditionFailed, match="no member that is alive"):
        world.declare("late", at="a", durable=False)
    stale = c.DeclareQueue(vhost="/", name="stale", owner=NodeId("b"), incarnation=Incarnation(1))
    with pytest.raises(PreconditionFailed, match="incarnation 1"):
        world.do(stale)


def test_a_drained_member_is_a_flag_and_gets_no_new_queue() -> None:
    world = ClusterWorld()
    world.drain("a")
    assert world.told == ["member a"]
    assert world.member("a").draining
    assert "a" not in world.declare("q", at="a").replicas
    world.drain("a")
    assert world.told == []
    world.drain("a", draining=False)
    assert "a" in world.declare("r").replicas


def test_voters_are_flags() -> None:
    world = ClusterWorld()
    voters = (NodeId("a"), NodeId("c"))
    world.do(c.SetVoters(voters=voters))
    assert world.told == ["member a", "member c"]
    assert [member.voter for member in world.map.members()] == [True, False, True]
    with pytest.raises(NotFound, match="no member 'z'"):
        world.do(c.SetVoters(voters=(NodeId("z"),)))
    assert [member.voter for member in world.map.members()] == [True, False, True]


def test_who_is_forgotten_is_replaced_and_does_not_return_with_its_disk() -> None:
    world = ClusterWorld("abcd")
    queue = world.declare("q")
    assert queue.replicas == ("a", "b", "c")
    owner = queue.owner
    assert owner is not None
    with pytest.raises(PreconditionFailed, match=f"member '{owner}' is alive and leads 1 queues"):
        world.forget(owner)
    world.fail(owner)
    world.forget(owner)
    assert world.told == ["forgotten a", "replicas of q: bcd"]
    assert world.sets("q") == ("b", "bc", ""), "the new one has to catch up first"
    assert world.member("a") is None
    world.add("a")
    with pytest.raises(PreconditionFailed, match=r"was that of member 'a', which was forgotten"):
        world.do(c.RegisterNode(node=NodeId("a"), disk_id="disk of a", incarnation=Incarnation(9), address="a:1"))
    with pytest.raises(PreconditionFailed, match="register as 2"):
        world.do(c.RegisterNode(node=NodeId("a"), disk_id="new", incarnation=Incarnation(1), address="a:1"))
    assert world.register("a", disk="new").incarnation == 2, "what its former life sent stays of the past"


def test_an_alive_member_that_owns_nothing_may_be_forgotten() -> None:
    world = ClusterWorld()
    world.declare("q")
    world.transfer("q", "b")
    world.forget("a")
    assert world.sets("q") == ("b", "bc", "")
    assert world.queue("q").replicas == ("b", "c")
    assert world.map.min_in_sync(world.queue("q")) == 1


def test_the_only_copy_is_forgotten_on_demand_only() -> None:
    world = ClusterWorld()
    world.declare("one", x={"replicas": 1})
    world.declare("three")
    assert world.queue("one").replicas == ("a",)
    world.fail("a")
    with pytest.raises(PreconditionFailed, match=r"only copy of 1 queues, the first is queue 'one'"):
        world.forget("a")
    world.forget("a", accept_loss=True)
    assert world.queue("one").replicas == ("b",), "nobody has anything of it: it starts empty"
    assert world.sets("one") == ("b", "b", "")


def test_a_queue_whose_loss_was_accepted_goes_to_somebody_alive() -> None:
    """It starts empty at once, and not when a dead member returns, perhaps with what it once held."""
    world = ClusterWorld()
    world.declare("q", x={"replicas": 1})
    world.fail("b")
    world.drain("c")
    world.fail("a")
    world.forget("a", accept_loss=True)
    assert world.sets("q") == ("c", "c", "")


def test_a_queue_whose_loss_was_accepted_begins_empty_wherever_it_goes() -> None:
    world = ClusterWorld("ab", witnesses="w")
    world.declare("q", x={"replicas": 1})
    world.fail("b")
    world.fail("a")
    world.forget("a", accept_loss=True)
    assert world.sets("q") == (None, "b", "")
    world.register("b")
    queue = world.queue("q")
    assert (queue.owner, queue.gap_epoch, queue.begins_empty) == ("b", queue.epoch, True)
    world.add("c")
    world.register("c")
    world.move("q", add="c")
    world.force("q", "c")
    assert not world.queue("q").begins_empty, "this copy is the queue, by the operator's choice"


def test_a_stale_copy_is_not_taken_for_the_lost_one() -> None:
    """The operator accepted a loss, not how large it is: of several stale copies he names the one to go on from."""
    world = ClusterWorld()
    world.declare("q", x={"replicas": 2})
    assert world.sets("q") == ("a", "ab", "")
    assert world.in_sync("q", "a")
    world.fail("a")
    world.forget("a", accept_loss=True)
    assert world.queue("q").replicas == ("b", "c")
    assert world.sets("q") == (None, "", "")
    world.force("q", "b")
    assert world.sets("q") == ("b", "b", "")


def test_the_last_that_holds_messages_cannot_be_forgotten() -> None:
    world = ClusterWorld("a", witnesses="w")
    world.declare("q")
    world.fail("a")
    with pytest.raises(PreconditionFailed, match="the last one that holds messages"):
        world.forget("a", accept_loss=True)


def test_members_survive_a_snapshot_and_older_snapshots_decode() -> None:
    world = ClusterWorld("abc", witnesses="w")
    world.declare("q")
    world.do(c.SetVoters(voters=(NodeId("a"),)))
    world.fail("b")
    world.forget("b")
    restored = world.restored()
    assert restored.digest() == world.map.digest()
    assert restored.members() == world.map.members()
    assert list(restored.replicas_of(NodeId("a"))) == [world.queue("q")]
    again = c.AddMember(name=NodeId("b"), address="b:1")
    index = LogIndex(restored.applied + 1)
    assert restored.apply(index, again) == world.map.apply(index, again)
    assert restored.digest() == world.map.digest()
    older = bytes((snapshot.VERSION,)) + msgspec.msgpack.encode(["member", [["n", "n:1"]]])
    assert snapshot.decode(LogIndex(1), [older]).members == [Member(NodeId("n"), "n:1")]
    before_members = [chunk for chunk in snapshot.encode(ClusterMap().snapshot()) if b"member" not in chunk]
    assert not ClusterMap.restored(snapshot.decode(LogIndex(1), before_members)).is_cluster


def test_the_changes_say_what_was_before() -> None:
    world = ClusterWorld()
    queue = world.declare("q")
    world.transfer("q", "c")
    assert world.last is not None
    assert world.last.changes == (told.OwnerChanged(world.queue("q"), NodeId("a"), queue.epoch),)
    assert (world.queue("q").epoch, world.queue("q").version) == (2, 2)
