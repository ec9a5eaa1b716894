"""Attempts to sign in over one protocol at one process, by where they came from: AMQP's are the node's, HTTP's those of
its management process.

They are counted since the process began, or since somebody set them back. At most SOURCES_MAX (address, user) are
remembered: the one that was quiet for the longest makes room. Names that are no user's are counted under the empty
name, so that whoever makes names up fills no table, and a password that was typed as a name is shown to nobody.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

SOURCES_MAX: Final = 1_000


class Attempts:
    """Belongs to one process."""

    __slots__ = ("_by_source", "changes", "failed", "protocol", "succeeded")

    def __init__(self, protocol: str) -> None:
        """`protocol`: "amqp" or "http"."""
        self.protocol = protocol
        self.changes = 0
        """How often something here changed."""
        self.succeeded = 0
        self.failed = 0
        self._by_source: OrderedDict[tuple[str, str], tuple[int, int]] = OrderedDict()

    def count(self, address: str, user: str, ok: bool) -> None:
        """One attempt. `user` is empty when there is none of that name."""
        self.changes += 1
        source = (address[:64], user)
        succeeded, failed = self._by_source.pop(source, (0, 0))
        self._by_source[source] = (succeeded + ok, failed + (not ok))
        if len(self._by_source) > SOURCES_MAX:
            self._by_source.popitem(last=False)
        self.succeeded += ok
        self.failed += not ok

    def reset(self) -> None:
        """Begins anew."""
        self.changes += 1
        self.succeeded = self.failed = 0
        self._by_source.clear()

    def sources(self) -> Iterator[tuple[str, str, int, int]]:
        """(address, user, succeeded, failed), who was quiet for the longest first. May be interrupted, and go on after
        some were counted."""
        for source in tuple(self._by_source):
            counted = self._by_source.get(source)
            if counted is not None:
                yield *source, *counted
