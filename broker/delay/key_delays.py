"""The queue of an exchange with delays in keys (`cluster.wiring.delay_bits`) at its owner: a delay queue whose messages
wait for as long as their routing keys say, whatever their headers say.

What is due goes to the exchange that the queue names (`node.due_messages`). As of a queue of the levels that it stands
for, a due message that finds no queue stays, and is tried again each UNROUTED_MS. What waits anew for one of
its queues, as others have it, goes when that one is gone.

When the policy does not want the queue any more, nothing new comes: routers leave it out. When nothing has waited for
IDLE_MS its owner closes it and orders its end, in one step. A member that is so late with the log that it still
publishes here is refused meanwhile: what was confirmed is never in a queue that ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from clusterbroker.broker.content.delays import key_delay_s, waiting
from clusterbroker.broker.delay.delay_queue import DelayQueue
from clusterbroker.broker.delay.due_letters import Letter
from clusterbroker.broker.delay.own_targets import own_targets
from clusterbroker.broker.queues.local_queue import Host
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.cluster.errors import Unavailable
from clusterbroker.cluster.wiring.commands import AnyCommand, EndDelays
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from clusterbroker.cluster.wiring.map import Applied
from clusterbroker.cluster.wiring.queue_settings import QueueSettings
from clusterbroker.cluster.wiring.view import ClusterView
from clusterbroker.journal.record import Message

UNROUTED_MS = 60_000
IDLE_MS = 30_000
"""What was routed before a change of the policy has arrived by then, and a part of a transaction that the queue was
asked about (`access.together.JUDGED_MS`)."""


class KeyDelaysHost(Host, Protocol):
    """The node."""

    @property
    def map(self) -> ClusterView: ...

    def propose(self, command: AnyCommand, done: Callable[[Applied], None]) -> None: ...


class KeyDelayQueue(DelayQueue):
    """See the module. `node` is the host."""

    __slots__ = ("_idle_ms", "_ordered", "node")

    def __init__(
        self, entity: QueueEntity, settings: QueueSettings, ring: Ring, node: KeyDelaysHost, now_ms: int
    ) -> None:
        self.node = node
        super().__init__(entity, settings, ring, node, now_ms)

    def _begin(self) -> None:
        super()._begin()
        self._idle_ms = 0
        """Since when nothing waits that a policy wants here; 0: something does, or a policy does."""
        self._ordered = False
        self.limits.closed = False

    # -- in -----------------------------------------------------------------------------------------------------

    def _time_and_key(self, message: Message, now_ms: int) -> tuple[int, str]:
        return (message.time_ms or now_ms) + 1000 * key_delay_s(message, self.entity.key_bits), ""

    def _key(self, _: Message, /) -> str:
        return ""

    @property
    def rejects(self) -> bool:
        return self.limits.closed

    def takes(self, _messages: Sequence[Message], _now_ms: int, /) -> bool:
        return not self.limits.closed

    def expects_part(self) -> None:
        self._idle_ms = 0
        self.ring.mark()

    # -- out ----------------------------------------------------------------------------------------------------

    def _nowhere(self, seq: int, message: Message, now_ms: int, /) -> None:
        if own_targets(message) is not None:
            self.ring.settle(seq)
            return
        self.ring.put_back(seq)
        self._index.add(now_ms + UNROUTED_MS, seq)

    def letter_nowhere(self, letter: Letter, /) -> None:
        (message,) = letter.messages  # it was about to be published
        if letter.narrowed or own_targets(message) is not None:
            return
        again_ms, seq = self.host.now_ms + UNROUTED_MS, self.ring.next_seq
        self.ring.append((waiting(message, self.host.now_ms, again_ms),))
        self._index.add(again_ms, seq)

    # -- the end ------------------------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Nothing waits, and nothing is on its way out."""
        ring = self.ring
        return self.is_read and not (ring.ready or ring.unacked or ring.living(1, ring.next_seq - 1, 1))

    def _schedule(self, now_ms: int) -> None:
        super()._schedule(now_ms)
        self._look(now_ms)
        if self._idle_ms and not self._ordered and not self.paused:
            self.node.wake(self, max(self._idle_ms + IDLE_MS, now_ms + 1))

    def _look(self, now_ms: int) -> None:
        if self.paused or self.letters is None or self._ordered:
            return
        if not self.is_empty or (self.node.map.wants_delays(self.entity) and not self.limits.closed):
            self._idle_ms = 0
            return
        self._idle_ms = self._idle_ms or now_ms
        if now_ms - self._idle_ms >= IDLE_MS:
            self._order_end()

    def _order_end(self) -> None:
        self._ordered = self.limits.closed = True
        epoch = self.entity.epoch
        command = EndDelays(at_ms=self.node.now_ms, queue_id=self.entity.queue_id, epoch=epoch)

        def done(applied: Applied) -> None:
            if self.deleted or self.letters is None or self.entity.epoch != epoch:
                return  # it has ended, or another node owns it
            self._ordered = False
            # as long as nobody knows whether it ends it takes nothing, and asks again
            self.limits.closed = isinstance(applied.error, Unavailable)
            self._idle_ms = self.node.now_ms
            self.ring.mark()

        self.node.propose(command, done)
