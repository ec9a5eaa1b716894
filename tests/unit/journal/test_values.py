from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.broker.wire.numbers import Float32, Int16, UInt32
from clusterbroker.journal.values import LongBytes, Timestamp, canonical, extended, restored, stored


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


def kept(value: Any) -> Any:
    """As the wiring log gives it back."""
    data = msgspec.msgpack.encode(stored(value), enc_hook=extended)
    return msgspec.msgpack.decode(data, ext_hook=restored)


NUMBERS = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.integers(-(2**15), 2**15 - 1).map(Int16),
    st.integers(0, 2**64 - 1).map(Timestamp), st.floats(), st.floats(width=32).map(Float32),
    st.decimals(allow_nan=False, allow_infinity=False),
)  # fmt: skip
TEXTS = st.one_of(st.text(), st.binary(), st.binary().map(lambda data: LongBytes(b"\xff" + data)))
VALUES = st.recursive(
    st.none() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_a_value_is_the_same_after_it_was_stored(value: Any) -> None:
    assert canonical(stored(value)) == canonical(value)
    assert canonical(kept(value)) == canonical(value)


def test_an_extension_of_a_newer_release_is_refused() -> None:
    for code, data in ((1, b"short"), (3, b"none"), (99, b"")):
        with pytest.raises(ValueError, match=r"extension"):
            restored(code, memoryview(data))
    with pytest.raises(TypeError, match=r"a value of type object"):
        stored({"a": [object()]})
