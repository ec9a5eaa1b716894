"""Properties of messages, read without knowing their protocol."""

from __future__ import annotations

from clusterbroker.broker.content.message import new_message
from clusterbroker.broker.content.properties import properties_of, property_of, routing_headers
from clusterbroker.broker.wire.amqp091.properties import Properties

PROPERTIES = Properties(headers={"a": 1}, delivery_mode=2, timestamp=7)


def test_properties_are_those_of_the_publish() -> None:
    assert properties_of(new_message("", "q", PROPERTIES, b"body", 55)) == PROPERTIES


def test_headers_of_a_message_without_any_are_empty() -> None:
    assert routing_headers(new_message("", "q", PROPERTIES, b"", 0)) == {"a": 1}
    assert routing_headers(new_message("", "q", Properties(), b"", 0)) == {}


def test_the_timestamp_of_a_message_that_has_one() -> None:
    assert property_of(new_message("", "q", PROPERTIES, b"", 0), "timestamp") == 7
    assert property_of(new_message("", "q", Properties(app_id="app"), b"", 0), "timestamp") is None
