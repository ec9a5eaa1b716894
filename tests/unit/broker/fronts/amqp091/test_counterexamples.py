"""Sequences that once broke a promise: each was found by looking for one."""

from __future__ import annotations

from clusterbroker.broker.access.transaction import TRANSACTION_BYTES_MAX
from clusterbroker.broker.fronts.amqp091.channel import REPLY_BYTES_MAX
from clusterbroker.broker.oauth2.scopes import granted
from clusterbroker.broker.oauth2.verifier import Token
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.errors import Unavailable
from clusterbroker.cluster.wiring.commands import DeletePolicy, PutPolicy
from clusterbroker.cluster.wiring_log import unlogged
from tests.unit.broker.fronts.amqp091.harness import CAPABILITIES, HEADER, Client, World, bodies


def refuse_proposals(world: World) -> None:
    """The wiring log's disk is full."""
    proposals, world.node.proposals = world.node.proposals, []
    assert proposals, "something was asked for"
    for command, done in proposals:
        done(unlogged(command, Unavailable("no space")))


def test_a_consumer_that_took_too_long_may_have_been_cancelled_and_its_tag_be_in_use_again() -> None:
    world = World(consumer_timeout_ms=1000)
    client = world.client()
    client.declare("q")
    client.declare("other")
    client.publish("", "q", b"held")
    client.consume("q", "tag")
    client.say(m.BasicCancel("tag"))
    client.consume("other", "tag")
    world.wait(3000)
    assert client.hear() == []
    assert world.queue("q").ring.ready == 1
    assert bodies(client.publish("", "other", b"lives")) == [b"lives"]


def test_replies_to_a_client_that_does_not_read_do_not_fill_the_memory() -> None:
    world = World()
    deaf, server = world.client(), world.client()
    deaf.say(m.BasicConsume(queue="amq.rabbitmq.reply-to", consumer_tag="r", no_ack=True))
    key = next(iter(world.node.reply_targets))
    deaf.connection.paused(True, world.now_ms)
    for _ in range(40):
        server.publish("", key, bytes(1 << 20))
    assert deaf.connection.out.size < REPLY_BYTES_MAX + (2 << 20)
    deaf.connection.paused(False, world.now_ms)
    world.turn()
    assert len(bodies(deaf.hear())) >= 32
    assert bodies(server.publish("", key, b"late")) == [] == deaf.hear(0)
    assert bodies(deaf.hear()) == [b"late"]


def test_secrets_are_checked_one_at_a_time() -> None:
    world = World()
    world.tokens[b"t"] = Token("ann", granted(["mq.read:%2F/*"], "mq."), world.now_ms / 1000 + 60)
    client = Client(world)
    client.raw(HEADER)
    client.raw_method(0, m.ConnectionStartOk({"capabilities": CAPABILITIES}, "PLAIN", b"\0whoever\0t"))
    client.raw_method(0, m.ConnectionTuneOk(2047, 131072, 0))
    client.raw_method(0, m.ConnectionOpen("/"))
    world.turn()
    client.hear(0)
    world.passwords_wait = True
    for secret in (b"1", b"2", b"3"):
        client.raw_method(0, m.ConnectionUpdateSecret(secret, ""))
    world.turn()
    assert len(world.checks) == 1
    heard = client.hear(0)
    assert [said.reply_code for said in heard] == [503]


def test_a_full_disk_does_not_lock_the_names_of_a_lost_connection_for_ever() -> None:
    world = World()
    owner, other = world.client(), world.client()
    owner.ask(m.QueueDeclare(queue="q", exclusive=True))
    world.wiring_waits = True
    owner.leave()
    refuse_proposals(world)
    world.wiring_waits = False
    world.wait(2000)
    assert isinstance(other.ask(m.QueueDeclare(queue="q", exclusive=True)), m.QueueDeclareOk)


def test_an_expired_queue_that_a_full_disk_kept_ends_later() -> None:
    world = World()
    client = world.client()
    client.declare("q", x_expires=100)
    world.wiring_waits = True
    world.wait(1000)
    refuse_proposals(world)
    world.wiring_waits = False
    world.wait(2000)
    assert "q" not in world.node.vhosts["/"].queues


def test_an_auto_delete_queue_that_a_full_disk_kept_ends_later_unless_it_is_used_again() -> None:
    world = World()
    client = world.client()
    for name in ("gone", "used"):
        client.ask(m.QueueDeclare(queue=name, durable=True, auto_delete=True))
        client.consume(name, name)
    world.wiring_waits = True
    client.say(m.BasicCancel("gone"), m.BasicCancel("used"))
    refuse_proposals(world)
    world.wiring_waits = False
    client.consume("used", "again")
    world.wait(3000)
    assert list(world.node.vhosts["/"].queues) == ["used"]


def test_messages_in_memory_that_are_not_new_do_not_start_segments() -> None:
    world = World(segment_bytes=64 << 10)
    client = world.client()
    client.declare("q")
    for _ in range(4):
        client.publish("", "q", bytes(32 << 10), transient=True)
    client.ask(m.ConfirmSelect())
    assert world.journal is not None
    before = world.journal.end.segment
    for _ in range(10):
        client.publish("", "q", b"small")
    assert world.journal.end.segment <= before + 1


def test_a_names_length_is_checked_when_a_queue_is_declared() -> None:
    world = World()
    client = world.client()
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "é" * 128}
    (closed,) = client.say(m.QueueDeclare(queue="q", durable=True, arguments=arguments))
    assert (closed.reply_code, "longer than 255 bytes" in closed.reply_text) == (406, True)


def test_a_queue_whose_policy_no_longer_says_memory_keeps_what_comes_from_then_on() -> None:
    world = World()
    client = world.client()
    world.command(PutPolicy(vhost="/", name="p", pattern="q", definition={"durability": "memory"}, apply_to="queues"))
    client.declare("q")
    client.ask(m.ConfirmSelect())
    client.publish("", "q", b"in memory")
    assert world.command(DeletePolicy(vhost="/", name="p")).ok
    client.publish("", "q", b"kept")
    world.crash()
    again = world.client()
    assert again.ask(m.BasicGet(0, "q", True)).body == b"kept"
    assert again.ask(m.BasicGet(0, "q", True)) == m.BasicGetEmpty()


def test_a_commit_fetches_the_bodies_of_rejected_deliveries_first() -> None:
    world = World()
    client = world.client()
    client.declare("dead")
    client.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    client.declare("out")
    world.queue("q").ring.resident_bytes_max = 0
    client.publish("", "q", bytes(1000))
    world.wait(100)
    client.consume("q")
    assert world.queue("q").ring.message(1) is None, "its body is on disk only"
    client.ask(m.TxSelect())
    client.publish("", "out", b"result")
    client.say(m.BasicReject(1, False))
    client.say(m.TxCommit())
    world.crash()
    ready = {name: world.queue(name).ring.ready for name in ("q", "dead", "out")}
    assert ready in ({"q": 0, "dead": 1, "out": 1}, {"q": 1, "dead": 0, "out": 0})


def test_a_transaction_is_bounded() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    client.ask(m.TxSelect())
    body = bytes(8 << 20)
    for _ in range(TRANSACTION_BYTES_MAX // len(body)):
        client.publish("", "q", body)
    (closed,) = client.hear(0)
    assert (type(closed), closed.reply_code) == (m.ConnectionClose, 506)


def test_what_the_cluster_map_takes_for_a_weight_the_router_takes_too() -> None:
    world = World()
    client = world.client()
    client.say(m.ExchangeDeclare(exchange="h", type="x-consistent-hash", durable=True))
    for queue, weight in (("none", "0"), ("negative zero", "-0"), ("long", "0" * 40 + "5")):
        client.declare(queue)
        assert client.say(m.QueueBind(0, queue, "h", weight)) == [m.QueueBindOk()]
    for number in range(20):
        client.publish("h", f"key {number}", b"x")
    assert [world.queue(name).ring.ready for name in ("none", "negative zero", "long")] == [0, 0, 20]
    world.crash()
    client = world.client()
    assert client.say(m.QueueUnbind(0, "none", "h", "0")) == [m.QueueUnbindOk()]
    assert client.say(m.QueueUnbind(0, "long", "h", "0" * 40 + "5")) == [m.QueueUnbindOk()]
