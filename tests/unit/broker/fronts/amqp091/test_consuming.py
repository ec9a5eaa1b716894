"""consume, get, ack, nack, reject, recover, qos, cancel: as amqp-rules 5.5 has them."""

from __future__ import annotations

import pytest

from clusterbroker.broker.wire.amqp091 import methods as m
from tests.unit.broker.fronts.amqp091.harness import Client, Content, World, bodies


def with_messages(count: int, world: World | None = None, **arguments: object) -> Client:
    client = (world or World()).client(channels=2)
    client.declare("q", **arguments)
    if count:
        client.publish("", "q", *[b"%d" % n for n in range(1, count + 1)])
    return client


def seen(heard: list[object]) -> list[tuple[int, bool, bytes]]:
    """(tag, redelivered, body) of the deliveries."""
    return [(s.method.delivery_tag, s.method.redelivered, s.body) for s in heard if isinstance(s, Content)]


def test_tags_count_per_channel_from_1() -> None:
    client = with_messages(2)
    client.ask(m.BasicQos(0, 1, False))
    assert seen(client.consume("q")) == [(1, False, b"1")]
    assert seen(client.consume("q", channel=2)) == [(1, False, b"2")]
    client.publish("", "q", b"3")
    assert seen(client.say(m.BasicAck(1))) == []
    assert seen(client.hear(2)) == [(2, False, b"3")], "it has no limit, and had its turn"


def test_multiple_and_tag_0() -> None:
    client = with_messages(6)
    client.consume("q")
    client.say(m.BasicAck(2, True))
    assert client.world.queue("q").ring.unacked == 4
    client.say(m.BasicAck(4))
    client.say(m.BasicAck(0, True))
    assert client.world.queue("q").ring.unacked == 0
    assert client.say(m.BasicAck(0, True)) == [], "all of nothing is no error"


@pytest.mark.parametrize(
    "method",
    [m.BasicAck(1), m.BasicAck(3), m.BasicAck(1, True), m.BasicNack(7), m.BasicReject(7), m.BasicAck(2**64 - 1)],
)
def test_a_tag_that_is_not_outstanding(method: m.Method) -> None:
    client = with_messages(2)
    client.consume("q")
    client.say(m.BasicAck(1))
    close = client.say(method)[-1]
    assert close.reply_code == 406
    assert "unknown delivery tag" in close.reply_text
    assert client.world.queue("q").ring.ready == 1


def test_a_tag_of_another_channel() -> None:
    client = with_messages(1)
    client.consume("q")
    assert client.code(m.BasicAck(1), 2) == 406


def test_what_is_returned_comes_back_flagged_to_its_place() -> None:
    client = with_messages(4)
    client.ask(m.BasicQos(0, 2, False))
    assert seen(client.consume("q")) == [(1, False, b"1"), (2, False, b"2")]
    assert seen(client.say(m.BasicNack(1, False, True))) == [(3, True, b"1")]
    assert seen(client.say(m.BasicReject(2, True))) == [(4, True, b"2")]
    assert seen(client.say(m.BasicAck(3))) == [(5, False, b"3")]
    assert seen(client.say(m.BasicRecover(True))) == [(6, True, b"2"), (7, True, b"3")]
    assert client.say(m.BasicRecoverAsync(True))[:1] != [m.BasicRecoverOk()], "it has no answer"


def test_what_is_rejected_dies() -> None:
    client = with_messages(4, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    client.declare("dead")
    client.consume("q")
    client.say(m.BasicNack(2, True, False))
    client.say(m.BasicReject(3, False))
    assert bodies(client.consume("dead", tag="dead")) == [b"1", b"2", b"3"]


def test_closing_requeues_and_cancel_does_not() -> None:
    client = with_messages(2)
    client.consume("q")
    assert client.ask(m.BasicCancel("ctag")) == m.BasicCancelOk("ctag")
    ring = client.world.queue("q").ring
    assert (ring.ready, ring.unacked) == (0, 2)
    client.say(m.BasicAck(1))
    client.say(m.ChannelClose())
    assert (ring.ready, ring.unacked) == (1, 0)
    assert seen(client.say(m.BasicGet(queue="q"), channel=2)) == [(1, True, b"2")]


def test_cancelling_what_is_not_there_succeeds() -> None:
    client = World().client()
    assert client.ask(m.BasicCancel("none")) == m.BasicCancelOk("none")
    assert client.say(m.BasicCancel("none", True)) == []


def test_prefetch_counts_per_consumer_and_reaches_new_consumers_only() -> None:
    client = with_messages(9)
    client.ask(m.BasicQos(0, 1, False))
    client.consume("q", tag="one")
    client.ask(m.BasicQos(0, 2, False))
    client.consume("q", tag="two")
    assert client.world.queue("q").ring.unacked == 3


def test_global_prefetch_counts_for_the_channel() -> None:
    client = with_messages(9)
    client.ask(m.BasicQos(0, 3, True))
    client.consume("q", tag="one")
    client.consume("q", tag="two")
    ring = client.world.queue("q").ring
    assert ring.unacked == 3
    client.say(m.BasicQos(0, 5, True))
    assert ring.unacked == 5
    client.say(m.BasicAck(2, True))
    assert (ring.unacked, ring.ready) == (5, 2)


def test_automatic_acknowledgement_ignores_prefetch() -> None:
    client = with_messages(5)
    client.ask(m.BasicQos(0, 1, False))
    assert len(seen(client.consume("q", no_ack=True))) == 5
    assert client.world.queue("q").ring.unacked == 0
    assert client.code(m.BasicAck(1)) == 406


@pytest.mark.parametrize(
    ("method", "code"),
    [
        (m.BasicQos(1, 0, False), 540),
        (m.BasicRecover(False), 540),
        (m.ChannelFlow(False), 540),
        (m.BasicConsume(queue="none"), 404),
        (m.BasicGet(queue="none"), 404),
        (m.BasicConsume(queue="q", arguments={"x-priority": "high"}), 406),
        (m.BasicConsume(queue="q", arguments={"x-priority": True}), 406),
        (m.BasicConsume(queue="amq.rabbitmq.reply-to"), 406),
    ],
)
def test_what_is_refused(method: m.Method, code: int) -> None:
    assert with_messages(0).code(method) == code


def test_flow_that_changes_nothing() -> None:
    assert World().client().ask(m.ChannelFlow(True)) == m.ChannelFlowOk(True)


def test_consumer_tags() -> None:
    client = with_messages(0)
    one, two = client.ask(m.BasicConsume(queue="q")), client.ask(m.BasicConsume(queue="q"))
    assert one.consumer_tag.startswith("amq.ctag-")
    assert one != two
    assert client.code(m.BasicConsume(queue="q", consumer_tag=one.consumer_tag)) == 530


def test_too_many_consumers() -> None:
    client = World(consumers_per_channel_max=1).client()
    client.declare("q")
    client.consume("q")
    assert client.code(m.BasicConsume(queue="q")) == 530


def test_exclusive_consumers() -> None:
    client = with_messages(0)
    client.consume("q", exclusive=True)
    assert client.code(m.BasicConsume(queue="q"), 2) == 403
    client.say(m.ChannelCloseOk(), m.ChannelOpen(), channel=2)
    client.ask(m.BasicCancel("ctag"))
    client.consume("q", channel=2)
    assert client.code(m.BasicConsume(queue="q", exclusive=True)) == 403


def test_get() -> None:
    client = with_messages(2)
    got = client.ask(m.BasicGet(queue="q"))
    assert (got.method.delivery_tag, got.method.message_count, got.body) == (1, 1, b"1")
    assert client.ask(m.BasicGet(queue="q", no_ack=True)).method.delivery_tag == 2
    assert client.ask(m.BasicGet(queue="q")) == m.BasicGetEmpty()
    client.say(m.BasicAck(1))
    assert client.code(m.BasicAck(2)) == 406


def test_gets_of_what_is_on_disk_only_are_answered_in_order() -> None:
    world = World()
    with_messages(4, world)
    world.reads_wait = True
    world.crash()
    one, two = world.client(), world.client()
    assert one.say(m.BasicGet(queue="q"), m.BasicGet(queue="q"), m.BasicQos()) == []
    assert two.say(m.BasicGet(queue="q")) == []
    world.reads_wait = False
    world.turn()
    assert sorted(bodies(one.hear()) + bodies(two.hear())) == [b"1", b"2", b"3"]
    assert world.queue("q").ring.ready == 1


def test_a_get_of_one_who_leaves_gives_the_message_back() -> None:
    world = World()
    with_messages(1, world)
    world.reads_wait = True
    world.crash()
    client = world.client()
    client.say(m.BasicGet(queue="q"))
    client.leave()
    world.reads_wait = False
    world.turn()
    assert (world.queue("q").ring.ready, world.queue("q").ring.unacked) == (1, 0)


def test_a_get_from_a_queue_that_is_deleted_meanwhile() -> None:
    world = World()
    with_messages(1, world)
    world.reads_wait = True
    world.crash()
    client, other = world.client(), world.client()
    client.say(m.BasicGet(queue="q"), m.BasicQos())
    other.say(m.QueueDelete(queue="q"))
    assert client.hear() == [m.BasicGetEmpty(), m.BasicQosOk()]
    world.reads_wait = False
    world.turn()


def test_a_deleted_queue_cancels_its_consumers() -> None:
    world = World()
    client, plain, other = with_messages(1, world), world.client(capabilities={}), world.client()
    client.consume("q")
    plain.consume("q")
    other.say(m.QueueDelete(queue="q"))
    assert client.hear()[-1] == m.BasicCancel("ctag", True)
    assert plain.hear() == []
    assert client.say(m.BasicAck(1)) == [], "what it held is settled by nobody"
    assert client.ask(m.BasicCancel("ctag")) == m.BasicCancelOk("ctag")


def test_a_consumer_that_holds_a_message_for_too_long() -> None:
    client = with_messages(2, World(consumer_timeout_ms=2000))
    client.consume("q")
    client.say(m.BasicAck(1))
    client.world.wait(1500)
    assert client.hear() == []
    client.world.wait(1000)
    assert client.hear() == [m.BasicCancel("ctag", True)]
    ring = client.world.queue("q").ring
    assert (ring.ready, ring.unacked) == (1, 0)
    assert client.code(m.BasicAck(2)) == 406


def test_a_timeout_leaves_the_channels_other_consumers_alone() -> None:
    client = with_messages(1, World(consumer_timeout_ms=0), x_consumer_timeout=1000)
    client.declare("patient")
    client.publish("", "patient", b"other")
    client.consume("q")
    client.consume("patient", tag="other")
    client.world.wait(2000)
    assert client.hear() == [m.BasicCancel("ctag", True)]
    assert client.say(m.BasicAck(2)) == []
    assert client.world.queue("patient").ring.unacked == 0


def test_an_older_delivery_without_a_limit_hides_no_younger_one_with_one() -> None:
    client = World(consumer_timeout_ms=0).client()
    client.declare("patient")
    client.declare("q", x_consumer_timeout=1000)
    client.publish("", "patient", b"first")
    client.consume("patient", tag="other")
    client.publish("", "q", b"second")
    client.consume("q")
    client.world.wait(2000)
    assert client.hear() == [m.BasicCancel("ctag", True)]
    assert client.say(m.BasicAck(1)) == []


def test_a_full_output_buffer_gets_no_more_until_it_is_sent() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    client.publish("", "q", *[bytes(300_000) for _ in range(8)])
    client.connection.paused(True, world.now_ms)
    client.connection.reading = True
    client.raw_method(1, m.BasicConsume(queue="q"))
    world.turn()
    assert world.queue("q").ring.unacked == 0, "its socket takes nothing"
    client.connection.paused(False, world.now_ms)
    world.turn()
    assert len(bodies(client.hear())) == 8


def test_what_was_handed_out_before_it_was_written_is_flagged_after_a_crash() -> None:
    world = World()
    client = with_messages(0, world)
    client.declare("busy")
    world.disk_waits = True
    client.publish("", "busy", b"keeps the disk at work")
    client.publish("", "q", b"1")
    assert seen(client.say(m.BasicGet(queue="q"))) == [(1, False, b"1")]
    world.commit()
    world.commit()
    world.crash()
    assert seen(world.client().consume("q")) == [(1, True, b"1")]


def test_first_deliveries_after_a_crash_are_flagged_as_far_as_they_were_promised() -> None:
    world = World()
    client = with_messages(3, world)
    client.ask(m.BasicGet(queue="q"))
    world.crash()
    heard = seen(world.client().consume("q"))
    assert heard[0] == (1, True, b"1")


def test_a_consumer_may_ask_for_each_messages_number_in_its_queue() -> None:
    client = with_messages(2)
    client.publish("", "q", b"3", headers={"x-queue-seq": "mine", "y": 1})
    heard = client.consume("q", arguments={"x-queue-seq": True})
    assert [(said.body, said.properties.headers) for said in heard] == [
        (b"1", {"x-queue-seq": 1}),
        (b"2", {"x-queue-seq": 2}),
        (b"3", {"x-queue-seq": 3, "y": 1}),
    ]
    client.say(m.BasicCancel("ctag"))
    client.say(m.BasicRecover(True))
    heard = client.consume("q", arguments={"x-queue-seq": False})
    assert [said.properties.headers for said in heard] == [None, None, {"x-queue-seq": "mine", "y": 1}]
    assert client.code(m.BasicConsume(queue="q", arguments={"x-queue-seq": 1})) == 406
