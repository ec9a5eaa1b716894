"""What the ring cannot know: limits, ends, retries, and whose message is safe. As clients see it, through a node."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import Content, World, bodies


def world_with(world: World | None = None, **arguments: Any) -> Any:
    """A client, the queues "q" with the arguments and "dead", and the world."""
    world = world or World()
    client = world.client(channels=2)
    client.declare("dead")
    client.declare("q", **arguments)
    return world, client


DYING = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dead"}


def ready(world: World, *queues: str) -> list[int]:
    return [world.queue(name).ring.ready for name in queues]


def deaths(got: Content) -> list[tuple[str, str, int]]:
    return [(entry["queue"], entry["reason"], entry["count"]) for entry in got.properties.headers["x-death"]]


# -- length


def test_drop_head_drops_the_oldest_ready_and_buries_them() -> None:
    _, client = world_with(x_max_length=2, **DYING)
    client.publish("", "q", *b"1 2 3 4".split())
    assert bodies(client.consume("q")) == [b"3", b"4"]
    got = client.consume("dead", tag="dead")
    assert [(said.body, deaths(said)) for said in got] == [
        (b"1", [("q", "maxlen", 1)]),
        (b"2", [("q", "maxlen", 1)]),
    ]


@pytest.mark.parametrize("on_disk", [False, True])
def test_what_has_expired_dies_of_that_though_the_queue_is_too_long(on_disk: bool) -> None:
    """Also behind one that has not, and with content that nobody has read: both died of the length."""
    world, client = world_with(x_max_length=3, **DYING)
    client.publish("", "q", b"1")
    client.publish("", "q", b"2", expiration="1000")
    client.publish("", "q", b"3", expiration="60000")
    client.ask(m.BasicQos(0, 3, False))
    client.consume("q")
    client.publish("", "q", b"4", b"5", b"6", channel=1)
    world.wait(1500)
    if on_disk:
        world.crash()
    else:
        client.leave()
    client = world.client()
    client.publish("", "q", b"7")
    got = client.consume("dead", tag="dead")
    assert [(said.body, deaths(said)) for said in got] == [
        (b"1", [("q", "maxlen", 1)]),
        (b"2", [("q", "expired", 1)]),
        (b"3", [("q", "maxlen", 1)]),
        (b"4", [("q", "maxlen", 1)]),
    ]


def test_consumers_with_credit_come_before_the_drop() -> None:
    world, client = world_with(x_max_length=1)
    client.ask(m.BasicQos(0, 3, False))
    client.consume("q")
    heard = client.publish("", "q", *b"1 2 3 4 5".split(), channel=1)
    assert bodies(heard) == [b"1", b"2", b"3"]
    assert ready(world, "q") == [1]
    assert bodies(client.say(m.BasicAck(3, True))) == [b"5"]


def test_length_in_bytes() -> None:
    world, client = world_with(x_max_length_bytes=10)
    client.publish("", "q", bytes(4), bytes(4), bytes(4))
    assert ready(world, "q") == [2]


def test_reject_publish_with_dead_letters() -> None:
    _, client = world_with(x_max_length=1, x_overflow="reject-publish-dlx", **DYING)
    client.ask(m.ConfirmSelect())
    assert client.publish("", "q", b"1") == [m.BasicAck(1, True)]
    assert client.publish("", "q", b"2") == [m.BasicNack(2, False)]
    (got,) = client.consume("dead")
    assert (got.body, deaths(got)) == (b"2", [("q", "maxlen", 1)])


def test_a_policy_shortens_a_queue() -> None:
    world, client = world_with()
    client.publish("", "q", *b"1 2 3".split())
    world.command(c.PutPolicy(vhost="/", name="p", pattern="^q$", definition={"max-length": 1}))
    assert bodies(client.consume("q")) == [b"3"]


# -- time


def test_what_expires_at_the_head_dies() -> None:
    world, client = world_with(x_message_ttl=1000, **DYING)
    client.publish("", "q", b"1", headers={"mine": 1})
    world.wait(999)
    assert ready(world, "q", "dead") == [1, 0]
    world.wait(2)
    assert ready(world, "q", "dead") == [0, 1]
    (got,) = client.consume("dead")
    assert deaths(got) == [("q", "expired", 1)]
    assert got.properties.headers["mine"] == 1


def test_a_message_with_a_ttl_of_its_own() -> None:
    world, client = world_with(**DYING)
    client.publish("", "q", b"long", expiration="5000")
    client.publish("", "q", b"short", expiration="10")
    world.wait(100)
    assert ready(world, "q", "dead") == [2, 0], "it waits behind the long one"
    world.wait(5000)
    got = client.consume("dead")
    assert [said.properties.headers["x-death"][0]["original-expiration"] for said in got] == ["5000", "10"]
    assert [said.properties.expiration for said in got] == [None, None]


def test_ttl_0_is_for_a_waiting_consumer() -> None:
    _, client = world_with(x_message_ttl=0)
    client.publish("", "q", b"nobody waits")
    assert client.ask(m.BasicGet(queue="q")) == m.BasicGetEmpty()
    client.consume("q")
    assert bodies(client.publish("", "q", b"waited for")) == [b"waited for"]


@pytest.mark.parametrize(("late_ms", "handed_out"), [(1, True), (400, True), (5000, False)])
def test_ttl_0_is_for_a_waiting_consumer_of_a_busy_node(late_ms: int, handed_out: bool) -> None:
    """The turn that hands a message out comes some ms after it; but what has stood still for seconds is late."""
    world, client = world_with(x_message_ttl=0)
    client.consume("q")
    client.raw(client.content("", "q", b"waited for"))
    world.now_ms += late_ms
    world.turn()
    assert bodies(client.hear()) == [b"waited for"] * handed_out


def test_the_dead_of_a_queue_without_consumers_rise_after_a_restart_too() -> None:
    """Only the content tells of a TTL of the message's own, and nobody asked for it: they stayed for ever."""
    world, client = world_with(**DYING)
    client.publish("", "q", *[b"%d" % n for n in range(5)], expiration="1000")
    world.crash()
    world.wait(1100)
    assert ready(world, "q", "dead") == [0, 5]


def test_only_the_head_is_read_when_nobody_waits() -> None:
    world, client = world_with()
    client.publish("", "q", *[b"%d" % n for n in range(5)])
    world.crash()
    world.turn()
    assert world.queue("q").ring.resident_bytes > 0
    assert len(world.queue("q").ring.missing()) == 4


def test_a_queue_that_is_not_used_expires() -> None:
    world, client = world_with(x_expires=1000)
    world.wait(900)
    client.say(m.BasicGet(queue="q"))
    world.wait(900)
    client.ask(m.QueueDeclare(queue="q", passive=True))
    world.wait(900)
    client.consume("q")
    world.wait(5000)
    client.say(m.BasicCancel("ctag"))
    world.wait(900)
    assert "q" in world.node.vhosts["/"].queues
    world.wait(200)
    assert "q" not in world.node.vhosts["/"].queues


# -- returning


def test_the_delivery_limit() -> None:
    _, client = world_with(x_delivery_limit=2, **DYING)
    client.publish("", "q", b"1")
    client.consume("q")
    for tag in (1, 2):
        (again,) = client.say(m.BasicReject(tag, True))
        assert again.properties.headers["x-delivery-count"] == tag
    assert client.say(m.BasicNack(3, False, True))[0].body == b"1", "a nack does not count"
    assert client.say(m.BasicReject(4, True)) == []
    (got,) = client.consume("dead", tag="dead")
    assert deaths(got) == [("q", "delivery_limit", 1)]


def test_the_delivery_count_survives_a_crash() -> None:
    world, client = world_with(x_delivery_limit=5)
    client.publish("", "q", b"1")
    client.consume("q")
    client.say(m.BasicReject(1, True))
    for checkpoint in (False, True):
        if checkpoint:
            world.checkpoint()
        world.crash()
        client = world.client()
        (again,) = client.consume("q")
        assert (again.method.redelivered, again.properties.headers["x-delivery-count"]) == (True, 1)


def test_delayed_retries() -> None:
    world, client = world_with(
        x_queue_type="quorum", x_delayed_retry_type="failed", x_delayed_retry_min=1000, x_delayed_retry_max=1500
    )
    client.publish("", "q", b"1")
    client.consume("q")
    assert bodies(client.say(m.BasicNack(1, False, True))) == [b"1"], "returned, not failed"
    assert client.say(m.BasicReject(2, True)) == []
    world.wait(999)
    assert client.hear() == []
    world.wait(2)
    (again,) = client.hear()
    assert again.properties.headers["x-delivery-count"] == 1
    client.say(m.BasicReject(3, True))
    world.wait(1499)
    assert client.hear() == []
    world.wait(2)
    assert bodies(client.hear()) == [b"1"]


def test_a_rejected_message_that_is_on_disk_only() -> None:
    world, client = world_with(**DYING)
    world.queue("q").ring.resident_bytes_max = 0
    client.publish("", "q", b"1", b"2")
    world.crash()
    world.queue("q").ring.resident_bytes_max = 0
    world.reads_wait = False
    client = world.client()
    client.consume("q")
    client.say(m.BasicReject(1, False))
    world.turn()
    assert ready(world, "dead") == [1]


# -- the dead


def test_a_death_is_durable_on_both_sides_or_on_none() -> None:
    for survives in (0, 1):
        world, client = world_with(**DYING)
        client.publish("", "q", b"1")
        client.consume("q")
        world.disk_waits = True
        client.say(m.BasicReject(1, False))
        world.crash(survives)
        assert ready(world, "q", "dead") == [1 - survives, survives]


def test_an_unwritten_death_confirms_with_the_group_of_its_other_half() -> None:
    world, client = world_with(x_max_length=0, **DYING)
    client.declare("busy")
    client.ask(m.ConfirmSelect())
    world.disk_waits = True
    client.publish("", "busy", b"keeps the disk at work")
    client.publish("", "q", b"dies at once")
    world.commit()
    assert client.hear() == [m.BasicAck(1, True)]
    world.commit()
    assert client.hear() == [m.BasicAck(2, True)]
    world.crash()
    assert ready(world, "q", "dead") == [0, 1]


def test_cycles_are_cut_unless_a_client_rejected() -> None:
    world = World()
    client = world.client()
    client.declare("a", x_message_ttl=10, x_dead_letter_exchange="", x_dead_letter_routing_key="b")
    client.declare("b", x_message_ttl=10, x_dead_letter_exchange="", x_dead_letter_routing_key="a")
    client.publish("", "a", b"1")
    world.wait(1000)
    assert ready(world, "a", "b") == [0, 0]


def test_a_message_that_is_trimmed_while_it_is_being_read() -> None:
    """The answer of the read ahead was taken for that of the dead one: KeyError, and the node ended."""
    world, client = world_with(x_max_length=4, **DYING)
    client.publish("", "q", *b"1 2 3 4".split())
    world.reads_wait = True
    world.crash()
    client = world.client(channels=2)
    client.consume("q")
    client.publish("", "q", b"5", b"6", channel=2)
    assert len(world.loads) >= 3, "one for the consumer, one for each of the dead"
    world.reads_wait = False
    world.turn()
    assert sorted(bodies(client.hear())) == [b"3", b"4", b"5", b"6"]
    assert sorted(bodies(client.consume("dead", tag="dead", channel=2))) == [b"1", b"2"]


def test_what_stands_behind_a_message_that_is_got_expires_in_time() -> None:
    world, client = world_with(**DYING)
    client.publish("", "q", b"1")
    client.publish("", "q", b"2", expiration="1000")
    assert bodies(client.say(m.BasicGet(queue="q"))) == [b"1"]
    world.wait(1500)
    assert ready(world, "dead") == [1]


@pytest.mark.long
def test_a_chain_of_full_queues_does_not_nest() -> None:
    """Each refusal killed the next message within the last: a long chain exhausted the stack."""
    world = World(journaled=False)
    client = world.client()
    for number in range(400):
        client.declare(
            f"q{number}", x_max_length=0, x_overflow="reject-publish-dlx", x_dead_letter_exchange="",
            x_dead_letter_routing_key=f"q{number + 1}",
        )  # fmt: skip
    client.declare("q400")
    client.declare("timer", x_message_ttl=10, x_dead_letter_exchange="", x_dead_letter_routing_key="q0")
    client.publish("", "timer", b"1")
    world.wait(100)
    assert ready(world, "q400") == [1]


# -- deletion


def test_what_returns_to_a_deleted_queue_is_passed_over() -> None:
    world, client = world_with()
    other = world.client()
    client.publish("", "q", b"1", b"2", b"3")
    client.consume("q")
    other.say(m.QueueDelete(queue="q"))
    client.say(m.BasicNack(1, False, True), m.BasicReject(2, False), m.BasicAck(3))
    client.say(m.ChannelClose())
    assert not world.node.busy


def test_a_deleted_queue_does_not_come_back() -> None:
    world, client = world_with()
    client.publish("", "q", b"1")
    world.checkpoint()
    client.say(m.QueueDelete(queue="q"))
    client.declare("q")
    world.crash()
    assert ready(world, "q") == [0]
    world.checkpoint()
    assert {queue_id for queue_id, _ in world.journal.runs} <= set(world.node.queues)


@pytest.mark.parametrize("kept", [0, 1])
def test_a_queue_deleted_while_its_group_is_under_way(kept: int) -> None:
    world, client = world_with()
    other = world.client()
    client.ask(m.ConfirmSelect())
    world.disk_waits = True
    client.publish("", "q", b"1")
    other.say(m.QueueDelete(queue="q"))
    assert client.hear() == [m.BasicAck(1, True)]
    world.crash(kept)
    assert "q" not in world.node.vhosts["/"].queues
