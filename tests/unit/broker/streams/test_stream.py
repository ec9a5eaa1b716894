"""Streams of one node, as clients meet them: published once, read by everybody from wherever they like."""

from __future__ import annotations

from typing import Any

import pytest

from broker.amqp import methods as m
from broker.amqp.fields import Timestamp
from tests.unit.broker.session.harness import Client, Content, World


def declare(client: Client, name: str = "s", **arguments: Any) -> Any:
    return client.ask(m.QueueDeclare(queue=name, durable=True, arguments={"x-queue-type": "stream", **arguments}))


def consume(client: Client, tag: str = "c", prefetch: int = 100, **arguments: Any) -> list[Any]:
    """What is heard after the consume-ok."""
    named = {f"x-stream-{name}": value for name, value in arguments.items()}
    heard = client.say(
        m.BasicQos(prefetch_count=prefetch), m.BasicConsume(queue="s", consumer_tag=tag, arguments=named)
    )
    assert [type(answer) for answer in heard[:2]] == [m.BasicQosOk, m.BasicConsumeOk], heard
    return heard[2:]


def offsets(heard: list[Any]) -> list[int]:
    return [content.properties.headers["x-stream-offset"] for content in heard if isinstance(content, Content)]


def filled(count: int = 10, journaled: bool = True) -> tuple[World, Client]:
    world = World(journaled=journaled)
    client = world.client()
    declare(client)
    client.raw(b"".join(client.content("", "s", b"%d" % n) for n in range(count)))
    world.turn()
    return world, client


@pytest.mark.parametrize("journaled", [True, False])
def test_what_is_published_is_read_by_everybody_in_order(journaled: bool) -> None:
    world, client = filled(10, journaled)
    for tag in "ab":
        heard = consume(client, tag, offset="first")
        assert [content.body for content in heard] == [b"%d" % n for n in range(10)]
        assert offsets(heard) == list(range(10))
        assert not any(content.method.redelivered for content in heard)
    client.publish("", "s", b"10")
    assert world.queue("s").ready == 11


@pytest.mark.parametrize(
    "where, first",
    [
        ("first", 0), ("next", 10), (0, 0), (7, 7), (10, 10), (12, 12), ("last", 0), (Timestamp(0), 0),
        (Timestamp(2**40), 10),
    ],
)  # fmt: skip
def test_where_a_reader_begins(where: Any, first: int) -> None:
    world, client = filled(10)
    heard = consume(client, offset=where)
    client.raw(b"".join(client.content("", "s", b"%d" % n) for n in range(10, 15)))
    world.turn()
    assert offsets(heard + client.hear(1)) == list(range(first, 15))


def test_without_an_offset_it_begins_at_the_next() -> None:
    _, client = filled(3)
    assert consume(client) == []
    assert offsets(client.publish("", "s", b"new")) == [3]
