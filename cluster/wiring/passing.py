"""Time in the wiring log, so that no wall clock ends data of the log (pure).

A wall clock is wrong at times: a dead battery, a virtual machine's host, an operator's typing error. Belief in it at
one start, for seconds, forgets producers, drops their staged rows and cuts the history of streams, for good.
Destruction therefore follows two times that the log itself keeps (`LogTime`), and that one command moves, PassTime:

    lived_ms   the log's age: grows by the time on the monotonic clock of the log's leader, while it leads, and by
               nothing else. Producers and staged rows end by it: their "30 days" are days in which the cluster was up.
               No clock of any start can end them
    wall_ms    its calendar. Messages are dated by wall clocks, so the age of streams needs one. It begins with the
               first wall clock that is seen, runs with the age, and stands without a leader. It follows the wall clock
               where the two differ, but only when that clock has been steady for STEADY_MS, and then by at most GAIN
               times the passed time: a clock that NTP corrects after a minute has moved nothing, however often that
               happens, and one that stays a month ahead costs a day of history in an hour, not all at once

The price of a restart is lateness: after a day of downtime a node keeps its streams' messages for up to 10 minutes
and an hour longer than their age says.

The command names the age that its proposer went out from and is void after a change of it: no stretch of time is
counted twice, neither by two supposed leaders nor by a repeated proposal.

A node far from the other members' clocks (`cluster.liveness.clocks`) moves the calendar by the passed time only.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from clusterbroker.cluster.ids import NTH_BITS, LogIndex, QueueId

from .changes import Change, TimePassed
from .commands import PassTime
from .entities import LogTime
from .snapshot import Snapshot

PASS_MS: Final = 60_000
"""PassTime is ordered so often; sooner when something ends by it."""
STEADY_MS: Final = 600_000
"""So long a wall clock has run with the monotonic one before the calendar follows it."""
GAIN: Final = 24
"""Then the calendar gains or loses so many times what passes."""
JUMP_MS: Final = 1000
"""A wall clock that moved by so much against the monotonic one between two looks has jumped."""


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

    def pass_time(self, command: PassTime, changes: list[Change]) -> None:
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


class _Base(NamedTuple):
    """The log's time, and when that was on the monotonic clock."""

    time: LogTime
    at_ms: int


class Passing:
    """The time commands of a node that orders the log; looked at every few seconds."""

    __slots__ = ("_base", "_offset_ms", "_proposed", "_steady_since_ms")

    def __init__(self) -> None:
        self._base: _Base | None = None
        """None: it does not order the log."""
        self._proposed: _Base | None = None
        self._offset_ms: int | None = None
        self._steady_since_ms = 0

    def look(self, orders: bool, time: LogTime, monotonic_ms: int, wall_ms: int) -> None:
        """The clocks and the log's time at this moment, and whether this node orders the log."""
        offset_ms = wall_ms - monotonic_ms
        if self._offset_ms is None or abs(offset_ms - self._offset_ms) >= JUMP_MS:
            self._steady_since_ms = monotonic_ms
        self._offset_ms = offset_ms
        if not orders:
            self._base = self._proposed = None
        elif self._base is None or self._base.time.lived_ms != time.lived_ms:
            # it was this node's own proposal, or another node's: of that the moment is not known
            own = self._proposed is not None and self._proposed.time == time
            self._base = self._proposed if own else _Base(time, monotonic_ms)

    def lived_ms(self, monotonic_ms: int) -> int:
        """The log's age now; 0: this node does not order the log."""
        return 0 if self._base is None else self._base.time.lived_ms + monotonic_ms - self._base.at_ms

    def proposal(self, monotonic_ms: int, wall_ms: int, doubted: bool, wanted: bool = False) -> PassTime | None:
        """The command to order now, if any. `doubted`: the wall clock is far from the other members'; `wanted`:
        something ends at this age."""
        if self._base is None:
            return None
        before, passed_ms = self._base.time, monotonic_ms - self._base.at_ms
        begins = not before.wall_ms and not doubted
        if not begins and passed_ms < (1 if wanted else PASS_MS):
            return None
        lived_ms = before.lived_ms + max(passed_ms, 1)
        if begins:
            calendar_ms = wall_ms
        else:
            calendar_ms = before.wall_ms + passed_ms if before.wall_ms else 0
            if before.wall_ms and not doubted and monotonic_ms - self._steady_since_ms >= STEADY_MS:
                most_ms = GAIN * passed_ms
                calendar_ms += max(-most_ms, min(most_ms, wall_ms - calendar_ms))
        self._proposed = _Base(LogTime(lived_ms, calendar_ms), monotonic_ms)
        return PassTime(at_ms=wall_ms, after_ms=before.lived_ms, lived_ms=lived_ms, wall_ms=calendar_ms)

    def behind_ms(self, monotonic_ms: int, wall_ms: int) -> int:
        """By how much the log's calendar is behind the wall clock; 0: it is not, or not known."""
        if self._base is None or not self._base.time.wall_ms:
            return 0
        return max(0, wall_ms - self._base.time.wall_ms - (monotonic_ms - self._base.at_ms))
