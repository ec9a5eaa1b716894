"""What a node does for a binding to an exchange that keeps its last messages: a bounded part in each turn."""

from __future__ import annotations

import pytest

from clusterbroker.broker.node import histories
from clusterbroker.broker.node.histories import PATIENCE_MS
from clusterbroker.broker.wire.amqp091 import methods as m
from tests.unit.broker.fronts.amqp091.harness import Client, World

KEPT = 100


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> Client:
    client = world.client()
    arguments = {"x-recent-history-length": KEPT}
    client.say(m.ExchangeDeclare(exchange="h", type="x-recent-history", arguments=arguments))
    client.publish("h", "k", *[b"%d" % number for number in range(KEPT)])
    return client


def test_many_queues_get_it_in_many_turns(world: World, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "DELIVERIES_AT_ONCE", 400 * histories.SINGLE)
    client.say(m.ExchangeDeclare(exchange="f", type="fanout"))
    names = [f"q{number}" for number in range(30)]
    for name in names:
        client.declare(name)
        client.say(m.QueueBind(queue=name, exchange="f"))
    turn, came = world._turn, []

    def counted() -> None:
        before = sum(world.queue(name).ready for name in names)
        turn()
        came.append(sum(world.queue(name).ready for name in names) - before)

    monkeypatch.setattr(world, "_turn", counted)
    assert client.say(m.ExchangeBind(destination="f", source="h")) == [m.ExchangeBindOk()]
    assert sum(came) == KEPT * len(names)
    assert max(came) <= 2 * 400, "what `soon` brings, and what the history's queue answers"


def congested(world: World, client: Client) -> None:
    client.declare("q")
    world.node.congested = {world.queue("q"): None}
    assert client.say(m.QueueBind(queue="q", exchange="h")) == []
    assert world.queue("q").ready == 0


def test_a_congested_queue_gets_it_when_it_has_room(world: World, client: Client) -> None:
    congested(world, client)
    world.node.congested = {}
    world.wait(histories.LOOK_MS)
    assert client.hear() == [m.QueueBindOk()]
    assert world.queue("q").ready == KEPT


def test_after_the_answer_nothing_more_comes(world: World, client: Client) -> None:
    congested(world, client)
    world.wait(PATIENCE_MS)
    assert client.hear() == [m.QueueBindOk()]
    world.node.congested = {}
    world.wait(PATIENCE_MS)
    assert world.queue("q").ready == 0


def test_a_binding_that_is_gone_gets_nothing_more(world: World, client: Client) -> None:
    congested(world, client)
    other = world.client()
    assert other.say(m.QueueUnbind(queue="q", exchange="h")) == [m.QueueUnbindOk()]
    world.node.congested = {}
    world.wait(histories.LOOK_MS)
    assert client.hear() == [m.QueueBindOk()]
    assert world.queue("q").ready == 0
