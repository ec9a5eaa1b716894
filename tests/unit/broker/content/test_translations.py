"""Messages that one protocol takes, in the other: each of these once raised when it was handed out."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.content.formats import BASIC, SECTIONS, format_of, translate
from clusterbroker.broker.content.message import new_message
from clusterbroker.broker.wire.amqp091.fields import STORED_LIMITS
from clusterbroker.broker.wire.amqp091.properties import Properties
from clusterbroker.broker.wire.amqp10.performatives import Properties as Properties10
from clusterbroker.broker.wire.amqp10.sections import make_message
from clusterbroker.broker.wire.amqp10.types import Symbol
from clusterbroker.journal.values import Timestamp
from tests.support.amqp10 import message, read

ADDRESS = b"\0\1q"


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "annotations",
    [
        {"x-basic-type": "t" * 300},
        {"x-basic-type": "é" * 200},
        {"x-foo": {"é" * 200: 1}},
        {"x-foo": {Symbol("k" * 300): [1]}},
    ],
)
def test_long_texts_of_amqp_10_are_cut(annotations: dict[str, Any]) -> None:
    taken = make_message(ADDRESS, message(b"body", annotations=annotations), 0)
    assert taken is not None
    found = translate(taken, BASIC)
    assert found.body == b"body"
    known = format_of(BASIC).properties(found.header, STORED_LIMITS)
    assert known.type is None or len(known.type.encode()) <= 255


def test_an_address_of_any_type() -> None:
    taken = make_message(ADDRESS, message(b"x", properties=Properties10(to={"é" * 200: 1})), 0)
    assert taken is not None
    assert translate(taken, BASIC).body == b"x"


@pytest.mark.parametrize(
    "properties",
    [
        Properties(headers={"x-foo": nested(40)}),
        Properties(message_id="urn:uuid:\udcff"),
        Properties(message_id="²", headers={"x-message-id-type": "ulong"}),
        Properties(timestamp=(2**64 - 1) // 1000, headers={"timestamp_in_ms": Timestamp(2**64 - 1)}),
        Properties(expiration="99999999999"),
        Properties(priority=255, content_type="\udcff", reply_to="\udcff", app_id="\udcff"),
    ],
)
def test_odd_properties_of_amqp_0_9_1(properties: Properties) -> None:
    taken = new_message("", "q", properties, b"body", 0)
    found = translate(taken, SECTIONS)
    assert read(found.payload).body == b"body"
    assert make_message(ADDRESS, found.payload, 0) is not None, "a receiver can read it"


def test_a_body_that_only_begins_like_sections_is_data() -> None:
    sections = message(b"x", annotations={"x-a": 1})
    taken = new_message("", "q", Properties(type="amqp-1.0"), sections, 0)
    assert read(translate(taken, SECTIONS).payload).body == sections
