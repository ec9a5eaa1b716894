"""Sign-in attempts at the management API of one node, by protocol and by where they came from.

They are counted since the process began, or since somebody set them back. At most SOURCES_MAX (address, user) are
remembered: the one that was quiet for the longest makes room. Names that are no user's are counted under the empty
name, so that whoever makes names up fills no table, and a password that was typed as a name is shown to nobody.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

SOURCES_MAX: Final = 1_000
PROTOCOL: Final = "http"


class Attempts:
    """Belongs to one process."""

    __slots__ = ("_by_source", "failed", "succeeded")

    def __init__(self) -> None:
        self.succeeded = 0
        self.failed = 0
        self._by_source: OrderedDict[tuple[str, str], tuple[int, int]] = OrderedDict()

    def count(self, address: str, user: str, ok: bool) -> None:
        """One attempt. `user` is empty when there is none of that name."""
        source = (address[:64], user)
        succeeded, failed = self._by_source.pop(source, (0, 0))
        self._by_source[source] = (succeeded + ok, failed + (not ok))
        if len(self._by_source) > SOURCES_MAX:
            self._by_source.popitem(last=False)
        self.succeeded += ok
        self.failed += not ok

    def reset(self) -> None:
        """Begins anew."""
        self.succeeded = self.failed = 0
        self._by_source.clear()

    def document(self) -> dict[str, Any]:
        """All together, as RabbitMQ tells them."""
        return _document(self.succeeded, self.failed)

    def by_source(self) -> list[dict[str, Any]]:
        """One document for each address and user, the last one first."""
        return [
            {"remote_address": address, "username": user, **_document(succeeded, failed)}
            for (address, user), (succeeded, failed) in reversed(self._by_source.items())
        ]


def _document(succeeded: int, failed: int) -> dict[str, Any]:
    return {
        "auth_attempts": succeeded + failed,
        "auth_attempts_failed": failed,
        "auth_attempts_succeeded": succeeded,
        "protocol": PROTOCOL,
    }
