"""A record that cannot be read concerns its queue: the others go on, and so does the rest of it (correctness C8).

Before, it ended the node, again and again when a consumer was behind it."""

from __future__ import annotations

import pytest

from clusterbroker.broker.node.inspecting import Inspection
from clusterbroker.broker.stats.inspection import Request
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.ids import NodeId, QueueId
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import Client, Content, World, bodies
from tests.unit.broker.fronts.amqp091.leasing_reader import Reader
from tests.unit.broker.node.node_cluster import Cluster, Site
from tests.unit.broker.transactions.stager import Stager

NEAR = {"x_queue_leader_locator": "client-local"}
SUBJECT = "queue 'q' in vhost '/'"


def numbers(*seqs: int) -> list[bytes]:
    return [b"%d" % seq for seq in seqs]


def alerts(site: World | Site) -> list[tuple[str, str]]:
    return [(alert.kind, alert.subject) for alert in site.node.alerts]


def alone(**arguments: object) -> tuple[World, Client, int]:
    """A node with five messages on its disk, the second of which is damaged."""
    world = World()
    client = world.client()
    client.declare("q", **arguments)
    client.declare("letters")
    client.publish("", "q", *numbers(1, 2, 3, 4, 5))
    world.checkpoint()
    world.crash()
    (queue_id,) = [queue_id for queue_id, queue in world.node.queues.items() if queue.name == "q"]
    assert world.journal is not None
    world.journal.damaged.add((queue_id, 2))
    return world, world.client(), queue_id


def inspect(site: World | Site, queue_id: int, **request: object) -> Inspection:
    queue = site.node.queues[queue_id]
    inspection = Inspection(site.node, queue, Request(queue_id=queue_id, **request), 1 << 60)  # type: ignore[arg-type]
    while not inspection.over:
        if not inspection.step(site.node.now_ms):
            site.turn()
    return inspection


def test_a_message_that_cannot_be_read_is_held_back_and_the_others_are_served() -> None:
    world, client, queue_id = alone()
    assert bodies(client.consume("q", no_ack=True)) == numbers(1, 3, 4, 5)
    assert world.node.damages.held_back(queue_id) == (2,)
    assert alerts(world) == [("message.damaged", SUBJECT)]
    assert "seq 2" in next(iter(world.node.alerts)).text
    assert client.publish("", "q", b"6")
    assert bodies(client.hear()) in ([], [b"6"])


def test_an_operator_deletes_what_is_held_back_by_its_number() -> None:
    world, client, queue_id = alone()
    client.consume("q", no_ack=True)
    looked = inspect(world, queue_id, what="browse")
    assert looked.result.skipped == {"damaged": [2]}
    by_filter = inspect(world, queue_id, what="delete")
    assert by_filter.result.done == 0
    deleted = inspect(world, queue_id, what="delete", seqs=(2,))
    assert deleted.result.done == 1
    assert not world.node.damages.held_back(queue_id)
    assert not alerts(world)
    world.crash()
    assert world.node.queues[queue_id].ring.living(1, 100, 10) == []


def test_who_browses_first_sees_the_others() -> None:
    world, _, queue_id = alone()
    looked = inspect(world, queue_id, what="browse")
    assert [shown.seq for shown in looked.result.shown] == [1, 3, 4, 5]
    assert looked.result.skipped == {"damaged": [2]}


def test_a_dead_letter_that_cannot_be_read_does_not_keep_the_others() -> None:
    world, client, _ = alone(x_dead_letter_exchange="", x_dead_letter_routing_key="letters", x_message_ttl=1000)
    world.wait(2000)
    assert bodies(client.consume("letters", no_ack=True)) == numbers(1, 3, 4, 5)
    assert alerts(world) == [("message.damaged", SUBJECT)]


@pytest.mark.parametrize(
    ("exchange", "name"),
    [("core-delayed", "amq.delay.core-delayed"), ("core", "core-orphan"), ("core-req-xchg", "core-req-42")],
)
def test_a_pool_that_is_deleted_waits_for_an_operator_with_what_is_held_back(exchange: str, name: str) -> None:
    world = World()
    world.command(c.DeclarePool(vhost="/", name="core"))
    client = world.client()
    client.declare("answers")
    if name == "core-req-42":
        client.consume(name, "c")
        client.ask(m.BasicCancel("c"))
    else:
        world.command(c.PausePool(vhost="/", name="core"))
    for number in ("1", "2", "3"):
        about = {"headers": {"x-delay": 60_000}} if exchange == "core-delayed" else {}
        client.publish(exchange, "42", b"x", correlation_id=number, reply_to="answers", delivery_mode=2, **about)
    world.checkpoint()
    world.crash()
    (queue_id,) = [queue_id for queue_id, queue in world.node.queues.items() if queue.name == name]
    assert world.journal is not None
    world.journal.damaged.add((queue_id, 2))
    world.command(c.DeletePool(at_ms=world.now_ms, vhost="/", name="core", force=True, delayed=True))
    world.wait(70_000)
    answers = [one.properties.correlation_id for one in world.client().consume("answers") if isinstance(one, Content)]
    assert answers == ["1", "3"]
    assert alerts(world) == [("message.damaged", f"queue '{name}' in vhost '/'")]
    assert world.node.map.pools.all()
    assert inspect(world, queue_id, what="delete", seqs=(2,)).result.done == 1
    world.wait(5000)
    assert not alerts(world)
    assert not world.node.map.pools.all()
    assert set(world.node.vhosts["/"].queues) == {"answers"}


def three(**arguments: object) -> tuple[Cluster, int]:
    """The owner's disk, a's, has a bad record of the queue; all have begun again since it was in memory."""
    cluster = Cluster("a", "b", "c")
    client = cluster["a"].client()
    client.declare("q", **NEAR, **arguments)
    client.ask(m.ConfirmSelect())
    client.publish("", "q", *numbers(1, 2, 3, 4, 5))
    for name in "bc":  # who owns fewest queues is elected
        cluster[name].client().declare(f"of-{name}", **NEAR)
    for name in "abc":
        cluster.kill(name, failed=False)
    for name in "abc":
        cluster.restart(name)
    cluster.wait(3000)
    queue = cluster.queue("q")
    assert queue.owner == "a"
    cluster["a"].journal.damaged.add((queue.queue_id, 2))
    return cluster, queue.queue_id


def test_a_copy_with_a_bad_record_is_rebuilt_and_another_member_owns_the_queue() -> None:
    cluster, _ = three()
    client = cluster["c"].client()
    heard = client.consume("q", no_ack=True)
    cluster.wait(3000)
    assert bodies([*heard, *client.hear()]) == numbers(1, 2, 3, 4, 5)
    queue = cluster.queue("q")
    assert queue.owner in ("b", "c")
    assert queue.in_sync == ("a", "b", "c")
    assert not alerts(cluster["a"])
    assert cluster["a"].alive


def test_the_copy_that_was_rebuilt_has_all_of_it() -> None:
    cluster, queue_id = three()
    cluster["a"].node.damages.found(queue_id, (2,), "a scrub")
    cluster.wait(3000)
    cluster["a"].journal.damaged.clear()
    cluster.order(c.ForceOwner(queue_id=cluster.queue("q").queue_id, node=NodeId("a")))
    cluster.wait(3000)
    assert bodies(cluster["a"].client().consume("q", no_ack=True)) == numbers(1, 2, 3, 4, 5)


def test_a_copy_that_nobody_owns_here_is_rebuilt_as_well() -> None:
    cluster, queue_id = three()
    cluster["b"].node.damages.found(queue_id, (3,), "a scrub")
    ring = cluster["b"].node.role.copying.replicas[queue_id]  # type: ignore[union-attr]
    cluster.wait(3000)
    assert cluster.queue("q").in_sync == ("a", "b", "c")
    assert cluster["b"].node.role.copying.replicas[queue_id] is not ring  # type: ignore[union-attr]
    assert [event for event, facts in cluster["a"].events if event == "replica.out_of_sync"] != []
    assert not alerts(cluster["b"])


def test_the_only_copy_is_not_given_up() -> None:
    cluster, queue_id = three(x_replicas=1)
    assert bodies(cluster["c"].client().consume("q", no_ack=True)) == numbers(1, 3, 4, 5)
    assert alerts(cluster["a"]) == [("message.damaged", SUBJECT)]
    assert cluster["a"].node.damages.held_back(queue_id) == (2,)


def test_the_last_copy_that_is_here_waits_for_the_others() -> None:
    cluster, _queue_id = three(x_min_in_sync=1)
    for name in "bc":
        cluster.kill(name)
    cluster.order(c.AddMember(name=NodeId("d"), address="d:1"))  # nothing that matters; the log goes on
    cluster.wait(1000)
    client = cluster["a"].client()
    assert bodies(client.consume("q")) == numbers(1, 3, 4, 5)
    for name in "bc":
        cluster.restart(name)
    cluster.wait(8000)
    assert cluster.queue("q").owner in ("b", "c"), "they had all of it, and it is given to them"
    assert bodies(client.hear()) == [b"2"]
    cluster.wait(3000)
    assert cluster.queue("q").in_sync == ("a", "b", "c")
    assert not alerts(cluster["a"])


def test_a_copy_that_is_not_what_its_owner_has_is_synced_anew() -> None:
    """A scrub tells copies what they should be; what differs was a mistake of this process's memory, or of its disk."""
    cluster, queue_id = three()
    primary = cluster["a"].node.role.copying.primary  # type: ignore[union-attr]
    copy = cluster["b"].node.role.copying.replicas[queue_id]  # type: ignore[union-attr]
    assert primary.compare(queue_id) == 2
    cluster.turn()
    assert not alerts(cluster["b"])
    copy.drop([(3, 3)])
    assert primary.compare(queue_id) == 2
    cluster.turn()
    assert alerts(cluster["b"]) == [("replica.differs", "b")]
    cluster.wait(2000)
    assert list(copy.emitted_live(0)) == [(1, 5)]
    assert cluster.queue("q").in_sync == ("a", "b", "c")
    assert not alerts(cluster["c"])


def test_a_copy_that_waits_for_what_is_held_back_goes_on_when_that_is_deleted() -> None:
    cluster, queue_id = three(x_replicas=1)
    cluster.order(c.MoveReplica(queue_id=queue_id, add=(NodeId("b"),)))
    cluster.wait(3000)
    assert cluster["a"].node.damages.held_back(queue_id) == (2,), "the sync has met it"
    assert cluster.queue("q").in_sync == ("a",)
    assert inspect(cluster["a"], queue_id, what="delete", seqs=(2,)).result.done == 1
    cluster.wait(3000)
    assert cluster.queue("q").in_sync == ("a", "b")
    assert not alerts(cluster["a"])


def test_staged_rows_behind_one_that_cannot_be_read_go_on_when_an_operator_has_deleted_it() -> None:
    """Before, they waited for ever: a staging queue was nothing that an operator could name."""
    world = World()
    client = world.client(channels=2)
    client.declare("q")
    client.ask(m.QueueBind(queue="q", exchange="amq.topic", routing_key="k"))
    stager = Stager(client)
    stager.declare("txn.a")
    stager.stage("txn.a", *numbers(1, 2, 3))
    world.checkpoint()
    world.crash()
    (queue_id,) = [queue_id for queue_id, queue in world.node.queues.items() if queue.entity.staging]
    assert world.journal is not None
    world.journal.damaged.add((queue_id, 2))
    Stager(world.client(channels=2)).commit("txn.a")
    world.wait(10_000)
    assert alerts(world) == [("message.damaged", "staged rows of queue 'txn.a' in vhost '/'")]
    assert "--staged NAME --seq NUMBER" in next(iter(world.node.alerts)).text
    assert inspect(world, queue_id, what="delete", seqs=(1, 3)).result.skipped == {"not_ready": [1, 3]}
    assert inspect(world, queue_id, what="delete", seqs=(2,)).result.done == 1
    world.wait(10_000)
    assert bodies(world.client().consume("q")) == numbers(1, 3)
    assert not alerts(world)
    assert world.node.map.segments("/") == ()


def test_who_reads_a_lease_is_told_that_some_cannot_be_read() -> None:
    """Before, no answer came."""
    world, client, queue_id = alone()
    reader = Reader(client)
    reader.take()
    with pytest.raises(AssertionError, match="cannot be read from the disk"):
        reader.read(1, 6)
    assert inspect(world, queue_id, what="delete", seqs=(2,)).result.done == 1
    assert [seq for seq, _ in reader.read(1, 6)] == [1, 3, 4, 5]


def test_with_a_queue_its_alert_ends() -> None:
    """Before, what was deleted had another name already: its alert stayed until the next start."""
    world, client, _ = alone()
    client.consume("q", no_ack=True)
    assert alerts(world) == [("message.damaged", SUBJECT)]
    client.say(m.QueueDelete(queue="q"))
    assert not alerts(world)


def test_with_a_queue_the_alert_of_a_copy_ends() -> None:
    """Before, nobody told the members that did not own it: every 5 s they said it anew, of a queue without a name."""
    cluster, queue_id = three()
    for name in "bc":
        cluster.kill(name)
    cluster["a"].node.damages.found(queue_id, (2,), "a test")
    cluster["a"].turn()
    assert alerts(cluster["a"]) == [("message.damaged", SUBJECT)]
    cluster.order(c.DeleteQueue(vhost="/", name="q", queue_id=QueueId(queue_id)))
    cluster.wait(6000)
    assert not alerts(cluster["a"])


def test_damage_is_not_forgotten_when_another_member_owns_the_queue_meanwhile() -> None:
    """The node asked to give its copy up, and the queue was handed over before that was applied. Before, it was refused
    for the epoch, the damage was forgotten with the ownership, and the copy stayed in sync as it was."""
    cluster, queue_id = three()
    queue = cluster.queue("q")
    site = cluster["a"]
    cluster.order(
        c.TransferOwner(
            node=NodeId("a"), incarnation=queue.incarnation, queue_id=queue.queue_id, epoch=queue.epoch,
            version=queue.version, to=NodeId("b"),
        )
    )  # fmt: skip
    site.node.damages.found(queue_id, (2,), "a test")
    cluster.turn()
    assert cluster.queue("q").owner == "b"
    cluster.wait(6000)
    assert not alerts(site)
    assert cluster.queue("q").in_sync == ("a", "b", "c")
    assert queue_id in site.node.damages._begun_anew, "its copy began anew"
