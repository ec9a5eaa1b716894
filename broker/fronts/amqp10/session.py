"""One session: its windows, its links by handle, and what its deliveries come to (specification 2.5, 2.6).

    incoming    each transfer frame takes one from `incoming_window`; at half of it the client hears of a full one
    outgoing    the ledger's `window`: as many transfer frames as the client has said (2.5.6), counted where they begin
    links       by handle, and those whose client is away (`links`)

A session is the unit that access knows (`broker.access.publisher.Session` and others). Its performatives take effect
one after another; an attach waits for its queue's owner without holding up the other links.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.access.authorization import OVER
from clusterbroker.broker.access.publisher import Publisher
from clusterbroker.broker.access.receiver import give_back
from clusterbroker.broker.access.timeouts import check_timeouts
from clusterbroker.broker.fronts.amqp10 import attaching
from clusterbroker.broker.fronts.amqp10.addresses import Target as Place
from clusterbroker.broker.fronts.amqp10.changing import modify, reject, return_together, settle_together
from clusterbroker.broker.fronts.amqp10.conditions import described
from clusterbroker.broker.fronts.amqp10.delivery import SessionLedger
from clusterbroker.broker.fronts.amqp10.expiry import Event
from clusterbroker.broker.fronts.amqp10.links import Link, Links
from clusterbroker.broker.fronts.amqp10.outcomes import Outcomes
from clusterbroker.broker.fronts.amqp10.ports import ConnectionCore
from clusterbroker.broker.fronts.amqp10.receiver_link import ReceiverLink
from clusterbroker.broker.fronts.amqp10.resuming import WITHDRAWN
from clusterbroker.broker.fronts.amqp10.sender_link import SenderLink
from clusterbroker.broker.fronts.amqp10.transacting import Transactions
from clusterbroker.broker.node.backpressure import Backpressure
from clusterbroker.broker.node.counts import ChannelCounts
from clusterbroker.broker.node.links import Identity, Name
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.queues.watch import Traced
from clusterbroker.broker.routing.router import Route
from clusterbroker.broker.stats.totals import MessageTotals
from clusterbroker.broker.wire.amqp10.codec import Disposed, Transferred
from clusterbroker.broker.wire.amqp10.errors import (
    INVALID_FIELD,
    NOT_ALLOWED,
    RESOURCE_LIMIT,
    UNKNOWN_ID,
    WINDOW_VIOLATION,
    Amqp10Error,
    LinkError,
    SessionError,
    not_allowed,
)
from clusterbroker.broker.wire.amqp10.frames import accepted
from clusterbroker.broker.wire.amqp10.performatives import (
    OUTCOMES,
    UINT_MAX,
    Accepted,
    Attach,
    Begin,
    Composite,
    Detach,
    Disposition,
    End,
    Flow,
    Modified,
    Received,
    Rejected,
    Released,
    TransactionalState,
    Transfer,
)
from clusterbroker.broker.wire.amqp10.serials import SERIALS, distance, room
from clusterbroker.journal.record import Message

if TYPE_CHECKING:
    from clusterbroker.broker.access.authorization import Authorization

WINDOW: Final = 2048
OUTGOING_WINDOW: Final = 2**31 - 1
SENDER: Final = False
"""Role of who answers for deliveries that go out (2.8.1)."""


class Session:
    """A session's state."""

    __slots__ = (
        "access", "closing", "connection", "consumers", "counts", "deadlines", "incoming_window", "ledger", "links",
        "next_incoming_id", "number", "outcomes", "outgoing_number", "publisher", "reply_key", "table", "traced",
        "transactions",
    )  # fmt: skip

    def __init__(self, connection: ConnectionCore, number: int, outgoing_number: int, begin: Begin) -> None:
        self.connection = connection
        self.access: Authorization = connection.access
        self.number = number
        """The client's channel; ours is `outgoing_number`."""
        self.outgoing_number = outgoing_number
        self.ledger = SessionLedger(outgoing_number, connection.out)
        self.ledger.took = connection.access.rights.took
        self.ledger.window = min(begin.incoming_window, UINT_MAX)
        self.next_incoming_id = int(begin.next_outgoing_id)
        self.incoming_window = WINDOW
        self.table = Links(self)
        self.links = self.table.by_handle
        self.consumers = self.table.receivers
        self.counts = ChannelCounts()
        self.deadlines: list[Callable[[int], bool]] = []
        self.closing = False
        self.reply_key = ""
        self.publisher = Publisher(self, connection.container_id)
        self.outcomes = Outcomes(self._want_flush)
        self.transactions = Transactions(self)
        self.traced: Traced | None = None

    # -- performatives in

    def begun(self, begin: Begin) -> Begin:
        """The answer to the client's begin."""
        return Begin(
            remote_channel=self.number,
            next_outgoing_id=self.ledger.next_outgoing_id,
            incoming_window=WINDOW,
            outgoing_window=OUTGOING_WINDOW,
            handle_max=min(attaching.HANDLE_MAX, begin.handle_max),
        )

    def receive(self, performative: Composite, payload: bytes) -> None:
        """Raises ConnectionFault10 and SessionError; a LinkError ends its link here."""
        kind = type(performative)
        if self.closing:
            if kind is End:
                self.connection.channel_gone(self)
            return
        handler = _HANDLERS.get(kind)
        if handler is None:
            raise not_allowed(f"{performative.NAME} within a session")
        handler(self, performative, payload)

    def _flow(self, flow: Flow, _: bytes) -> None:
        ledger = self.ledger
        self.next_incoming_id = int(flow.next_outgoing_id)
        taken = 0 if flow.next_incoming_id is None else flow.next_incoming_id
        opens = not ledger.window
        ledger.window = room(ledger.next_outgoing_id, taken, flow.incoming_window)
        if ledger.is_cut:
            ledger.go_on()
            self.want_send()
            self.mark_consumers()
            self.review_credit()
        if opens and ledger.window:
            self.mark_consumers()
        if flow.handle is None:
            if flow.echo:
                self.send(self.flow())
            return
        link = self.table.find(flow.handle)
        if link is not None:
            link.flow(flow)

    def _detach(self, detach: Detach, _: bytes) -> None:
        self.table.detach(detach)

    def _end(self, _: End, __: bytes) -> None:
        self.end(counted=False, event=Event.END)
        self.send(End())
        self.closing = True
        self.connection.channel_gone(self)

    # -- deliveries that come

    def transferred(self, batch: Transferred) -> None:
        """Transfers of one link, as the decoder reads them."""
        self._count_frames(batch.frames)
        link: SenderLink | None = batch.link.owner
        if link is not None:  # an event before this one may have detached it
            try:
                link.transferred(batch)
            except LinkError as error:
                self.cut(link, error)
        self._review_window()

    def _count_frames(self, count: int) -> None:
        self.next_incoming_id = (self.next_incoming_id + count) % SERIALS
        self.incoming_window -= count
        if self.incoming_window < 0:
            raise SessionError(WINDOW_VIOLATION, "more transfers than the incoming-window")

    def _review_window(self) -> None:
        """The client hears of a full window when half of it is used, unless a link's flow has said so."""
        if self.incoming_window <= WINDOW // 2 and not self.closing and not self.transactions.order.waits:
            self.send(self.flow())

    def eased(self) -> None:
        """Nothing waits any more for a transaction (`sending_order`)."""
        if self.connection.ending is None:
            self._review_window()
            self.connection.review_reading()
            self.want_send()
        if not self.closing:
            self.review_credit()

    def _transfer(self, transfer: Transfer, payload: bytes) -> None:
        """One that has something unusual about it."""
        self._count_frames(1)
        link = self.table.find(transfer.handle)
        if link is None:
            self._review_window()
            return
        try:
            if isinstance(link, SenderLink):
                self.connection.decoder.take(link.incoming)
            else:
                raise LinkError(NOT_ALLOWED, "a transfer on a link whose receiver is the client")
            self._gather(link, transfer, payload)
        except LinkError as error:
            self.cut(link, error)
        self._review_window()

    def _gather(self, link: SenderLink, transfer: Transfer, payload: bytes) -> None:
        decoder, incoming = self.connection.decoder, link.incoming
        known = (incoming.delivery_id, incoming.tag) if incoming.partial else (None, None)
        for name, told, before in zip(("id", "tag"), (transfer.delivery_id, transfer.delivery_tag), known, strict=True):
            if told is None and before is None:
                raise LinkError(INVALID_FIELD, f"the first transfer of a delivery has no delivery-{name}")
            if told is not None and before is not None and told != before:
                raise LinkError(INVALID_FIELD, f"a transfer has another delivery-{name} than its delivery")
        if transfer.aborted:
            link.posting = b""
            decoder.abort(incoming)
            link.returned()
            return
        if isinstance(transfer.state, TransactionalState):
            self.transactions.find(transfer.state.txn_id)
            link.posting = transfer.state.txn_id
        if not incoming.partial:
            link.begin(transfer)
        # one that is passed over is resumed in vain: its bytes mean nothing
        decoder.extend(incoming, b"" if link.ignores else payload, bool(transfer.settled))
        if link.ignores:
            if not transfer.more:
                number, tag, settled = incoming.delivery_id, incoming.tag, incoming.settled
                decoder.abort(incoming)
                link.repeated(number, tag, settled)
            return
        if not transfer.more:
            txn_id, link.posting = link.posting, b""
            link.transferred(decoder.finish(incoming, self.access.node.now_ms), txn_id)

    # -- deliveries that went out

    def disposed(self, event: Disposed) -> None:
        """Outcomes without anything unusual about them, of a receiver."""
        state: Composite | None = {Accepted.CODE: _ACCEPTED, Released.CODE: _RELEASED}.get(event.outcome)
        usual = state is _ACCEPTED
        for link in self.consumers.values():
            usual = usual and not (link.rcv_second or link.is_choosy)
        if usual:
            self.counts.ack += self.ledger.settle(event)
            if not event.settled:
                for first, last in event.ranges:
                    self._answer(first, last, _ACCEPTED)
            return
        for first, last in event.ranges:
            self._settle(first, last, state, event.settled)

    def _disposition(self, disposition: Disposition, _: bytes) -> None:
        first = int(disposition.first)
        last = first if disposition.last is None else int(disposition.last)
        if distance(first, last) < 0:
            raise SessionError(INVALID_FIELD, f"a disposition of {first} to {last}")
        if not disposition.role:
            if disposition.settled:
                self.outcomes.settle(first, last)
            return
        self._settle(first, last, disposition.state, disposition.settled)

    def _settle(self, first: int, last: int, state: Any, settled: bool) -> None:
        """The client says what becomes of these deliveries; ids that are not outstanding mean nothing."""
        if isinstance(state, TransactionalState):
            self._retire(first, last, state, settled)
            return
        if state is None or isinstance(state, Received):
            if not settled:
                return
            state = None
        elif not isinstance(state, OUTCOMES):
            raise SessionError(INVALID_FIELD, "a disposition's state is no outcome")
        entries = self.ledger.take(first, last)
        by_link: dict[Any, list[Any]] = {}
        for entry in entries:
            by_link.setdefault(entry[1].owner, []).append(entry)
        has_second = any(link.rcv_second for link in by_link)
        for link, own in by_link.items():
            outcome = state if state is not None else link.default_outcome
            if state is not None and not link.takes(outcome):
                self.ledger.restore(own, self.access.node.now_ms)
                self.cut(link, LinkError(INVALID_FIELD, f"{outcome.NAME} is none of the source's outcomes"))
                continue
            self._carry_out(own, outcome, link.rcv_second and not settled)
            if not settled and has_second and not link.rcv_second:
                self._tell(own, outcome)
        if not settled and not has_second:
            self._answer(first, last, state)

    def _retire(self, first: int, last: int, state: TransactionalState, settled: bool) -> None:
        """These deliveries have their outcome when the transaction is committed."""
        if state.txn_id not in self.transactions.open:
            raise SessionError(UNKNOWN_ID, f"no transaction {state.txn_id.hex()} in this session")
        entries = self.ledger.take(first, last)
        outcome = state.outcome if isinstance(state.outcome, Composite) else _ACCEPTED
        self.transactions.retire(state.txn_id, entries, outcome, settled)
        if not settled:
            self.send(Disposition(role=SENDER, first=first, last=last, settled=False, state=state))

    def _carry_out(self, entries: Sequence[Any], outcome: Composite, told: bool) -> None:
        """`told`: the client hears when it is committed on the copies in sync (rcv-settle-mode second)."""
        node = self.access.node
        if isinstance(outcome, Accepted):
            self.counts.ack += len(entries)
        if told and isinstance(outcome, Accepted | Rejected):
            settle_together(node, entries, outcome, partial(self._settled, outcome))
            return
        if told:
            return_together(node, entries, outcome, lambda done: self._tell(done, outcome), may_come_again=True)
            return
        if isinstance(outcome, Accepted):
            for _, consumer, seq in entries:
                consumer.ring.owner.settle(seq)
                consumer.ring.mark()
        elif isinstance(outcome, Rejected):
            reject(node, entries, outcome)
        elif isinstance(outcome, Modified):
            modify(node, entries, outcome)
        else:
            give_back(node, entries, requeue=True, counted=False)

    def carry_out(self, entries: Sequence[Any], outcome: Composite) -> None:
        """What a client says of deliveries as it comes back."""
        self._carry_out(entries, outcome, told=False)

    def _settled(self, outcome: Composite, done: Sequence[Any], void: Sequence[Any]) -> None:
        """Of deliveries that this node does not hold any more, an attached link's client hears that they are not
        its; one that comes back hears it then."""
        self._tell(done, outcome)
        self._tell([entry for entry in void if entry[1].owner.attached], WITHDRAWN)

    def _tell(self, entries: Sequence[Any], outcome: Composite) -> None:
        """These deliveries are settled here too."""
        if self.closing or self.connection.ending is not None:
            return
        ids = [(tag - 1) % SERIALS for tag, _, _ in entries]
        place = 0
        while place < len(ids):
            behind = place + 1
            while behind < len(ids) and ids[behind] == ids[behind - 1] + 1:
                behind += 1
            self._answer(ids[place], ids[behind - 1], outcome)
            place = behind

    def _answer(self, first: int, last: int, state: Composite | None) -> None:
        if type(state) is Accepted:
            self.connection.out.raw(accepted(self.outgoing_number, SENDER, first, last, True))
            self.want_send()
        else:
            self.send(Disposition(role=SENDER, first=first, last=last, settled=True, state=state))

    # -- output

    def send(self, performative: Composite) -> None:
        self.connection.send(self.outgoing_number, performative)

    def want_send(self) -> None:
        self.access.node.sending[self.connection] = None

    def flow(
        self,
        handle: int | None = None,
        delivery_count: int | None = None,
        link_credit: int | None = None,
        *,
        drain: bool = False,
        echo: bool = False,
    ) -> Flow:
        """Where the session is, and one of its links. Half of the incoming window is used: it is full again."""
        if self.incoming_window <= WINDOW // 2 and not self.transactions.order.waits:
            self.incoming_window = WINDOW
        return Flow(
            next_incoming_id=self.next_incoming_id,
            incoming_window=self.incoming_window,
            next_outgoing_id=self.ledger.next_outgoing_id,
            outgoing_window=OUTGOING_WINDOW,
            handle=handle,
            delivery_count=delivery_count,
            link_credit=link_credit,
            drain=drain,
            echo=echo,
        )

    def _want_flush(self) -> None:
        self.access.node.confirming[self] = None

    def flush_confirms(self) -> None:
        if self.closing or self.connection.ending is not None:
            return
        frames, count = self.outcomes.flush(self.outgoing_number, self.connection.out.frame_max)
        self.counts.confirm += count
        self.connection.out.raw(frames)
        self.table.prove(self.access.node.now_ms)
        self.want_send()

    # -- links

    def identity(self, name: str, role: bool) -> Identity:
        """Of a link of this session; a container without a name is its connection."""
        connection = self.connection
        container = connection.container_id or f"\0{connection.id}"
        return Identity(Name(self.vhost_name, container, name, role), self.access.principal)

    def cut(self, link: Link, error: Amqp10Error) -> None:
        """The node ends a link; the session lives."""
        self.table.cut(link, error)

    def refuse(self, attach: Attach, error: LinkError) -> None:
        """A link that cannot be."""
        self.table.refuse(attach, error)

    def review_rights(self) -> None:
        """A permission changed: links whose user may not go on with them end."""
        self.table.review_rights()

    def review_credit(self) -> None:
        """Publishers may go on, perhaps."""
        self.table.review_credit()

    def withhold_credit(self) -> None:
        """Publishers have to wait for an alarm's end."""
        self.table.withhold_credit()

    def mark_consumers(self) -> None:
        """Their queues may hand out again."""
        self.table.mark_consumers()

    # -- what access asks of a session

    @property
    def vhost_name(self) -> str:
        return self.access.vhost.name

    @property
    def backpressure(self) -> Backpressure:
        return self.connection.backpressure

    @property
    def holds_publishers(self) -> bool:
        """No sender gets credit now."""
        return self.connection.holds_publishers

    @property
    def is_transactional(self) -> bool:
        return False

    @property
    def hears_cancels(self) -> bool:
        return True

    def route(self, place: Place, address: bytes) -> Route[QueueHandle]:
        """The route of a target, which the publisher remembers by its address. Raises Refusal."""
        access, publisher = self.access, self.publisher
        known = publisher.routes.get(address)
        if (
            known is None
            or known[0] != access.vhost.router.generation
            or known[1] != access.node.authorization_generation
        ):
            return publisher.find(address, place.exchange, place.key)
        return known[2]

    def place_of(self, message: Message) -> Place:
        """Where a message to an anonymous target goes. Raises LinkError and Refusal."""
        return attaching.place_of(self.access, message)

    def returned(self, messages: Sequence[Message]) -> None: ...  # nothing is mandatory: it is released

    def in_turns(self, step: Callable[[], bool]) -> None:
        self.connection.in_turns(step)

    def cancelled(self, link: ReceiverLink) -> None:
        """A delivery was held for too long."""
        self.cut(link, LinkError(RESOURCE_LIMIT, "a delivery was not settled in time"))

    def timed_out(self, limit_ms: int) -> None:
        self.fail(SessionError(RESOURCE_LIMIT, f"a delivery was not settled within {limit_ms} ms"))

    @property
    def totals(self) -> MessageTotals:
        """Every delivery took one tag: by `skip` when it was settled with it, else by `put`."""
        counts, ledger = self.counts, self.ledger
        return MessageTotals(
            publish=counts.publish,
            confirm=counts.confirm,
            return_unroutable=counts.return_unroutable,
            drop_unroutable=counts.drop_unroutable,
            deliver=ledger.next_tag - 1 - ledger.skipped,
            deliver_no_ack=ledger.skipped - ledger.own,
            redeliver=ledger.redelivered,
            ack=counts.ack,
        )

    # -- the end

    @property
    def owed(self) -> bool:
        """The client waits for outcomes."""
        return self.outcomes.waiting > 0 or self.transactions.order.is_held

    def fail(self, error: SessionError) -> None:
        """Ends the session; the connection lives."""
        if self.closing:
            return
        self.access.node.log_fault(self.connection, error, self.number)
        self.end(counted=True, event=Event.END)
        self.closing = True
        self.send(End(error=described(error)))

    def end(self, counted: bool, until: int | None = None, event: Event = Event.CLOSE) -> None:
        """Gives back all that the session held, but for links that outlive the event. `until`: what is left when the
        node has done so much (`Labour.done`) is done in later turns."""
        node = self.access.node
        self.ledger.flowing = False
        self.closing = True
        self.table.end(event, node.labour.done + 1 if until is None else until)
        self.transactions.abandon(counted)
        held = self.ledger.drain()
        lost = self.access.lost(OVER, len(held)) if counted else None
        give_back(node, held, requeue=True, counted=counted, until=until, lost=lost)
        if self.traced is not None:
            self.traced.settled(0, True, "closed")
        node.confirming.pop(self, None)

    def tick(self, now_ms: int, until: int) -> bool:
        """Time-outs of attaches and deliveries. False: the node has done `until`, and more may be late."""
        self.table.prove(now_ms)
        if self.deadlines:
            self.deadlines = [overdue for overdue in self.deadlines if not overdue(now_ms)]
        if self.ledger.unacked and not self.closing:
            return check_timeouts(self, self.access.node, now_ms, until)
        return True


_ACCEPTED: Final = Accepted()
_RELEASED: Final = Released()
_HANDLERS: Final[Mapping[type, Callable[[Session, Any, bytes], None]]] = {
    Attach: lambda session, attach, _: attaching.attach(session, attach),
    Flow: Session._flow,
    Transfer: Session._transfer,
    Disposition: Session._disposition,
    Detach: Session._detach,
    End: Session._end,
}
"""The performatives of a session that has begun."""
