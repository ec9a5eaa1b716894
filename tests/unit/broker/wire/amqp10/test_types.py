"""Every encoding of every type of AMQP 1.0 (specification 1.6), and what is none."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterbroker.broker.wire.amqp10.types import (
    Array,
    Char,
    Decimal,
    DecodeError,
    Described,
    Milliseconds,
    Symbol,
    Uuid,
    decode,
    decode_all,
    encode,
    symbols,
)
from clusterbroker.broker.wire.numbers import Float32, Int8, Int16, Int32, UInt8, UInt16, UInt32, UInt64
from tests.budget import examples

ENCODINGS: list[tuple[bytes, Any]] = [
    (b"\x40", None),
    (b"\x41", True),
    (b"\x42", False),
    (b"\x56\x00", False),
    (b"\x56\x01", True),
    (b"\x50\xff", UInt8(255)),
    (b"\x60\xff\xff", UInt16(65535)),
    (b"\x70\xff\xff\xff\xff", UInt32(2**32 - 1)),
    (b"\x52\xff", UInt32(255)),
    (b"\x43", UInt32(0)),
    (b"\x80" + b"\xff" * 8, UInt64(2**64 - 1)),
    (b"\x53\x07", UInt64(7)),
    (b"\x44", UInt64(0)),
    (b"\x51\x80", Int8(-128)),
    (b"\x61\x80\x00", Int16(-32768)),
    (b"\x71\x80\x00\x00\x00", Int32(-(2**31))),
    (b"\x54\xff", Int32(-1)),
    (b"\x81\x80" + b"\0" * 7, -(2**63)),
    (b"\x55\x80", -128),
    (b"\x72\x3f\xc0\x00\x00", Float32(1.5)),
    (b"\x82" + struct.pack(">d", 1.5), 1.5),
    (b"\x74abcd", Decimal(b"abcd")),
    (b"\x84abcdefgh", Decimal(b"abcdefgh")),
    (b"\x94" + bytes(16), Decimal(bytes(16))),
    (b"\x73\x00\x01\xf6\x00", Char("\U0001f600")),
    (b"\x83" + b"\xff" * 8, Milliseconds(-1)),
    (b"\x98" + bytes(range(16)), Uuid(bytes(range(16)))),
    (b"\xa0\x02\x00\xff", b"\x00\xff"),
    (b"\xb0\x00\x00\x00\x01\xff", b"\xff"),
    (b"\xa1\x02\xc3\xbc", "ü"),
    (b"\xb1\x00\x00\x00\x01a", "a"),
    (b"\xa3\x01a", Symbol("a")),
    (b"\xb3\x00\x00\x00\x01a", Symbol("a")),
    (b"\x45", []),
    (b"\xc0\x03\x02\x40\x41", [None, True]),
    (b"\xd0\x00\x00\x00\x05\x00\x00\x00\x01\x40", [None]),
    (b"\xc1\x05\x02\xa3\x01a\x40", {Symbol("a"): None}),
    (b"\xd1\x00\x00\x00\x08\x00\x00\x00\x02\xa3\x01a\x40", {Symbol("a"): None}),
    (b"\xe0\x04\x02\x50\x01\x02", Array(0x50, [UInt8(1), UInt8(2)])),
    (b"\xf0\x00\x00\x00\x07\x00\x00\x00\x02\x50\x01\x02", Array(0x50, [UInt8(1), UInt8(2)])),
    (b"\xe0\x07\x01\x00\xa3\x01d\x50\x09", Array(0x50, [UInt8(9)], Symbol("d"))),
    (b"\x00\x53\x24\x45", Described(UInt64(0x24), [])),
    (b"\x00\xa3\x01d\xa1\x01v", Described(Symbol("d"), "v")),
]


@pytest.mark.parametrize(("raw", "value"), ENCODINGS)
def test_each_encoding_is_read(raw: bytes, value: Any) -> None:
    found, end = decode(raw + b"more")
    assert (found, type(found), end) == (value, type(value), len(raw))


SHORTEST: list[tuple[Any, bytes]] = [
    (UInt32(0), b"\x43"), (UInt32(255), b"\x52\xff"), (UInt32(256), b"\x70\x00\x00\x01\x00"), (UInt64(0), b"\x44"),
    (UInt64(1), b"\x53\x01"), (-128, b"\x55\x80"), (128, b"\x81" + bytes(7) + b"\x80"), (Int32(-1), b"\x54\xff"),
    (True, b"\x41"), ("", b"\xa1\x00"), ("a" * 256, b"\xb1\x00\x00\x01\x00" + b"a" * 256), ([], b"\x45"),
    ({}, b"\xc1\x01\x00"), (symbols(["a", "bc"]), b"\xe0\x07\x02\xa3\x01a\x02bc"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "raw"), SHORTEST)
def test_the_shortest_encoding_is_written(value: Any, raw: bytes) -> None:
    assert encode(value) == raw


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"\x56", b"\x56\x02", b"\x70\0\0\0", b"\xa1\x05a", b"\xa1\x01\xff", b"\xa3\x01\xff", b"\xb0\0\0", b"\xc0",
        b"\xc0\x00", b"\xc0\x02\x02\x40", b"\xc0\x03\x01\x40\x40", b"\xc1\x02\x01\x40", b"\xc1\x03\x02\x45\x40",
        b"\xe0\x01\x00",
        b"\xe0\x02\x01\x3f", b"\xe0\x04\x01\x00\x40\x00", b"\x00\x40", b"\x3f", b"\x46", b"\xa2\x00", b"\xf1\0\0\0\0",
        b"\x73\x00\x00\xd8\x00", b"\x73\x00\x11\x00\x00", b"\xf0\0\0\0\x05\xff\xff\xff\xff\x40", b"\0" * 40 + b"\x40",
        b"\xc0\x21\x01" * 40,
    ],
)  # fmt: skip
def test_what_is_no_value_is_refused(raw: bytes) -> None:
    with pytest.raises(DecodeError):
        decode(raw)


def test_lists_end_where_they_say() -> None:
    with pytest.raises(DecodeError):
        decode_all(b"\x40\x40")


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(0, 255).map(UInt8), st.integers(0, 2**16 - 1).map(UInt16),
    st.integers(0, 2**32 - 1).map(UInt32), st.integers(0, 2**64 - 1).map(UInt64), st.integers(-128, 127).map(Int8),
    st.integers(-(2**15), 2**15 - 1).map(Int16), st.integers(-(2**31), 2**31 - 1).map(Int32),
    st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1).map(Milliseconds), st.floats(allow_nan=False),
    st.binary(min_size=4, max_size=4).map(Float32.unpack).filter(lambda value: not math.isnan(value)),
    st.sampled_from([4, 8, 16]).flatmap(lambda size: st.binary(min_size=size, max_size=size)).map(Decimal),
    st.characters(codec="utf-8").map(Char), st.binary(min_size=16, max_size=16).map(Uuid),
    st.binary(max_size=300), st.text(max_size=300),
    st.text(st.characters(codec="ascii"), max_size=300).map(Symbol),
)  # fmt: skip
keys = st.one_of(st.text(max_size=5).map(lambda text: "k" + text), st.integers(0, 99).map(UInt64))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(keys, inner, max_size=5),
        st.builds(Described, st.integers(0, 2**64 - 1).map(UInt64) | st.just(Symbol("a:b")), inner),
        st.lists(st.integers(0, 2**32 - 1).map(UInt32), max_size=5).map(lambda items: Array(0x70, items)),
        st.lists(st.lists(inner, max_size=2), max_size=3).map(lambda items: Array(0xD0, items)),
    ),
    max_leaves=12,
)


@settings(max_examples=examples(300), deadline=None)
@given(values)
def test_a_value_comes_back_with_its_type(value: Any) -> None:
    found = decode_all(encode(value))
    assert found == value
    assert type(found) is type(value)


@settings(max_examples=examples(300), deadline=None)
@given(values, st.data())
def test_damaged_bytes_raise_nothing_else(value: Any, data: st.DataObject) -> None:
    raw = bytearray(encode(value))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_all(bytes(raw))
    except DecodeError:
        pass


@pytest.mark.parametrize("value", [UInt8(256), UInt32(-1), 2**63, Int8(200), Decimal(b"abc")])
def test_what_does_not_fit_its_type_is_our_mistake(value: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        encode(value)


def test_what_has_no_type_is_our_mistake() -> None:
    with pytest.raises(TypeError):
        encode(object())
