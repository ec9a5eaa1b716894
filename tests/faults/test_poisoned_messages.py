"""A message at the limits of a publish, at a node that runs: it is dead-lettered, and neither that nor any start ends
the node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika

from tests.faults.node import NodeProcess, wait_for


def test_as_many_header_values_as_a_publish_may_have(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node().start()
    connection = pika.BlockingConnection(pika.URLParameters(node.url))
    channel: Any = connection.channel()
    channel.queue_declare("grave", durable=True)
    dies = {"x-message-ttl": 200, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "grave"}
    channel.queue_declare("q", durable=True, arguments=dies)
    channel.confirm_delivery()
    headers = {str(number): None for number in range(10_000)}
    channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2, headers=headers))
    wait_for(lambda: channel.queue_declare("grave", passive=True).method.message_count == 1, "it is dead-lettered")
    assert node.running
    node.kill()
    node.start()
    connection = pika.BlockingConnection(pika.URLParameters(node.url))
    channel = connection.channel()
    _, properties, body = channel.basic_get("grave", auto_ack=True)
    assert (body, properties.headers["x-death"][0]["reason"]) == (b"x", "expired")
    assert len(properties.headers) == 10_007
    connection.close()
    assert node.running
