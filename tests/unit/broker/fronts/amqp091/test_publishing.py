"""basic.publish: routes remembered and forgotten, returns, refusals, and what the broker reads in properties."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import Client, Content, World, bodies


def ready(world: World, queue: str) -> int:
    return world.queue(queue).ring.ready


def test_one_breath_is_one_batch_and_keeps_its_order() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    client.declare("r")
    out = b"".join(client.content("", "q" if n % 3 else "r", b"%d" % n) for n in range(9))
    client.raw(out)
    world.turn()
    assert bodies(client.consume("q")) == [b"1", b"2", b"4", b"5", b"7", b"8"]
    assert bodies(client.consume("r", tag="other")) == [b"0", b"3", b"6"]


def test_a_remembered_route_follows_the_wiring() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    client.declare("r")
    client.say(m.ExchangeDeclare(exchange="x", type="fanout"), m.QueueBind(queue="q", exchange="x"))
    client.publish("x", "", b"1")
    client.say(m.QueueBind(queue="r", exchange="x"))
    client.publish("x", "", b"2")
    client.say(m.QueueUnbind(queue="q", exchange="x"))
    client.publish("x", "", b"3")
    assert (ready(world, "q"), ready(world, "r")) == (2, 2)
    client.say(m.QueueDelete(queue="r"))
    assert isinstance(client.publish("x", "", b"4", mandatory=True)[0], Content), "it is returned"
    client.say(m.ExchangeDelete(exchange="x"))
    assert client.publish("x", "", b"5")[0].reply_code == 404


def test_a_remembered_route_follows_the_permissions() -> None:
    world = World()
    client = world.client("eve")
    client.declare("q")
    client.publish("", "q", b"1")
    world.command(c.SetPermission(user="eve", vhost="/", configure=".*", write="^$", read=".*"))
    (close,) = client.publish("", "q", b"2")
    assert close.reply_code == 403
    assert ready(world, "q") == 1


def test_a_remembered_route_follows_the_topic_permissions() -> None:
    world = World()
    client = world.client("eve")
    client.say(m.ExchangeDeclare(exchange="t", type="topic"))
    assert client.publish("t", "a.b", b"1") == []
    world.command(c.SetTopicPermission(user="eve", vhost="/", exchange="t", write="^a", read=".*"))
    assert client.publish("t", "a.b", b"2") == []
    assert client.publish("t", "b.a", b"3")[0].reply_code == 403


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_keys_in_headers_need_the_topic_permission_too(header: str) -> None:
    """RabbitMQ: "Check topic permissions of CC and BCC headers" (rabbitmq-server 12553)."""
    world = World()
    client = world.client("eve", channels=2)
    client.say(m.ExchangeDeclare(exchange="t", type="topic"))
    client.declare("q")
    client.say(m.QueueBind(queue="q", exchange="t", routing_key="tenant2.#"))
    assert client.publish("t", "tenant1.x", b"1", headers={header: ["tenant2.y"]}) == []
    assert ready(world, "q") == 1, "there is no topic permission yet"
    world.command(c.SetTopicPermission(user="eve", vhost="/", exchange="t", write="^tenant1", read=".*"))
    assert client.publish("t", "tenant1.x", b"2", headers={header: ["tenant1.y"]}) == []
    (closed,) = client.publish("t", "tenant1.x", b"3", headers={header: ["tenant1.y", "tenant2.y"]})
    assert closed.reply_text == (
        "ACCESS_REFUSED - write access to topic 'tenant2.y' in exchange 't' in vhost '/' refused for user 'eve'"
    )
    assert ready(world, "q") == 1
    world.command(c.ClearTopicPermission(user="eve", vhost="/"))
    assert client.publish("t", "tenant1.x", b"4", headers={header: ["tenant2.y"]}, channel=2) == []
    assert ready(world, "q") == 2, "what is remembered ends with the permission"


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_keys_in_headers_of_staged_rows_need_it_when_they_are_staged(header: str) -> None:
    world = World()
    client = world.client("eve", channels=2)
    client.say(m.ExchangeDeclare(exchange="t", type="topic", durable=True))
    words = {"x-producer": "p", "x-epoch": 0, "x-run": "r", "x-target": "t"}
    client.say(m.ExchangeDeclare(exchange="txn.one", type="x-staging", durable=True, arguments=words))
    world.command(c.SetTopicPermission(user="eve", vhost="/", exchange="t", write="^tenant1", read=".*"))
    assert client.publish("txn.one", "tenant1.x", b"1", headers={header: ["tenant1.y"]}) == []
    (closed,) = client.publish("txn.one", "tenant1.x", b"2", headers={header: ["tenant2.y"]})
    assert closed.reply_code == 403
    assert "write access to topic 'tenant2.y' in exchange 't'" in closed.reply_text


def test_more_addresses_than_are_remembered() -> None:
    world = World(journaled=False)
    client = world.client()
    client.declare("q")
    client.say(m.ExchangeDeclare(exchange="x", type="fanout"), m.QueueBind(queue="q", exchange="x"))
    for _ in range(2):
        client.raw(b"".join(client.content("x", f"key {n}", b"") for n in range(1500)))
        world.turn()
    assert ready(world, "q") == 3000


@pytest.mark.parametrize("confirms", [False, True])
def test_mandatory_returns_come_before_the_ack(confirms: bool) -> None:
    client = World().client()
    if confirms:
        client.ask(m.ConfirmSelect())
    heard = client.publish("", "nobody", b"1", b"2", mandatory=True)
    assert [said.body for said in heard[:2]] == [b"1", b"2"]
    returned = heard[0].method
    assert (returned.reply_code, returned.reply_text) == (312, "NO_ROUTE")
    assert (returned.exchange, returned.routing_key) == ("", "nobody")
    assert heard[2:] == ([m.BasicAck(2, True)] if confirms else [])


def test_the_unroutable_is_confirmed_at_once_and_the_routed_when_it_is_safe() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    client.ask(m.ConfirmSelect())
    world.disk_waits = True
    assert client.publish("", "q", b"1") == []
    assert client.publish("", "nobody", b"2") == [m.BasicAck(2, False)]
    assert client.publish("", "q", b"3", transient=True) == []
    world.commit()
    assert client.hear() == [m.BasicAck(3, True)]
    assert client.publish("", "q", b"4", transient=True) == [m.BasicAck(4, True)], "it needs no disk"


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"immediate": True}, 540),
        ({"user_id": "somebody"}, 406),
        ({"reply_to": "amq.rabbitmq.reply-to"}, 406),
        ({"headers": {"CC": "not a list"}}, 406),
        ({"headers": {"BCC": "not a list"}}, 406),
        ({"headers": {"CC": ["k"] * 101}}, 406),
        ({"headers": {"BCC": ["k" * 256]}}, 406),
        ({"expiration": "soon"}, 406),
        ({"expiration": "-1"}, 406),
    ],
)
def test_contents_that_are_refused(more: dict[str, object], code: int) -> None:
    world = World()
    client = world.client()
    client.declare("q")
    heard = client.publish("", "q", b"bad", **more) or client.hear(0)
    assert (heard[-1].reply_code, heard[-1].class_id, heard[-1].method_id) == (code, 60, 40)
    assert ready(world, "q") == 0


def test_what_came_before_the_refused_message_of_a_breath_is_taken() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    good, bad = client.content("", "q", b"good", user_id="guest"), client.content("", "q", b"bad", user_id="other")
    client.raw(good + bad + good)
    world.turn()
    assert client.hear()[-1].reply_code == 406
    assert ready(world, "q") == 1


def test_too_large_a_message() -> None:
    world = World(message_bytes_max=100)
    client = world.client()
    client.declare("q")
    (close,) = client.publish("", "q", bytes(101))
    assert close.reply_code == 406
    assert "message size 101 is larger than configured max size 100" in close.reply_text


def test_an_impersonator_may_name_another_user() -> None:
    world = World()
    world.command(c.PutUser(name="eve", password_hash="eve", hash_algorithm="scrypt", tags=("impersonator",)))
    client = world.client("eve")
    client.declare("q")
    assert client.publish("", "q", b"1", user_id="guest") == []
    assert ready(world, "q") == 1


def test_exchanges_that_take_nothing() -> None:
    world = World()
    client = world.client()
    client.say(m.ExchangeDeclare(exchange="inner", type="fanout", internal=True))
    assert client.publish("inner", "", b"1")[0].reply_code == 403
    client.say(m.ChannelCloseOk(), m.ChannelOpen())
    assert client.publish("none", "", b"1")[0].reply_text == "NOT_FOUND - no exchange 'none' in vhost '/'"


def test_cc_and_bcc() -> None:
    world = World()
    client = world.client()
    for name in ("to", "cc", "bcc"):
        client.declare(name)
    client.publish("", "to", b"hello", headers={"CC": ["cc", "to"], "BCC": ["bcc"], "mine": 1})
    for name in ("to", "cc", "bcc"):
        (got,) = client.consume(name, tag=name)
        assert got.properties.headers == {"CC": ["cc", "to"], "mine": 1}, "BCC is for nobody's eyes"
    (got,) = client.say(m.BasicRecover(True))[1:2]
    assert "BCC" not in got.properties.headers
    client.declare("g")
    client.publish("", "g", b"hello", headers={"BCC": ["bcc"]})
    assert "BCC" not in client.say(m.BasicGet(queue="g"))[-1].properties.headers


def test_a_batch_with_headers_goes_message_by_message() -> None:
    world = World()
    client = world.client()
    for name in ("q", "r"):
        client.declare(name)
    client.say(m.ExchangeDeclare(exchange="h", type="headers"))
    for name in ("q", "r"):
        client.say(m.QueueBind(queue=name, exchange="h", arguments={"to": name}))
    client.raw(b"".join(client.content("h", "", b"%d" % n, headers={"to": "qr"[n % 2]}) for n in range(6)))
    world.turn()
    assert bodies(client.consume("q")) == [b"0", b"2", b"4"]
    assert bodies(client.consume("r", tag="r")) == [b"1", b"3", b"5"]


def test_a_full_queue_rejects_the_rest_of_a_batch() -> None:
    world = World()
    client = world.client()
    client.declare("q", x_max_length=3, x_overflow="reject-publish")
    client.ask(m.ConfirmSelect())
    heard = client.publish("", "q", *[b"%d" % n for n in range(5)])
    nacked = {said.delivery_tag for said in heard if isinstance(said, m.BasicNack)}
    assert (nacked, ready(world, "q")) == ({4, 5}, 3)
    assert sum(isinstance(said, m.BasicAck) for said in heard) == 1


def test_a_publish_that_one_of_two_queues_rejects_is_nacked() -> None:
    world = World()
    client = world.client()
    client.declare("full", x_max_length=0, x_overflow="reject-publish")
    client.declare("q")
    client.say(m.ExchangeDeclare(exchange="x", type="fanout"))
    for name in ("full", "q"):
        client.say(m.QueueBind(queue=name, exchange="x"))
    client.ask(m.ConfirmSelect())
    assert client.publish("x", "", b"1") == [m.BasicNack(1, False)]
    assert ready(world, "q") == 1


def test_a_refusing_queue_confirms_when_the_message_is_durable() -> None:
    """It was confirmed at once: after a crash a confirmed message was missing."""
    world = World()
    client = world.client()
    client.declare("q", x_max_length=3, x_overflow="reject-publish")
    client.ask(m.ConfirmSelect())
    world.disk_waits = True
    assert client.publish("", "q", b"1") == []
    world.commit()
    assert client.hear() == [m.BasicAck(1, True)]
    world.crash()
    assert ready(world, "q") == 1


def test_direct_reply_to() -> None:
    world = World()
    asker, answerer = world.client(), world.client()
    answerer.declare("rpc")
    asker.consume("amq.rabbitmq.reply-to", no_ack=True)
    asker.publish("", "rpc", b"question", reply_to="amq.rabbitmq.reply-to")
    (question,) = answerer.consume("rpc")
    address = question.properties.reply_to
    assert address.startswith("amq.rabbitmq.reply-to.")
    assert answerer.publish("", address, b"answer", mandatory=True) == []
    (answer,) = asker.hear()
    assert (answer.body, answer.method.consumer_tag, answer.method.routing_key) == (b"answer", "ctag", address)
    assert answerer.ask(m.QueueDeclare(queue=address, passive=True)) == m.QueueDeclareOk(address, 0, 1)
    asker.leave()
    (returned,) = answerer.publish("", address, b"too late", mandatory=True)
    assert returned.method.reply_code == 312


def test_a_deleted_queue_answers_those_who_wait() -> None:
    world = World()
    client, other = world.client(), world.client()
    client.declare("q")
    client.ask(m.ConfirmSelect())
    world.disk_waits = True
    client.publish("", "q", b"1")
    other.say(m.QueueDelete(queue="q"))
    assert client.hear() == [m.BasicAck(1, True)]
    world.commit()
    assert client.hear() == []


# -- producers that number their messages


def numbered(client: Client, number: object, body: bytes, producer: object = "press", **more: object) -> list[object]:
    return client.publish("", "q", body, headers={"x-producer": producer, "x-seq": number}, **more)


def test_a_numbered_message_is_stored_once_and_its_repeat_is_confirmed() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    client.ask(m.ConfirmSelect())
    assert numbered(client, 1, b"1") == [m.BasicAck(1, True)]
    assert numbered(client, 1, b"1 again") == [m.BasicAck(2, True)]
    assert numbered(client, 2, b"2") == [m.BasicAck(3, True)]
    assert numbered(client, 1, b"another's", producer="else") == [m.BasicAck(4, True)]
    other = world.client()
    assert numbered(other, 2, b"2 again, over another connection") == []
    assert bodies(client.consume("q")) == [b"1", b"2", b"another's"]


@pytest.mark.parametrize(
    ("arguments", "delivery_mode"), [({}, 1), ({"x_durability": "memory"}, 2)], ids=["transient", "memory"]
)
def test_a_repeat_of_what_a_crash_has_lost_is_stored(arguments: dict[str, Any], delivery_mode: int) -> None:
    """Findings, p3: its number was in the journal, the message never, and the repeat was confirmed and nowhere."""
    world = World()
    client = world.client()
    client.declare("q", **arguments)
    assert numbered(client, 1, b"1", delivery_mode=delivery_mode) == []
    assert numbered(client, 1, b"1", delivery_mode=delivery_mode) == []
    assert ready(world, "q") == 1, "it is known as long as it is here"
    world.crash(kept=world.journal.unsynced)
    client = world.client()
    client.ask(m.ConfirmSelect())
    assert ready(world, "q") == 0
    for body in (b"again", b"and again"):
        assert isinstance(numbered(client, 1, body, delivery_mode=delivery_mode)[-1], m.BasicAck)
    assert bodies(client.consume("q")) == [b"again"]


@pytest.mark.parametrize("in_one_breath", [False, True])
def test_a_crash_takes_the_fleeting_ones_among_numbered_messages(in_one_breath: bool) -> None:
    world = World()
    client = world.client()
    client.declare("q")
    contents = [
        client.content(
            "", "q", b"%d" % number, headers={"x-producer": "press", "x-seq": number}, delivery_mode=1 + number % 2
        )
        for number in range(1, 11)
    ]
    for content in [b"".join(contents)] if in_one_breath else contents:
        client.raw(content)
        world.turn()
    world.crash()
    client = world.client()
    for number in range(1, 11):
        numbered(client, number, b"%d again" % number, delivery_mode=1 + number % 2)
    found = bodies(client.consume("q"))
    assert found == [b"1", b"3", b"5", b"7", b"9", b"2 again", b"4 again", b"6 again", b"8 again", b"10 again"]


def test_a_repeat_is_known_after_a_crash() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    numbered(client, 7, b"once")
    world.crash()
    client = world.client()
    client.ask(m.ConfirmSelect())
    assert numbered(client, 7, b"twice") == [m.BasicAck(1, True)]
    assert bodies(client.consume("q")) == [b"once"]


def test_a_repeat_is_known_after_a_checkpoint() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    numbered(client, 7, b"once")
    world.checkpoint()
    client.publish("", "q", b"more")
    world.checkpoint()
    world.crash()
    client = world.client()
    client.ask(m.ConfirmSelect())
    assert numbered(client, 7, b"twice") == [m.BasicAck(1, True)]
    assert bodies(client.consume("q")) == [b"once", b"more"]


def test_a_full_queue_refuses_a_new_number_and_no_repeat() -> None:
    client = World().client()
    client.declare("q", x_max_length=1, x_overflow="reject-publish")
    client.ask(m.ConfirmSelect())
    assert numbered(client, 1, b"1") == [m.BasicAck(1, True)]
    assert numbered(client, 2, b"2") == [m.BasicNack(2, False)]
    assert numbered(client, 1, b"1") == [m.BasicAck(3, True)]
    client.ask(m.QueuePurge(queue="q"))
    assert numbered(client, 2, b"2") == [m.BasicAck(4, True)], "a refused number was never stored"
    assert bodies(client.consume("q")) == [b"2"]


def test_a_refused_number_may_come_again_behind_later_ones() -> None:
    world = World()
    client = world.client()
    client.declare("q", x_max_length=1, x_overflow="reject-publish")
    client.ask(m.ConfirmSelect())
    assert numbered(client, 1, b"1") == [m.BasicAck(1, True)]
    assert numbered(client, 2, b"2") == [m.BasicNack(2, False)]
    client.ask(m.QueuePurge(queue="q"))
    assert numbered(client, 3, b"3") == [m.BasicAck(3, True)]
    assert numbered(client, 2, b"2") == [m.BasicNack(4, False)]
    client.ask(m.QueuePurge(queue="q"))
    world.checkpoint()
    world.crash()
    client = world.client()
    client.ask(m.ConfirmSelect())
    assert numbered(client, 2, b"2") == [m.BasicAck(1, True)]
    assert numbered(client, 2, b"2 again") == [m.BasicAck(2, True)]
    assert bodies(client.consume("q")) == [b"2"]


def test_what_a_refused_transaction_numbered_may_come_again_behind_later_ones() -> None:
    world = World()
    client = world.client()
    client.declare("q", x_max_length=1, x_overflow="reject-publish")
    client.ask(m.TxSelect())
    numbered(client, 1, b"1")
    numbered(client, 2, b"2")
    client.say(m.TxCommit())
    assert client.hear(0)[-1].reply_code == 541
    client = world.client()
    client.ask(m.ConfirmSelect())
    assert numbered(client, 3, b"3") == [m.BasicAck(1, True)]
    client.ask(m.QueuePurge(queue="q"))
    assert numbered(client, 1, b"1") == [m.BasicAck(2, True)]
    assert bodies(client.consume("q")) == [b"1"]


@pytest.mark.parametrize(
    "lengths, fits",
    [
        ((450, 450), True),
        ((10, 5000), True),
        ((5000,), True),
        ((999, 1), True),
        ((600, 400, 1), False),
        ((1000, 1), False),
    ],
)
def test_a_transaction_fits_where_each_message_would_behind_those_before_it(
    lengths: tuple[int, ...], fits: bool
) -> None:
    client = World().client()
    client.declare("q", x_max_length_bytes=1000, x_overflow="reject-publish")
    client.ask(m.TxSelect())
    for length in lengths:
        client.publish("", "q", bytes(length))
    client.say(m.TxCommit())
    assert [getattr(said, "reply_code", 0) for said in client.hear(0)] == ([] if fits else [541])


def test_numbered_messages_in_a_transaction() -> None:
    client = World().client()
    client.declare("q")
    client.ask(m.TxSelect())
    numbered(client, 1, b"1")
    numbered(client, 1, b"1")
    numbered(client, 2, b"2")
    assert client.ask(m.TxCommit()) == m.TxCommitOk()
    assert bodies(client.consume("q")) == [b"1", b"2"]


@pytest.mark.parametrize(
    "producer, number",
    [("p", 0), ("p", -1), ("p", "1"), ("p", True), ("p", None), ("p", 2**62 + 1), ("", 1), (5, 1), ("x" * 256, 1)],
)
def test_a_producer_without_a_good_number_is_told(producer: object, number: object) -> None:
    client = World().client()
    client.declare("q")
    (close,) = numbered(client, number, b"", producer)
    assert close.reply_code == 406


def test_a_number_without_a_producer_means_nothing() -> None:
    client = World().client()
    client.declare("q")
    for _ in range(2):
        client.publish("", "q", b"", headers={"x-seq": 1})
    assert client.declare("q").message_count == 2
