"""Bridges between real brokers: what moves, what a kill does, what is refused (docs/design/013)."""

from __future__ import annotations

import json
import urllib.request
from collections import Counter
from collections.abc import Callable
from typing import Any

import pika
import pytest

from tests.faults.brokers import ManagedNode, depth_of, taken
from tests.faults.node import command, wait_for
from tests.faults.test_migration import fill

PREFETCH = "500"


def rows(node: ManagedNode) -> dict[str, dict[str, Any]]:
    """What `bridges list` tells, by name; empty while the node cannot be asked."""
    code, said = command("bridges", "list", "--data-dir", str(node.data_dir), "--json")
    return {row["name"]: row for row in json.loads(said)} if code == 0 else {}


def bridge(node: ManagedNode, name: str, *words: str) -> None:
    code, said = command("bridges", "set", name, "--data-dir", str(node.data_dir), *words)
    assert code == 0, said


@pytest.mark.parametrize("kind", ["ours", pytest.param("rabbitmq", marks=pytest.mark.timeout(400))])
def test_a_bridge_into_this_broker_loses_and_doubles_nothing(brokers: Callable[[str], Any], kind: str) -> None:
    source, node = brokers(kind), brokers("ours")
    there = fill(source)["orders"]
    ends = ["--from", source.url, "--to", "amqp://", "--queue", "orders", "--to-queue", "arrived"]
    bridge(node, "in", *ends, "--prefetch", PREFETCH)
    for kill in range(2):
        wait_for(lambda: depth_of(node.url, "arrived") > 1_000 * (kill + 1), "messages arrived", 120)  # noqa: B023
        (node if kill == 0 else source).kill()
        (node if kill == 0 else source).start()
    wait_for(lambda: depth_of(source.url, "orders") == 0, "the source is empty", 120)
    wait_for(lambda: depth_of(node.url, "arrived") >= len(there), "all arrived", 60)
    wait_for(lambda: rows(node)["in"]["state"] == "running", "it is told")
    assert rows(node)["in"]["counted"] is True
    found = taken(node.url, "arrived")
    assert not Counter(there) - Counter(found), "lost"
    assert not Counter(found) - Counter(there), "doubled"


def test_a_loop_is_refused_in_a_line(brokers: Callable[[str], Any]) -> None:
    first, second = brokers("ours"), brokers("ours")
    for node in (first, second):
        with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
            connection.channel().queue_declare("ring", durable=True)
    ends = ["--queue", "ring", "--to-queue", "ring"]
    bridge(first, "there", "--from", "amqp://", "--to", second.url, *ends)
    bridge(second, "back", "--from", "amqp://", "--to", first.url, *ends)
    with pika.BlockingConnection(pika.URLParameters(first.url)) as connection:
        connection.channel().basic_publish("", "ring", b"round", pika.BasicProperties(delivery_mode=2))
    row = wait_for(
        lambda: next(
            (
                row
                for node, name in ((first, "there"), (second, "back"))
                if (row := rows(node)[name])["state"] == "refused"
            ),
            None,
        ),
        "the loop is found",
    )
    assert "goes round in circles" in row["why"]
    assert "\n" not in row["why"]
    wait_for(lambda: depth_of(first.url, "ring") + depth_of(second.url, "ring") == 1, "the message is kept")


def test_what_goes_to_an_exchange_keeps_its_key_and_a_changed_parameter_begins_anew(
    brokers: Callable[[str], Any],
) -> None:
    source, node = brokers("ours"), brokers("ours")
    with pika.BlockingConnection(pika.URLParameters(source.url)) as connection:
        connection.channel().exchange_declare("events", "topic", durable=True)
    with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
        channel = connection.channel()
        channel.exchange_declare("far", "topic", durable=True)
        for queue, key in (("all", "#"), ("eu", "eu.#")):
            channel.queue_declare(queue, durable=True)
            channel.queue_bind(queue, "far", key)
    ends = ["--from", source.url, "--to", "amqp://", "--exchange", "events", "--to-exchange", "far"]
    bridge(node, "events", *ends, "--key", "eu.*")
    wait_for(lambda: rows(node)["events"]["state"] == "running", "it runs")
    with pika.BlockingConnection(pika.URLParameters(source.url)) as connection:
        for key in ("eu.one", "us.one"):
            connection.channel().basic_publish("events", key, key.encode(), pika.BasicProperties(delivery_mode=2))
        wait_for(lambda: depth_of(node.url, "eu") == 1, "the message arrived")
    assert (taken(node.url, "all"), taken(node.url, "eu")) == ([b"eu.one"], [b"eu.one"])
    code, said = command("bridges", "set", "events", "--data-dir", str(node.data_dir), "--from", "x", "--to", "amqp://")
    assert code == 2, said
    assert "src-queue or src-exchange" in said or "a URI is amqp" in said
    wrong = f"http://127.0.0.1:{node.http}/api/parameters/shovel/%2F/bad"
    request = urllib.request.Request(wrong, json.dumps({"value": {"src-uri": 5}}).encode(), method="PUT")
    request.add_header("authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=")
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.status in (201, 204)
    assert rows(node)["bad"]["state"] == "refused"
    assert command("bridges", "delete", "bad", "--data-dir", str(node.data_dir))[0] == 0
    assert command("bridges", "delete", "events", "--data-dir", str(node.data_dir))[0] == 0
    wait_for(lambda: depth_of(node.url, "clusterbroker.bridge.events") == -1, "its queue is gone")
    assert rows(node) == {}
