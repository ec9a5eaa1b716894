from collections import Counter

import pytest

from clusterbroker.broker.routing.binding import Binding, Destination
from clusterbroker.broker.routing.exchange import (
    EXCHANGE_TYPES,
    ConsistentHashExchange,
    DirectExchange,
    Exchange,
    FanoutExchange,
    HeadersExchange,
    TopicExchange,
)
from clusterbroker.broker.wire.numbers import Int16
from clusterbroker.journal.values import LongBytes, Timestamp


def binding(queue: str, key: str = "", **arguments: object) -> Binding:
    return Binding("x", Destination(queue), key, {name.replace("_", "-"): v for name, v in arguments.items()})


def names(found: object) -> list[str]:
    return sorted(destination.name for destination in found)  # type: ignore[attr-defined]


def test_bindings_are_equal_by_type_class() -> None:
    assert binding("q", "k", a=Int16(1)) == binding("q", "k", a=1)
    assert hash(binding("q", "k", a=Int16(1))) == hash(binding("q", "k", a=1))
    assert binding("q", "k", a=1) != binding("q", "k", a=True)
    assert binding("q", "k", a=1) != binding("q", "k")
    assert Binding("x", Destination("n")) != Binding("x", Destination("n", is_exchange=True))


@pytest.mark.parametrize("exchange_type", EXCHANGE_TYPES)
def test_binding_and_unbinding_are_idempotent(exchange_type: str) -> None:
    exchange = EXCHANGE_TYPES[exchange_type]()
    one = binding("q", "1")
    assert not exchange.unbind(one)
    assert exchange.bind(one)
    assert not exchange.bind(one)
    assert names(exchange.match("1")) == ["q"]
    assert exchange.unbind(one)
    assert not exchange.unbind(one)
    assert names(exchange.match("1")) == []
    assert names(exchange.match_keys(["1", "2"])) == []


@pytest.mark.parametrize("exchange_type", EXCHANGE_TYPES)
def test_two_bindings_to_one_queue_are_removed_one_at_a_time(exchange_type: str) -> None:
    exchange = EXCHANGE_TYPES[exchange_type]()
    one, two = binding("q", "1", x_note="one"), binding("q", "1", x_note="two")
    exchange.bind(one)
    exchange.bind(two)
    assert names(exchange.match("1")) == ["q"]
    exchange.unbind(one)
    assert names(exchange.match("1")) == ["q"]
    exchange.unbind(two)
    assert names(exchange.match("1")) == []


def test_direct_matches_the_exact_key() -> None:
    exchange = DirectExchange()
    for queue, key in [("a", "k"), ("b", "k"), ("c", "other"), ("d", "")]:
        exchange.bind(binding(queue, key))
    assert names(exchange.match("k")) == ["a", "b"]
    assert names(exchange.match("")) == ["d"]
    assert names(exchange.match("#")) == []
    assert names(exchange.match_keys(["k", "other", "k"])) == ["a", "b", "c"]


def test_fanout_ignores_keys() -> None:
    exchange = FanoutExchange()
    exchange.bind(binding("a", "k"))
    exchange.bind(binding("b"))
    assert names(exchange.match("anything")) == ["a", "b"]
    assert names(exchange.match_keys(["x", "y"])) == ["a", "b"]
    assert exchange.key_free


def test_topic_matches_patterns() -> None:
    exchange = TopicExchange()
    exchange.bind(binding("a", "log.*"))
    exchange.bind(binding("b", "#.error"))
    assert names(exchange.match("log.error")) == ["a", "b"]
    assert names(exchange.match_keys(["log.info", "error"])) == ["a", "b"]


def test_headers_reads_headers_only() -> None:
    exchange = HeadersExchange()
    exchange.bind(binding("a", "key", x_match="any", kind="pdf", pages=3))
    exchange.bind(binding("b", "", kind="pdf", pages=3))
    assert names(exchange.match("nonsense", {"kind": "pdf"})) == ["a"]
    assert names(exchange.match("", {"kind": "pdf", "pages": Int16(3)})) == ["a", "b"]
    assert names(exchange.match("key")) == []
    assert names(exchange.match_keys(["x", "y"], {"kind": "pdf"})) == ["a"]
    assert not exchange.cacheable


def filled(exchange: Exchange) -> Exchange:
    for number in range(5):
        exchange.bind(binding(f"q{number}", "4"))
    return exchange


def test_hash_chooses_one_queue_by_key() -> None:
    exchange = filled(ConsistentHashExchange())
    assert exchange.cacheable
    assert not exchange.key_free
    counts = Counter(names(exchange.match(f"k{number}"))[0] for number in range(5_000))
    assert len(counts) == 5
    assert max(counts.values()) < 1_300
    assert all(len(exchange.match(f"k{number}")) == 1 for number in range(50))


def test_hash_takes_the_first_of_several_keys() -> None:
    exchange = filled(ConsistentHashExchange())
    for number in range(50):
        assert exchange.match_keys([f"k{number}", "other"]) == exchange.match(f"k{number}")


@pytest.mark.parametrize("value", ["text", 5, True, Timestamp(5), LongBytes(b"\xff"), b"raw", 1.5, {"a": [1]}, None])
def test_hash_by_header_ignores_the_key(value: object) -> None:
    exchange = filled(ConsistentHashExchange({"hash-header": "customer"}))
    assert not exchange.cacheable
    assert exchange.key_free
    answers = {tuple(exchange.match(f"k{number}", {"customer": value})) for number in range(20)}
    assert len(answers) == 1
    # two widths of one integer go the same way
    assert exchange.match("", {"customer": Int16(5)}) == exchange.match("", {"customer": 5})
    # without the header: like the empty string
    assert exchange.match("a", None) == exchange.match("b", {}) == exchange.match("", {"customer": ""})


def test_hash_by_property() -> None:
    exchange = filled(ConsistentHashExchange({"hash-property": "message_id"}))
    asked: list[str] = []

    def property_of(name: str) -> object:
        asked.append(name)
        return "id-7"

    assert exchange.match("a", None, property_of) == exchange.match("b", {}, property_of)
    assert asked == ["message_id", "message_id"]
    reference = filled(ConsistentHashExchange())
    assert exchange.match("", None, property_of) == reference.match("id-7")
