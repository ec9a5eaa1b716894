"""Elementary domains and field tables: their bytes, their types, and what is refused."""

from __future__ import annotations

import copy
import math
import struct
from decimal import Decimal
from enum import IntEnum
from typing import Any

import pytest

from clusterbroker.broker.wire.amqp091.domains import (
    pull_bits,
    pull_long,
    pull_longlong,
    pull_longstr,
    pull_octet,
    pull_short,
    pull_shortstr,
    push_bits,
    push_long,
    push_longlong,
    push_longstr,
    push_octet,
    push_short,
    push_shortstr,
)
from clusterbroker.broker.wire.amqp091.errors import ConnectionFault
from clusterbroker.broker.wire.amqp091.fields import (
    FieldLimits,
    LongBytes,
    Timestamp,
    decode_fields,
    pull_table,
    push_table,
)
from clusterbroker.broker.wire.numbers import Float32, Int8, Int16, Int32, Int64L, UInt8, UInt16, UInt32

VALUES: list[tuple[bytes, Any]] = [
    (b"t\x00", False),
    (b"t\x01", True),
    (b"b\x80", Int8(-128)),
    (b"B\xff", UInt8(255)),
    (b"s\x80\x00", Int16(-(2**15))),
    (b"u\xff\xff", UInt16(2**16 - 1)),
    (b"I\x80\x00\x00\x00", Int32(-(2**31))),
    (b"i\xff\xff\xff\xff", UInt32(2**32 - 1)),
    (b"l\x80" + bytes(7), -(2**63)),
    (b"L\xff\xff\xff\xff\xff\xff\xff\xfe", Int64L(-2)),
    (b"T\xff\xff\xff\xff\xff\xff\xff\xff", Timestamp(2**64 - 1)),
    (b"f\x3f\xc0\x00\x00", Float32(1.5)),
    (b"d\x3f\xf8\x00\x00\x00\x00\x00\x00", 1.5),
    (b"d\x7f\xf0\x00\x00\x00\x00\x00\x00", math.inf),
    (b"D\x02\x00\x00\x01\x3a", Decimal("3.14")),
    (b"D\x01\xff\xff\xff\xf1", Decimal("-1.5")),
    (b"D\xff\x80\x00\x00\x00", Decimal((1, (2, 1, 4, 7, 4, 8, 3, 6, 4, 8), -255))),
    (b"D\x05\x00\x00\x00\x00", Decimal("0E-5")),
    (b"S\x00\x00\x00\x03\xc3\xa4b", "äb"),
    (b"S\x00\x00\x00\x00", ""),
    (b"S\x00\x00\x00\x02\xff\x00", LongBytes(b"\xff\x00")),
    (b"x\x00\x00\x00\x02hi", b"hi"),
    (b"V", None),
    (b"A\x00\x00\x00\x03t\x01V", [True, None]),
    (b"A\x00\x00\x00\x00", []),
    (b"F\x00\x00\x00\x03\x01aV", {"a": None}),
    (b"F\x00\x00\x00\x00", {}),
]


def table_of(*values: bytes) -> bytes:
    """The fields a, b, c, ... with these encoded values."""
    fields = b"".join(bytes((1, ord("a") + place)) + value for place, value in enumerate(values))
    return struct.pack(">I", len(fields)) + fields


def refused(raw: bytes, limits: FieldLimits | None = None) -> str:
    """The text of the syntax error that pulling a table from ``raw`` raises."""
    with pytest.raises(ConnectionFault) as caught:
        pull_table(raw, 0, limits or FieldLimits())
    assert caught.value.code == 502
    return caught.value.text


@pytest.mark.parametrize(("raw", "value"), VALUES)
def test_each_type_has_its_bytes_and_its_python_type(raw: bytes, value: Any) -> None:
    pulled, end = pull_table(table_of(raw), 0)
    assert pulled == {"a": value}
    assert type(pulled["a"]) is type(value)
    assert end == len(table_of(raw))
    assert push_table({"a": value}) == table_of(raw)


def test_all_types_together_come_back_in_order() -> None:
    raw = table_of(*[raw for raw, _ in VALUES])
    pulled, _ = pull_table(raw, 0)
    assert list(pulled.values()) == [value for _, value in VALUES]
    assert push_table(pulled) == raw


@pytest.mark.parametrize(
    "raw",
    [
        b"d\x7f\xf8\x00\x00\x00\x00\x00\x00",
        b"d\x7f\xf0\x00\x00\x00\x00\x00\x01",
        b"d\xff\xf8\x00\x00\x00\x00\xbe\xef",
        b"f\x7f\x80\x00\x01",
        b"f\xff\xc0\x00\x00",
        b"f\x7f\x80\x00\x00",
        b"f\x00\x00\x00\x01",
    ],
)
def test_numbers_that_are_none_keep_their_bits(raw: bytes) -> None:
    pulled, _ = pull_table(table_of(raw), 0)
    assert push_table(pulled) == table_of(raw)
    assert push_table(copy.deepcopy(pulled)) == table_of(raw)


def test_a_tagged_number_calculates_like_its_plain_type() -> None:
    assert Int16(10) == 10
    assert UInt32(10) == 10
    assert type(Int16(10) + 1) is int
    assert Float32(1.5) == 1.5
    assert Float32(0.1) != 0.1
    assert f"{Int16(10)}" == "10"


def test_a_table_inside_other_bytes_is_found_and_left() -> None:
    raw = b"before" + table_of(b"V") + b"after"
    pulled, end = pull_table(raw, 6)
    assert pulled == {"a": None}
    assert raw[end:] == b"after"


def test_the_last_of_two_fields_with_one_name_wins() -> None:
    fields = b"\x01at\x00\x01bV\x01at\x01"
    assert decode_fields(fields) == {"a": True, "b": None}


def test_any_octet_but_zero_is_true() -> None:
    pulled, _ = pull_table(table_of(b"t\x02"), 0)
    assert pulled["a"] is True
    assert push_table(pulled) == table_of(b"t\x01")


def test_a_name_that_is_not_utf8_comes_back_as_it_was() -> None:
    raw = b"\x00\x00\x00\x04\x02\xff\xc3V"
    pulled, _ = pull_table(raw, 0)
    assert push_table(pulled) == raw


def test_amqplain_fields_come_without_a_length() -> None:
    fields = b"\x05LOGINS\x00\x00\x00\x05guest\x08PASSWORDS\x00\x00\x00\x01x"
    assert decode_fields(fields) == {"LOGIN": "guest", "PASSWORD": "x"}


@pytest.mark.parametrize("raw", [raw for raw, _ in VALUES])
def test_every_truncation_is_a_syntax_error(raw: bytes) -> None:
    whole = table_of(raw)
    for length in range(len(whole)):
        refused(whole[:length])
    for length in range(len(whole) - 5):
        refused(struct.pack(">I", length + 1) + whole[4 : 5 + length])


def test_a_length_beyond_the_enclosing_table_is_refused_though_bytes_follow() -> None:
    assert "truncated" in refused(b"\x00\x00\x00\x08\x01aS\x00\x00\x00\x09b" + b"behind the table")
    assert "truncated" in refused(b"\x00\x00\x00\x05\x01al\x00\x00" + b"behind the table")
    assert "truncated" in refused(b"\x00\x00\x00\x03\x09ab" + b"behind the table")
    assert "truncated" in refused(b"\x00\x00\x00\x08\x01aF\xff\xff\xff\xff\x00" + b"behind the table")


def test_unknown_tags_are_refused() -> None:
    known = set(b"tbBsuIilLfdDSATFVx")
    for tag in set(range(256)) - known:
        assert refused(table_of(bytes((tag,)) + bytes(8))) == f"unknown field type 0x{tag:02x}"


def nested(tag: bytes, levels: int) -> bytes:
    """Tables (or arrays in a table) inside each other, ``levels`` in all; each is wrapped in linear time."""
    header = 7 if tag == b"F" else 5
    name = b"\x01a" if tag == b"F" else b""
    inner = b"".join(name + tag + struct.pack(">I", header * (levels - level - 2)) for level in range(levels - 1))
    inner = inner if tag == b"F" else b"\x01a" + inner
    return struct.pack(">I", len(inner)) + inner


@pytest.mark.parametrize("tag", [b"F", b"A"])
def test_ten_thousand_levels_are_a_clean_syntax_error(tag: bytes) -> None:
    assert refused(nested(tag, 10_000)) == "field table nested deeper than 64"


@pytest.mark.parametrize("tag", [b"F", b"A"])
def test_depth_max_is_exact(tag: bytes) -> None:
    limits = FieldLimits(depth_max=5)
    pulled, _ = pull_table(nested(tag, 5), 0, limits)
    assert push_table(pulled) == nested(tag, 5)
    assert refused(nested(tag, 6), limits) == "field table nested deeper than 5"


def test_the_deepest_depth_allowed_fits_the_stack() -> None:
    pulled, _ = pull_table(nested(b"F", 200), 0, FieldLimits(depth_max=200))
    assert push_table(pulled) == nested(b"F", 200)


def test_entries_max_counts_the_whole_tree() -> None:
    raw = table_of(b"V", b"A\x00\x00\x00\x02VV", b"V")
    assert pull_table(raw, 0, FieldLimits(entries_max=5))[0] == {"a": None, "b": [None, None], "c": None}
    assert refused(raw, FieldLimits(entries_max=4)) == "more than 4 values in a field table"


def test_limits_that_cannot_be_kept_are_refused() -> None:
    for depth_max in (0, 201):
        with pytest.raises(ValueError, match="depth_max"):
            FieldLimits(depth_max=depth_max)
    with pytest.raises(ValueError, match="entries_max"):
        FieldLimits(entries_max=-1)


@pytest.mark.parametrize(
    "value",
    [
        Int8(128),
        UInt8(-1),
        Int16(2**15),
        UInt16(-1),
        Int32(2**31),
        UInt32(2**32),
        Timestamp(-1),
        2**63,
        Decimal("NaN"),
        Decimal("Infinity"),
        Decimal(2**31),
        Decimal("1E+100"),
        Decimal("1E-256"),
    ],
)
def test_a_value_out_of_its_range_is_our_mistake(value: Any) -> None:
    with pytest.raises(ValueError):
        push_table({"a": value})


def test_a_value_without_a_field_type_is_our_mistake() -> None:
    with pytest.raises(TypeError, match="object is not a field type"):
        push_table({"a": object()})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="shortstr"):
        push_table({"a" * 256: None})
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValueError, match="nested"):
        push_table({"a": endless})


def test_other_python_types_go_by_what_they_descend_from() -> None:
    class Level(IntEnum):
        HIGH = 3

    assert push_table({"a": Level.HIGH}) == push_table({"a": 3})
    assert push_table({"a": (True,)}) == push_table({"a": [True]})  # type: ignore[dict-item]
    assert push_table({"a": Decimal("1E+2")}) == push_table({"a": Decimal(100)})


@pytest.mark.parametrize(
    ("pull", "push", "size"),
    [
        (pull_octet, push_octet, 1),
        (pull_short, push_short, 2),
        (pull_long, push_long, 4),
        (pull_longlong, push_longlong, 8),
    ],
)
def test_numbers_are_unsigned_and_big_endian(pull: Any, push: Any, size: int) -> None:
    top = 256**size - 1
    for value in (0, 1, top - 1, top):
        raw = value.to_bytes(size, "big")
        assert push(value) == raw
        assert pull(b"?" + raw + b"?", 1) == (value, 1 + size)
    for value in (-1, top + 1):
        with pytest.raises(ValueError, match="does not fit"):
            push(value)
    with pytest.raises(ConnectionFault, match="truncated"):
        pull(bytes(size - 1), 0)


def test_short_strings() -> None:
    assert pull_shortstr(b"\x02\xc3\xa4?", 0) == ("ä", 3)
    assert push_shortstr("ä") == b"\x02\xc3\xa4"
    assert push_shortstr("x" * 255) == b"\xff" + b"x" * 255
    with pytest.raises(ValueError, match="256 bytes"):
        push_shortstr("ä" * 128)
    for truncated in (b"", b"\x02x"):
        with pytest.raises(ConnectionFault, match="truncated"):
            pull_shortstr(truncated, 0)


def test_a_short_string_that_is_not_utf8() -> None:
    with pytest.raises(ConnectionFault, match="SYNTAX_ERROR - malformed UTF-8"):
        pull_shortstr(b"\x01\xff", 0)
    text, end = pull_shortstr(b"\x01\xff", 0, "surrogateescape")
    assert (push_shortstr(text), end) == (b"\x01\xff", 2)


def test_long_strings_hold_any_bytes() -> None:
    assert pull_longstr(b"\x00\x00\x00\x02\xff\x00?", 0) == (b"\xff\x00", 6)
    assert push_longstr(b"\xff\x00") == b"\x00\x00\x00\x02\xff\x00"
    for truncated in (b"", b"\x00\x00\x00", b"\x00\x00\x00\x01", b"\xff\xff\xff\xffx"):
        with pytest.raises(ConnectionFault, match="truncated"):
            pull_longstr(truncated, 0)


def test_bits_fill_octets_from_below() -> None:
    assert push_bits(True, False, True) == b"\x05"
    assert push_bits(*[False] * 8, True) == b"\x00\x01"
    assert pull_bits(b"\x05", 0, 3) == ([True, False, True], 1)
    assert pull_bits(b"\xf8", 0, 3) == ([False, False, False], 1)
    assert pull_bits(b"?\x00\x01", 1, 9) == ([False] * 8 + [True], 3)
    with pytest.raises(ConnectionFault, match="truncated"):
        pull_bits(b"\x00", 0, 9)
