"""Queues' features over nodes: the queue here, its clients there, and what holds when nodes are lost."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import Content, bodies
from tests.unit.broker.node.node_cluster import Cluster
from tests.unit.broker.node.places import (
    away,
    confirming,
    count,
    declared,
    drained,
    gone,
    hand_over,
    owner_of,
    three,
)

# -- queues that live with something


def test_an_exclusive_queue_is_its_connections_at_every_node_and_ends_with_its_node() -> None:
    cluster = three()
    mine = cluster["b"].client()
    mine.ask(m.QueueDeclare(queue="mine", exclusive=True))
    assert cluster["c"].client().code(m.BasicConsume(queue="mine")) == 405
    writer = confirming(cluster, "a")
    assert writer.publish("", "mine", b"x") == [m.BasicAck(1, True)]
    assert bodies(mine.consume("mine")) == [b"x"]
    cluster.kill("b")
    assert gone(cluster, "mine")
    assert writer.publish("", "mine", b"y", mandatory=True)[-1] == m.BasicAck(2, True)


def test_a_transient_queue_ends_with_its_node_and_its_consumers_elsewhere_hear_of_it() -> None:
    cluster = three()
    cluster["b"].client().ask(m.QueueDeclare(queue="passing", durable=False, arguments={"x-queue-type": "classic"}))
    entity = cluster.queue("passing")
    if not entity.transient:
        pytest.skip("a queue that is not durable is replicated all the same")
    reader = cluster["c"].client()
    reader.consume("passing", tag="t")
    assert bodies(cluster["a"].client().publish("", "passing", b"x") + reader.say()) == [b"x"]
    cluster.kill("b")
    assert gone(cluster, "passing")
    assert m.BasicCancel("t", True) in reader.say()


def test_an_auto_delete_queue_ends_with_its_last_consumer_anywhere_and_not_by_a_failover() -> None:
    cluster = three()
    cluster["a"].client().ask(m.QueueDeclare(queue="auto", durable=True, auto_delete=True))
    first, second = away(cluster, "auto")
    one, two = cluster[first].client(), cluster[second].client()
    one.consume("auto")
    two.consume("auto")
    one.leave()
    assert not gone(cluster, "auto")
    cluster.kill(owner_of(cluster, "auto"))
    cluster.wait(3000)
    assert not gone(cluster, "auto")
    two.leave()
    cluster.wait(100)
    assert gone(cluster, "auto")


def test_a_server_named_queue_is_reached_by_its_name_everywhere() -> None:
    cluster = three()
    names = {cluster[node].client().ask(m.QueueDeclare(exclusive=True)).queue for node in "abc"}
    assert len(names) == 3
    client = cluster["a"].client()
    name = client.ask(m.QueueDeclare(durable=True)).queue
    assert confirming(cluster, "b").publish("", name, b"x") == [m.BasicAck(1, True)]
    assert count(cluster, name, "c") == 1


# -- time


@pytest.mark.parametrize("arguments", [{"x_message_ttl": 0}, {}], ids=["queue", "message"])
def test_ttl_0_delivers_to_who_is_ready_and_to_nobody_else(arguments: dict[str, Any]) -> None:
    cluster = three()
    declared(cluster, "q", "a", **arguments)
    expiration = {} if arguments else {"expiration": "0"}
    writer, reader = confirming(cluster, "b"), cluster["c"].client()
    reader.consume("q", no_ack=True)
    cluster["a"].disk_waits = True
    assert writer.publish("", "q", b"1", **expiration) == []
    cluster.wait(100)
    cluster["a"].disk_waits = False
    cluster.wait(100)
    assert (bodies(reader.hear()), writer.hear()) == ([b"1"], [m.BasicAck(1, True)])
    reader.leave()
    cluster.wait(100)
    writer.publish("", "q", b"2", **expiration)
    cluster.wait(100)
    assert bodies(cluster["c"].client().consume("q")) == []


def test_message_ttl_goes_on_after_a_failover() -> None:
    cluster = three()
    declared(cluster, "q", x_message_ttl=5000)
    writer = confirming(cluster, away(cluster, "q")[0])
    writer.publish("", "q", b"queue's")
    writer.publish("", "q", b"own", expiration="2000")
    cluster.kill(owner_of(cluster, "q"))
    cluster.wait(1000)
    assert count(cluster, "q") == 2
    cluster.wait(5000)
    assert count(cluster, "q") == 0


def test_an_unused_queue_expires_and_use_at_any_node_is_use() -> None:
    cluster = three()
    declared(cluster, "q", x_expires=10_000)
    reader = cluster[away(cluster, "q")[0]].client()
    reader.consume("q")
    cluster.wait(15_000)
    assert not gone(cluster, "q")
    cluster.kill(owner_of(cluster, "q"))
    cluster.wait(15_000)
    assert not gone(cluster, "q"), "its consumer lives"
    reader.leave()
    cluster.wait(8_000)
    cluster[away(cluster, "q")[0]].client().say(m.BasicGet(queue="q"))
    cluster.wait(8_000)
    assert not gone(cluster, "q"), "a get is use"
    cluster.wait(4_000)
    assert gone(cluster, "q")


# -- dead letters


@pytest.mark.parametrize("strategy", ["at-most-once", "at-least-once"])
@pytest.mark.parametrize("lost", ["", "source", "target"])
def test_dead_letters_between_owners(strategy: str, lost: str) -> None:
    cluster = three()
    declared(cluster, "graves", "b")
    declared(
        cluster, "q", "a", x_dead_letter_exchange="", x_dead_letter_routing_key="graves",
        x_dead_letter_strategy=strategy, x_overflow="reject-publish",
    )  # fmt: skip
    writer, reader = confirming(cluster, "c"), cluster["c"].client()
    writer.publish("", "q", *(b"%d" % i for i in range(5)))
    reader.consume("q")
    if lost == "target":
        cluster.unlink("a", "b")
        cluster.cuts.add(("a", "b"))
    reader.say(m.BasicReject(1, False), m.BasicNack(3, False, False))
    if lost == "target":
        cluster.kill("b")
    elif lost == "source":
        cluster.kill("a")
    cluster.wait(5000)
    assert drained(cluster, "graves", "c") == [b"0", b"2"], "each once"
    reader.say(m.BasicAck(0, True))
    cluster.wait(1000)
    assert count(cluster, "q", "c") == 0


def test_dead_letters_wait_for_a_target_that_has_no_owner() -> None:
    cluster = three()
    declared(cluster, "q", "a", x_dead_letter_exchange="late", x_dead_letter_strategy="at-least-once",
             x_overflow="reject-publish", x_message_ttl=100)  # fmt: skip
    confirming(cluster, "c").publish("", "q", b"x")
    cluster.wait(1000)
    client = cluster["c"].client()
    client.ask(m.ExchangeDeclare(exchange="late", type="fanout"))
    client.declare("graves")
    client.ask(m.QueueBind(queue="graves", exchange="late"))
    cluster.kill("a")
    cluster.wait(5000)
    assert drained(cluster, "graves", "c") == [b"x"]


def test_a_clients_failure_at_a_message_counts_once_though_the_answer_is_lost() -> None:
    cluster = three()
    declared(cluster, "q", "a", x_delivery_limit=1)
    confirming(cluster, "b").publish("", "q", b"x")
    reader = cluster["c"].client()
    assert bodies(reader.consume("q")) == [b"x"]
    reader._out.method(1, m.encode(m.BasicReject(1, True)))
    reader.raw(reader._out.take())
    drop_answers(cluster, "a", "c")
    cluster.kill("a")
    cluster.wait(2000)
    assert bodies(reader.hear()) == [b"x"], "it may fail once more"
    assert bodies(reader.say(m.BasicReject(2, True))) == []
    assert count(cluster, "q") == 0


# -- lengths


def test_the_oldest_are_dropped_whoever_publishes() -> None:
    cluster = three()
    declared(cluster, "q", x_max_length=3)
    for node in "abc":
        confirming(cluster, node).publish("", "q", *(node.encode() + b"%d" % i for i in range(2)))
    cluster.kill(owner_of(cluster, "q"))
    cluster.wait(2000)
    assert drained(cluster, "q") == [b"b1", b"c0", b"c1"]


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_a_full_queue_refuses_publishers_of_every_node(overflow: str) -> None:
    cluster = three()
    declared(cluster, "graves", "b")
    declared(cluster, "q", "a", x_max_length=2, x_overflow=overflow, x_dead_letter_exchange="",
             x_dead_letter_routing_key="graves")  # fmt: skip
    assert confirming(cluster, "b").publish("", "q", b"1", b"2") == [m.BasicAck(2, True)]
    for node in "abc":
        assert [type(said) for said in confirming(cluster, node).publish("", "q", b"no")] == [m.BasicNack]
    cluster.kill("a")
    cluster.wait(2000)
    survivor = confirming(cluster, "c")
    assert [type(said) for said in survivor.publish("", "q", b"no")] == [m.BasicNack]
    assert survivor.ask(m.BasicGet(queue="q", no_ack=True)).body == b"1"
    assert [type(said) for said in survivor.publish("", "q", b"3")] == [m.BasicAck]
    cluster.wait(1000)
    assert drained(cluster, "graves", "c") == ([b"no"] * 4 if overflow == "reject-publish-dlx" else [])


@pytest.mark.parametrize("lengths, fits", [((450, 450), True), ((10, 5000), True), ((600, 400, 1), False)])
@pytest.mark.parametrize("node", ["a", "b"])
def test_a_transaction_fits_where_each_message_would_behind_those_before_it(
    node: str, lengths: tuple[int, ...], fits: bool
) -> None:
    cluster = three()
    declared(cluster, "q", "a", x_max_length_bytes=1000, x_overflow="reject-publish")
    client = cluster[node].client()
    client.ask(m.TxSelect())
    for length in lengths:
        client.publish("", "q", bytes(length))
    client.say(m.TxCommit())
    cluster.wait(1000)
    assert [getattr(said, "reply_code", 0) for said in client.hear(0)] == ([] if fits else [541])
    assert drained(cluster, "q") == [bytes(length) for length in lengths if fits]


def test_what_consumers_wait_for_is_not_dropped_though_its_content_is_on_the_disk() -> None:
    cluster = three()
    declared(cluster, "q", "a", x_max_length=2)
    reader, writer = cluster["b"].client(), confirming(cluster, "c")
    heard = reader.consume("q")
    for number in range(6):
        writer.publish("", "q", b"%d" % number)
        heard += reader.say()
    assert bodies(heard) == [b"%d" % number for number in range(6)]
    hand_over(cluster, "q", "c")
    cluster.wait(1000)
    heard = reader.say(m.BasicRecover(True))
    cluster.wait(1000)
    assert bodies(heard + reader.say()) == [b"%d" % number for number in range(6)]


@pytest.mark.parametrize("lost", ["link", "owner"])
def test_what_a_full_queue_refuses_dies_once_though_the_answer_is_lost(lost: str) -> None:
    cluster = three()
    declared(cluster, "graves", "b")
    declared(cluster, "q", "a", x_max_length=1, x_overflow="reject-publish-dlx", x_dead_letter_exchange="",
             x_dead_letter_routing_key="graves")  # fmt: skip
    writer = confirming(cluster, "c")
    writer.publish("", "q", b"1")
    writer.raw(writer.content("", "q", b"2"))
    drop_answers(cluster, "a", "c")
    if lost == "owner":
        cluster.kill("a")
    else:
        cluster.unlink("a", "c")
        cluster.relink()
    cluster.wait(3000)
    assert writer.hear() == [m.BasicNack(2, False, False)]
    assert drained(cluster, "graves", "b") == [b"2"]


# -- questions


def test_get_purge_and_delete_through_any_node() -> None:
    cluster = three()
    declared(cluster, "q")
    far = cluster[away(cluster, "q")[0]].client()
    confirming(cluster, "a").publish("", "q", *(b"%d" % i for i in range(4)))
    got = far.ask(m.BasicGet(queue="q"))
    assert (got.body, got.method.message_count, got.method.redelivered) == (b"0", 3, False)
    far.say(m.BasicReject(1, True))
    again = far.ask(m.BasicGet(queue="q"))
    assert (again.body, again.method.redelivered) == (b"0", True)
    assert far.code(m.QueueDelete(queue="q", if_empty=True)) == 406
    far = cluster[away(cluster, "q")[1]].client()
    assert far.ask(m.QueuePurge(queue="q")).message_count == 4
    assert far.ask(m.BasicGet(queue="q")) == m.BasicGetEmpty()
    reader = cluster[away(cluster, "q")[0]].client()
    reader.consume("q")
    assert cluster["a"].client().code(m.QueueDelete(queue="q", if_unused=True)) == 406
    reader.leave()
    confirming(cluster, "b").publish("", "q", b"left")
    assert far.ask(m.QueueDelete(queue="q", if_unused=True)).message_count == 1
    assert gone(cluster, "q")


def test_questions_outlive_the_owner() -> None:
    cluster = three()
    declared(cluster, "q")
    confirming(cluster, "a").publish("", "q", b"1", b"2", b"3")
    owner, (near, far) = owner_of(cluster, "q"), away(cluster, "q")
    for other in (near, far):
        cluster.unlink(owner, other)
        cluster.cuts.add((min(owner, other), max(owner, other)))
    getter, purger, teller = (cluster[near].client() for _ in range(3))
    assert getter.say(m.BasicGet(queue="q", no_ack=True)) == []
    assert teller.say(m.QueueDeclare(queue="q", passive=True)) == []
    cluster.kill(owner)
    cluster.wait(3000)
    assert bodies(getter.say()) == [b"1"]
    assert teller.say()[0].queue == "q"
    assert purger.ask(m.QueuePurge(queue="q")).message_count == 2


def test_a_purge_is_carried_out_once_though_its_answer_is_lost() -> None:
    cluster = three()
    declared(cluster, "q", "a")
    writer, purger = confirming(cluster, "a"), cluster["b"].client()
    writer.publish("", "q", b"1", b"2")
    assert count(cluster, "q", "b") == 2, "its node is attached"
    purger._out.method(1, m.encode(m.QueuePurge(queue="q")))
    purger.raw(purger._out.take())
    drop_answers(cluster, "a", "b")
    cluster.unlink("a", "b")
    writer.publish("", "q", b"3")
    cluster.relink()
    cluster.turn()
    assert purger.say()[0].message_count == 2
    assert count(cluster, "q") == 1


def drop_answers(cluster: Cluster, owner: str, proxy: str) -> None:
    """The proxy's frames arrive, and nothing of what the owner says to it."""
    real = cluster._deliver

    def deliver(source: str, target: str, frame: bytes) -> None:
        if (source, target) != (owner, proxy):
            real(source, target, frame)

    cluster._deliver = deliver  # type: ignore[method-assign]
    cluster.turn()
    cluster._deliver = real  # type: ignore[method-assign]


# -- routing


def test_routes_are_the_same_everywhere() -> None:
    cluster = three()
    client = cluster["a"].client()
    client.ask(m.ExchangeDeclare(exchange="alternate", type="fanout"))
    client.ask(m.ExchangeDeclare(exchange="in", type="topic", arguments={"alternate-exchange": "alternate"}))
    client.ask(m.ExchangeDeclare(exchange="next", type="direct"))
    client.ask(m.ExchangeBind(destination="next", source="in", routing_key="a.#"))
    for queue, exchange, key in (("one", "next", "a.b"), ("rest", "alternate", "")):
        declared(cluster, queue)
        client.ask(m.QueueBind(queue=queue, exchange=exchange, routing_key=key))
    for node in "abc":
        writer = confirming(cluster, node)
        writer.publish("in", "a.b", b"routed")
        writer.publish("in", "z", b"alternate")
        returned, ack = writer.publish("next", "nowhere", b"back", mandatory=True)
        assert (returned.body, returned.method.reply_code, ack) == (b"back", 312, m.BasicAck(3, True))
    assert drained(cluster, "one", "b") == [b"routed"] * 3
    assert drained(cluster, "rest", "c") == [b"alternate"] * 3


def test_direct_replies_between_nodes() -> None:
    cluster = three()
    declared(cluster, "requests")
    asker = cluster["a"].client()
    asker.consume("amq.rabbitmq.reply-to", tag="replies", no_ack=True)
    asker.publish("", "requests", b"?", reply_to="amq.rabbitmq.reply-to")
    server = cluster["c"].client()
    (request,) = server.consume("requests")
    key = request.properties.reply_to
    assert server.ask(m.QueueDeclare(queue=key, passive=True), channel=1) == m.QueueDeclareOk(key, 0, 1)
    server.publish("", key, b"!")
    assert bodies(asker.say()) == [b"!"]
    asker.leave()
    assert cluster["b"].client().code(m.QueueDeclare(queue=key, passive=True)) == 404


# -- policies


def test_policies_change_a_queue_while_it_lives() -> None:
    cluster = three()
    declared(cluster, "q")
    writer = confirming(cluster, "a")
    writer.publish("", "q", b"1", b"2", b"3")

    def policy(definition: dict[str, object]) -> None:
        cluster.order(c.PutPolicy(vhost="/", name="p", pattern="^q$", priority=1, apply_to="queues",
                                  definition=definition))  # fmt: skip
        cluster.turn()

    policy({"max-length": 2})
    writer.publish("", "q", b"4")
    assert count(cluster, "q") == 2
    policy({"max-length": 2, "overflow": "reject-publish"})
    assert [type(said) for said in writer.publish("", "q", b"5")] == [m.BasicNack]
    policy({"durability": "memory"})
    assert [type(said) for said in writer.publish("", "q", b"6")] == [m.BasicAck]
    cluster.kill(owner_of(cluster, "q"))
    cluster.wait(3000)
    assert drained(cluster, "q") == [b"3", b"4", b"6"]


def test_a_memory_queue_survives_its_owner_and_not_everybody() -> None:
    cluster = three()
    declared(cluster, "q", x_durability="memory")
    writer = confirming(cluster, away(cluster, "q")[0])
    assert writer.publish("", "q", b"1", b"2") == [m.BasicAck(2, True)]
    cluster.kill(owner_of(cluster, "q"))
    cluster.wait(2000)
    assert count(cluster, "q") == 2
    for site in cluster.running:
        site.crash()
    cluster.links.clear()
    for site in cluster.sites.values():
        site.start()
    cluster.relink()
    cluster.turn()
    cluster.wait(3000)
    assert count(cluster, "q") == 0
    assert [type(said) for said in confirming(cluster, "a").publish("", "q", b"new")] == [m.BasicAck]


# -- alarms


def test_an_owners_alarm_blocks_those_who_publish_to_its_queues() -> None:
    cluster = three()
    declared(cluster, "q", "a")
    declared(cluster, "other", "b")
    writer, elsewhere, reader = confirming(cluster, "c"), confirming(cluster, "c"), cluster["c"].client()
    reader.consume("q")
    cluster["a"].node.set_alarm("memory", True)
    assert elsewhere.publish("", "other", b"goes") == [m.BasicAck(1, True)]
    assert writer.publish("", "q", b"waits") == []
    assert writer.hear(0) == [m.ConnectionBlocked("low on memory at node a")]
    assert elsewhere.publish("", "other", b"goes on") == [m.BasicAck(2, True)]
    assert count(cluster, "q", "c") == 0, "questions do not wait behind what waits"
    assert reader.say() == []
    cluster["a"].node.set_alarm("memory", False)
    assert writer.say() == [m.BasicAck(1, True)]
    assert writer.hear(0) == [m.ConnectionUnblocked()]
    assert bodies(reader.say()) == [b"waits"]


def test_an_alarm_ends_with_its_node() -> None:
    cluster = three()
    declared(cluster, "q", "a")
    cluster["a"].node.set_alarm("disk", True)
    writer = confirming(cluster, "c")
    assert writer.publish("", "q", b"x") == []
    cluster.kill("a")
    cluster.wait(2000)
    assert writer.say() == [m.BasicAck(1, True)]
    assert [type(said) for said in writer.hear(0)] == [m.ConnectionBlocked, m.ConnectionUnblocked]
    assert isinstance(confirming(cluster, "b").ask(m.BasicGet(queue="q", no_ack=True)), Content)


def test_a_new_link_tells_of_an_alarm() -> None:
    cluster = three()
    declared(cluster, "q", "a")
    cluster.unlink("a", "c")
    cluster["a"].node.set_alarm("disk", True)
    cluster.relink()
    cluster.turn()
    writer = confirming(cluster, "c")
    assert writer.publish("", "q", b"x") == []
    hand_over(cluster, "q", "b")
    assert writer.say() == [m.BasicAck(1, True)], "its next owner is well"
    assert writer.publish("", "q", b"y") == [m.BasicAck(2, True)], "and it is read again, though the alarm lasts"
    assert [type(said) for said in writer.hear(0)] == [m.ConnectionBlocked, m.ConnectionUnblocked]


def test_an_alarm_is_of_no_interest_to_who_publishes_to_a_queue_that_is_deleted() -> None:
    cluster = three()
    declared(cluster, "q", "a")
    declared(cluster, "other", "b")
    cluster["a"].node.set_alarm("disk", True)
    writer = confirming(cluster, "c")
    assert writer.publish("", "q", b"x") == []
    assert isinstance(cluster["c"].client().ask(m.QueueDelete(queue="q")), m.QueueDeleteOk)
    cluster.turn()
    assert writer.say() == [m.BasicAck(1, True)]
    assert writer.publish("", "other", b"y") == [m.BasicAck(2, True)]
