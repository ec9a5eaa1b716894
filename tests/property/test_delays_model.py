"""The compiled reader of delays against its model: what it says is what decoding says, and it errs on None only."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from clusterbroker.broker.content import delays
from clusterbroker.broker.routing.delays import key_delay_s
from clusterbroker.broker.wire.amqp091 import codec, properties
from clusterbroker.broker.wire.amqp091.domains import push_shortstr
from clusterbroker.broker.wire.amqp091.properties import Properties
from clusterbroker.broker.wire.numbers import Float32, Int8, Int16, Int32, Int64L, UInt8, UInt16, UInt32
from clusterbroker.journal.due_index import DueIndex
from clusterbroker.journal.layout import ANSWERABLE
from clusterbroker.journal.record import Message
from clusterbroker.journal.values import LongBytes, Timestamp
from tests.budget import examples
from tests.model import delays as model

NOW_MS = 1_700_000_000_000
NAMES = (
    "x-delay", "x-deliver-at", "x-opt-delivery-time", "x-opt-delivery-delay", "x-delay-key", "x-producer", "CC", "BCC",
    "x-delay-to", "x-delayed", "a", "",
)  # fmt: skip
WHOLE = st.one_of(
    st.integers(-128, 127).map(Int8),
    st.integers(0, 255).map(UInt8),
    st.integers(-(2**15), 2**15 - 1).map(Int16),
    st.integers(0, 2**16 - 1).map(UInt16),
    st.integers(-(2**31), 2**31 - 1).map(Int32),
    st.integers(0, 2**32 - 1).map(UInt32),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**63), 2**63 - 1).map(Int64L),
    st.integers(NOW_MS - 5, NOW_MS + 5),
)
VALUES = st.one_of(
    WHOLE,
    st.booleans(),
    st.none(),
    st.floats(width=32).map(Float32),
    st.floats(),
    st.integers(0, 2**64 - 1).map(Timestamp),
    st.text(max_size=300),
    st.sampled_from(["17", "1.5", "k" * 255, "k" * 256]),
    st.binary(max_size=5),
    st.binary(max_size=5).map(lambda raw: LongBytes(b"\xff" + raw)),
    st.lists(st.integers(0, 9), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=3),
)
HEADERS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6)


def message(headers: dict[str, Any] | None, **more: Any) -> Message:
    made = codec.make_message(b"\0\1k", properties.encode(Properties(headers=headers, **more)), b"body", NOW_MS)
    assert isinstance(made, Message)
    return made


@settings(max_examples=examples(300))
@given(st.none() | HEADERS, st.none() | st.text(max_size=5), st.none() | st.integers(1, 2))
def test_what_it_says_is_what_decoding_says(headers: dict[str, Any] | None, kind: str | None, mode: int | None) -> None:
    asked = message(headers, content_type=kind, delivery_mode=mode)
    said, right = delays.due_of(asked, NOW_MS), model.due_of(asked, NOW_MS)  # type: ignore[arg-type]
    assert said is None or said == right
    header, right_header = delays.fired_header(asked), model.fired_header(asked)  # type: ignore[arg-type]
    if header is not None:
        assert right_header is not None
        assert properties.decode(header) == properties.decode(right_header)


@settings(max_examples=examples(200))
@given(st.none() | HEADERS, st.none() | st.text(max_size=5))
def test_a_kept_header_is_the_publishers(headers: dict[str, Any] | None, kind: str | None) -> None:
    asked = message(headers, content_type=kind)
    said, right = delays.kept_header(asked), model.kept_header(asked)  # type: ignore[arg-type]
    assert said is None or said == right == asked.header


@settings(max_examples=examples(300))
@given(
    st.text("xe", max_size=4),
    st.lists(st.sampled_from("0101012 "), max_size=30),
    st.sampled_from([".", ".k", "", ".0.k", "..", "k", ".é"]),
    st.sampled_from([1, 2, 20, 28]),
)
def test_seconds_of_a_key_are_those_of_the_router(exchange: str, words: list[str], rest: str, bits: int) -> None:
    key = ".".join(words) + rest
    address = push_shortstr(exchange) + push_shortstr(key)
    asked = codec.make_message(address, properties.encode(Properties()), b"", NOW_MS)
    assert isinstance(asked, Message)
    said = delays.key_delay_s(asked, bits)
    assert said == model.key_delay_s(asked, bits) == key_delay_s(key, bits)  # type: ignore[arg-type]


@settings(max_examples=examples(200))
@given(
    st.lists(st.none() | HEADERS | WHOLE.map(lambda delay: {"x-delay": delay}), max_size=6), st.booleans(),
    st.none() | st.integers(0, 9), st.sampled_from([0, 1, 40, 1 << 20]),
)  # fmt: skip
def test_what_goes_on_is_made_as_when_its_header_is_decoded(
    several: list[dict[str, Any] | None], answerable: bool, priority: int | None, bytes_max: int
) -> None:
    messages = []
    for place, headers in enumerate(several):
        made = message(headers, priority=priority, expiration="5", reply_to="r")
        flags = made.flags | ANSWERABLE * answerable
        waits = Message(made.address + bytes([0] * (place == 4)), made.payload, made.header_length, flags, 0, 1, 7)
        messages.append(waits)
    (made, bytes_looked), (right, right_bytes) = delays.fired(messages, NOW_MS), model.fired(messages, NOW_MS)  # type: ignore[arg-type]
    assert bytes_looked == right_bytes
    for made_one, right_one in zip(made, right, strict=True):
        if made_one is not None:
            assert right_one is not None
            for name in ("address", "body", "flags", "priority", "time_ms", "ttl_ms", "format"):
                assert getattr(made_one, name) == getattr(right_one, name), name
            assert properties.decode(made_one.header) == properties.decode(right_one.header)
    count, looked = delays.alike(messages, bytes_max)
    assert (count, looked) == model.alike(messages[:count], bytes_max), "it may end earlier, and nothing else"  # type: ignore[arg-type]
    assert delays.alike(messages, 1 << 40)[0] == next(
        (n for n, one in enumerate(messages) if delays.fired_header(one) is None or n == 4), len(messages)
    )


@settings(max_examples=examples(200))
@given(st.lists(st.none() | HEADERS, max_size=6), st.booleans())
def test_runs_are_those_of_messages_looked_at_one_by_one(several: list[dict[str, Any] | None], reply: bool) -> None:
    messages = [message(headers, reply_to="r" if reply else None) for headers in several]
    said, right = delays.runs(messages, NOW_MS), model.runs(messages, NOW_MS)  # type: ignore[arg-type]
    if said is not None and any(b"x-delay-key" in one.header for one in messages):
        right = right or said  # a key that is no text was refused when it came
    assert said is None or said == right


@settings(max_examples=examples(50))
@given(st.lists(st.integers(-2, 2), max_size=8))
def test_plain_messages_need_no_look_at_each(several: list[int]) -> None:
    messages = [message({"x-delay": delay}) for delay in several]
    assert delays.runs(messages, NOW_MS) == model.runs(messages, NOW_MS)  # type: ignore[arg-type]


@settings(max_examples=examples(50))
@given(WHOLE, st.sampled_from(["x-delay", "x-deliver-at", "x-opt-delivery-delay"]))
def test_whole_numbers_need_no_decoding(value: int, name: str) -> None:
    asked = message({"other": "x", name: value})
    said = delays.due_of(asked, NOW_MS)
    assert said is not None or abs(value) >= 2**61


@settings(max_examples=examples(100))
@given(st.binary(max_size=80))
def test_bytes_of_any_kind_are_safe(raw: bytes) -> None:
    asked = Message(b"\0\0", b"\x20\0" + len(raw).to_bytes(4) + raw, 6 + len(raw), 2)
    delays.due_of(asked, NOW_MS)
    delays.fired_header(asked)


def test_what_waits_has_its_due_time_for_its_time_to_live() -> None:
    asked = message({"x-delay": 5}, delivery_mode=1)
    made = delays.waiting(asked, NOW_MS, NOW_MS + 5)
    right = model.waiting(asked, NOW_MS, NOW_MS + 5)  # type: ignore[arg-type]
    assert (made.ttl_ms, made.flags, made.time_ms, made.payload) == (
        right.ttl_ms, right.flags, right.time_ms, right.payload,
    )  # fmt: skip
    assert delays.waiting(asked, NOW_MS, 2**62).ttl_ms == NOW_MS + model.DELAY_MS_MAX


@settings(max_examples=examples(100))
@given(st.lists(st.none() | HEADERS, max_size=6), st.integers(0, 2), st.integers(0, 200))
def test_what_waits_is_noted_as_when_it_is_decoded(
    several: list[dict[str, Any] | None], at: int, bytes_max: int
) -> None:
    waits = [delays.waiting(message(headers), NOW_MS, NOW_MS + place) for place, headers in enumerate(several)]
    seqs = list(range(7, 7 + len(several)))
    said, right = DueIndex(), model.DueIndex()
    end, looked = delays.note_waiting(seqs, waits, at, said, bytes_max)
    right_end, right_looked = model.note_waiting(seqs, waits[:end], at, right, bytes_max)  # type: ignore[arg-type]
    assert (end, looked) == (right_end, right_looked), "it may end earlier, and nothing else"
    assert said.within(0, 2**62, 9) == right.within(0, 2**62, 9)
