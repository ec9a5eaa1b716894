"""An owner's knowledge of one node that uses a queue: an attachment, and its consumers.

An attachment belongs to one start of one node (its incarnation) and lives until that start is over. The number `gen`
identifies the attach in force: frames of an older one are dropped, on both sides.

    attached    `gen` is in force: frames count, deliveries go out
    void        the link broke, or the owner asked for a new attach: nothing counts but the next Attach. Held
                messages stay held, consumers keep their places, and publishes are answered after that attach

*Publishes.* `accepted` is the last number that is in the queue (and, with its ATTR record, in every copy of it),
`published` the last one that is committed. The owner takes accepted + 1 only; a gap voids the attachment. Below
`next_number`, which the Attach named, numbers may be left out: they were answered before.

*Refusals* (overflow reject-publish) must never end in a confirm, and no record holds them. The owner therefore
accepts nothing behind a refusal in the same gen: it reports the refusal when all before it is committed, and asks for
a new attach. `accepted` still stands before the refused numbers then. A proxy with the report continues behind them;
one without it sends them again, to be judged anew; so does the next owner, if this one dies. The price is one attach
for each turn with a refusal; publishes behind a refusal are sent twice.

*Deaths* (overflow reject-publish-dlx) do stand in the log, with the message: `died` is the highest number that was
refused so. Repetitions up to it are refused without being judged, so each dies once. Numbers behind `accepted` and up
to `died` were all refused. Their refusal is reported when the death is committed.

*Clients' numbers.* Also noted in the log is a refused message with a client's number (`producers`): it may come again
behind later ones, and the next owner must not take it for a stored one. The refusal is reported when that is
committed.

*Settlements* are applied in order, once each. `settled` is the last one with all of its records committed.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from clusterbroker.broker.content.selector.filters import BadFilter, Filter, filter_on_wire
from clusterbroker.broker.queues.attributes import PROXY, PROXY_REFUSED
from clusterbroker.broker.queues.link_holding import Assigned
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.queues.ring import RemoteConsumer
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.remote.messages import ConsumerHead, Range
from clusterbroker.journal.record import Message

NOTHING: Final = Filter((lambda _: False,), b"")
OUT_BYTES_MAX: Final = 256 << 10
"""About so much of one consumer's deliveries waits for its frame."""


PLACES: Final = 256
"""Links of an attachment before it looks which of them are elsewhere by now."""


class AttachedTo(Protocol):
    """What attachments and their consumers need of the owned queue."""

    queue: LocalQueue
    outgoing: dict[RemoteSubscription, None]
    activity: dict[RemoteSubscription, None]
    assigning: dict[RemoteSubscription, None]

    def touch(self) -> None:
        """Asks for a turn of the owned queue."""


def filter_of_head(head: ConsumerHead) -> Filter | None:
    """What a consumer takes; nothing, if a newer release asks for what this one does not know."""
    try:
        return filter_on_wire(head.filter)
    except BadFilter:
        return NOTHING


class RemoteSubscription:
    """A consumer of another node, or of this one through its proxy, as it stands in the queue's line."""

    __slots__ = (
        "_waits", "assigned", "attachment", "credit", "exclusive", "filter", "held", "link", "node", "number", "order",
        "owned", "upto", "window", "worker",
    )  # fmt: skip

    def __init__(self, owned: AttachedTo, attachment: Attachment, head: ConsumerHead) -> None:
        self.owned = owned
        self.attachment = attachment
        self.node = attachment.node
        self.number = head.consumer
        self.exclusive = head.exclusive
        self.order = (head.order, attachment.node, head.consumer)
        self.link = head.link
        self.worker = head.worker
        self.filter = filter_of_head(head)
        self.held = 0
        self.upto = 0
        """Deliveries that its node has room for, of this gen."""
        self.window = 0
        self._waits = False
        self.credit = RemoteConsumer(owned.queue.ring, attachment.holder, head.priority, self, head.holding)
        self.assigned = Assigned(owned.queue.ring) if head.holding else None
        """Of a recoverable link: what is sent when its group is committed."""
        self.credit.out.size_max = OUT_BYTES_MAX
        self.credit.no_ack = head.no_ack
        self.renew(head)

    def renew(self, head: ConsumerHead) -> None:
        """A new gen: credit and deliveries are counted from 0, and what was not sent is not held by anybody."""
        self._drop()
        self._waits = False
        self.credit.delivered = 0
        self.grant(head.upto, head.held)
        subscriptions = self.owned.queue.subscriptions
        if subscriptions.single_active:
            self.activated(subscriptions.active is self)

    def grant(self, upto: int, held: int) -> None:
        self.upto = upto
        self.held = held
        self.window = max(1, upto - self.credit.delivered + held)
        self._limit()

    def _limit(self) -> None:
        self.credit.limit = 0 if self._waits else self.upto

    def wait(self) -> None:
        """What is sent again is read first, from a disk perhaps: nothing newer may come before it."""
        self._waits = True
        self._limit()

    def stop(self) -> None:
        """Its attachment is void: nothing more is handed out to it, what was not sent is dropped."""
        self.credit.limit = self.upto = 0
        self._drop()

    def _drop(self) -> None:
        self.credit.out.take()
        if self.assigned is not None:
            self.assigned.clear()

    @property
    def held_most(self) -> int:
        """Its node says how many it holds when it grants credit; what was handed out since then counts as held."""
        if not self.owned.queue.ring.held_by(self.attachment.holder):
            return 0
        return max(0, self.window - (self.upto - self.credit.delivered))

    @property
    def holding(self) -> int:
        """The recoverable link that it serves; 0: none."""
        return self.credit.link

    @property
    def due(self) -> bool:
        """Whether there is something to be sent."""
        return self.credit.out.size > 0 if self.assigned is None else self.assigned.is_due

    def take(self) -> bytes:
        """What is sent now."""
        return self.credit.out.take() if self.assigned is None else self.assigned.take()

    def sent_again(self, records: bytes, count: int, is_last: bool) -> None:
        """What its link holds, and its node has not."""
        assert self.assigned is not None, "only what a link holds is sent again"
        if count:
            self.credit.delivered += count
            self.assigned.put(records)
            self.owned.assigning[self] = None
        if is_last:
            self._waits = False
            self._limit()
        self.owned.queue.ring.mark()

    @property
    def holds(self) -> bool:
        """By node, not by consumer: that is what the ring remembers. So a single active consumer is relieved when its
        node holds nothing of the queue. Of links it knows each."""
        if self.holding:
            return self.holding in self.owned.queue.ring.links()
        return self.owned.queue.ring.held_by(self.attachment.holder) > 0

    def flush(self) -> None:
        if self.credit.out.size:
            if self.assigned is None:
                self.owned.outgoing[self] = None
            else:
                self.assigned.cut(self.credit.out)
                self.owned.assigning[self] = None
            self.owned.touch()

    def activated(self, _: bool) -> None:
        """Its node hears in the next turn how it is then."""
        self.owned.activity[self] = None
        self.owned.touch()

    def ended(self) -> None:
        """The queue is deleted: its node hears it from the wiring."""


class Attachment:
    """One start of one node, as the owner of a queue knows it."""

    __slots__ = (
        "_commits",
        "_settled",
        "accepted",
        "attached",
        "came_before",
        "died",
        "gen",
        "holder",
        "incarnation",
        "killer",
        "members",
        "next_number",
        "node",
        "not_held",
        "owned",
        "places",
        "producer",
        "published",
        "purged",
        "refused",
        "settlement",
        "told_published",
        "told_settled",
        "unlogged",
        "unsettled",
    )  # fmt: skip

    def __init__(self, owned: AttachedTo, node: str, incarnation: int, holder: int) -> None:
        self.owned = owned
        self.node = node
        self.incarnation = incarnation
        self.holder = holder
        self.producer = PROXY.name((node, incarnation))
        self.gen = 0
        self.attached = False
        self.members: dict[int, RemoteSubscription] = {}
        self.accepted = owned.queue.ring.attributes.get(self.producer, 0)
        self.killer = PROXY_REFUSED.name((node, incarnation))
        self.died = owned.queue.ring.attributes.get(self.killer, 0)
        self.unlogged = 0
        """Refusals that wait for the commit of what the log says of them."""
        self.published = 0
        self.told_published = 0
        self.next_number = 1
        self.came_before = 0
        """Numbers up to it were sent to owners whose memory may be gone: these may have handed them out."""
        self.refused: tuple[int, int] | None = None
        self.settlement = 0  # the last that was applied
        self._settled = 0
        self.told_settled = 0
        self.not_held: dict[int, tuple[Range, ...]] = {}
        """Of settlements that it may ask for again: what was not carried out (`settling`)."""
        self.places: set[int] = set()
        """Recoverable links that are, or were, attached here."""
        self.unsettled: deque[tuple[int, int]] = deque()  # (id, mark of the commit that it waits for)
        self.purged: dict[int, tuple[int, int]] = {}  # request: (count, mark of the commit that it waits for)
        self._commits: deque[tuple[int, Ticket]] = deque()  # (mark, who waits) of transactions

    def renew(self, gen: int, next_number: int, open_from: int) -> None:
        """An Attach has come; settlements before `open_from` are not asked for again."""
        self.not_held = {number: ranges for number, ranges in self.not_held.items() if number >= open_from}
        self.gen = gen
        self.attached = True
        self.next_number = next_number
        self.refused = None
        self.told_published = self.told_settled = 0

    def void(self) -> None:
        self.attached = False
        for member in self.members.values():
            member.stop()

    # -- links

    def place(self, link: int) -> None:
        """The link is at its node: what that says of the link's messages counts."""
        ring = self.owned.queue.ring
        ring.attach_link(link, self.holder)
        if len(self.places) >= PLACES and link not in self.places:
            self.places = {one for one in self.places if ring.link_place(one) == self.holder}
        self.places.add(link)

    def unplace(self) -> None:
        """The node's start is over."""
        ring = self.owned.queue.ring
        for link in self.places:
            if ring.link_place(link) == self.holder:
                ring.attach_link(link, 0)
        self.places.clear()

    # -- publishes

    def follows(self, first: int) -> bool:
        """Whether a publish with this number is the next one."""
        return first == self.accepted + 1 or self.accepted < first <= self.next_number

    def ticket(self, last: int) -> Ticket:
        """Passes when the publishes up to this number are committed."""
        return Ticket(self.accepted + 1, last, self._committed)

    def _committed(self, ticket: Ticket) -> None:
        self.published = max(self.published, ticket.last)
        self.owned.touch()

    def refuse(self, first: int, last: int) -> None:
        """The queue is full. What is refused has neighbouring numbers: nothing is accepted behind it."""
        assert self.refused is None or first == self.refused[1] + 1, "refused numbers are neighbours"
        self.refused = (first if self.refused is None else self.refused[0], last)
        for number in range(first, min(last, self.died) + 1):
            self.unlogged += 1
            ticket = Ticket(number, number, self._logged)
            self.owned.queue.log.promise(ticket)
            ticket.pass_()

    def remember(self) -> None:
        """What is refused was noted; it is told when that is committed."""
        self.unlogged += 1
        ticket = Ticket(0, 0, self._logged)
        self.until_durable(ticket)
        ticket.pass_()

    def kill(self, number: int, message: Message) -> None:
        """What is about to be refused dies for it."""
        self.owned.queue.kill(message)
        self.owned.queue.ring.set_attribute(self.killer, number)
        self.died = number

    def _logged(self, _: Ticket) -> None:
        self.unlogged -= 1
        self.owned.touch()

    @property
    def last(self) -> int:
        """The last number that was accepted or refused."""
        return self.accepted if self.refused is None else self.refused[1]

    # -- settlements

    def until_durable(self, ticket: Ticket) -> None:
        """The ticket of publishes waits for what was settled with them as well."""
        ticket.hold()
        self._commits.append((self.owned.queue.log.commits, ticket))

    def settled(self) -> int:
        """The last settlement of which all is committed."""
        queue = self.owned.queue
        while self._commits and queue.log.durable(self._commits[0][0]):
            self._commits.popleft()[1].pass_()
        while self.unsettled and queue.log.durable(self.unsettled[0][1]):
            self._settled = self.unsettled.popleft()[0]
        if not self.unsettled:
            self._settled = self.settlement
        return self._settled
