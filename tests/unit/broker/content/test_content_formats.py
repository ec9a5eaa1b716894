"""The table of message formats: what cannot be read is refused in words, and nothing of it is changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from clusterbroker.broker.content.formats import BASIC, FORMATS, MQTT, Basic, UnknownFormatError, translate
from clusterbroker.broker.content.headers import may_have_header
from clusterbroker.broker.content.message import died, new_message, taken_at, with_annotations, with_flags
from clusterbroker.broker.content.properties import properties_of, property_of, routing_headers
from clusterbroker.broker.wire.amqp091.properties import Properties
from clusterbroker.journal.record import Message

LATER = Message(b"\x01x\x01k", b"\xff\xfebytes", 2, 1, 3, 55, 1000, 200)


@pytest.mark.parametrize(
    "ask",
    [
        properties_of,
        routing_headers,
        lambda message: property_of(message, "timestamp"),
        lambda message: with_annotations(message, {"x-delivery-count": 1}),
        lambda message: died(message, "dlx", "k", Properties(), 60),
        lambda message: translate(message, BASIC),
    ],
)
def test_a_format_that_is_not_known_is_refused_in_words(ask: Callable[[Message], Any]) -> None:
    with pytest.raises(UnknownFormatError, match=r"^a message of format 200: this release cannot read it$"):
        ask(LATER)


def test_one_that_has_a_name_is_called_by_it() -> None:
    assert str(UnknownFormatError(MQTT)) == "a message of format 2, MQTT: this release cannot read it"


@pytest.mark.parametrize("copy", [lambda message: with_flags(message, 9), lambda message: taken_at(message, 60)])
def test_copies_that_look_at_no_header_keep_the_format(copy: Callable[[Message], Message]) -> None:
    made = copy(LATER)
    assert (made.format, made.payload, made.address, made.ttl_ms) == (200, LATER.payload, LATER.address, 1000)


def test_a_message_in_the_wanted_format_is_itself() -> None:
    message = new_message("", "q", Properties(), b"body", 0)
    assert translate(message, BASIC) is message
    assert translate(LATER, 200) is LATER


class Second(Basic):
    """The first format under another number."""

    def accept(self, address: bytes, header: bytes, body: bytes, now_ms: int) -> Message:
        return Message(address, header + body, len(header), 0, 0, now_ms, -1, MQTT)


def test_a_format_of_the_table_is_translated_and_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second entry is all that a second protocol adds."""
    monkeypatch.setitem(FORMATS, MQTT, Second())
    about = Properties(headers={"a": 1}, timestamp=7)
    basic = new_message("ex", "k", about, b"body", 55)
    other = translate(basic, MQTT)
    assert (other.format, properties_of(other), other.body, other.address) == (MQTT, about, b"body", basic.address)
    assert with_annotations(other, {"x-seen": 2}).format == MQTT
    assert died(other, "dlx", "k", about, 60).format == MQTT


def test_a_header_by_its_name_errs_on_the_careful_side() -> None:
    with_cc = new_message("", "q", Properties(headers={"CC": ["a"]}), b"", 0)
    without = new_message("", "q", Properties(headers={"a": 1}, message_id="CC?"), b"", 0)
    assert may_have_header(with_cc, b"CC")
    assert not may_have_header(with_cc, b"x-producer")
    assert may_have_header(without, b"CC"), "the same bytes in a value"
    assert not may_have_header(new_message("", "q", Properties(message_id="CC"), b"", 0), b"CC"), "no headers at all"
    assert may_have_header(LATER, b"CC"), "of another format nothing is known here"
