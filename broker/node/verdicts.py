"""What permissions have said, remembered until one of any user changes (`Node.authorization_generation`).

Connections of one account in one virtual host ask the same questions, so they share their answers, for as long as one
of them is there. A token's rights are its connection's alone, and so is what is remembered of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from weakref import WeakValueDictionary

VERDICTS_MAX: Final = 4096
TOPIC_VERDICTS_MAX: Final = 1024
"""Remembered verdicts: on resources, and on routing keys."""

Answers = dict[tuple[str, ...], bool]
"""By the arguments of the question."""
_NONE: Final[Answers] = {}
"""Of who was asked nothing yet. It stays empty."""


class Verdicts:
    """Of one account, or one token, in one virtual host."""

    __slots__ = ("__weakref__", "_generation", "_resources", "_topics")

    def __init__(self) -> None:
        self._generation = -1
        self._resources = self._topics = _NONE

    def on_resource(self, generation: int, find: Callable[..., bool], *asked: str) -> bool:
        """`find(*asked)`, or its answer of this generation."""
        self._review(generation)
        if not self._resources:
            self._resources = {}
        return _remembered(self._resources, VERDICTS_MAX, find, asked)

    def on_topic(self, generation: int, find: Callable[..., bool], *asked: str) -> bool:
        """As `on_resource`."""
        self._review(generation)
        if not self._topics:
            self._topics = {}
        return _remembered(self._topics, TOPIC_VERDICTS_MAX, find, asked)

    def _review(self, generation: int) -> None:
        if generation != self._generation:
            self._generation = generation
            self._resources = self._topics = _NONE


def _remembered(known: Answers, most: int, find: Callable[..., bool], asked: tuple[str, ...]) -> bool:
    answer = known.get(asked)
    if answer is None:
        answer = find(*asked)
        if len(known) >= most:
            known.clear()
        known[asked] = answer
    return answer


class SharedVerdicts:
    """Of one node's accounts."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[tuple[str, str], Verdicts] = WeakValueDictionary()

    def of(self, user: str, vhost: str) -> Verdicts:
        """Of this account in this virtual host."""
        known = self._known.get((user, vhost))
        if known is None:
            self._known[user, vhost] = known = Verdicts()
        return known
