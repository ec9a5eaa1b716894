"""One session: windows, handles, delivery-ids, and the frames of its links (specification 2.5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from clusterbroker.amqp10.client.errors import LinkDetached, PeerError, ProtocolError, SessionEnded
from clusterbroker.amqp10.client.links import (
    LINK_RECOVERY,
    SECOND,
    Attached,
    Detached,
    Drained,
    Incoming,
    Link,
    LinkEvent,
    Outgoing,
    ReceiverLink,
    SenderLink,
    due,
)
from clusterbroker.amqp10.client.resuming import State, peer_map
from clusterbroker.amqp10.client.spent import FORGOTTEN
from clusterbroker.broker.wire.amqp10.errors import NOT_ALLOWED
from clusterbroker.broker.wire.amqp10.performatives import (
    Attach,
    Begin,
    Composite,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    TransactionalState,
    Transfer,
)
from clusterbroker.broker.wire.amqp10.serials import SERIALS, distance, room
from clusterbroker.broker.wire.numbers import UInt64

WINDOW: Final = 8192
"""Transfer frames that the peer may send before it hears of the session again."""
OUTGOING_WINDOW: Final = (1 << 31) - 1
ATTACH_ROOM: Final = 64
"""Bytes of a frame's head, and of what a map adds to its attach besides entries."""


class _Pending(NamedTuple):
    """Neighbouring dispositions of one state, not said yet."""

    role: bool
    first: int
    last: int
    settled: bool
    state: State


class Session:
    """`write(performative, payload)` takes frames of this session; `frame_max`: the peer's largest."""

    def __init__(self, channel: int, write: Callable[[int, Composite, bytes], None]) -> None:
        self.channel = channel
        self.frame_max = 512
        self.begun = False
        self.over = False
        self.links: dict[int, Link] = {}
        """By our handle."""
        self._theirs: dict[int, Link] = {}
        self._leaving: dict[int, bool] = {}
        """Our handles whose detach is said; whether the link attaches again afterwards."""
        self._write = write
        self._next_handle = 0
        self._next_delivery = 0
        self._next_outgoing = 0
        self._next_incoming = 0
        self._incoming_window = WINDOW
        self._remote_window = 0
        self._sent: dict[int, tuple[SenderLink, Outgoing]] = {}
        self._received: dict[int, tuple[ReceiverLink, Incoming]] = {}
        self._pending: _Pending | None = None

    def _say(self, performative: Composite, payload: bytes = b"") -> None:
        self.flush()
        self._write(self.channel, performative, payload)

    def begin(self) -> None:
        self._say(Begin(next_outgoing_id=0, incoming_window=WINDOW, outgoing_window=OUTGOING_WINDOW))

    def end(self) -> None:
        self._say(End())

    # -- links

    def attach(self, link: Link) -> None:
        """Ties a link to this session; `Attached` or `Detached` will tell."""
        handle, self._next_handle = self._next_handle, self._next_handle + 1
        self.links[handle] = link
        terms = link.terms
        attach = Attach(
            name=terms.name, handle=handle, role=link.role, snd_settle_mode=terms.snd_settle_mode,
            rcv_settle_mode=terms.rcv_settle_mode, source=terms.source, target=terms.target,
            initial_delivery_count=None if link.role else 0, max_message_size=terms.max_message_size,
            desired_capabilities=terms.capabilities,
            properties=None if terms.properties is None else {**terms.properties},
        )  # fmt: skip
        if link.resumes and terms.recoverable:
            own = link.map(self.frame_max - len(attach.encoded()) - ATTACH_ROOM)
            attach.unsettled, attach.incomplete_unsettled = dict(own.states), own.incomplete
        self._say(attach)

    def detach(self, link: Link, closed: bool = True, again: bool = False) -> None:
        """`again`: attached anew when the peer has answered."""
        handle = self._handle_of(link)
        if handle is not None and handle not in self._leaving:
            self._leaving[handle] = again
            self._say(Detach(handle=handle, closed=closed))

    def _handle_of(self, link: Link) -> int | None:
        return next((handle for handle, known in self.links.items() if known is link), None)

    # -- what the peer says

    def received(self, performative: Composite, payload: bytes) -> list[SessionEvent]:
        """Raises ProtocolError."""
        match performative:
            case Begin():
                self.begun = True
                self._next_incoming = performative.next_outgoing_id
                self._remote_window = performative.incoming_window
                return [Begun(self)]
            case Attach():
                return self._attached(performative)
            case Flow():
                return self._flow(performative)
            case Transfer():
                return self._transferred(performative, payload)
            case Disposition():
                return self._disposition(performative)
            case Detach():
                return self._detached(performative)
            case End():
                self.over = True
                error = SessionEnded.of(performative.error, "the peer ended the session")
                return [Ended(self, None if performative.error is None else error)]
        raise ProtocolError(f"{performative.NAME} belongs to no session")

    def _attached(self, attach: Attach) -> list[SessionEvent]:
        link = next(
            (
                known
                for handle, known in self.links.items()
                if known.terms.name == attach.name and known.role is not attach.role and handle not in self._leaving
            ),
            None,
        )
        if link is None:
            self._refuse(attach)
            return []
        self._theirs[attach.handle] = link
        if (attach.source is None and link.role) or (attach.target is None and not link.role):
            return []  # its detach, with the error, follows (2.6.3)
        link.attached = True
        keeps = link.terms.recoverable and LINK_RECOVERY in attach.offered_capabilities
        if isinstance(link, SenderLink):
            link.spent.answers = keeps
        else:
            link.keeps = keeps
        link.delivery_count = (attach.initial_delivery_count or 0) if link.role else 0
        events: list[SessionEvent] = [Attached(link, attach)]
        if link.terms.recoverable and link.resumes:
            events += link.resume(peer_map(attach.unsettled, attach.incomplete_unsettled))
        link.resumes = link.terms.recoverable
        return events + self.pump()

    def _refuse(self, attach: Attach) -> None:
        """The peer attaches a link of its own."""
        handle, self._next_handle = self._next_handle, self._next_handle + 1
        self._say(Attach(name=attach.name, handle=handle, role=not attach.role, initial_delivery_count=0))
        error = Error(condition=NOT_ALLOWED, description="this client takes no links")
        self._say(Detach(handle=handle, closed=True, error=error))

    def _detached(self, detach: Detach) -> list[SessionEvent]:
        link = self._theirs.pop(detach.handle, None)
        handle = None if link is None else self._handle_of(link)
        if link is None or handle is None:
            return []
        del self.links[handle]
        asked = self._leaving.pop(handle, None)
        self._cut(link)
        if asked is None:
            self._say(Detach(handle=handle, closed=detach.closed))
            return [Detached(link, LinkDetached.of(detach.error, "the peer detached the link"))]
        if asked and detach.error is None:
            self.attach(link)
            return []
        error = None if detach.error is None else LinkDetached.of(detach.error, "the peer detached the link")
        return [Detached(link, error)]

    def _cut(self, link: Link) -> None:
        """Delivery-ids of the link are void."""
        link.lost()
        self._sent = {number: entry for number, entry in self._sent.items() if entry[0] is not link}
        self._received = {number: entry for number, entry in self._received.items() if entry[0] is not link}

    def lost(self) -> None:
        """The connection is gone."""
        self.over = True
        for link in self.links.values():
            link.lost()

    # -- flow control

    def _flow(self, flow: Flow) -> list[SessionEvent]:
        base = 0 if flow.next_incoming_id is None else flow.next_incoming_id
        self._remote_window = room(self._next_outgoing, base, flow.incoming_window)
        events: list[SessionEvent] = []
        link = None if flow.handle is None else self._theirs.get(flow.handle)
        if link is not None and self._handle_of(link) in self._leaving:
            link = None  # the peer knows its handle no more when an answer comes
        if isinstance(link, SenderLink):
            if flow.properties and (number := flow.properties.get(FORGOTTEN)) is not None:
                link.spent.answered(number)
            link.credit = room(link.delivery_count, flow.delivery_count or 0, flow.link_credit or 0)
            events = self.pump()
            if flow.drain and link.credit:
                link.delivery_count = (link.delivery_count + link.credit) % SERIALS
                link.credit = 0
                self._tell(link, drain=True)
        elif isinstance(link, ReceiverLink):
            if flow.delivery_count is not None:
                passed = distance(link.delivery_count, flow.delivery_count)
                if passed > 0:
                    link.delivery_count = flow.delivery_count
                    link.credit = max(0, link.credit - passed)
            if flow.drain and not link.credit:
                events = [Drained(link)]
        else:
            events = self.pump()
        if flow.echo:
            self._tell(link)
        return events

    def _tell(
        self, link: Link | None = None, drain: bool = False, echo: bool = False,
        properties: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        handle = None if link is None else self._handle_of(link)
        self._incoming_window = WINDOW
        self._say(
            Flow(
                next_incoming_id=self._next_incoming if self.begun else None,
                incoming_window=self._incoming_window,
                next_outgoing_id=self._next_outgoing,
                outgoing_window=OUTGOING_WINDOW,
                handle=handle,
                delivery_count=None if link is None or handle is None else link.delivery_count,
                link_credit=None if link is None or handle is None else link.credit,
                drain=drain,
                echo=echo,
                properties=properties,
            )
        )

    def grant(self, link: ReceiverLink, credit: int, drain: bool = False) -> None:
        """Lets the peer send so many deliveries from now on; `drain`: what is not there is given up at once."""
        if link.attached and self._handle_of(link) not in self._leaving:
            link.credit = credit
            self._tell(link, drain)

    # -- transfers that we send

    def pump(self) -> list[SessionEvent]:
        """Sends what windows and credit allow."""
        events: list[SessionEvent] = []
        for handle, link in list(self.links.items()):
            if handle in self._leaving or not link.attached:
                continue
            if isinstance(link, SenderLink):
                while self._remote_window > 0 and (delivery := link.next()) is not None:
                    events += self._transfer(handle, link, delivery)
                self._ask_forgotten(link)
            self._review(link)
        return events

    def _transfer(self, handle: int, link: SenderLink, delivery: Outgoing) -> list[SessionEvent]:
        transfer = Transfer(handle=handle)
        if not delivery.begun:
            number, self._next_delivery = self._next_delivery, (self._next_delivery + 1) % SERIALS
            delivery.begun = delivery.doubt = True
            link.credit -= 1
            link.delivery_count = (link.delivery_count + 1) % SERIALS
            transfer.delivery_id, transfer.delivery_tag, transfer.message_format = number, delivery.tag, 0
            transfer.state = delivery.resumed_state if delivery.resume else delivery.posting
            if not delivery.settles:
                delivery.number = number
                self._sent[number] = link, delivery
        transfer.settled, transfer.resume = delivery.settles, delivery.resume
        room = self.frame_max - 8 - len(transfer.encoded()) - 4
        end = min(len(delivery.payload), delivery.at + room)
        transfer.more = end < len(delivery.payload)
        self._say(transfer, delivery.payload[delivery.at : end])
        delivery.at = end
        self._next_outgoing = (self._next_outgoing + 1) % SERIALS
        self._remote_window -= 1
        return [] if transfer.more else [*link.sent(delivery)]

    # -- transfers that come

    def _transferred(self, transfer: Transfer, payload: bytes) -> list[SessionEvent]:
        link = self._theirs.get(transfer.handle)
        self._next_incoming = (self._next_incoming + 1) % SERIALS
        self._incoming_window -= 1
        if not isinstance(link, ReceiverLink):
            raise ProtocolError(f"a transfer on the handle {transfer.handle}, which no receiving link has")
        if self._handle_of(link) in self._leaving and link.current is None and not transfer.resume:
            return []  # on its way when the link was detached: it comes again, or to somebody else
        delivery, events = link.transferred(transfer, payload)
        if delivery is not None and delivery.number is not None and not delivery.settled:
            self._received[delivery.number] = link, delivery
        if self._incoming_window <= WINDOW // 2:
            self._tell()
        if transfer.resume or (delivery is not None and delivery.state is not None):
            self._dispose_due(link)
        return [*events, *(self.pump() if link.wants_reattach else [])]

    def _dispose_due(self, link: ReceiverLink) -> None:
        for delivery, state in due(link):
            self.dispose(link, delivery, state, False)

    # -- dispositions

    def _disposition(self, said: Disposition) -> list[SessionEvent]:
        last = said.first if said.last is None else said.last
        events: list[SessionEvent] = []
        for number in self._range(self._sent if said.role else self._received, said.first, last):
            if said.role:
                link, delivery = self._sent[number]
                if said.settled:
                    del self._sent[number]
                events += link.decided(delivery, said.state, said.settled)
            else:
                receiver, incoming = self._received[number]
                if said.settled:
                    del self._received[number]
                events += receiver.decided(incoming, said.settled)
        return events + self.pump()

    @staticmethod
    def _range(known: dict[int, Any], first: int, last: int) -> list[int]:
        """The known ids of a range, whichever is shorter to go through."""
        count = (last - first) % SERIALS + 1
        if count <= len(known):
            return [number for step in range(count) if (number := (first + step) % SERIALS) in known]
        return [number for number in known if (number - first) % SERIALS < count]

    def dispose(self, link: ReceiverLink, delivery: Incoming, state: Composite, settled: bool) -> None:
        """Says the outcome of a delivery that was received; `link.dispose` has found that it is due."""
        assert delivery.number is not None, "the peer knows the delivery on this attach"
        delivery.disposed = True
        if settled or link.terms.rcv_settle_mode != SECOND:
            self._received.pop(delivery.number, None)
        self._queue(_Pending(True, delivery.number, delivery.number, settled, state))

    def settle(self, delivery: Outgoing) -> None:
        """Settles a delivery that was sent, in mode second, once its outcome is known."""
        if delivery.number is None or delivery.number not in self._sent:
            return
        link, _ = self._sent.pop(delivery.number)
        self._queue(_Pending(False, delivery.number, delivery.number, True, delivery.state))
        self._ask_forgotten(link)
        self._review(link)

    def _ask_forgotten(self, link: SenderLink) -> None:
        """What is settled by now, may its tags be used again?"""
        if self._handle_of(link) not in self._leaving and (number := link.spent.ask()) is not None:
            self._tell(link, properties={FORGOTTEN: UInt64(number)})

    def _review(self, link: Link) -> None:
        """What the incomplete maps of this attach have named is decided: the next attach has the rest."""
        if link.wants_reattach:
            self.detach(link, closed=False, again=True)

    def _queue(self, one: _Pending) -> None:
        known = self._pending
        if (
            known is not None
            and (known.role, known.settled) == (one.role, one.settled)
            and (known.last + 1) % SERIALS == one.first
            and not isinstance(one.state, TransactionalState)
            and known.state == one.state
        ):
            self._pending = known._replace(last=one.last)
            return
        self.flush()
        self._pending = one

    def flush(self) -> None:
        """Dispositions that wait for their neighbours go out."""
        known, self._pending = self._pending, None
        if known is not None:
            last = known.last if known.last != known.first else None
            said = Disposition(role=known.role, first=known.first, last=last, settled=known.settled, state=known.state)
            self._write(self.channel, said, b"")


# -- events


@dataclass(frozen=True, slots=True)
class Begun:
    session: Session


@dataclass(frozen=True, slots=True)
class Ended:
    session: Session
    error: PeerError | None


SessionEvent: TypeAlias = LinkEvent | Begun | Ended
