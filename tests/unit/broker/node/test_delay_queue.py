"""Delay queues at one node whose clock the test moves: order, restarts, jumps of the clock, very many at once."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.delay.delay_queue import BATCH, HELD_MAX, DelayQueue
from clusterbroker.broker.node import inspecting
from clusterbroker.broker.node.inspecting import Inspection
from clusterbroker.broker.stats.inspection import Request
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring.commands import PauseQueue, PutPolicy
from tests.unit.broker.fronts.amqp091.harness import Client, World, bodies

NAME = "amq.delay.later"
HOUR_MS = 3_600_000


def wire(client: Client, exchange: str = "later", **arguments: Any) -> None:
    client.ask(
        m.ExchangeDeclare(
            0, exchange, "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct", **arguments}
        )
    )
    client.declare("q")
    client.ask(m.QueueBind(0, "q", exchange, "k"))


def confirming(world: World) -> Client:
    """Its publishes are durable when the node stands still."""
    client = world.client()
    client.ask(m.ConfirmSelect())
    return client


def publish(client: Client, body: bytes, **headers: Any) -> None:
    client.publish("later", "k", body, headers={name.replace("_", "-"): value for name, value in headers.items()})


@pytest.fixture
def world() -> World:
    made = World()
    wire(made.client())
    return made


def delaying(world: World) -> DelayQueue:
    queue = world.queue(NAME)
    assert isinstance(queue, DelayQueue)
    return queue


def test_nothing_comes_before_its_time_and_all_comes_then(world: World) -> None:
    client = world.client()
    client.consume("q", no_ack=True)
    for body, delay in ((b"2", 2000), (b"1", 1000), (b"3", 3000)):
        publish(client, body, x_delay=delay)
    world.wait(999)
    assert bodies(client.hear()) == []
    world.wait(2)
    assert bodies(client.hear()) == [b"1"]
    world.wait(5000)
    assert bodies(client.hear()) == [b"2", b"3"]
    assert delaying(world).ring.ready == 0


def test_a_restart_finds_what_waits_on_the_disk(world: World) -> None:
    client = confirming(world)
    for body, delay in ((b"2", 2000), (b"1", 1000)):
        publish(client, body, x_delay=delay, x_delay_key=body.decode())
    world.checkpoint()
    publish(client, b"3", x_delay=3000, x_delay_key="3")
    world.crash()
    client = world.client()
    client.consume("q", no_ack=True)
    assert delaying(world).is_read
    assert delaying(world).under("1") == [2]
    world.wait(2500)
    assert bodies(client.hear()) == [b"1", b"2"]
    publish(client, b"new", x_delay=3000, x_delay_key="3")
    world.wait(5000)
    assert bodies(client.hear()) == [b"new"]


def test_what_was_missed_comes_at_once_in_order(world: World) -> None:
    client = confirming(world)
    for body, delay in ((b"2", 2000), (b"1", 1000)):
        publish(client, body, x_delay=delay)
    world.crash()
    world.now_ms += HOUR_MS
    client = world.client()
    world.turn()
    assert bodies(client.consume("q", no_ack=True)) == [b"1", b"2"]


@pytest.mark.parametrize("groups", [0, 1, 2, 3])
def test_what_is_on_its_way_when_the_node_dies_comes_once(world: World, groups: int) -> None:
    """Killed at each of the groups in which it leaves."""
    client = confirming(world)
    publish(client, b"x", x_delay=1000)
    world.now_ms += 1000
    world.disk_waits = True
    world.turn()
    for _ in range(groups):
        if world.group is not None:
            world.commit()
    world.disk_waits = False
    world.crash()
    client = world.client()
    heard = bodies(client.consume("q"))
    world.wait(5000)
    assert heard + bodies(client.hear()) == [b"x"]


@pytest.mark.parametrize("groups", [0, 1, 2, 3])
def test_several_that_go_together_come_once_each_when_the_node_dies(world: World, groups: int) -> None:
    """As one letter, which a new owner finds as many; another address ends it."""
    client = confirming(world)
    client.ask(m.QueueBind(0, "q", "later", "other"))
    numbers = [b"%d" % number for number in range(70)]
    for number in numbers:
        client.publish("later", "other" if number == b"40" else "k", number, headers={"x-delay": 1000})
    world.now_ms += 1000
    world.disk_waits = True
    world.turn()
    for _ in range(groups):
        if world.group is not None:
            world.commit()
    world.disk_waits = False
    world.crash()
    client = world.client()
    heard = bodies(client.consume("q"))
    world.wait(5000)
    assert heard + bodies(client.hear()) == numbers


@pytest.mark.parametrize("room", [0, 2])
def test_what_was_held_together_is_refused_one_by_one(world: World, room: int) -> None:
    """The queue gets a length after they are held, and before they are published."""
    client = world.client()
    numbers = [b"%d" % number for number in range(5)]
    client.publish("later", "k", *numbers, headers={"x-delay": 1000})
    world.now_ms += 1000
    world.disk_waits = True
    world.turn()
    assert delaying(world).ring.dead()
    limits = {"max-length": max(room, 1), "overflow": "reject-publish"}
    world.command(PutPolicy(vhost="/", name="p", pattern="^q$", definition=limits, apply_to="queues"))
    if not room:
        client.publish("", "q", b"first")
    world.disk_waits = False
    world.wait(100)
    there = [b"first"] if not room else numbers[:room]
    consumer = world.client()
    consumer.ask(m.BasicQos(0, 0))
    heard = bodies(consumer.consume("q", no_ack=True))
    assert heard == there
    world.wait(130_000)
    assert heard + bodies(consumer.hear()) == [*there, *numbers[room:]]
    assert delaying(world).ring.ready == len(delaying(world).letters or ()) == 0


def test_a_clock_that_jumps_forward_fires_early_and_back_late(world: World) -> None:
    client = world.client()
    client.consume("q", no_ack=True)
    publish(client, b"1", x_delay=HOUR_MS)
    world.now_ms += HOUR_MS
    world.wait(1)
    assert bodies(client.hear()) == [b"1"]
    publish(client, b"2", x_delay=1000)
    world.now_ms -= HOUR_MS
    publish(client, b"3", x_delay=1000)
    world.wait(1500)
    assert bodies(client.hear()) == [b"3"], "by the clock of now"
    world.wait(HOUR_MS)
    assert bodies(client.hear()) == [b"2"]


def test_it_looks_at_the_clock_each_second_while_something_waits(world: World) -> None:
    publish(world.client(), b"x", x_delay=HOUR_MS)
    world.turn()
    wake_ms = world.node.next_wake_ms
    assert wake_ms is not None
    assert wake_ms <= world.now_ms + 1000


def test_a_queue_at_rest_does_nothing(world: World) -> None:
    client = world.client()
    client.consume("q", no_ack=True)
    publish(client, b"x", x_delay=10)
    world.wait(100)
    assert bodies(client.hear()) == [b"x"]
    assert delaying(world).wake_ms <= world.now_ms + 1000
    world.wait(3000)
    assert world.node.next_wake_ms is None


@pytest.mark.long
def test_very_many_at_once_do_not_stand_in_memory(world: World) -> None:
    client, many = world.client(), 5 * HELD_MAX
    numbers = [b"%d" % number for number in range(many)]
    for number in numbers:
        client.publish("later", "k", number, headers={"x-delay": 1000})
    queue = delaying(world)
    world.now_ms += 1000
    world.disk_waits = True
    world.turn()
    letters = queue.letters
    assert letters is not None
    assert 0 < len(letters) < HELD_MAX + BATCH
    world.disk_waits = False
    world.wait(5000)
    assert queue.ring.ready == 0
    assert bodies(client.consume("q", no_ack=True)) == numbers


def test_rows_of_what_was_cancelled_are_void(world: World) -> None:
    client = world.client()
    client.consume("q", no_ack=True)
    for body in (b"1", b"2", b"3"):
        publish(client, body, x_delay=1000)
    queue = delaying(world)
    assert queue.ring.set_aside(2)
    queue.ring.settle(2)
    world.wait(3000)
    assert bodies(client.hear()) == [b"1", b"3"]


def test_a_paused_queue_holds_what_is_due(world: World) -> None:
    client = world.client()
    client.consume("q", no_ack=True)
    world.command(PauseQueue(vhost="/", name=NAME))
    publish(client, b"x", x_delay=1000)
    world.wait(3000)
    assert bodies(client.hear()) == []
    world.command(PauseQueue(vhost="/", name=NAME, paused=False))
    world.wait(10)
    assert bodies(client.hear()) == [b"x"]


def test_a_queue_in_memory_delays_too() -> None:
    world = World(journaled=False)
    client = world.client()
    wire(client)
    client.consume("q", no_ack=True)
    publish(client, b"x", x_delay=1000)
    world.wait(999)
    assert bodies(client.hear()) == []
    world.wait(10)
    assert bodies(client.hear()) == [b"x"]


def test_a_request_of_delays_to_another_queue_finds_nothing(world: World) -> None:
    client = world.client()
    client.publish("", "q", b"x")
    queue = world.queue("q")
    inspection = Inspection(world.node, queue, Request(what="delayed", queue_id=queue.entity.queue_id), 10**15)
    while inspection.step(world.now_ms):
        pass
    assert inspection.result.shown == ()


def test_what_waits_is_listed_in_portions_by_due_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspecting, "LISTED", 7)
    client = world.client()
    delays = [(number * 7 % 25) // 3 if number < 25 else 4 for number in range(40)]  # more at one time than a portion
    for number, delay in enumerate(delays):
        publish(client, b"%d" % number, x_delay=HOUR_MS + 1000 * delay)
    expected = [b"%d" % number for number in sorted(range(40), key=lambda number: (delays[number], number))]
    at_ms = world.node.now_ms + HOUR_MS

    def look(**asked: Any) -> tuple[list[bytes], int]:
        queue = delaying(world)
        request = Request(what="delayed", queue_id=queue.entity.queue_id, **asked)
        inspection = Inspection(world.node, queue, request, 10**15)
        while inspection.step(world.now_ms):
            pass
        assert inspection.over
        return [bytes(shown.payload) for shown in inspection.result.shown], inspection.result.next

    assert look() == (expected, 0)
    for count in (1, 7, 8, 39):
        found, following = look(count=count)
        assert (found, bool(following)) == (expected[:count], True)
    some = [body for body in expected if 1 < delays[int(body)] <= 4]
    assert look(due_from_ms=at_ms + 2000, due_to_ms=at_ms + 4000) == (some, 0)
    assert look(filter='payload="39"') == ([b"39"], 0)


def test_a_delay_of_any_size_beside_a_time_stops_nothing(world: World) -> None:
    client = world.client()
    at_ms = world.node.now_ms + 1000
    for delay in ("99999999999999999999", 1e300):
        publish(client, b"odd", x_deliver_at=at_ms, x_delay=delay)
    publish(client, b"good", x_delay=1000)
    world.wait(2000)
    consumer = world.client()
    assert sorted(bodies(consumer.consume("q"))) == [b"good", b"odd", b"odd"]


def test_blind_copies_are_told_to_nobody(world: World) -> None:
    client = world.client()
    client.declare("copy")
    client.ask(m.QueueBind(0, "copy", "later", "copy"))
    publish(client, b"x", x_delay=1000, BCC=["copy"])
    world.wait(2000)
    for queue in ("q", "copy"):
        [heard] = world.client().consume(queue)
        assert heard.body == b"x"
        assert "BCC" not in (heard.properties.headers or {})
