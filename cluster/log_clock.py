"""The place of the fold in the wiring log, and the age of the log there (passing.py says how a log ages)."""

from __future__ import annotations

from . import commands as c
from .changes import Change, TimePassed
from .entities import LogTime
from .ids import NTH_BITS, LogIndex, QueueId
from .snapshot import Snapshot


class LogClock:
    """Index, place and time of the command that is folded, for the parts that stamp an entity with them.

    Invariant: neither `applied` nor the log's age ever falls.
    """

    __slots__ = ("applied", "nth", "time")

    def __init__(self) -> None:
        """The clock of an empty log."""
        self.applied = LogIndex(0)
        """Index of the last command."""
        self.nth = 0
        """Place of the command among those that an import carries out with one entry of the log, from 0."""
        self.time = LogTime()

    def queue_id(self) -> QueueId:
        """Id of a queue that this command declares."""
        return QueueId(self.applied | self.nth << NTH_BITS)

    def lived_ms(self, proposed_ms: int) -> int:
        """The log's age at a command: its proposer counts on from the last PassTime, and neither age is too high."""
        return max(self.time.lived_ms, proposed_ms)

    def pass_time(self, command: c.PassTime, changes: list[Change]) -> None:
        """Fold PassTime: void when the log is not as old any more as the proposer believed."""
        if command.after_ms == self.time.lived_ms < command.lived_ms:
            self.time = LogTime(command.lived_ms, command.wall_ms)
            changes.append(TimePassed(self.time))

    def save(self, snapshot: Snapshot) -> None:
        """Write this part of the map into a snapshot."""
        snapshot.times = [self.time] if self.time.lived_ms else []

    def restore(self, snapshot: Snapshot) -> None:
        """Read this part of the map from a snapshot."""
        self.applied = snapshot.index
        for time in snapshot.times:
            self.time = time
