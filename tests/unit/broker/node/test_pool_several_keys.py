"""Workers of several keys at their nodes: how they hear of them, and what they may do, at one node and at three."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import Client, Content, bodies
from tests.unit.broker.node.test_pool_workers import Broker

REPLY_TO = "amq.rabbitmq.reply-to"
ASKING = 5


@pytest.fixture(params=[1, 3], ids=["alone", "three"])
def broker(request: pytest.FixtureRequest) -> Broker:
    return Broker(request.param, keys_per_worker=2)


class Several:
    """A worker that asks for its keys."""

    def __init__(self, broker: Broker, at: int = -1) -> None:
        self.broker = broker
        self.client: Client = broker.worker(at)
        self.client.ask(m.ChannelOpen(), ASKING)
        self.client.consume(REPLY_TO, no_ack=True, channel=ASKING)
        self.known: dict[str, int] = {}

    def ask(self, word: str = "key", **body: Any) -> list[Any]:
        """The answers that come at once."""
        body = body or {"known": self.known}
        got = self.client.publish("amq.worker", word, json.dumps(body).encode(), channel=ASKING, reply_to=REPLY_TO)
        self.broker.settle()
        return self.answers((*got, *self.client.hear(ASKING)))

    def heard(self) -> list[str]:
        """The keys that it is told of now, after one answer at most."""
        (answer,) = self.answers(self.client.hear(ASKING)) or ({"keys": []},)
        self.known = {one["key"]: one["since"] for one in answer["keys"]}
        return [one["key"] for one in answer["keys"]]

    @staticmethod
    def answers(got: Any) -> list[Any]:
        return [json.loads(one.body) for one in got if isinstance(one, Content) and one.body.startswith(b"{")]


def order(broker: Broker, kind: Any, **known: Any) -> None:
    (pool,) = broker.node.map.pools.all()
    epoch = broker.node.map.queue_by_id(pool.orphans).epoch  # type: ignore[union-attr]
    broker.order(kind(pool_id=pool.pool_id, epoch=epoch, **known))


def assign(broker: Broker, *keys: str) -> None:
    order(broker, c.AssignWorkers, workers=tuple((broker.launch.launch_id, key) for key in keys))


def take_back(broker: Broker, key: str) -> None:
    order(broker, c.RetireKeys, keys=((broker.launch.launch_id, key),), why="a test")
    order(broker, c.RevokeKeys, keys=((broker.launch.launch_id, key),))


def test_it_hears_of_its_keys_and_of_each_change(broker: Broker) -> None:
    worker = Several(broker)
    assert worker.ask() == []
    assign(broker, "42")
    assert worker.heard() == ["42"]
    assert worker.ask() == [], "it knows that one"
    assign(broker, "7")
    assert worker.heard() == ["42", "7"]
    worker.ask()
    order(broker, c.RetireKeys, keys=((broker.launch.launch_id, "42"),), why="a test")
    assert worker.heard() == [], "it may finish what it holds"
    order(broker, c.RevokeKeys, keys=((broker.launch.launch_id, "42"),))
    assert worker.heard() == ["7"]
    assert worker.known.keys() == {"7"}


def test_one_that_is_given_again_while_it_does_not_ask_is_told(broker: Broker) -> None:
    worker = Several(broker)
    assign(broker, "42")
    (first,) = worker.ask()
    worker.known = {one["key"]: one["since"] for one in first["keys"]}
    take_back(broker, "42")
    assign(broker, "42")
    (again,) = worker.ask()
    assert [one["key"] for one in again["keys"]] == ["42"]
    assert again["keys"][0]["since"] > first["keys"][0]["since"]


def test_it_reads_the_queues_of_its_keys_alone_as_long_as_it_has_them(broker: Broker) -> None:
    worker = Several(broker)
    worker.client.ask(m.ChannelOpen(), 2)
    assert worker.client.code(m.BasicConsume(queue="core-req-42"), 2) == 403
    assign(broker, "42", "7")
    worker.ask()
    for channel, key in ((3, "42"), (4, "7")):
        worker.client.ask(m.ChannelOpen(), channel)
        got = worker.client.consume(f"core-req-{key}", channel=channel)
        broker.settle()
        assert bodies((*got, *worker.client.hear(channel))) == [b"1" if key == "42" else b"other"]
    take_back(broker, "42")
    heard = worker.client.hear(3)
    assert [one.consumer_tag for one in heard if isinstance(one, m.BasicCancel)], "its consumer has ended"
    broker.call(b"2")
    assert b"2" not in bodies(worker.client.hear(3))
    worker.client.ask(m.ChannelOpen(), 6)
    assert worker.client.code(m.BasicConsume(queue="core-req-42"), 6) == 403


def test_it_puts_off_requests_of_its_keys_alone(broker: Broker) -> None:
    worker = Several(broker)
    assign(broker, "42")
    worker.ask()
    assert worker.client.publish("core-delayed", "42", b"later", headers={"x-delay": 60_000}) == []
    got = worker.client.publish("core-delayed", "7", b"no", headers={"x-delay": 60_000})
    broker.settle()
    assert [one.reply_code for one in (*got, *worker.client.hear()) if isinstance(one, m.ChannelClose)] == [403]


def test_what_it_held_of_a_key_that_it_has_no_more_is_answered_and_settled(broker: Broker) -> None:
    worker = Several(broker)
    assign(broker, "42")
    worker.ask()
    got = worker.client.consume("core-req-42")
    broker.settle()
    (request,) = [one for one in (*got, *worker.client.hear()) if isinstance(one, Content) and one.body == b"1"]
    order(broker, c.RevokeKeys, keys=((broker.launch.launch_id, "42"),))
    worker.client.publish("", request.properties.reply_to or "", b"done")
    broker.settle()
    worker.client.say(m.BasicAck(request.method.delivery_tag))
    broker.settle()
    assert broker.said("answers") == [b"done"]


def test_it_says_of_its_own_keys_alone_that_they_failed(broker: Broker) -> None:
    worker = Several(broker)
    assign(broker, "42")
    assert [one["outcome"] for one in worker.ask("failed", key="42", reason="no room")] == ["told"]
    assert [one["code"] for one in worker.ask("failed", key="7", reason="no room")] == [404]


@pytest.mark.parametrize("body", [{"known": 7}, {"known": {"42": "x"}}, {"unknown": 1}])
def test_what_is_no_question_is_refused(broker: Broker, body: Any) -> None:
    worker = Several(broker)
    got = worker.client.publish("amq.worker", "key", json.dumps(body).encode(), channel=ASKING, reply_to=REPLY_TO)
    broker.settle()
    heard = (*got, *worker.client.hear(ASKING))
    refused = [one.reply_code for one in heard if isinstance(one, m.ChannelClose)]
    assert refused or [one["outcome"] for one in Several.answers(heard)] == ["refused"]
