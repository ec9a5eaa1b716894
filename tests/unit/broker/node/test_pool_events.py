"""Pools that tell what happens in them, at one node and at three: each event once, in its order, with its fields."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from clusterbroker.broker.pools.request_events import LOOK_MAX
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


def told(broker: Broker, at: str = "", most: int = 1000) -> list[dict[str, Any]]:
    """All events of the stream, at the node that looks."""
    broker.settle()
    site = broker.cluster[at] if broker.cluster is not None and at else broker.sites[0]
    reader = site.client()
    reader.ask(m.BasicQos(0, most, False))
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


def test_ids_that_are_no_text_hurt_nobody(broker: Broker) -> None:
    """A field of 0-9-1 may have any bytes."""
    broker.caller.publish("core", "42", b"2", reply_to="answers", correlation_id="\udcff\udcfe", message_id="\udcff")
    broker.settle()
    tell(broker, False)
    tell(broker)
    worker = broker.worker()
    first, second = hold(broker, worker)
    worker.say(m.BasicAck(first))
    worker.say(m.BasicReject(second, False))
    events = [event for event in told(broker) if event.get("message_id")]
    assert [event["event"] for event in events] == ["received", "delivered", "died"]
    assert {(event["correlation_id"], event["message_id"]) for event in events} == {("\ufffd\ufffd", "\ufffd")}


def test_nobody_else_writes_into_it(broker: Broker) -> None:
    client = broker.sites[-1].client()
    for queue in ("core-events", "core-dl"):
        heard = client.publish("", queue, b"forged")
        broker.settle()
        (refused,) = [one for one in [*heard, *client.hear()] if isinstance(one, m.ChannelClose)]
        assert (refused.reply_code, "pool 'core'" in refused.reply_text) == (403, True)
        client = broker.sites[-1].client()
    broker.call(b"2", reply_to="core-events")
    worker = broker.worker()
    worker.ask(m.ConfirmSelect())
    first, tag = hold(broker, worker)
    worker.say(m.BasicAck(first))
    heard = worker.publish("", "core-events", b"forged")
    assert not any(isinstance(one, m.ChannelClose) for one in heard), "its caller wrote that, not the worker"
    worker.say(m.BasicReject(tag, False))
    events = told(broker)
    assert [event["heard"] for event in events if event["event"] == "died"] == [False]
    assert Counter(names(events)) == {"received": 1, "delivered": 2, "answered": 1, "died": 1}


def test_what_comes_back_without_a_word_is_told(broker: Broker) -> None:
    """The node of its consumer is gone, and another consumer waits: the same turn hands it out again."""
    if broker.cluster is None:
        return
    owner = broker.node.map.queue("/", QUEUE).owner
    far = next(name for name in broker.cluster.sites if name != owner)
    worker = broker.worker(list(broker.cluster.sites).index(far))
    hold(broker, worker)
    guest = broker.cluster[owner].client()
    guest.consume(QUEUE)
    broker.settle()
    broker.cluster.kill(far)
    broker.settle()
    events = [(event["event"], event.get("why")) for event in told(broker, owner) if event["key"] == "42"]
    assert events == [("delivered", None), ("returned", ""), ("delivered", None)]


def test_of_very_many_that_are_held_some_are_looked_at_in_each_turn() -> None:
    """And each that is acknowledged is told once, whatever is acknowledged together."""
    broker = Broker(1)
    count = 3 * LOOK_MAX
    for number in range(count):
        broker.caller.publish("core", "42", b"x", correlation_id=str(number))
    broker.settle()
    tell(broker)
    guest = broker.sites[0].client()
    tags = tags_of(broker, guest, guest.consume(QUEUE))
    assert len(tags) == count + 1
    guest.say(m.BasicAck(tags[-2], True))
    for _ in range(10):
        broker.settle()
    found = Counter(event["seq"] for event in told(broker, most=60_000) if event["event"] == "answered")
    assert found == Counter(range(1, count + 1))


def test_what_another_owner_has_handed_out_is_answered_by_nobody_known(broker: Broker) -> None:
    tell(broker, False)
    worker = broker.worker()
    (tag,) = hold(broker, worker)
    tell(broker)
    worker.say(m.BasicAck(tag))
    (event,) = [event for event in told(broker) if event["key"] == "42"]
    assert (event["event"], event["correlation_id"]) == ("answered", "c")
    assert not {"worker", "took_ms"} & event.keys()


def test_a_death_is_of_the_key_whose_queue_was_named(broker: Broker) -> None:
    for key in ("42", "", "long" * 60):
        broker.call(b"x", key=key)
        name = broker.node.map.pools.names(broker.node.map.pools.all()[0].pool_id).request_queue(key)
        broker.caller.publish("", name, b"by name", correlation_id=f"by name {key}"[:100])
        broker.settle()
        guest = broker.sites[0].client()
        tags = tags_of(broker, guest, guest.consume(name))
        guest.say(m.BasicReject(tags[-1], False))
        broker.settle()
        guest.leave()
        broker.settle()
        died = [event for event in told(broker) if event["event"] == "died"]
        assert died[-1]["key"] == key


def test_a_stream_that_does_not_take_them_loses_them_and_they_are_counted() -> None:
    broker = Broker(3)
    tell(broker)
    assert broker.cluster is not None
    stream = broker.node.map.queue("/", "core-events")
    assert stream is not None
    for name in broker.cluster.sites:
        broker.cluster[name].node.alarms["memory"] = None
    broker.call(b"2")
    lost = sum(sum(broker.cluster[name].node.pool_desk.events.lost.values()) for name in broker.cluster.sites)
    assert lost == 1
    for name in broker.cluster.sites:
        broker.cluster[name].node.alarms.clear()
    broker.call(b"3")
    assert names(told(broker)) == ["received"]


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
