"""The topic trie: which patterns match a routing key.

A key is a list of words parted by dots, and so is a pattern; in a pattern the word `*` stands for exactly one
word and `#` for zero or more (AMQP 0-9-1, 3.1.3.3). The patterns are stored in a trie with one edge per
pattern word. A key is matched by walking all edges that fit at the same time, so the state is a set of trie
nodes:

- a *plain* node is reached by reading exactly the words so far; the next word leads to its literal child and
  to its `*` child, and every plain node has one parent, so no node is entered twice in one step;
- a *hash* node (the end of a `#` edge) swallows words without moving, so once reached it stays reached.

A step looks at each reached node once, so a match costs at most words x nodes whatever the patterns are. That may still
be much (512 patterns of `#` and a hundred `*` keep 50,000 nodes reached), so a match has a budget (see `labour`).
Repeated hashes say no more than one (`#.#` is `#`) and are collapsed when a pattern is stored.

The empty key has no words at all: it is matched by the empty pattern and by `#`, and by nothing else, above
all not by `*`. The empty pattern in turn matches only the empty key. (RabbitMQ 4.3.1 repaired the opposite.)
A key such as `a..b` has an empty word in the middle, which `*` matches.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from clusterbroker.broker.routing.labour import Steps

D = TypeVar("D", bound=Hashable)


def split_words(key: str) -> list[str]:
    """The words of a routing key or pattern; the empty string has none."""
    return key.split(".") if key else []


def split_pattern(pattern: str) -> list[str]:
    """The words of a pattern with neighbouring `#` collapsed into one."""
    words: list[str] = []
    for word in split_words(pattern):
        if word != "#" or not words or words[-1] != "#":
            words.append(word)
    return words


class _Node(Generic[D]):
    """One position in the patterns. Collections are made when first needed: most nodes are leaves."""

    __slots__ = ("any_word", "any_words", "children", "destinations")

    def __init__(self) -> None:
        self.children: dict[str, _Node[D]] | None = None
        self.any_word: _Node[D] | None = None
        self.any_words: _Node[D] | None = None
        self.destinations: dict[D, int] | None = None

    def child(self, word: str) -> _Node[D] | None:
        if word == "*":
            return self.any_word
        if word == "#":
            return self.any_words
        return None if self.children is None else self.children.get(word)

    def grow(self, word: str) -> _Node[D]:
        node = _Node[D]()
        if word == "*":
            self.any_word = node
        elif word == "#":
            self.any_words = node
        else:
            if self.children is None:
                self.children = {}
            self.children[word] = node
        return node

    def cut(self, word: str) -> None:
        if word == "*":
            self.any_word = None
        elif word == "#":
            self.any_words = None
        else:
            assert self.children is not None, "a literal edge is cut from the node that has it"
            del self.children[word]
            if not self.children:
                self.children = None

    def is_bare(self) -> bool:
        return not (self.children or self.any_word or self.any_words or self.destinations)


class TopicTrie(Generic[D]):
    """Patterns and the destinations behind them.

    Invariants: (1) every node but the root has a destination below or at it; (2) no `#` edge leaves the end
    of a `#` edge; (3) a destination is counted once per pattern bound, so `#` and `#.#` are unbound one at a
    time.
    """

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root: _Node[D] = _Node()

    def bind(self, pattern: str, destination: D) -> None:
        """Add one binding; binding the same again counts, and takes as many calls to `unbind`."""
        node = self._root
        for word in split_pattern(pattern):
            node = node.child(word) or node.grow(word)
        if node.destinations is None:
            node.destinations = {}
        node.destinations[destination] = node.destinations.get(destination, 0) + 1

    def unbind(self, pattern: str, destination: D) -> bool:
        """Take one binding away; False when there was none."""
        words = split_pattern(pattern)
        path = [self._root]
        for word in words:
            node = path[-1].child(word)
            if node is None:
                return False
            path.append(node)
        leaf = path[-1]
        if leaf.destinations is None or destination not in leaf.destinations:
            return False
        leaf.destinations[destination] -= 1
        if leaf.destinations[destination] == 0:
            del leaf.destinations[destination]
            if not leaf.destinations:
                leaf.destinations = None
        for word in reversed(words):
            if not path.pop().is_bare():
                break
            path[-1].cut(word)
        return True

    def match(self, key: str, steps: Steps | None = None) -> set[D]:
        """Every destination with a pattern that matches the key, each once. Each look at a node takes one of `steps`;
        raises TooCostly when they do not suffice."""
        steps = Steps() if steps is None else steps
        left = steps.left
        plain = [self._root]
        hashes: list[_Node[D]] = []
        if self._root.any_words is not None:
            hashes.append(self._root.any_words)
        reached: set[int] | None = None  # ids of `hashes`, made when a second one appears
        for word in split_words(key):
            left -= len(plain) + len(hashes)
            if left < 0:
                steps.take(steps.left - left)
            following: list[_Node[D]] = []
            for node in plain:
                if node.children is not None and (child := node.children.get(word)) is not None:
                    following.append(child)
                if node.any_word is not None:
                    following.append(node.any_word)
            for node in hashes:
                if node.children is not None and (child := node.children.get(word)) is not None:
                    following.append(child)
                if node.any_word is not None:
                    following.append(node.any_word)
            plain = following
            for node in plain:
                swallower = node.any_words
                if swallower is not None:
                    if reached is None:
                        reached = {id(known) for known in hashes}
                    if id(swallower) not in reached:
                        reached.add(id(swallower))
                        hashes.append(swallower)
            if not plain and not hashes:
                steps.left = left
                return set()
        steps.left = left
        found: set[D] = set()
        for node in (*plain, *hashes):
            if node.destinations is not None:
                steps.take(len(node.destinations))
                found.update(node.destinations)
        return found

    def node_count(self) -> int:
        """How many nodes there are, the root included: the bound on the work of one step."""
        count = 0
        waiting = [self._root]
        while waiting:
            node = waiting.pop()
            count += 1
            waiting.extend((node.children or {}).values())
            waiting.extend(below for below in (node.any_word, node.any_words) if below is not None)
        return count
