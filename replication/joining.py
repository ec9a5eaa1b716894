"""Copies that follow quickly, but behind the others: the owner waits until they have all that is committed.

Otherwise they never would have, while the queue is busy, and could not be proposed. A slow copy is dropped from the
wait, and returns to it only after it has been quick for a while (`in_sync.Pace`).
"""

from __future__ import annotations

from collections.abc import Callable

from .copies import Owned, Peer, State


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
