"""Senders, receivers and deliveries as a program has them: futures and iterators over the links of the core."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Protocol, Self

from clusterbroker.amqp10.client.errors import (
    ClientError,
    ClosedHere,
    DeliveryInDoubt,
    DeliveryLost,
    LinkDetached,
    NotRecoverable,
)
from clusterbroker.amqp10.client.links import LINK_RECOVERY, Incoming, Outgoing, ReceiverLink, SenderLink
from clusterbroker.amqp10.client.message import Message
from clusterbroker.amqp10.client.resuming import Outcome, is_outcome
from clusterbroker.amqp10.client.session import Session
from clusterbroker.amqp10.client.store import LinkId, Store
from clusterbroker.broker.wire.amqp10.performatives import (
    Accepted,
    Attach,
    Composite,
    Error,
    Modified,
    Rejected,
    Released,
    Source,
    Target,
    TransactionalState,
)

TAG_PREFIX_BYTES: Final = 6


class Host(Protocol):
    """What an endpoint asks of its connection."""

    store: Store
    container_id: str

    @property
    def session(self) -> Session | None: ...

    def wake(self) -> None:
        """Frames may be waiting."""

    @property
    def offered(self) -> tuple[str, ...]:
        """Capabilities that the peer's open offers."""

    def dropped(self, endpoint: Endpoint) -> None:
        """The endpoint is over."""


class Transaction(Protocol):
    """An open transaction."""

    @property
    def txn_id(self) -> bytes: ...


class Endpoint:
    """What senders and receivers have in common."""

    def __init__(self, host: Host, link: SenderLink | ReceiverLink, needs_recovery: bool) -> None:
        self._host = host
        self._link: SenderLink | ReceiverLink = link
        self._needs_recovery = needs_recovery
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.error: ClientError | None = None
        """Why the link is over."""
        self.attach: Attach | None = None
        """The peer's last attach: what is in force."""
        self._leaves: bool | None = None
        """The program leaves the link, and closes it with that; the peer has not answered."""
        self.refusals = 0
        """Attaches in a row that were refused for a reason that may pass."""

    @property
    def name(self) -> str:
        return self._link.terms.name

    @property
    def link_id(self) -> LinkId:
        return LinkId(self._host.container_id, self.name, self._link.role)

    @property
    def link(self) -> SenderLink | ReceiverLink:
        return self._link

    async def wait_attached(self) -> None:
        """Raises what refused the link."""
        await asyncio.shield(self._ready)

    def on_attached(self, attach: Attach) -> bool:
        """Whether the link may be used: a recoverable one needs a peer that keeps its state."""
        why = self._unkept(attach)
        if why:
            self.fail(NotRecoverable(why))
            return False
        self.attach = attach
        self.refusals = 0
        if self._link.terms.recoverable:
            self._host.store.open(self.link_id)
        if not self._ready.done():
            self._ready.set_result(None)
        if self._leaves is not None and self._host.session is not None:
            self._host.session.detach(self._link, self._leaves)  # once more: the connection was lost with the first
        return True

    def _unkept(self, attach: Attach) -> str:
        """Why the peer does not keep the link's state as it should; empty: it does."""
        if not self._link.terms.recoverable:
            return ""
        if self._needs_recovery and LINK_RECOVERY not in attach.offered_capabilities:
            text = f"the peer does not offer {LINK_RECOVERY} for '{self.name}': the link would end with its node"
            return f"{text}; ask for recoverable='node', or for a link that is not recoverable"
        terminus = attach.source if self._link.role else attach.target
        if not isinstance(terminus, (Source, Target)) or not (terminus.timeout or terminus.expiry_policy == "never"):
            return "the peer keeps no state of the link when its connection ends (its expiry has no timeout)"
        return ""

    def on_detached(self, error: LinkDetached | None) -> None:
        self.fail(error or ClosedHere(f"the link '{self.name}' is closed"))

    def on_lost(self) -> None:
        """The connection is gone; another comes."""

    def top_up(self) -> None:
        """Credit may be used up: resumed deliveries take it too, and no program sees them."""

    def fail(self, error: ClientError) -> None:
        """The link is over."""
        if not self._gone.done():
            self._gone.set_result(None)
        if self.error is None:
            self.error = error
            if not self._ready.done():
                self._ready.set_exception(error)
                self._ready.exception()
            self._host.dropped(self)

    async def detach(self) -> None:
        """Leaves the link; a recoverable one keeps its state at the peer."""
        await self._leave(closed=False)

    async def close(self) -> None:
        """Ends the link, and what both sides know of it. Returns when the peer has answered."""
        await self._leave(closed=True)
        self._host.store.close_link(self.link_id)
        self._host.wake()

    async def _leave(self, closed: bool) -> None:
        if self.error is not None:
            return
        session = self._host.session
        if session is not None and self._link.attached:
            self._leaves = closed
            session.detach(self._link, closed)
            self._host.wake()
            await self._gone
        self.fail(ClosedHere(f"the link '{self.name}' is closed"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self._link.terms.recoverable:
            await self.close()


class Sender(Endpoint):
    """Sends messages, and tells their outcomes.

    outcome = await sender.send(Message(body=b"first"))
    future = sender.submit(Message(body=b"second"))       many at once, in this order

    An outcome is `Accepted`, `Rejected` (with an error), `Released` (nobody wants it) or `Modified`.
    """

    def __init__(self, host: Host, link: SenderLink, needs_recovery: bool, settles_itself: bool) -> None:
        super().__init__(host, link, needs_recovery)
        self.sending = link
        self._settles_itself = settles_itself
        self._futures: dict[Outgoing, asyncio.Future[Outcome]] = {}
        self._prefix = secrets.token_bytes(TAG_PREFIX_BYTES)
        self._numbers = itertools.count(1)
        self.recovered: dict[bytes, asyncio.Future[Outcome]] = {}
        """Of deliveries that an earlier life of this program had not settled, by their tags: outcomes to come."""
        kept = host.store.load(self.link_id) if link.terms.recoverable else None
        if kept is not None:
            link.resumes = True
        for tag, one in (kept or {}).items():
            delivery = link.restore(tag, one.payload, one.state)
            future = self._promise(delivery)
            self.recovered[tag] = future
            if one.state is not None:
                future.set_result(one.state)

    @property
    def address(self) -> Any:
        """Of the target in force; a dynamic one has it from the peer."""
        return None if self.attach is None or self.attach.target is None else self.attach.target.address

    @property
    def credit(self) -> int:
        """Deliveries that the peer takes now."""
        return self.sending.credit

    def is_free(self, tag: bytes) -> bool:
        """Whether a delivery may have this tag now: none has it, and the peer has forgotten the one before that had it
        (decision 060). A tag that was settled on a connection that was lost, and not asked about in time, never is free
        again while the link lives. Of tags of the program's earlier lives this knows only what they had not settled."""
        return self.sending.is_free(tag)

    def submit(
        self, message: Message | bytes, tag: bytes | None = None, *, settled: bool = False,
        transaction: Transaction | None = None,
    ) -> asyncio.Future[Outcome]:  # fmt: skip
        """Gives a message to be sent when there is credit; the future has its outcome. A tag that was recovered is not
        sent anew: its future is returned. Raises ClientError, ValueError or TypeError."""
        if self.error is not None:
            raise self.error
        if tag is not None and tag in self.recovered:
            return self.recovered[tag]
        payload = message if isinstance(message, bytes) else message.encoded()
        posting = None if transaction is None else TransactionalState(txn_id=transaction.txn_id)
        once = not tag
        tag = tag or self._prefix + next(self._numbers).to_bytes(8, "big")
        delivery = self.sending.send(payload, tag, settled, posting, once)
        if self.sending.terms.recoverable and not settled:
            self._host.store.put(self.link_id, tag, None, payload)
        future = self._promise(delivery)
        session = self._host.session
        if session is not None and self._link.attached:
            for event in session.pump():
                self._taken(event)
        self._host.wake()
        return future

    def _taken(self, event: Any) -> None:
        """What pumping decides at once: deliveries that were sent settled."""
        if event.link is self._link:
            self.on_decided(event.delivery, event.settled)

    def _promise(self, delivery: Outgoing) -> asyncio.Future[Outcome]:
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._futures[delivery] = future
        return future

    async def send(
        self, message: Message | bytes, tag: bytes | None = None, *, settled: bool = False,
        transaction: Transaction | None = None,
    ) -> Outcome:  # fmt: skip
        """The outcome. Sent settled it is `Accepted` as soon as it is written, which promises nothing. Cancelled, the
        message is on its way all the same. Raises DeliveryInDoubt when the connection went before the outcome came
        and the link is not recoverable; LinkDetached; ClientError."""
        return await asyncio.shield(self.submit(message, tag, settled=settled, transaction=transaction))

    def settle(self, tag: bytes) -> None:
        """Forgets a delivery whose outcome the program has written down, of a link with `settle='manual'`. Until then
        it is in `recovered` of the program's next life."""
        delivery = self.sending.settle(tag)
        self.recovered.pop(tag, None)
        self._host.store.forget(self.link_id, tag)
        session = self._host.session
        if delivery is not None and session is not None:
            session.settle(delivery)
        self._host.wake()

    def on_decided(self, delivery: Outgoing, settled: bool) -> None:
        future = self._futures.pop(delivery, None)
        outcome = delivery.state or Accepted()
        if self._settles_itself or not is_outcome(delivery.state):
            if not settled:
                self.settle(delivery.tag)
            else:
                self._host.store.forget(self.link_id, delivery.tag)
        elif self._link.terms.recoverable:
            self._host.store.put(self.link_id, delivery.tag, outcome, delivery.payload)
        if future is not None and not future.done():
            future.set_result(outcome)

    def on_lost(self) -> None:
        if self._link.terms.recoverable:
            return
        for delivery in self.sending.abandon():
            future = self._futures.pop(delivery, None)
            if future is not None and not future.done():
                text = "the connection went before the delivery was answered: sent again, it may be there twice"
                future.set_exception(DeliveryInDoubt(text))
                future.exception()

    def fail(self, error: ClientError) -> None:
        super().fail(error)
        futures, self._futures = self._futures, {}
        for future in futures.values():
            if not future.done():
                future.set_exception(error)
                future.exception()


class Delivery:
    """A received message, and its outcome to be given: one of `accept`, `reject`, `release`, `modify`."""

    def __init__(self, receiver: Receiver, incoming: Incoming) -> None:
        self._receiver = receiver
        self._incoming = incoming
        self._message: Message | None = None
        self._answered: asyncio.Future[None] | None = None

    @property
    def tag(self) -> bytes:
        return self._incoming.tag

    @property
    def payload(self) -> bytes:
        """The encoded message."""
        return self._incoming.payload

    @property
    def message(self) -> Message:
        """Raises DecodeError."""
        if self._message is None:
            self._message = Message.decoded(self._incoming.payload)
        return self._message

    @property
    def body(self) -> bytes:
        return self.message.body

    @property
    def settled(self) -> bool:
        """No outcome is needed, or the peer has carried out the one that it got."""
        return self._incoming.settled

    def dispose(self, outcome: Composite, transaction: Transaction | None = None) -> asyncio.Future[None]:
        """Gives the outcome. The future passes when the peer has settled, of a link of mode second; else at once.
        Raises DeliveryLost, ClientError."""
        return self._receiver.dispose(self, self._incoming, outcome, transaction)

    async def accept(self, transaction: Transaction | None = None) -> None:
        """Done with: the peer may delete it."""
        await asyncio.shield(self.dispose(Accepted(), transaction))

    async def reject(self, condition: str = "", description: str = "") -> None:
        """Not to be processed by anybody; where there is a dead letter exchange the message goes there."""
        error = Error(condition=condition, description=description or None) if condition else None
        await asyncio.shield(self.dispose(Rejected(error=error)))

    async def release(self) -> None:
        """Not processed here: back to its place."""
        await asyncio.shield(self.dispose(Released()))

    async def modify(
        self, failed: bool = True, undeliverable_here: bool = False, annotations: Mapping[str, Any] | None = None
    ) -> None:
        """Back to its place; `failed`: counted as a delivery in vain."""
        changes = None if annotations is None else {**annotations}
        await asyncio.shield(self.dispose(Modified(failed, undeliverable_here, changes)))


class Receiver(Endpoint):
    """Receives messages.

    async for delivery in receiver: await delivery.accept()
    delivery = await receiver.receive(timeout=1)              None when nothing came

    `credit` messages are on their way or wait here; it is topped up when half is taken. 0: `grant` by hand.
    """

    def __init__(self, host: Host, link: ReceiverLink, needs_recovery: bool, credit: int) -> None:
        super().__init__(host, link, needs_recovery)
        self.receiving = link
        self._credit = credit
        self._here: deque[Delivery] = deque()
        self._known: dict[Incoming, Delivery] = {}
        self._waiting: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        kept = host.store.load(self.link_id) if link.terms.recoverable else None
        if kept is not None:
            link.resumes = True
        for tag, one in (kept or {}).items():
            link.restore(tag, one.state)

    @property
    def address(self) -> Any:
        """Of the source in force; a dynamic one has it from the peer."""
        return None if self.attach is None or self.attach.source is None else self.attach.source.address

    @property
    def second(self) -> bool:
        return self.receiving.terms.rcv_settle_mode == 1

    def on_attached(self, attach: Attach) -> bool:
        usable = super().on_attached(attach)
        if usable:
            self.top_up()
        return usable

    def top_up(self) -> None:
        session = self._host.session
        if session is not None and self._credit and self._link.attached:
            on_the_way = self.receiving.credit + len(self._here)
            if on_the_way <= self._credit // 2:
                session.grant(self.receiving, self._credit - len(self._here))
                self._host.wake()

    def grant(self, credit: int) -> None:
        """Lets the peer send so many messages from now on."""
        session = self._host.session
        if session is not None:
            session.grant(self.receiving, credit)
            self._host.wake()

    async def drain(self, credit: int) -> None:
        """Returns when so many messages have come, or all that there were."""
        session = self._host.session
        if self.error is not None:
            raise self.error
        if session is not None and self._link.attached:
            self._drained = asyncio.get_running_loop().create_future()
            session.grant(self.receiving, credit, drain=True)
            self._host.wake()
            await self._drained

    def on_drained(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def on_delivered(self, incoming: Incoming) -> None:
        delivery = Delivery(self, incoming)
        self._known[incoming] = delivery
        self._here.append(delivery)
        self._stir()

    def _stir(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        """Ends when the link was closed here; raises what ended it otherwise."""
        while not self._here:
            if isinstance(self.error, ClosedHere):
                raise StopAsyncIteration
            if self.error is not None:
                raise self.error
            if self._waiting is None or self._waiting.done():
                self._waiting = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._waiting)
        delivery = self._here.popleft()
        self.top_up()
        return delivery

    async def receive(self, timeout: float | None = None) -> Delivery | None:  # noqa: ASYNC109 - the usual name
        """The next delivery; None when nothing came in `timeout` seconds, or the link was closed here."""
        try:
            async with asyncio.timeout(timeout):
                return await anext(self)
        except (TimeoutError, StopAsyncIteration):
            return None

    def dispose(
        self, delivery: Delivery, incoming: Incoming, outcome: Composite, transaction: Transaction | None
    ) -> asyncio.Future[None]:
        """`Delivery.dispose`."""
        if delivery._answered is None:
            delivery._answered = asyncio.get_running_loop().create_future()
        state = outcome if transaction is None else TransactionalState(transaction.txn_id, outcome)
        settled = not self.second or transaction is not None
        due = self.receiving.dispose(incoming, state, settled)
        if self._link.terms.recoverable and not settled:
            self._host.store.put(self.link_id, incoming.tag, outcome, b"")
        session = self._host.session
        if due and session is not None:
            session.dispose(self.receiving, incoming, state, settled)
            self._host.wake()
        if incoming.settled:
            self._known.pop(incoming, None)
            if not delivery._answered.done():
                delivery._answered.set_result(None)
        return delivery._answered

    def on_settled(self, incoming: Incoming, error: ClientError | None = None) -> None:
        """The peer's last word of a delivery."""
        self._host.store.forget(self.link_id, incoming.tag)
        delivery = self._known.pop(incoming, None)
        if delivery is None:
            return
        if error is not None and delivery in self._here:
            self._here.remove(delivery)
        answered = delivery._answered
        if answered is not None and not answered.done():
            if error is None:
                answered.set_result(None)
            else:
                answered.set_exception(error)
                answered.exception()

    def on_lost(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        if not self._link.terms.recoverable:
            for incoming in self.receiving.abandon():
                error = DeliveryLost("the connection went before the delivery was settled: it may come again")
                self.on_settled(incoming, error)

    def fail(self, error: ClientError) -> None:
        super().fail(error)
        for incoming in list(self._known):
            self.on_settled_never(incoming, error)
        self.on_drained()
        self._stir()

    def on_settled_never(self, incoming: Incoming, error: ClientError) -> None:
        """The link is over; what waits for a settlement hears so. A recoverable link's store keeps the outcome."""
        answered = self._known[incoming]._answered
        if answered is not None and not answered.done():
            answered.set_exception(error)
            answered.exception()
