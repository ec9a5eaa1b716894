"""Questions to a queue's owner with one answer: basic.get, counts, purge, deletion check.

A question is asked again after each attachment until it is answered, so each may be carried out twice, and then the
last answer counts: a get with a lost message gets another one (the first is outstanding nowhere, and returns), a
purge counts the rest.

After UNANSWERED_MS the client was told so, and has gone on. A question of that age is forgotten: a purge would take
later, confirmed publishes, and clients that ask again and again for a queue without an owner would fill the memory.
An owner that has it, but is not open yet, forgets it with the next attach, which must come at once.

What a recoverable sender has settled is asked to be forgotten until it is: its client waits for that, and asks once for
each delivery that this queue's owner has called stored. So these do not fill the memory, and late they do no harm:
deliveries that came after are not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import takewhile

from clusterbroker.broker.queues.browse import Browse
from clusterbroker.broker.queues.handle import UNANSWERED_MS
from clusterbroker.broker.queues.lease import LeaseRequest
from clusterbroker.broker.queues.link_deliveries import AskedTags
from clusterbroker.broker.queues.link_held import LinkAttach
from clusterbroker.broker.remote.messages import ASK_DELETE, ASK_FORGET, ASK_HELD, Answer, Ask, LinkRanges, Range

Then = Callable[[Answer, memoryview], None]
NumberedParts = tuple[bytes, tuple[tuple[int, int, int], ...]]
"""`Ask.numbered` of one producer."""


@dataclass(slots=True)
class Question:
    what: int
    after: int
    """Number of the publish before which it must not be asked: who publishes and then counts, counts his own."""
    since_ms: int
    then: Then
    if_unused: bool = False
    if_empty: bool = False
    no_ack: bool = False
    word: LeaseRequest | None = None
    consumer: int = 0
    tags: AskedTags | None = None
    ranges: tuple[Range, ...] = ()
    browse: Browse | None = None
    link: LinkAttach | None = None
    publishes: tuple[int, int] = (0, 0)
    if_settled: bool = False
    numbered: tuple[NumberedParts, ...] = ()
    links: LinkRanges = ()
    told: bool = False

    @property
    def lasts(self) -> bool:
        """It is not given up."""
        return self.what == ASK_FORGET and self.tags is not None and self.tags.upto > 0


class Questions:
    """The open questions about one queue, by request number, in the order in which they were asked."""

    __slots__ = ("_next", "_open")

    def __init__(self) -> None:
        self._next = 1
        self._open: dict[int, Question] = {}

    def __len__(self) -> int:
        return len(self._open)

    def ask(self, question: Question) -> None:
        self._open[self._next] = question
        self._next += 1

    def detached(self) -> None:
        for question in self._open.values():
            question.told = False

    def tell(
        self, queue_id: int, epoch: int, gen: int, sent: int, anyway: bool, behind: Collection[int]
    ) -> Iterator[Ask]:
        """Those that may be asked now: all publishes before them, those below `sent`, have been sent. `anyway`: these
        may not be sent for long; but what links of `behind` hold is asked behind them all the same."""
        for request, question in self._open.items():
            is_early = question.after > sent
            if is_early and not anyway:
                return  # later ones come later
            waits = question.what == ASK_HELD and question.link is not None and question.link.link in behind
            if not question.told and not (is_early and waits):
                question.told = True
                yield Ask(
                    queue_id, epoch, gen, request, question.what, question.if_unused, question.if_empty,
                    question.no_ack, question.word, question.consumer, question.tags, question.ranges, question.browse,
                    question.link, question.publishes, question.if_settled, question.numbered, question.links,
                )  # fmt: skip

    def answered(self, request: int) -> Then | None:
        question = self._open.pop(request, None)
        return None if question is None else question.then

    def forget(self, now_ms: int) -> list[Question]:
        """Drops those for which nobody waits any more."""
        if not self._open:  # as a rule
            return []
        old = takewhile(lambda item: now_ms - item[1].since_ms >= UNANSWERED_MS, self._open.items())  # in their order
        over = [request for request, question in old if not question.lasts]
        return [self._open.pop(request) for request in over]

    def take_deletions(self) -> list[Question]:
        """Deletions without conditions, which need no owner."""
        free = [
            request
            for request, question in self._open.items()
            if question.what == ASK_DELETE and not (question.if_unused or question.if_empty)
        ]
        return [self._open.pop(request) for request in free]

    def drop(self) -> list[Question]:
        """The queue is gone."""
        dropped = list(self._open.values())
        self._open.clear()
        return dropped
