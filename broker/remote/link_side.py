"""What links that are resumed ask of a queue elsewhere: the part of its remote queue that is about them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from clusterbroker.broker.queues.link_deliveries import AskedTags, Tagged
from clusterbroker.broker.remote.messages import ASK_FORGET, ASK_READ, ASK_TAGS, Answer, Range
from clusterbroker.journal.ranges import ranges_of
from clusterbroker.journal.record import read_records

if TYPE_CHECKING:
    from clusterbroker.broker.queues.handle import Reread
    from clusterbroker.broker.queues.ticket import Ticket
    from clusterbroker.broker.remote.questions import Then
    from clusterbroker.journal.record import Message


class LinkSide:
    """What `RemoteQueue` has for links."""

    __slots__ = ()

    @abstractmethod
    def take(self, messages: Sequence[Message], ticket: Ticket | None, tagged: Tagged | None = None) -> None:
        """Publishes to the queue."""

    @abstractmethod
    def _ask(self, what: int, then: Then, *, ranges: Sequence[Range] = (), tags: AskedTags | None = None) -> None:
        """Asks its owner."""

    def reread(self, seqs: Sequence[int], then: Reread) -> None:
        def answered(answer: Answer, payload: memoryview) -> None:
            then({seq: message for seq, message, *_ in read_records(payload)}, answer.count)

        self._ask(ASK_READ, answered, ranges=tuple(ranges_of(seqs)))

    def publish_tagged(self, tagged: Tagged, messages: Sequence[Message], ticket: Ticket, _now_ms: int) -> None:
        self.take(messages, ticket, tagged)

    def known_tags(self, asked: AskedTags, then: Callable[[list[bytes] | str], None]) -> None:
        self._ask(ASK_TAGS, lambda answer, _: then(answer.refused or answer.tags), tags=asked)

    def forget_tags(self, link: int, upto: int, tags: list[bytes]) -> None:
        self._ask(ASK_FORGET, lambda *_: None, tags=AskedTags(link, 0, tuple(tags), upto=upto))
