"""The in-sync set: policy of shrinking and growing, apart from the proposals; and copies that join.

A member leaves when its link has been down for LINK_DOWN_MS, or after an owed acknowledgement, or a sync without
progress, for OWED_MS: until then every commit waits for it. It leaves the sets of queues with a waiting commit. It
leaves the sets of idle queues when the link is still down after IDLE_DOWN_MS: by then a dead member was failed, and
left all of them with one command. It never leaves a set that would fall below the minimum: nothing could be committed
without it either, and inside the set it is still electable.

A replica joins when it holds everything that may be committed. One that follows quickly, but behind the others, never
does while the queue is busy: the owner therefore waits for it as well, as *joining*, until it does. A replica that left
for slowness, or that is slow while it joins, must first have been quick for QUICK_FOR_MS (`copies.Pace`), or it would
come and go with every hiccup of its disk, each time at the cost of OWED_MS.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Final

from .copies import Owned, Peer, State

LINK_DOWN_MS: Final = 100
IDLE_DOWN_MS: Final = 600
OWED_MS: Final = 1500


def desired(
    owner: str, replicas: Sequence[str], in_sync: Sequence[str], min_in_sync: int, bad: Container[str],
    ready: Container[str],
) -> tuple[str, ...]:  # fmt: skip
    """The in-sync set that should be: members that are not bad, then replicas that are ready, in the old order."""
    joining = [node for node in replicas if node in ready and node not in in_sync]
    kept = [node for node in in_sync if node == owner or node not in bad]
    if len(kept) + len(joining) < min_in_sync:
        kept = list(in_sync)
    return (*kept, *joining)


class Joining:
    """Of all queues of one owner; they and the peers belong to the Primary."""

    def __init__(self, owned: dict[int, Owned], peers: dict[str, Peer], try_commit: Callable[[Owned], None]) -> None:
        self._owned = owned
        self._peers = peers
        self._try_commit = try_commit
        self.queues: dict[int, None] = {}  # those that wait for a copy that is to be proposed

    def begin(self, owned: Owned, now_ms: int) -> None:
        """Copies that follow quickly are waited for from now on, until they have all that is committed."""
        for node, copy in owned.copies.items():
            peer = self._peers[node]
            if node in owned.waits_for() or copy.state is not State.SYNCED or peer.bad or peer.pace.was_slow:
                continue
            if not copy.has_all_before(owned.in_flight) and peer.is_quick(now_ms):
                owned.joining[node] = None
                self.queues[owned.queue_id] = None

    def watch(self, now_ms: int) -> None:
        """To be called from time to time: whom the queues wait for."""
        for queue_id in tuple(self.queues):
            owned = self._owned.get(queue_id)
            if owned is None or not owned.joining:
                del self.queues[queue_id]
                continue
            for peer in [self._peers[node] for node in owned.joining]:
                if peer.bad or not peer.is_quick(now_ms):
                    del owned.joining[peer.name]
                    peer.pace.slow(now_ms)
            self._try_commit(owned)
