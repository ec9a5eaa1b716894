"""Moves of ownership without a failure: the rotating token, and the pull of the consumers.

*Rotating* (`x-ownership=rotating`): the owner serves consumers of its own node, and of nodes that cannot own the
queue because they hold no copy in sync; the other owners-to-be wait for their turn. When its hold time is over and
something was to be handed out meanwhile, it passes the queue to the next node, in circular order of names, that is in
sync and has a consumer with credit. An owner without any consumer passes it at once. A node without interest never
gets it, and an idle queue stays where it is.

*Shared* (the default): consumers everywhere are served by credit, so ownership moves only for locality. When at least
80 % of all credit stood behind one in-sync node for 10 s, and none at the owner, the queue moves there; at most once
in 30 s, so that two nodes do not toss it to and fro.

Both are pure: `decide` gets the interested nodes and the time, and names the next node, or none. Times are in ms. A
refused or failed hand-over needs no memory: the wish comes up again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

LOCALITY_PERCENT: Final = 80
LOCALITY_AFTER_MS: Final = 10_000
LOCALITY_EVERY_MS: Final = 30_000


class Interest(NamedTuple):
    """What a node wants of a queue."""

    consumers: int
    """How many consumers it has."""
    credit: int
    """How many messages they would take now."""


NO_INTEREST: Final = Interest(0, 0)


class Rotation:
    """The token of a rotating queue at its present owner."""

    __slots__ = ("_busy", "_hold_ms", "_node", "_since_ms")

    def __init__(self, node: str, hold_ms: int, now_ms: int) -> None:
        self._node = node
        self._hold_ms = hold_ms
        self._since_ms = now_ms
        self._busy = False

    def decide(
        self, now_ms: int, interest: Mapping[str, Interest], in_sync: Collection[str], busy: bool
    ) -> tuple[str | None, int]:
        """(the node that shall have the queue or None, when to ask again or 0).

        `busy`: something was ready, or was handed out, since the last call.
        """
        self._busy = self._busy or busy
        heirs = sorted(
            node for node in in_sync if node != self._node and interest.get(node, NO_INTEREST).credit > 0
        )  # fmt: skip
        if not heirs:
            return None, 0
        heir = next((node for node in heirs if node > self._node), heirs[0])
        if not interest.get(self._node, NO_INTEREST).consumers:
            return heir, now_ms + self._hold_ms
        end_ms = self._since_ms + self._hold_ms
        if now_ms < end_ms:
            return None, end_ms
        if not self._busy:
            return None, 0
        self._since_ms, self._busy = now_ms, False
        return heir, now_ms + self._hold_ms


class Locality:
    """Where the consumers of a shared queue are, and since when."""

    __slots__ = ("_node", "_pull", "_pulled_ms", "_rest_ms")

    def __init__(self, node: str, now_ms: int) -> None:
        self._node = node
        self._pull: str | None = None
        self._pulled_ms = 0
        self._rest_ms = now_ms + LOCALITY_EVERY_MS

    def stays(self) -> None:
        """The owner's node has a consumer."""
        self._pull = None

    def decide(self, now_ms: int, interest: Mapping[str, Interest], in_sync: Collection[str]) -> tuple[str | None, int]:
        """(the node that shall have the queue or None, when to ask again or 0)."""
        pull = self._strongest(interest, in_sync)
        if pull != self._pull:
            self._pull, self._pulled_ms = pull, now_ms
        if pull is None:
            return None, 0
        due_ms = max(self._pulled_ms + LOCALITY_AFTER_MS, self._rest_ms)
        if now_ms < due_ms:
            return None, due_ms
        self._rest_ms = now_ms + LOCALITY_EVERY_MS
        return pull, self._rest_ms

    def _strongest(self, interest: Mapping[str, Interest], in_sync: Collection[str]) -> str | None:
        if interest.get(self._node, NO_INTEREST).consumers:
            return None
        total = sum(wish.credit for wish in interest.values())
        for node in sorted(in_sync):
            credit = interest.get(node, NO_INTEREST).credit
            if node != self._node and credit and 100 * credit >= LOCALITY_PERCENT * total:
                return node
        return None
