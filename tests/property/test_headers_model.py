"""What is seen of properties without decoding, against the rule as decoding says it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterbroker.broker.content import headers
from clusterbroker.broker.content.formats import SECTIONS
from clusterbroker.broker.wire.amqp091 import codec, properties
from clusterbroker.broker.wire.amqp091.properties import Properties
from clusterbroker.journal.record import Message
from tests.budget import examples
from tests.model import headers as model

SHORT = st.none() | st.text(max_size=5) | st.just("k" * 255)
TABLES = st.none() | st.dictionaries(st.text(max_size=3), st.text(max_size=9) | st.integers(0, 9), max_size=3)
OCTETS = st.none() | st.integers(0, 255)
ANY = st.fixed_dictionaries(
    {},
    optional={
        "content_type": SHORT, "content_encoding": SHORT, "headers": TABLES, "delivery_mode": OCTETS,
        "priority": OCTETS, "correlation_id": SHORT, "reply_to": SHORT, "message_id": SHORT,
        "timestamp": st.none() | st.integers(0, 9), "user_id": SHORT, "app_id": SHORT,
    },
)  # fmt: skip


def message(said: dict[str, Any], body: bytes = b"body") -> Message:
    made = codec.make_message(b"\0\1k", properties.encode(Properties(**said)), body, 7)
    assert isinstance(made, Message)
    return made


@settings(max_examples=examples(300))
@given(ANY)
def test_an_address_is_what_decoding_says(said: dict[str, Any]) -> None:
    asked = message(said)
    assert headers.reply_to(asked) == model.reply_to(asked)


@settings(max_examples=examples(300))
@given(ANY, st.binary(max_size=40) | st.just(b"k" * 255), st.binary(max_size=20))
def test_another_address_changes_nothing_else(said: dict[str, Any], address: bytes, body: bytes) -> None:
    asked = message({**said, "reply_to": said.get("reply_to") or ""}, body)
    found, expected = headers.with_reply_to(asked, address), model.with_reply_to(asked, address)
    assert (found.header, found.body, found.address) == (expected.header, expected.body, expected.address)
    assert (found.flags, found.priority, found.time_ms, found.ttl_ms) == (
        asked.flags, asked.priority, asked.time_ms, asked.ttl_ms,
    )  # fmt: skip


@settings(max_examples=examples(200))
@given(ANY, st.integers(0, 60))
def test_what_is_cut_off_is_not_read(said: dict[str, Any], kept: int) -> None:
    whole = message({**said, "reply_to": "r"}, b"")
    short = Message(whole.address, whole.header[:kept], min(kept, len(whole.header)), whole.flags, 0, 7, -1, 0)
    assert headers.reply_to(short) in (None, b"r")


def test_there_is_nothing_to_replace() -> None:
    without, other = message({}), message({"reply_to": "r"})
    sections = Message(b"\0\1k", other.payload, other.header_length, other.flags, 0, 7, -1, SECTIONS)
    assert headers.reply_to(sections) is None
    for asked, address in ((without, b"a"), (sections, b"a"), (other, b"k" * 256)):
        with pytest.raises(ValueError, match="no address"):
            headers.with_reply_to(asked, address)
