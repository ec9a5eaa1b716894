"""Copies of messages with other properties, flags, times and addresses."""

from __future__ import annotations

import pytest

from clusterbroker.broker.content.message import (
    key_of,
    new_message,
    republished,
    taken_at,
    with_annotations,
    with_flags,
    with_properties,
)
from clusterbroker.broker.content.properties import properties_of, routing_headers
from clusterbroker.broker.wire.amqp091.properties import Properties
from clusterbroker.journal.layout import HAS_BCC, HAS_EXPIRATION, HAS_HEADERS, PERSISTENT
from clusterbroker.journal.record import Message

PROPERTIES = Properties(
    headers={"a": 1, "BCC": ["x"]}, delivery_mode=2, priority=3, expiration="1000", timestamp=7, message_id="m"
)


def made() -> Message:
    return new_message("logs", "info", PROPERTIES, b"body", 55)


def whole(message: Message) -> tuple[object, ...]:
    return (
        message.exchange, message.routing_key, properties_of(message), message.body, message.flags, message.priority,
        message.time_ms, message.ttl_ms,
    )  # fmt: skip


def test_a_new_message_has_what_its_properties_say() -> None:
    flags = PERSISTENT | HAS_HEADERS | HAS_EXPIRATION
    assert whole(made()) == (b"logs", b"info", PROPERTIES, b"body", flags, 3, 55, 1000)


@pytest.mark.parametrize("name", ["q" * 256, "\u00e4" * 128])
def test_a_name_that_is_too_long_for_an_address_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="shortstr"):
        new_message("", name, Properties(), b"", 0)


def test_names_that_are_no_utf_8_stay_as_they_came() -> None:
    assert new_message("ev\udcfe", "na\udcffme", Properties(), b"", 0).routing_key == b"na\xffme"


def test_other_properties_leave_the_rest_as_it_was() -> None:
    changed = with_properties(made(), Properties(message_id="other"))
    assert whole(changed) == (b"logs", b"info", Properties(message_id="other"), b"body", *whole(made())[4:])
    assert with_properties(made(), PROPERTIES, HAS_BCC).flags == HAS_BCC


def test_a_header_is_taken_out_and_the_others_stay() -> None:
    shown = with_annotations(made(), {}, "BCC", PERSISTENT)
    assert (routing_headers(shown), shown.body, shown.flags) == ({"a": 1}, b"body", PERSISTENT)
    again = with_annotations(shown, {}, "a")
    assert (properties_of(again).headers, again.flags) == ({}, PERSISTENT)
    assert whole(with_annotations(made(), {}, "no such header")) == whole(made())


def test_flags_and_time_change_alone() -> None:
    assert whole(with_flags(made(), HAS_BCC)) == (*whole(made())[:4], HAS_BCC, *whole(made())[5:])
    assert whole(taken_at(made(), 99)) == (*whole(made())[:6], 99, 1000)


def test_a_message_is_published_again_elsewhere() -> None:
    again = republished(made(), "dead", "key", None, 99)
    assert whole(again) == (b"dead", b"key", *whole(made())[2:6], 99, 1000)
    changed = republished(made(), "dead", "key", Properties(delivery_mode=1), 99)
    assert whole(changed) == (b"dead", b"key", Properties(delivery_mode=1), b"body", 0, 0, 99, -1)


def test_a_key_is_cut_between_its_characters() -> None:
    assert key_of("short") == "short"
    assert key_of("k" * 300) == "k" * 255
    assert key_of("\u00e4" * 200) == "\u00e4" * 127
