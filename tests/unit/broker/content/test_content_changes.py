"""Annotations by which a dead letter says with which error it was rejected: bounded, whatever the client sends."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.broker.content.changes import (
    BYTES_MAX,
    CONDITION,
    DESCRIPTION,
    INFO,
    INFO_BYTES_MAX,
    INFO_MAX,
    rejection_of,
)
from clusterbroker.broker.wire.amqp10.types import Symbol, decode_all, encode

keys = st.one_of(st.text(max_size=300), st.from_regex(r"[a-z]{1,20}", fullmatch=True).map(Symbol), st.integers(0, 9))
values = st.one_of(
    st.text(max_size=2000), st.binary(max_size=2000), st.integers(-5, 5), st.just([1]), st.just({"a": 1})
)


@given(st.from_regex(r"[a-z:-]{0,600}", fullmatch=True), st.text(max_size=6000), st.dictionaries(keys, values))
def test_a_rejection_is_bounded(condition: str, description: str, info: dict[Any, Any]) -> None:
    change = rejection_of(condition, description, info)
    told = decode_all(change)
    assert len(change) <= BYTES_MAX
    assert list(told) == [CONDITION, DESCRIPTION, INFO]
    assert condition.startswith(told[CONDITION])
    assert description.startswith(told[DESCRIPTION])
    assert all(info[key] == value and not isinstance(value, (dict, list)) for key, value in told[INFO].items())
    assert len(encode(told[INFO])) <= INFO_BYTES_MAX + 16


def test_a_long_info_is_looked_at_so_far_and_no_further() -> None:
    told = decode_all(rejection_of("c", "d", {f"k{number}": number for number in range(100_000)}))
    assert len(told[INFO]) == INFO_MAX
