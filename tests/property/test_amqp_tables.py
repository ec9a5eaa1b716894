"""For all values: what is encoded decodes to itself, types included; for all bytes: only AmqpError."""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.broker.wire.amqp091 import domains, methods, properties
from clusterbroker.broker.wire.amqp091.errors import AmqpError, not_found
from clusterbroker.broker.wire.amqp091.fields import (
    FieldLimits,
    LongBytes,
    Timestamp,
    decode_fields,
    pull_table,
    push_table,
)
from clusterbroker.broker.wire.amqp091.methods import METHODS, Method
from clusterbroker.broker.wire.amqp091.properties import PROPERTIES, Properties
from clusterbroker.broker.wire.numbers import Float32, Int8, Int16, Int32, Int64L, UInt8, UInt16, UInt32


def whole(bits: int, signed: bool) -> st.SearchStrategy[int]:
    low = -(2 ** (bits - 1)) if signed else 0
    return st.integers(low, low + 2**bits - 1)


def not_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return True
    return False


def octets_max(limit: int) -> Callable[[str], bool]:
    return lambda text: len(text.encode()) <= limit


short_strings = st.text(max_size=255).filter(octets_max(255))
decimals = st.builds(
    lambda unscaled, scale: Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale)),
    whole(32, True),
    st.integers(0, 255),
)
scalars: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    whole(8, True).map(Int8),
    whole(8, False).map(UInt8),
    whole(16, True).map(Int16),
    whole(16, False).map(UInt16),
    whole(32, True).map(Int32),
    whole(32, False).map(UInt32),
    whole(64, True),
    whole(64, True).map(Int64L),
    whole(64, False).map(Timestamp),
    st.floats(),
    st.binary(min_size=4, max_size=4).map(Float32.unpack),
    decimals,
    st.text(),
    st.binary(min_size=1).filter(not_utf8).map(LongBytes),
    st.binary(),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(short_strings, inner, max_size=4),
    max_leaves=20,
)
tables = st.dictionaries(short_strings, values, max_size=6)

DOMAINS: dict[str, st.SearchStrategy[Any]] = {
    "bit": st.booleans(),
    "octet": whole(8, False),
    "short": whole(16, False),
    "long": whole(32, False),
    "longlong": whole(64, False),
    "timestamp": whole(64, False),
    "shortstr": short_strings,
    "longstr": st.binary(max_size=300),
    "table": tables,
}


def typed(value: Any) -> Any:
    """A value with its types spelled out and floats by their bits, so that NaN is NaN and 1 is not True."""
    if isinstance(value, dict):
        return [(name, typed(item)) for name, item in value.items()]
    if isinstance(value, list):
        return [typed(item) for item in value]
    if isinstance(value, Float32):
        return Float32, value.raw
    if isinstance(value, float):
        return float, struct.pack(">d", value)
    if isinstance(value, Decimal):
        return Decimal, value.as_tuple()
    return type(value), value


def of_method(method: type[Method]) -> st.SearchStrategy[Method]:
    fields = st.tuples(*[DOMAINS[domain] for _, domain in method.LAYOUT.fields])
    return fields.map(lambda values: method(*values))


any_method = st.sampled_from(list(METHODS.values())).flatmap(of_method)
any_properties = st.builds(
    lambda **given: Properties(**given), **{name: st.none() | DOMAINS[domain] for name, domain in PROPERTIES}
)


@given(tables)
def test_a_table_comes_back_with_every_type(table: dict[str, Any]) -> None:
    raw = push_table(table)
    again, end = pull_table(raw, 0)
    assert typed(again) == typed(table)
    assert end == len(raw)
    assert push_table(again) == raw


@given(any_method)
def test_a_method_comes_back_with_every_type(method: Method) -> None:
    payload = methods.encode(method)
    again = methods.decode(payload)
    assert type(again) is type(method)
    for name, _ in method.LAYOUT.fields:
        assert typed(getattr(again, name)) == typed(getattr(method, name))
    assert methods.encode(again) == payload


@given(any_properties)
def test_properties_come_back_with_every_type(value: Properties) -> None:
    raw = properties.encode(value)
    again = properties.decode(raw)
    for name, _ in PROPERTIES:
        assert typed(getattr(again, name)) == typed(getattr(value, name))
    assert properties.encode(again) == raw


@given(st.text(), st.integers(0, 400))
def test_a_reply_text_always_fits_its_short_string(text: str, pad: int) -> None:
    reply_text = not_found("x" * pad + text).reply_text
    assert domains.pull_shortstr(domains.push_shortstr(reply_text), 0)[0] == reply_text


SMALL = FieldLimits(depth_max=8, entries_max=100)
DECODERS: list[Callable[[bytes], object]] = [
    lambda raw: pull_table(raw, 0),
    lambda raw: pull_table(raw, 0, SMALL),
    lambda raw: pull_table(raw, 3),
    decode_fields,
    methods.decode,
    properties.decode,
    lambda raw: properties.decode(raw, SMALL),
    lambda raw: domains.pull_octet(raw, 1),
    lambda raw: domains.pull_short(raw, 1),
    lambda raw: domains.pull_long(raw, 1),
    lambda raw: domains.pull_longlong(raw, 1),
    lambda raw: domains.pull_shortstr(raw, 1),
    lambda raw: domains.pull_longstr(raw, 1),
    lambda raw: domains.pull_bits(raw, 1, 12),
]


def survives(decoder: Callable[[bytes], object], raw: bytes) -> None:
    """A malformed value is a syntax error or an unknown method, and nothing else."""
    try:
        decoder(raw)
    except AmqpError as error:
        if error.code not in (502, 503):
            raise


@given(st.binary(max_size=200))
def test_random_bytes_raise_amqp_errors_alone(raw: bytes) -> None:
    for decoder in DECODERS:
        survives(decoder, raw)


@given(st.sampled_from(sorted(METHODS)), st.binary(max_size=200))
def test_random_bytes_behind_a_real_method_raise_amqp_errors_alone(ids: tuple[int, int], raw: bytes) -> None:
    survives(methods.decode, struct.pack(">HH", *ids) + raw)


fragments = st.one_of(
    st.sampled_from([bytes((tag,)) for tag in b"tbBsuIilLfdDSATFVx"]),
    st.integers(0, 40).map(lambda length: struct.pack(">I", length)),
    st.sampled_from([b"\x00", b"\x01a", b"\xff", b"\xff\xff\xff\xff"]),
    st.binary(max_size=9),
)


@given(st.lists(fragments, max_size=40).map(b"".join))
def test_almost_tables_raise_amqp_errors_alone(fields: bytes) -> None:
    survives(decode_fields, fields)
    survives(properties.decode, b"\x20\x00" + struct.pack(">I", len(fields)) + fields)


@given(any_method, st.data())
def test_a_damaged_method_raises_amqp_errors_alone(method: Method, data: st.DataObject) -> None:
    payload = bytearray(methods.encode(method))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    survives(methods.decode, bytes(payload))


@given(st.lists(fragments, max_size=40).map(b"".join))
def test_what_decodes_is_stable_after_one_encoding(fields: bytes) -> None:
    """Bytes that no client would write (a repeated name, a true that is 2) become canonical once and stay so."""
    try:
        table = decode_fields(fields)
    except AmqpError:
        return
    once = push_table(table)
    assert push_table(pull_table(once, 0)[0]) == once
