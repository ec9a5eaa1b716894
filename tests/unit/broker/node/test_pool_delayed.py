"""Requests of later that are cancelled: their callers are answered, once, and they never come."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.node.inspecting import Inspection
from clusterbroker.broker.stats.inspection import Request
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.ids import Incarnation, NodeId
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


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("rounds", range(2, 16))
def test_a_request_that_was_due_when_its_owner_died_is_done_or_answered_once(rounds: int, ends: bool) -> None:
    """Its key has no group at first, and its queue is bound when the next owner sends it again. `ends`: by then the
    pool is deleted."""
    cluster = Cluster("a", "b", "c")
    cluster.order(c.DeclarePool(vhost="/", name="core"))
    cluster.wait(200)
    owner = cluster.queue(WAITS).owner
    assert owner not in (cluster.queue("core-orphan").owner, cluster.queue("core-dl").owner), "they outlive it"
    client = next(site for site in cluster.running if site.name != owner).client()
    client.declare("answers")
    client.ask(m.ConfirmSelect())
    put_off(client, "1", "2")
    cluster.wait(LATER_MS - 300)
    cluster.begin(rounds, time_ms=300)
    cluster.kill(owner, failed=False)
    if ends:
        cluster.order(c.DeletePool(at_ms=0, vhost="/", name="core", force=True, delayed=True))
    cluster.wait(1000)  # what has come to the orphans goes its way, before another node owns the queue
    cluster.order(c.FailNode(node=NodeId(owner), incarnation=Incarnation(cluster[owner].incarnation)))
    cluster.wait(5000)
    heard = client.consume("answers", no_ack=True)
    worker = next(site for site in cluster.running if site.name != owner).client()
    done = [] if ends else bodies(worker.consume("core-req-42"))
    cluster.wait(20_000, step_ms=200)
    done += bodies(worker.hear())
    assert sorted(done + [one.encode() for one, _ in said(heard + client.hear()) if one]) == [b"1", b"2"]
    assert ends == (cluster.running[0].map.queue("/", "core-orphan") is None)


def test_a_pool_that_is_deleted_answers_though_its_queues_are_paused(world: World) -> None:
    put_off(world.client(), "1", delivery_mode=2)
    for name in ("core-dl", "core-orphan"):
        world.command(c.PauseQueue(vhost="/", name=name))
    world.client().publish("core", "42", b"2", correlation_id="2", reply_to="answers")
    world.command(c.DeletePool(at_ms=world.now_ms, vhost="/", name="core", force=True, delayed=True))
    world.wait(5000)
    heard = said(world.client().consume("answers", no_ack=True))
    assert sorted(heard) == [("1", b"pool_deleted"), ("2", b"pool_deleted")]
    assert not world.node.map.pools.all()


def test_orphans_end_behind_the_requests_of_later_which_may_have_come_to_them(world: World) -> None:
    put_off(world.client(), "1", delivery_mode=2)
    later = world.queue(WAITS)
    later.paused = True  # as a new owner is that does not know yet what the others hold
    world.command(c.DeletePool(at_ms=world.now_ms, vhost="/", name="core", force=True, delayed=True))
    world.wait(5000)
    assert {"core-orphan", "core-dl", WAITS} <= set(world.node.vhosts["/"].queues)
    later.paused = False
    later.ring.mark()
    world.wait(5000)
    assert set(world.node.vhosts["/"].queues) == {"answers"}


def test_a_request_for_several_keys_becomes_one_for_each_when_it_is_due(world: World) -> None:
    """Of a publisher none is taken; another queue's dead letter may be one."""
    client = world.client()
    client.declare("dying", x_message_ttl=1, x_dead_letter_exchange="core-delayed")
    client.ask(m.QueueBind(0, "dying", "amq.direct", "42"))
    about = {"x-delay": LATER_MS, "CC": ["43", "42"], "x-delay-key": "k"}
    client.publish("amq.direct", "42", b"1", headers=about)
    world.wait(LATER_MS + 1000)
    for key in ("42", "43"):
        heard = world.client().consume(f"core-req-{key}")
        assert bodies(heard) == [b"1"]
        (came,) = (one for one in heard if isinstance(one, Content))
        assert "x-delay-key" not in (came.properties.headers or {}), "another owner takes it for none of the same"
    assert world.queue(WAITS).ring.ready == 0


@pytest.mark.parametrize("exchange", ["core-delayed", "later"])
def test_a_publisher_does_not_say_which_queues_get_it(world: World, exchange: str) -> None:
    client = world.client()
    client.ask(m.ExchangeDeclare(0, "later", "x-delayed-message", arguments={"x-delayed-type": "fanout"}))
    client.ask(m.QueueBind(0, "answers", "later", ""))
    client.publish(exchange, "42", b"1", headers={"x-delay": LATER_MS, "x-delay-to": ["nobody"]})
    world.wait(LATER_MS + 1000)
    assert bodies(world.client().consume("core-req-42" if exchange == "core-delayed" else "answers")) == [b"1"]
