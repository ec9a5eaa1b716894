"""exchange.* and queue.*: what a client may declare, and what it is told."""

from __future__ import annotations

import pytest

from clusterbroker.broker.fronts.amqp091.declaring import clean
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import World


def test_counts_in_declare_ok() -> None:
    client = World().client()
    client.declare("q")
    client.publish("", "q", b"1", b"2", b"3")
    client.ask(m.BasicQos(0, 1, False))
    client.consume("q")
    assert client.declare("q") == m.QueueDeclareOk("q", 2, 1), "ready only, all consumers"
    assert client.ask(m.QueueDeclare(queue="q", passive=True)) == m.QueueDeclareOk("q", 2, 1)
    assert client.ask(m.QueuePurge(queue="q")) == m.QueuePurgeOk(2)
    assert client.say(m.QueueDelete(queue="q")) == [m.QueueDeleteOk(0), m.BasicCancel("ctag", True)]


def test_the_last_declared_queue_is_what_an_empty_name_means() -> None:
    client = World().client()
    client.say(m.ExchangeDeclare(exchange="x"))
    name = client.ask(m.QueueDeclare(queue="", exclusive=True)).queue
    assert name.startswith("amq.gen-")
    assert client.ask(m.QueueBind(queue="", exchange="x")) == m.QueueBindOk()
    client.publish("x", name, b"with its name as key")
    assert client.ask(m.QueuePurge(queue="")) == m.QueuePurgeOk(1)
    assert client.ask(m.QueueDelete(queue="")) == m.QueueDeleteOk(0)
    assert client.code(m.QueueDeclare(queue=name, passive=True)) == 404


def test_without_waiting_nothing_is_answered() -> None:
    world = World()
    client = world.client()
    assert client.say(
        m.ExchangeDeclare(exchange="x", nowait=True),
        m.QueueDeclare(queue="q", nowait=True),
        m.QueueDeclare(queue="q", passive=True, nowait=True),
        m.QueueBind(queue="q", exchange="x", routing_key="k", nowait=True),
        m.QueuePurge(queue="q", nowait=True),
    ) == []  # fmt: skip
    client.publish("x", "k", b"1")
    assert world.queue("q").ring.ready == 1
    assert client.say(m.QueueDelete(queue="q", nowait=True), m.ExchangeDelete(exchange="x", nowait=True)) == []
    assert client.say(m.QueueDelete(queue="q", nowait=True)) == []
    assert client.say(m.QueueDeclare(queue="bad", arguments={"x-max-length": -1}, nowait=True))[0].reply_code == 406


@pytest.mark.parametrize(
    ("method", "code"),
    [
        (m.QueueDeclare(queue="none", passive=True), 404),
        (m.ExchangeDeclare(exchange="none", passive=True), 404),
        (m.QueueDeclare(queue="amq.mine"), 403),
        (m.ExchangeDeclare(exchange="amq.mine"), 403),
        (m.ExchangeDeclare(exchange=""), 403),
        (m.ExchangeDelete(exchange=""), 403),
        (m.ExchangeDelete(exchange="amq.direct"), 403),
        (m.ExchangeDeclare(exchange="x", type="strange"), 406),
        (m.QueueBind(queue="q", exchange=""), 403),
        (m.QueueBind(queue="q", exchange="none"), 404),
        (m.QueueBind(queue="none", exchange="amq.direct"), 404),
        (m.QueueBind(queue="", exchange="amq.direct"), 404),
        (m.ExchangeBind(destination="", source="amq.direct"), 403),
        (m.QueuePurge(queue="none"), 404),
        (m.QueueDeclare(queue="q", durable=False), 406),
        (m.QueueDeclare(queue="other", arguments={"x-max-length": "ten"}), 406),
    ],
)
def test_what_is_refused(method: m.Method, code: int) -> None:
    client = World().client()
    client.declare("q")
    client = client.world.client()
    close = client.say(method)[-1]
    assert (close.reply_code, close.class_id, close.method_id) == (code, method.CLASS_ID, method.METHOD_ID)


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        (m.QueueDelete(queue="none"), m.QueueDeleteOk(0)),
        (m.ExchangeDelete(exchange="none"), m.ExchangeDeleteOk()),
        (m.QueueUnbind(queue="none", exchange="none"), m.QueueUnbindOk()),
    ],
)
def test_what_is_gone_already(method: m.Method, answer: m.Method) -> None:
    assert World().client().ask(method) == answer


def test_delete_if_unused_and_if_empty() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    client.publish("", "q", b"1")
    assert client.code(m.QueueDelete(queue="q", if_empty=True)) == 406
    client.say(m.ChannelCloseOk(), m.ChannelOpen())
    client.consume("q")
    assert client.code(m.QueueDelete(queue="q", if_unused=True)) == 406
    client.say(m.ChannelCloseOk(), m.ChannelOpen())
    assert client.ask(m.QueueDelete(queue="q", if_unused=True)) == m.QueueDeleteOk(1)


def test_an_exclusive_queue_is_locked_for_others_and_ends_with_its_owner() -> None:
    world = World()
    owner, other = world.client(), world.client()
    owner.say(m.QueueDeclare(queue="mine", exclusive=True))
    for method in (
        m.QueueDeclare(queue="mine", exclusive=True),
        m.QueueDeclare(queue="mine", passive=True),
        m.BasicConsume(queue="mine"),
        m.BasicGet(queue="mine"),
        m.QueuePurge(queue="mine"),
        m.QueueDelete(queue="mine"),
        m.QueueBind(queue="mine", exchange="amq.direct"),
    ):
        assert other.code(method) == 405, method
        other.say(m.ChannelCloseOk(), m.ChannelOpen())
    other.publish("", "mine", b"may be sent")
    assert world.queue("mine").ring.ready == 1
    owner.leave()
    assert "mine" not in world.node.vhosts["/"].queues


def test_auto_delete_after_the_last_of_at_least_one_consumer() -> None:
    world = World()
    client = world.client(channels=2)
    client.say(m.QueueDeclare(queue="q", auto_delete=True))
    world.wait(1000)
    assert "q" in world.node.vhosts["/"].queues
    client.consume("q")
    client.consume("q", channel=2)
    client.say(m.BasicCancel("ctag"))
    assert "q" in world.node.vhosts["/"].queues
    client.say(m.ChannelClose(), channel=2)
    assert "q" not in world.node.vhosts["/"].queues


def test_permissions_of_declarations() -> None:
    world = World()
    world.command(c.SetPermission(user="eve", vhost="/", configure="^mine", write="^mine", read="^mine"))
    guest = world.client()
    guest.declare("yours")
    client = world.client("eve")
    assert client.ask(m.QueueDeclare(queue="yours", passive=True)).queue == "yours", "looking is free"
    client.declare("mine")
    for method in (
        m.QueueDeclare(queue="other"),
        m.QueueDelete(queue="yours"),
        m.QueuePurge(queue="yours"),
        m.QueueBind(queue="mine", exchange="amq.direct"),
        m.QueueBind(queue="yours", exchange="mine-x"),
        m.QueueDeclare(queue="mine2", arguments={"x-dead-letter-exchange": "amq.direct"}),
        m.ExchangeDeclare(exchange="mine-ae", arguments={"alternate-exchange": "amq.fanout"}),
    ):
        assert client.code(method) == 403, method
        client.say(m.ChannelCloseOk(), m.ChannelOpen())


def test_too_many_queues() -> None:
    client = World(queues_max=1).client()
    client.declare("q")
    assert client.declare("q").queue == "q", "it exists already"
    assert client.code(m.QueueDeclare(queue="r")) == 406


def test_names_lose_their_line_breaks() -> None:
    client = World().client()
    assert client.ask(m.QueueDeclare(queue="a\r\nb")).queue == "ab"
    assert clean("\r\n") == ""


def test_a_queue_that_is_deleted_before_its_declare_is_answered() -> None:
    world = World()
    one, two = world.client(), world.client()
    one.declare("q")
    world.wiring_waits = True
    two.say(m.QueueDelete(queue="q"))
    one.say(m.QueueDeclare(queue="q", durable=True))
    world.wiring_waits = False
    world.turn()
    assert one.hear() == [m.QueueDeclareOk("q", 0, 0)]
    assert "q" in world.node.vhosts["/"].queues, "it was declared after the delete"
