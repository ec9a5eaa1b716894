"""The topic trie against a regular expression, on few words so that matches are frequent."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from clusterbroker.broker.routing.topic import TopicTrie
from tests.budget import examples

# "" twice: empty words and the empty key are where brokers went wrong
keys = st.lists(st.sampled_from(["a", "b", "", "a*"]), max_size=6).map(".".join)
patterns = st.lists(st.sampled_from(["a", "b", "", "*", "#", "#", "a*"]), max_size=6).map(".".join)


def oracle(pattern: str, key: str) -> bool:
    """Every word is written with a dot behind it, so that zero words are the empty text."""
    pieces = {"*": r"[^.]*\.", "#": r"(?:[^.]*\.)*"}
    words = pattern.split(".") if pattern else []
    expression = "".join(pieces.get(word, re.escape(word) + r"\.") for word in words)
    return re.fullmatch(expression, "".join(word + "." for word in (key.split(".") if key else []))) is not None


@settings(max_examples=examples(300))
@given(st.lists(patterns, max_size=12), st.lists(keys, min_size=1, max_size=6))
def test_the_trie_agrees_with_a_regular_expression(bound: list[str], asked: list[str]) -> None:
    trie: TopicTrie[int] = TopicTrie()
    for number, pattern in enumerate(bound):
        trie.bind(pattern, number)
    for key in asked:
        assert trie.match(key) == {number for number, pattern in enumerate(bound) if oracle(pattern, key)}


class TrieUnderChange(RuleBasedStateMachine):
    """Binds and unbinds in any order; the trie must say what the list of bindings says, and give its nodes back."""

    known = Bundle("known")

    def __init__(self) -> None:
        super().__init__()
        self.trie: TopicTrie[str] = TopicTrie()
        self.bound: list[tuple[str, str]] = []

    @rule(target=known, pattern=patterns, destination=st.sampled_from("pq"))
    def bind(self, pattern: str, destination: str) -> tuple[str, str]:
        self.trie.bind(pattern, destination)
        self.bound.append((pattern, destination))
        return pattern, destination

    @rule(binding=known)
    def unbind(self, binding: tuple[str, str]) -> None:
        bound = binding in self.bound
        # an equal pattern in another spelling (# and #.#) may stand in for it, so ask only of what is bound
        if bound:
            assert self.trie.unbind(*binding)
            self.bound.remove(binding)

    @rule(key=keys)
    def match(self, key: str) -> None:
        assert self.trie.match(key) == {to for pattern, to in self.bound if oracle(pattern, key)}

    @invariant()
    def no_node_is_left_behind(self) -> None:
        assert self.trie.node_count() <= 1 + sum(len(pattern.split(".")) for pattern, _ in self.bound)


TestTrieUnderChange = TrieUnderChange.TestCase
TestTrieUnderChange.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
