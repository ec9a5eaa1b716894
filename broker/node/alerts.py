"""Conditions for operators that block nobody: a disk went back in time, a queue is set aside.

An *alarm* (`broker.node.alarms`) is a resource that runs low, and publishers wait for it. An *alert* blocks nothing:
it names a fault and stays until its repair. (kind, subject) is its identity; setting it again replaces its text.
Begin and end of each alert are logged once; `status`, the rows of the node, metrics and the web page show the present
ones.

Kinds are words of the product's own, such as `replica.rolled_back`; subjects name a queue, a member, a directory. At
most ALERTS_MAX are kept one by one; further ones are counted, because a fault of thousands of queues at once shows in
the first thousand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct

from clusterbroker.broker.node.log import Log

ALERTS_MAX: Final = 1_000
ALERTS_TOLD_MAX: Final = 100


class Alert(Struct, frozen=True):
    """One condition that holds."""

    kind: str
    subject: str
    text: str
    """What is wrong and what to do, one line."""
    since_ms: int
    """When it was raised, ms since 1970."""


class Alerts:
    """Those of one node. Invariant: `untold` is 0 unless there are ALERTS_MAX."""

    __slots__ = ("_held", "_log", "_now_ms", "untold")

    def __init__(self, log: Log, now_ms: Callable[[], int]) -> None:
        self._log = log
        self._now_ms = now_ms
        self._held: dict[tuple[str, str], Alert] = {}
        self.untold = 0
        """So many more were raised, and are not kept one by one, since there were last less than ALERTS_MAX."""

    def set(self, kind: str, subject: str, text: str) -> None:
        """Raises the alert, or gives it another text."""
        key = kind, subject
        known = self._held.get(key)
        if known is None and len(self._held) >= ALERTS_MAX:
            self.untold += 1
            return
        since_ms = self._now_ms() if known is None else known.since_ms
        self._held[key] = Alert(kind, subject, text, since_ms)
        if known is None:
            self._log.alert(True, kind, subject, text)

    def clear(self, kind: str, subject: str) -> None:
        """Ends the alert, if it holds."""
        known = self._held.pop((kind, subject), None)
        if known is not None:
            self.untold = 0
            self._log.alert(False, kind, subject, known.text)

    def clear_kind(self, kind: str) -> None:
        """Ends all of a kind."""
        for each, subject in tuple(self._held):
            if each == kind:
                self.clear(kind, subject)

    def holds(self, kind: str, subject: str) -> bool:
        return (kind, subject) in self._held

    def __iter__(self) -> Iterator[Alert]:
        """The oldest first."""
        return iter(tuple(self._held.values()))

    def __len__(self) -> int:
        """Those that are not kept one by one included."""
        return len(self._held) + self.untold
