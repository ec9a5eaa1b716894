"""I35 to I37: what a delayed exchange promises. That nothing is in a target twice is I7."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterbroker.journal.layout import DEAD, ENQ
from tests.simulation.checkers.history import Checker
from tests.simulation.workload import DELAYING, DUE

if TYPE_CHECKING:
    from tests.simulation.sim_journal import Written
    from tests.simulation.site import Site


class Delaying(Checker):
    """Remembers what was asked for."""

    def __init__(self, history: Any) -> None:
        super().__init__(history)
        self.due_ms: dict[bytes, int] = {}
        """Not before this time; of a delay: that and the clock of the publisher's node when it was sent, or was sent
        again at the earliest."""
        self.exact: set[bytes] = set()
        """Due at that very time: it was never over by the clock of a node that the message was sent to. What is over is
        due when that node takes it."""
        self.targets: dict[bytes, tuple[str, ...]] = {}
        self._known: set[bytes] = set()

    def delayed(self, body: bytes, due_ms: int, targets: tuple[str, ...], exact: bool) -> None:
        self.due_ms[body] = min(due_ms, self.due_ms.get(body, due_ms))
        self.targets[body] = targets
        if exact and body not in self._known:
            self.exact.add(body)
        elif not exact:
            self.exact.discard(body)
        self._known.add(body)


class I35NotEarly(Delaying):
    """What is due leaves the delay queue's order at its time or later, by the clock of the queue's owner."""

    def submitted(self, site: Site, group: int, records: list[Written]) -> None:
        assert site.node is not None, "a node that runs writes"
        for record in records:
            if record.kind != DEAD or record.queue_id not in site.node.queues:  # a copy has a clock of its own
                continue
            if self.history.queue_name(record.queue_id) == DELAYING:
                body = site.journal.live.get(record.queue_id, {}).get(record.seq, (0, b""))[1]
                early_ms = self.due_ms.get(body, 0) - site.now_ms()
                self.require(early_ms <= 0, f"{body!r} leaves {early_ms} ms before it is due at {site.name}")


class I36NoneLost(Delaying):
    """What was confirmed comes to each of its queues."""

    def ended(self) -> None:
        for body, queues in self.history.confirmed.items():
            if DELAYING in queues:
                for name in self.targets[body]:
                    self.require(
                        body in self.history.acknowledged[name], f"{body!r} was confirmed, and never came to {name}"
                    )


class I37DueOrder(Delaying):
    """What has the same due time, and was published before it, comes to a queue that refuses nothing, and is the only
    one behind its key, in the order of publishing."""

    def __init__(self, history: Any) -> None:
        super().__init__(history)
        self._last: dict[int, int] = {}

    def committed(self, site: Site, queue_id: int, records: list[Written]) -> None:
        if self.history.queue_name(queue_id) != DUE[0]:
            return
        places = self.history.places[queue_id]
        for record in records:
            if record.kind != ENQ or record.body not in self.exact or record.body in places:
                continue
            due_ms, number = self.due_ms[record.body], int(record.body.rpartition(b":")[2])
            last = self._last.get(due_ms, 0)
            self.require(number > last, f"{record.body!r} of {due_ms} comes to {DUE[0]} behind number {last}")
            self._last[due_ms] = number
