"""A link whose sender is the client: its target, its credit, and its transfers on their way to the publisher.

The usual batch takes the short way: all of it goes by the route of the link's target, which the publisher remembers.
The long way, message by message, is for what may differ between messages of one batch: their own addresses (an
anonymous target), user-id, reply-to, x-cc, producers that number their messages, exchanges that look into properties,
and queues that may refuse.

*Credit.* A sender has CREDIT, and gets it back when half is used, not when its deliveries are settled; never while its
connection has to wait (`Backpressure`), and never while UNSETTLED_MAX of its deliveries have no outcome. So publishers
are held by credit alone, and the consumers of their connection go on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Protocol

from clusterbroker.broker.access.addressing import LOOKED_INTO, addressed, as_row, looks_into
from clusterbroker.broker.access.errors import Refusal
from clusterbroker.broker.access.publisher import DELIVERIES_AT_ONCE, Named, run_of
from clusterbroker.broker.content.message import to_address
from clusterbroker.broker.fronts.amqp10.addresses import Target as Place
from clusterbroker.broker.fronts.amqp10.conditions import described, link_error
from clusterbroker.broker.fronts.amqp10.expiry import NOTHING_KEPT, Terms
from clusterbroker.broker.fronts.amqp10.outcomes import RECEIVER, Unsettled
from clusterbroker.broker.fronts.amqp10.ports import Detached, LinkState, SessionCore, Terminus
from clusterbroker.broker.fronts.amqp10.positions import offset_of
from clusterbroker.broker.fronts.amqp10.reply_link import KEY
from clusterbroker.broker.fronts.amqp10.resuming import TAG_BYTES_MAX
from clusterbroker.broker.fronts.amqp10.sender_memory import Memory, Proof
from clusterbroker.broker.node.link_recovery import Attachment
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.queues.link_deliveries import Tagged
from clusterbroker.broker.routing.router import Route
from clusterbroker.broker.wire.amqp10.codec import IncomingLink, Transferred
from clusterbroker.broker.wire.amqp10.errors import (
    ILLEGAL_STATE,
    INVALID_FIELD,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    RESOURCE_LIMIT,
    TRANSFER_LIMIT,
    Amqp10Error,
    LinkError,
)
from clusterbroker.broker.wire.amqp10.performatives import (
    Accepted,
    Attach,
    Composite,
    Disposition,
    Flow,
    Received,
    Released,
    Target,
    TransactionalState,
    Transfer,
)
from clusterbroker.broker.wire.amqp10.serials import SERIALS, distance
from clusterbroker.broker.wire.amqp10.tags import TagSet
from clusterbroker.broker.wire.numbers import UInt64
from clusterbroker.journal.record import Message

CREDIT: Final = 1000
UNSETTLED_MAX: Final = 8 * CREDIT
LASTING_MAX: Final = 4096
"""Deliveries that the node remembers of a link whose state survives its connection."""
FORGOTTEN: Final = "clusterbroker:forgotten"
"""Flow property of a recoverable link in rcv-settle-mode second. A client asks with a number, and is answered with it
when the tags of what it had settled before are free: no map is answered for these deliveries any more."""
UNSETTLED, SETTLED, MIXED = 0, 1, 2
"""snd-settle-mode (2.8.2)."""
_ACCEPTED: Final = Accepted()
_RELEASED: Final = Released()
_NO_TAGS: Final = TagSet()
"""Of each link that has nothing unsettled: there may be very many. It stays empty."""
_NO_NAMES: Final[set[bytes]] = set()
"""The same of names: each ``set()`` is another 216 bytes. It stays empty."""


class Store(Protocol):
    """What a link has besides whose queues know its deliveries (`recoverable_sender.RecoverableSender`)."""

    again: frozenset[bytes]
    attachment: Attachment

    @property
    def is_used_up(self) -> bool: ...

    def tagged(self, tags: Collection[bytes], route: Route[QueueHandle]) -> Tagged: ...

    def number_of(self, tags: Collection[bytes]) -> bytes: ...

    def over(self, tags: Collection[bytes]) -> None: ...

    def flush(self) -> None: ...

    def when_forgotten(self, then: Callable[[], None]) -> None: ...

    def suspend(self, named: Collection[bytes]) -> None: ...

    def close(self, then: Callable[[], None]) -> None: ...


class SenderLink:
    """`place`: where its messages go; None: each says its own. `tags`: of deliveries that are not settled."""

    role = False
    """As the client says it: it sends."""

    __slots__ = (
        "again", "begun", "credit", "delivery_count", "handle", "has_answer", "identity", "ignores", "incoming",
        "is_partial", "kept", "memory", "mode", "name", "part", "place", "posting", "proof", "session",
        "settles_first", "store", "tags", "target", "terminus", "terms", "unsettled", "withheld",
    )  # fmt: skip

    def __init__(self, session: SessionCore, attach: Attach, place: Place | None) -> None:
        self.session = session
        self.name = attach.name
        self.identity = session.identity(attach.name, self.role)
        self.terms = NOTHING_KEPT
        self.target: Any = None
        """The address of its target, as the client says it."""
        self.memory: Memory | None = None
        """While the link is suspended."""
        self.proof: Proof | None = None
        self.store: Store | None = None
        """Of a link whose queues know its deliveries."""
        self.again = _NO_NAMES
        """Deliveries that the client has named as it attached, and that are not here: they may come again."""
        self.kept = _NO_NAMES
        """Deliveries whose acceptance the client has not read for certain, of before it attached."""
        self.is_partial = False
        """An unsettled map was incomplete: nothing new may come."""
        self.part: tuple[bytes, bytes] | None = None
        """A delivery that came in part before: tag, and first bytes."""
        self.ignores = False
        """The delivery that is not whole yet is passed over: it was resumed in vain."""
        self.handle = int(attach.handle)
        self.place = place
        self.mode = attach.snd_settle_mode
        self.settles_first = attach.rcv_settle_mode == 0
        self.has_answer = False
        """The client has our attach: before it a flow would be of no link that it knows."""
        self.credit = 0
        self.delivery_count = attach.initial_delivery_count or 0
        self.tags = _NO_TAGS
        self.unsettled = 0
        """Deliveries without a settlement."""
        self.withheld = False
        """The client was told that it has no credit, for an alarm."""
        self.terminus: Terminus | None = None
        self.begun = False
        """A delivery that is not whole yet was counted."""
        self.posting = b""
        """The transaction of the delivery that is not whole yet."""
        address = b"\0\0" if place is None else place.encoded
        self.incoming: IncomingLink = session.connection.decoder.open_link(session.number, self.handle, address, self)

    @property
    def address(self) -> str | None:
        """Of its target."""
        return None if self.place is None else self.place.address

    @property
    def state(self) -> LinkState:
        return LinkState(self.address, self.credit, self.unsettled, self.delivery_count)

    # -- credit

    def review_credit(self) -> None:
        """Grants what is due."""
        if self.incoming.owner is None or not self.has_answer:
            return  # detached: its handle may be another link's; or not attached yet
        if (self.credit > CREDIT // 2 and not self.withheld) or self.unsettled > UNSETTLED_MAX:
            return
        if self.session.holds_publishers or self.session.transactions.order.waits:
            return
        credit = CREDIT
        if self.is_lasting:
            credit = min(CREDIT, LASTING_MAX - self.held)
            if credit <= self.credit and not self.withheld:
                return
        self.withheld = False
        self.credit = max(0, credit)
        self.tell()

    @property
    def is_lasting(self) -> bool:
        """What it holds survives its connection."""
        return self.terms.outlives_connection

    @property
    def held(self) -> int:
        """Deliveries that the node has to remember."""
        return self.unsettled + len(self.kept) + (0 if self.proof is None else self.proof.count)

    def prove(self, now_ms: int) -> None:
        """Asks the client whether it has read the outcomes that it was told, if that is due."""
        proof = self.proof
        if self.store is not None:
            self.store.flush()
        if proof is None or not proof.is_due(now_ms) or self.withheld or self.session.holds_publishers:
            return
        if self.session.transactions.order.waits:
            return
        wanted = max(self.credit, min(CREDIT, LASTING_MAX - self.held))
        total = proof.next_sum((self.delivery_count + wanted) % SERIALS)
        self.credit = (total - self.delivery_count) % SERIALS
        self.tell(echo=True)
        proof.ask(total, now_ms)

    def withhold(self) -> None:
        """Takes back what the client has not used; what is on the way is taken."""
        if self.credit and not self.withheld and self.incoming.owner is not None:
            self.withheld = True
            self.session.send(self.session.flow(self.handle, self.delivery_count, 0))

    def tell(self, echo: bool = False) -> None:
        """The client hears where the link is."""
        if self.proof is not None:
            self.proof.said((self.delivery_count + self.credit) % SERIALS)
        self.session.send(self.session.flow(self.handle, self.delivery_count, self.credit, echo=echo))

    def flow(self, flow: Flow) -> None:
        """What a sender says of itself is its own affair, but for its count (2.6.7). Whether that has a delivery of
        which not all frames have come, nobody knows: it counts here from now on, and a count without it says nothing.
        """
        if self.proof is not None:
            count, credit = flow.delivery_count or 0, flow.link_credit
            proven = self.proof.heard(None if credit is None else (count + credit) % SERIALS)
            if proven and self.store is not None:
                again = set(self.proof.tags())
                self.store.over([tag for tag in proven if tag not in again and tag not in self.tags])
            self.review_credit()
        if flow.delivery_count is not None:
            if self.incoming.partial and not self.begun and self.credit:
                self._count(1)
                self.begun = True
            passed = distance(self.delivery_count, flow.delivery_count)
            if passed >= 0:  # it gave up credit
                self.delivery_count = int(flow.delivery_count)
                self.credit = max(0, self.credit - passed)
                self.review_credit()
        if flow.echo:
            self.tell()
        if flow.properties is not None and self.store is not None and not self.settles_first:
            number = flow.properties.get(FORGOTTEN)
            if isinstance(number, UInt64):
                self.store.when_forgotten(lambda: self._forgot(number))

    def _forgot(self, number: int) -> None:
        """What the client had settled before it asked this is forgotten."""
        if self.incoming.owner is not None:
            flow = self.session.flow(self.handle, self.delivery_count, self.credit)
            flow.properties = {FORGOTTEN: number}
            self.session.send(flow)
            self.session.want_send()

    # -- transfers

    def begin(self, transfer: Transfer) -> None:
        """The first of a delivery's frames that are gathered. Raises LinkError."""
        tag, number = transfer.delivery_tag, transfer.delivery_id
        assert tag is not None, "asked before"
        assert number is not None, "asked before"
        if len(tag) > TAG_BYTES_MAX:
            raise LinkError(INVALID_FIELD, f"a delivery-tag has at most {TAG_BYTES_MAX} bytes")
        if transfer.message_format:
            raise LinkError(NOT_IMPLEMENTED, f"message-format {transfer.message_format}")
        decoder = self.session.connection.decoder
        before = self._resumes(tag, transfer.state) if transfer.resume else b""
        decoder.begin(self.incoming, number, tag, bool(transfer.settled))
        self.ignores = before is None
        decoder.extend(self.incoming, before or b"")

    def _count(self, count: int) -> None:
        if count > self.credit:
            raise LinkError(TRANSFER_LIMIT, f"{count} deliveries, but the link-credit is {self.credit}")
        self.credit -= count
        self.delivery_count = (self.delivery_count + count) % SERIALS

    def transferred(self, batch: Transferred, txn_id: bytes = b"") -> None:
        """Takes a batch; `txn_id`: it is staged in that transaction. Raises LinkError, for which the link ends."""
        count = len(batch.tags)
        if not count:
            return
        self._count(count - self.begun)
        self.begun = False
        if self.mode != MIXED and batch.settled is not (self.mode == SETTLED):
            raise LinkError(INVALID_FIELD, "a transfer is settled or not against the link's snd-settle-mode")
        if batch.refusal is not None:
            raise batch.refusal
        if self.store is not None and self.store.is_used_up:
            raise LinkError(RESOURCE_LIMIT, "the deliveries of one attach are used up: attach again")
        if self.is_partial or self.again or self.kept:
            self._resumed(batch.tags, txn_id)
        elif self.store is not None:
            self.store.again = frozenset()  # none of these is in doubt, whatever became of one of the same tag
        ticket: Unsettled | None
        if batch.settled:
            ticket = self._settled_again(batch)
        else:
            self._hold(batch)
            ticket = self.session.outcomes.ticket(self, batch.first_id, batch.tags)
        try:
            self._publish(batch, ticket, txn_id)
        except LinkError:
            if ticket is not None:
                self.session.outcomes.discard(ticket)
            raise
        self.review_credit()

    def _hold(self, batch: Transferred) -> None:
        """Their tags are in use until they are settled (2.6.12)."""
        if self.tags is _NO_TAGS:
            self.tags = TagSet()
        if not self.tags.hold(batch.tags):
            raise LinkError(INVALID_FIELD, "a delivery-tag is in use by another unsettled delivery of the link")
        self.unsettled += len(batch.tags)

    def keep(self, terms: Terms, target: Target) -> None:
        """It is attached on these terms."""
        self.terms, self.target = terms, target.address
        if self.is_lasting and self.settles_first:
            self.proof = Proof()
        if self.proof is not None or self.store is not None:
            self.session.table.proves(self)

    # -- resumed

    def _settled_again(self, batch: Transferred) -> Unsettled | None:
        """Deliveries in doubt that the client settles as it sends them again: nobody hears their outcome, but their
        queues have to ask whether they are there."""
        if self.store is None or self.store.again.isdisjoint(batch.tags):
            return None
        return self.session.outcomes.unheard(self, batch.first_id, batch.tags)

    def unheard(self, tags: Collection[bytes]) -> None:
        """Such deliveries have their outcome."""
        if self.store is not None:
            self.store.over(tags)

    def _resumed(self, tags: Collection[bytes], txn_id: bytes) -> None:
        """Deliveries come after the link was resumed. Raises LinkError."""
        if self.is_partial:
            if any(tag not in self.again for tag in tags):
                raise LinkError(ILLEGAL_STATE, "a new delivery, while an unsettled map is incomplete")
        else:
            if self.store is not None:
                self.store.over(self.kept)
            self.kept = _NO_NAMES  # who sends with this attach's credit has read its map
        came = frozenset(self.again.intersection(tags))
        if came and txn_id and self.store is not None:
            raise LinkError(NOT_IMPLEMENTED, "a delivery in doubt comes again outside of transactions")
        if self.store is not None:
            self.store.again = came
        if came:
            self.again -= came

    def _resumes(self, tag: bytes, state: Composite | None) -> bytes | None:
        """What has come before of a delivery that is resumed, as far as it begins at this state; None: it is not known
        as one that may come again. Raises LinkError."""
        if tag not in self.again:
            return None
        if self.part is None or self.part[0] != tag or not isinstance(state, Received):
            return b""
        offset = offset_of(self.part[1], state)
        if offset is None:
            raise LinkError(INVALID_FIELD, "a resumed transfer begins behind what has come of its delivery")
        return self.part[1][:offset]

    def repeated(self, number: int, tag: bytes, settled: bool) -> None:
        """A delivery was resumed that is over, or was never known."""
        if tag in self.kept:
            if settled:
                self.kept.remove(tag)
                if self.store is not None:
                    self.store.over((tag,))
            else:
                self.session.send(
                    Disposition(role=RECEIVER, first=number, settled=self.settles_first, state=Accepted())
                )
                if not self.settles_first:
                    if self.tags is _NO_TAGS:
                        self.tags = TagSet()
                    self.tags.add(tag)
                    self.unsettled += 1
                    self.kept.remove(tag)
                    self.session.outcomes.answered[number] = (self, tag, True)
        self.returned()

    def returned(self) -> None:
        """A delivery that came to nothing: its credit is given back."""
        if not self.begun:
            self.delivery_count = (self.delivery_count + 1) % SERIALS
            self.credit = max(0, self.credit - 1)
        self.begun = False
        self.review_credit()

    def settled(self, tags: Collection[bytes], accepted: bool) -> None:
        """These deliveries are over. `accepted`: and the client is told so with that."""
        self.tags.release(tags)
        self.unsettled -= len(tags)
        if accepted and self.proof is not None:
            self.proof.told(tags)
        elif self.store is not None:
            self.store.over(tags)
        if self.unsettled <= UNSETTLED_MAX:
            self.review_credit()

    def _publish(self, batch: Transferred, ticket: Unsettled | None, txn_id: bytes = b"") -> None:
        """To the queues, now or behind what the session has sent before."""
        session = self.session
        if not session.backpressure.publishes:
            session.backpressure.begin()
        order = session.transactions.order
        if not order.is_busy or txn_id:
            self._put(batch, ticket, txn_id)
            return
        store = self.store
        again = frozenset() if store is None else store.again

        def put() -> None:
            if store is not None:
                if self.store is not store:  # suspended: its client hears that this is not here, and sends it again
                    if ticket is not None:
                        session.outcomes.discard(ticket)
                    return
                store.again = again
            try:
                self._put(batch, ticket)
            except LinkError as error:
                if ticket is not None:
                    session.outcomes.discard(ticket)
                session.cut(self, error)

        order.enter(put, sum(message.size for message in batch.messages))
        if order.is_full:
            session.connection.review_reading()

    def _put(self, batch: Transferred, ticket: Unsettled | None, txn_id: bytes = b"") -> None:
        session, messages, flags = self.session, batch.messages, batch.flags
        if self.place is None:
            self._each(messages, ticket, None, txn_id)
            return
        try:
            route = session.route(self.place, self.incoming.address)
        except Refusal as refusal:
            raise link_error(refusal) from None
        if txn_id:
            self._each(messages, ticket, route, txn_id)
        elif route.onward is not None:
            self._send(self.place, route, [as_row(message) for message in messages], ticket)
        elif (
            route.uncacheable
            or any(queue.rejects for queue in route.targets)
            or (flags & LOOKED_INTO and looks_into(flags, messages))
        ) or len(messages) * max(1, len(route.targets)) > DELIVERIES_AT_ONCE:
            self._each(messages, ticket, route)
        else:
            self._send(self.place, route, messages, ticket)

    def _send(
        self,
        place: Place,
        route: Route[QueueHandle],
        messages: Sequence[Message],
        ticket: Unsettled | None,
        named: Named | None = None,
    ) -> None:
        if ticket is not None and not route.targets and place.is_topic:
            ticket.state = _ACCEPTED
        if self.store is None or ticket is None:
            self.session.publisher.publish(route, messages, False, ticket, run_of(named))
        elif named is not None or route.onward is not None:
            raise LinkError(PRECONDITION_FAILED, "a link that is recoverable brings nothing that is known otherwise")
        else:
            self.session.publisher.publish(route, messages, False, ticket, self.store.tagged(ticket.tags, route))

    def _each(
        self,
        messages: Sequence[Message],
        ticket: Unsettled | None,
        known: Route[QueueHandle] | None,
        txn_id: bytes = b"",
    ) -> None:
        """Message by message, each with a ticket of its own: their outcomes may differ."""
        session = self.session
        tickets: Sequence[Unsettled | None] = [None] * len(messages)
        if ticket is not None:
            tickets = session.outcomes.apart(ticket)
        unheard: LinkError | None = None
        for message, own in zip(messages, tickets, strict=True):
            try:
                self._one(message, own, known, txn_id)
            except (Refusal, LinkError) as fault:
                error = fault if isinstance(fault, LinkError) else link_error(fault)
                self._refuse(own, error)
                if own is not None and session.outcomes.is_unheard(own):
                    unheard = LinkError(error.condition, error.text)
        if unheard is not None:
            session.cut(self, unheard)

    def _one(self, message: Message, ticket: Unsettled | None, known: Route[QueueHandle] | None, txn_id: bytes) -> None:
        session, place = self.session, self.place
        if place is None:
            place = session.place_of(message)
            message = to_address(message, place.encoded)
            known = session.route(place, message.address)
        assert known is not None, "a link's own target has a route"
        named = None
        if txn_id and not place.exchange and place.key.startswith(KEY):
            raise LinkError(PRECONDITION_FAILED, "direct replies are not held back: they take no part in a transaction")
        if known.uncacheable or looks_into(message.flags, (message,)):
            number = None
            if self.store is not None and ticket is not None and not txn_id:
                number = self.store.number_of(ticket.tags)
            message, known, named = addressed(session, place.exchange, place.key, message, number)
        if not txn_id:
            self._send(place, known, (message,), ticket, named)
            return
        if known.onward is not None:
            raise LinkError(PRECONDITION_FAILED, f"exchange '{place.exchange}' takes nothing in a transaction")
        session.transactions.post(txn_id, known, message, named)
        if ticket is not None:
            outcome = _ACCEPTED if known.targets or place.is_topic else _RELEASED
            ticket.state = TransactionalState(txn_id=txn_id, outcome=outcome)
            ticket.pass_()

    def _refuse(self, ticket: Unsettled | None, error: Amqp10Error) -> None:
        """A message that no queue may have; one that was sent settled has nobody to tell but the link."""
        if ticket is None:
            raise error if isinstance(error, LinkError) else LinkError(error.condition, error.text)
        ticket.refuse(described(error))
        ticket.pass_()

    def interrupted(self) -> None:
        """The link is over for now: nothing of a delivery that is not whole is kept."""
        self.session.connection.decoder.close_link(self.incoming)
        self.incoming.owner = None
        if self.terminus is not None:
            self.terminus.left(self)

    def detached(self, closed: bool, then: Detached) -> None:
        """The client has detached the link (`closed`: for ever); `then` answers."""
        if self.terminus is None:
            then(None)
        else:
            self.terminus.detached(closed, then)


def check(attach: Attach) -> None:
    """Refuses an attach of a sender that cannot be. Raises LinkError."""
    if attach.initial_delivery_count is None:
        raise LinkError(INVALID_FIELD, "a sender says its initial-delivery-count")
    if attach.snd_settle_mode > MIXED or attach.rcv_settle_mode > 1:
        raise LinkError(INVALID_FIELD, "there is no such settle mode")


def no_address(message: str = "its properties have no `to`") -> LinkError:
    """A message to an anonymous target says where it goes."""
    return LinkError(PRECONDITION_FAILED, message)
