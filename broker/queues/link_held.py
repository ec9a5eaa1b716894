"""How sessions ask a queue what a recoverable link holds of it (`link_holding`)."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, NamedTuple, Protocol

from clusterbroker.broker.queues.modification import Modification


class LinkAttach(NamedTuple):
    """An attach of a recoverable link (`cluster.wiring.links`)."""

    link: int
    attach: int


NAME_MAX: Final = 100
"""Characters of a container's id and a link's name together; of longer ones a digest is known."""


def link_name(container: str, name: str) -> str:
    """What a queue knows a receiver's link by, also when it comes again (`Member.link`)."""
    said = f"{container}\0{name}"
    return said if len(said) <= NAME_MAX else blake2b(said.encode(), digest_size=16).hexdigest()


NO_LINK: Final = LinkAttach(0, 0)
"""Of a consumer that is no recoverable link's."""


class HeldMessages(NamedTuple):
    """Neighbouring messages that a link holds."""

    first: int
    last: int
    delivery_count: int
    withdrawn: bool = False
    """They were held for too long, and have returned: its client is to hear that."""

    @property
    def seqs(self) -> range:
        return range(self.first, self.last + 1)


class LinkHolding(Protocol):
    """What links hold of one queue (`link_holding.Holding`)."""

    @property
    def links(self) -> list[int]:
        """Those that hold something."""

    def fence(self, link: int, since: int) -> None:
        """The link is attached anew; if it was not resumed, it begins with nothing."""

    def tidy(self, link: int, since: int) -> None:
        """What it held before an attach that did not resume it returns."""

    def end(self, link: int) -> None:
        """The link is no more."""

    def withdraw(self, link: int, first: int = 1, last: int | None = None) -> int:
        """It holds these for longer than a consumer may, or is suspended for as long: they return, counted, and its
        client will hear so. How many they are."""

    def give_back(self, seqs: list[int], modification: Modification) -> None:
        """These were taken from their links, and return when that is committed."""
