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
from itertools import takewhile
from typing import Any, Final

from clusterbroker.broker.content.properties import properties_of
from clusterbroker.broker.queues import ring as rings
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.queues.selecting import Selecting
from clusterbroker.broker.queues.states import READY
from clusterbroker.broker.queues.subscription import Member
from clusterbroker.journal.layout import HAS_HEADERS
from clusterbroker.journal.record import Message

STICKY: Final = "x-sticky"
STICKY_BYTES: Final = STICKY.encode()
"""So the name stands in a message of either protocol."""
KEPT_MS: Final = 1000
END_MS: Final = 100
"""The second is over at a multiple of it: consumers look again at what they have passed over so often at most."""
KEPT_MAX: Final = 1024
"""Of one queue. Whoever passes them over looks at each of them."""


def sticks_to(message: Message) -> str:
    """The worker that its caller means; empty: none."""
    if not message.flags & HAS_HEADERS or STICKY_BYTES not in message.header:
        return ""
    try:
        named: Any = (properties_of(message).headers or {}).get(STICKY)
        text = bytes(named).decode() if isinstance(named, (bytes, bytearray)) else named
    except Exception:  # what cannot be read here is a request of any worker
        return ""
    return text if isinstance(text, str) else ""


class Sticking(Selecting):
    """Consumers of one queue that pass over what is kept for others.

    While something is kept all of them walk the queue (`ring.dispatch_selected`); otherwise those do that pass messages
    over anyway. These look into what is kept always, so they go on where they are when it begins.
    """

    __slots__ = ("_kept", "_passed", "walks")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._kept: dict[int, str] = {}
        """Seq -> its worker; ascending, with some at times that have left the queue."""
        self._passed: dict[int, int] = {}
        """Those of them that somebody has passed over -> until when they are kept, ms; so ascending."""
        self.walks = False
        """Whether consumers look at what is kept."""

    @property
    def ends_ms(self) -> int:
        """When the next one is anybody's; 0: none is passed over."""
        return next(iter(self._passed.values()), 0)

    def keep(self, seq: int, worker: str) -> None:
        """The newest message is meant for this worker."""
        if len(self._kept) < KEPT_MAX:
            self._kept[seq] = worker
            self._walk(True)

    def unkeep(self, seq: int) -> None:
        """It is anybody's, or gone."""
        self._passed.pop(seq, None)
        self._kept.pop(seq, None)

    def release(self, now_ms: int, serving: Set[str]) -> None:
        """Before a hand-out to these workers: what was kept for long enough, or for others, is anybody's."""
        ring, kept = self._queue.ring, self._kept
        ended = list(takewhile(lambda seq: self._passed[seq] <= now_ms, self._passed))
        ended += [seq for seq, worker in kept.items() if worker not in serving]
        for seq in ended:
            self.unkeep(seq)
        while kept and not _is_ready(ring, seq := next(iter(kept))):
            self.unkeep(seq)
        if not kept:
            self._walk(False)
        for member in self._queue.subscriptions if ended else ():
            if member.credit.selection is not None:
                member.credit.selection.back(min(ended))

    def _walk(self, walks: bool) -> None:
        """Consumers that pass nothing over by themselves begin to walk from the head, or end it."""
        if self.walks != walks:
            self.walks = walks
            for member in self._queue.subscriptions:
                if not self.selects(member):
                    self.came(member)
            self._queue.subscriptions.relist()

    def came(self, member: Member) -> None:
        super().came(member)
        selection: Any = member.credit.selection
        takes = None if selection is None else selection.judge
        if takes is None and not self.walks:
            return

        def judge(seq: int, message: Message) -> bool | None:
            meant = self._kept.get(seq)
            if meant is not None and meant != member.worker:
                if seq not in self._passed:
                    self._passed[seq] = -(-(self._queue.host.now_ms + KEPT_MS) // END_MS) * END_MS
                return False
            answer = True if takes is None else takes(seq, message)
            if answer and meant is not None:
                self.unkeep(seq)
            return answer

        member.credit.selection = rings.Selection(judge)


def _is_ready(ring: Ring, seq: int) -> bool:
    return any(state == READY for _, state, *_ in ring.living(seq, seq, 1))
