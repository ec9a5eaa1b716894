"""What routing costs: a remembered route, and the walks that a new key needs.

python -m pytest bench/micro/test_routing.py
"""

import random

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from clusterbroker.broker.routing.binding import Binding, Destination
from clusterbroker.broker.routing.router import Router
from clusterbroker.broker.routing.topic import TopicTrie

BINDINGS = 10_000
WORDS = [f"w{number}" for number in range(20)]


def patterns(seed: int) -> list[str]:
    """Patterns of two to five words; one word in eight is a `*`, one pattern in ten has a `#`."""
    chance = random.Random(seed)
    made = []
    for _ in range(BINDINGS):
        words = [chance.choice(WORDS) if chance.random() > 0.125 else "*" for _ in range(chance.randint(2, 5))]
        if chance.random() < 0.1:
            words[chance.randrange(len(words))] = "#"
        made.append(".".join(words))
    return made


def keys(seed: int, count: int = 100) -> list[str]:
    chance = random.Random(seed)
    return [".".join(chance.choices(WORDS, k=chance.randint(2, 5))) for _ in range(count)]


@pytest.fixture(scope="module")
def router() -> Router[str]:
    made: Router[str] = Router(lambda name: name)
    made.add_exchange("topic", "topic")
    made.add_exchange("fanout", "fanout")
    made.add_exchange("direct", "direct")
    for number, pattern in enumerate(patterns(1)):
        queue = f"q{number % 500}"
        made.add_queue(queue)
        made.bind(Binding("topic", Destination(queue), pattern))
        made.bind(Binding("direct", Destination(queue), f"key{number}"))
        made.bind(Binding("fanout", Destination(queue)))
    return made


@pytest.mark.parametrize(
    ("exchange", "key"), [("", "q7"), ("direct", "key7"), ("topic", "w1.w2.w3"), ("fanout", "any")]
)
def test_cached_route(benchmark: BenchmarkFixture, router: Router[str], exchange: str, key: str) -> None:
    assert router.route(exchange, key).queues
    benchmark(router.route, exchange, key)


def test_topic_match_in_10_000_bindings(benchmark: BenchmarkFixture) -> None:
    """One hundred keys a round."""
    trie: TopicTrie[int] = TopicTrie()
    for number, pattern in enumerate(patterns(1)):
        trie.bind(pattern, number)
    asked = keys(2)
    found = benchmark(lambda: sum(len(trie.match(key)) for key in asked))
    assert found > 0


def test_uncached_topic_route(benchmark: BenchmarkFixture, router: Router[str]) -> None:
    """One hundred keys a round, each a walk, a sort and a resolve of every queue found."""
    asked = keys(3)

    def walk() -> int:
        router.forget()
        return sum(len(router.route("topic", key).queues) for key in asked)

    assert benchmark(walk) > 0


def test_headers_route_with_100_bindings(benchmark: BenchmarkFixture) -> None:
    router: Router[str] = Router(lambda name: name)
    router.add_exchange("h", "headers")
    for number in range(100):
        router.add_queue(f"q{number}")
        router.bind(Binding("h", Destination(f"q{number}"), "", {"shard": number, "kind": "pdf"}))
    headers = {"shard": 42, "kind": "pdf", "pages": 3}
    assert benchmark(lambda: router.route("h", "", lambda: headers).queues) == ("q42",)


def test_hash_layout_of_100_queues(benchmark: BenchmarkFixture) -> None:
    """The ring is laid out anew after a binding came or went."""
    router: Router[str] = Router(lambda name: name)
    router.add_exchange("x", "x-consistent-hash")
    for number in range(100):
        router.add_queue(f"q{number}")
        router.bind(Binding("x", Destination(f"q{number}"), "1"))
    last = Binding("x", Destination("q99"), "1")

    def rewire() -> int:
        router.unbind(last)
        router.bind(last)
        return len(router.route("x", "key").queues)

    assert benchmark(rewire) == 1
