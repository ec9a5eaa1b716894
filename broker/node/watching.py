"""Observers of publishes and deliveries on this node, by vhost: none, as a rule.

    watches     vhost -> its observer; code that runs per batch asks this alone (`broker.queues.watch`)
    spans       of sampled messages of all vhosts; None: off

The map has the vhosts with an open firehose, so it is open at all nodes or at none, and each node traces its own
clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from clusterbroker.broker.node.firehose import Firehose
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.queues.watch import Delivery, Watch
from clusterbroker.journal.record import Message

if TYPE_CHECKING:
    from clusterbroker.broker.node.ports import NodeCore
    from clusterbroker.broker.queues.handle import QueueHandle


class Both:
    """Two who look at the same vhost."""

    def __init__(self, firehose: Firehose, spans: Watch) -> None:
        self._two: tuple[Watch, Watch] = firehose, spans

    @property
    def everything(self) -> bool:
        return any(watch.everything for watch in self._two)

    def wants(self, records: bytes | memoryview) -> bool:
        return any(watch.wants(records) for watch in self._two)

    def published(
        self, channel: Any, route: Any, messages: Sequence[Message], ticket: Ticket | None
    ) -> Sequence[Message]:
        for watch in self._two:
            messages = watch.published(channel, route, messages, ticket)
        return messages

    def delivered(self, delivery: Delivery) -> None:
        for watch in self._two:
            watch.delivered(delivery)


class Watching:
    """Of one node."""

    def __init__(self, node: NodeCore) -> None:
        self._node = node
        self.watches: dict[str, Watch] = {}
        self.spans: Watch | None = None
        self._firehoses: dict[str, Firehose] = {}

    def trace(self, spans: Watch) -> None:
        """Sampled messages are told from now on."""
        self.spans = spans
        for vhost in self._node.vhosts:
            self.review(vhost)

    def review(self, vhost: str) -> None:
        """A vhost began, changed or ended: whoever looks at it from now on."""
        entity, here = self._node.map.vhost(vhost), self._node.vhosts.get(vhost)
        if entity is None or here is None:
            self._firehoses.pop(vhost, None)
            self.watches.pop(vhost, None)
            return
        if not entity.tracing:
            self._firehoses.pop(vhost, None)
        elif vhost not in self._firehoses:
            self._firehoses[vhost] = Firehose(self._node, here)
        before, watch = self.watches.pop(vhost, None), self._of(vhost)
        if watch is not None:
            self.watches[vhost] = watch
        if before is not None or watch is not None:
            for face in here.queues.values():
                face.watch(watch)

    def _of(self, vhost: str) -> Watch | None:
        firehose = self._firehoses.get(vhost)
        if firehose is None or self.spans is None:
            return firehose or self.spans
        return Both(firehose, self.spans)

    def began(self, vhost: str, face: QueueHandle) -> None:
        """A queue that clients of this node may use."""
        watch = self.watches.get(vhost)
        if watch is not None:
            face.watch(watch)

    def turn(self) -> bool:
        """Queues have ended their turns: what firehoses have to tell is published; whether there was anything."""
        moved = False
        for vhost, firehose in tuple(self._firehoses.items()):
            try:
                moved = firehose.turn() or moved
            except Exception as error:  # what it had to tell is left out, and nobody else pays for it
                self._node.log.crashed(f"firehose of vhost '{vhost}'", error)
        return moved
