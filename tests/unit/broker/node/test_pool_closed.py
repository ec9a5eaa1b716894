"""Ways into a worker pool that are no requests, or come as it ends: they are refused, and nothing is answered twice."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.ids import Incarnation, NodeId
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import Client, Content, World, bodies
from tests.unit.broker.node.node_cluster import Cluster
from tests.unit.broker.node.test_pool_delayed import LATER_MS, WAITS, said

REPLY_TO = "amq.rabbitmq.reply-to"


@pytest.fixture
def world() -> World:
    made = World()
    made.command(c.DeclarePool(vhost="/", name="core"))
    made.turn()
    made.client().declare("answers")
    return made


def closes(client: Client, code: int, heard: list[Any]) -> str:
    (close,) = (one for one in heard + client.hear() if isinstance(one, m.ChannelClose))
    assert close.reply_code == code
    return close.reply_text


@pytest.mark.parametrize("queue", ["core-req-42", "core-orphan", "core-dl", "core-poison", "core-activity", WAITS])
def test_nobody_leases_a_queue_of_a_pool(world: World, queue: str) -> None:
    caller, reader = world.client(), world.client()
    caller.publish("core", "42", b"1", reply_to="answers", correlation_id="1", delivery_mode=2)
    reader.say(m.BasicConsume(0, REPLY_TO, "r", no_ack=True))
    heard = reader.publish(
        "amq.lease", "take", json.dumps({"queue": queue, "name": "n", "run": "r"}).encode(), reply_to=REPLY_TO
    )
    world.wait(100)
    heard += reader.hear()
    refused = [json.loads(one.body) for one in heard if isinstance(one, Content)]
    if queue == WAITS:
        assert [one["code"] for one in refused] == [403]
    else:
        assert "pool 'core'" in closes(reader, 403, heard)
    assert bodies(world.client().consume("core-req-42")) == [b"1"]


@pytest.mark.parametrize("key", ["42", "new"])
@pytest.mark.parametrize(
    ("exchange", "about"),
    [("core", {}), ("core-delayed", {}), ("core-delayed", {"x-delay": 1000}), ("core-orphan-xchg", {}), ("", {})],
)
@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_a_request_has_one_key(world: World, exchange: str, about: dict[str, Any], key: str, header: str) -> None:
    world.client().publish("core", "42", b"warm")
    client = world.client()
    address = "core-req-42" if not exchange else key
    heard = client.publish(exchange, address, b"1", headers={header: ["43"], **about}, reply_to="answers")
    assert "one key" in closes(client, 406, heard)


def test_an_alternate_exchange_leads_to_no_answers(world: World) -> None:
    client = world.client()
    client.ask(m.ExchangeDeclare(0, "own", "direct", arguments={"alternate-exchange": "core-dl-xchg"}))
    heard = client.publish("own", "42", b"forged", reply_to="answers", headers={"x-last-death-reason": "expired"})
    assert "pool 'core'" in closes(client, 403, heard)
    world.wait(1000)
    assert said(world.client().consume("answers", no_ack=True)) == []


@pytest.mark.parametrize("exchange", ["core-orphan-xchg", "core"])
def test_what_comes_as_the_orphans_end_is_refused(world: World, exchange: str) -> None:
    """Their end is in the log by then: who were confirmed now would never hear."""
    client = world.client()
    client.ask(m.ConfirmSelect())
    orphans = world.queue("core-orphan").entity.queue_id
    world.wiring_waits = True
    world.wiring.propose(c.DeletePool(at_ms=world.now_ms, vhost="/", name="core", force=True, delayed=True))
    for _ in range(20):
        world.turn()
        ordered = [one for one, *_ in world.node.proposals if isinstance(one, c.EndPoolQueue)]
        if any(one.queue_id == orphans for one in ordered):
            break
        world.answer_proposals()
    else:
        raise AssertionError("they end")
    heard = client.publish(exchange, "42", b"1", reply_to="answers", correlation_id="1", delivery_mode=2)
    world.wiring_waits = False
    world.wait(5000)
    if exchange == "core":  # is gone
        closes(client, 404, heard)
    else:
        assert [type(one) for one in heard + client.hear()] == [m.BasicNack]
    assert not world.node.map.pools.all()


@pytest.mark.parametrize("rounds", range(1, 24))
def test_what_comes_from_another_node_as_the_orphans_end_is_refused_or_answered(rounds: int) -> None:
    cluster = Cluster("a", "b", "c")
    cluster.order(c.DeclarePool(vhost="/", name="core"))
    cluster.wait(200)
    owner = cluster.queue("core-orphan").owner
    client = next(site for site in cluster.running if site.name != owner).client()
    client.declare("answers")
    client.ask(m.ConfirmSelect())
    cluster.begin(rounds, c.DeletePool(at_ms=0, vhost="/", name="core", force=True, delayed=True))
    cluster._working = True
    try:
        heard = client.publish("core-orphan-xchg", "42", b"1", reply_to="answers", correlation_id="1", delivery_mode=2)
    finally:
        cluster._working = False
    cluster.wait(5000)
    heard += client.hear()
    answers = said(cluster.running[0].client().consume("answers", no_ack=True))
    confirmed = any(isinstance(one, m.BasicAck) for one in heard)
    assert answers == ([("1", b"pool_deleted")] if confirmed else [])


def test_a_request_of_later_takes_the_place_of_one_of_its_own_key_alone(world: World) -> None:
    client = world.client()
    for number, key in (("1", "42"), ("2", "43"), ("3", "42")):
        client.publish(
            "core-delayed", key, number.encode(), headers={"x-delay": LATER_MS, "x-delay-key": "k"},
            correlation_id=number, reply_to="answers", delivery_mode=2,
        )  # fmt: skip
    world.turn()
    reader = world.client()
    assert said(reader.consume("answers", no_ack=True)) == [("1", b"cancelled")], "its caller hears of it"
    world.crash()
    world.wait(LATER_MS + 1000)
    assert bodies(world.client().consume("core-req-42")) == [b"3"]
    assert bodies(world.client().consume("core-req-43")) == [b"2"]


@pytest.mark.parametrize("fault", ["none", "reset", "death", "known death"])
@pytest.mark.parametrize("rounds", range(1, 12))
def test_a_pool_that_is_deleted_as_a_request_is_due_answers_it_once(rounds: int, fault: str) -> None:
    """The queue of its key closes as it comes there, on another node than that where it waited."""
    cluster = Cluster("a", "b", "c")
    cluster.order(c.DeclarePool(vhost="/", name="core"))
    cluster.wait(200)
    owner = cluster.queue(WAITS).owner
    client = cluster[owner].client()
    client.declare("answers")
    client.ask(m.ConfirmSelect())
    for key in (f"k{number}" for number in range(20)):
        cluster.order(c.DirectGroup(vhost="/", name="core", key=key, word="pin"))
        cluster.wait(300)
        at = cluster.queue(f"core-req-{key}").owner
        if at != owner:
            break
    about: dict[str, Any] = {"headers": {"x-delay": 5000}, "reply_to": "answers", "correlation_id": "1"}
    client.publish("core-delayed", key, b"1", delivery_mode=2, **about)
    cluster.wait(4800)
    cluster.begin(rounds, time_ms=300)
    if fault == "reset":
        cluster.unlink(owner, at)
        cluster.relink()
    elif fault != "none":
        cluster.kill(at, failed=fault == "known death")
    cluster.order(c.DeletePool(at_ms=0, vhost="/", name="core", force=True, delayed=True))
    cluster.wait(1000)
    if fault == "death":
        cluster.order(c.FailNode(node=NodeId(at), incarnation=Incarnation(cluster[at].incarnation)))
    cluster.wait(14_000)
    heard = cluster[owner].client().consume("answers", no_ack=True)
    assert said(heard) == [("1", b"pool_deleted")]
    assert cluster.running[0].map.queue("/", "core-orphan") is None
