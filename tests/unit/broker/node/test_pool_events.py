"""Pools that tell what happens in them, at one node and at three: each event once, in its order, with its fields."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.pool_entities import PoolSettings
from tests.unit.broker.fronts.amqp091.harness import Client, Content
from tests.unit.broker.node.test_pool_workers import Broker

QUEUE = "core-req-42"


@pytest.fixture(params=[1, 3], ids=["alone", "three"])
def broker(request: pytest.FixtureRequest) -> Broker:
    """Its pool tells from now on: requests 1 of key 42, and other of key 7, came before."""
    made = Broker(request.param)
    tell(made)
    return made


def tell(broker: Broker, on: bool = True) -> None:
    broker.order(c.SetPool(vhost="/", name="core", settings=PoolSettings(), only=("events",), events=on))


def told(broker: Broker) -> list[dict[str, Any]]:
    """All events of the stream, at the node that looks."""
    broker.settle()
    reader = broker.sites[0].client()
    reader.ask(m.BasicQos(0, 1000, False))
    found = reader.say(m.BasicConsume(queue="core-events", arguments={"x-stream-offset": "first"}))
    broker.settle()
    contents = [one for one in [*found, *reader.hear()] if isinstance(one, Content)]
    reader.leave()
    for one in contents:
        said = json.loads(one.body)
        headers = one.properties.headers or {}
        assert (one.properties.type, headers["x-event"], one.properties.content_type) == (
            said["event"], said["event"], "application/json",
        )  # fmt: skip
        assert one.method.routing_key == headers["x-stream-filter-value"] == said["key"]
    return [json.loads(one.body) for one in contents]


def names(events: list[dict[str, Any]]) -> list[str]:
    return [event["event"] for event in events]


def hold(broker: Broker, worker: Client) -> list[int]:
    """Delivery tags of what it gets."""
    return tags_of(broker, worker, worker.consume(QUEUE))


def tags_of(broker: Broker, client: Client, heard: list[Any]) -> list[int]:
    """Delivery tags of what it has heard, and hears next."""
    broker.settle()
    return [one.method.delivery_tag for one in [*heard, *client.hear()] if isinstance(one, Content)]


def test_a_request_from_its_arrival_to_its_answer(broker: Broker) -> None:
    worker = broker.worker()
    (tag,) = hold(broker, worker)
    broker.call(b"2")
    (tag,) = tags_of(broker, worker, worker.say(m.BasicAck(tag)))
    worker.say(m.BasicAck(tag))
    events = [event for event in told(broker) if event["key"] == "42"]
    assert Counter(names(events)) == {"delivered": 2, "answered": 2, "received": 1}
    second = [event for event in events if event["seq"] == 2]
    assert names(second) == ["received", "delivered", "answered"]
    for event in events:
        assert (event["pool"], event["vhost"], event["queue"]) == ("core", "/", QUEUE)
        assert event["correlation_id"] == "c"
        assert event["node"]
    handed = [event for event in events if event["event"] in ("delivered", "answered")]
    assert {event["worker"] for event in handed} == {broker.launch.launch_id}
    assert [event["delivery_count"] for event in events if event["event"] == "delivered"] == [0, 0]
    assert all(event["took_ms"] >= 0 for event in events if event["event"] == "answered")


def test_a_request_of_a_new_key_is_received_and_moved_once(broker: Broker) -> None:
    broker.call(b"new", key="8")
    events = [event for event in told(broker) if event["key"] == "8"]
    assert [(event["event"], event["queue"]) for event in events] == [
        ("received", "core-orphan"), ("moved", "core-req-8"),
    ]  # fmt: skip


def test_what_a_worker_gives_back_is_delivered_again(broker: Broker) -> None:
    worker = broker.worker()
    (tag,) = hold(broker, worker)
    worker.say(m.BasicReject(tag, True))
    broker.settle()
    worker.leave()
    broker.settle()
    other = broker.worker(0)
    (tag,) = hold(broker, other)
    other.say(m.BasicAck(tag))
    events = [event for event in told(broker) if event["key"] == "42"]
    found = [(event["event"], event.get("why")) for event in events]
    assert found == [
        ("delivered", None), ("returned", "failed"), ("delivered", None), ("returned", "lost"), ("delivered", None),
        ("answered", None),
    ]  # fmt: skip
    counts = [event["delivery_count"] for event in events if event["event"] == "delivered"]
    assert counts == [0, 1, 2]


def test_what_dies_says_why_and_whether_its_caller_heard(broker: Broker) -> None:
    broker.order(c.SetPool(vhost="/", name="core", settings=PoolSettings(delivery_limit=0), only=("delivery_limit",)))
    worker = broker.worker()
    (tag,) = hold(broker, worker)
    worker.say(m.BasicReject(tag, False))
    broker.call(b"nobody hears", reply_to="absent")
    (tag,) = tags_of(broker, worker, [])
    worker.say(m.BasicReject(tag, False))
    events = [event for event in told(broker) if event["event"] == "died"]
    assert [(event["reason"], event["heard"], event["key"]) for event in events] == [
        ("rejected", True, "42"), ("rejected", False, "42"),
    ]  # fmt: skip


def test_a_single_message_that_is_asked_for_is_delivered_to_nobody_of_the_pool(broker: Broker) -> None:
    guest = broker.sites[-1].client()
    (tag,) = tags_of(broker, guest, guest.say(m.BasicGet(queue=QUEUE)))
    guest.say(m.BasicAck(tag))
    events = [event for event in told(broker) if event["key"] == "42"]
    assert [(event["event"], event["worker"]) for event in events] == [("delivered", ""), ("answered", "")]


def test_nothing_is_told_before_and_behind(broker: Broker) -> None:
    tell(broker, False)
    broker.call(b"2")
    worker = broker.worker()
    tags = hold(broker, worker)
    worker.say(m.BasicAck(tags[-1], True))
    assert told(broker) == []
    tell(broker)
    broker.call(b"3")
    broker.settle()
    assert "received" in names(told(broker))
