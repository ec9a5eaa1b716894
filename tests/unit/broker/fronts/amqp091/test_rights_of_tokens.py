"""Connections that signed in with a token: what its scopes allow, another token for it, and its end."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.oauth2.scopes import granted
from clusterbroker.broker.oauth2.verifier import Token
from clusterbroker.broker.queues.queue import Queue
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import CAPABILITIES, HEADER, Client, World, bodies

ALL = "configure:%2F/* write:%2F/* read:%2F/*"


def put(world: World, secret: bytes, scopes: str = ALL, name: str = "ann", for_s: int = 60) -> bytes:
    """A token that the node takes; its secret."""
    ends_s = world.now_ms / 1000 + for_s
    world.tokens[secret] = Token(name, granted([f"mq.{scope}" for scope in scopes.split()], "mq."), ends_s)
    return secret


def entered(world: World, secret: bytes, vhost: str = "/") -> tuple[Client, list[Any]]:
    client = Client(world)
    client.raw(HEADER)
    client.raw_method(0, m.ConnectionStartOk({"capabilities": CAPABILITIES}, "PLAIN", b"\0whoever\0" + secret))
    client.raw_method(0, m.ConnectionTuneOk(2047, 131072, 0))
    client.raw_method(0, m.ConnectionOpen(vhost))
    world.turn()
    heard = client.hear(0)[2:]
    if heard == [m.ConnectionOpenOk()]:
        client.ask(m.ChannelOpen())
    return client, heard


def test_user_and_rights_are_the_tokens() -> None:
    world = World()
    client, heard = entered(world, put(world, b"t", "configure:%2F/a* read:%2F/a* write:%2F/amq.default"))
    assert heard == [m.ConnectionOpenOk()]
    assert client.connection.user == "ann"
    client.declare("apples")
    assert client.publish("", "apples", b"1") == []
    assert bodies([client.ask(m.BasicGet(queue="apples", no_ack=True))]) == [b"1"]
    assert client.ask(m.QueueDeclare(queue="pears")).reply_text == (
        "ACCESS_REFUSED - configure access to queue 'pears' in vhost '/' refused for user 'ann'"
    )


def test_an_account_of_the_same_name_gives_and_takes_nothing() -> None:
    world = World()
    client, _ = entered(world, put(world, b"t", "configure:%2F/*", name="eve"))
    assert client.code(m.ExchangeDelete(exchange="amq.direct")) == 403, "a system exchange, whatever one may"
    assert client.ask(m.ChannelOpen(), 2) == m.ChannelOpenOk()
    world.command(c.DeleteUser(name="eve"))
    assert isinstance(client.ask(m.QueueDeclare(queue="q"), 2), m.QueueDeclareOk)
    assert client.code(m.BasicGet(queue="q"), 2) == 403


def test_a_vhost_that_no_scope_names_is_closed() -> None:
    world = World()
    _, heard = entered(world, put(world, b"t", "read:other/*"))
    assert heard[-1].reply_text == "NOT_ALLOWED - access to vhost '/' refused for user 'ann'"


def test_routing_keys_of_topics() -> None:
    world = World()
    client, _ = entered(world, put(world, b"t", "write:%2F/amq.topic/orders.*"))
    assert client.publish("amq.topic", "orders.new", b"") == []
    (closed,) = client.publish("amq.topic", "bills.new", b"")
    assert closed.reply_text == (
        "ACCESS_REFUSED - write access to topic 'bills.new' in exchange 'amq.topic' in vhost '/' refused for user 'ann'"
    )


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_routing_keys_of_topics_in_headers(header: str) -> None:
    world = World()
    client, _ = entered(world, put(world, b"t", "write:%2F/amq.topic/orders.*"))
    assert client.publish("amq.topic", "orders.new", b"", headers={header: ["orders.old"]}) == []
    (closed,) = client.publish("amq.topic", "orders.new", b"", headers={header: ["orders.old", "bills.new"]})
    assert closed.reply_text == (
        "ACCESS_REFUSED - write access to topic 'bills.new' in exchange 'amq.topic' in vhost '/' refused for user 'ann'"
    )


def test_nobody_publishes_in_the_name_of_an_account() -> None:
    """A `sub` like it is not the account: consumers may believe what stands in user_id."""
    world = World()
    client, _ = entered(world, put(world, b"t", name="eve"))
    (closed,) = client.publish("", "q", b"", user_id="eve")
    assert closed.reply_text == (
        "PRECONDITION_FAILED - user_id property set to 'eve', an account, but a token signed in"
    )
    other, _ = entered(world, put(world, b"u", name="ann"))
    assert other.publish("", "q", b"", user_id="ann") == []


def test_producers_of_an_account_are_not_those_of_a_token_with_its_name() -> None:
    world = World()
    words = {"x-producer": "p", "x-epoch": 0, "x-run": "r", "x-target": "amq.topic"}
    declared = m.ExchangeDeclare(exchange="txn.a", type="x-staging", durable=True, arguments=words)
    assert world.client("eve").ask(declared) == m.ExchangeDeclareOk()
    client, _ = entered(world, put(world, b"t", name="eve"))
    again = m.ExchangeDeclare(exchange="txn.b", type="x-staging", durable=True, arguments=words)
    assert "producer 'p' belongs to user 'eve'" in client.ask(again).reply_text
    client.ask(m.ChannelOpen(), 2)
    mine = m.ExchangeDeclare(exchange="txn.c", type="x-staging", durable=True, arguments=words | {"x-producer": "mine"})
    assert client.ask(mine, 2) == m.ExchangeDeclareOk()
    producer = world.node.map.producer("/", "mine")
    assert producer is not None
    assert producer.user == "eve (by token)"


def test_nobody_publishes_in_the_name_of_others() -> None:
    world = World()
    client, _ = entered(world, put(world, b"t"))
    client.declare("q")
    assert client.publish("", "q", b"", user_id="ann") == []
    assert client.publish("", "q", b"", user_id="guest")[0].reply_code == 406


def test_a_connection_ends_with_its_token() -> None:
    world = World()
    client, _ = entered(world, put(world, b"t", for_s=10))
    world.wait(9_000)
    assert client.hear(0) == []
    world.wait(2_000)
    assert client.hear(0)[-1].reply_text == "CONNECTION_FORCED - the token of user 'ann' is over"


def test_the_end_of_a_token_follows_the_wall_clock() -> None:
    """The node's own time lags behind it after the machine has slept."""
    world = World()
    client, _ = entered(world, put(world, b"t", for_s=10))
    client.connection.tick(world.now_ms, world.now_ms + 11_000)
    world.turn()
    assert client.hear(0)[-1].reply_code == 320


def test_another_token_of_the_same_user_prolongs_it() -> None:
    world = World()
    client, _ = entered(world, put(world, b"t", for_s=10))
    put(world, b"later", for_s=100)
    assert client.ask(m.ConnectionUpdateSecret(b"later", "renewed"), 0) == m.ConnectionUpdateSecretOk()
    world.wait(50_000)
    assert client.hear(0) == []
    world.wait(60_000)
    assert client.hear(0)[-1].reply_code == 320


def test_nothing_is_said_after_close_when_the_new_token_is_verified_late() -> None:
    for secret in (b"later", b"wrong"):
        world = World()
        client, _ = entered(world, put(world, b"t"))
        put(world, b"later")
        world.passwords_wait = True
        assert client.say(m.ConnectionUpdateSecret(secret, "renewal"), channel=0) == []
        client.connection.force_close("maintenance")
        world.turn()
        assert client.hear(0)[-1].reply_code == 320
        world.answer_passwords()
        world.turn()
        assert client.hear(0) == []


def test_rights_are_those_of_the_latest_token() -> None:
    """Remembered answers and routes of the old one are not used, and its consumers end."""
    world = World()
    client, _ = entered(world, put(world, b"t"))
    client.declare("q")
    client.consume("q")
    assert [type(said) for said in client.publish("", "q", b"1")] != []
    put(world, b"less", "configure:%2F/q")
    assert client.ask(m.ConnectionUpdateSecret(b"less", ""), 0) == m.ConnectionUpdateSecretOk()
    assert client.hear()[-1] == m.BasicCancel("ctag", True)
    assert client.publish("", "q", b"2")[0].reply_code == 403


def test_rights_that_shrink_while_a_consumer_waits_for_its_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    client, _ = entered(world, put(world, b"t"))
    client.declare("q")
    grants = client.connection.access.rights
    put(world, b"less", "configure:%2F/q")
    waiting: list[Any] = []
    subscribe = Queue.subscribe
    monkeypatch.setattr(Queue, "subscribe", lambda *arguments: waiting.append(arguments))
    client.say(m.BasicConsume(queue="q", consumer_tag="c"))
    assert client.ask(m.ConnectionUpdateSecret(b"less", ""), 0) == m.ConnectionUpdateSecretOk()
    assert client.connection.access.rights is not grants
    subscribe(*waiting[0])
    world.turn()
    assert client.hear() == [m.BasicConsumeOk("c"), m.BasicCancel("c", True)]


@pytest.mark.parametrize(
    ("name", "scopes", "text"),
    [
        ("bob", ALL, "New secret was refused by one of the backends: it is another user's"),
        ("ann", "read:other/*", "access to vhost '/' refused for user 'ann'"),
    ],
)
def test_a_token_that_does_not_take_its_place(name: str, scopes: str, text: str) -> None:
    world = World()
    client, _ = entered(world, put(world, b"t"))
    put(world, b"other", scopes, name)
    assert client.ask(m.ConnectionUpdateSecret(b"other", ""), 0).reply_text == f"NOT_ALLOWED - {text}"


def test_a_password_and_a_token_do_not_stand_for_each_other() -> None:
    world = World()
    put(world, b"t", name="guest", for_s=10)
    client = world.client("guest")
    assert client.ask(m.ConnectionUpdateSecret(b"t", ""), 0) == m.ConnectionUpdateSecretOk(), "and nothing changes"
    world.wait(20_000)
    assert client.hear(0) == []
    put(world, b"t", name="guest")
    client, _ = entered(world, b"t")
    assert client.ask(m.ConnectionUpdateSecret(b"guest", ""), 0).reply_code == 530
