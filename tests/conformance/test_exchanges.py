"""Types of exchanges, alternate exchanges, internal and auto-delete ones, exchange-to-exchange bindings, CC and BCC."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from .encoding import Field
from .marks import rule
from .wire import Channel, Connection, eventually

Name = Callable[[str], str]


class Net:
    """A test's exchanges and queues; `routed` publishes and says which queues got it."""

    def __init__(self, channel: Channel, name: Name) -> None:
        self.channel, self.name = channel, name
        self.queues: dict[str, str] = {}

    def exchange(self, kind: str, **flags: Any) -> str:
        exchange = self.name("x")
        self.channel.exchange_declare(exchange, kind, **flags)
        return exchange

    def queue(self, label: str, exchange: str, key: str = "", **arguments: Any) -> None:
        if label not in self.queues:
            self.queues[label] = self.name("q")
            self.channel.queue_declare(self.queues[label])
        self.channel.queue_bind(self.queues[label], exchange, key, arguments=arguments or None)

    def routed(self, exchange: str, key: str = "", **properties: Any) -> list[str]:
        self.channel.basic_publish(exchange, key, b"x", **properties)
        return self.received()

    def received(self) -> list[str]:
        """Labels of the queues that hold something, once for each message; empties them."""
        got: list[str] = []
        for label, queue in self.queues.items():
            while self.channel.basic_get(queue, no_ack=True) is not None:
                got.append(label)
        return sorted(got)


@pytest.fixture
def net(channel: Channel, name: Name) -> Net:
    return Net(channel, name)


def test_direct(net: Net) -> None:
    exchange = net.exchange("direct")
    net.queue("a", exchange, "k")
    net.queue("b", exchange, "k")
    net.queue("c", exchange, "other")
    assert net.routed(exchange, "k") == ["a", "b"]
    assert net.routed(exchange, "nothing") == []


def test_fanout(net: Net) -> None:
    exchange = net.exchange("fanout")
    net.queue("a", exchange, "k")
    net.queue("b", exchange)
    assert net.routed(exchange, "whatever") == ["a", "b"]


TOPICS = [
    ("a.b.c", "a.b.c", True),
    ("a.*.c", "a.b.c", True),
    ("a.*.c", "a.b.b.c", False),
    ("a.*", "a", False),
    ("a.*", "a.", True),
    ("a.#", "a", True),
    ("a.#", "a.b.c", True),
    ("#", "", True),
    ("#", "a.b", True),
    ("*", "", False),
    ("*", "a", True),
    ("#.c", "a.b.c", True),
    ("#.c", "c", True),
    ("#.b.#", "a.b.c", True),
    ("#.b.#", "a.c", False),
    ("*.#", "", False),
    ("*.#", "a.b", True),
    ("a.b*", "a.bc", False),
    ("", "", True),
    ("", "a", False),
    ("..", "..", True),
]


def test_topic(net: Net) -> None:
    for pattern, key, matches in TOPICS:
        exchange = net.exchange("topic")
        net.queue("q", exchange, pattern)
        assert net.routed(exchange, key) == (["q"] if matches else []), (pattern, key)


HEADERS: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
    ({"x-match": "all", "a": 1, "b": "two"}, {"a": 1, "b": "two", "c": 3}, True),
    ({"x-match": "all", "a": 1, "b": "two"}, {"a": 1}, False),
    ({"a": 1, "b": 2}, {"a": 1}, False),
    ({"a": 1}, {"a": 1}, True),
    ({"x-match": "any", "a": 1, "b": 2}, {"b": 2}, True),
    ({"x-match": "any", "a": 1, "b": 2}, {"b": 3}, False),
    ({"x-match": "any", "a": 1}, {}, False),
    ({"x-match": "all"}, {}, True),
    ({"x-match": "any"}, {"a": 1}, False),
    ({"x-match": "all", "a": None}, {"a": "anything"}, True),
    ({"x-match": "all", "a": None}, {}, False),
    ({"x-match": "all", "x-private": 1, "a": 1}, {"a": 1}, True),
    ({"x-match": "all", "a": True}, {"a": True}, True),
    ({"x-match": "all", "a": "1"}, {"a": 1}, False),
    ({"a": Field("T", 1_800_000_000)}, {"a": Field("T", 1_800_000_000)}, True),
    ({"a": Field("T", 1_800_000_000)}, {"a": 1_800_000_000}, False),
    ({"a": Field("D", (2, 150))}, {"a": Field("D", (1, 15))}, True),
    ({"a": Field("D", (2, 150))}, {"a": 1.5}, False),
    ({"a": Field("S", b"\xff")}, {"a": Field("S", b"\xff")}, True),
    ({"a": Field("S", b"\xff")}, {"a": b"\xff"}, False),
    ({"a": b"\xff"}, {"a": b"\xff"}, True),
    ({"a": [Field("T", 5), {"b": Field("D", (1, 5))}]}, {"a": [Field("T", 5), {"b": Field("D", (1, 5))}]}, True),
]


def test_headers(net: Net) -> None:
    for binding, headers, matches in HEADERS:
        exchange = net.exchange("headers")
        net.queue("q", exchange, **binding)
        assert net.routed(exchange, headers=headers) == (["q"] if matches else []), (binding, headers)


@pytest.mark.parametrize(
    ("match", "headers", "matches"),
    [
        ("all-with-x", {"a": 1}, False),
        ("all-with-x", {"a": 1, "x-p": 1}, True),
        ("any-with-x", {"x-p": 1}, True),
        ("any", {"x-p": 1}, False),
    ],
)
def test_headers_with_x(net: Net, match: str, headers: dict[str, Any], matches: bool) -> None:
    exchange = net.exchange("headers")
    binding: dict[str, Any] = {"x-match": match, "x-p": 1, "a": 1}
    net.queue("q", exchange, **binding)
    assert net.routed(exchange, headers=headers) == (["q"] if matches else [])


def test_an_unknown_x_match_is_406(net: Net, queue: str) -> None:
    exchange = net.exchange("headers")
    with net.channel.closes(406, "Invalid x-match field value"):
        net.channel.queue_bind(queue, exchange, "", arguments={"x-match": "some"})


def test_headers_without_a_headers_property(net: Net) -> None:
    exchange = net.exchange("headers")
    net.queue("q", exchange, **{"x-match": "all"})
    assert net.routed(exchange) == ["q"]


def test_the_standard_exchanges_exist(channel: Channel) -> None:
    for exchange, kind in [
        ("amq.direct", "direct"),
        ("amq.fanout", "fanout"),
        ("amq.topic", "topic"),
        ("amq.headers", "headers"),
        ("amq.match", "headers"),
    ]:
        channel.exchange_declare(exchange, kind, durable=True)


def test_a_consistent_hash_spreads_by_weight(net: Net) -> None:
    exchange = net.exchange("x-consistent-hash")
    net.queue("light", exchange, "1")
    net.queue("heavy", exchange, "4")
    for i in range(1000):
        net.channel.basic_publish(exchange, f"key-{i}", b"x")
    counts = Counter(net.received())
    assert counts.total() == 1000, "each goes to exactly one queue"
    assert 1.5 < counts["heavy"] / counts["light"] < 12


def test_a_consistent_hash_is_consistent(net: Net) -> None:
    exchange = net.exchange("x-consistent-hash", arguments={"hash-header": "customer"})
    for label in "abc":
        net.queue(label, exchange, "2")
    for customer in range(10):
        first = net.routed(exchange, "one key", headers={"customer": f"c{customer}"})
        again = net.routed(exchange, "another key", headers={"customer": f"c{customer}"})
        assert first == again
        assert len(first) == 1


def test_a_consistent_hash_binding_needs_a_number(net: Net, queue: str) -> None:
    exchange = net.exchange("x-consistent-hash")
    with net.channel.closes(406, "The binding key must be an integer"):
        net.channel.queue_bind(queue, exchange, "heavy")


@pytest.mark.parametrize("kind", ["x-random", "x-local-random"])
def test_a_random_exchange_gives_each_message_to_one_queue(net: Net, kind: str) -> None:
    exchange = net.exchange(kind)
    for label in "abc":
        net.queue(label, exchange, "")
    for i in range(600):
        net.channel.basic_publish(exchange, f"key-{i}", b"x")
    counts = Counter(net.received())
    assert counts.total() == 600, "each goes to exactly one queue"
    assert len(counts) == 3
    assert min(counts.values()) > 100


def test_a_numbered_message_that_comes_again_goes_where_it_was(net: Net) -> None:
    exchange = net.exchange("x-random")
    for label in "abc":
        net.queue(label, exchange, "")
    for _ in range(2):
        for number in range(1, 61):
            net.channel.basic_publish(exchange, "", b"x", headers={"x-producer": exchange, "x-seq": number})
    counts = Counter(net.received())
    assert counts.total() == 60, "none is stored twice"
    assert len(counts) == 3


def test_a_local_random_exchange_is_bound_to_queues_without_a_key(net: Net, queue: str) -> None:
    exchange = net.exchange("x-local-random")
    with net.channel.closes(406, "Non empty binding 'k' key not permitted"):
        net.channel.queue_bind(queue, exchange, "k")


def test_a_modulus_hash_goes_by_the_routing_key(net: Net) -> None:
    exchange = net.exchange("x-modulus-hash")
    for label in "abc":
        net.queue(label, exchange, "any")
    found = set()
    for key in range(30):
        first = net.routed(exchange, f"key-{key}")
        assert first == net.routed(exchange, f"key-{key}")
        assert len(first) == 1
        found.update(first)
    assert found == {"a", "b", "c"}


def test_an_alternate_exchange_takes_the_unroutable(net: Net) -> None:
    alternate = net.exchange("fanout")
    exchange = net.exchange("direct", arguments={"alternate-exchange": alternate})
    net.queue("a", exchange, "k")
    net.queue("rest", alternate)
    assert net.routed(exchange, "k") == ["a"]
    assert net.routed(exchange, "other", mandatory=True) == ["rest"]
    assert not net.channel.returned, "routed through the alternate exchange"


def test_a_chain_of_alternate_exchanges_may_be_a_circle(net: Net) -> None:
    first, second = net.name("x"), net.name("x")
    for exchange, alternate in ((first, second), (second, first)):
        net.channel.exchange_declare(exchange, "direct", arguments={"alternate-exchange": alternate})
    net.channel.basic_publish(first, "k", b"x", mandatory=True)
    assert net.channel.returns()[0].exchange == first


def test_a_missing_alternate_exchange_is_nobody(net: Net) -> None:
    exchange = net.exchange("direct", arguments={"alternate-exchange": "nosuch"})
    net.channel.basic_publish(exchange, "k", b"x", mandatory=True)
    assert net.channel.returns()[0].reply_code == 312


@rule("5.1/403-internal-exchange")
def test_an_internal_exchange_is_reached_through_another(net: Net) -> None:
    internal = net.exchange("fanout", internal=True)
    exchange = net.exchange("fanout")
    net.channel.exchange_bind(internal, exchange)
    net.queue("q", internal)
    assert net.routed(exchange) == ["q"]


def exists(connection: Connection, exchange: str) -> bool:
    channel = connection.channel()
    channel.send("exchange.declare", exchange=exchange, passive=True)
    return channel.answered()


def test_an_auto_delete_exchange_goes_with_its_last_binding(net: Net, connection: Connection) -> None:
    exchange = net.exchange("direct", auto_delete=True)
    assert exists(connection, exchange), "only after at least one binding existed"
    net.queue("a", exchange, "1")
    net.queue("b", exchange, "2")
    net.channel.queue_unbind(net.queues["a"], exchange, "1")
    assert exists(connection, exchange)
    net.channel.queue_delete(net.queues["b"])
    assert not exists(connection, exchange)


def test_exchange_to_exchange(net: Net) -> None:
    source, middle, end = net.exchange("topic"), net.exchange("direct"), net.exchange("fanout")
    net.channel.exchange_bind(middle, source, "a.*")
    net.channel.exchange_bind(end, middle, "a.b")
    net.queue("end", end)
    net.queue("middle", middle, "a.c")
    assert net.routed(source, "a.b") == ["end"]
    assert net.routed(source, "a.c") == ["middle"]
    net.channel.exchange_unbind(middle, source, "a.*")
    assert net.routed(source, "a.b") == []


@rule("7.4/sequence")
def test_a_circle_of_exchanges_delivers_once(net: Net) -> None:
    exchanges = [net.exchange("fanout") for _ in range(3)]
    for i, exchange in enumerate(exchanges):
        net.channel.exchange_bind(exchanges[(i + 1) % 3], exchange)
        net.queue("q", exchange)
    assert net.routed(exchanges[0]) == ["q"]


def test_a_deleted_exchange_takes_its_bindings(net: Net) -> None:
    source, destination = net.exchange("fanout"), net.exchange("fanout")
    net.channel.exchange_bind(destination, source)
    net.queue("q", destination)
    net.channel.exchange_delete(destination)
    net.channel.exchange_declare(destination, "fanout")
    assert net.routed(source) == []


def test_cc_and_bcc_add_keys(net: Net) -> None:
    exchange = net.exchange("direct")
    for label in ("to", "cc", "bcc"):
        net.queue(label, exchange, label)
    headers = {"CC": ["cc", "nobody"], "BCC": ["bcc"], "mine": 1}
    net.channel.basic_publish(exchange, "to", b"x", headers=headers)
    for label in ("to", "cc", "bcc"):
        got = net.channel.basic_get(net.queues[label], no_ack=True)
        assert got is not None
        assert got.headers == {"CC": ["cc", "nobody"], "mine": 1}, "BCC is removed"
        assert got.routing_key == "to"


def test_cc_to_the_same_queue_delivers_once(net: Net) -> None:
    exchange = net.exchange("direct")
    net.queue("q", exchange, "a")
    net.queue("q", exchange, "b")
    assert net.routed(exchange, "a", headers={"CC": ["b"]}) == ["q"]


def test_a_cc_that_is_no_list_is_406(channel: Channel, queue: str) -> None:
    with channel.closes(406, "CC", "basic.publish"):
        channel.basic_publish("", queue, b"x", headers={"CC": "not a list"})


@rule("5.3/idempotent-delete")
def test_unbinding_what_is_not_bound_succeeds(net: Net, connection: Connection) -> None:
    a, b = net.exchange("direct"), net.exchange("direct")
    net.channel.exchange_unbind(a, b, "never bound")
    net.channel.exchange_unbind("nosuch", "nosuch either", "k")
    eventually(lambda: exists(connection, a))
