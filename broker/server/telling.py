"""What a node's part tells of single queues, a few lines a turn (waits).

One command may concern 10,000 queues: a node dies, or is in sync again. Their lines take longer to be written than all
that is done with the queues, and nobody waits for them; whoever holds a lease, and every client, waits for the loop.
So lines come in their order, late when they are many, and bear the time when they were written.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from broker.server.log import NodeLog

LINES_A_TURN: Final = 50
TOLD_AS: Final = {
    "replica.caught_up": "debug",
    "replica.fell_behind": "warning",
    "replica.refused": "warning",
    "replica.rolled_back": "error",
    "replica.kept_apart": "error",
    "replica.differs": "error",
    "replica.damaged": "error",
    "owner.hand_over_failed": "warning",
}
"""What a node's part tells is of level info, but for these. (Who has caught up is in sync at once, which is told.)"""


class Telling:
    """The first lines of a turn of the loop are written at once, before the node acts as they say; what is more than
    `LINES_A_TURN` waits. Invariant: as long as lines are left, a turn is asked for.
    """

    __slots__ = ("_asked", "_left", "_log", "_loop", "_room")

    def __init__(self, loop: asyncio.AbstractEventLoop, log: NodeLog) -> None:
        self._loop = loop
        self._log = log
        self._left: deque[tuple[str, Mapping[str, Any]]] = deque()
        self._room = LINES_A_TURN
        """So many may still be written in this turn."""
        self._asked = False

    def tell(self, event: str, facts: Mapping[str, Any]) -> None:
        """Now, or soon."""
        if not self._asked:
            self._asked = True
            self._room = LINES_A_TURN
            self._loop.call_soon(self._turn)
        self._left.append((event, facts))
        self._write()

    def _turn(self) -> None:
        self._room = LINES_A_TURN
        self._write()
        self._asked = bool(self._left)
        if self._asked:
            self._loop.call_soon(self._turn)

    def rest(self) -> None:
        """All that is left, now: the node ends."""
        self._room = len(self._left)
        self._write()

    def _write(self) -> None:
        while self._left and self._room > 0:
            self._room -= 1
            event, facts = self._left.popleft()
            self._log.say(TOLD_AS.get(event, "info"), event, **facts)
