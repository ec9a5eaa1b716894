"""How what is due goes to one of the queues behind a delayed exchange: a lane for each, so that none waits for another.

    open       letters go, QUOTA of them at most without an answer
    refusing   the queue has refused one: the next try after 1 s, 2 s, 4 s ... 60 s, with one letter. Each one that is
               taken doubles the number that may go, up to QUOTA
    away       the queue has no leader, or has not answered for STALL_MS: nothing new goes

What is due for a lane that takes nothing now is parked: it is a ready message as before, with a row of 16 bytes in the
lane's own index, in the order of due times. It takes no number and no other lane waits for it.

A queue remembers the numbers of a dying queue's letters for DEAD_SPREAD numbers. So no letter goes to a lane whose
number is so much higher than one that is open there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.queues.producers import DEAD_SPREAD
from clusterbroker.journal.due_index import DueIndex

QUOTA: Final = 1024
RETRY_FIRST_MS: Final = 1000
RETRY_MAX_MS: Final = 60_000
STALL_MS: Final = 1000


class Lane:
    """To one queue.

    open      the first numbers of letters that may be there, in order
    underway  messages without an answer, `asked` of them are published; `size` bytes of content
    owed      letters that it has not taken, and that others have still to answer: they come back to it, and nothing
              passes them by
    again_ms  nothing is tried before
    asked_ms  since when an answer is awaited
    """

    __slots__ = (
        "again_ms", "asked", "asked_ms", "open", "owed", "parked", "quota", "size", "stalled", "target", "tries",
        "underway",
    )  # fmt: skip

    def __init__(self, target: QueueHandle) -> None:
        self.target = target
        self.open: dict[int, None] = {}
        self.parked = DueIndex()
        self.quota = QUOTA
        self.again_ms = self.asked = self.asked_ms = self.owed = self.size = self.tries = self.underway = 0
        self.stalled = False

    def takes(self, number: int, now_ms: int) -> bool:
        """Whether a letter of this number may go there now."""
        return self.room(number, now_ms) > 0

    def room(self, number: int, now_ms: int) -> int:
        """How many messages from this number on may go there now."""
        if self.again_ms > now_ms or self.stalled or self.owed or self.underway >= self.quota or self.target.away:
            return 0
        spread = number - next(iter(self.open)) if self.open else 0
        return min(self.quota - self.underway, DEAD_SPREAD - spread)

    def hold(self, number: int, size: int, count: int = 1) -> None:
        """A letter will go there, of messages from this number on."""
        self.underway += count
        self.size += size
        self.open[number] = None

    def hold_each(self, numbers: Iterable[int]) -> None:
        """The messages of a letter go by themselves."""
        self.open = dict.fromkeys(sorted({*self.open, *numbers}))

    def ask(self, count: int, now_ms: int) -> None:
        """Letters are published there."""
        if not self.asked:
            self.asked_ms = now_ms
        self.asked += count

    def takes_back(self, count: int) -> None:
        """They are not there, and will be published again."""
        self.asked -= count

    def answered(self, count: int, size: int, refused: bool, now_ms: int) -> None:
        """They have an answer."""
        self.underway -= count
        self.size -= size
        self.asked -= count
        self.asked_ms, self.stalled = now_ms, False
        if refused:
            self.refuse(now_ms)
        else:
            self.tries = 0
            self.quota = min(QUOTA, 2 * self.quota)

    def refuse(self, now_ms: int) -> None:
        """It takes nothing, for a while. Refusals of one try count once."""
        if self.again_ms <= now_ms:
            self.again_ms = now_ms + min(RETRY_FIRST_MS << min(self.tries, 16), RETRY_MAX_MS)
            self.tries += 1
        self.quota = 1

    def look(self, now_ms: int) -> bool:
        """Whether it stalls just now."""
        if self.asked and not self.stalled and now_ms - self.asked_ms >= STALL_MS:
            self.stalled = True
            return True
        return False

    @property
    def idle(self) -> bool:
        """Nothing is known of it that would be missed."""
        return not (self.open or self.underway or self.owed or self.parked or (self.tries and not self.target.deleted))
