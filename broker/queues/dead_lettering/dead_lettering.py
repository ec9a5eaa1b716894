"""What leaves a queue unconsumed takes one way. With a dead-letter exchange the message is published there in the same
group commit that settles it here (its slot is HELD or SETTLED until then), so a crash finds it in one of the two places
and never in none."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clusterbroker.broker.queues.dead_lettering.death import Reason
from clusterbroker.broker.queues.dead_lettering.dropped import died_of
from clusterbroker.broker.queues.dead_lettering.local import LocalDeadLetters
from clusterbroker.broker.queues.dead_lettering.replicated import ReplicatedDeadLetters
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.queues.states import HOLDER_MAX
from clusterbroker.journal.layout import Location
from clusterbroker.journal.record import Message


class DeadLettering:
    """Of one queue.

    local       what dies here; None: nothing does
    replicated  in its place while this node owns the replicated queue
    """

    __slots__ = ("_queue", "local", "replicated")

    def __init__(self, queue: LocalQueue) -> None:
        self._queue = queue
        self.local: LocalDeadLetters | None = None
        self.replicated: ReplicatedDeadLetters | None = None

    def give_up(
        self, seq: int, message: Message | None, reason: Reason, at_once: bool = False, dropped_ms: int = 0
    ) -> None:
        """An UNACKED message without a ledger leaves the queue. `dropped_ms`: when it was dropped; if it had expired by
        then, that is the reason. 0: this reason stands."""
        if message is not None:
            reason, dropped_ms = died_of(self._queue.ring, message, reason, dropped_ms), 0
        if self._queue.settings.dead_letter_exchange is None:
            self._queue.ring.settle(seq)
        elif self.replicated is not None:
            self.replicated.hold(seq, reason, dropped_ms)
        else:
            self._here.add(seq, message, reason, at_once, dropped_ms)
        self._queue.ring.mark()

    @property
    def _here(self) -> LocalDeadLetters:
        self.local = self.local or LocalDeadLetters(self._queue)
        return self.local

    def go_on(self) -> None:
        """A turn of what dies here."""
        if self.local is not None:
            self.local.go_on()
            if self.local.is_over:
                self.local = None

    @property
    def kills(self) -> bool:
        """See `LocalQueue.kills`."""
        settings = self._queue.settings
        return settings.overflow == "reject-publish-dlx" and settings.dead_letter_exchange is not None

    def kill(self, message: Message) -> None:
        """A message dies before it was ready. In a replicated queue it joins the log to do so, for the next owner too
        must know of it."""
        if self.replicated is None:
            self._here.refuse(message)
            return
        ring = self._queue.ring
        seq = ring.next_seq
        ring.append((message,))
        ring.adopt(seq, seq, HOLDER_MAX)  # only a message that was taken out may die
        ring.take_held(seq, seq, HOLDER_MAX)
        self.replicated.hold(seq, "maxlen")

    def preload(self, seqs: Sequence[int], then: Callable[[], None]) -> None:
        """See `LocalQueue.preload`."""
        queue = self._queue
        dies = not queue.deleted and queue.settings.dead_letter_exchange is not None
        missing = [seq for seq in seqs if queue.ring.message(seq) is None] if dies else []
        if not missing:
            then()
            return

        def loaded(locations: Sequence[Location], messages: Sequence[Message], _: Sequence[Location]) -> None:
            if not queue.deleted:
                queue.ring.fill(locations, messages)
            then()

        queue.host.load(queue, [queue.ring.location(seq) for seq in missing], loaded)

    # -- ownership, and the end -------------------------------------------------------------------------------

    def begin_epoch(self) -> None:
        """Takes up what the owner before has left."""
        self.replicated = ReplicatedDeadLetters(self._queue)
        self.replicated.resume()

    def end_epoch(self) -> None:
        """What is open is the next owner's."""
        if self.replicated is not None:
            self.replicated.ended = True
        self.replicated = self.local = None

    def drop(self) -> None:
        """The queue is deleted."""
        if self.replicated is not None:
            self.replicated.ended = True
        if self.local is not None:
            self.local.drop()
