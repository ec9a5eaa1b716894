"""Reports to the operator about copies that went back in time, or are kept apart (replication/places.py).

alert                  subject           holds
replica.rolled_back    this node         from the first queue on, as long as its process lives: a disk that went back
                                         once is to be looked at, though all its copies were rebuilt since
replica.differs        this node         likewise: a copy that was in sync was not what its owner has
replica.stumbled       queue             until the node's next start, or the queue ends here: a mistake of ours
replica.kept_apart     queue and member  while this node owns the queue, until the copy is synced after all
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from clusterbroker.cluster.errors import queue_text

if TYPE_CHECKING:
    from clusterbroker.broker.node.alerts import Alerts
    from clusterbroker.cluster.wiring.entities import Queue

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

    def told(self, event: str, queue: Queue, node: str, why: str) -> None:
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
