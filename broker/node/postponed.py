"""Work that one turn of a node leaves to the next (`broker.queues.effort`, `dividing`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from clusterbroker.broker.node.renewals import Renewals
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.routing.labour import METHODS_AT_ONCE, STEPS_AT_ONCE

if TYPE_CHECKING:
    from clusterbroker.broker.node.ports import NodeCore


class Postponed:
    """Of one node.

    soon    connections and channels with events that wait, in order; each says how it goes on
    later   queues that have more to do
    renewals    queues and exchanges that have not heard of a policy; they come with `soon`
    """

    __slots__ = ("_node", "later", "renewals", "soon")

    def __init__(self, node: NodeCore) -> None:
        self._node = node
        self.soon: deque[Callable[[], None]] = deque()
        self.later: dict[LocalQueue, None] = {}
        self.renewals = Renewals(node)

    def begin_turn(self) -> None:
        """Takes up some of it: of the clients, until that is as much work as a turn may be, with what is answered them
        within the turn."""
        node = self._node
        node.labour.until = until = node.labour.done + STEPS_AT_ONCE
        node.labour.methods = 0
        if self.soon:
            for _ in range(len(self.soon)):
                self.soon.popleft()()
                if node.labour.done > until or node.labour.methods > METHODS_AT_ONCE:
                    break
        if self.later:
            later, self.later = self.later, {}
            for queue in later:
                if node.queues.get(queue.entity.queue_id) is queue:
                    queue.ring.mark()
