"""Queues with `x-message-deduplication`: one of each value of the header, whoever owns the queue and whenever."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.queues.deduplicating import SPARE, DeduplicatingQueue
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.errors import PreconditionFailed
from clusterbroker.cluster.wiring.commands import DeclareQueue
from clusterbroker.cluster.wiring.levels import DEDUPLICATING, check_ordered
from tests.unit.broker.fronts.amqp091.harness import Client, World, bodies
from tests.unit.broker.node.node_cluster import Cluster

HEADER = "x-deduplication-header"


def declare(client: Client, **more: Any) -> None:
    client.declare("q", x_message_deduplication=True, **more)


def publish(client: Client, body: bytes, value: Any) -> list[Any]:
    return client.publish("", "q", body, headers={} if value is None else {HEADER: value})


def confirming(world: World) -> Client:
    client = world.client()
    client.ask(m.ConfirmSelect())
    return client


def known(world: World) -> int:
    queue = world.queue("q")
    assert isinstance(queue, DeduplicatingQueue)
    return len(queue._known)


def test_a_repeat_is_not_stored_and_confirmed() -> None:
    world = World()
    client = confirming(world)
    declare(client)
    for body, value in ((b"1", "a"), (b"2", "b"), (b"3", "a"), (b"4", None), (b"5", None), (b"6", 7), (b"7", "7")):
        assert any(isinstance(one, m.BasicAck) for one in publish(client, body, value))
    assert bodies(client.consume("q")) == [b"1", b"2", b"4", b"5", b"6", b"7"], "and values of other kinds are others"


def test_a_message_counts_until_it_has_left() -> None:
    world = World()
    client = world.client()
    declare(client)
    publish(client, b"1", "a")
    heard = client.consume("q")
    assert bodies(heard) == [b"1"]
    assert publish(client, b"2", "a") == [], "unacknowledged"
    client.say(m.BasicNack(1, requeue=True))
    assert publish(client, b"3", "a") == []
    client.say(m.BasicAck(2))
    assert bodies(publish(client, b"4", "a")) == [b"4"]


def test_a_queue_without_the_argument_stores_all() -> None:
    world = World()
    client = world.client()
    client.declare("q", x_message_deduplication=False)
    for body in (b"1", b"2"):
        publish(client, body, "a")
    assert bodies(client.consume("q")) == [b"1", b"2"]


def test_what_expires_or_comes_back_as_a_dead_letter_is_new() -> None:
    world = World()
    client = world.client()
    declare(client, x_message_ttl=1000, x_dead_letter_exchange="", x_dead_letter_routing_key="q")
    publish(client, b"1", "a")
    assert bodies(client.consume("q")) == [b"1"]
    assert bodies(client.say(m.BasicReject(1, requeue=False))) == [b"1"], "by its dead letter exchange"
    client.say(m.BasicAck(2), m.BasicCancel("ctag"))
    publish(client, b"2", "b")
    publish(client, b"3", "b")
    assert world.queue("q").message_count(world.now_ms) == 1
    world.wait(1500)
    publish(client, b"4", "b")
    assert b"4" in bodies(client.consume("q"))


def test_a_transaction_has_one_of_each() -> None:
    world = World()
    client = world.client()
    declare(client)
    client.ask(m.TxSelect())
    for body, value in ((b"1", "a"), (b"2", "a"), (b"3", "b")):
        publish(client, body, value)
    client.ask(m.TxCommit())
    assert bodies(client.consume("q")) == [b"1", b"3"]


@pytest.mark.parametrize("checkpoints", [False, True])
def test_a_restart_knows_what_is_on_the_disk(checkpoints: bool) -> None:
    world = World()
    client = confirming(world)
    declare(client)
    for number in range(20):
        publish(client, b"%d" % number, f"v{number}")
    client.say(m.BasicGet(queue="q"))
    client.say(m.BasicAck(1))
    if checkpoints:
        world.checkpoint()
    world.crash()
    client = confirming(world)
    for number in range(20):
        publish(client, b"again %d" % number, f"v{number}")
    assert bodies(client.consume("q")) == [b"%d" % number for number in range(1, 20)] + [b"again 0"]


def test_a_repeat_that_comes_while_values_are_read_reaches_nobody() -> None:
    world = World()
    client = confirming(world)
    declare(client)
    for number in range(20):
        publish(client, b"%d" % number, f"v{number}")
    world.checkpoint()
    world.crash()
    world.reads_wait = True
    client = confirming(world)
    world.queue("q")._begin()  # type: ignore[attr-defined]
    publish(client, b"again", "v7")
    publish(client, b"new", "w")
    publish(client, b"and again", "w")
    assert bodies(client.consume("q")) == [], "nothing is handed out before it is known"
    world.reads_wait = False
    world.answer_reads()
    world.turn()
    assert bodies(client.hear()) == [*(b"%d" % number for number in range(20)), b"new"]


def test_a_repeat_that_an_owner_had_not_recognised_when_it_ended_reaches_nobody() -> None:
    world = World()
    client = confirming(world)
    declare(client)
    publish(client, b"1", "a")
    world.checkpoint()
    world.crash()
    world.reads_wait = True
    client = confirming(world)
    world.queue("q")._begin()  # type: ignore[attr-defined]
    publish(client, b"again", "a")
    world.crash()
    world.reads_wait = False
    world.loads.clear()
    assert bodies(world.client().consume("q")) == [b"1"]


def test_nobody_gets_a_message_before_all_values_are_known() -> None:
    world = World()
    client = world.client()
    declare(client)
    publish(client, b"1", "a")
    queue = world.queue("q")
    assert isinstance(queue, DeduplicatingQueue)
    queue._begin()
    taken: list[Any] = []
    queue.get(world.now_ms, taken.append)
    assert (taken, queue.paused) == ([], True)
    world.turn()
    assert [one[1].body for one in taken] == [b"1"]


def test_repeats_that_come_together_are_one() -> None:
    world = World()
    client = world.client()
    declare(client)
    client.publish("", "q", b"1", b"2", b"3", headers={HEADER: "a"})
    assert bodies(client.consume("q")) == [b"1"]


def test_a_dead_letter_of_a_queue_with_copies_comes_back() -> None:
    cluster = Cluster("a", "b", "c")
    client = cluster["a"].client()
    declare(client, x_dead_letter_exchange="", x_dead_letter_routing_key="q")
    publish(client, b"1", "a")
    assert bodies(client.consume("q")) == [b"1"]
    heard = client.say(m.BasicReject(1, requeue=False))
    cluster.wait(500)
    assert bodies([*heard, *client.hear()]) == [b"1"]


def test_values_that_have_left_are_forgotten() -> None:
    world = World()
    client = world.client()
    declare(client)
    client.consume("q", no_ack=True)
    for number in range(4 * SPARE):
        publish(client, b"", number)
    assert known(world) <= SPARE + 2


@pytest.mark.parametrize("step_ms", [0, 20, 50, 200, 1000])
def test_the_next_leader_has_one_of_each(step_ms: int) -> None:
    cluster = Cluster("a", "b", "c")
    declare(cluster["a"].client())
    owner = cluster.queue("q").owner
    other = next(name for name in cluster.sites if name != owner)
    sender = confirming(cluster[other])
    for number in range(30):
        publish(sender, b"%d" % number, f"v{number}")
    cluster.wait(step_ms)
    cluster.kill(owner)
    for number in range(40):  # before there is a next leader
        publish(sender, b"%d" % number, f"v{number}")
    cluster.wait(8000)
    for number in range(40):
        publish(sender, b"again", f"v{number}")
    assert cluster.queue("q").owner != owner
    assert bodies(cluster[other].client().consume("q")) == [b"%d" % number for number in range(40)]


def test_a_cluster_below_the_level_refuses_it_in_words() -> None:
    command = DeclareQueue(vhost="/", name="q", arguments={"x-message-deduplication": True})
    with pytest.raises(PreconditionFailed, match=f"this needs feature level {DEDUPLICATING}"):
        check_ordered(command, DEDUPLICATING - 1)
    check_ordered(command, DEDUPLICATING)


def test_a_repeat_that_left_while_values_are_read_hides_nothing() -> None:
    """An operator takes it out before the one of before is read."""
    world = World()
    client = world.client()
    declare(client)
    publish(client, b"1", "a")
    world.checkpoint()
    world.crash()
    world.reads_wait = True
    client = world.client()
    queue = world.queue("q")
    assert isinstance(queue, DeduplicatingQueue)
    queue._begin()
    publish(client, b"2", "a")
    queue.remove(queue.ring.next_seq - 1)
    world.reads_wait = False
    world.answer_reads()
    world.turn()
    publish(client, b"3", "a")
    assert bodies(client.consume("q")) == [b"1"]


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("other", [False, True])
def test_a_transaction_replaces_what_it_settles(nodes: int, other: bool) -> None:
    """Also with another queue in it, and from another node."""
    world: Any = World() if nodes == 1 else Cluster("a", "b", "c")
    site = world if nodes == 1 else world["a"]
    declare(site.client())
    site.client().declare("other")
    world.wait(500)
    if nodes == 3:
        site = next(world[name] for name in world.sites if name != world.queue("q").owner)
    client = site.client()
    publish(client, b"1", "a")
    world.wait(500)
    client.consume("q")
    world.wait(500)
    client.hear()
    client.ask(m.TxSelect())
    publish(client, b"2", "a")
    if other:
        client.publish("", "other", b"x")
    client.say(m.BasicAck(1))
    client.say(m.TxCommit())
    world.wait(1000)
    client.leave()
    world.wait(500)
    reader = site.client()
    heard = reader.consume("q")
    world.wait(500)
    assert bodies([*heard, *reader.hear()]) == [b"2"]


def test_what_expired_behind_others_is_not_there_any_more() -> None:
    world = World()
    client = world.client()
    declare(client)
    publish(client, b"first", None)
    client.publish("", "q", b"1", headers={HEADER: "a"}, expiration="10")
    publish(client, b"2", "a")
    world.wait(1000)
    publish(client, b"3", "a")
    publish(client, b"4", "a")
    assert bodies(client.consume("q")) == [b"first", b"3"]


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_repeat_needs_no_room(nodes: int) -> None:
    world: Any = World() if nodes == 1 else Cluster("a", "b", "c")
    declare((world if nodes == 1 else world["a"]).client(), x_max_length=1, x_overflow="reject-publish")
    world.wait(500)
    owner = "" if nodes == 1 else world.queue("q").owner
    client = confirming(world if nodes == 1 else next(world[name] for name in world.sites if name != owner))
    heard = []
    for body, value in ((b"1", "a"), (b"2", "a"), (b"3", "b")):
        heard += publish(client, body, value)
        world.wait(500)
        heard += client.hear()
    assert [type(one) for one in heard] == [m.BasicAck, m.BasicAck, m.BasicNack]
