"""Requests of later that are cancelled: their callers are answered, once, and they never come."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.node.inspecting import Inspection
from clusterbroker.broker.stats.inspection import Request
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import Client, Content, World, bodies
from tests.unit.broker.node.node_cluster import Cluster, Site

WAITS = "amq.delay.core-delayed"
LATER_MS = 20_000
ROUNDS = 8


def cancel(site: World | Site, *seqs: int) -> Inspection:
    entity = site.map.queue("/", WAITS) if isinstance(site, Site) else site.queue(WAITS).entity
    assert entity is not None
    queue = site.node.queues[entity.queue_id]
    request = Request("delete", queue.entity.queue_id, seqs=seqs or None)
    inspection = Inspection(site.node, queue, request, 1 << 60)
    while inspection.step(site.now_ms):
        pass
    return inspection


def put_off(client: Client, *ids: str, exchange: str = "core-delayed", **about: Any) -> None:
    for each in ids:
        client.publish(
            exchange,
            "42",
            each.encode(),
            headers={"x-delay": LATER_MS},
            correlation_id=each,
            reply_to="answers",
            **about,
        )


def said(heard: list[Any]) -> list[tuple[str | None, bytes]]:
    answers = [one for one in heard if isinstance(one, Content)]
    return [(one.properties.correlation_id, (one.properties.headers or {})["x-status"]) for one in answers]


@pytest.fixture
def world() -> World:
    made = World()
    made.command(c.DeclarePool(vhost="/", name="core"))
    made.turn()
    made.client().declare("answers")
    return made


def test_who_is_cancelled_is_answered_and_others_wait_on(world: World) -> None:
    client = world.client()
    put_off(client, "1", "2", "3", delivery_mode=2)
    assert cancel(world, 2).result.done == 1
    world.turn()
    assert said(client.consume("answers", no_ack=True)) == [("2", b"cancelled")]
    world.wait(LATER_MS + 100)
    assert bodies(world.client().consume("core-req-42")) == [b"1", b"3"]
    assert world.queue(WAITS).ready == 0


def test_one_that_stands_on_the_disk_alone(world: World) -> None:
    client = world.client()
    client.ask(m.ConfirmSelect())
    put_off(client, "1", "2", delivery_mode=2)
    world.crash()
    world.turn()
    assert cancel(world, 1).result.done == 1
    world.turn()
    assert said(world.client().consume("answers")) == [("1", b"cancelled")]
    world.wait(LATER_MS + 100)
    assert bodies(world.client().consume("core-req-42")) == [b"2"]


def test_a_node_that_ends_meanwhile_answers_when_it_is_back(world: World) -> None:
    client = world.client()
    client.ask(m.ConfirmSelect())
    put_off(client, "1", delivery_mode=2)
    world.disk_waits = True
    cancel(world)
    world.turn()
    world.commit()  # it is cancelled, and nothing of its answer is written
    world.crash()
    world.disk_waits = False
    world.wait(100)
    assert said(world.client().consume("answers")) == [("1", b"cancelled")]
    world.wait(LATER_MS + 100)
    assert "core-req-42" not in world.node.vhosts["/"].queues


def test_an_answer_that_finds_no_way_is_tried_again_though_nothing_waits(world: World) -> None:
    put_off(world.client(), "1", delivery_mode=2)
    router = world.node.vhosts["/"].router
    bindings = router.remove_queue("core-dl")
    cancel(world)
    world.wait(LATER_MS + 2000)
    assert world.queue(WAITS).ring.dead()
    router.add_queue("core-dl")
    for binding in bindings:
        router.bind(binding)
    world.wait(20_000)
    assert said(world.client().consume("answers", no_ack=True)) == [("1", b"cancelled")]


def test_another_delayed_exchange_answers_nobody(world: World) -> None:
    client = world.client()
    client.ask(m.ExchangeDeclare(0, "later", "x-delayed-message", arguments={"x-delayed-type": "fanout"}))
    put_off(client, "1", exchange="later")
    queue = world.queue("amq.delay.later")
    inspection = Inspection(world.node, queue, Request("delete", queue.entity.queue_id), 1 << 60)
    while inspection.step(world.now_ms):
        pass
    world.turn()
    assert (queue.ring.ready, said(client.consume("answers"))) == (0, [])


@pytest.mark.parametrize("rounds", range(ROUNDS))
def test_the_next_owner_goes_on_at_any_step(rounds: int) -> None:
    cluster = Cluster("a", "b", "c")
    cluster.order(c.DeclarePool(vhost="/", name="core"))
    cluster.wait(200)
    owner = cluster.queue(WAITS).owner
    client = next(site for site in cluster.running if site.name != owner).client()
    client.declare("answers")
    client.ask(m.ConfirmSelect())
    put_off(client, "1", "2")
    cluster.wait(200)
    cancel(cluster[owner], 1)
    cluster.begin(rounds)
    cluster.kill(owner)
    cluster.wait(LATER_MS + 5000, step_ms=200)
    heard = client.consume("answers", no_ack=True)
    cluster.wait(500)
    answered = said(heard + client.hear())
    worker = next(site for site in cluster.running if site.name != owner).client()
    heard = worker.consume("core-req-42")
    cluster.wait(500)
    came = bodies(heard + worker.hear())
    assert (answered, came) in (([("1", b"cancelled")], [b"2"]), ([], [b"1", b"2"])), "one or the other"
    assert answered or rounds < ROUNDS - 1
