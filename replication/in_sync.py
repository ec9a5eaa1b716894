"""Policy of the in-sync set: shrinking and growing, apart from the proposals.

A member leaves when its link has been down for LINK_DOWN_MS, or after an owed acknowledgement, or a sync without
progress, for OWED_MS: until then every commit waits for it. It leaves the sets of queues with a waiting commit. It
leaves the sets of idle queues when the link is still down after IDLE_DOWN_MS: by then a dead member was failed, and
left all of them with one command. It never leaves a set that would fall below the minimum: nothing could be committed
without it either, and inside the set it is still electable.

A replica joins when it holds everything that may be committed. A replica that left for slowness must first have been
quick for QUICK_FOR_MS, or it would come and go with every hiccup of its disk, each time at the cost of OWED_MS.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Final

LINK_DOWN_MS: Final = 100
IDLE_DOWN_MS: Final = 600
OWED_MS: Final = 1500
QUICK_MS: Final = 500
"""An acknowledgement that takes longer is a slow one."""
QUICK_FOR_MS: Final = 2000


def desired(
    owner: str,
    replicas: Sequence[str],
    in_sync: Sequence[str],
    min_in_sync: int,
    bad: Container[str],
    ready: Container[str],
) -> tuple[str, ...]:
    """The in-sync set that should be: members that are not bad, then replicas that are ready, in the old order."""
    joining = [node for node in replicas if node in ready and node not in in_sync]
    kept = [node for node in in_sync if node == owner or node not in bad]
    if len(kept) + len(joining) < min_in_sync:
        kept = list(in_sync)
    return (*kept, *joining)


@dataclass(slots=True)
class Pace:
    """Whether a peer that was once too slow may be waited for again: not while `was_slow`."""

    was_slow: bool = False
    quick_since_ms: int = 0

    def slow(self, now_ms: int) -> None:
        """It made others wait for too long."""
        self.was_slow = True
        self.quick_since_ms = now_ms

    def acked(self, took_ms: int, now_ms: int) -> None:
        """It answered after so long."""
        if took_ms > QUICK_MS:
            self.quick_since_ms = now_ms

    def recovered(self, now_ms: int) -> bool:
        """Whether it has now been quick for long enough: said once, and the old lapse is forgotten. All its queues
        wait for that word, so only who tells all of them may ask."""
        if not self.was_slow or now_ms - self.quick_since_ms < QUICK_FOR_MS:
            return False
        self.was_slow = False
        return True
