from decimal import Decimal

import pytest

from broker.amqp.fields import Float32, Int16, LongBytes, Timestamp, UInt32
from broker.routing.type_class import canonical


@pytest.mark.parametrize(
    "one, other",
    [
        (Int16(10), 10),
        (UInt32(10), Int16(10)),
        (Float32(0.5), 0.5),
        ({"a": Int16(1), "b": 2}, {"b": 2, "a": 1}),
        ([Int16(1), "x"], [1, "x"]),
        (LongBytes(b"\xff"), LongBytes(b"\xff")),
        (float("nan"), float("nan")),
    ],
)
def test_same_type_class_and_value(one: object, other: object) -> None:
    assert canonical(one) == canonical(other)
    assert hash(canonical(one)) == hash(canonical(other))


@pytest.mark.parametrize(
    "one, other",
    [
        (1, True),
        (0, False),
        (0, None),
        (1, 1.0),
        (1, "1"),
        (1, Timestamp(1)),
        (1, Decimal(1)),
        ("a", b"a"),
        (LongBytes(b"\xff"), b"\xff"),
        ([1], 1),
        ([], {}),
        ({"a": 1}, {"a": True}),
        ("", None),
    ],
)
def test_different_type_class_or_value(one: object, other: object) -> None:
    assert canonical(one) != canonical(other)
