"""Who gets what, when consumers, publishers and the queue's owner are at different nodes."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.wire.amqp091 import methods as m
from tests.unit.broker.fronts.amqp091.harness import Client, Content, bodies
from tests.unit.broker.node.node_cluster import Cluster
from tests.unit.broker.node.places import away, confirming, count, declared, drained, hand_over, owner_of, three


def test_priorities_hold_over_a_failover() -> None:
    cluster = three()
    declared(cluster, "q", x_max_priority=9)
    writer = confirming(cluster, away(cluster, "q")[0])
    for priority in (1, 5, 9, 5, 0):
        writer.publish("", "q", b"%d" % priority, priority=priority)
    cluster.kill(owner_of(cluster, "q"))
    cluster.wait(2000)
    assert drained(cluster, "q") == [b"9", b"5", b"5", b"1", b"0"]


@pytest.mark.parametrize("lost", ["client", "node", "owner", "moved"])
def test_one_consumer_is_active_wherever_it_is(lost: str) -> None:
    cluster = three()
    declared(cluster, "q", "a", x_single_active_consumer=True)
    writer = confirming(cluster, "a")
    first, second = cluster["b"].client(), cluster["c"].client()
    first.consume("q", tag="first")
    cluster.wait(10)
    second.consume("q", tag="second")
    writer.publish("", "q", b"1", b"2")
    assert (bodies(first.say()), bodies(second.say())) == ([b"1", b"2"], [])
    if lost == "owner":
        cluster.kill("a")
        writer = confirming(cluster, "c")
    elif lost == "moved":
        hand_over(cluster, "q", "c")
    elif lost == "client":
        first.leave()
    else:
        cluster.kill("b")
    cluster.wait(3000)
    writer.publish("", "q", b"3")
    if lost in ("owner", "moved"):
        assert (bodies(first.say()), bodies(second.say())) == ([b"3"], [])
        first.say(m.BasicAck(0, True))
        first.leave()
        writer.publish("", "q", b"4")
        assert bodies(second.say()) == [b"4"]
    else:
        heard = second.say()
        assert [(said.body, said.method.redelivered) for said in heard] == [(b"1", True), (b"2", True), (b"3", False)]


def test_an_exclusive_consumer_keeps_all_nodes_out_also_after_a_failover() -> None:
    cluster = three()
    declared(cluster, "q", "a")
    mine = cluster["b"].client()
    mine.consume("q", exclusive=True)
    for node in "abc":
        assert cluster[node].client().code(m.BasicConsume(queue="q")) == 403
    cluster.kill("a")
    cluster.wait(3000)
    assert cluster["c"].client().code(m.BasicConsume(queue="q")) == 403
    mine.leave()
    cluster["c"].client().consume("q")


def test_an_exclusive_consumer_is_refused_while_there_are_others() -> None:
    cluster = three()
    declared(cluster, "q", "a")
    cluster["b"].client().consume("q")
    assert cluster["c"].client().code(m.BasicConsume(queue="q", exclusive=True)) == 403


def test_consumers_of_higher_priority_come_first_at_any_node() -> None:
    cluster = three()
    declared(cluster, "q", "a")
    high, low = cluster["c"].client(), cluster["b"].client()
    for client, priority in ((low, 0), (high, 10)):
        client.say(m.BasicQos(prefetch_count=2))
        client.consume("q", arguments={"x-priority": priority})
    writer = confirming(cluster, "b")
    writer.publish("", "q", b"1")
    writer.publish("", "q", b"2")
    writer.publish("", "q", b"3")
    assert (bodies(high.say()), bodies(low.say())) == ([b"1", b"2"], [b"3"])
    cluster.kill("a")
    cluster.wait(3000)
    high.say(m.BasicAck(0, True))
    writer.publish("", "q", b"4")
    assert (bodies(high.say()), bodies(low.say())) == ([b"4"], [])


def test_a_delivery_limit_counts_over_owners() -> None:
    cluster = three()
    declared(cluster, "q", "a", x_delivery_limit=2, x_dead_letter_exchange="", x_dead_letter_routing_key="graves")
    declared(cluster, "graves", "b")
    confirming(cluster, "b").publish("", "q", b"poison")
    reader = cluster["c"].client()
    (first,) = reader.consume("q")
    (second,) = reader.say(m.BasicReject(first.method.delivery_tag, True))
    assert second.properties.headers["x-delivery-count"] == 1
    hand_over(cluster, "q", "b")
    (third,) = reader.say(m.BasicReject(second.method.delivery_tag, True))
    assert third.properties.headers["x-delivery-count"] == 2
    cluster.kill("b")
    cluster.wait(3000)
    reader.say(m.BasicReject(third.method.delivery_tag, True))
    cluster.wait(2000)
    assert drained(cluster, "graves", "c") == [b"poison"]
    assert count(cluster, "q", "c") == 0


def test_what_returns_takes_its_old_place() -> None:
    cluster = three()
    declared(cluster, "q", "a")
    confirming(cluster, "b").publish("", "q", *(b"%d" % i for i in range(6)))
    reader = cluster["c"].client()
    reader.say(m.BasicQos(prefetch_count=4))
    assert bodies(reader.consume("q")) == [b"0", b"1", b"2", b"3"]
    reader.say(m.BasicCancel("ctag"))
    reader.say(m.BasicNack(2, False, True), m.BasicAck(3))
    cluster.kill("a")
    reader.say(m.BasicReject(1, True))
    cluster.wait(3000)
    assert drained(cluster, "q", "b") == [b"0", b"1", b"4", b"5"]


@pytest.mark.parametrize("lost", [False, True])
def test_what_returns_to_a_new_owner_takes_its_place_behind_what_is_ready(lost: bool) -> None:
    cluster = three()
    declared(cluster, "q", "a")
    confirming(cluster, "b").publish("", "q", *(b"%d" % i for i in range(6)))
    gone, reader = cluster["c"].client(), cluster["c"].client()
    for client in (gone, gone, reader):
        assert client.ask(m.BasicGet(queue="q"))
    gone.leave()
    if lost:
        cluster.kill("a")
        cluster.wait(3000)
    else:
        hand_over(cluster, "q", "b")
    reader.say(m.BasicNack(1, False, True))
    cluster.wait(1000)
    assert drained(cluster, "q", "b") == [b"%d" % i for i in range(6)]


def test_a_rotating_queue_is_served_where_it_is_and_goes_round() -> None:
    cluster = three()
    declared(cluster, "q", x_ownership="rotating", x_ownership_hold_ms=500)
    readers = {node: cluster[node].client() for node in "abc"}
    for reader in readers.values():
        reader.say(m.BasicQos(prefetch_count=5))
        reader.consume("q")
    writer = confirming(cluster, "a")
    owners: dict[str, None] = {}
    heard: list[bytes] = []
    for number in range(60):
        writer.publish("", "q", b"%d" % number)
        cluster.wait(100)
        owners[owner_of(cluster, "q")] = None
        for reader in readers.values():
            got = bodies(reader.say())
            heard += got
            if got:
                heard += bodies(reader.say(m.BasicAck(0, True)))
    assert set(owners) == {"a", "b", "c"}
    assert sorted(heard, key=int) == [b"%d" % number for number in range(60)], "each once"
    cluster.kill("c")
    cluster.wait(3000)
    assert owner_of(cluster, "q") in ("a", "b")


# -- publishers


@pytest.mark.parametrize("lost", ["answer", "owner", "node"])
def test_a_numbered_message_is_stored_once_and_confirmed_each_time(lost: str) -> None:
    cluster = three()
    declared(cluster, "q", "a")
    headers = {"x-producer": "press", "x-seq": 1}
    writer = confirming(cluster, "b")
    assert writer.publish("", "q", b"once", headers=headers) == [m.BasicAck(1, True)]
    if lost == "owner":
        cluster.kill("a")
        cluster.wait(2000)
    elif lost == "node":
        cluster.kill("b")
    again = confirming(cluster, "c")
    assert again.publish("", "q", b"once", headers=headers) == [m.BasicAck(1, True)]
    assert again.publish("", "q", b"two", headers={"x-producer": "press", "x-seq": 2}) == [m.BasicAck(2, True)]
    assert drained(cluster, "q", "c") == [b"once", b"two"]


def test_confirms_wait_through_a_failover_and_order_holds() -> None:
    cluster = three()
    declared(cluster, "q", "a")
    writer = confirming(cluster, "b")
    cluster.unlink("a", "b")
    cluster.cuts.add(("a", "b"))
    assert writer.publish("", "q", *(b"%d" % i for i in range(20))) == []
    cluster.kill("a")
    cluster.wait(3000)
    assert writer.say()[-1] == m.BasicAck(20, True)
    assert drained(cluster, "q", "c") == [b"%d" % i for i in range(20)]


# -- transactions


def transactional(cluster: Cluster, node: str, queue: str = "q") -> tuple[Client, list[Any]]:
    client = cluster[node].client()
    client.ask(m.TxSelect())
    heard = client.consume(queue)
    return client, heard


@pytest.mark.parametrize("lost", ["", "owner"])
def test_a_transaction_over_queues_of_two_owners(lost: str) -> None:
    cluster = three()
    declared(cluster, "q", "a")
    declared(cluster, "put", "b")
    confirming(cluster, "c").publish("", "q", b"1", b"2", b"3")
    client, heard = transactional(cluster, "c")
    assert len(heard) == 3
    client.publish("", "put", b"x", b"y")
    client.publish("", "q", b"4")
    client.say(m.BasicAck(1), m.BasicReject(2, False))
    assert (count(cluster, "put"), count(cluster, "q")) == (0, 0)
    if lost:
        for other in "bc":
            cluster.unlink("a", other)
            cluster.cuts.add(("a", other))
        assert client.say(m.TxCommit()) == []
        cluster.kill("a")
        cluster.wait(3000)
        assert [said for said in client.say() if not isinstance(said, Content)] == [m.TxCommitOk()]
    else:
        assert m.TxCommitOk() in client.say(m.TxCommit())
    client.leave()
    cluster.wait(1000)
    assert drained(cluster, "put", "b") == [b"x", b"y"]
    assert drained(cluster, "q", "b") == [b"3", b"4"]


def test_a_commit_that_one_queue_refuses_leaves_nothing_there() -> None:
    cluster = three()
    declared(cluster, "q", "a", x_max_length=3, x_overflow="reject-publish")
    confirming(cluster, "b").publish("", "q", b"1", b"2")
    client, heard = transactional(cluster, "c")
    assert len(heard) == 2
    client.say(m.BasicAck(1))
    client.publish("", "q", b"3", b"4", b"5", b"6")
    client.say(m.TxCommit())
    assert [said.reply_code for said in client.hear(0)] == [541]
    client.leave()
    cluster.wait(1000)
    assert drained(cluster, "q", "b") == [b"1", b"2"]


@pytest.mark.parametrize(("node", "lost"), [("a", ""), ("c", ""), ("c", "link"), ("c", "owner")])
def test_what_a_transaction_returns_comes_again(node: str, lost: str) -> None:
    """It publishes into the same queue, so that the two are one affair of the owner's."""
    cluster = three()
    declared(cluster, "q", "a")
    confirming(cluster, "b").publish("", "q", b"1", b"2")
    client, heard = transactional(cluster, node)
    assert bodies(heard) == [b"1", b"2"]
    client.publish("", "q", b"x")
    client.say(m.BasicNack(1, False, True), m.BasicAck(2))
    real = cluster._deliver
    if lost:
        cluster._deliver = lambda *way: None if way[:2] == ("a", node) else real(*way)  # type: ignore[method-assign]
    answered = client.say(m.TxCommit())
    cluster._deliver = real  # type: ignore[method-assign]
    if lost == "link":
        cluster.unlink("a", node)
        cluster.relink()
    elif lost:
        cluster.kill("a")
    cluster.wait(3000)
    again = [said for said in [*answered, *client.say()] if isinstance(said, Content)]
    assert sorted(bodies(again)) == [b"1", b"x"]
    assert [said.method.redelivered for said in again if said.body == b"1"] == [True]
    client.say(m.BasicAck(0, True), m.TxCommit())
    client.leave()
    cluster.wait(1000)
    assert drained(cluster, "q", "b") == []


@pytest.mark.parametrize("frames", range(12))
def test_a_commit_is_whole_in_its_queue_when_its_node_dies_within(frames: int) -> None:
    """The client's node dies after so many frames of its last breath have left it."""
    cluster = three()
    declared(cluster, "q", "a")
    confirming(cluster, "b").publish("", "q", b"1", b"2")
    client, heard = transactional(cluster, "c")
    assert len(heard) == 2
    client.publish("", "q", b"x", b"y")
    client.say(m.BasicAck(1))
    left = frames
    real = cluster._deliver

    def deliver(source: str, target: str, frame: bytes) -> None:
        nonlocal left
        if source != "c":
            real(source, target, frame)
        elif left:
            left -= 1
            real(source, target, frame)

    cluster._deliver = deliver  # type: ignore[method-assign]
    client.say(m.TxCommit())
    cluster._deliver = real  # type: ignore[method-assign]
    cluster.kill("c")
    cluster.wait(3000)
    assert drained(cluster, "q", "b") in ([b"1", b"2"], [b"2", b"x", b"y"])


@pytest.mark.parametrize("kept", [0, 1])
def test_a_commit_is_whole_in_its_queue_when_its_owner_dies_within(kept: int) -> None:
    cluster = three()
    declared(cluster, "q", "a")
    confirming(cluster, "b").publish("", "q", b"1", b"2")
    client, heard = transactional(cluster, "c")
    assert len(heard) == 2
    client.publish("", "q", b"x", b"y")
    client.say(m.BasicAck(1))
    for site in cluster.running:
        site.disk_waits = True
    client.say(m.TxCommit())
    cluster["a"].crash(kept)
    for other in "bc":
        cluster.unlink("a", other)
        cluster[other].disk_waits = False
    cluster["a"].disk_waits = False
    cluster.kill("a")
    cluster.wait(3000)
    assert m.TxCommitOk() in client.say()
    client.leave()
    cluster.wait(1000)
    assert drained(cluster, "q", "b") == [b"2", b"x", b"y"]


def test_a_consumer_of_any_node_may_ask_for_each_messages_number() -> None:
    cluster = three()
    declared(cluster, "q", "a")
    confirming(cluster, "b").publish("", "q", *[b"%d" % n for n in range(1, 4)])
    reader = cluster["c"].client()
    heard = [(said.body, said.properties.headers) for said in reader.consume("q", arguments={"x-queue-seq": True})]
    assert heard == [(b"%d" % n, {"x-queue-seq": n}) for n in range(1, 4)]
    reader.leave()
    cluster.kill("a")
    cluster.wait(3000)
    heard = cluster["b"].client().consume("q", arguments={"x-queue-seq": True})
    assert [(said.method.redelivered, said.properties.headers) for said in heard] == [
        (True, {"x-queue-seq": n}) for n in range(1, 4)
    ]
