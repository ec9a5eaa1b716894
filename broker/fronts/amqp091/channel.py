"""One channel: which events it takes, what it holds, and how it ends.

    OPEN -> CLOSING (we sent channel.close, all but close and close-ok is passed over) -> gone

Methods of a channel take effect one after another. One that needs the wiring log, or a message from the disk, parks
the channel: later events wait in `parked` until `resume`, and the connection stops reading when many wait.

What methods do stands beside: declaring.py, publishing.py, transacting.py, consuming.py. Each is a table from method
to function (`handlers`); this file is the trunk that they share.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from clusterbroker.broker.access.authorization import OVER
from clusterbroker.broker.access.errors import Refusal
from clusterbroker.broker.access.publisher import Publisher
from clusterbroker.broker.access.questions import Asked, review
from clusterbroker.broker.access.receiver import detach_replies, give_back, let_go
from clusterbroker.broker.access.timeouts import check_timeouts
from clusterbroker.broker.access.transaction import Transaction
from clusterbroker.broker.content.formats import BASIC
from clusterbroker.broker.content.replies import reply_as
from clusterbroker.broker.fronts.amqp091.confirms import Confirms
from clusterbroker.broker.fronts.amqp091.delivery import BasicConsumer, Ledger
from clusterbroker.broker.fronts.amqp091.dividing import WAITED_STEPS, divided
from clusterbroker.broker.fronts.amqp091.ports import ConnectionCore
from clusterbroker.broker.fronts.amqp091.reply_codes import Refused, amqp_error
from clusterbroker.broker.fronts.amqp091.subscription import Subscription
from clusterbroker.broker.node.backpressure import Backpressure
from clusterbroker.broker.node.counts import ChannelCounts
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.queues.subscription import Source
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.queues.watch import Traced
from clusterbroker.broker.stats.totals import MessageTotals
from clusterbroker.broker.wire.amqp091 import methods
from clusterbroker.broker.wire.amqp091.codec import Acked, MethodReceived, Published
from clusterbroker.broker.wire.amqp091.errors import (
    AmqpError,
    ChannelError,
    ConnectionFault,
    access_refused,
    command_invalid,
    not_found,
    precondition_failed,
)
from clusterbroker.broker.wire.amqp091.errors import channel_error as channel_fault
from clusterbroker.broker.wire.amqp091.layout import Method
from clusterbroker.journal.record import Message

NO_ROUTE: Final = 312
NO_ROUTE_TEXT: Final = b"NO_ROUTE"
LASTING: Final = (methods.QueueDelete, methods.QueuePurge)
"""Requests that a queue's owner carries out even when the channel has ended meanwhile."""
CLOSE: Final = b"\x00\x14\x00\x28"
CLOSE_OK: Final = b"\x00\x14\x00\x29"
REPLY_BYTES_MAX: Final = 32 << 20
"""Bytes in the output buffer from which on direct replies are dropped: no flow control holds back their publishers."""


class Channel:
    """A channel's state. `last_queue` is what an empty queue name means (amqp-rules 5.3)."""

    __slots__ = (
        "_handlers", "access", "asked", "closing", "confirms", "connection", "consumers", "counts", "deadlines",
        "deletes", "getter", "last_queue", "ledger", "number", "opened", "parked", "prefetch", "publisher",
        "reply_key", "reply_tag", "requests", "traced", "transaction",
    )  # fmt: skip

    def __init__(
        self, connection: ConnectionCore, number: int, handlers: Mapping[type, Callable[[Channel, Any], None]]
    ) -> None:
        """`handlers`: by the type of an event or method (`session.handlers`)."""
        self.connection = connection
        self.access = connection.access
        self.number = number
        self._handlers = handlers
        self.ledger = Ledger(number, connection.out)
        self.ledger.took = connection.access.rights.took
        self.counts = ChannelCounts()
        self.deadlines: list[Callable[[int], bool]] = []
        """Who waits for others: asked about twice a second whether it has waited for too long; True: it is over."""
        self.deletes: tuple[int, list[methods.BasicCancel]] | None = None
        """Id of the queue that is being deleted here, and basic.cancel of its consumers here, sent after delete-ok."""
        self.getter: BasicConsumer | None = None
        """Of the last basic.get: very many deliveries of one queue share it."""
        self.opened = False
        self.closing = False
        self.parked: deque[Any] | None = None
        self.asked: Asked | None = None
        self.last_queue = ""
        self.prefetch = 0
        self.consumers: dict[str, Subscription] = {}
        self.confirms: Confirms | None = None
        self.transaction: Transaction | None = None
        self.reply_key = ""
        self.reply_tag = b""
        self.requests = 0  # to the broker's own exchanges, unanswered
        self.publisher = Publisher(self)
        self.traced: Traced | None = None
        """Sampled deliveries that wait for their settlement; None: there were none."""

    # -- events in --------------------------------------------------------------------------------------------

    def receive(self, event: Published | Acked | MethodReceived) -> None:
        """Raises ConnectionFault; a ChannelError ends the channel here."""
        if self.parked is not None:
            self.parked.append(event)
            self.connection.parked_bytes += _weight(event)
            self.connection.review_reading()
        elif self.closing:
            self._closing(event)
        else:
            self._handle(event)

    def _handle(self, event: Published | Acked | MethodReceived) -> None:
        class_id, method_id = 60, 40
        try:
            if not isinstance(event, MethodReceived):
                self._handlers[type(event)](self, event)
            else:
                method = methods.decode(event.payload)
                class_id, method_id = method.CLASS_ID, method.METHOD_ID
                handler = self._handlers.get(type(method))
                if handler is None:
                    raise command_invalid(f"unexpected method {method.NAME}")
                handler(self, method)
        except (ChannelError, ConnectionFault, Refusal) as error:
            known = amqp_error(error) if isinstance(error, Refusal) else error
            known.at(class_id, 80 if isinstance(event, Acked) else method_id)
            if isinstance(known, ConnectionFault):
                raise known from None
            self.fail(known)

    def _closing(self, event: Any) -> None:
        if type(event) is not MethodReceived:
            return
        if event.payload[:4] == CLOSE_OK:
            self._gone()
        elif event.payload[:4] == CLOSE:
            self.send(methods.ChannelCloseOk())

    # -- parking ----------------------------------------------------------------------------------------------

    @property
    def is_parked(self) -> bool:
        return self.parked is not None

    def park(self) -> None:
        """Later events wait until `resume`."""
        assert self.parked is None, "a channel is parked once"
        self.parked = deque()

    def question(self, method: Method) -> Question:
        return Question(self, method)

    def resume(self) -> None:
        """Takes up the waiting events, until one of them parks the channel again. What is answered within the turn
        resumes it within the turn, so what all channels take up in a turn is bounded."""
        waiting, self.parked, self.asked = self.parked, None, None
        connection, labour = self.connection, self.connection.node.labour
        connection.until = until = labour.until
        try:
            while waiting and not self.is_parked:
                if labour.done > until:
                    self.parked = waiting
                    connection.node.soon(self.resume)
                    return
                labour.done += WAITED_STEPS
                event = waiting.popleft()
                self.connection.parked_bytes -= _weight(event)
                if self.connection.channels.get(self.number) is not self:
                    self.connection.take_up(event)  # the channel was closed, and its number is free again
                elif self.closing:
                    self._closing(event)
                else:
                    self._handle(event)
                waiting.extendleft(divided(connection))
        except ConnectionFault as fault:
            self.connection.fail(fault, self.number)
            return
        if waiting and self.is_parked:
            self.parked = waiting  # a handler parked the channel again
        self.connection.review_reading()

    def answers(self, then: Callable[..., None]) -> Callable[..., None]:
        """`then` as a callback for later: an error in it ends this client's channel or connection, and no caller."""

        def guarded(*values: Any) -> None:
            try:
                then(*values)
            except (ChannelError, ConnectionFault, Refusal) as error:
                known = amqp_error(error) if isinstance(error, Refusal) else error
                if isinstance(known, ConnectionFault):
                    self.connection.fail(known, self.number)
                    return
                if not self.closing:
                    self.fail(known)
                self.resume()
            except Exception as error:
                self.connection.crashed(error)

        return guarded

    def awaits(self) -> bool:
        """Whether an answer to what parked the channel is still of use. If not, the channel goes on without it."""
        if self.parked is None:
            return False  # the connection ended meanwhile
        if self.closing:
            self.resume()  # the close-ok may wait
            return False
        self.asked = None
        return True

    def refuse(self, error: AmqpError | Refused, method: Method) -> None:
        """The answer that the parked channel waited for is an error."""
        known = error if isinstance(error, AmqpError) else amqp_error(error)
        self.fail(known.at(method.CLASS_ID, method.METHOD_ID))
        self.resume()

    @property
    def owed(self) -> bool:
        """The client waits for a reply, or for confirms."""
        return self.asked is not None or (self.confirms is not None and self.confirms.unconfirmed > 0)

    # -- output -----------------------------------------------------------------------------------------------

    def send(self, method: Method) -> None:
        self.connection.send(self.number, method)

    def want_send(self) -> None:
        """There are frames in the output buffer."""
        self.connection.node.sending[self.connection] = None

    def want_flush(self) -> None:
        """There are confirms to send."""
        self.connection.node.confirming[self] = None

    def flush_confirms(self) -> None:
        if self.confirms is not None and not self.closing and self.opened:
            self.counts.confirm += self.confirms.flush(self.connection.out, self.number)
            self.connection.node.sending[self.connection] = None

    def ticket(self, count: int) -> Ticket | None:
        """For the next publishes; None: the channel does not confirm."""
        return None if self.confirms is None else self.confirms.ticket(count)

    @property
    def totals(self) -> MessageTotals:
        """Every delivery took one tag: by `skip` when it needs no acknowledgement, else by `add`."""
        counts, ledger = self.counts, self.ledger
        return MessageTotals(
            publish=counts.publish,
            confirm=counts.confirm,
            return_unroutable=counts.return_unroutable,
            drop_unroutable=counts.drop_unroutable,
            deliver=ledger.next_tag - 1 - ledger.skipped - counts.got,
            deliver_no_ack=ledger.skipped - counts.get_no_ack,
            get=counts.got,
            get_no_ack=counts.get_no_ack,
            get_empty=counts.get_empty,
            redeliver=ledger.redelivered + counts.redelivered,
            ack=counts.ack,
        )

    # -- what access asks of a session

    def hold(self, queue: QueueHandle, seq: int | None, message: Message) -> int:
        """The tag of a basic.get's delivery, which is held unless `seq` is None."""
        if seq is None:
            return self.ledger.skip()
        if self.getter is None or self.getter.ring is not queue.ring:
            self.getter = BasicConsumer(queue.ring, self.ledger, b"\0", False, 0)
        tag = self.ledger.add(self.getter, seq, self.connection.node.now_ms)
        if self.ledger.took is not None:
            self.ledger.took(self.ledger, tag, message)
        return tag

    def returned(self, messages: Sequence[Message]) -> None:
        """amqp-rules 5.4: the return comes before the ack."""
        for message in messages:
            self.connection.out.returned(self.number, NO_ROUTE, NO_ROUTE_TEXT, message)
        self.want_send()

    @property
    def backpressure(self) -> Backpressure:
        return self.connection.backpressure

    def in_turns(self, step: Callable[[], bool]) -> None:
        @self.answers
        def go_on() -> None:
            if not step():
                self.connection.node.soon(go_on)
            elif self.awaits():
                self.resume()

        self.park()
        go_on()

    # -- what methods need ------------------------------------------------------------------------------------

    @property
    def vhost_name(self) -> str:
        return self.access.vhost.name

    @property
    def is_transactional(self) -> bool:
        return self.transaction is not None

    def queue_name(self, name: str) -> str:
        """The name, or that of the last queue declared on this channel when it is empty."""
        if name:
            return name
        if not self.last_queue:
            raise not_found("no previously declared queue")
        return self.last_queue

    def review_rights(self) -> None:
        """A permission changed: consumers of queues that may not be read any more end (amqp-rules 5.5)."""
        connection = self.connection
        for subscription in tuple(self.consumers.values()):
            queue = subscription.queue
            if not self.access.rights.allowed(self.vhost_name, "read", queue.name):
                if subscription.reads_to_an_end:
                    self.fail(access_refused(f"read access to queue '{queue.name}' in vhost '{self.vhost_name}' ended"))
                    return
                queue.unsubscribe(subscription, connection.node.now_ms)
                self.cancelled(subscription)

    def cancelled(self, subscription: Subscription) -> None:
        """The broker ended a consumer: basic.cancel for clients with that capability (amqp-rules 5.5); of a queue that
        this channel deletes after delete-ok, for which the client waits."""
        self.consumers.pop(subscription.tag, None)
        if self.connection.channels.get(self.number) is not self:
            return  # its connection has ended
        if not self.closing and self.hears_cancels:
            notice = methods.BasicCancel(subscription.tag, True)
            if self.deletes is not None and self.deletes[0] == subscription.queue.entity.queue_id:
                self.deletes[1].append(notice)
            else:
                self.answers(self.send)(notice)

    @property
    def hears_cancels(self) -> bool:
        return self.connection.capabilities.get("consumer_cancel_notify") is True

    def timed_out(self, limit_ms: int) -> None:
        text = f"delivery acknowledgement on channel {self.number} timed out. Timeout value used: {limit_ms} ms"
        self.fail(precondition_failed(text))

    def failed(self, refusal: Refusal) -> None:
        """A consumer cannot go on: closes the channel."""
        self.answers(self.fail)(amqp_error(refusal))

    def reply(self, message: Any) -> None:
        """Direct reply-to: the message goes straight to this channel's reply consumer."""
        out = self.connection.out
        found = reply_as(message, BASIC)
        if out.size > REPLY_BYTES_MAX or found is None or not out.fits(found):
            return  # replies are delivered at most once; a requester that does not read gets no more of them
        out.deliver(self.number, self.reply_tag, self.ledger.skip(), False, found)
        self.connection.node.sending[self.connection] = None

    # -- the end ----------------------------------------------------------------------------------------------

    def fail(self, error: AmqpError) -> None:
        """Closes the channel; the connection lives."""
        self.connection.node.log_fault(self.connection, error, self.number)
        self.end(counted=True)
        self.closing = True
        self.connection.decoder.drop_channel(self.number)
        self.send(methods.ChannelClose(int(error.code), error.reply_text, error.class_id, error.method_id))

    def end(self, counted: bool, until: int | None = None) -> None:
        """Gives back all that the channel held: amqp-rules 5.5, closing requeues what is unacknowledged. `until`: what
        is left when the node has done so much (`Labour.done`) is done in later turns."""
        node = self.connection.node
        if self.asked is not None and self.asked.withdraw is not None:
            withdraw, self.asked = self.asked.withdraw, self.asked._replace(withdraw=None)
            withdraw()
        self.ledger.flowing = False
        consumers = tuple(self.consumers.values())
        self.consumers.clear()
        let_go(node, consumers, node.labour.done + 1 if until is None else until)
        retired = [] if self.transaction is None else self.transaction.abandoned()
        self.transaction = None
        held = self.ledger.drain()
        lost = self.access.lost(OVER, len(held) + sum(map(len, retired))) if counted else None
        for entries in retired:
            give_back(node, entries, requeue=True, counted=counted, until=until, lost=lost)
        give_back(node, held, requeue=True, counted=counted, until=until, lost=lost)
        if self.traced is not None:
            self.traced.settled(0, True, "closed")
        detach_replies(self)
        self.confirms = None
        node.confirming.pop(self, None)

    def _gone(self) -> None:
        if self.connection.channels.pop(self.number, None) is not None:
            self.connection.channel_gone(self)

    def tick(self, now_ms: int, until: int) -> bool:
        """Time-outs of requests and deliveries (amqp-rules, last section). Raises ConnectionFault. False: the node has
        done `until` (`Labour.done`), and more may be late."""
        if self.asked is not None:
            asked = self.asked
            try:
                review(self, asked, now_ms)
            except Refusal as refused:
                raise amqp_error(refused).at(asked.request.CLASS_ID, asked.request.METHOD_ID) from None
        if self.deadlines:
            self.deadlines = [overdue for overdue in self.deadlines if not overdue(now_ms)]
        if self.ledger.unacked and not self.closing:
            return check_timeouts(self, self.connection.node, now_ms, until)
        return True


class Question:
    """A request on a channel that waits for answers (`broker.access.questions.Question`)."""

    __slots__ = ("_method", "answers", "awaits", "channel")

    def __init__(self, channel: Channel, method: Method) -> None:
        self.channel = channel
        self._method = method
        self.answers = channel.answers
        self.awaits = channel.awaits

    def ask(
        self, queue: Source, withdraw: Callable[[], None] | None = None, instead: Callable[[], None] | None = None
    ) -> None:
        channel, method = self.channel, self._method
        if channel.parked is None:
            channel.park()
        now_ms, lasting = channel.connection.node.now_ms, isinstance(method, LASTING)
        channel.asked = Asked(queue, method, lasting, now_ms, withdraw, instead)

    def refuse(self, error: Refused) -> None:
        self.channel.refuse(error, self._method)


def _weight(event: Published | Acked | MethodReceived) -> int:
    """What a waiting event counts against the connection's limit."""
    if isinstance(event, Published):
        return 1024 + event.size
    return 1024 + (len(event.payload) if isinstance(event, MethodReceived) else 0)


def _channel_open(channel: Channel, _: methods.ChannelOpen) -> None:
    if channel.opened:
        raise channel_fault("second 'channel.open' seen")
    channel.opened = True
    channel.send(methods.ChannelOpenOk())


def _channel_close(channel: Channel, _: methods.ChannelClose) -> None:
    channel.end(counted=True)
    channel.send(methods.ChannelCloseOk())
    channel.closing = True
    channel._gone()


def _channel_close_ok(_: Channel, method: methods.ChannelCloseOk) -> None:
    raise command_invalid(f"unexpected method {method.NAME}")


def _access_request(channel: Channel, _: methods.AccessRequest) -> None:
    """amqp-rules 5.2: a no-op that returns ticket 1."""
    channel.send(methods.AccessRequestOk(1))


HANDLERS: Final[dict[type[Method], Callable[[Channel, Any], None]]] = {
    methods.ChannelOpen: _channel_open,
    methods.ChannelClose: _channel_close,
    methods.ChannelCloseOk: _channel_close_ok,
    methods.AccessRequest: _access_request,
}
