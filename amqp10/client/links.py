"""The two kinds of links, as this client's end of them (specification 2.6): values and counts, no bytes.

A link outlives its session here: `Session.attach` ties it to one, and to the next after a loss. What is unsettled stays
with it, so that its attach can say what is in doubt (`resuming`).

A delivery's `number` is its delivery-id, for as long as the present attach knows it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeAlias, TypeVar

from clusterbroker.amqp10.client.errors import ClientError, DeliveryLost, LinkDetached, ProtocolError
from clusterbroker.amqp10.client.message import place_of
from clusterbroker.amqp10.client.resuming import (
    Outcome,
    OwnMap,
    PeerMap,
    Series,
    State,
    is_outcome,
    plan_receiver,
    plan_sender,
)
from clusterbroker.amqp10.client.spent import SpentTags
from clusterbroker.broker.wire.amqp10.performatives import (
    Attach,
    Composite,
    Coordinator,
    Source,
    Target,
    TransactionalState,
    Transfer,
)
from clusterbroker.broker.wire.amqp10.serials import SERIALS
from clusterbroker.broker.wire.amqp10.types import DecodeError

TAG_BYTES_MAX: Final = 32
LINK_RECOVERY: Final = "clusterbroker:link-recovery"
"""Capability: links survive their connection, node and queue's owner."""
UNSETTLED, SETTLED, MIXED = 0, 1, 2
FIRST, SECOND = 0, 1


@dataclass(slots=True)
class Terms:
    """What a link's attach asks for, at each attach again."""

    name: str
    source: Source
    target: Target | Coordinator
    recoverable: bool = False
    snd_settle_mode: int = MIXED
    rcv_settle_mode: int = FIRST
    properties: Mapping[str, Any] | None = None
    capabilities: tuple[str, ...] = ()
    max_message_size: int | None = None


@dataclass(slots=True, eq=False)
class Outgoing:
    """A delivery that is sent. Its next transfers are `payload` from `at` on, with the fields behind it."""

    tag: bytes
    payload: bytes
    settled: bool = False
    posting: State = None
    """The transaction that it belongs to."""
    state: State = None
    """Its outcome."""
    number: int | None = None
    doubt: bool = False
    """Something of it may have reached the peer."""
    once: bool = False
    """No other delivery ever has its tag."""
    again: bool = False
    """The peer's map did not have it, and it is sent once more. An exchange does not know what its queues have: it is
    in doubt again if the connection is lost after the last map and before that."""
    at: int = 0
    begun: bool = False
    resume: bool = False
    resumed_state: State = None
    settles: bool = False
    """The transfer settles it: what was sent settled, and resumed deliveries that are decided."""


D = TypeVar("D", "Outgoing", "Incoming")


class LinkEnd(Generic[D]):
    """What the ends of both roles know of an attach, of its credit, and of what is unsettled."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.attached = False
        self.resumes = False
        """The next attach says what is unsettled, even if that is nothing."""
        self.credit = 0
        self.delivery_count = 0
        self.unsettled: dict[bytes, D] = {}
        """In the order in which they came about."""
        self.series = Series()

    def _forget(self, delivery: D) -> None:
        self.unsettled.pop(delivery.tag, None)
        self.series.settled(delivery.tag)

    def _unattached(self) -> None:
        self.attached, self.credit = False, 0
        self.series.detached()

    @property
    def wants_reattach(self) -> bool:
        """For the rest of an incomplete map."""
        return self.attached and self.series.is_over


class SenderLink(LinkEnd[Outgoing]):
    """This client sends."""

    role: Final = False

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self.resuming: deque[Outgoing] = deque()
        self.queue: deque[Outgoing] = deque()
        self.spent = SpentTags()

    def send(
        self, payload: bytes, tag: bytes, settled: bool = False, posting: State = None, once: bool = False
    ) -> Outgoing:
        """Takes a message, to be sent when there is credit; `once`: no other one ever has this tag. Raises
        ClientError."""
        if not 0 < len(tag) <= TAG_BYTES_MAX:
            raise ClientError(f"a delivery-tag has 1 to {TAG_BYTES_MAX} bytes, not {len(tag)}")
        if tag in self.unsettled:
            raise ClientError(f"the delivery-tag {tag!r} is in use by an unsettled delivery")
        if tag in self.spent:
            raise ClientError(f"the peer may still know the delivery before with the delivery-tag {tag!r}: use another")
        if self.spent.full and not once:
            raise ClientError(f"the peer has not forgotten {len(self.spent)} delivery-tags that were used before")
        delivery = Outgoing(tag, payload, settled, posting, settles=settled, once=once)
        if not settled:
            self.unsettled[tag] = delivery
        self.queue.append(delivery)
        return delivery

    def is_free(self, tag: bytes) -> bool:
        """Whether a delivery may have this tag now."""
        return tag not in self.unsettled and tag not in self.spent

    def _forget(self, delivery: Outgoing) -> None:
        if not delivery.once and self.unsettled.get(delivery.tag) is delivery:
            self.spent.add(delivery.tag, attached=self.attached)
        super()._forget(delivery)

    def restore(self, tag: bytes, payload: bytes, state: State) -> Outgoing:
        """A delivery of an earlier life of this client, which may have been sent."""
        self.resumes = True
        self.unsettled[tag] = delivery = Outgoing(tag, payload, state=state, doubt=True)
        return delivery

    def next(self) -> Outgoing | None:
        """The delivery whose turn it is, if it may be sent now."""
        line = self.resuming or (self.queue if self.series.waits is None else None)
        if not line or not (self.credit or line[0].begun):
            return None
        return line[0]

    def sent(self, delivery: Outgoing) -> list[LinkEvent]:
        """All of it is in frames."""
        line = self.resuming if self.resuming and self.resuming[0] is delivery else self.queue
        line.popleft()
        if not delivery.settles:
            return []
        told = delivery.resumed_state is None or delivery.state is not None
        delivery.state = delivery.state or delivery.resumed_state
        self._forget(delivery)
        return [Decided(self, delivery, True)] if not delivery.resume or not told else []

    def decided(self, delivery: Outgoing, state: State, settled: bool) -> list[LinkEvent]:
        """The peer's disposition."""
        outcome = state.outcome if isinstance(state, TransactionalState) else state
        told = delivery.state is not None
        if outcome is not None and (is_outcome(outcome)):
            delivery.state = outcome
        if settled:
            self._forget(delivery)
        elif not is_outcome(outcome):
            return []
        return [] if told else [Decided(self, delivery, settled)]

    def settle(self, tag: bytes) -> Outgoing | None:
        """Forgets a decided delivery; the delivery, if the peer has to hear of it by a disposition."""
        delivery = self.unsettled.get(tag)
        if delivery is None or not is_outcome(delivery.state):
            return None
        if delivery.resume and delivery.settles:
            return None  # a transfer on its way settles it
        self._forget(delivery)
        return delivery if delivery.number is not None else None

    def in_doubt(self) -> list[Outgoing]:
        return [known for known in self.unsettled.values() if known.doubt and not is_outcome(known.state)]

    def lost(self) -> None:
        """The session is gone, or the link attaches once more for the rest of a map. What was begun is in doubt, the
        rest waits."""
        self._unattached()
        self.spent.detached()
        self.resuming.clear()
        if self.queue and self.queue[0].begun:
            self.queue.popleft()
        for delivery in self.unsettled.values():
            delivery.number, delivery.begun, delivery.at = None, False, 0
            delivery.resume = delivery.settles = False
            delivery.doubt = delivery.doubt or (delivery.again and not self.series.has_decided(delivery.tag))
            delivery.resumed_state = None

    def abandon(self) -> list[Outgoing]:
        """Forgets what is in doubt, of a link that cannot resume it."""
        lost = self.in_doubt()
        for delivery in [each for each in self.unsettled.values() if each.doubt]:
            del self.unsettled[delivery.tag]
        return lost

    def map(self, size_max: int) -> OwnMap:
        return self.series.name([(each.tag, each.state) for each in self.unsettled.values() if each.doubt], size_max)

    def resume(self, peer: PeerMap) -> list[LinkEvent]:
        """The peer has attached: what becomes of what is in doubt. Raises ProtocolError."""
        plan = plan_sender(self.series.own, peer)
        again = [self.unsettled[tag] for tag in plan.again]
        for delivery in again:
            delivery.doubt, delivery.again = False, True
        fresh = [each for each in self.unsettled.values() if not each.doubt]
        rest = [each for each in self.queue if each.settled]
        self.queue = deque([*fresh, *rest])
        for tag, outcome in plan.outcomes.items():
            self._resume(self.unsettled[tag], outcome, settles=True)
        for tag in plan.settle:
            state = self.series.own.states[tag]  # the program may have settled it since our attach went out
            self._resume(self.unsettled.get(tag) or Outgoing(tag, b"", state=state), state, settles=True)
        for tag in plan.forget:
            if tag in self.unsettled:
                self._forget(self.unsettled[tag])
        for tag, place in plan.resume:
            delivery = self.unsettled[tag]
            if place is not None:
                try:
                    delivery.at = place_of(delivery.payload, place.section_number, place.section_offset)
                except DecodeError as error:
                    raise ProtocolError(str(error)) from None
            self._resume(delivery, place, settles=False)
        if plan.is_partial:
            self.series.never_arrived(plan.again)
            waits = {*plan.outcomes, *plan.settle, *(tag for tag, _ in plan.resume)}
            self.series.took(waits, bool(plan.forget or plan.again))
        else:
            self.series.completed()
        return []

    def _resume(self, delivery: Outgoing, state: State, settles: bool) -> None:
        delivery.resume, delivery.resumed_state, delivery.settles = True, state, settles
        if settles:
            delivery.at = len(delivery.payload)
        self.resuming.append(delivery)

    @property
    def wants_reattach(self) -> bool:
        return super().wants_reattach and not self.resuming


@dataclass(slots=True, eq=False)
class Incoming:
    """A delivery that is received. `state`: the outcome that it has here."""

    tag: bytes
    number: int | None
    parts: list[bytes] = field(default_factory=list)
    state: State = None
    settled: bool = False
    """By either side: nobody waits for an outcome."""
    told: bool = False
    """The program has it."""
    ignored: bool = False
    disposed: bool = False
    """Its outcome was said on the present attach."""
    left_out: bool = False
    """No map has named it since it came last: if the peer still holds it, it comes as if it were new."""

    @property
    def payload(self) -> bytes:
        return b"".join(self.parts)


class ReceiverLink(LinkEnd[Incoming]):
    """This client receives."""

    role: Final = True

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self.current: Incoming | None = None
        self.keeps = False
        """The peer sends what a complete map lacks as new deliveries: it offers to keep links."""
        self._leaves_out = False

    def restore(self, tag: bytes, state: State) -> None:
        """A delivery of an earlier life of this client, which has its outcome here."""
        self.resumes = True
        self.unsettled[tag] = Incoming(tag, None, state=state, told=True)

    def transferred(self, transfer: Transfer, payload: bytes) -> tuple[Incoming | None, list[LinkEvent]]:
        """A frame; the delivery, if this is its first. Raises ProtocolError."""
        first = self.current is None
        delivery = self.current = self.current or self._begin(transfer)
        if transfer.aborted:
            self.current = None
            if self.unsettled.get(delivery.tag) is delivery and not delivery.told:
                del self.unsettled[delivery.tag]
            return None, []
        if not (delivery.told or delivery.ignored):
            delivery.parts.append(payload)
        delivery.settled = delivery.settled or bool(transfer.settled)
        events: list[LinkEvent] = []
        if not transfer.more:
            self.current = None
            events = self._whole(delivery)
        return (delivery if first and not delivery.ignored else None), events

    def _begin(self, transfer: Transfer) -> Incoming:
        tag, number = transfer.delivery_tag, transfer.delivery_id
        if tag is None or number is None:
            raise ProtocolError("the first transfer of a delivery has no delivery-tag or no delivery-id")
        self.credit = max(0, self.credit - 1)
        self.delivery_count = (self.delivery_count + 1) % SERIALS
        known = self.unsettled.get(tag)
        if transfer.resume:
            if known is None:
                return Incoming(tag, number, ignored=True)
            known.number = number
            return known
        if known is not None and known.left_out:
            known.number, known.left_out = number, False
            return known
        if known is not None:
            raise ProtocolError(f"the delivery-tag {tag!r} is in use by an unsettled delivery")
        delivery = Incoming(tag, number)
        self.unsettled[tag] = delivery
        return delivery

    def _whole(self, delivery: Incoming) -> list[LinkEvent]:
        if delivery.ignored:
            return []
        if delivery.settled:
            self._forget(delivery)
        if not delivery.told:
            delivery.told = True
            return [Delivered(self, delivery)]
        return [Settled(self, delivery)] if delivery.settled else []

    def dispose(self, delivery: Incoming, state: Composite, settled: bool) -> bool:
        """Gives a delivery its outcome; whether a disposition is due now. Raises DeliveryLost, ClientError."""
        if delivery.settled:
            return False
        if self.unsettled.get(delivery.tag) is not delivery:
            raise DeliveryLost("the delivery was received on a connection that is gone: its outcome says nothing")
        if delivery.state is not None:
            raise ClientError("the delivery has an outcome already")
        if isinstance(state, TransactionalState) and delivery.number is None:
            raise DeliveryLost("a delivery of a lost connection takes part in no transaction")
        delivery.state = state
        if settled:
            delivery.settled = True
            self._forget(delivery)
        return delivery.number is not None

    def decided(self, delivery: Incoming, settled: bool) -> list[LinkEvent]:
        """The peer's disposition."""
        if not settled or self.unsettled.get(delivery.tag) is not delivery:
            return []
        delivery.settled = True
        self._forget(delivery)
        return [Settled(self, delivery)]

    def lost(self) -> None:
        """As of a sender's link. A delivery that was not whole comes again from its start."""
        self._unattached()
        if self.current is not None and not self.current.told:
            self.unsettled.pop(self.current.tag, None)
        self.current = None
        for delivery in self.unsettled.values():
            delivery.number, delivery.disposed = None, False

    def abandon(self) -> list[Incoming]:
        lost = list(self.unsettled.values())
        self.unsettled.clear()
        return lost

    def map(self, size_max: int) -> OwnMap:
        """Of what the program has in hand without an outcome a map says nothing that the peer does not know. Where it
        has no room, it is left out, and comes once more: otherwise a program that collects would wait for ever, for
        nothing new comes while a map is incomplete."""
        known = [(each.tag, each.state) for each in self.unsettled.values()]
        own = self.series.name(known, size_max)
        if not self.keeps or not (own.incomplete or self._leaves_out):
            return own
        for each in self.unsettled.values():
            each.left_out = each.left_out or each.state is None
        return self.series.name([one for one in known if one[1] is not None], size_max)

    def resume(self, peer: PeerMap) -> list[LinkEvent]:
        plan = plan_receiver(self.series.own, peer)
        events: list[LinkEvent] = []
        awaited = [known for tag in plan.awaited if (known := self.unsettled.get(tag)) is not None]
        for known in awaited:
            known.left_out = False
        for tag in (*plan.settled, *plan.lost):
            delivery = self.unsettled.pop(tag, None)
            if delivery is None:
                continue  # the program has settled it since our attach went out
            if tag in plan.settled and not delivery.left_out:
                delivery.settled = True
                events.append(Settled(self, delivery))
            else:
                events.append(Lost(self, delivery))
        if not plan.is_partial:
            self._leaves_out = False
            self.series.completed()
            return events
        in_hand = [known.tag for known in awaited if known.state is None] if self.keeps else []
        self._leaves_out = self._leaves_out or bool(in_hand)
        self.series.took(plan.awaited.difference(in_hand), bool(events or in_hand))
        return events


Link: TypeAlias = SenderLink | ReceiverLink


# -- events


@dataclass(frozen=True, slots=True)
class Attached:
    """The link is usable; `attach` is the peer's. With deliveries in doubt it comes before what is decided of them."""

    link: Link
    attach: Attach


@dataclass(frozen=True, slots=True)
class Detached:
    """`error` None: this side has detached it."""

    link: Link
    error: LinkDetached | None


@dataclass(frozen=True, slots=True)
class Decided:
    """A delivery that was sent has an outcome. Settled by the peer: forgotten here too; otherwise `SenderLink.settle`
    is due."""

    link: SenderLink
    delivery: Outgoing
    settled: bool


@dataclass(frozen=True, slots=True)
class Delivered:
    """A whole message, once; `Incoming.payload` has it."""

    link: ReceiverLink
    delivery: Incoming


@dataclass(frozen=True, slots=True)
class Settled:
    """The peer has settled a delivery that was received: the outcome that it had here is carried out."""

    link: ReceiverLink
    delivery: Incoming


@dataclass(frozen=True, slots=True)
class Lost:
    """The peer does not hold this delivery any more, and never had an outcome for it."""

    link: ReceiverLink
    delivery: Incoming


@dataclass(frozen=True, slots=True)
class Drained:
    link: ReceiverLink


LinkEvent: TypeAlias = Attached | Detached | Decided | Delivered | Settled | Lost | Drained
"""What a link tells, in the order in which it came about."""


def due(link: ReceiverLink) -> Iterator[tuple[Incoming, Outcome]]:
    """Deliveries whose outcome the peer has not heard on this attach, though it knows their delivery-id."""
    for delivery in link.unsettled.values():
        if delivery.number is not None and delivery.state is not None and not delivery.disposed:
            yield delivery, delivery.state
