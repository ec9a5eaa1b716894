"""Hand-overs of an owner's queues: freeze the queue, commit records in flight, propose the heir.

A hand-over ends with the epoch, or fails: the proposal is refused, or took too long. Then the queue is thawed and
continues here.
"""

from __future__ import annotations

from typing import Final

from .copies import HandOver, Owned, State
from .ports import OwnerHost

HAND_OVER_MS: Final = 3000


class HandOvers:
    """Those under way of node `name`. Queues belong to the Primary."""

    def __init__(self, host: OwnerHost, name: str, owned: dict[int, Owned]) -> None:
        self._host = host
        self._name = name
        self._owned = owned
        self.moving: dict[int, None] = {}

    def begin(self, queue_id: int, to: str, now_ms: int) -> bool:
        """Whether it begins."""
        owned = self._owned.get(queue_id)
        if owned is None or owned.hand_over is not None or to == self._name or to not in owned.in_sync:
            return False
        owned.hand_over = HandOver(to, now_ms + HAND_OVER_MS)
        self.moving[queue_id] = None
        self._host.freeze(queue_id)
        self.go_on(owned)
        return True

    def go_on(self, owned: Owned) -> None:
        """The queue has come nearer to its heir having all of it: it is proposed when it has."""
        move = owned.hand_over
        if move is None or move.proposed or owned.in_flight is not None or move.to not in owned.in_sync:
            return
        copy = owned.copies[move.to]
        if copy.state is State.SYNCED and not copy.owed_last:
            move.proposed = True
            self._host.transfer_owner(
                owned.queue_id, owned.epoch, owned.version, move.to,
                lambda taken: None if taken or owned.hand_over is not move else self._give_up(owned, "refused"),
            )  # fmt: skip

    def watch(self, now_ms: int) -> None:
        """Ends those that took too long."""
        for queue_id in tuple(self.moving):
            owned = self._owned.get(queue_id)
            if owned is None or owned.hand_over is None:
                del self.moving[queue_id]
            elif now_ms >= owned.hand_over.deadline_ms:
                self._give_up(owned, "it took too long")

    def _give_up(self, owned: Owned, why: str) -> None:
        assert owned.hand_over is not None, "there is something to give up"
        to, owned.hand_over = owned.hand_over.to, None
        self._host.replication_event("hand_over_failed", owned.queue_id, to, why)
        if self._owned.get(owned.queue_id) is owned:
            self._host.thaw(owned.queue_id)
