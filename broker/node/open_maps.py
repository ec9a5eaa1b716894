"""Series of incomplete unsettled maps of recoverable sender links (specification 2.6.13): what they named so far.

A client whose map does not fit a frame attaches several times. Only the last of these maps is complete, and says of
what it lacks that it is settled; what the maps before it named is as much in doubt as what it names itself:

    attach 4  {A} incomplete   nothing is forgotten; A is named, unless it comes on this attach
    attach 5  {B} incomplete   nothing is forgotten; A and B are
    attach 6  {C}              all is forgotten but A, B and C, each of which may be known as it comes

So an attach leaves here what was named and has not come, and the next one of the link takes it. A series that goes on
at another node begins there anew: a client that has lost its connection names everything again.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

TAGS_MAX: Final = 262_144
"""Of all links of a node whose series are not over: beyond, the oldest series is not remembered (some 30 MB)."""
_NONE: Final[frozenset[bytes]] = frozenset()


class OpenMaps:
    """Of one node: links that are between two maps."""

    __slots__ = ("_count", "_named")

    def __init__(self) -> None:
        self._named: dict[int, frozenset[bytes]] = {}  # oldest first
        self._count = 0

    def leave(self, link: int, tags: Collection[bytes]) -> None:
        """The client leaves an attach; these tags the maps named, and they have not come."""
        self.drop(link)
        if tags:
            self._named[link] = frozenset(tags)
            self._count += len(tags)
        while self._count > TAGS_MAX:
            self.drop(next(iter(self._named)))

    def take(self, link: int) -> frozenset[bytes]:
        """What the series of the link named before the attach that is answered now."""
        tags = self._named.get(link, _NONE)
        self.drop(link)
        return tags

    def drop(self, link: int) -> None:
        """The link has ended, is attached elsewhere, or resumes nothing."""
        self._count -= len(self._named.pop(link, _NONE))
