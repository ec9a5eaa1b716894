"""What a command changes of thousands of queues is carried out in slices: in the order of need, and nobody can tell.

Counted are slices and the steps in them, not time. `owing` makes a node carry out every change apart, one in a turn.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from clusterbroker.broker.node import arrears as room
from clusterbroker.broker.node.arrears import Arrears, named
from clusterbroker.broker.node.hub import HEADS
from clusterbroker.broker.remote.messages import Attach, Credit, Detach
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.ids import Incarnation, NodeId, QueueId
from clusterbroker.cluster.link.frames import FrameReader
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.replication.messages import Append
from tests.unit.broker.fronts.amqp091.harness import bodies
from tests.unit.broker.node.node_cluster import Cluster, Site


def role(site: Site) -> Any:
    found = site.node.role
    assert found is not None
    return found


def owing(cluster: Cluster, at_once: int = 0, slice_: int = 1) -> None:
    """From now on."""
    for site in cluster.running:
        role(site).arrears.at_once, role(site).arrears.slice = at_once, slice_


def declared(cluster: Cluster, count: int) -> list[str]:
    names = [f"q{number}" for number in range(count)]
    alice = cluster["a"].client()
    for name in names:
        alice.declare(name)
    cluster.wait(500)
    alice.leave()
    return names


def settled(cluster: Cluster) -> None:
    """Each node's roles, faces and epochs are those of the map."""
    for site in cluster.running:
        assert not role(site).arrears.owing
        assert role(site).hub.before is None
        for entity in site.map.queues("/"):
            queue = site.node.queues.get(entity.queue_id)
            assert (queue is not None) == (entity.owner == site.name), entity
            if queue is not None:
                assert queue.ring.epoch == entity.epoch
                assert queue.entity == entity
                assert entity.queue_id in role(site).owned_queues.queues
            else:
                assert (entity.queue_id in role(site).copying.replicas) == (site.name in entity.replicas)
            assert role(site).remote_queues.queues[entity.queue_id].entity == entity


def fail(cluster: Cluster, name: str) -> None:
    """Its process is gone, and that it failed is ordered; nobody has had a turn since."""
    site = cluster[name]
    site.crash()
    for other in cluster.sites:
        if other != name:
            cluster.unlink(name, other)
    cluster.order(c.FailNode(node=NodeId(name), incarnation=Incarnation(site.incarnation)))


def owned_by(cluster: Cluster, name: str) -> list[str]:
    return [entity.name for entity in cluster.running[0].map.queues("/") if entity.owner == name]


def begun(site: Site) -> list[str]:
    """Queues of which this node said that it became their owner, in order."""
    return [facts["queue"] for event, facts in site.events if event == "owner.began"]


def test_queues_with_clients_come_first_then_those_with_another_owner_then_the_rest() -> None:
    cluster = Cluster("a", "b", "c")
    names = declared(cluster, 30)
    dead = owned_by(cluster, "b")
    wanted = dead[-1]
    consumer = cluster["a"].client()
    consumer.consume(wanted)
    owing(cluster)
    fail(cluster, "b")
    site = cluster["a"]
    site.catch_up()
    owed = role(site).arrears
    assert all(owed.owes(site.map.queue("/", name).queue_id) for name in names)  # type: ignore[union-attr]
    assert owed.slices == 0, "the command itself carries out nothing of them"
    left: list[list[str]] = []
    while owed.owing:
        site._turn()
        left.append([name for name in names if owed.owes(site.map.queue("/", name).queue_id)])  # type: ignore[union-attr]
    gone = [next(iter(set(before) - set(after))) for before, after in zip([names, *left], left, strict=False)]
    assert len(gone) == owed.slices == 30, "a turn carries out one slice"
    assert gone[0] == wanted
    assert set(gone[1:10]) == set(dead) - {wanted}
    assert gone[10:] == [name for name in names if name not in dead], "in the order of the command"
    cluster.turn()
    settled(cluster)


def test_others_queues_are_served_between_two_slices() -> None:
    cluster = Cluster("a", "b", "c")
    declared(cluster, 60)
    site = cluster["a"]
    own = owned_by(cluster, "a")[-1]
    publisher, consumer = site.client(), site.client()
    publisher.ask(m.ConfirmSelect())
    consumer.consume(own, no_ack=True)
    owing(cluster)
    fail(cluster, "b")
    served = 0
    for other in ("a", "c"):
        cluster[other].catch_up()
    while role(site).arrears.owing and served < 10:
        before = role(site).arrears.slices
        publisher.raw(publisher.content("", own, b"%d" % served))
        for _ in range(20):  # rounds of all nodes, in each of which a slice is carried out
            cluster._round()
            if bodies(consumer.hear()):
                served += 1
                break
        assert role(site).arrears.slices - before < 20, "a publish goes through while the others wait"
    assert served >= 2
    cluster.turn()
    settled(cluster)


def test_a_commit_that_waits_for_the_dead_copy_comes_first() -> None:
    cluster = Cluster("a", "b", "c")
    names = declared(cluster, 30)
    site = cluster["a"]
    own = owned_by(cluster, "a")[-1]
    publisher = site.client()
    publisher.ask(m.ConfirmSelect())
    cluster["b"].disk_waits = True
    assert publisher.publish("", own, b"x") == []
    owing(cluster)
    fail(cluster, "b")
    site.catch_up()
    site._turn()
    queue_id = site.map.queue("/", own).queue_id  # type: ignore[union-attr]
    assert not role(site).arrears.owes(queue_id)
    assert role(site).arrears.slices == 1
    assert any(role(site).arrears.owes(site.map.queue("/", name).queue_id) for name in names)  # type: ignore[union-attr]
    cluster.turn()
    assert publisher.hear() == [m.BasicAck(1, True)]
    settled(cluster)


def test_a_frame_settles_its_queue_and_no_other() -> None:
    cluster = Cluster("a", "b", "c")
    names = declared(cluster, 30)
    owing(cluster)
    fail(cluster, "b")
    site = cluster["a"]
    site.catch_up()
    owed = role(site).arrears
    ids = [site.map.queue("/", name).queue_id for name in names]  # type: ignore[union-attr]
    assert role(site).hub.before is not None
    role(site).hub.before(Detach(ids[20], 1, 1, "unknown"))
    role(site).hub.before(Append(1, ((ids[3], 1, 0), (ids[4], 1, 0))))
    role(site).hub.before(Credit(((ids[5], 1, 1, 1, 0),)))
    assert [name for name, queue_id in zip(names, ids, strict=True) if not owed.owes(queue_id)] == [
        "q3", "q4", "q5", "q20",
    ]  # fmt: skip
    role(site).hub.before(Attach(1, 1, (), partial=True, silent=tuple(ids)))
    assert owed.owes(ids[0]), "it stays behind"
    role(site).hub.before(Attach(1, 1, ()))
    assert not owed.owing, "it speaks for all queues"
    cluster.turn()
    settled(cluster)


def test_whatever_names_queues_is_understood() -> None:
    """A frame of a kind that is new may name queues in a way of its own."""
    assert HEADS is not None
    from clusterbroker.broker.node.messages import AnyRequest
    from clusterbroker.broker.remote.messages import AnyProxy
    from clusterbroker.broker.stats.peer_messages import AnyCensus
    from clusterbroker.broker.streams.messages import AnyStream
    from clusterbroker.replication.messages import AnyReplication

    known = {"queue_id", "parts", "grants"}
    for union in (AnyReplication, AnyProxy, AnyRequest, AnyCensus, AnyStream):
        for head in getattr(union, "__args__", (union,)):
            fields = set(head.__struct_fields__)
            if fields & known or head is Attach or head.__name__ == "AppendAck":
                continue
            assert not any("queue" in field for field in fields), head
    assert list(named(Detach(7, 1, 1, "unknown"))) == [7]
    assert list(named(Append(1, ((3, 1, 0), (4, 1, 0))))) == [3, 4]


@pytest.mark.parametrize("late", ["a", "c"])
def test_an_owner_that_is_late_keeps_what_others_say_of_its_queues(late: str) -> None:
    """The silence of the others is said once: if it was lost, the queue would never be handed out."""
    cluster = Cluster("a", "b", "c")
    declared(cluster, 30)
    dead = owned_by(cluster, "b")
    role(cluster[late]).arrears.at_once, role(cluster[late]).arrears.slice = 0, 1
    fail(cluster, "b")
    cluster.turn()
    settled(cluster)
    cluster.wait(200)
    for site in cluster.running:
        for entity in site.map.queues("/"):
            if entity.owner == site.name:
                assert role(site).owned_queues.queues[entity.queue_id].attached
    for name in dead:
        publisher, consumer = cluster["a"].client(), cluster["c"].client()
        consumer.consume(name, no_ack=True)
        publisher.publish("", name, b"x")
        assert bodies(consumer.hear()) == [b"x"]


def test_a_take_over_that_is_late_begins_at_the_index_of_its_command() -> None:
    """What others have said of it since that index counts, though the node has applied more meanwhile."""
    cluster = Cluster("a", "b", "c")
    declared(cluster, 30)
    owing(cluster)
    fail(cluster, "b")
    cluster["c"].catch_up()
    while role(cluster["c"]).arrears.owing:
        cluster["c"]._turn()  # its frames name this index
    cluster.order(c.PutParameter(vhost="/", component="x", name="y", value=1))
    cluster["a"].catch_up()
    assert role(cluster["a"]).arrears.owing
    cluster.turn()
    settled(cluster)
    for owned in role(cluster["a"]).owned_queues.queues.values():
        assert owned.missing == []


def test_a_new_link_hears_of_all_queues_when_nothing_is_owed() -> None:
    """A complete Attach says that there is nothing of the queues that it does not list."""
    cluster = Cluster("a", "b", "c")
    declared(cluster, 30)
    owing(cluster)
    fail(cluster, "b")
    site = cluster["a"]
    site.catch_up()
    cluster.unlink("a", "c")
    cluster.relink()
    site._turn()
    assert role(site).arrears.owing
    frames = role(site).hub.take().get("c", [])
    heads = [HEADS.decode(head) for frame in frames for _, head, _ in FrameReader().feed(frame)]
    assert not any(isinstance(head, Attach) and not head.partial for head in heads)
    assert list(role(site).remote_queues._full) == ["c"]
    cluster.turn()
    assert not role(site).remote_queues._full
    settled(cluster)


def between(cluster: Cluster, command: Callable[[], Any], at_once: int = 0) -> None:
    """A member has failed, each node has carried out five slices, and then `command` is ordered."""
    owing(cluster)
    fail(cluster, "b")
    for site in cluster.running:
        site.catch_up()
        for _ in range(5):
            site._turn()
    given = command()
    owing(cluster, at_once)
    cluster.order(given)
    cluster.turn()
    settled(cluster)
    assert len(cluster.digests()) == 1


def still_owed(cluster: Cluster, owner: str) -> Any:
    site = cluster[owner]
    return next(
        entity
        for entity in reversed(tuple(site.map.queues("/")))
        if entity.owner == owner and role(site).arrears.owes(entity.queue_id)
    )


@pytest.mark.parametrize("at_once", [0, 256])
def test_a_queue_that_is_handed_on_between_slices(at_once: int) -> None:
    cluster = Cluster("a", "b", "c")
    declared(cluster, 40)
    epochs: dict[str, int] = {}

    def transfer() -> c.TransferOwner:
        entity = still_owed(cluster, "a")
        epochs[entity.name] = entity.epoch
        return c.TransferOwner(
            node=NodeId("a"), incarnation=entity.incarnation, queue_id=entity.queue_id, epoch=entity.epoch,
            version=entity.version, to=NodeId("c"),
        )  # fmt: skip

    between(cluster, transfer, at_once)
    ((name, epoch),) = epochs.items()
    assert (cluster.queue(name).owner, cluster.queue(name).epoch) == ("c", epoch + 1)
    alice = cluster["a"].client()
    alice.publish("", name, b"x")
    assert bodies(alice.consume(name)) == [b"x"]


def test_a_queue_that_is_deleted_between_slices() -> None:
    cluster = Cluster("a", "b", "c")
    declared(cluster, 40)
    gone: list[int] = []

    def delete() -> c.DeleteQueue:
        entity = still_owed(cluster, "c")
        gone.append(entity.queue_id)
        return c.DeleteQueue(vhost="/", name=entity.name, queue_id=entity.queue_id)

    between(cluster, delete)
    for site in cluster.running:
        assert gone[0] not in site.node.queues
        assert gone[0] not in role(site).copying.replicas
        assert gone[0] not in role(site).owned_queues.queues


def test_a_policy_between_slices_settles_all() -> None:
    cluster = Cluster("a", "b", "c")
    declared(cluster, 40)
    owing(cluster)
    fail(cluster, "b")
    site = cluster["a"]
    site.catch_up()
    assert role(site).arrears.owing
    owing(cluster, 256)
    cluster.order(c.PutPolicy(vhost="/", name="p", pattern=".*", apply_to="queues", definition={"min-in-sync": 1}))
    site.catch_up()
    assert not role(site).arrears.owing
    cluster.turn()
    settled(cluster)


def test_a_member_that_comes_back_between_slices() -> None:
    cluster = Cluster("a", "b", "c")
    names = declared(cluster, 40)
    owing(cluster)
    fail(cluster, "b")
    for site in cluster.running:
        site.catch_up()
        site._turn()
    cluster["b"].start()
    cluster.relink()
    cluster.turn()
    settled(cluster)
    cluster.wait(3000)
    assert all(cluster.queue(name).in_sync == ("a", "b", "c") for name in names)


def test_a_mistake_in_a_slice_ends_the_node_also_when_a_frame_brought_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster("a", "b", "c")
    declared(cluster, 10)
    owing(cluster)
    fail(cluster, "b")
    site = cluster["a"]
    site.catch_up()
    wrong = ZeroDivisionError("a role that is half assumed")

    def raises(*_: object) -> None:
        raise wrong

    monkeypatch.setattr(role(site), "_assume", raises)
    monkeypatch.setattr(role(site), "_renew", raises)
    role(site).hub.before(Detach(site.map.queue("/", "q0").queue_id, 1, 1, "unknown"))  # type: ignore[union-attr]
    with pytest.raises(ZeroDivisionError):
        site.node.turn(site.now_ms)


@pytest.mark.parametrize("seed", range(4))
def test_lives_of_a_cluster_that_carries_out_everything_in_slices(seed: int) -> None:
    """Members die and come back, queues are handed on and deleted, clients publish and consume: in the end each node is
    what the map says, and each message was delivered, most of them once."""
    chance = random.Random(seed)
    cluster = Cluster("a", "b", "c")
    names = declared(cluster, 8)
    owing(cluster, slice_=chance.choice((1, 2, 5)))
    sent: set[bytes] = set()
    got: list[bytes] = []
    for step in range(25):
        living = [site.name for site in cluster.running]
        deed = chance.randrange(5)
        if deed == 0 and len(living) == 3:
            fail(cluster, chance.choice(living))
        elif deed == 1 and len(living) == 2:
            cluster.restart(next(name for name in "abc" if name not in living))
            owing(cluster, slice_=chance.choice((1, 2, 5)))
        elif deed == 2:
            entity = cluster.queue(chance.choice(names))
            others = [name for name in entity.in_sync if name != entity.owner and name in living]
            if entity.owner in living and others:
                role(cluster[entity.owner]).hand_over(entity.queue_id, chance.choice(others))
        for _ in range(chance.randrange(3)):
            cluster._round()
        name, body = chance.choice(names), b"%d" % step
        publisher = cluster.running[0].client()
        publisher.ask(m.ConfirmSelect())
        if any(isinstance(heard, m.BasicAck) for heard in publisher.publish("", name, body)):
            sent.add(body)
        publisher.leave()
        cluster.wait(chance.choice((50, 200, 700)))
    for name in "abc":
        if not cluster[name].alive:
            cluster.restart(name)
    cluster.wait(5000)
    settled(cluster)
    assert len(cluster.digests()) == 1
    for name in names:
        consumer = cluster["a"].client()
        got += bodies(consumer.consume(name, no_ack=True))
    assert sent <= set(got)
    assert len(got) == len(set(got))


def test_a_cluster_at_work_asks_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steady state pays no more than one look in a turn, and one for a frame, at something that is not there."""
    cluster = Cluster("a", "b", "c")
    declared(cluster, 3)
    publisher, consumer = cluster["a"].client(), cluster["c"].client()
    publisher.ask(m.ConfirmSelect())
    consumer.consume("q0")
    cluster.wait(500)
    called: list[str] = []
    for name in ("take", "now", "behind", "sooner", "before", "settle", "settle_all", "go_on"):
        monkeypatch.setattr(Arrears, name, lambda *_, name=name: called.append(name))
    for number in range(20):
        publisher.publish("", "q0", b"%d" % number)
        for said in consumer.hear():
            if hasattr(said, "tag"):
                consumer.say(m.BasicAck(said.tag))
    cluster.wait(500)
    assert called == []


def test_a_command_of_few_queues_is_carried_out_at_once() -> None:
    cluster = Cluster("a", "b", "c")
    declared(cluster, 10)
    fail(cluster, "b")
    cluster["a"].catch_up()
    assert not role(cluster["a"]).arrears.owing
    cluster.turn()
    settled(cluster)
    assert all(role(site).arrears.slices == 0 for site in cluster.running)
    assert room.AT_ONCE > 100


def test_what_an_owner_asked_for_itself_is_carried_out_at_once() -> None:
    """It is bounded by `replication.primary.PROPOSALS_MAX`, and would be asked for again."""
    cluster = Cluster("a", "b", "c")
    declared(cluster, 10)
    owing(cluster)
    site = cluster["a"]
    own = [entity for entity in site.map.queues("/") if entity.owner == "a"]
    changes = tuple(
        c.InSyncProposal(
            QueueId(one.queue_id), one.epoch, one.version, (NodeId("a"), NodeId("c")), (Incarnation(1),) * 2
        )
        for one in own
    )
    cluster.order(c.ChangeInSync(node=NodeId("a"), incarnation=Incarnation(1), changes=changes))
    site.catch_up()
    assert not role(site).arrears.owing
    assert all(site.node.queues[one.queue_id].entity.in_sync == ("a", "c") for one in own)


def test_slices_of_what_nobody_waits_for_leave_time_to_others() -> None:
    cluster = Cluster("a", "b", "c")
    names = declared(cluster, 40)
    dead = owned_by(cluster, "b")
    consumer = cluster["a"].client()
    owing(cluster)
    fail(cluster, "b")
    site = cluster["a"]
    clock_ns = 0

    def ticking() -> int:
        nonlocal clock_ns
        clock_ns += 2_000_000
        return clock_ns

    site.node.stopwatch = ticking
    site.catch_up()
    owed = role(site).arrears
    site._turn()
    first = owed.queues
    assert 0 < first < len(names)
    until_ms = site.node.next_wake_ms
    assert until_ms is not None
    assert until_ms > site.node.now_ms, "it rests, and says until when"
    assert not site.node.busy
    site._turn()
    assert owed.queues == first
    wanted = dead[-1]
    consumer.consume(wanted)
    site._turn()
    assert not owed.owes(site.map.queue("/", wanted).queue_id), "somebody waits for it, so it does not rest"  # type: ignore[union-attr]
    assert owed.queues < len(names)
    until_ms = owed.rests_until_ms
    assert until_ms is not None
    site.now_ms = site.node.now_ms = until_ms
    assert site.node.busy
    before = owed.queues
    site._turn()
    assert owed.queues > before
