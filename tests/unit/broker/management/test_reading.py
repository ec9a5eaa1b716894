"""Whatever an argument table or a message holds can be shown."""

from __future__ import annotations

from datetime import UTC
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.broker.management.errors import Refused
from clusterbroker.broker.management.reading import moment, plain, windows
from clusterbroker.journal.values import Timestamp


class Number(int):
    """As AMQP's own widths are."""


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers().map(Number)
    | st.floats()
    | st.text(st.characters())
    | st.text(st.characters(categories=["Cs"]), max_size=2)
    | st.binary(max_size=4)
    | st.datetimes(timezones=st.just(UTC)),
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(st.text(st.characters(), max_size=3), below, max_size=3)
    ),
    max_leaves=8,
)


@given(VALUES)
def test_anything_is_json(value: Any) -> None:
    msgspec.json.decode(msgspec.json.encode(plain(value)))


def test_values_are_themselves() -> None:
    given = {"a": Number(5), "b": b"text", "c": b"\xff", "d": [True, None, 1.5], "e": float("nan")}
    assert plain(given) == {"a": 5, "b": "text", "c": "/w==", "d": [True, None, 1.5], "e": "nan"}
    assert type(plain(given)["a"]) is int
    assert plain(Timestamp(1_767_225_600)) == 1_767_225_600
    assert plain(Decimal("1.5")) == 1.5


def test_a_moment_is_written_as_rabbitmq_writes_it() -> None:
    assert moment(1_795_290_639_265) == "2026-11-21T19:50:39.265+00:00"


@pytest.mark.parametrize(
    "query",
    [
        {"lengths_age": "x", "lengths_incr": "5"},
        {"lengths_age": "60", "lengths_incr": "0"},
        {"lengths_age": "-60", "lengths_incr": "5"},
        {"lengths_age": "60000", "lengths_incr": "1"},
        {"lengths_age": "9" * 50, "lengths_incr": "5"},
    ],
)
def test_a_past_that_cannot_be_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(Refused):
        windows(query)


def test_a_past_needs_both_its_numbers() -> None:
    assert windows({"lengths_age": "60"}) == {}
    assert windows({"lengths_age": "60", "lengths_incr": "5"})["lengths"] == (60_000, 5_000)
