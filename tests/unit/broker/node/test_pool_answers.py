"""Answers of the broker to requests that die: nobody gets one whom the request's publisher could not write to."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp10.performatives import Properties
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import Client, World
from tests.unit.broker.fronts.amqp10.harness import Peer
from tests.unit.broker.node.test_pool_queues import confirming, contents, declare

CALLER = "caller"
"""A user that may publish to pools, and read `mine`."""


@pytest.fixture
def world() -> World:
    made = World()
    declare(made, keys="^k")
    owner = made.client()
    for queue in ("mine", "theirs"):
        owner.declare(queue)
    allow(made, write="^core", read="^mine$")
    return made


def allow(world: World, **rights: str) -> None:
    world.passwords[CALLER] = CALLER.encode()
    world.command(c.PutUser(name=CALLER, password_hash=CALLER, hash_algorithm="scrypt"))
    world.command(c.SetPermission(user=CALLER, vhost="/", **{"configure": "", "write": "", "read": "", **rights}))


def said(world: World, queue: str) -> list[Any]:
    client = world.client()
    found = [one.properties.headers["x-status"] for one in contents(client.consume(queue, no_ack=True))]
    client.leave()
    return found


@pytest.mark.parametrize("exchange", ["core", "core-req-xchg", "core-orphan-xchg"])
def test_a_caller_hears_where_it_may_read(world: World, exchange: str) -> None:
    client = world.client(CALLER)
    client.publish(exchange, "bad", reply_to="mine")
    client.publish(exchange, "bad", reply_to="theirs")
    client.publish(exchange, "bad", reply_to="core-req-k1")
    assert said(world, "mine") == [b"key_refused"]
    assert said(world, "theirs") == []
    assert client.hear() == []


def test_or_where_it_may_publish(world: World) -> None:
    allow(world, write="^(core.*|amq.default)$")
    world.client(CALLER).publish("core", "bad", reply_to="theirs")
    assert said(world, "theirs") == [b"key_refused"]


def test_its_own_address_of_replies_is_always_good(world: World) -> None:
    client = world.client(CALLER)
    client.say(m.BasicConsume(queue="amq.rabbitmq.reply-to", consumer_tag="r", no_ack=True))
    (answer,) = contents(client.publish("core", "bad", reply_to="amq.rabbitmq.reply-to"))
    assert answer.properties.headers["x-status"] == b"key_refused"


def test_requests_of_later_keep_the_right_of_their_publisher(world: World) -> None:
    client = world.client(CALLER)
    for queue in ("mine", "theirs"):
        client.publish("core-delayed", "bad", reply_to=queue, headers={"x-delay": 100})
    world.wait(200)
    assert said(world, "mine") == [b"key_refused"]
    assert said(world, "theirs") == []


def test_a_request_that_moved_and_died_later_keeps_it_too(world: World) -> None:
    client = world.client(CALLER)
    for queue in ("mine", "theirs"):
        client.publish("core", "k1", reply_to=queue)
    worker = world.client()
    for got in contents(worker.consume("core-req-k1")):
        worker.say(m.BasicReject(got.method.delivery_tag, False))
    assert said(world, "mine") == [b"rejected"]
    assert said(world, "theirs") == []


def test_a_committed_transaction_keeps_it(world: World) -> None:
    client = world.client(CALLER)
    client.ask(m.TxSelect())
    for queue in ("mine", "theirs"):
        client.publish("core", "bad", reply_to=queue)
    client.ask(m.TxCommit())
    assert said(world, "mine") == [b"key_refused"]
    assert said(world, "theirs") == []


def test_by_amqp_1_0_alike(world: World) -> None:
    peer = Peer(world).enter(CALLER)
    sender = peer.sender("s", "/exchanges/core/bad")
    for queue in ("mine", "theirs"):
        sender.send(b"x", properties=Properties(reply_to=queue))
    assert said(world, "theirs") == []
    assert said(world, "mine") == [b"key_refused"]


def test_letters_of_another_queue_are_not_answered(world: World) -> None:
    """Whoever declares a queue chooses where its letters go, and who publishes to it chose nothing of a pool."""
    owner = world.client()
    owner.declare("detour", x_dead_letter_exchange="core", x_dead_letter_routing_key="bad", x_message_ttl=10)
    owner.publish("", "detour", reply_to="theirs")
    world.wait(100)
    assert said(world, "theirs") == []


def test_the_exchange_of_the_dead_is_closed(world: World) -> None:
    client = confirming(world)
    heard = client.publish("core-dl-xchg", "42", reply_to="mine", headers={"x-first-death-reason": "expired"})
    assert [one.reply_code for one in heard if isinstance(one, m.ChannelClose)] == [403]


def test_requests_of_the_dead_queue_outlive_policies(world: World) -> None:
    world.command(
        c.PutPolicy(
            vhost="/", name="short", pattern="^core-dl", apply_to="queues", priority=1,
            definition={"message-ttl": 0, "max-length": 0, "expires": 1000, "overflow": "reject-publish"},
        )
    )  # fmt: skip
    world.command(c.PutPolicy(vhost="/", name="gone", pattern="^core", apply_to="queues", definition={"expires": 1000}))
    world.command(
        c.PutOperatorPolicy(
            vhost="/", name="shorter", pattern="^core-dl", apply_to="queues", definition={"message-ttl": 0}
        )
    )
    world.wait(3000)
    for number in range(3):
        world.client().publish("core", "bad", b"%d" % number, reply_to="mine")
    assert said(world, "mine") == [b"key_refused"] * 3
    assert world.queue("core-poison").settings.expires_ms is None


# -- groups that a consumer makes


def refused(client: Client, queue: str) -> str:
    (closed,) = client.say(m.BasicConsume(queue=queue))
    assert isinstance(closed, m.ChannelClose), closed
    assert closed.reply_code == 406
    return closed.reply_text


def test_a_consumer_makes_no_group_of_a_key_that_is_not_allowed(world: World) -> None:
    assert "do not allow 'bad'" in refused(world.client(), "core-req-bad")
    world.client().consume("core-req-k1")
    (pool,) = world.node.map.pools.all()
    assert [one.key for one in world.node.map.pools.groups(pool.pool_id)] == ["k1"]


def test_nor_in_a_pool_that_is_paused(world: World) -> None:
    world.command(c.PausePool(vhost="/", name="core"))
    assert "paused" in refused(world.client(), "core-req-k1")


def test_nor_while_the_node_is_low_on_memory(world: World) -> None:
    world.client().consume("core-req-k1")
    world.node.set_alarm("memory", True)
    assert "memory" in refused(world.client(), "core-req-k2")
    late = world.client()
    late.consume("core-req-k1")


def test_a_receiver_of_amqp_1_0_makes_a_group_too(world: World) -> None:
    receiver = Peer(world).enter().receiver("r", "/queues/core-req-k1", credit=10)
    world.wait(200)
    (pool,) = world.node.map.pools.all()
    assert [one.key for one in world.node.map.pools.groups(pool.pool_id)] == ["k1"]
    world.client().publish("core", "k1", b"x")
    world.wait(200)
    assert receiver.bodies() == [b"x"]


def test_nor_does_one_of_a_key_that_is_not_allowed(world: World) -> None:
    receiver = Peer(world).enter().receiver("r", "/queues/core-req-bad")
    world.wait(200)
    (pool,) = world.node.map.pools.all()
    assert not world.node.map.pools.groups(pool.pool_id)
    assert "do not allow 'bad'" in str(receiver.attached)
