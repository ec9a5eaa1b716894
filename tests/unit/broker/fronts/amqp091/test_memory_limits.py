"""Memory that no publish takes: it is bounded, or the memory alarm stops it."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp091.codec import OutBuffer
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.commands import FREE_FORM_BYTES_MAX
from tests.unit.broker.fronts.amqp091.harness import Client, World

BIG = "x" * FREE_FORM_BYTES_MAX


def begun(size: int, sent: int, channel: int = 1) -> bytes:
    """A content of so many bytes, of which so many come."""
    out = OutBuffer(131072)
    out.method(channel, m.encode(m.BasicPublish(0, "", "q", False, False)))
    out.frame(2, channel, struct.pack(">HHQH", 60, 0, size, 0))
    while sent:
        part = min(sent, 100_000)
        out.frame(3, channel, bytes(part))
        sent -= part
    return bytes(out.take())


def rest(size: int) -> bytes:
    """So much more of it."""
    return (struct.pack(">BHI", 3, 1, 100_000) + bytes(100_000) + b"\xce") * (size // 100_000)


# -- declarations


@pytest.mark.parametrize(
    "method",
    [
        m.QueueDeclare(queue="new", arguments={"pad": BIG}),
        m.ExchangeDeclare(exchange="new", type="direct", arguments={"pad": BIG}),
        m.QueueBind(queue="q", exchange="amq.direct", arguments={"pad": BIG}),
        m.ExchangeBind(destination="amq.fanout", source="amq.direct", arguments={"pad": [{"a": BIG}]}),
    ],
    ids=lambda method: method.NAME,
)
def test_arguments_of_declarations_are_bounded(method: Any) -> None:
    """They are in the memory of all members, and on all their disks, for as long as the thing is there."""
    world = World()
    client = world.client()
    client.declare("q")
    closed = client.ask(method)
    assert (closed.reply_code, closed.class_id, closed.method_id) == (406, method.CLASS_ID, method.METHOD_ID)
    assert f"at most {FREE_FORM_BYTES_MAX} are kept" in closed.reply_text


def test_arguments_as_long_as_they_may_be() -> None:
    client = World().client()
    assert isinstance(client.ask(m.QueueDeclare(queue="new", arguments={"pad": BIG[:-100]})), m.QueueDeclareOk)


def test_policies_and_parameters_are_bounded() -> None:
    world = World()
    named = {"dead-letter-exchange": BIG}
    for command in (
        c.PutPolicy(vhost="/", name="p", pattern="", definition=named),
        c.PutOperatorPolicy(vhost="/", name="p", pattern="", definition=named),
        c.PutParameter(vhost="", component="c", name="n", value=["x" * c.VALUE_BYTES_MAX]),
        c.ImportDefinitions(
            import_id="i", number=0, commands=(c.DeclareQueue(vhost="/", name="q", arguments={"a": BIG}),)
        ),
    ):
        assert "are kept" in world.command(command).error.text
    assert world.command(c.PutParameter(vhost="", component="c", name="n", value=[BIG])).ok


def test_what_was_stored_before_is_read_whatever_its_size() -> None:
    large = c.Bind(vhost="/", source="x", destination="q", arguments={"pad": BIG})
    stored = bytes((c.VERSION,)) + c.ENCODER.encode(large)
    assert c.decode(stored) == large


def test_while_memory_is_low_nothing_new_is_declared() -> None:
    world = World()
    client = world.client(channels=8)
    client.declare("q")
    client.say(m.ExchangeDeclare(exchange="x", type="direct"), m.QueueBind(queue="q", exchange="x", routing_key="k"))
    world.node.set_alarm("memory", True)
    assert isinstance(client.ask(m.QueueDeclare(queue="q", durable=True)), m.QueueDeclareOk), "it is there"
    assert client.ask(m.ExchangeDeclare(exchange="x", type="direct")) == m.ExchangeDeclareOk()
    assert client.ask(m.QueueBind(queue="q", exchange="x", routing_key="k")) == m.QueueBindOk()
    for channel, method, what in (
        (2, m.QueueDeclare(queue="new"), "declare queue 'new'"),
        (3, m.QueueDeclare(exclusive=True), "declare queue 'amq.gen-"),
        (4, m.ExchangeDeclare(exchange="new", type="direct"), "declare exchange 'new'"),
        (5, m.QueueBind(queue="q", exchange="x", routing_key="other"), "bind queue 'q' to exchange 'x'"),
        (6, m.ExchangeBind(destination="amq.fanout", source="x"), "bind exchange 'amq.fanout' to exchange 'x'"),
    ):
        closed = client.ask(method, channel)
        assert closed.reply_code == 406
        assert f"cannot {what}" in closed.reply_text
        assert "is low on memory" in closed.reply_text
    assert client.ask(m.QueueUnbind(queue="q", exchange="x", routing_key="k")) == m.QueueUnbindOk()
    assert isinstance(client.ask(m.QueueDelete(queue="q")), m.QueueDeleteOk), "what makes room is done"
    world.node.set_alarm("memory", False)
    assert isinstance(client.ask(m.QueueDeclare(queue="new"), 7), m.QueueDeclareOk)
    world.node.set_alarm("disk", True)
    assert isinstance(client.ask(m.QueueDeclare(queue="newer"), 8), m.QueueDeclareOk), "the disk's is about messages"


# -- consumers


def test_of_a_consumers_arguments_those_are_kept_that_mean_something() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    known = {"x-priority": 3, "x-cancel-on-ha-failover": True}
    more = {"pad": BIG, "x-stream-offset": BIG, "x-stream-end": [BIG], "x-unknown": 1}
    client.say(m.BasicConsume(queue="q", consumer_tag="t", arguments=known | more))
    (channel,) = client.connection.channels.values()
    assert channel.consumers["t"].arguments == known


def test_while_memory_is_low_a_connection_has_only_so_many_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterbroker.broker.access.receiver.CONSUMERS_IN_NEED_MAX", 3)
    world = World()
    client = world.client(channels=2)
    client.declare("q")
    world.node.set_alarm("memory", True)
    for number in range(3):
        assert isinstance(client.ask(m.BasicConsume(queue="q", consumer_tag=str(number)), 1), m.BasicConsumeOk)
    closed = client.ask(m.BasicConsume(queue="q"), 2)
    assert (closed.reply_code, "is low on memory" in closed.reply_text) == (406, True)
    assert isinstance(world.client().ask(m.BasicConsume(queue="q")), m.BasicConsumeOk), "another connection's"


# -- contents that never end


def blocked(client: Client) -> bool:
    return any(isinstance(said, m.ConnectionBlocked) for said in client.hear(0))


def test_who_sends_half_a_content_waits_for_alarms_as_publishers_do() -> None:
    """No permission is asked for before a content is whole."""
    world = World()
    world.node.set_alarm("memory", True)
    client = world.client()
    assert client.connection.reading
    client.raw(begun(4_000_000, 2_000_000))
    world.turn()
    assert client.connection.reading, "it may be a request to the broker, such as a lease's end"
    client.raw(rest(100_000))
    world.turn()
    assert blocked(client)
    assert not client.connection.reading
    world.node.set_alarm("memory", False)
    world.turn()
    assert client.connection.reading


def test_contents_that_are_not_whole_are_bounded_over_all_connections() -> None:
    world = World(partial_bytes_max=1_000_000)
    small, large, last = world.client(), world.client(), world.client()
    small.raw(begun(500_000, 100_000))
    large.raw(begun(1_000_000, 700_000))
    assert world.node.partial_bytes == pytest.approx(800_000, abs=100)
    last.raw(begun(500_000, 300_000))
    world.turn()
    (closed,) = [said for said in large.hear(0) if isinstance(said, m.ConnectionClose)]
    assert closed.reply_code == 506
    assert "incomplete contents exceed the node's limit" in closed.reply_text
    assert large.ended is not None
    assert world.node.partial_bytes == pytest.approx(400_000, abs=100)
    for client in (small, last):
        assert client.connection.decoder.partial_bytes
        assert client.ended is None
    small.leave()
    assert world.node.partial_bytes == pytest.approx(300_000, abs=100)
    last.raw(rest(200_000))
    world.turn()
    assert world.node.partial_bytes == 0, "it is whole"


def test_the_one_with_most_may_be_the_one_that_sends() -> None:
    world = World(partial_bytes_max=500_000)
    client = world.client()
    client.raw(begun(1_000_000, 600_000))
    world.turn()
    (closed,) = [said for said in client.hear(0) if isinstance(said, m.ConnectionClose)]
    assert closed.reply_code == 506
    assert world.node.partial_bytes == 0
    other = world.client()
    other.declare("q")
    assert other.publish("", "q", b"goes on") == []


# -- what is delivered and not acknowledged


def test_readers_of_a_stream_wait_while_memory_is_low() -> None:
    """Each message that a channel holds takes memory, and thousands of readers may hold the same 65,535: no publisher
    is there whom the alarm would hold up."""
    world = World()
    client = world.client()
    client.declare("s", x_queue_type="stream")
    client.raw(client.content("", "s", b"x") * 5000)
    world.turn()
    reader = world.client()
    reader.say(m.BasicQos(prefetch_count=65535))
    world.node.set_alarm("memory", True)
    for tag in range(3):
        reader.say(m.BasicConsume(queue="s", consumer_tag=str(tag), arguments={"x-stream-offset": 0}))
    ledger = reader.connection.channels[1].ledger
    held = ledger.unacked
    assert 1000 <= held <= 3 * 1000, "some are handed out, so that work goes on"
    world.turn()
    assert ledger.unacked == held
    reader.say(m.BasicAck(0, True))
    assert ledger.unacked >= 1000, "who acknowledges gets more"
    world.node.set_alarm("memory", False)
    world.turn()
    assert ledger.unacked + held == 3 * 5000


def test_messages_that_are_got_one_by_one_share_what_they_need() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    client.declare("r")
    client.raw(client.content("", "q", b"x") * 20 + client.content("", "r", b"x"))
    world.turn()
    client.say(*[m.BasicGet(queue="q")] * 10, m.BasicGet(queue="r"), m.BasicGet(queue="q"))
    ledger = client.connection.channels[1].ledger
    assert ledger.unacked == 12
    assert len({id(consumer) for _, consumer in ledger.held()}) == 3
    client.say(m.BasicNack(0, True, True))
    assert (world.queue("q").ring.ready, world.queue("r").ring.ready) == (20, 1)
