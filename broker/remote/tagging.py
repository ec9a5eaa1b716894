"""Links that are resumed, at a queue elsewhere: deliveries that they have sent (`broker.queues.link_deliveries`), and
messages that they hold, read again. Part of its remote queue."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from clusterbroker.broker.queues.handle import Reread
from clusterbroker.broker.queues.link_deliveries import AskedTags, Tagged
from clusterbroker.broker.remote.messages import ASK_READ, ASK_TAGS, Answer, LinkForget, Range
from clusterbroker.journal.ranges import ranges_of
from clusterbroker.journal.record import read_records

if TYPE_CHECKING:
    from clusterbroker.broker.queues.ring import Ring
    from clusterbroker.broker.queues.ticket import Ticket
    from clusterbroker.broker.remote.outbox import Outbox
    from clusterbroker.broker.remote.questions import Then
    from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
    from clusterbroker.journal.record import Message


class TaggingQueue:
    """What `RemoteQueue` has of it."""

    __slots__ = ()
    attached: bool
    deleted: bool
    entity: QueueEntity
    gen: int
    outbox: Outbox | None
    ring: Ring

    @abstractmethod
    def take(self, messages: Sequence[Message], ticket: Ticket | None, tagged: Tagged | None = None) -> None:
        """Publishes to the queue."""

    @abstractmethod
    def _ask(self, what: int, then: Then, *, tags: AskedTags | None = None, ranges: Sequence[Range] = ()) -> None:
        """Asks its owner."""

    def publish_tagged(self, tagged: Tagged, messages: Sequence[Message], ticket: Ticket, _now_ms: int) -> None:
        self.take(messages, ticket, tagged)

    def known_tags(self, asked: AskedTags, then: Callable[[list[bytes] | str], None]) -> None:
        self._ask(ASK_TAGS, lambda answer, _: then(answer.refused or answer.tags), tags=asked)

    def reread(self, seqs: Sequence[int], then: Reread) -> None:
        def answered(answer: Answer, payload: memoryview) -> None:
            then({seq: message for seq, message, *_ in read_records(payload)}, answer.count)

        self._ask(ASK_READ, answered, ranges=ranges_of(seqs))

    def forget_tags(self, link: int, upto: int, tags: list[bytes]) -> None:
        if self.outbox is not None and self.attached and not self.deleted:
            self.outbox.say(LinkForget(self.entity.queue_id, self.entity.epoch, self.gen, link, upto, tags))
            self.ring.mark()
