from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.broker.routing.headers import HeadersIndex, HeadersMatch
from clusterbroker.broker.wire.numbers import Int16
from clusterbroker.journal.values import Timestamp


@pytest.mark.parametrize(
    "arguments, headers, expected",
    [
        ({"x-match": "all", "a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}, True),
        ({"x-match": "all", "a": 1, "b": 2}, {"a": 1}, False),
        ({"x-match": "all", "a": 1, "b": 2}, {"a": 1, "b": 3}, False),
        ({"x-match": "any", "a": 1, "b": 2}, {"b": 2}, True),
        ({"x-match": "any", "a": 1, "b": 2}, {"a": 2, "b": 1}, False),
        # without x-match the rule is all
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({"a": 1}, {"a": 1}, True),
        # no conditions
        ({}, {}, True),
        ({}, None, True),
        ({"x-match": "all"}, {"a": 1}, True),
        ({"x-match": "any"}, {"a": 1}, False),
        ({"x-match": "any"}, None, False),
        ({"x-match": "all", "a": 1}, None, False),
        # x- arguments
        ({"x-match": "all", "x-a": 1}, {}, True),
        ({"x-match": "any", "x-a": 1}, {"x-a": 1}, False),
        ({"x-match": "all-with-x", "x-a": 1}, {}, False),
        ({"x-match": "all-with-x", "x-a": 1}, {"x-a": 1}, True),
        ({"x-match": "any-with-x", "x-a": 1, "b": 2}, {"x-a": 1}, True),
        ({"x-match": "any-with-x", "x-a": 1, "b": 2}, {"x-a": 2}, False),
        # x-match itself is never a condition
        ({"x-match": "all-with-x", "a": 1}, {"a": 1}, True),
        ({"x-match": "any-with-x"}, {"x-match": "any-with-x"}, False),
        # void asks for presence
        ({"a": None}, {"a": "anything"}, True),
        ({"a": None}, {"a": None}, True),
        ({"a": None}, {"a": {"deep": [1]}}, True),
        ({"a": None}, {"b": 1}, False),
        ({"x-match": "any", "a": None, "b": 1}, {"a": 0}, True),
        # a void header is a value that equals no other
        ({"a": 0}, {"a": None}, False),
        # values by type class
        ({"a": Int16(7)}, {"a": 7}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": True}, {"a": 1}, False),
        ({"a": 1}, {"a": 1.0}, False),
        ({"a": 1}, {"a": "1"}, False),
        ({"a": 5}, {"a": Timestamp(5)}, False),
        ({"a": [1, {"b": 2}]}, {"a": [Int16(1), {"b": 2}]}, True),
    ],
)
def test_headers_match(arguments: dict[str, object], headers: dict[str, object] | None, expected: bool) -> None:
    assert HeadersMatch(arguments).matches(headers) is expected


VALUES = st.sampled_from([None, 0, 1, True, "1", 1.0, b"1", [1]])
TABLES = st.dictionaries(st.sampled_from(["a", "b", "c", "x-d"]), VALUES, max_size=4)
ASKED = st.builds(
    lambda kind, table: table if kind is None else {**table, "x-match": kind},
    st.sampled_from([None, "all", "any", "all-with-x", "any-with-x"]),
    TABLES,
)


@given(
    st.lists(st.tuples(ASKED, st.integers(0, 5)), max_size=12),
    st.lists(st.integers(0, 11), max_size=12),
    st.lists(st.one_of(st.none(), TABLES), min_size=1, max_size=8),
)
def test_the_index_finds_what_each_binding_by_itself_would_match(
    bound: list[tuple[dict[str, Any], int]], gone: list[int], messages: list[dict[str, Any] | None]
) -> None:
    index: HeadersIndex[int] = HeadersIndex()
    left = list(bound)
    for arguments, destination in bound:
        index.add(HeadersMatch(arguments), destination)
    for place in gone:
        if place < len(left):
            arguments, destination = left.pop(place)
            index.remove(HeadersMatch(arguments), destination)
    for headers in messages:
        assert index.find(headers) == {to for arguments, to in left if HeadersMatch(arguments).matches(headers)}


def test_bindings_that_do_not_concern_a_message_cost_it_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With thousands of bindings each message of a client took milliseconds, and all of one read are taken in one go:
    its node stood still until it was taken for dead."""
    index: HeadersIndex[int] = HeadersIndex()
    for number in range(2000):
        index.add(HeadersMatch({"x-match": "any" if number % 2 else "all", "same": 1, "number": number}), number)
        index.add(HeadersMatch({"kind": "same", "for": "all"}), number)
    looks: list[HeadersMatch] = []
    meets = HeadersMatch.meets
    monkeypatch.setattr(HeadersMatch, "meets", lambda self, values: looks.append(self) or meets(self, values))
    assert index.find({"number": 8, "same": 1}) == {8, *range(1, 2000, 2)}
    assert index.find({"number": 8, "kind": "other", "for": "all"}) == set()
    assert len(looks) < 10
