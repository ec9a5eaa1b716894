"""A channel's methods take effect one after another, whatever they wait for; and how a channel ends."""

from __future__ import annotations

from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp091.errors import precondition_failed
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import Client, Content, World, bodies


def test_what_comes_after_a_declare_waits_for_it_and_keeps_its_order() -> None:
    world = World()
    client = world.client(channels=2)
    world.wiring_waits = True
    client.say(m.QueueDeclare(queue="q"), m.ConfirmSelect())
    client.publish("", "q", b"1")
    assert client.say(m.BasicGet(queue="q", no_ack=True), m.QueueDeclare(queue="r"), m.BasicQos()) == []
    assert client.say(m.BasicQos(), channel=2) == [m.BasicQosOk()], "the other channel goes on"
    world.answer_proposals()
    world.turn()
    declared, confirming, got, *confirmed = client.hear()
    assert (declared, confirming) == (m.QueueDeclareOk("q", 0, 0), m.ConfirmSelectOk())
    assert got.body == b"1"
    assert confirmed == [m.BasicAck(1, True)]
    world.answer_proposals()
    world.turn()
    assert client.hear() == [m.QueueDeclareOk("r", 0, 0), m.BasicQosOk()]


def test_an_error_in_the_wiring_closes_the_channel_and_what_waited_is_passed_over() -> None:
    world = World()
    client = world.client(channels=2)
    client.declare("q")
    world.wiring_waits = True
    client.say(m.QueueDeclare(queue="q", durable=False), m.QueueDeclare(queue="never"))
    client.publish("", "q", b"never")
    world.wiring_waits = False
    world.turn()
    (close,) = client.hear()
    assert (close.reply_code, close.class_id, close.method_id) == (406, 50, 10)
    assert "never" not in world.node.vhosts["/"].queues
    assert world.queue("q").ring.ready == 0
    assert client.connection.parked_bytes == 0
    assert client.say(m.BasicQos(), channel=2) == [m.BasicQosOk()]
    assert client.say(m.ChannelCloseOk(), m.ChannelOpen()) == [m.ChannelOpenOk()]


def test_an_error_among_the_waiting_events() -> None:
    world = World()
    client = world.client()
    world.wiring_waits = True
    client.say(m.QueueDeclare(queue="q"), m.BasicAck(7), m.QueueDeclare(queue="never"))
    world.wiring_waits = False
    world.turn()
    declared, close = client.hear()
    assert declared == m.QueueDeclareOk("q", 0, 0)
    assert (close.reply_code, close.class_id, close.method_id) == (406, 60, 80)
    assert client.say(m.ChannelClose()) == [m.ChannelCloseOk()], "both sides closed at once"
    assert client.say(m.ChannelCloseOk(), m.ChannelOpen()) == [m.ChannelOpenOk()]


def test_a_fault_among_the_waiting_events_ends_the_connection() -> None:
    world = World()
    client = world.client(channels=2)
    world.wiring_waits = True
    client.say(m.QueueDeclare(queue="q"), m.ChannelOpen(), m.QueueDeclare(queue="never"))
    world.wiring_waits = False
    world.turn()
    assert client.hear() == [m.QueueDeclareOk("q", 0, 0)]
    (close,) = client.hear(0)
    assert (close.reply_code, close.class_id, close.method_id) == (504, 20, 10)
    assert "never" not in world.node.vhosts["/"].queues


def test_a_close_that_waited_and_a_channel_opened_in_the_same_breath() -> None:
    world = World()
    client = world.client()
    world.wiring_waits = True
    client.say(m.QueueDeclare(queue="q"), m.ChannelClose(), m.ChannelOpen(), m.ConfirmSelect())
    world.wiring_waits = False
    world.turn()
    assert client.hear() == [
        m.QueueDeclareOk("q", 0, 0), m.ChannelCloseOk(), m.ChannelOpenOk(), m.ConfirmSelectOk(),
    ]  # fmt: skip
    assert client.connection.parked_bytes == 0


def test_a_connection_lost_while_the_wiring_works() -> None:
    world = World()
    client = world.client()
    world.wiring_waits = True
    client.say(m.QueueDeclare(queue="q", durable=True), m.QueueDeclare(queue="never"))
    client.leave()
    world.wiring_waits = False
    world.turn()
    assert list(world.node.vhosts["/"].queues) == ["q"]


def test_an_exclusive_queue_whose_connection_is_lost_before_the_answer() -> None:
    world = World()
    client = world.client()
    world.wiring_waits = True
    client.say(m.QueueDeclare(queue="mine", exclusive=True))
    client.leave()
    world.wiring_waits = False
    world.turn()
    assert "mine" not in world.node.vhosts["/"].queues, "it would be locked for ever"


def timed_out_while(method: m.Method) -> tuple[World, Client]:
    """A channel that waits for the answer to `method` when its consumer's time is over; it cannot be cancelled."""
    world = World(consumer_timeout_ms=1000)
    world.client().declare("disk")
    world.client().publish("", "disk", b"on disk only")
    world.reads_wait = True
    world.crash()
    client = world.client(capabilities={})
    client.declare("r")
    client.publish("", "r", b"held")
    client.consume("r")
    world.wiring_waits = True
    assert client.say(method) == []
    world.wait(1500)
    (close,) = client.hear()
    assert close.reply_code == 406
    return world, client


def test_a_get_that_is_answered_after_the_channel_was_closed() -> None:
    world, client = timed_out_while(m.BasicGet(queue="disk"))
    assert client.say(m.ChannelCloseOk(), m.ChannelOpen()) == []
    world.wiring_waits = world.reads_wait = False
    world.turn()
    assert client.hear() == [m.ChannelOpenOk()]
    assert world.queue("disk").ring.ready == 1
    assert bodies(client.say(m.BasicGet(queue="disk"))) == [b"on disk only"]


def test_a_channel_is_closed_once() -> None:
    world, client = timed_out_while(m.QueueDeclare(queue="disk", durable=False))
    world.wiring_waits = world.reads_wait = False
    world.turn()
    assert client.hear() == [], "the refused declare does not close it again"
    assert client.say(m.ChannelCloseOk(), m.ChannelOpen()) == [m.ChannelOpenOk()]


def test_a_channel_number_is_used_again_with_nothing_left_of_the_old_one() -> None:
    client = World().client()
    client.declare("q")
    client.ask(m.ConfirmSelect())
    client.publish("", "q", b"1", b"2")
    client.consume("q")
    assert client.say(m.ChannelClose()) == [m.ChannelCloseOk()]
    assert client.say(m.ChannelOpen()) == [m.ChannelOpenOk()]
    assert client.say(m.TxSelect()) == [m.TxSelectOk()], "it is not in confirm mode any more"
    (again,) = client.say(m.BasicGet(queue="q"))
    assert (again.method.delivery_tag, again.method.redelivered, again.body) == (1, True, b"1")
    client = client.world.client()
    assert client.code(m.BasicConsume(queue="")) == 404, "the last declared queue belongs to the channel"


def test_confirms_of_a_closed_channel_are_not_said_on_its_successor() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    client.ask(m.ConfirmSelect())
    world.disk_waits = True
    client.publish("", "q", b"1")
    assert client.say(m.ChannelClose(), m.ChannelOpen()) == [m.ChannelCloseOk(), m.ChannelOpenOk()]
    client.ask(m.ConfirmSelect())
    world.commit()
    assert client.hear() == []
    client.publish("", "q", b"2")
    world.commit()
    assert client.hear() == [m.BasicAck(1, True)]


def test_after_channel_close_content_is_passed_over() -> None:
    client = World().client()
    client.declare("q")
    assert client.code(m.BasicAck(9)) == 406
    client.publish("", "q", b"lost")
    assert client.say(m.QueueDeclare(queue="never")) == []
    assert client.say(m.ChannelCloseOk(), m.ChannelOpen()) == [m.ChannelOpenOk()]
    assert client.declare("q").message_count == 0


def test_a_content_that_was_cut_by_channel_close() -> None:
    client = World().client()
    client.declare("q")
    half = client.content("", "q", b"x" * 10)[:-18]  # without its body frame
    client.raw(half)
    client.connection.channels[1].fail(precondition_failed("for a test"))
    client.world.turn()
    assert isinstance(client.hear()[-1], m.ChannelClose)
    assert client.say(m.ChannelCloseOk(), m.ChannelOpen()) == [m.ChannelOpenOk()]
    client.publish("", "q", b"whole")
    assert client.declare("q").message_count == 1


def test_permissions_are_asked_again_when_they_change() -> None:
    world = World()
    client = world.client("eve")
    client.declare("q")
    client.publish("", "q", b"1")
    world.command(c.SetPermission(user="eve", vhost="/", configure="", write="", read=".*"))
    (got,) = client.say(m.BasicGet(queue="q", no_ack=True))
    assert isinstance(got, Content)
    (close,) = client.publish("", "q", b"2")
    assert close.reply_code == 403
    assert client.say(m.ChannelCloseOk(), m.ChannelOpen()) == [m.ChannelOpenOk()]
    assert client.code(m.QueueDeclare(queue="other")) == 403


def test_a_consumer_that_may_not_read_any_more_is_cancelled() -> None:
    world = World()
    client = world.client("eve")
    client.declare("q")
    client.consume("q")
    world.command(c.SetPermission(user="eve", vhost="/", configure=".*", write=".*", read=""))
    assert client.hear() == [m.BasicCancel("ctag", True)]
    assert not world.queue("q").subscriptions
