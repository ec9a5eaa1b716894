"""Spans of requests of worker pools: waiting among the orphans, starts of workers, the broker's own answers."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.node import pool_spans
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import Content, World
from tests.unit.broker.node.node_cluster import Cluster
from tests.unit.broker.node.test_pool_figures import Started
from tests.unit.broker.node.test_spans import PARENT, SAMPLED, TRACE, Receiver, traced

SAMPLED_HEADERS = {"traceparent": SAMPLED}


class Clocked(Receiver):
    """With the world's clock."""

    def __init__(self, site: Any) -> None:
        super().__init__()
        self.site = site

    def now_ns(self) -> int:
        return int(self.site.now_ms) * 1_000_000


def watched(world: World) -> Clocked:
    receiver = Clocked(world)
    traced(world, receiver)
    return receiver


def seconds(span: Any) -> float:
    return float(span.ended_ns - span.began_ns) / 1e9


@pytest.fixture
def world() -> World:
    made = World()
    made.command(c.DeclarePool(vhost="/", name="core"))
    made.turn()
    return made


def test_a_request_waits_among_the_orphans_until_it_is_moved(world: World) -> None:
    receiver = watched(world)
    world.command(c.PausePool(vhost="/", name="core"))
    world.client().publish("core", "42", b"body", headers=SAMPLED_HEADERS, correlation_id="c")
    world.wait(7000)
    assert "wait core-orphan" not in receiver.names()
    world.command(c.PausePool(vhost="/", name="core", paused=False))
    world.wait(100)
    span = receiver.one("wait core-orphan")
    assert (span.trace_id, span.parent_id, span.kind, span.failed) == (TRACE, PARENT, "internal", "")
    assert 7 <= seconds(span) < 7.2
    assert span.attributes == {
        "messaging.system": "rabbitmq", "messaging.operation.name": "wait",
        "messaging.destination.name": "core-orphan", "messaging.rabbitmq.destination.routing_key": "42",
        "messaging.message.body.size": 4, "messaging.message.conversation_id": "c",
        "clusterbroker.node": "node", "clusterbroker.vhost": "/", "clusterbroker.pool": "core",
        "clusterbroker.key": "42",
    }  # fmt: skip
    world.client().publish("core", "42", headers=SAMPLED_HEADERS)
    world.wait(100)
    assert receiver.names().count("wait core-orphan") == 1, "its key has a queue by then"


def test_requests_without_a_sampled_trace_have_no_span(world: World) -> None:
    receiver = watched(world)
    world.client().publish("core", "42", headers={"traceparent": SAMPLED[:-1] + "0"})
    world.client().publish("core", "nul\0", headers={"other": "traceparent"})
    world.wait(1000)
    assert receiver.names() == []


def test_the_broker_s_own_answer_is_a_failed_step_of_its_request(world: World) -> None:
    receiver, caller = watched(world), world.client()
    caller.declare("answers")
    caller.publish("core", "42", expiration="3000", reply_to="answers", headers=SAMPLED_HEADERS)
    world.wait(5000)
    span = receiver.one("answer core")
    assert (span.trace_id, span.parent_id, span.failed) == (TRACE, PARENT, "expired")
    said = {name: span.attributes[f"clusterbroker.{name}"] for name in ("pool", "key", "reason", "heard")}
    assert said == {"pool": "core", "key": "42", "reason": "expired", "heard": True}
    (answer,) = [one for one in caller.say(m.BasicGet(queue="answers", no_ack=True)) if isinstance(one, Content)]
    assert answer.properties.headers["traceparent"] == SAMPLED, "its delivery is in the trace"
    assert receiver.one("deliver answers").trace_id == TRACE
    caller.publish("core", "43", expiration="3000", headers=SAMPLED_HEADERS)
    world.wait(5000)
    assert [one.attributes["clusterbroker.heard"] for one in receiver.spans if one.name == "answer core"] == [
        True,
        False,
    ]


def test_an_answer_has_no_trace_that_its_request_had_not(world: World) -> None:
    caller = world.client()
    caller.declare("answers")
    for headers in ({}, {"traceparent": 5}, {"traceparent": "x" * 256}):
        caller.publish("core", "nul\0", reply_to="answers", headers=headers)
    world.wait(1000)
    for _ in range(3):
        (answer,) = [one for one in caller.say(m.BasicGet(queue="answers", no_ack=True)) if isinstance(one, Content)]
        assert "traceparent" not in answer.properties.headers


def test_a_start_belongs_to_the_request_that_its_key_was_made_for() -> None:
    started = Started()
    receiver = watched(started.world)
    started.world.client().publish("core", "42", headers=SAMPLED_HEADERS)
    started.world.wait(3000)
    (launch,) = started.launches
    assert "start core" not in receiver.names()
    worker = started.consumes(launch)
    span = receiver.one("start core")
    assert (span.trace_id, span.parent_id, span.failed) == (TRACE, PARENT, "")
    assert 2.8 < seconds(span) < 3.6
    said = {name: span.attributes[f"clusterbroker.{name}"] for name in ("pool", "key", "worker", "place")}
    assert said == {"pool": "core", "key": "42", "worker": launch.launch_id, "place": launch.place}
    other = started.launch("43")
    started.consumes(other)
    assert receiver.names().count("start core") == 1, "nobody traces the other key"
    worker.leave()
    started.gone(launch, 9)
    started.world.wait(5000)
    (again,) = [one for one in started.launches if one.key == "42"]
    assert again.launch_id != launch.launch_id
    started.consumes(again)
    assert receiver.names().count("start core") == 1, "that request has had its worker"


def test_a_start_that_fails_says_why_and_the_next_one_is_of_the_same_request() -> None:
    started = Started()
    world, receiver = started.world, watched(started.world)
    world.client().publish("core", "42", headers=SAMPLED_HEADERS)
    world.wait(500)
    (first,) = started.launches
    started.gone(first, 70)
    world.wait(5000)
    assert receiver.one("start core").failed == "exit status 70"
    (second,) = started.launches
    started.consumes(second)
    assert [span.failed for span in receiver.spans if span.name == "start core"] == ["exit status 70", ""]
    assert {span.trace_id for span in receiver.spans} == {TRACE}


def test_of_more_keys_than_are_remembered_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_spans, "ASKING_MAX", 2)
    started = Started()
    receiver = watched(started.world)
    for key in ("1", "2", "3"):
        started.world.client().publish("core", key, headers=SAMPLED_HEADERS)
        started.world.wait(300)
    for launch in started.launches:
        started.consumes(launch)
    keys = [span.attributes["clusterbroker.key"] for span in receiver.spans if span.name == "start core"]
    assert keys == ["2", "3"]


def test_in_a_cluster_the_controller_and_the_responder_tell() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.order(c.DeclarePool(vhost="/", name="core"))
    cluster.wait(200)
    receivers = {site.name: Clocked(site) for site in cluster.running}
    for site in cluster.running:
        traced(site, receivers[site.name])
    caller = cluster["b"].client()
    caller.publish("core", "42", headers=SAMPLED_HEADERS, expiration="2000")
    cluster.wait(6000)
    told = {
        name: [one for one in receiver.names() if one[:4] in ("wait", "answ")] for name, receiver in receivers.items()
    }
    expected: dict[str, list[str]] = {name: [] for name in receivers}
    expected[str(cluster.queue("core-orphan").owner)].append("wait core-orphan")
    expected[str(cluster.queue("core-dl").owner)].append("answer core")
    assert told == expected
