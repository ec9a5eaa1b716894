"""Log lines about single queues: a few lines a turn, and a sum instead of thousands (waits).

One command may concern 10,000 queues: a node dies, or is in sync again. Writing their lines takes longer than all the
work on the queues, while leases and clients wait for the loop. Lines therefore come in their order, late when they are
many, with the time of their event. And thousands of lines have no reader: the first LINES_EACH of an event in a window
are logged, later ones at level debug, and at the end of the window one line has their number. Errors are all logged:
each of them concerns a message.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from clusterbroker.broker.server.log import NodeLog

LINES_A_TURN: Final = 50
LINES_EACH: Final = 50
"""Lines of one event in a window that are written one by one."""
WINDOW_S: Final = 1.0
LEVEL_OF: Final = {
    "replica.caught_up": "debug",
    "replica.fell_behind": "warning",
    "replica.refused": "warning",
    "replica.rolled_back": "error",
    "replica.kept_apart": "error",
    "replica.differs": "error",
    "replica.damaged": "error",
    "owner.hand_over_failed": "warning",
}
"""Levels of events, else info. (A replica that has caught up is in sync at once, which has a line of its own.)"""


class LogBatch:
    """The first lines of a turn of the loop are written at once, before the node acts as they say; beyond
    `LINES_A_TURN` they wait. Invariants: as long as lines are left, a turn is asked for; each line is written, or
    counted in a sum that is."""

    def __init__(self, loop: asyncio.AbstractEventLoop, log: NodeLog) -> None:
        self._loop = loop
        self._log = log
        self._left: deque[tuple[str, str, Mapping[str, Any]]] = deque()  # level, event, facts
        self._room = LINES_A_TURN
        """Lines that may still be written in this turn."""
        self._asked = False
        self._counts: dict[str, int] = {}
        """Of each event in this window."""
        self._window: asyncio.TimerHandle | None = None

    def add(self, event: str, facts: Mapping[str, Any]) -> None:
        """Writes the line now or soon, or counts it."""
        level = LEVEL_OF.get(event, "info")
        if level in ("info", "warning"):
            count = self._counts[event] = self._counts.get(event, 0) + 1
            if self._window is None:
                self._window = self._loop.call_later(WINDOW_S, self._sum_up)
            if count > LINES_EACH:
                level = "debug"
        if self._log.writes(level):
            self._queue_line(level, event, facts)

    def _queue_line(self, level: str, event: str, facts: Mapping[str, Any]) -> None:
        if not self._asked:
            self._asked = True
            self._room = LINES_A_TURN
            self._loop.call_soon(self._turn)
        self._left.append((level, event, facts))
        self._write()

    def _turn(self) -> None:
        self._room = LINES_A_TURN
        self._write()
        self._asked = bool(self._left)
        if self._asked:
            self._loop.call_soon(self._turn)

    def _sum_up(self) -> None:
        self._window = None
        counts, self._counts = self._counts, {}
        for event, count in counts.items():
            if count > LINES_EACH:
                more = count - LINES_EACH
                facts = {
                    "of": event,
                    "count": more,
                    "what": f"{more:,} more, of one queue each, are lines of level debug",
                }
                self._queue_line(LEVEL_OF.get(event, "info"), "log.summed_up", facts)

    def rest(self) -> None:
        """Writes the rest now: the node ends."""
        if self._window is not None:
            self._window.cancel()
            self._sum_up()
        self._room = len(self._left)
        self._write()

    def _write(self) -> None:
        while self._left and self._room > 0:
            self._room -= 1
            level, event, facts = self._left.popleft()
            self._log.emit(level, event, **facts)
