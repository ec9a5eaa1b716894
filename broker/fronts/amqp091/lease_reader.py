"""A consumer that reads a range of leased messages: at its client's node, over any owner.

It asks the queue's owner for the next part of the range (`lease.Read`) when its client has room for half of what it may
hold, so nothing of it is known elsewhere: an owner that dies is asked again by the proxy. What it has delivered stands
in a ring of its own, as a proxy's does: an acknowledgement gives room and nothing else, and so do reject and nack. When
all of the range is delivered the broker ends the consumer (basic.cancel). Whatever else ends it closes the channel, for
a reader that took that for the end would lose messages.

With `chunks` one delivery holds a whole part, its records as the owner sent them, and a prefetch counts parts.

What is asked for counts as held, so the consumer's prefetch is never passed. What the channel has room for may be less
by the time that a part arrives, if several consumers share a limit (basic.qos global); then it is passed once, by one
part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.amqp.fields import FieldTable
from clusterbroker.broker.amqp.properties import Properties
from clusterbroker.broker.content.message import new_message
from clusterbroker.broker.queues.handle import CommitPart, QueueHandle
from clusterbroker.broker.queues.lease import READ_ROWS_MAX, LeaseAnswer, Read
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from clusterbroker.cluster.wiring.queue_settings import QueueSettings
from clusterbroker.journal.record import verify_records

if TYPE_CHECKING:
    from clusterbroker.broker.fronts.amqp091.subscription import Subscription

Failed = Callable[[LeaseAnswer], None]
EPOCH_MAX: Final = 2**32 - 1
PATIENCE_MS: Final = 60_000
"""So long an owner may take to answer, or to be replaced."""


class LeaseReader:
    """What its channel holds in the place of the queue.

    asked_ms   since when an answer is awaited; None: none is
    chunks     a delivery is a part, not a message
    failed     told why the owner refuses to go on
    """

    __slots__ = (
        "_accepted", "_end", "_failed", "_lease", "_next", "_source", "_subscription", "asked_ms", "chunks", "ring",
    )  # fmt: skip

    def __init__(
        self, source: QueueHandle, lease: str, first: int, end: int, agenda: list[Any] | None, failed: Failed
    ) -> None:
        self._source = source
        self._lease = lease
        self._next = first
        self._end = end
        self._failed = failed
        self._subscription: Subscription | None = None
        self._accepted: Callable[[str], None] | None = None
        self.asked_ms: int | None = None
        self.chunks = False
        self.ring = Ring(source.entity.queue_id, agenda=agenda, owner=self, proxy=True)

    @property
    def entity(self) -> QueueEntity:
        return self._source.entity

    @property
    def settings(self) -> QueueSettings:
        return self._source.settings

    @property
    def name(self) -> str:
        return self._source.name

    @property
    def accepted(self) -> bool:
        """Its client has been told that it may consume."""
        return self._accepted is None

    @property
    def deleted(self) -> bool:
        return self._source.deleted

    # -- the consumer -----------------------------------------------------------------------------------------

    def subscribe(self, subscription: Subscription, now_ms: int, then: Callable[[str], None]) -> None:
        """`then("")` comes with the first part; a refusal goes to `failed`."""
        self._subscription, self._accepted = subscription, then
        self._ask(now_ms)

    def unsubscribe(self, subscription: Subscription, now_ms: int) -> None:
        subscription.credit.active = False
        self._subscription = None

    def limits_changed(self, subscription: Subscription) -> None:
        self.ring.mark()

    def turn(self, now_ms: int) -> None:
        """Something was acknowledged, or the client's socket takes bytes again."""
        self.ring.marked = False
        self.ring.forget(self.ring.take_settled())
        if self.asked_ms is None:
            self._ask(now_ms)

    def overdue(self, now_ms: int) -> bool:
        """Whether it is over; who has waited for an answer for too long ends here."""
        if self._subscription is None:
            return True
        if self.asked_ms is None or now_ms - self.asked_ms < PATIENCE_MS:
            return False
        queue = f"queue '{self.name}' in vhost '{self.entity.vhost}'"
        self._refused(LeaseAnswer(503, f"timed out waiting for the owner of {queue}"))
        return True

    def _room(self, subscription: Subscription) -> int:
        """How many messages are worth asking for now."""
        credit = subscription.credit
        ledger = credit.ledger
        if not credit.active or not ledger.flowing or not ledger.out.writable:
            return 0
        room: int = credit.prefetch - credit.unacked
        if not self.chunks and room < (credit.prefetch + 1) // 2:
            return 0
        if ledger.prefetch:
            room = min(room, ledger.prefetch - ledger.unacked)
        return READ_ROWS_MAX if self.chunks and room > 0 else max(0, min(room, READ_ROWS_MAX))

    def _ask(self, now_ms: int) -> None:
        subscription = self._subscription
        if subscription is None:
            return
        if self._accepted is None and self._next >= self._end:
            self._subscription = None
            subscription.credit.active = False
            subscription.ended()
            return
        room = self._room(subscription)
        if not room and self._accepted is None:
            return
        self.asked_ms = now_ms
        request = Read(self._lease, self._next, self._end, max(1, room))
        self._source.lease(request, lambda answer, records: self._came(now_ms, answer, records), now_ms)

    def _came(self, asked_ms: int, answer: LeaseAnswer, records: bytes) -> None:
        subscription = self._subscription
        if subscription is None or self.asked_ms != asked_ms:
            return
        self.asked_ms = None
        meant = answer.start == self._next and (self._next < answer.end <= self._end or self._next >= self._end)
        if not answer.code and not meant:
            answer = LeaseAnswer(503, "the owner of the queue has answered what was not asked")
        if answer.code:
            self._refused(answer)
            return
        accepted, self._accepted = self._accepted, None
        if accepted is not None:
            accepted("")
        if self._subscription is None:
            return  # it was not wanted any more
        self._next = answer.end
        if records and self.chunks:
            self._deliver(subscription, answer, records, asked_ms)
        elif records:
            self.ring.receive(subscription.credit, records, asked_ms)
        if records:
            subscription.flush()
        self.ring.mark()

    def _deliver(self, subscription: Subscription, answer: LeaseAnswer, records: bytes, now_ms: int) -> None:
        """A part as one message, from the default exchange with the queue's name; its number is that of the range."""
        count = verify_records(records, self.ring.queue_id, EPOCH_MAX)
        headers: FieldTable = {"x-queue-seq": answer.start, "x-stream-count": count}
        message = new_message("", self.name, Properties(headers=headers, delivery_mode=2), records, now_ms)
        credit, ledger = subscription.credit, subscription.credit.ledger
        if credit.active and ledger.flowing and self.ring.hold(answer.start):
            ledger.out.deliver(ledger.number, credit.tag, ledger.add(credit, answer.start, now_ms), False, message)

    def _refused(self, answer: LeaseAnswer) -> None:
        self._subscription = None
        self.asked_ms = None
        self._failed(answer)

    # -- what the channel does with deliveries -----------------------------------------------------------------

    def settle(self, seq: int, held: bool = False) -> None:
        self.ring.settle(seq, held)
        self.ring.mark()

    def reject(self, seq: int) -> None:
        self._let_go(seq)

    def requeue(self, seq: int, counted: bool) -> None:
        self._let_go(seq)

    def _let_go(self, seq: int) -> None:
        self.ring.release(seq)
        self.ring.mark()

    def preload(self, seqs: Sequence[int], then: Callable[[], None]) -> None:
        then()

    def commit(self, part: CommitPart, ticket: Ticket, now_ms: int) -> None:
        for seq, _ in part.settles:
            self._let_go(seq)
