"""Conditions for operators that block nobody: a disk went back in time, a queue is set aside.

An *alarm* (`broker.node.backpressure`) is a resource that runs low, and publishers wait for it. An *alert* names a
fault and stays until its repair. (kind, subject) is its identity; setting it again replaces its text. Begin and end of
each are logged once; `status`, the rows of the node, metrics and the web page show the present ones. At most ALERTS_MAX
are kept one by one; further ones are counted, because a fault of thousands of queues shows in the first thousand.

alert of a copy        subject           holds
replica.rolled_back    this node         from the first queue on, as long as its process lives: a disk that went back
                                         once is to be looked at, though all its copies were rebuilt since
replica.differs        this node         likewise: a copy that was in sync was not what its owner has
replica.stumbled       queue             until the node's next start, or the queue ends here: a mistake of ours
replica.kept_apart     queue and member  while this node owns the queue, until the copy is synced after all
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from clusterbroker.broker.node.log import Log
from clusterbroker.cluster.errors import queue_text

if TYPE_CHECKING:
    from clusterbroker.cluster.wiring.entities import Queue

ALERTS_MAX: Final = 1_000
ALERTS_SHOWN_MAX: Final = 100


class Alert(Struct, frozen=True):
    """One condition that holds."""

    kind: str
    subject: str
    text: str
    """What is wrong and what to do, one line."""
    since_ms: int
    """When it was raised, ms since 1970."""


class Alerts:
    """Those of one node. Invariant: `beyond` is 0 unless there are ALERTS_MAX."""

    __slots__ = ("_held", "_log", "_now_ms", "beyond")

    def __init__(self, log: Log, now_ms: Callable[[], int]) -> None:
        self._log = log
        self._now_ms = now_ms
        self._held: dict[tuple[str, str], Alert] = {}
        self.beyond = 0
        """So many more were raised, and are not kept one by one, since there were last less than ALERTS_MAX."""

    def set(self, kind: str, subject: str, text: str) -> None:
        """Raises the alert, or gives it another text."""
        key = kind, subject
        known = self._held.get(key)
        if known is None and len(self._held) >= ALERTS_MAX:
            self.beyond += 1
            return
        since_ms = self._now_ms() if known is None else known.since_ms
        self._held[key] = Alert(kind, subject, text, since_ms)
        if known is None:
            self._log.alert(True, kind, subject, text)

    def clear(self, kind: str, subject: str) -> None:
        """Ends the alert, if it holds."""
        known = self._held.pop((kind, subject), None)
        if known is not None:
            self.beyond = 0
            self._log.alert(False, kind, subject, known.text)

    def holds(self, kind: str, subject: str) -> bool:
        return (kind, subject) in self._held

    def __iter__(self) -> Iterator[Alert]:
        """The oldest first."""
        return iter(tuple(self._held.values()))

    def __len__(self) -> int:
        """Those that are not kept one by one included."""
        return len(self._held) + self.beyond


ROLLED_BACK: Final = "replica.rolled_back"
DIFFERS: Final = "replica.differs"
KEPT_APART: Final = "replica.kept_apart"
STUMBLED: Final = "replica.stumbled"


class CopyCare:
    """Of one node, by its name."""

    def __init__(self, name: str, alerts: Alerts) -> None:
        self._name = name
        self._alerts = alerts
        self._rolled_back: dict[int, None] = {}
        self._apart: dict[int, dict[str, None]] = {}

    def on_event(self, event: str, queue: Queue, node: str, why: str) -> None:
        """An event of replication."""
        where = queue_text(queue.vhost, queue.name)
        if event == "rolled_back" and node == self._name:
            self._rolled_back[queue.queue_id] = None
            count = len(self._rolled_back)
            queues = where if count == 1 else f"{count} queues, the last one {where}"
            self._alerts.set(
                ROLLED_BACK,
                node,
                f"the disk of this node went back in time: its copies of {queues} lacked what was confirmed ({why}). "
                "They are rebuilt from the other members; see docs/operating-a-cluster.md, 'A disk that went back'",
            )
        elif event == "differs":
            self._alerts.set(
                DIFFERS,
                node,
                f"the copy of {where} here differed from its leader's ({why}), and is synced anew; look at this node's "
                "memory and disk",
            )
        elif event == "kept_apart":
            self._apart.setdefault(queue.queue_id, {})[node] = None
            self._alerts.set(
                KEPT_APART,
                _subject(queue, node),
                f"the copy of {where} at '{node}' holds confirmed messages that its leader, '{self._name}', lacks "
                f"({why}). "
                "It is kept as it is and does not count: choose one of the two with clusterbroker queues force-owner",
            )
        elif event == "caught_up":
            self._end(queue, node)

    def stumbled(self, queue: Queue, what: str) -> None:
        """Something raised over the queue's copy here."""
        where = queue_text(queue.vhost, queue.name)
        self._alerts.set(
            STUMBLED, where, f"{what}; the copy here is made anew from the other members'. See the log, and tell us"
        )

    def deleted(self, queue: Queue) -> None:
        """There is no such queue any more."""
        self.ended(queue)
        self._alerts.clear(STUMBLED, queue_text(queue.vhost, queue.name))

    def ended(self, queue: Queue) -> None:
        """This node owns the queue no more."""
        for node in tuple(self._apart.get(queue.queue_id, ())):
            self._end(queue, node)

    def _end(self, queue: Queue, node: str) -> None:
        apart = self._apart.get(queue.queue_id, {})
        if node in apart:
            del apart[node]
            self._alerts.clear(KEPT_APART, _subject(queue, node))
        if not apart:
            self._apart.pop(queue.queue_id, None)


def _subject(queue: Queue, node: str) -> str:
    return f"{queue_text(queue.vhost, queue.name)} at {node}"
