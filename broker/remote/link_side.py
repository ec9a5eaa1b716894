"""What links of AMQP 1.0 ask of a queue elsewhere, and consumers of AMQP 0-9-1 do not: deliveries that they have sent
(`broker.queues.link_deliveries`), messages that they hold, read again, what is ready for one of them, what a browser
sees, whether a transaction's part would be refused, numbers of messages that do not come. Part of its remote queue."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from clusterbroker.broker.queues.browse import Browse, Browsed
from clusterbroker.broker.queues.handle import HELD_BY_NOBODY, CommitPart, Decided, Reread
from clusterbroker.broker.queues.link_deliveries import IN_TRANSACTION, AskedTags, Tagged
from clusterbroker.broker.queues.link_held import NO_LINK, HeldMessages, LinkAttach
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.remote.backlog import Backlog, Committing, Named, held_by_links
from clusterbroker.broker.remote.consumer_link import Line, seq_of
from clusterbroker.broker.remote.messages import (
    ASK_BROWSE,
    ASK_COUNTS,
    ASK_FORGET,
    ASK_HELD,
    ASK_JUDGE,
    ASK_READ,
    ASK_TAGS,
    SETTLE_ACK,
    SETTLE_LEFT,
    SETTLE_REJECT,
    SETTLE_REQUEUE,
    SETTLE_REQUEUE_COUNTED,
    Answer,
    LinkRanges,
    Range,
)
from clusterbroker.broker.remote.settlements import Settlements
from clusterbroker.journal.ranges import ranges_of
from clusterbroker.journal.record import Message, read_records

if TYPE_CHECKING:
    from clusterbroker.broker.queues.ring import Ring
    from clusterbroker.broker.queues.subscription import LocalConsumer
    from clusterbroker.broker.remote.outbox import Outbox
    from clusterbroker.broker.remote.questions import NumberedParts, Questions, Then
    from clusterbroker.cluster.wiring.entities import Queue as QueueEntity


NONE_GONE: Final[frozenset[int]] = frozenset()
LINKS_SLACK: Final = 16
_NOTHING: Final = Message(b"\0\0", b"", 0)
"""Stands for a message that is not sent."""


class LinksHere:
    """Recoverable links of a queue that are attached at this node, or were last.

    attaches    link -> its newest attach here. Of those whose consumers are gone the owner has to know as long as
                outcomes of their deliveries are on the way (`settling`)
    came_back   links that were attached elsewhere since outcomes came that the owner has not answered, or before they
                came here: none of these outcomes counts for what they hold. The owner is not told that such a link is
                here before it is asked what the link holds, behind these outcomes
    strangers   links that were elsewhere before: it is open whether a transaction of another one has a message of
                theirs here
    late        links whose newest attach here has nothing: with what earlier ones have left since, which waits for the
                owner's word on what the newest one holds; None: with the word that it is attached elsewhere, or over,
                or without one
    """

    __slots__ = ("attaches", "came_back", "late", "strangers")

    def __init__(self) -> None:
        self.attaches: dict[int, int] = {}
        self.strangers: set[int] = set()
        self.came_back: set[int] = set()
        self.late: dict[int, list[int] | None] = {}


NO_LINKS: Final = LinksHere()
"""Of a queue without such links. It stays empty."""


class KnowsLinks(Protocol):
    """The node."""

    goes_on: Callable[[LinkAttach], bool]
    """Whether a later attach has what this one held: the link has not begun anew since, and has not ended."""

    def attach_again(self, queue: Any) -> None:
        """What the queue's owner and this node know of each other may differ."""

    def attach_soon(self, queue: Any) -> None:
        """Likewise, when what is under way is over."""


class LinkSide:
    """What `RemoteQueue` has of it.

    _gone_links   consumers of such links that are gone: deliveries of this attachment may still come for them
    _links        those that are attached here, or were last
    """

    __slots__ = ()
    attached: bool
    deleted: bool
    entity: QueueEntity
    gen: int
    node: KnowsLinks
    outbox: Outbox | None
    ring: Ring
    _by_subscription: dict[LocalConsumer, Line]
    _settlements: Settlements
    _gone_links: frozenset[int]
    _backlog: Backlog
    _lines: dict[int, Line]
    _links: LinksHere
    _questions: Questions

    @abstractmethod
    def subscribe(self, subscription: LocalConsumer, now_ms: int, then: Callable[[str], None]) -> None:
        """See `QueueHandle`."""

    @abstractmethod
    def _begin_links(self) -> None:
        """The first one is here: `_links` is its own."""

    @abstractmethod
    def take(
        self, messages: Sequence[Message], ticket: Ticket | None, tagged: Tagged | None = None,
        commit: Committing | None = None,
    ) -> None:  # fmt: skip
        """Publishes to the queue."""

    @abstractmethod
    def _ask(
        self, what: int, then: Then, *, tags: AskedTags | None = None, ranges: Sequence[Range] = (),
        link: LinkAttach | None = None, consumer: int = 0, browse: Browse | None = None,
        publishes: tuple[int, int] = (0, 0), numbered: Sequence[NumberedParts] = (), links: LinkRanges = (),
    ) -> None:  # fmt: skip
        """Asks its owner."""

    @property
    @abstractmethod
    def rejects(self) -> bool:
        """See `RemoteQueue.rejects`."""

    def _refuse_late(self, ticket: Ticket | None) -> None:
        """The queue is deleted: it takes what it gets, unless nobody has deleted it."""
        if ticket is not None and self.entity.ends_unasked:
            ticket.reject(self.entity.name)

    @property
    def _may_refuse(self) -> bool:
        """Whether its owner may have no room for messages, or end the queue."""
        return self.rejects or self.entity.ends_unasked

    @abstractmethod
    def gather(self) -> None:
        """What was settled since the last call becomes settlements."""

    @abstractmethod
    def _give_back(self, seq: int, outcome: int, link: str = "", change: bytes = b"") -> None:
        """It is rejected, or returns."""

    def _settle_part(self, part: CommitPart, ticket: Ticket) -> None:
        """What a transaction settles here, and no messages: of what its queue was asked about all, or nothing."""
        whole = part.judged and part.decides
        for one in part.settles:
            if one.outcome == "requeue":
                self._give_back(one.seq, SETTLE_REQUEUE)
        self.gather()  # what is no part of it
        for one in part.settles:
            if one.outcome == "ack":
                self._settle_one(one)
            elif one.outcome == "reject" and (self.ring.release(one.seq) >= 0 or one.link.link):
                self._settlements.add(one.seq, SETTLE_REJECT, change=one.change, held_by=one.link)
        acknowledged = held_by_links(one for one in part.settles if one.outcome == "ack")
        begin = self._settlements.gather(self.ring.take_settled(), acknowledged, whole)
        self._settlements.hold(ticket, part, begin, lambda: self._refused(part) if whole else None)

    def _settle_one(self, one: Decided) -> None:
        """What is not outstanding here, for another one's answer took it along, the owner judges by the link."""
        try:
            self.ring.settle(one.seq, True)
        except KeyError:
            if not one.link.link:
                raise
            self._settlements.add(one.seq, SETTLE_ACK, held_by=one.link)

    def _refused(self, part: CommitPart) -> None:
        """Nothing of it was carried out: what this node holds of it returns, or stays with its link."""
        for one in part.settles:
            if one.outcome != "requeue" and one.seq not in part.void and not self.is_later_here(one.link):
                self._settlements.add(one.seq, self.returned_by(one.link))
        self.ring.mark()

    is_elsewhere = True

    def judge(self, part: CommitPart, _now_ms: int, then: Callable[[str], None]) -> None:
        if self.deleted or not (part.decides or (part.publishes and self._may_refuse)):
            then("")
            return
        bodies: list[int] = []
        numbers: dict[bytes, list[tuple[int, int, int]]] = {}
        for messages, named in part.publishes:
            if named is not None:
                numbers.setdefault(named[0], []).append((len(bodies), named[1], len(messages[0].body)))
            bodies += [len(message.body) for message in messages]
        staged = [one for one in part.settles if one.outcome != "requeue"]
        self._ask(
            ASK_JUDGE, lambda answer, _: then(answer.refused), ranges=tuple(ranges_of(one.seq for one in staged)),
            publishes=(len(bodies), sum(bodies[:-1])), links=held_by_links(staged),
            numbered=tuple((producer, tuple(own)) for producer, own in numbers.items()),
        )  # fmt: skip

    def refuse_numbers(self, named: Sequence[Named], then: Callable[[], None]) -> None:
        """By a part of which nothing is stored, in its place among the publishes: the owner keeps the numbers. Below
        feature level 7 by one that its owner must refuse, which costs an attach."""
        if self.deleted:
            then()
            return
        commit = Committing([Decided(HELD_BY_NOBODY, "ack")], dict(enumerate(named)), lambda _: None)
        ticket = Ticket(1, 1, lambda _: then())
        self.take([_NOTHING] * len(named), ticket, commit=commit)
        ticket.pass_()

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
        def answered(why: str) -> None:
            self._is_judged(link)
            then(why)

        self.subscribe(subscription, now_ms, answered)
        if subscription in self._by_subscription:
            self._by_subscription[subscription].link = link
            self._is_here(link)
            self.leave_to_link(self._links.late.pop(link.link, None) or ())  # it has begun anew: nobody has these

    def _is_judged(self, link: LinkAttach) -> None:
        """The owner has answered this attach, so it knows all that this node has said before."""
        if self._links.attaches.get(link.link) == link.attach:
            self._links.came_back.discard(link.link)

    def _is_here(self, link: LinkAttach) -> None:
        if self._links is NO_LINKS:
            self._begin_links()
        self.gather()
        attaches = self._links.attaches
        if (self._settlements or self._backlog.settles) and link.attach > attaches.get(link.link, 0) + 1:
            self._links.came_back.add(link.link)
        if len(attaches) > 2 * len(self._lines) + LINKS_SLACK:
            self.silent_links()
        attaches[link.link] = link.attach

    def silent_links(self) -> tuple[LinkAttach, ...]:
        """Attaches of links whose consumers are gone, or not answered yet. Those of the former are forgotten when no
        outcome of theirs can be on the way, or come: what an open transaction has retired is unacknowledged here."""
        here, rests = self._links, not (self._settlements or self._backlog or self.ring.unacked)
        if rests and here.came_back:  # no outcome is left that could count for those whose questions were given up
            here.came_back = {link for link in here.came_back if here.late.get(link, ()) is not None}
        attached = {line.link.link for line in self._lines.values() if line.then is None} | here.came_back
        silent = [LinkAttach(*link) for link in here.attaches.items() if link[0] not in attached]
        if not rests:
            return tuple(silent)
        here.strangers.clear()
        asking = {line.link.link for line in self._lines.values()}
        for link in silent:
            if link.link not in asking:
                del self._links.attaches[link.link]
                self._links.late.pop(link.link, None)
        return ()

    def is_later_here(self, link: LinkAttach) -> bool:
        """Whether a later attach of the link is, or was last, at this node: its client has what the earlier one had,
        unless the link has begun anew since, or was elsewhere before the owner has said what it holds."""
        here = self._links
        is_later = here.attaches.get(link.link, link.attach) != link.attach and here.late.get(link.link, ()) is not None
        return is_later and self.node.goes_on(link)

    def is_kept(self, seqs: Sequence[int], link: LinkAttach) -> bool:
        """`is_later_here` of what an attach leaves behind: while the owner has not said whether the later one has it,
        that is open."""
        if not self.is_later_here(link):
            return False
        if (waits := self._links.late.get(link.link)) is not None:
            waits.extend(seqs)
        return True

    def returned_by(self, link: LinkAttach) -> int:
        """What becomes of a delivery that was settled in vain: it stays with its link, if that is suspended."""
        is_here = not link.link or any(line.link == link for line in self._lines.values())
        return SETTLE_REQUEUE if is_here else SETTLE_LEFT

    def held_by(self, link: LinkAttach, then: Callable[[Sequence[HeldMessages] | str], None]) -> None:
        if self._links is NO_LINKS:
            self._begin_links()
        before, strangers = self._links.attaches.get(link.link, 0), self._links.strangers
        if before not in (link.attach, link.attach - 1):
            strangers.add(link.link)

        def answered(answer: Answer, _: memoryview) -> None:
            self._is_judged(link)
            found = [HeldMessages(*one) for one in answer.held]
            new: list[int] = []
            for held in found:
                self._settlements.came_again(held.seqs)
                new += [seq for seq in held.seqs if self.ring.hold(seq, held.delivery_count)]
            if link.link in strangers and len(new) < sum(len(held.seqs) for held in found):
                self.leave_to_link(new)
                self._has_nothing(link)
                then(IN_TRANSACTION)
                return
            strangers.discard(link.link)
            if found:  # it may have been forgotten while it had nothing here
                self._links.attaches[link.link] = max(link.attach, self._links.attaches.get(link.link, 0))
            if self._links.attaches.get(link.link) == link.attach:
                left = self._links.late.pop(link.link, None) or ()
                if answer.refused:
                    self._links.late[link.link] = None
                has = {seq for held in found for seq in held.seqs}
                self.leave_to_link([seq for seq in left if seq not in has])
            found += [HeldMessages(first, last, 0, withdrawn=True) for first, last in answer.withdrawn]
            then(answer.refused or found)

        self._is_here(link)
        self._links.late[link.link] = self._links.late.get(link.link) or []
        self._ask(ASK_HELD, answered, link=link)

    def drop_questions(self, now_ms: int) -> bool:
        """Those for which nobody waits any more; whether the owner has been told of one of them."""
        dropped = self._questions.forget(now_ms)
        for question in dropped:
            if question.link is not None:
                self._has_nothing(question.link)
        return any(question.told for question in dropped)

    def _has_nothing(self, link: LinkAttach) -> None:
        """Its attach was given up before its owner has said what it holds."""
        if self._links.attaches.get(link.link) == link.attach:
            left, self._links.late[link.link] = self._links.late.get(link.link), None
            self.leave_to_link(left or ())

    def give_up(self, line: Line) -> frozenset[int]:
        """The consumer is gone: what waits for it returns, or stays with its link. The links' consumers that are
        gone."""
        for record in line.surplus:
            self._settlements.add(seq_of(record), line.returned)
        line.surplus.clear()
        if line.link.link:
            self.gather()
            self._settlements.link_gone()
        self.ring.mark()
        return self._gone_links | {line.number} if line.link.link and line.told else self._gone_links

    def is_in_doubt(self, seqs: Sequence[int]) -> bool:
        """Whether one of these was delivered before the owner heard that it has left a link here: none of them is taken
        then, and the next attachment says where they are."""
        if self._links is NO_LINKS:
            return False
        self.gather()
        if not self._settlements.doubts(seqs):
            return False
        self.node.attach_again(self)
        return True

    def returned_of(self, consumer: int) -> int:
        """`Line.returned` of a consumer that is gone."""
        return SETTLE_LEFT if consumer in self._gone_links else SETTLE_REQUEUE

    def leave_to_link(self, seqs: Sequence[int], late: LinkAttach = NO_LINK) -> None:
        if self.is_kept(seqs, late):
            return
        self._backlog.leave(seqs)
        for seq in seqs:
            if not self.deleted and self._let_go(seq):
                self._settlements.add(seq, SETTLE_LEFT)
        self.ring.mark()

    def _let_go(self, seq: int) -> bool:
        """It is outstanding here no more, if it was."""
        if self.ring.release(seq) < 0:
            return False
        self._may_come_again()
        return True

    def _may_come_again(self) -> None:
        """Something is outstanding here no more. Another holder at this node may have been given it meanwhile, and the
        delivery been passed over: it comes with the next attachment."""
        if self.ring.passed_over:
            self.ring.passed_over = 0
            self.node.attach_soon(self)

    def withdraw(self, seqs: Sequence[int], link: LinkAttach) -> None:
        self._backlog.leave(seqs)
        for seq in seqs:
            if not self.deleted and (count := self.ring.release(seq)) >= 0:
                self._settlements.add(seq, SETTLE_REQUEUE_COUNTED, count, withdraws=link.link)
        self.ring.mark()

    def forget_tags(self, link: int, upto: int, tags: list[bytes], then: Callable[[], None] = lambda: None) -> None:
        self._ask(ASK_FORGET, lambda *_: then(), tags=AskedTags(link, 0, tuple(tags), upto=upto))
