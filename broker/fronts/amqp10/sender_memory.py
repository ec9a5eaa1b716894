"""What the node knows of a sender link's deliveries, in memory: outcomes that the client may not have read.

    Proof     of an attached link whose state survives its connection, in rcv-settle-mode first: the node settles with
              the outcome, and the client has read that for certain when it answers a flow sent behind it
    Memory    of a suspended link: its accepted deliveries, and how many have no outcome yet

*Proof.* A flow with echo goes out behind the dispositions, at most one at a time. The sum of delivery-count and
link-credit, which grows with each of them, tells its answer from any other flow: a sender says the sum that it has read
last (2.6.7). A client that says no credit is believed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

from clusterbroker.broker.wire.amqp10.errors import LinkError
from clusterbroker.broker.wire.amqp10.serials import SERIALS, distance

ECHO_MS: Final = 100
PRESSING: Final = 512
"""So many deliveries without a proof are asked about at once: they hold credit back."""


class Proof:
    """Deliveries that are settled here, and perhaps not there."""

    __slots__ = ("_asked", "_asked_ms", "_highest", "_open", "_told", "count")

    def __init__(self) -> None:
        self._told: list[Collection[bytes]] = []
        self._asked: list[Collection[bytes]] = []
        self._open: int | None = None
        self._asked_ms = 0
        self._highest: int | None = None
        self.count = 0
        """Deliveries without a proof."""

    def told(self, tags: Collection[bytes]) -> None:
        """Their disposition is on its way."""
        self._told.append(tags)
        self.count += len(tags)

    def said(self, total: int) -> None:
        """A flow with this sum is on its way."""
        if self._highest is None or distance(self._highest, total) > 0:
            self._highest = total

    def is_due(self, now_ms: int) -> bool:
        """Whether a flow has to ask now."""
        waited = now_ms - self._asked_ms >= ECHO_MS or self.count >= PRESSING
        return bool(self._told) and self._open is None and waited

    def next_sum(self, total: int) -> int:
        """The sum of the flow that asks: `total`, or more if that was said before."""
        if self._highest is None or distance(self._highest, total) > 0:
            return total
        return (self._highest + 1) % SERIALS

    def ask(self, total: int, now_ms: int) -> None:
        """A flow with this sum asks."""
        self._open, self._asked_ms = total, now_ms
        self._asked, self._told = self._told, []

    def heard(self, total: int | None) -> list[bytes]:
        """The client says its sum; None: it says none. What is proven with that."""
        if self._open is None or (total is not None and total != self._open):
            return []
        self._open = None
        proven = [tag for tags in self._asked for tag in tags]
        self.count -= len(proven)
        self._asked = []
        return proven

    def tags(self) -> Iterable[bytes]:
        """All without a proof."""
        return (tag for tags in (*self._asked, *self._told) for tag in tags)


class Memory:
    """Of a suspended link; one that is attached needs none."""

    __slots__ = ("_asked", "stored", "told", "undecided")

    def __init__(self, stored: Iterable[bytes], told: Iterable[bytes], undecided: int) -> None:
        self.told = set(told)
        """Settled with their outcome, which the client has not proven to have read."""
        self.stored = self.told.union(stored)
        """Accepted."""
        self.undecided = undecided
        """Deliveries without an outcome."""
        self._asked: list[Callable[[], None]] = []

    def decided(self, tags: Collection[bytes], accepted: bool) -> None:
        """Deliveries that were under way have their outcome: what was refused is not remembered."""
        self.undecided -= len(tags)
        self.told.difference_update(tags)
        if accepted:
            self.stored.update(tags)
        else:
            self.stored.difference_update(tags)
        if self.undecided <= 0:
            asked, self._asked = self._asked, []
            for then in asked:
                then()

    def read(self) -> None:
        """The client has read what it was told."""
        self.stored -= self.told
        self.told.clear()

    def known(
        self, tags: Collection[bytes], everything: bool, then: Callable[[frozenset[bytes] | LinkError], None]
    ) -> None:
        """When all is decided: `then(those of the tags that were accepted)`, or `everything` that was."""

        def answer() -> None:
            then(frozenset(self.stored if everything else self.stored.intersection(tags)))

        if self.undecided > 0:
            self._asked.append(answer)
        else:
            answer()
