import pytest

from broker.amqp.fields import Int16, Timestamp
from broker.routing.headers import HeadersMatch


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
