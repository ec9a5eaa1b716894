"""queue.delete with if-empty or if-unused: its owner judges, the wiring log orders, perhaps much later."""

from __future__ import annotations

from clusterbroker.broker.wire.amqp091 import methods as m
from tests.unit.broker.node.node_cluster import Cluster, Site
from tests.unit.broker.node.places import away, confirming, gone, three


def deleting(cluster: Cluster) -> tuple[Site, Site]:
    """A node whose client was told that "q" may be deleted, and whose command does not get through; and another one."""
    cluster["a"].client().declare("q")
    one, other = (cluster[name] for name in away(cluster, "q"))
    one.wiring_waits = True
    one.client().raw_method(1, m.QueueDelete(queue="q", if_empty=True))
    cluster.turn()
    assert one.node.proposals
    return one, other


def test_nothing_comes_into_a_queue_between_the_judgement_and_its_deletion_however_late() -> None:
    cluster = three()
    one, other = deleting(cluster)
    (client,) = one.clients.values()
    writer, reader = confirming(cluster, other.name), other.client()
    assert writer.publish("", "q", b"x") == [], "not confirmed: it is not in the queue, and will not be"
    reader.raw_method(1, m.BasicGet(queue="q"))
    cluster.wait(2900)
    assert not gone(cluster, "q")
    assert (writer.say(), reader.say()) == ([], [])
    cluster.wait(200)  # who asked is given up: the owner orders it
    assert all(site.map.queue("/", "q") is None for site in cluster.running if site is not one)
    assert writer.say() == [m.BasicAck(1, True)]
    assert reader.say() == [m.BasicGetEmpty()]
    one.wiring_waits = False
    assert client.say() == [m.QueueDeleteOk(0)]


def test_a_deletion_that_a_former_owner_has_allowed_is_asked_for_anew() -> None:
    cluster = three()
    one, other = deleting(cluster)
    (client,) = one.clients.values()
    writer = confirming(cluster, other.name)
    owner = cluster.queue("q").owner
    cluster.kill(owner)
    assert writer.publish("", "q", b"x") == [m.BasicAck(1, True)], "its next owner knows nothing of it"
    one.wiring_waits = False
    cluster.turn()
    (closed,) = client.say()
    assert (closed.reply_code, closed.reply_text) == (406, "PRECONDITION_FAILED - queue 'q' in vhost '/' not empty")
    assert not gone(cluster, "q")


def test_a_deletion_without_conditions_holds_whoever_owns_the_queue() -> None:
    cluster = three()
    cluster["a"].client().declare("q")
    one, other = (cluster[name] for name in away(cluster, "q"))
    client = one.client()
    one.wiring_waits = True
    client.raw_method(1, m.QueueDelete(queue="q"))
    cluster.turn()
    cluster.kill(cluster.queue("q").owner)
    confirming(cluster, other.name).publish("", "q", b"x")
    one.wiring_waits = False
    assert client.say() == [m.QueueDeleteOk(0)]
    assert gone(cluster, "q")


def test_an_auto_delete_queue_that_lives_on_under_another_owner_is_not_ended_by_the_former_one() -> None:
    cluster = three()
    cluster["a"].client().ask(m.QueueDeclare(queue="q", durable=True, auto_delete=True))
    owner = cluster[cluster.queue("q").owner]
    reader = cluster[away(cluster, "q")[0]].client()
    reader.consume("q", tag="t")
    owner.wiring_waits = True
    reader.ask(m.BasicCancel("t"))
    cluster.wait(100)
    assert [type(command).__name__ for command, _ in owner.node.proposals] == ["DeleteQueue"]
    ((command, _),) = owner.node.proposals
    reader.consume("q", tag="t")
    cluster.kill(owner.name)
    cluster.order(command)  # it had left before
    cluster.turn()
    assert not gone(cluster, "q")


def test_a_queue_with_a_message_that_is_not_committed_yet_is_not_empty() -> None:
    cluster = three()
    cluster["a"].client().declare("q")
    one, other = away(cluster, "q")
    publisher = confirming(cluster, one)
    cluster[other].disk_waits = True
    assert publisher.publish("", "q", b"x") == []
    publisher.raw_method(1, m.QueueDelete(queue="q", if_empty=True))
    cluster.wait(1500)
    cluster[other].disk_waits = False
    cluster.turn()
    answers = publisher.say()
    assert [answer.reply_code for answer in answers if isinstance(answer, m.ChannelClose)] == [406], answers
    assert not gone(cluster, "q")
