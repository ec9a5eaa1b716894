"""Argument values compare as RabbitMQ's type classes do (amqp-rules.md 5.3)."""

import msgspec
import pytest

from clusterbroker.cluster.wiring.arguments import ENCODER, difference_text, equivalent, same, too_deep, type_name
from clusterbroker.journal.values import Timestamp


class Short(int):
    """An integer that remembers its width, as a codec may make it."""


@pytest.mark.parametrize(
    "a, b",
    [
        (10, Short(10)),
        ({"a": [1, {"b": "x"}]}, {"a": [Short(1), {"b": "x"}]}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (float("nan"), float("nan")),
        (None, None),
        ([1, 2], (1, 2)),
    ],
)
def test_equivalent(a: object, b: object) -> None:
    assert equivalent(a, b)


@pytest.mark.parametrize(
    "a, b",
    [
        (True, 1),
        (False, 0),
        (10, 10.0),
        ("10", 10),
        (None, ""),
        ([], {}),
        ([1, 2], [2, 1]),
        ({"a": 1}, {"a": True}),
        ("text", b"text"),
        (Timestamp(1), 1),
    ],
)
def test_not_equivalent(a: object, b: object) -> None:
    assert not equivalent(a, b)


def test_texts_name_value_and_type() -> None:
    assert difference_text(60000, None) == "received the value '60000' of type 'signedint' but current is none"
    assert difference_text(None, 2**40) == "received none but current is the value '1099511627776' of type 'long'"
    assert difference_text(True, False) == "received 'true' but current is 'false'"
    assert difference_text(b"x", 6) == "received 'x' but current is '6'"
    assert [type_name(v) for v in (1.5, None, {}, [], "")] == ["double", "void", "table", "array", "longstr"]


def test_subclasses_are_stored_as_plain_values() -> None:
    class Text(str):
        __slots__ = ()

    stored = ENCODER.encode({"w": Short(7), "t": Text("x"), "f": [Short(1)]})
    assert msgspec.msgpack.decode(stored) == {"w": 7, "t": "x", "f": [1]}


def test_same_is_stricter_than_python_equality() -> None:
    assert {"a": True} == {"a": 1}
    assert not same({"a": True}, {"a": 1})
    assert same({"a": 1, "b": 2}, {"b": 2, "a": 1})
    assert not same(None, {})


def test_too_deep_counts_tables_and_arrays() -> None:
    value: object = 1
    for _ in range(64):
        value = [value]
    assert not too_deep(value)
    assert too_deep([{"a": value}])
    for _ in range(100_000):
        value = [value]
    assert too_deep(value)
    assert not too_deep(None)
