"""The parts of a simulated node's data directory at each start, by the real rules (broker/server/binding.py).

journal     judged when the wiring is known. Damaged: the copies are given up (RegisterNode, `spare_last`), and the
            next start begins with an empty one, *marked* until the cluster knows that every copy is lost. Refused,
            because somebody has nothing else: the process ends, and an operator puts back what was there
raft        judged before it is opened. Damaged: made anew under another Raft id
"""

from __future__ import annotations

from typing import Final

from clusterbroker.broker.server import binding
from clusterbroker.broker.server.binding import JOURNAL, NOTHING, RAFT, Found, Listed, Remedy
from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.raft import identity
from clusterbroker.journal.stamp import Stamp
from tests.simulation.raft.sim_disk import SimDisk
from tests.simulation.sim_journal import SimJournal

COPIES_MAX: Final = 2
"""Of a journal as it was at the end of a start, for one who puts an old one back."""


class Directory:
    """DIR/identity of one disk, and the mark of a journal that was given up."""

    def __init__(self, disk_id: str) -> None:
        self.disk_id = disk_id
        self.starts = 0
        self.number = 1
        """Of the start under way."""
        self.listed: dict[str, Listed] = {}
        self.marked = False
        """Its journal is lost, and the cluster may not know it yet."""
        self.given_up_as = 0
        """The incarnation that gave it up, as the journal in its place knows it."""
        self.copies: list[SimJournal] = []
        """The journal at the ends of earlier starts, oldest first."""
        self._made = 0
        self._rebuilt = False

    def keep_copy(self, journal: SimJournal) -> None:
        """A start has ended."""
        if journal.copies and journal.stamp is not None:
            self.copies = [*self.copies[1 - COPIES_MAX :], journal.copy()]

    def old_copy(self) -> SimJournal | None:
        """One that is older than the last start of this node."""
        listed = self.listed.get(JOURNAL)
        if listed is None:
            return None
        older = (c for c in self.copies if c.stamp is not None and c.stamp.starts < listed.starts)
        return next(older, None)

    # -- at a start

    def begin(self) -> None:
        """A start: nothing is listed for it yet."""
        self.number = self.starts + 1

    def raft_disk(self, name: str, disk: SimDisk) -> SimDisk:
        """The Raft log's disk, or if that is not the one that this node had, one for a log that is made anew."""
        known = identity.read(disk)
        stamp = Stamp(known.home, known.disk_id, known.starts) if known is not None and known.home else None
        if self._remedy(RAFT, Found(known is not None, stamp)) is Remedy.USE:
            return disk
        fresh = SimDisk(disk.path, disk.rng)
        identity.join(fresh, NodeId(name), self._fresh_id(), self.disk_id, self.starts)
        return fresh

    def list_raft(self, log_id: str) -> None:
        """It is open and stamped."""
        self._list(RAFT, Stamp(self.disk_id, log_id, self.number))

    def give_up(self, incarnation: int) -> None:
        """Nothing of the journal counts any more, and another one is begun."""
        self.marked, self.given_up_as, self._rebuilt = True, incarnation, False

    def registered(self) -> None:
        """The cluster knows it."""
        self.marked = False

    def journal_is_whole(self, journal: SimJournal) -> bool:
        if self.marked and journal.stamp is None:
            if self._rebuilt:
                self.given_up_as = 0  # what was begun anew is gone as well, and known to be lost by its mark
            return True
        found = Found(True, journal.stamp) if journal.stamp is not None else NOTHING
        return self._remedy(JOURNAL, found) is Remedy.USE

    def bind_journal(self, journal: SimJournal) -> None:
        """What was read is what this node goes on with."""
        self._rebuilt = self.marked
        part_id = self._fresh_id() if journal.stamp is None else journal.stamp.part_id
        journal.stamp = Stamp(self.disk_id, part_id, self.number)
        self._list(JOURNAL, journal.stamp)

    def _list(self, part: str, stamp: Stamp) -> None:
        self.listed[part] = Listed(stamp.part_id, stamp.starts)
        self.starts = self.number

    def _remedy(self, part: str, found: Found) -> Remedy:
        verdict = binding.judge(self.disk_id, self.starts, self.listed.get(part), found)
        remedy = binding.remedy(part, verdict, True, True)
        assert remedy is not Remedy.REFUSE, f"no identity goes back: {part} {verdict}"
        return remedy

    def _fresh_id(self) -> str:
        self._made += 1
        return f"{self.disk_id}.{self._made}"
