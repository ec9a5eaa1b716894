"""Tags of deliveries that are settled here, and that the peer may still know: none of them may be used again.

The standard frees a tag when its delivery is settled (2.6.12). But a delivery that is lost with its connection would be
taken for the one before, if the peer had not heard that it is settled, or forgot that again with its node: its map says
what became of a tag, and nothing of which delivery.

    in use --settled--> spent --`ask`--> asked --`answered` with its number--> free
                          \\__________________/
                           the attach is over: spent for as long as the link lives
    in use --settled between two attaches--> the same

Tags that this client makes are used once, and need none of this.
"""

from __future__ import annotations

from typing import Final

FORGOTTEN: Final = "clusterbroker:forgotten"
"""Flow property by which a peer that offers to keep links answers what it has forgotten."""
SPENT_MAX: Final = 262_144
"""So many tags wait for the peer at most, of which each takes some 100 bytes."""


class SpentTags:
    """Of one link. `answers`: the peer says what it has forgotten; otherwise a settled tag is free."""

    def __init__(self) -> None:
        self.answers = False
        self._spent: set[bytes] = set()
        self._asked: set[bytes] = set()
        self._lost: set[bytes] = set()
        self._number = 0

    def __contains__(self, tag: bytes) -> bool:
        return tag in self._spent or tag in self._asked or tag in self._lost

    def __len__(self) -> int:
        return len(self._spent) + len(self._asked) + len(self._lost)

    @property
    def full(self) -> bool:
        return len(self) >= SPENT_MAX

    def add(self, tag: bytes, *, attached: bool) -> None:
        """Its delivery is settled. While the link is not `attached` the peer does not hear it: it is forgotten only as
        what the next map does not name, of which no answer speaks."""
        if self.answers:
            (self._spent if attached else self._lost).add(tag)

    def ask(self) -> int | None:
        """The number of a question that is due now: one at a time."""
        if not self._spent or self._asked:
            return None
        self._asked, self._spent = self._spent, set()
        self._number += 1
        return self._number

    def answered(self, number: int) -> None:
        """The peer's answer; to an older question it says nothing."""
        if number == self._number:
            self._asked.clear()

    def detached(self) -> None:
        """What was not answered on this attach never is."""
        self._lost |= self._spent | self._asked
        self._spent.clear()
        self._asked.clear()
        self._number += 1
