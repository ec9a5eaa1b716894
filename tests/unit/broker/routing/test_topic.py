import time

import pytest

from clusterbroker.broker.routing.topic import TopicTrie, split_pattern


def matches(pattern: str, key: str) -> bool:
    trie: TopicTrie[str] = TopicTrie()
    trie.bind(pattern, "q")
    return trie.match(key) == {"q"}


@pytest.mark.parametrize(
    "pattern, key",
    [
        ("", ""),
        ("#", ""),
        ("#.#", ""),
        ("#", "a"),
        ("#", "a.b.c"),
        ("*", "a"),
        ("a.*.c", "a.b.c"),
        ("a.*.c", "a..c"),
        ("a.#", "a"),
        ("a.#", "a.b.c"),
        ("#.c", "c"),
        ("#.c", "a.b.c"),
        ("a.#.c", "a.c"),
        ("a.#.c", "a.b.b.c"),
        ("a.#.#.c", "a.c"),
        ("#.*", "a"),
        ("*.#", "a.b"),
        ("#.a.#.a", "b.a.a"),
        ("a*", "a*"),
        (".", "."),
        ("*.*", "."),
        ("usd.stock", "usd.stock"),
    ],
)
def test_matches(pattern: str, key: str) -> None:
    assert matches(pattern, key)


@pytest.mark.parametrize(
    "pattern, key",
    [
        ("", "a"),
        ("", "."),
        ("*", ""),
        ("*.#", ""),
        ("a", ""),
        ("*", "a.b"),
        ("*.*", "a"),
        ("a.*.c", "a.c"),
        ("a.#", "b.a"),
        ("#.c", "c.d"),
        ("#.a.#.a", "a"),
        ("a*", "ab"),
        ("a", "A"),
        ("a.b", "a"),
        ("a", "a.b"),
    ],
)
def test_does_not_match(pattern: str, key: str) -> None:
    assert not matches(pattern, key)


def test_repeated_hashes_collapse() -> None:
    assert split_pattern("#.#.a.#.#.#.b.#") == ["#", "a", "#", "b", "#"]


def test_a_destination_is_named_once_however_many_patterns_match() -> None:
    trie: TopicTrie[str] = TopicTrie()
    for pattern in ("#", "a.*", "*.b", "a.b", "a.#"):
        trie.bind(pattern, "q")
    assert trie.match("a.b") == {"q"}


def test_equal_patterns_are_counted() -> None:
    trie: TopicTrie[str] = TopicTrie()
    trie.bind("#", "q")
    trie.bind("#.#", "q")
    assert trie.unbind("#", "q")
    assert trie.match("a") == {"q"}
    assert trie.unbind("#.#.#", "q")
    assert trie.match("a") == set()
    assert not trie.unbind("#", "q")


def test_unbinding_what_is_not_bound_changes_nothing() -> None:
    trie: TopicTrie[str] = TopicTrie()
    trie.bind("a.b", "q")
    for pattern, destination in [("a", "q"), ("a.b.c", "q"), ("a.b", "p"), ("", "q"), ("a.*", "q")]:
        assert not trie.unbind(pattern, destination)
    assert trie.match("a.b") == {"q"}


def test_unbinding_gives_the_nodes_back() -> None:
    trie: TopicTrie[str] = TopicTrie()
    patterns = ["", "#", "a.b.c", "a.b", "a.*.c", "#.x.#", "a.#"]
    for pattern in patterns:
        trie.bind(pattern, "q")
    for pattern in patterns:
        assert trie.unbind(pattern, "q")
    assert trie.node_count() == 1


def test_pathological_patterns_stay_linear() -> None:
    """A backtracking matcher would need about 2**60 steps for this."""
    trie: TopicTrie[str] = TopicTrie()
    for length in range(1, 60):
        trie.bind(".".join(["#", "a"] * length) + ".b", f"q{length}")
    started = time.thread_time()
    assert trie.match(".".join(["a"] * 120)) == set()
    assert time.thread_time() - started < 2.0
