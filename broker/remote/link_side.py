"""What links of AMQP 1.0 ask of a queue elsewhere, and consumers of AMQP 0-9-1 do not: deliveries that they have sent
(`broker.queues.link_deliveries`), messages that they hold, read again, what is ready for one of them, what a browser
sees. Part of its remote queue."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from clusterbroker.broker.queues.browse import Browse, Browsed
from clusterbroker.broker.queues.handle import Reread
from clusterbroker.broker.queues.link_deliveries import AskedTags, Tagged
from clusterbroker.broker.queues.link_held import HeldMessages, LinkAttach
from clusterbroker.broker.remote.consumer_link import Line, seq_of
from clusterbroker.broker.remote.messages import (
    ASK_BROWSE,
    ASK_COUNTS,
    ASK_FORGET,
    ASK_HELD,
    ASK_READ,
    ASK_TAGS,
    SETTLE_LEFT,
    SETTLE_REQUEUE,
    Answer,
    Range,
)
from clusterbroker.broker.remote.settlements import Settlements
from clusterbroker.journal.ranges import ranges_of
from clusterbroker.journal.record import read_records

if TYPE_CHECKING:
    from clusterbroker.broker.queues.ring import Ring
    from clusterbroker.broker.queues.subscription import LocalConsumer
    from clusterbroker.broker.queues.ticket import Ticket
    from clusterbroker.broker.remote.outbox import Outbox
    from clusterbroker.broker.remote.questions import Then
    from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
    from clusterbroker.journal.record import Message


class LinkSide:
    """What `RemoteQueue` has of it."""

    __slots__ = ()
    attached: bool
    deleted: bool
    entity: QueueEntity
    gen: int
    outbox: Outbox | None
    ring: Ring
    _by_subscription: dict[LocalConsumer, Line]
    _settlements: Settlements
    _gone_links: frozenset[int]

    @abstractmethod
    def subscribe(self, subscription: LocalConsumer, now_ms: int, then: Callable[[str], None]) -> None:
        """See `QueueHandle`."""

    @abstractmethod
    def take(self, messages: Sequence[Message], ticket: Ticket | None, tagged: Tagged | None = None) -> None:
        """Publishes to the queue."""

    @abstractmethod
    def _ask(
        self, what: int, then: Then, *, tags: AskedTags | None = None, ranges: Sequence[Range] = (),
        link: LinkAttach | None = None, consumer: int = 0, browse: Browse | None = None,
    ) -> None:  # fmt: skip
        """Asks its owner."""

    def ready_for(self, consumer: LocalConsumer, _now_ms: int, then: Callable[[int, int], None]) -> None:
        number = line.number if (line := self._by_subscription.get(consumer)) is not None else 0
        self._ask(ASK_COUNTS, lambda answer, _: then(answer.count, answer.consumers), consumer=number)

    def browse(self, browse: Browse, then: Browsed, _now_ms: int) -> None:
        self._ask(ASK_BROWSE, lambda answer, records: then(answer.next, bytes(records)), browse=browse)

    def publish_tagged(self, tagged: Tagged, messages: Sequence[Message], ticket: Ticket, _now_ms: int) -> None:
        self.take(messages, ticket, tagged)

    def known_tags(self, asked: AskedTags, then: Callable[[list[bytes] | str], None]) -> None:
        self._ask(ASK_TAGS, lambda answer, _: then(answer.refused or answer.tags), tags=asked)

    def reread(self, seqs: Sequence[int], then: Reread) -> None:
        def answered(answer: Answer, payload: memoryview) -> None:
            then({seq: message for seq, message, *_ in read_records(payload)}, answer.count)

        self._ask(ASK_READ, answered, ranges=ranges_of(seqs))

    def subscribe_link(
        self, subscription: LocalConsumer, link: LinkAttach, now_ms: int, then: Callable[[str], None]
    ) -> None:
        self.subscribe(subscription, now_ms, then)
        if subscription in self._by_subscription:
            self._by_subscription[subscription].link = link

    def held_by(self, link: LinkAttach, then: Callable[[Sequence[HeldMessages] | str], None]) -> None:
        def answered(answer: Answer, _: memoryview) -> None:
            found = [HeldMessages(*one) for one in answer.held]
            for held in found:
                self._settlements.came_again(held.seqs)
                for seq in held.seqs:
                    self.ring.hold(seq, held.delivery_count)
            found += [HeldMessages(first, last, 0, withdrawn=True) for first, last in answer.withdrawn]
            then(answer.refused or found)

        self._ask(ASK_HELD, answered, link=link)

    def give_up(self, line: Line) -> frozenset[int]:
        """The consumer is gone: what waits for it returns, or stays with its link. The links' consumers that are
        gone."""
        for record in line.surplus:
            self._settlements.add(seq_of(record), line.returned)
        line.surplus.clear()
        self.ring.mark()
        return self._gone_links | {line.number} if line.link.link and line.told else self._gone_links

    def returned_of(self, consumer: int) -> int:
        """`Line.returned` of a consumer that is gone."""
        return SETTLE_LEFT if consumer in self._gone_links else SETTLE_REQUEUE

    def leave_to_link(self, seqs: Sequence[int]) -> None:
        for seq in seqs:
            if not self.deleted and self.ring.release(seq) >= 0:
                self._settlements.add(seq, SETTLE_LEFT)
        self.ring.mark()

    def forget_tags(self, link: int, upto: int, tags: list[bytes], then: Callable[[], None] = lambda: None) -> None:
        self._ask(ASK_FORGET, lambda *_: then(), tags=AskedTags(link, 0, tuple(tags), upto=upto))
