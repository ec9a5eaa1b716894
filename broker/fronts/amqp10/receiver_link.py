"""A link whose receiver is the client: its source, its credit, and what its queue sees of it.

    link-credit     the queue may hand out so many more than the client has seen (2.6.7)
    drain           what is ready is sent, then the rest of the credit is given up

*Drain.* The queue's owner counts what is ready. Twice in a row nothing: for what it had handed out before its first
answer was sent before its second one, and has come. Until then the credit stands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from clusterbroker.broker.access.browser import BrowseReader
from clusterbroker.broker.access.errors import Refusal
from clusterbroker.broker.access.readers import RangeReader, StreamReader
from clusterbroker.broker.content.selector.filters import Filter
from clusterbroker.broker.fronts.amqp10.conditions import Refused, link_error
from clusterbroker.broker.fronts.amqp10.delivery import LinkConsumer
from clusterbroker.broker.fronts.amqp10.expiry import NOTHING_KEPT
from clusterbroker.broker.fronts.amqp10.ports import Detached, LinkState, SessionCore, Terminus
from clusterbroker.broker.fronts.amqp10.redelivery import Redelivery
from clusterbroker.broker.pools.credentials import launch_of
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.queues.link_held import NO_LINK, link_name
from clusterbroker.broker.queues.watch import Delivery, Watch
from clusterbroker.broker.wire.amqp10.errors import (
    MESSAGE_SIZE,
    RESOURCE_DELETED,
    RESOURCE_LOCKED,
    UNAUTHORIZED,
    LinkError,
)
from clusterbroker.broker.wire.amqp10.performatives import OUTCOMES, UINT_MAX, Attach, Composite, Flow, Released, Source
from clusterbroker.broker.wire.amqp10.serials import SERIALS, room
from clusterbroker.journal.record import Message

if TYPE_CHECKING:
    from clusterbroker.broker.access.authorization import Authorization
    from clusterbroker.broker.node.link_recovery import Attachment

SECTIONS_BYTES: Final = 1 << 20
"""Header and annotations are smaller."""
Queue = QueueHandle | BrowseReader | StreamReader
"""What a link receives from."""

ACTIVE: Final = "rabbitmq:active"
GAPS: Final = 1 << 16
"""Lives of a queue in a delivery-tag: another one of the name, and one that has lost messages, number anew."""
QUEUES_APART: Final = 40_503
"""Between two queues' first lives: that of one made soon behind another is far from it."""
QUIET: Final = 2
"""So often in a row nothing is ready before a drain is over."""
TRIES: Final = 64
"""Turns in a row in which a drain asks again for what is ready but does not come; then about twice a second."""


class Store(Protocol):
    """What a link has besides whose queue's log says what it holds (`recoverable_receiver.RecoverableReceiver`)."""

    attachment: Attachment

    def suspend(self, link: ReceiverLink, seqs: Sequence[int]) -> None: ...

    def close(self, then: Callable[[], None]) -> None: ...


class ReceiverLink:
    """The link as its session and its queue see it (`broker.queues.subscription.LocalConsumer`)."""

    role = True
    """As the client says it: it receives."""
    node = ""

    __slots__ = (
        "active", "attach", "attached", "backlog", "credit", "drained", "draining", "drains", "exclusive", "filter",
        "handle", "identity", "initial_count", "name", "order", "queue", "rcv_second", "session", "settled", "source",
        "store", "terminus", "terms", "told_active",
    )  # fmt: skip

    def __init__(
        self, session: SessionCore, attach: Attach, source: Source, queue: Queue, priority: int,
        wanted: Filter | None = None,
    ) -> None:  # fmt: skip
        self.session = session
        self.name = attach.name
        self.identity = session.identity(attach.name, self.role)
        self.terms = NOTHING_KEPT
        self.attach = NO_LINK
        """Of a recoverable link, in the wiring."""
        self.store: Store | None = None
        """Of a link whose queue's log says what it holds."""
        self.backlog: Redelivery | None = None
        """What is sent before anything new."""
        self.handle = int(attach.handle)
        self.source = source
        """As it is in force."""
        self.queue = queue
        self.filter = wanted
        self.settled = attach.snd_settle_mode == 1
        self.rcv_second = attach.rcv_settle_mode == 1
        self.exclusive = False
        self.order = (0, "", 0)  # set by the queue
        self.attached = False
        self.initial_count = 0
        """Delivery-count of the answering attach: a client that has not read that names none in its flow (2.6.7)."""
        self.drained = 0
        """Credit that was given up."""
        self.active: bool | None = None
        """Whether it is the queue's single active consumer; None: there is no such thing, or nothing is known of it."""
        self.told_active: bool | None = None
        self.terminus: Terminus | None = None
        self.draining = False
        self.drains = 0
        """Drains that were begun: the last one asks, and no other."""
        self.credit = LinkConsumer(queue.ring, session.ledger, self.handle, self.settled, priority, self)
        self.credit.gap = (queue.entity.queue_id * QUEUES_APART + queue.entity.gap_epoch) % GAPS
        self._limit_size(attach)

    def _limit_size(self, attach: Attach) -> None:
        """The client takes messages up to this size (2.7.3). A limit that none here reaches costs nothing."""
        most, largest = attach.max_message_size or 0, self.session.access.node.options.message_bytes_max
        self.credit.message_max = most if most < largest + SECTIONS_BYTES else 0

    # -- credit

    @property
    def delivery_count(self) -> int:
        return (self.credit.delivered + self.drained) % SERIALS

    @property
    def state(self) -> LinkState:
        credit = self.credit
        left = max(0, credit.limit - credit.delivered)
        return LinkState(self.source.address, left, credit.unacked, self.delivery_count)

    def flow(self, flow: Flow) -> None:
        """The client says how many more it takes."""
        if flow.link_credit is not None:
            seen = self.initial_count if flow.delivery_count is None else flow.delivery_count
            left = room(self.delivery_count, seen, flow.link_credit)
            self.draining = flow.drain
            if self.backlog is not None:
                self.backlog.left = left
                self.go_on()
            else:
                self.credit.limit = self.credit.delivered + left
            if self.attached and self.backlog is None:
                self.queue.ring.mark()
                self.queue.limits_changed(self)
                self._tell_activity()
                if flow.drain:
                    self._drain()
        if flow.echo:
            self.tell()

    def activated(self, active: bool) -> None:
        """The queue has a single active consumer: this one is, or waits."""
        self.active = active
        self._tell_activity()

    def _tell_activity(self) -> None:
        """The client hears of it when it first gives credit, and of every change then (RabbitMQ 4.3)."""
        if not self.attached or self.active is None or self.active is self.told_active:
            return
        if self.told_active is not None or self.credit.limit:
            self.told_active = self.active
            self.tell({ACTIVE: self.active})

    def begin(self) -> None:
        """The queue has the link; what the client has said meanwhile counts from now on."""
        self.attached = True
        self.queue.ring.mark()
        if self.credit.limit:
            self.queue.limits_changed(self)
        self._tell_activity()
        if self.draining:
            self._drain()

    def tell(self, properties: dict[str, Any] | None = None) -> None:
        """The client hears where the link is, and of properties of its state."""
        left = max(0, self.credit.limit - self.credit.delivered) if self.backlog is None else self.backlog.left
        flow = self.session.flow(self.handle, self.delivery_count, left, drain=self.draining)
        flow.available = min(self.available, UINT_MAX)
        flow.properties = properties
        self.session.send(flow)

    @property
    def available(self) -> int:
        return self.queue.ready if not isinstance(self.queue, RangeReader) else 0

    def go_on(self) -> None:
        """The session's window, or the socket, is open again."""
        if self.backlog is not None:
            self.backlog.go_on()
            if not self.backlog.is_done:
                return
            self.credit.limit = self.credit.delivered + self.backlog.left
            self.backlog = None
            self.queue.ring.mark()
            self.queue.limits_changed(self)
            self._tell_activity()
        if self.draining and self.attached:
            self._drain()

    def _drain(self) -> None:
        """Begins to ask whether anything is ready."""
        self.drains += 1
        self._ask(self.drains, 0, TRIES)

    def _ask(self, drain: int, quiet: int, tries: int) -> None:
        """`quiet`: so often nothing was ready, in a row; `tries`: so often it is asked at once, if anything was."""
        queue, node, credit = self.queue, self.session.access.node, self.credit
        if drain != self.drains or not self.draining or not self.attached or queue.deleted:
            return
        if credit.limit <= credit.delivered or not credit.active:
            self._dry()  # of a queue with a single active consumer others get nothing
        elif not credit.writable:
            return  # `go_on`
        elif isinstance(queue, BrowseReader):
            queue.drain(self._dry)
        elif isinstance(queue, StreamReader):
            self._drain_reader(queue, drain)
        else:

            def counted(ready: int, _: int) -> None:
                if not ready and quiet + 1 >= QUIET:
                    self._dry()
                elif not ready:
                    node.soon(lambda: self._ask(drain, quiet + 1, tries))
                elif tries:
                    node.soon(lambda: self._ask(drain, 0, tries - 1))
                else:
                    self.session.deadlines.append(lambda _: self._ask_late(drain))

            queue.ready_for(self, node.now_ms, counted)

    def _ask_late(self, drain: int) -> bool:
        self._ask(drain, 0, 1)
        return True

    def _drain_reader(self, reader: StreamReader, drain: int) -> None:
        """The owner says how much there is: when the reader has had that, it is dry."""

        def read() -> None:
            if drain == self.drains:
                self._dry()

        reader.when_read(read)

    def _dry(self) -> None:
        """Nothing is ready: the rest of the credit is given up."""
        if not self.draining or not self.attached:
            return
        left = max(0, self.credit.limit - self.credit.delivered)
        self.drained += left
        self.credit.limit = self.credit.delivered
        self.tell()
        self.draining = False
        self.queue.limits_changed(self)

    # -- as its queue sees it

    @property
    def tag(self) -> str:
        return self.name

    @property
    def link(self) -> str:
        return link_name(self.identity.name.container, self.name)

    @property
    def no_ack(self) -> bool:
        return self.settled

    @property
    def holds(self) -> bool:
        return self.credit.unacked > 0 or self.backlog is not None

    @property
    def held(self) -> int:
        return self.credit.unacked

    @property
    def held_most(self) -> int:
        return self.credit.unacked

    @property
    def worker(self) -> str:
        return launch_of(self.session.access.user) or ""

    @property
    def limit(self) -> int:
        return 0

    @property
    def is_limited(self) -> bool:
        return True

    @property
    def session_held(self) -> int:
        return self.session.ledger.unacked

    @property
    def room(self) -> int:
        return self.credit.room if self.credit.active and self.credit.writable else 0

    @property
    def reads_to_an_end(self) -> bool:
        return isinstance(self.queue, RangeReader) and self.queue.reads_to_an_end

    def hand(self, seq: int, message: Message, now_ms: int) -> None:
        if self.credit.writable:
            self.credit.deliver(seq, message, now_ms)

    def flush(self) -> None:
        self.session.want_send()
        if self.draining and isinstance(self.queue, StreamReader):
            credit = self.credit
            if credit.limit <= credit.delivered and credit.writable:
                self._dry()  # a reader asks for no more than it has credit for

    def ended(self) -> None:
        """The queue is deleted, or a reader has had everything."""
        where = f"queue '{self.queue.name}' in vhost '{self.session.access.vhost.name}'"
        text = f"{where} was read to its end" if self.reads_to_an_end else f"{where} is deleted"
        self.session.cut(self, LinkError(RESOURCE_DELETED, text))

    def unfit(self, why: str) -> None:
        """A message is larger than the client takes: the link ends, others may have it (decision 054)."""
        self.session.cut(self, LinkError(MESSAGE_SIZE, f"queue '{self.queue.name}': {why}"))

    def failed(self, refusal: Refusal) -> None:
        self.session.cut(self, link_error(refusal))

    def show(self, watch: Watch, message: Message, redelivered: bool, handed: bool) -> None:
        tag = self.session.ledger.next_tag - handed
        watch.delivered(Delivery(self.session, self.queue.name, self.name, tag, message, redelivered, not self.settled))

    # -- settlement

    @property
    def is_choosy(self) -> bool:
        """Not all outcomes are in force for it (3.5.3)."""
        return len(self.source.outcomes) < len(OUTCOMES)

    def takes(self, outcome: Composite) -> bool:
        """Whether a delivery may have this outcome."""
        return outcome.SYMBOL in self.source.outcomes

    @property
    def default_outcome(self) -> Composite:
        """What is settled without a state has this (3.5.3); released, if the client named none."""
        known = self.source.default_outcome
        return known if isinstance(known, OUTCOMES) else Released()

    def interrupted(self) -> None:
        """The link is over; what it held returns, but for what is in its session's ledger."""
        self.attached = self.draining = False
        backlog, self.backlog = self.backlog, None
        if backlog is not None and not isinstance(self.queue, RangeReader):
            for seq in backlog.take_back():
                self.session.access.node.setting_aside.work(self.queue, self.queue.requeue, seq, False)
        if self.terminus is not None:
            self.terminus.left(self)

    def detached(self, closed: bool, then: Detached) -> None:
        """The client has detached the link (`closed`: for ever); `then` answers."""
        if self.terminus is None:
            then(None)
        else:
            self.terminus.detached(closed, then)

    @property
    def is_lasting(self) -> bool:
        """What it holds survives its connection."""
        return self.terms.outlives_connection

    def stop(self) -> list[int]:
        """Its client goes, and its queue keeps what it holds; what it has not been sent again."""
        backlog, self.backlog = self.backlog, None
        self.attached = self.draining = False
        return [] if backlog is None else backlog.take_back()

    def leave(self, waiting: Any) -> list[int]:
        """Its client goes, and this stands in the session's place; what it has not been sent again. Nothing of the link
        is in its session's ledger any more."""
        rest = self.stop()
        self.session = waiting
        self.credit.move(waiting.ledger, 0, self.settled)
        self.credit.limit = self.credit.delivered
        self.queue.limits_changed(self)
        return rest

    def come_back(self, session: SessionCore, attach: Attach) -> None:
        """Its client is here again."""
        self.session = session
        self.handle = int(attach.handle)
        self.rcv_second = attach.rcv_settle_mode == 1
        self.settled = attach.snd_settle_mode == 1
        self.credit.move(session.ledger, self.handle, self.settled)
        self._limit_size(attach)
        self.initial_count = self.delivery_count
        self.attached = True
        self.told_active = None


class Attaching:
    """An attach that waits for its queue's owner (`broker.access.questions.Client`)."""

    __slots__ = ("_refused", "link")

    def __init__(self, link: ReceiverLink, refused: Callable[[LinkError], None]) -> None:
        self.link = link
        self._refused = refused

    @property
    def access(self) -> Authorization:
        return self.link.session.access

    @property
    def deadlines(self) -> list[Callable[[int], bool]]:
        return self.link.session.deadlines

    @property
    def ending(self) -> str | None:
        session = self.link.session
        return None if session.links.get(self.link.handle) is self.link else "detached"

    def refuse(self, error: Refused) -> None:
        """Rights were asked before: what a queue refuses an access to is another consumer's, or leased."""
        told = link_error(error)
        self._refused(LinkError(RESOURCE_LOCKED, told.text) if told.condition == UNAUTHORIZED else told)

    def crashed(self, error: Exception) -> None:
        self.link.session.connection.crashed(error)
