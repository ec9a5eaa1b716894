"""Message properties: which bit is which property, and what is refused."""

from __future__ import annotations

from typing import Any

import pika.spec  # type: ignore[import-untyped]
import pytest

from clusterbroker.broker.wire.amqp091.errors import ConnectionFault
from clusterbroker.broker.wire.amqp091.fields import FieldLimits
from clusterbroker.broker.wire.amqp091.properties import PROPERTIES, Properties, decode, encode
from clusterbroker.broker.wire.numbers import Int16
from clusterbroker.journal.values import LongBytes

BYTES: list[tuple[str, int, Any, bytes]] = [
    ("content_type", 15, "a/b", b"\x03a/b"),
    ("content_encoding", 14, "gzip", b"\x04gzip"),
    ("headers", 13, {"n": Int16(1)}, b"\x00\x00\x00\x05\x01ns\x00\x01"),
    ("delivery_mode", 12, 2, b"\x02"),
    ("priority", 11, 255, b"\xff"),
    ("correlation_id", 10, "c", b"\x01c"),
    ("reply_to", 9, "amq.rabbitmq.reply-to", b"\x15amq.rabbitmq.reply-to"),
    ("expiration", 8, "60000", b"\x0560000"),
    ("message_id", 7, "m", b"\x01m"),
    ("timestamp", 6, 2**64 - 1, b"\xff" * 8),
    ("type", 5, "t", b"\x01t"),
    ("user_id", 4, "guest", b"\x05guest"),
    ("app_id", 3, "ä", b"\x02\xc3\xa4"),
    ("cluster_id", 2, "", b"\x00"),
]

FULL = Properties(**{name: value for name, _, value, _ in BYTES})


def refused(raw: bytes, limits: FieldLimits | None = None) -> str:
    with pytest.raises(ConnectionFault) as caught:
        decode(raw, limits or FieldLimits())
    assert caught.value.code == 502
    return caught.value.text


@pytest.mark.parametrize(("name", "bit", "value", "raw"), BYTES, ids=[row[0] for row in BYTES])
def test_each_property_alone(name: str, bit: int, value: Any, raw: bytes) -> None:
    whole = (1 << bit).to_bytes(2, "big") + raw
    properties = Properties(**{name: value})
    assert decode(whole) == properties
    assert encode(properties) == whole


def test_no_properties_are_two_octets() -> None:
    assert encode(Properties()) == b"\x00\x00"
    assert decode(b"\x00\x00") == Properties()


def test_all_properties_in_the_order_of_the_wire() -> None:
    whole = b"\xff\xfc" + b"".join(raw for _, _, _, raw in BYTES)
    assert encode(FULL) == whole
    assert decode(whole) == FULL
    assert [name for name, _ in PROPERTIES] == [name for name, _, _, _ in BYTES]


def test_pika_reads_what_we_write_and_writes_what_we_read() -> None:
    theirs = pika.spec.BasicProperties()
    theirs.decode(encode(FULL))
    for name, _ in PROPERTIES:
        assert getattr(theirs, name) == getattr(FULL, name)
    assert decode(b"".join(theirs.encode())) == FULL


def test_empty_is_not_absent() -> None:
    properties = Properties(headers={}, correlation_id="", priority=0)
    assert decode(encode(properties)) == properties
    assert encode(properties) != encode(Properties())


@pytest.mark.parametrize("flags", [b"\x00\x01", b"\x00\x02", b"\x80\x01"])
def test_flags_that_mean_nothing_are_refused(flags: bytes) -> None:
    assert "unknown property flags" in refused(flags + b"\x01x\x00\x00")


def test_every_truncation_and_every_trailing_byte_is_refused() -> None:
    whole = encode(FULL)
    for length in range(len(whole)):
        refused(whole[:length])
    assert refused(whole + b"\x00") == "1 bytes behind the last property"
    assert refused(b"\x00\x00\x00") == "1 bytes behind the last property"


def test_headers_are_held_to_the_limits() -> None:
    raw = encode(Properties(headers={"a": {"b": {}}}))
    assert "deeper than 2" in refused(raw, FieldLimits(depth_max=2))
    assert "more than 1 values" in refused(raw, FieldLimits(entries_max=1))


def test_a_binary_correlation_id_travels_as_it_is() -> None:
    raw = b"\x04\x00" + b"\x04\xff\x00\xc3\x28"
    assert encode(decode(raw)) == raw


def test_binary_header_values_travel_as_they_are() -> None:
    properties = Properties(headers={"text": "ä", "octets": LongBytes(b"\xff"), "array": b"\xff"})
    again = decode(encode(properties))
    assert again == properties
    assert again.headers is not None
    assert [type(value) for value in again.headers.values()] == [str, LongBytes, bytes]


@pytest.mark.parametrize(
    "properties",
    [
        Properties(priority=256),
        Properties(timestamp=-1),
        Properties(type="x" * 256),
        Properties(headers={"a": 2**63}),
    ],
    ids=["octet", "timestamp", "shortstr", "table"],
)
def test_a_value_that_does_not_fit_is_our_mistake(properties: Properties) -> None:
    with pytest.raises(ValueError, match="fit"):
        encode(properties)
