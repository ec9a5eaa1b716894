"""Translations of messages: the compiled ones are what `content.formats` says, usual headers and unusual ones."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterbroker.broker.content import translation
from clusterbroker.broker.content.formats import BASIC, SECTIONS, format_of
from clusterbroker.broker.content.translation import Translation
from clusterbroker.broker.wire.amqp091 import properties as basic
from clusterbroker.broker.wire.amqp091.properties import Properties as Basic
from clusterbroker.broker.wire.amqp10 import types
from clusterbroker.broker.wire.amqp10.performatives import Header, Properties
from clusterbroker.broker.wire.amqp10.types import Char, Described, Milliseconds, Symbol, Uuid, encode
from clusterbroker.broker.wire.numbers import Float32, Int8, Int16, Int32, Int64L, UInt8, UInt16, UInt32, UInt64
from clusterbroker.journal.record import Message
from clusterbroker.journal.values import LongBytes, Timestamp
from tests.budget import examples
from tests.model.translation import Translation as Model

NAMES = (
    "a", "kind", "x-a", "x-cc", "CC", "BCC", "x-death", "x-opt-deaths", "x-producer", "x-seq", "x-opt-seq", "x-opt-to",
    "x-message-id-type", "x-basic-type", "x-exchange", "timestamp_in_ms", "ä", "x-ä", "long" * 60, "x-" + "long" * 60,
)  # fmt: skip
names = st.sampled_from(NAMES) | st.text(max_size=5)
texts = st.text(max_size=20) | st.sampled_from(("", "urn:uuid:00112233-4455-6677-8899-aabbccddeeff", "urn:uuid:x", "ä"))
shorts = texts.filter(lambda text: len(text.encode("utf-8", "surrogateescape")) < 256) | st.just("x" * 255)
raw_shorts = shorts | st.binary(max_size=4).map(lambda raw: raw.decode("utf-8", "surrogateescape"))


def whole(low: int, high: int) -> st.SearchStrategy[int]:
    edges = [edge for edge in (low, high, 0, 1, 127, 128, 255, 256, -128, -129) if low <= edge <= high]
    return st.sampled_from(edges) | st.integers(low, high)


numbers = [
    whole(0, 255).map(UInt8), whole(0, 2**16 - 1).map(UInt16), whole(0, 2**32 - 1).map(UInt32),
    whole(-(2**7), 2**7 - 1).map(Int8), whole(-(2**15), 2**15 - 1).map(Int16), whole(-(2**31), 2**31 - 1).map(Int32),
    whole(-(2**63), 2**63 - 1), st.floats(), st.binary(min_size=4, max_size=4).map(Float32.unpack), st.booleans(),
    st.none(),
]  # fmt: skip
fields: Any = st.one_of(
    *numbers, whole(-(2**63), 2**63 - 1).map(Int64L), whole(0, 2**64 - 1).map(Timestamp), texts, st.binary(max_size=9),
    st.just(LongBytes(b"\xff")), st.decimals(-1000, 1000, places=2), st.just([1, "a"]), st.just({"a": Decimal(1)}),
)  # fmt: skip
plain_headers: Any = st.dictionaries(
    st.sampled_from(("kind", "x-a", "CC", "n")), st.one_of(texts, *numbers), max_size=3
)
headers = st.none() | plain_headers | st.dictionaries(names, fields, max_size=5)

basics = st.builds(
    lambda **values: Basic(**values),
    content_type=st.none() | raw_shorts, content_encoding=st.none() | shorts, headers=headers,
    delivery_mode=st.none() | st.integers(0, 3), priority=st.none() | st.integers(0, 255),
    correlation_id=st.none() | raw_shorts, reply_to=st.none() | raw_shorts,
    expiration=st.none() | st.integers(0, 2**33).map(str) | st.just("007"),
    message_id=st.none() | shorts, timestamp=st.none() | whole(0, 2**64 - 1),
    type=st.none() | shorts | st.just("amqp-1.0"),
    user_id=st.none() | raw_shorts, app_id=st.none() | raw_shorts, cluster_id=st.none() | shorts,
)  # fmt: skip

long_texts = texts | st.just("y" * 300)
values: Any = st.one_of(
    *numbers, whole(0, 2**64 - 1).map(UInt64), st.binary(max_size=9), long_texts, st.just(b"z" * 300),
    whole(-(2**63), 2**63 - 1).map(Milliseconds), st.binary(min_size=16, max_size=16).map(Uuid), st.just(Symbol("s")),
    st.just(Char("c")), st.just(types.Decimal(b"1234")), st.just([1]), st.just({"a": 1}), st.just([]),
)  # fmt: skip
ids = st.none() | long_texts | whole(0, 2**64 - 1).map(UInt64) | st.binary(max_size=5) | st.just(Uuid(bytes(range(16))))
addresses = st.none() | st.sampled_from(("/queues/q", "/queues/a%20b", "/queues/", "q")) | long_texts | st.just(b"q")
moments = st.none() | whole(-(2**63), 2**63 - 1).map(Milliseconds)
composites = st.builds(
    lambda **values: Properties(**values),
    message_id=ids, user_id=st.none() | st.binary(max_size=5) | st.just(b"u" * 300), to=addresses,
    subject=st.none() | long_texts, reply_to=addresses, correlation_id=ids,
    content_type=st.none() | st.just("text/plain") | st.just("t" * 300), content_encoding=st.none() | st.just("gzip"),
    absolute_expiry_time=moments, creation_time=moments, group_id=st.none() | long_texts,
    group_sequence=st.none() | whole(0, 2**32 - 1), reply_to_group_id=st.none() | long_texts,
)  # fmt: skip
ttls = st.none() | whole(0, 2**32 - 1)
section_headers = st.builds(
    lambda **values: Header(**values), durable=st.booleans(), priority=st.integers(0, 9), ttl=ttls
)
symbols = names.filter(str.isascii).map(Symbol)
annotation_maps: Any = st.dictionaries(symbols | st.just(UInt64(7)), values | st.just(["a", "b"]), max_size=4)
applications: Any = st.dictionaries(names, values, max_size=4)


def section(code: int, value: Any) -> bytes:
    return encode(Described(UInt64(code), value))


@st.composite
def in_sections(draw: st.DrawFn) -> tuple[bytes, bytes]:
    header = b"".join(
        (
            draw(st.just(b"") | section_headers.map(Header.encoded)),
            draw(st.just(b"") | annotation_maps.map(lambda one: section(0x72, one))),
            draw(st.just(b"") | composites.map(Properties.encoded)),
            draw(st.just(b"") | applications.map(lambda one: section(0x74, one))),
        )
    )
    body = draw(
        st.sampled_from(
            (
                section(0x75, b""), section(0x75, b"body"), section(0x75, b"b" * 300), section(0x77, "value"), b"",
                section(0x75, b"one") + section(0x75, b"two"), section(0x75, b"body") + section(0x78, {}),
            )
        )
    )  # fmt: skip
    return header, body


bodies = st.sampled_from((b"", b"body", b"b" * 255, b"b" * 256))


def message(number: int, header: bytes, body: bytes) -> Message:
    made = format_of(number).accept(b"\x01e\x03key", header, body, 12)
    assert isinstance(made, Message), "what the strategies make is accepted"
    return made


def agree(to: int, messages: list[Message]) -> None:
    compiled, model = Translation(to), Model(to)
    for one in messages:
        made = compiled.translated(one)
        expected: Any = model.translated(one)  # type: ignore[arg-type]
        assert (made.header, made.body) == (expected.header, expected.body)
        assert (made.format, made.flags, made.address) == (to, one.flags, one.address)
        assert (made.priority, made.time_ms, made.ttl_ms) == (one.priority, one.time_ms, one.ttl_ms)


@settings(max_examples=examples(400))
@given(st.lists(st.tuples(basics, bodies), min_size=1, max_size=3), st.lists(st.integers(0, 2), max_size=6))
def test_messages_of_0_9_1_for_consumers_of_1_0(given_ones: list[tuple[Basic, bytes]], again: list[int]) -> None:
    messages = [message(BASIC, basic.encode(properties), body) for properties, body in given_ones]
    agree(SECTIONS, messages + [messages[place % len(messages)] for place in again])


@settings(max_examples=examples(400))
@given(st.lists(in_sections(), min_size=1, max_size=3), st.lists(st.integers(0, 2), max_size=6))
def test_messages_of_1_0_for_consumers_of_0_9_1(given_ones: list[tuple[bytes, bytes]], again: list[int]) -> None:
    messages = [message(SECTIONS, header, body) for header, body in given_ones]
    agree(BASIC, messages + [messages[place % len(messages)] for place in again])


@given(st.lists(in_sections(), min_size=1, max_size=3))
def test_messages_that_name_the_brokers_annotations(given_ones: list[tuple[bytes, bytes]]) -> None:
    agree(SECTIONS, [message(SECTIONS, header, body) for header, body in given_ones])


EDGES = [
    edge for bits in (0, 7, 8, 15, 16, 31, 32, 63, 64) for edge in (2**bits - 1, 2**bits, -(2**bits), -(2**bits) - 1)
]
RANGES: list[tuple[Any, int, int]] = [
    (UInt8, 0, 2**8), (UInt16, 0, 2**16), (UInt32, 0, 2**32), (UInt64, 0, 2**64), (Int8, -(2**7), 2**7),
    (Int16, -(2**15), 2**15), (Int32, -(2**31), 2**31), (int, -(2**63), 2**63), (Timestamp, 0, 2**64),
    (Milliseconds, -(2**63), 2**63),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "low", "high"), RANGES)
def test_numbers_at_their_edges(kind: Any, low: int, high: int) -> None:
    values = [kind(edge) for edge in EDGES if low <= edge < high]
    if kind not in (UInt64, Milliseconds):
        agree(SECTIONS, [message(BASIC, basic.encode(Basic(headers={"x-n": one, "n": one})), b"") for one in values])
    if kind is not Timestamp:
        agree(BASIC, [message(SECTIONS, section(0x74, {"n": one}), section(0x75, b"")) for one in values])


def test_lengths_and_times_at_their_edges() -> None:
    for size in (0, 1, 127, 128, 243, 244, 245, 246, 247, 248, 250, 254, 255, 256, 257, 65536):
        text = "t" * size
        agree(SECTIONS, [message(BASIC, basic.encode(Basic(headers={"n": text, "x-n": text})), b"")])
        agree(BASIC, [message(SECTIONS, section(0x74, {"n": text}), section(0x75, b""))])
        known = Properties(message_id=text, reply_to=text, user_id=text.encode(), group_id=text, content_type=text)
        agree(BASIC, [message(SECTIONS, known.encoded(), section(0x75, b""))])
        if size < 256:
            agree(SECTIONS, [message(BASIC, basic.encode(Basic(reply_to=text, app_id=text)), b"")])
    for edge in EDGES:
        if 0 <= edge < 2**63:
            agree(
                SECTIONS,
                [message(BASIC, basic.encode(Basic(timestamp=edge // 1000, expiration=str(edge % 2**32))), b"")],
            )
        if 0 <= edge < 2**32:
            agree(BASIC, [message(SECTIONS, Header(ttl=edge).encoded(), section(0x75, b""))])
    for count in (2, 31, 32, 33, 127, 128, 300):
        many: Any = {f"h{place}": place for place in range(count)}
        agree(SECTIONS, [message(BASIC, basic.encode(Basic(headers=many)), b"")])
        agree(BASIC, [message(SECTIONS, section(0x74, many), section(0x75, b""))])


def test_usual_headers_are_translated_without_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the tests above would compare the model with itself."""

    def unusual(*_: Any) -> Message:
        raise AssertionError("a usual header took the long way")

    monkeypatch.setattr(translation, "translate", unusual)
    usual = Basic(
        content_type="text/plain", content_encoding="gzip",
        headers={"kind": "a", "x-n": 1, "CC": "b", "at": Timestamp(5)}, delivery_mode=2, priority=3, correlation_id="c",
        reply_to="a queue", expiration="9", message_id="m", timestamp=5, type="t", user_id="u", app_id="p",
    )  # fmt: skip
    there = Translation(SECTIONS).translated(message(BASIC, basic.encode(usual), b"body"))
    known = Properties(
        message_id=Uuid(bytes(16)), user_id=b"u", to="/queues/q", subject="s", reply_to="/queues/r", correlation_id="c",
        content_type="text/plain", content_encoding="gzip", absolute_expiry_time=Milliseconds(7),
        creation_time=Milliseconds(9), group_id="g", group_sequence=3, reply_to_group_id="h",
    )  # fmt: skip
    sections = Header(True, 3, 9).encoded() + section(0x72, {Symbol("x-n"): 1}) + known.encoded()
    Translation(BASIC).translated(message(SECTIONS, sections + section(0x74, {"kind": "a"}), section(0x75, b"body")))
    assert there.format == SECTIONS


def test_a_remembered_header_goes_with_another_body() -> None:
    header = basic.encode(Basic(message_id="1", headers={"kind": "a"}))
    agree(SECTIONS, [message(BASIC, header, bytes(size)) for size in (0, 1, 255, 256, 70_000)])
    back = section(0x74, {"kind": "a"})
    bodies = (
        section(0x75, b"a"),
        section(0x77, b"a"),
        section(0x75, b"a" * 300),
        section(0x76, [1]),
        section(0x75, b""),
    )
    agree(BASIC, [message(SECTIONS, back, body) for body in bodies])
