"""Sticky requests: calls of one key that belong together go to the worker that answered the call before.

A caller says with the header `x-sticky` which worker it means: the launch that the answer before names (`x-worker-id`).
The owner of the group's queue keeps the request for that worker: others pass it over, and take what is behind it.

    the worker has credit                              it gets the request in its turn
    it has none for KEPT_MS, since another would       any worker of the key gets it
    have got the request
    it does not consume, is retired, or goes;          any worker of the key gets it, at once
    the request returns; the queue has another
    owner; KEPT_MAX of the queue are kept already

So a request stays one of its group's queue, with its copies, times and rules: no way of it is another one, on which it
could be lost. Nobody waits longer for it but the caller that asked for this.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any, Final

from clusterbroker.broker.content.properties import properties_of
from clusterbroker.broker.queues import ring as rings
from clusterbroker.broker.queues.selecting import Selecting
from clusterbroker.broker.queues.states import READY
from clusterbroker.broker.queues.subscription import Member
from clusterbroker.journal.record import Message

STICKY: Final = "x-sticky"
STICKY_BYTES: Final = STICKY.encode()
"""So the name stands in a message of either protocol."""
KEPT_MS: Final = 1000
KEPT_MAX: Final = 1024
"""Of one queue. Whoever passes them over looks at each of them."""


def sticks_to(message: Message) -> str:
    """The worker that its caller means; empty: none."""
    if STICKY_BYTES not in message.header:
        return ""
    try:
        named: Any = (properties_of(message).headers or {}).get(STICKY)
        text = bytes(named).decode() if isinstance(named, (bytes, bytearray)) else named
    except Exception:  # what cannot be read here is a request of any worker
        return ""
    return text if isinstance(text, str) else ""


class Sticking(Selecting):
    """Consumers of one queue that pass over what is kept for others."""

    __slots__ = ("_kept", "_passed", "_walks")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._kept: dict[int, str] = {}
        """Seq -> its worker; ascending, with some at times that have left the queue."""
        self._passed: dict[int, int] = {}
        """Seq -> until when it is kept, ms, since somebody has passed it over; ascending, and some are not kept."""
        self._walks = False
        """Consumers look at what is kept."""

    @property
    def ends_ms(self) -> int:
        """When the next one is anybody's; 0: none is passed over."""
        for seq, ends_ms in list(self._passed.items()):
            if seq in self._kept:
                return ends_ms
            del self._passed[seq]
        return 0

    def keep(self, seq: int, worker: str) -> None:
        """The newest message is meant for this worker."""
        if len(self._kept) < KEPT_MAX:
            self._kept[seq] = worker
            if not self._walks:
                self._look_again()

    def release(self, now_ms: int, serving: Set[str]) -> None:
        """Before a hand-out to these workers: what was kept for long enough, or for others, is anybody's."""
        if not self._walks:
            return
        ring, kept, again = self._queue.ring, self._kept, False
        for seq, ends_ms in list(self._passed.items()):
            if ends_ms > now_ms and seq in kept:
                break
            del self._passed[seq]
            again |= kept.pop(seq, None) is not None
        if any(worker not in serving for worker in kept.values()):
            self._kept = kept = {seq: worker for seq, worker in kept.items() if worker in serving}
            again = True
        for seq in list(kept):
            if any(state == READY for _, state, *_ in ring.living(seq, seq, 1)):
                break
            del kept[seq]
        if again or self._walks != bool(kept):
            self._look_again()

    def _look_again(self) -> None:
        """All consumers walk from the head."""
        self._walks = bool(self._kept)
        for member in self._queue.subscriptions:
            self.came(member)
        self._queue.subscriptions.relist()

    def came(self, member: Member) -> None:
        super().came(member)
        if not self._walks:
            return
        selection: Any = member.credit.selection
        takes = None if selection is None else selection.judge

        def judge(seq: int, message: Message) -> bool | None:
            meant = self._kept.get(seq)
            if meant is not None and meant != member.worker:
                if seq not in self._passed:
                    self._passed[seq] = self._queue.host.now_ms + KEPT_MS
                return False
            answer = True if takes is None else takes(seq, message)
            if answer and meant is not None:
                del self._kept[seq]
            return answer

        member.credit.selection = rings.Selection(judge)
