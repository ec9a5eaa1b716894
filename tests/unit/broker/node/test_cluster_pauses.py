"""A queue that an operator has paused: it takes and settles and expires, and hands nothing out, whoever owns it."""

from __future__ import annotations

import pytest

from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import Client, Content, bodies
from tests.unit.broker.node.node_cluster import Cluster
from tests.unit.broker.node.places import away, confirming, count, declared, hand_over, owner_of, three


def pause(cluster: Cluster, queue: str = "q", paused: bool = True) -> None:
    cluster.order(c.PauseQueue(vhost="/", name=queue, paused=paused))
    cluster.turn()


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + count)]


def reader(cluster: Cluster, node: str, prefetch: int = 0) -> Client:
    client = cluster[node].client()
    if prefetch:
        client.ask(m.BasicQos(prefetch_count=prefetch))
    client.consume("q")
    return client


@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 3}, {"x-durability": "memory"}], ids=str)
@pytest.mark.parametrize("at_owner", [True, False])
def test_nothing_is_handed_out_until_it_is_resumed_and_then_all_in_order(
    at_owner: bool, arguments: dict[str, object]
) -> None:
    cluster = three()
    owner = declared(cluster, "q", **arguments)
    place = owner if at_owner else away(cluster, "q")[0]
    client, writer = reader(cluster, place), confirming(cluster, away(cluster, "q")[1])
    writer.publish("", "q", *numbered(0, 3))
    tags = [each.method.delivery_tag for each in client.say() if isinstance(each, Content)]
    assert len(tags) == 3
    pause(cluster)
    assert writer.publish("", "q", *numbered(3, 50))[-1] == m.BasicAck(53, True), "it takes what is published"
    assert client.say(m.BasicAck(tags[-1], multiple=True)) == []
    assert cluster[place].client().say(m.BasicGet(queue="q")) == [m.BasicGetEmpty()]
    cluster.wait(2000)
    assert client.say() == []
    assert count(cluster, "q") == 50, "what was settled is gone"
    pause(cluster, paused=False)
    assert bodies(client.say()) == numbered(3, 50)


@pytest.mark.parametrize("by", ["failover", "hand-over", "restart"])
def test_the_next_owner_keeps_to_it(by: str) -> None:
    cluster = three()
    owner = declared(cluster, "q")
    heir = away(cluster, "q")[0]
    client = reader(cluster, away(cluster, "q")[1])
    pause(cluster)
    confirming(cluster, heir).publish("", "q", *numbered(0, 5))
    if by == "hand-over":
        hand_over(cluster, "q", heir)
    else:
        cluster.kill(owner)
        if by == "restart":
            cluster.restart(owner)
        cluster.wait(500)
    assert owner_of(cluster, "q") != owner
    assert client.say() == []
    pause(cluster, paused=False)
    assert bodies(client.say()) == numbered(0, 5)


def test_what_was_on_its_way_waits_at_the_consumers_node() -> None:
    cluster = three()
    owner = declared(cluster, "q")
    place = away(cluster, "q")[0]
    client = cluster[place].client()
    client.ask(m.BasicQos(prefetch_count=2, global_qos=True))
    client.consume("q")
    confirming(cluster, owner).publish("", "q", *numbered(0, 6))
    first = [each.method for each in client.say() if isinstance(each, Content)]
    assert len(first) == 2
    pause(cluster)
    assert client.say(m.BasicAck(first[-1].delivery_tag, multiple=True)) == [], "room, and nothing comes"
    cluster.wait(500)
    assert client.say() == []
    pause(cluster, paused=False)
    again = client.say()
    assert bodies(again) == numbered(2, 2)
    rest = client.say(m.BasicAck(0, multiple=True))
    assert bodies(rest) == numbered(4, 2)
    assert not any(each.method.redelivered for each in (*again, *rest) if isinstance(each, Content))


def test_messages_expire_and_are_dropped_as_ever() -> None:
    cluster = three()
    declared(cluster, "q", **{"x-message-ttl": 1000, "x-max-length": 3})
    client = reader(cluster, away(cluster, "q")[0])
    pause(cluster)
    writer = confirming(cluster, away(cluster, "q")[1])
    writer.publish("", "q", *numbered(0, 5))
    assert count(cluster, "q") == 3, "a consumer that gets nothing makes no room"
    cluster.wait(1100)
    assert count(cluster, "q") == 0
    pause(cluster, paused=False)
    assert client.say() == []


def test_a_transient_queue_at_its_own_node() -> None:
    cluster = three()
    client = cluster["a"].client()
    client.ask(m.QueueDeclare(queue="q", exclusive=True))
    client.consume("q")
    pause(cluster)
    client.publish("", "q", b"1")
    assert client.say(m.BasicGet(queue="q")) == [m.BasicGetEmpty()]
    pause(cluster, paused=False)
    assert bodies(client.say()) == [b"1"]


def test_a_paused_rotating_queue_stays_where_it_is() -> None:
    cluster = three()
    owner = declared(cluster, "q", **{"x-ownership": "rotating"})
    pause(cluster)
    for node in away(cluster, "q"):
        reader(cluster, node)
    confirming(cluster, owner).publish("", "q", *numbered(0, 5))
    before = cluster.queue("q").epoch
    cluster.wait(10_000)
    assert cluster.queue("q").epoch == before
