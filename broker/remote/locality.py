"""Locality of a queue: the wish of its consumers' credit, asked of `rotation` in the owner's turns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.remote.attachment import Attachment, RemoteSubscription
from clusterbroker.broker.remote.host import OwnedQueueHost
from clusterbroker.broker.remote.locality_rotation import Interest, Locality, Rotation

LOOK_MS: Final = 250
"""Locality is a matter of seconds: a busy queue's turns need not all look at it."""


class LocatedQueue(Protocol):
    """What the choice of a queue's node needs of the owned queue."""

    queue: LocalQueue
    host: OwnedQueueHost

    @property
    def queue_id(self) -> int: ...

    @property
    def attachments(self) -> Iterable[Attachment]: ...


class Residence:
    """Of one queue and epoch."""

    __slots__ = ("_again_ms", "_delivered", "_locality", "_looked_ms", "_owned", "_rotation")

    def __init__(self, owned: LocatedQueue) -> None:
        self._owned = owned
        self._rotation: Rotation | None = None
        self._locality = Locality(owned.host.name, owned.host.now_ms)
        self._delivered = 0
        self._looked_ms = self._again_ms = 0
        self._choose(owned.host.now_ms)

    def turn(self, now_ms: int) -> None:
        """Asks for a hand-over when one is due."""
        owned = self._owned
        queue, host = owned.queue, owned.host
        if not queue.ring.replicated:
            return
        self._choose(now_ms)
        if self._rotation is None and self._serves_here:
            self._locality.stays()
            return  # as a rule, and nothing is to be looked at later
        if self._rotation is None and now_ms < self._looked_ms + LOOK_MS:
            queue.host.wake(queue, max(self._again_ms, self._looked_ms + LOOK_MS))  # what pulls it is asked when due
            return
        self._looked_ms = now_ms
        members = [member for attachment in owned.attachments for member in attachment.members.values()]
        interest = self._interest(members)
        in_sync = host.in_sync(owned.queue_id)
        if self._rotation is not None:
            delivered = sum(member.credit.delivered for member in members)
            busy = queue.ring.ready > 0 or delivered != self._delivered
            self._delivered = delivered
            heir, again_ms = self._rotation.decide(now_ms, interest, in_sync, busy)
        else:
            heir, again_ms = self._locality.decide(now_ms, interest, in_sync)
        if heir is not None:
            host.transfer(owned.queue_id, heir)
        self._again_ms = again_ms
        if again_ms:
            queue.host.wake(queue, again_ms)

    @property
    def _serves_here(self) -> bool:
        """Whether the owner's node has a consumer."""
        name = self._owned.host.name
        for attachment in self._owned.attachments:
            if attachment.node == name:
                return bool(attachment.members)
        return False

    def _choose(self, now_ms: int) -> None:
        """A single active consumer draws its queue by locality: there is nobody to take turns with.

        In turns only nodes that can get the token wait for it; the owner serves those that never will.
        """
        queue, name = self._owned.queue, self._owned.host.name
        settings = queue.settings
        rotating = settings.ownership == "rotating" and not settings.single_active_consumer and queue.ring.replicated
        if not rotating and self._rotation is None and not queue.subscriptions.waiting:
            return
        if rotating != (self._rotation is not None):
            self._rotation = Rotation(name, settings.ownership_hold_ms, now_ms) if rotating else None
        in_sync = self._owned.host.in_sync(self._owned.queue_id) if rotating else ()
        waiting = frozenset(node for node in in_sync if node != name)
        if waiting != queue.subscriptions.waiting:
            queue.subscriptions.wait(waiting)
            queue.ring.mark()  # who does not wait any more may take what is ready

    def _interest(self, members: list[RemoteSubscription]) -> dict[str, Interest]:
        found: dict[str, Interest] = {}
        own, waiting = self._owned.host.name, self._owned.queue.subscriptions.waiting
        for member in members:
            served_here = self._rotation is not None and member.node not in waiting
            node = own if served_here else member.node
            before = found.get(node, Interest(0, 0))
            free = max(0, member.credit.limit - member.credit.delivered)
            credit = free if self._rotation is not None else member.window
            found[node] = Interest(before.consumers + 1, before.credit + credit)
        return found
