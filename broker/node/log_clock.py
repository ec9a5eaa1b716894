"""The wiring log's time on this node, between two PassTime commands (`cluster.passing` has the theory).

The node's own time runs with its monotonic clock, so it gives the time since the last command. Its date is that of a
wall clock, and may be wrong.
"""

from __future__ import annotations

from clusterbroker.cluster.wiring.entities import LogTime


class LogClock:
    """Age and calendar of the log at a moment of the node's time."""

    __slots__ = ("_at_ms", "_time", "doubted")

    def __init__(self) -> None:
        self._time = LogTime()
        self._at_ms = 0
        self.doubted = False
        """This node's clock is far from the other members': it ends nothing."""

    def passed(self, time: LogTime, now_ms: int) -> None:
        """The log has said so; `now_ms`: the node's time."""
        self._time, self._at_ms = time, now_ms

    def _since(self, now_ms: int) -> int:
        return max(0, now_ms - self._at_ms)

    def lived_ms(self, now_ms: int) -> int:
        """The log's age, for what begins now."""
        return self._time.lived_ms + self._since(now_ms)

    def ages_by(self, now_ms: int) -> int | None:
        """The date by which messages may be too old, ms since 1970: the earlier one of this node and of the log.
        None: no message is, since the node's clock is doubted, or the log has no calendar yet."""
        if self.doubted or not self._time.wall_ms:
            return None
        return min(now_ms, self._time.wall_ms + self._since(now_ms))
