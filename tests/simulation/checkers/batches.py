"""I21, I22: what is staged is seen when it is committed, all of it, once, and in the order of the batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterbroker.cluster.wiring import commands as c
from clusterbroker.journal.layout import ENQ
from tests.simulation.checkers.history import Checker

if TYPE_CHECKING:
    from clusterbroker.cluster.wiring.map import Applied
    from tests.simulation.sim_journal import Written
    from tests.simulation.site import Site


class I21OneCommit(Checker):
    """An epoch of a producer is committed once, behind the one before; who is told so is told the truth."""

    def __init__(self, history: Any) -> None:
        super().__init__(history)
        self._commits: dict[tuple[str, int], tuple[str, ...]] = {}
        self._last: dict[str, int] = {}

    def ordered(self, applied: Applied) -> None:
        command = applied.command
        if not isinstance(command, c.CommitTransaction) or not applied.ok or applied.result.outcome != "committed":
            return
        producer, epoch = command.producer, command.epoch
        self.require(
            epoch > self._last.get(producer, -1), f"{producer} commits {epoch} behind {self._last.get(producer)}"
        )
        self._last[producer] = epoch
        self._commits[producer, epoch] = command.transactions
        self.world.schedule.counts["batches"] += 1

    def batch_answered(self, producer: str, epoch: int, names: tuple[str, ...], outcome: str) -> None:
        known = self._commits.get((producer, epoch))
        self.require(known is not None, f"{producer} is told {outcome!r} of {epoch}, which was never committed")
        if outcome == "committed":
            self.require(known == names, f"{producer} is told that {names} are committed in {epoch}, {known} were")


class I22RowsOnce(Checker):
    """Each row of a committed segment comes to each of its queues once (I7), no other row to any; in a queue batches
    of one producer stand in the order of their epochs. A row that is confirmed is in its segment."""

    def __init__(self, history: Any) -> None:
        super().__init__(history)
        self._committed: set[str] = set()  # segments
        self._last: dict[tuple[int, str], tuple[int, int]] = {}  # queue and producer: seq and epoch

    def ordered(self, applied: Applied) -> None:
        command = applied.command
        if isinstance(command, c.CommitTransaction) and applied.ok and applied.result.outcome == "committed":
            self._committed.update(command.transactions)

    def confirmed(self, body: bytes, queues: tuple[str, ...]) -> None:
        row = self.history.staged.get(body)
        segment = self.world.newest_map.segment("/", row.segment) if row is not None else None
        if segment is not None and not segment.discards:
            there = body in self.history.places[segment.queue_id]
            self.require(there, f"{body!r} is confirmed and not committed in its segment {segment.name}")

    def committed(self, site: Site, queue_id: int, records: list[Written]) -> None:
        name = self.history.queue_name(queue_id)
        for record in records:
            row = self.history.staged.get(record.body) if record.kind == ENQ else None
            if row is None or name in ("", row.segment):
                continue
            self.require(row.segment in self._committed, f"{record.body!r} of no commit is in {name}")
            self.require(name in row.queues, f"{record.body!r} is in {name}, and goes to {row.queues}")
            self.world.schedule.counts["rows moved"] += 1
            seq, epoch = self._last.get((queue_id, row.producer), (0, 0))
            if record.seq > seq:
                self.require(
                    row.epoch >= epoch, f"{record.body!r} of epoch {row.epoch} is in {name} behind one of {epoch}"
                )
                self._last[queue_id, row.producer] = record.seq, row.epoch

    def ended(self) -> None:
        for body, row in self.history.staged.items():
            for name in row.queues if row.segment in self._committed else ():
                queue_id = self.history.queue_id(name)
                assert queue_id is not None, "targets stay"
                self.require(body in self.history.places[queue_id], f"{body!r} was committed and is not in {name}")
                if self.world.keeps_all(name) and self.world.acknowledged(name):
                    self.require(body in self.history.acknowledged[name], f"{body!r} of {name} is lost")
        for site in self.world.sites.values():
            for queue in site.node.queues.values() if site.node is not None else ():
                kept = [key for key in queue.ring.attributes if key[:1] == b"t"]
                self.require(not kept, f"{site.name} remembers rows of {len(kept)} segments in {queue.name}")
