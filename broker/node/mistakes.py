"""The cost of a bug in replication, or in handling a member's message (decision 040).

over a copy    it is given up and made anew, if another member has all of the queue; else the node begins again from its
               written data
over a link    it ends: half-done work is repeated on the next one. For messages of this node to itself, its
               attachments to its own queues begin anew; that happens again and again only if nothing else helps
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from clusterbroker.broker.node.copy_care import CopyCare
from clusterbroker.broker.node.damages import Damages
from clusterbroker.broker.node.hub import Hub
from clusterbroker.broker.node.ports import MemberCore, NodeCore
from clusterbroker.broker.remote.remote_queues import RemoteQueues
from clusterbroker.cluster.ids import QueueId

OWN_MAX: Final = 20
OWN_MS: Final = 10_000
"""With so many mistakes in so short a time over what a node says to itself, it begins again."""
WHY_MAX: Final = 200


class Member(MemberCore, Protocol):
    """The part of the node in a cluster."""

    care: CopyCare
    hub: Hub
    name: str
    proxies: RemoteQueues

    @property
    def node(self) -> NodeCore: ...

    def forget_copy(self, queue_id: int) -> None: ...


class Mistakes:
    """Of one member."""

    def __init__(self, part: Member, damages: Damages) -> None:
        self._part = part
        self._damages = damages
        self.fatal: Exception | None = None
        """The mistake for which the node must begin again."""
        self._own: deque[int] = deque(maxlen=OWN_MAX)  # when each was made

    def copy(self, queue_id: int, error: Exception) -> None:
        """Something raised in the replication of a queue."""
        part, node = self._part, self._part.node
        entity = node.map.queue_by_id(QueueId(queue_id))
        if entity is None:
            part.forget_copy(queue_id)
            return
        part.copying.distrust(queue_id)
        node.log.set_aside(entity, 0, error)
        queue = node.queues.get(queue_id)
        if queue is not None and not queue.deleted:
            queue.set_aside(True)
        what = f"its copying raised {type(error).__name__}: {error}"[:WHY_MAX]
        part.care.stumbled(entity, what)

        def alone() -> None:
            self.fatal = error

        self._damages.found(queue_id, (), what, alone)

    def link(self, peer: str, error: Exception) -> None:
        """Something raised over what a member said, or over what is said to it."""
        part = self._part
        part.node.log.link_crashed(peer, error)
        if peer != part.name:
            part.hub.bad(peer, f"this node could not carry it out: {type(error).__name__}")
            return
        now_ms, times = part.node.now_ms, self._own
        if len(times) == OWN_MAX and now_ms - times[0] < OWN_MS:
            raise error
        times.append(now_ms)
        part.servings.unlinked(peer)
        part.proxies.unlinked(peer)
        part.proxies.linked(peer)
