"""What clients notice of members that come, go and restart: addresses, `amq.failover`, a rolling restart under load."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pika
import pytest
import pytest_asyncio

from clusterbroker.broker.trial.client import Client, ClientLost, Delivery
from clusterbroker.broker.trial.judge import judge, judge_owners
from clusterbroker.broker.wire.amqp091 import methods
from tests.faults.cluster_trial import on_trial
from tests.faults.fleet import Fleet, until


@pytest_asyncio.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    fleet = Fleet(tmp_path)
    fleet.found("a", "b", "c")
    await fleet.ready("a", "b", "c")
    yield fleet
    await fleet.kill_all()


class Subscriber:
    """A queue bound to amq.failover, and what came to it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.told: list[dict[str, Any]] = []
        client.on_deliver = self._delivered

    def _delivered(self, delivery: Delivery) -> None:
        self.told.append(json.loads(delivery.body))
        self.client.acknowledge(delivery.tag)

    @classmethod
    async def open(cls, fleet: Fleet, at: str, queue: str, **declared: Any) -> Subscriber:
        subscriber = cls(await fleet.client(at))
        call = subscriber.client.call
        await call(methods.QueueDeclare(queue=queue, **declared), 20)
        await call(methods.QueueBind(queue=queue, exchange="amq.failover"), 20)
        await call(methods.BasicConsume(queue=queue, consumer_tag="c"), 20)
        return subscriber

    def events(self) -> list[tuple[str, str]]:
        return [(told["event"], told["member"]) for told in self.told]


async def test_each_subscriber_is_told_once_of_each_change(fleet: Fleet) -> None:
    urls = {name: f"amqp://127.0.0.1:{fleet.node(name).amqp_port}" for name in "abc"}
    lasting = await Subscriber.open(fleet, "a", "lasting", durable=True)
    fleeting = await Subscriber.open(fleet, "b", "fleeting", exclusive=True)
    assert lasting.client.server_properties["members"] == list(urls.values())
    await fleet.kill("c")
    killed = [("member_left", "c")]
    await until(lambda: lasting.events() == killed and fleeting.events() == killed, "both hear that c left")
    assert lasting.told[0]["members"] == [{"name": name, "amqp": [urls[name]]} for name in "ab"]
    fleet.launch("c", "--cluster", fleet.at("c"))
    await fleet.ready("c")
    back = [*killed, ("member_joined", "c")]
    await until(lambda: lasting.events() == back and fleeting.events() == back, "both hear that c is back")
    await fleet.ask("c", "drain")
    await fleet.ask("c", "drain", undo=True)
    drained = [*back, ("member_drains", "c"), ("member_joined", "c")]
    await until(lambda: lasting.events() == drained and fleeting.events() == drained, "both hear of the drain")
    client = await fleet.client("a")
    client.publish("", b"nonsense", exchange="amq.failover")
    with pytest.raises(ClientLost, match="cannot publish to internal exchange"):
        await client.call(methods.ExchangeDelete(exchange="amq.failover"), 10)
    client = await fleet.client("a")
    with pytest.raises(ClientLost, match="deletion of system exchange"):
        await client.call(methods.ExchangeDelete(exchange="amq.failover"), 10)
    assert lasting.events() == fleeting.events() == drained, "each once"


async def test_the_owner_of_a_subscribers_queue_dies(fleet: Fleet) -> None:
    """The next owner tells: all nodes see the same owner at the same change."""
    client = await fleet.client("a")
    await client.call(methods.QueueDeclare(queue="q", durable=True), 20)
    await client.call(methods.QueueBind(queue="q", exchange="amq.failover"), 20)
    await fleet.ask("a", "queues.move", vhost="/", queue="q", to="b")
    await fleet.kill("b")
    subscriber = await Subscriber.open(fleet, "c", "q", durable=True)
    await until(lambda: subscriber.events() == [("member_left", "b")], "it is told that b left")


async def test_a_rolling_restart_under_load(tmp_path: Path) -> None:
    async with on_trial(tmp_path) as trial:
        trial.load.resume()
        clients = [await Client.open(trial.cluster.target(name)) for name in trial.cluster.names]
        for name, client in zip(trial.cluster.names, clients, strict=True):
            await trial.cluster.stop(name)
            await asyncio.wait_for(client.lost.wait(), 60)
            assert "320 CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'" in client.why
            assert ", connect to amqp://127.0.0.1:" in client.why
            await trial.cluster.start(name)
        assert await trial.load.settle(60) == ""
        verdict = judge(trial.load.history.events)
        verdict.add(judge_owners(trial.cluster.events()))
        assert verdict.passed, verdict.findings
        assert verdict.confirmed > 100, "the load was at work"


async def test_a_publisher_that_numbers_its_messages_publishes_again_after_a_failover(fleet: Fleet) -> None:
    """With a common client: all is confirmed again, and stored once."""
    for name, count in (("a", 10), ("b", 15)):
        await asyncio.to_thread(publish_numbered, fleet.node(name).amqp_port, count)
    owner = (await fleet.queue("a", "numbered"))["owner"]
    await fleet.kill(owner)
    rest = [name for name in "abc" if name != owner]
    for name, count in zip(rest, (15, 20), strict=True):
        await asyncio.to_thread(publish_numbered, fleet.node(name).amqp_port, count)
    assert await fleet.consume(rest[0], "numbered", 20) == [b"%d" % number for number in range(1, 21)]
    assert (await fleet.queue(rest[1], "numbered"))["messages"] == 0


def publish_numbered(port: int, count: int) -> None:
    """Publishes 1 to `count`, each confirmed, as one named producer."""
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
        channel = connection.channel()
        channel.queue_declare("numbered", durable=True)
        channel.confirm_delivery()
        for number in range(1, count + 1):
            headers = {"x-producer": "till 7", "x-seq": number}
            channel.basic_publish(
                "", "numbered", b"%d" % number, pika.BasicProperties(delivery_mode=2, headers=headers)
            )
