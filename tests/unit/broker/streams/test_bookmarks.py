"""How far readers of a stream say that they are: kept by name, told to who asks, with an end to how many."""

from __future__ import annotations

import base64
import json
import urllib.request
from pathlib import Path
from typing import Any

import pika
import pytest

from clusterbroker import Broker
from clusterbroker.broker.access import services
from clusterbroker.broker.fronts.amqp091.state import State
from clusterbroker.broker.stats.inspection import life_of
from clusterbroker.broker.streams import bookmarks
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import Client
from tests.unit.broker.node.node_cluster import Cluster
from tests.unit.broker.streams.test_stream import filled
from tests.unit.broker.streams.test_stream_node import connected, declare, publish, until


def ask(client: Client, key: str, **body: Any) -> Any:
    client.say(m.BasicConsume(queue="amq.rabbitmq.reply-to", consumer_tag="r", no_ack=True))
    raw = json.dumps({"queue": "s", **body}).encode()
    (answer,) = client.publish("amq.stream", key, raw, reply_to="amq.rabbitmq.reply-to")
    return json.loads(answer.body)


def readers(client: Client) -> dict[str, tuple[int, int]]:
    """Name to offset and lag."""
    return {one["name"]: (one["offset"], one["lag"]) for one in ask(client, "stored")["readers"]}


@pytest.mark.parametrize("journaled", [True, False])
def test_the_last_word_counts(journaled: bool) -> None:
    world, _ = filled(10, journaled)
    life = life_of(world.queue("s").entity)
    assert ask(world.client(), "stored") == {"outcome": "stored", "life": life, "next": 10, "readers": []}
    for name, offset in (("b", 0), ("a", 7), ("b", 10), ("a", 4)):
        told = ask(world.client(), "store", name=name, offset=offset, life=life)
        assert told == {"outcome": "stored", "life": life, "offset": offset}
    assert readers(world.client()) == {"a": (4, 6), "b": (10, 0)}
    assert ask(world.client(), "store", name="a", offset=None)["outcome"] == "stored"
    assert readers(world.client()) == {"b": (10, 0)}
    assert ask(world.client(), "store", name="nobody", offset=None)["outcome"] == "stored"


def test_an_answer_waits_for_the_disk() -> None:
    world, client = filled(3)
    client.say(m.BasicConsume(queue="amq.rabbitmq.reply-to", consumer_tag="r", no_ack=True))
    world.disk_waits = True
    raw = b'{"queue": "s", "name": "a", "offset": 2}'
    assert client.publish("amq.stream", "store", raw, reply_to="amq.rabbitmq.reply-to") == []
    world.commit()
    (answer,) = client.hear(1)
    assert json.loads(answer.body)["outcome"] == "stored"


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bookmarks, "KEPT_MAX", 2)
    world, _ = filled(3)

    def refused(**body: Any) -> tuple[int, str]:
        told = ask(world.client(), "store", **body)
        assert told["outcome"] == "refused"
        return told["code"], told["reason"]

    where = "stream 's' in vhost '/'"
    assert refused(name="a", offset=4) == (406, f"offset 4 is beyond {where}, which ends at 3")
    assert refused(name="a", offset=1, life="1.2") == (
        410, "queue 's' in vhost '/' is not the one that the offset is of",
    )  # fmt: skip
    assert ask(world.client(), "store", name="a", offset=3)["outcome"] == "stored"
    assert ask(world.client(), "store", name="b", offset=3)["outcome"] == "stored"
    full = f"{where} keeps the offsets of 2 readers, and 'c' is one more: forget one"
    assert refused(name="c", offset=1) == (406, full)
    assert ask(world.client(), "store", name="b", offset=1)["outcome"] == "stored"
    assert readers(world.client()) == {"a": (3, 0), "b": (1, 2)}
    assert refused(queue="none", name="a", offset=1)[0] == 404
    world.client().declare("q")
    assert refused(queue="q", name="a", offset=1) == (406, "queue 'q' in vhost '/' is no stream")


@pytest.mark.parametrize(
    "body, said",
    [
        ({"name": "x" * 201, "offset": 1}, "'name' must be a text of 1 to 200 bytes"),
        ({"name": "", "offset": 1}, "'name' must be a text of 1 to 200 bytes"),
        ({"name": "a"}, "'offset' must be an integer of 0 to "),
        ({"name": "a", "offset": -1}, "'offset' must be an integer of 0 to "),
        ({"name": "a", "ofset": 1}, "unknown field 'ofset'"),
    ],
)
def test_words_that_are_none(body: dict[str, Any], said: str) -> None:
    _, client = filled(1)
    (close,) = client.publish("amq.stream", "store", json.dumps({"queue": "s", **body}).encode())
    assert (close.reply_code, said in close.reply_text) == (406, True), close


@pytest.mark.parametrize("key", ["store", "stored"])
def test_who_may_not_read_stores_nothing(key: str) -> None:
    world, _ = filled(1)
    world.command(c.SetPermission(user="eve", vhost="/", configure=".*", write=".*", read="^amq"))
    body = b'{"queue": "s", "name": "a", "offset": 1}' if key == "store" else b'{"queue": "s"}'
    (close,) = world.client("eve").publish("amq.stream", key, body)
    assert close.reply_code == 403


def told(node: Broker, key: str, **body: Any) -> Any:
    """What a real node answers."""
    connection, channel = connected(node)
    answers: list[Any] = []
    channel.basic_consume("amq.rabbitmq.reply-to", lambda *said: answers.append(json.loads(said[3])), auto_ack=True)
    raw = json.dumps({"queue": "s", **body}).encode()
    channel.basic_publish("amq.stream", key, raw, pika.BasicProperties(reply_to="amq.rabbitmq.reply-to"))
    until(lambda: connection.process_data_events(0.1) or bool(answers))
    connection.close()
    return answers[0]


@pytest.mark.long
def test_the_management_api_shows_them() -> None:
    with Broker(http=True) as node:
        declare(node)
        publish(node, 0, 10)
        told(node, "store", name="nightly", offset=7)
        header = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}
        asked = urllib.request.Request(f"{node.http_url}/api/queues/%2F/s", headers=header)

        def shown() -> Any:
            with urllib.request.urlopen(asked) as answer:
                return json.load(answer).get("stored_offsets")

        until(lambda: shown() == [{"name": "nightly", "offset": 7, "lag": 3}])


def test_a_node_that_starts_again_knows_them(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path / "data") as node:
        declare(node)
        told(node, "store", name="early", offset=0)
        publish(node, 0, 300, tmp_path)
        told(node, "store", name="late", offset=200)
        told(node, "store", name="early", offset=100)
    for _ in range(2):
        with Broker(data_dir=tmp_path / "data") as node:
            found = {one["name"]: (one["offset"], one["lag"]) for one in told(node, "stored")["readers"]}
            assert found == {"early": (100, 200), "late": (200, 100)}


def test_a_mistake_over_a_question_without_an_answer_costs_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise ZeroDivisionError

    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare("s", durable=True, x_queue_type="stream")
    cluster.wait(500)
    owner = cluster.queue("s").owner
    site = next(site for site in cluster.running if site.name != owner)
    site.story.forgives = True
    client, other = site.client(), site.client()
    client.say(m.BasicConsume(queue="amq.rabbitmq.reply-to", consumer_tag="r", no_ack=True))
    for peer in "abc":
        if peer != site.name:
            cluster.unlink(site.name, peer)
    client.publish("amq.stream", "stored", b'{"queue": "s"}', reply_to="amq.rabbitmq.reply-to")
    monkeypatch.setattr(services.Request, "refuse", fails)
    for _ in range(50):
        site.node.role.tick(cluster.now_ms)  # type: ignore[union-attr]
        cluster.now_ms += 500
    assert [type(error) for *_, error in site.story.mistakes] == [ZeroDivisionError]
    assert (client.connection.state, other.connection.state) == (State.CLOSING, State.OPEN)
