"""Spares at their nodes: how one hears of its key, and what it may do before and after, at one node and at three."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.pool_entities import NO_KEY, Launch
from tests.unit.broker.fronts.amqp091.harness import Client, Content
from tests.unit.broker.node.test_pool_workers import Broker

REPLY_TO = "amq.rabbitmq.reply-to"


@pytest.fixture(params=[1, 3], ids=["alone", "three"])
def broker(request: pytest.FixtureRequest) -> Broker:
    return Broker(request.param)


def assign(broker: Broker, launch: Launch, key: str) -> None:
    (pool,) = broker.node.map.pools.all()
    epoch = broker.node.map.queue_by_id(pool.orphans).epoch  # type: ignore[union-attr]
    broker.order(c.AssignWorkers(pool_id=pool.pool_id, epoch=epoch, workers=((launch.launch_id, key),)))


def asks(broker: Broker, client: Client) -> list[Any]:
    """What it hears at once."""
    client.consume(REPLY_TO, no_ack=True)
    got = client.publish("amq.worker", "key", b"{}", reply_to=REPLY_TO)
    broker.settle()
    return answers((*got, *client.hear()))


def answers(got: Any) -> list[Any]:
    return [json.loads(one.body) for one in got if isinstance(one, Content)]


def heard(client: Client) -> list[Any]:
    return answers(client.hear())


def test_a_spare_hears_of_its_key_when_it_has_one_and_reads_its_queue_then(broker: Broker) -> None:
    spare = broker.launched(NO_KEY)
    worker = broker.worker(launch=spare)
    assert asks(broker, worker) == []
    assign(broker, spare, "42")
    assert heard(worker) == [{"outcome": "key", "key": "42", "queue": "core-req-42"}]
    got = worker.consume("core-req-42")
    broker.settle()
    (request,) = [one for one in (*got, *worker.hear()) if isinstance(one, Content)]
    assert request.body == b"1"


@pytest.mark.parametrize("queue", ["core-req-42", "core-req-7", "core-req-%00", "core-poison", "core-orphan"])
def test_without_a_key_it_reads_no_queue_and_what_it_was_refused_is_not_remembered(broker: Broker, queue: str) -> None:
    spare = broker.launched(NO_KEY)
    worker = broker.worker(launch=spare)
    worker.ask(m.ChannelOpen(), 2)
    assert worker.code(m.BasicConsume(queue=queue), 2) == 403
    asks(broker, worker)
    assign(broker, spare, "42")
    assert [one["key"] for one in heard(worker)] == ["42"]
    worker.ask(m.ChannelOpen(), 3)
    if queue == "core-req-42":
        worker.consume(queue, channel=3)
    else:
        assert worker.code(m.BasicConsume(queue=queue), 3) == 403


@pytest.mark.parametrize(("exchange", "key"), [("core-delayed", "42"), ("core-delayed", ""), ("core", "42"), ("", "x")])
def test_without_a_key_it_publishes_reports_alone(broker: Broker, exchange: str, key: str) -> None:
    worker = broker.worker(launch=broker.launched(NO_KEY))
    worker.publish("core-activity-xchg", "", b"report")
    got = worker.publish(exchange, key, b"no")
    broker.settle()
    assert [one.reply_code for one in (*got, *worker.hear()) if isinstance(one, m.ChannelClose)] == [403]


def test_one_that_comes_again_elsewhere_hears_it_there(broker: Broker) -> None:
    spare = broker.launched(NO_KEY)
    first = broker.worker(0, launch=spare)
    asks(broker, first)
    second = broker.worker(-1, launch=spare)
    asks(broker, second)
    first.leave()
    assign(broker, spare, "7")
    assert [one["key"] for one in heard(second)] == ["7"]
    third = broker.worker(0, launch=spare)
    assert [one["key"] for one in asks(broker, third)] == ["7"], "it has its key: the answer comes at once"


def test_nobody_else_asks_and_a_revoked_spare_hears_nothing(broker: Broker) -> None:
    caller = broker.sites[0].client()
    (told,) = asks(broker, caller)
    assert (told["outcome"], told["code"]) == ("refused", 403)
    spare = broker.launched(NO_KEY)
    worker = broker.worker(launch=spare)
    asks(broker, worker)
    broker.revoke(spare)
    assert [one.reply_code for one in worker.hear(0) if isinstance(one, m.ConnectionClose)] == [320]
