"""One channel: which events it takes, what it holds, and how it ends.

    OPEN -> CLOSING (we sent channel.close, all but close and close-ok is passed over) -> gone

Methods of a channel take effect one after another. One that needs the wiring log, or a message from the disk, parks
the channel: later events wait in `parked` until `resume`, and the connection stops reading when many wait.

What methods do stands beside: declaring.py, publishing.py, transacting.py, consuming.py. Each is a table from method
to function; this file is the trunk that they share.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal

from clusterbroker.broker.amqp import methods
from clusterbroker.broker.amqp.codec import Acked, MethodReceived, Published
from clusterbroker.broker.amqp.errors import (
    AmqpError,
    ChannelError,
    ConnectionFault,
    access_refused,
    command_invalid,
    not_found,
    precondition_failed,
    resource_error,
    resource_locked,
)
from clusterbroker.broker.amqp.errors import channel_error as channel_fault
from clusterbroker.broker.amqp.layout import Method
from clusterbroker.broker.node.counts import ChannelCounts
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.queues.watch import Traced
from clusterbroker.broker.routing.router import Route
from clusterbroker.broker.session import consuming, declaring, publishing, transacting
from clusterbroker.broker.session.confirms import Confirms
from clusterbroker.broker.session.delivery import BasicConsumer, Ledger
from clusterbroker.broker.session.dividing import WAITED_STEPS, divided, give_back, let_go
from clusterbroker.broker.session.subscription import Subscription
from clusterbroker.broker.session.unanswered import Asked, review
from clusterbroker.cluster.authorization import PermissionKind, TopicPermissionKind
from clusterbroker.cluster.commands import AnyCommand
from clusterbroker.cluster.errors import Unavailable, WiringError
from clusterbroker.cluster.state import Applied

if TYPE_CHECKING:
    from clusterbroker.broker.session.connection import Connection
    from clusterbroker.broker.session.transacting import Transaction

CLOSE: Final = b"\x00\x14\x00\x28"
CLOSE_OK: Final = b"\x00\x14\x00\x29"
TOPICS_REMEMBERED_MAX: Final = 1024
"""Verdicts on routing keys, of a connection."""
REPLY_BYTES_MAX: Final = 32 << 20
"""So much may wait for a socket before direct replies are dropped: they come from others, whom nothing holds back."""


class Channel:
    """A channel's state. `last_queue` is what an empty queue name means (amqp-rules 5.3)."""

    __slots__ = (
        "asked", "closing", "confirms", "connection", "consumers", "counts", "deadlines", "deletes", "getter",
        "last_queue", "ledger", "number", "opened", "parked", "prefetch", "reply_key", "reply_tag", "requests",
        "routes", "traced", "transaction",
    )  # fmt: skip

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.ledger = Ledger(number, connection.out)
        self.counts = ChannelCounts()
        self.deadlines: list[Callable[[int], bool]] = []
        """Who waits for others: asked about twice a second whether it has waited for too long; True: it is over."""
        self.deletes: tuple[int, list[methods.BasicCancel]] | None = None
        """The id of the queue that is being deleted here, and what its consumers here are told after the answer."""
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
        self.routes: dict[bytes, tuple[int, int, Route[QueueHandle]]] = {}
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
            if isinstance(event, Published):
                publishing.publish(self, event)
            elif isinstance(event, Acked):
                method_id = 80
                consuming.ack(self, event)
            else:
                method = methods.decode(event.payload)
                class_id, method_id = method.CLASS_ID, method.METHOD_ID
                handler = _HANDLERS.get(type(method))
                if handler is None:
                    raise command_invalid(f"unexpected method {method.NAME}")
                handler(self, method)
        except ChannelError as error:
            self.fail(error.at(class_id, method_id))
        except ConnectionFault as fault:
            raise fault.at(class_id, method_id) from None

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

    def ask(self, queue: QueueHandle, method: Method, withdraw: Callable[[], None] | None = None) -> None:
        """The channel waits for an answer of the queue, whose owner may be another node, or none; parked or not yet.
        `withdraw` takes the question back when the channel ends before the answer."""
        if self.parked is None:
            self.park()
        self.asked = Asked(queue, method, self.connection.node.now_ms, withdraw)

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
        """`then` for whoever answers this channel later: what it raises costs this client, not who answers."""

        def told(*given: Any) -> None:
            try:
                then(*given)
            except ChannelError as error:
                if not self.closing:
                    self.fail(error)
                self.resume()
            except ConnectionFault as fault:
                self.connection.fail(fault, self.number)
            except Exception as error:
                self.connection.crashed(error)

        return told

    def order(self, command: AnyCommand, method: Method, then: Callable[[Applied], Method | None]) -> None:
        """Puts a command into the wiring log; the reply of `then` is sent when it was applied."""

        def applied(outcome: Applied) -> None:
            reply = then(outcome)
            if reply is not None:
                self.send(reply)
            self.resume()

        self.park()
        self.propose(command, method, applied)

    def propose(self, command: AnyCommand, method: Method, then: Callable[[Applied], None]) -> None:
        """Puts a command into the wiring log for a parked channel. `then` hears of the result, and resumes the channel;
        a refusal closes it here instead."""

        @self.answers
        def done(applied: Applied) -> None:
            if not self.awaits():
                return
            if applied.error is not None:
                self.refuse(refusal(applied.error), method)
            else:
                then(applied)

        self.connection.node.propose(command, done)

    def awaits(self) -> bool:
        """Whether an answer to what parked the channel is still of use. If not, the channel goes on without it."""
        if self.parked is None:
            return False  # the connection ended meanwhile
        if self.closing:
            self.resume()  # the close-ok may wait
            return False
        self.asked = None
        return True

    def refuse(self, error: AmqpError, method: Method) -> None:
        """The answer that the parked channel waited for is an error."""
        self.fail(error.at(method.CLASS_ID, method.METHOD_ID))
        self.resume()

    # -- output -----------------------------------------------------------------------------------------------

    def send(self, method: Method) -> None:
        self.connection.send(self.number, method)

    def want_send(self) -> None:
        """There are frames in the output buffer."""
        self.connection.node.sending[self.connection] = None

    def want_flush(self) -> None:
        """There are confirms to say."""
        self.connection.node.confirming[self] = None

    def flush_confirms(self) -> None:
        if self.confirms is not None and not self.closing and self.opened:
            self.counts.confirm += self.confirms.flush(self.connection.out, self.number)
            self.connection.node.sending[self.connection] = None

    # -- what methods need ------------------------------------------------------------------------------------

    @property
    def vhost_name(self) -> str:
        assert self.connection.vhost is not None, "a channel is opened after its connection"
        return self.connection.vhost.name

    def check(self, kind: PermissionKind, sort: Literal["queue", "exchange"], resource: str) -> None:
        """403 unless the user may (amqp-rules 5.3); remembered until a permission changes."""
        connection = self.connection
        node = connection.node
        known = connection.authorization.get((kind, resource))
        if known is None or known[0] != node.authorization_generation:
            allowed = connection.rights.allowed(self.vhost_name, kind, resource)
            known = (node.authorization_generation, allowed)
            if len(connection.authorization) >= 4096:
                connection.authorization.clear()
            connection.authorization[(kind, resource)] = known
        if not known[1]:
            raise access_refused(
                f"{kind} access to {sort} '{resource or 'amq.default'}' in vhost '{self.vhost_name}' refused for user "
                f"'{connection.user}'"
            )

    def check_topic(self, kind: TopicPermissionKind, exchange: str, key: str) -> None:
        """403 unless the user may use the routing key on this exchange, if it is a topic exchange; remembered until a
        permission changes. Asked for each key that a message is routed by, so for those of CC and BCC too."""
        connection, vhost = self.connection, self.connection.vhost
        assert vhost is not None, "a channel is opened after its connection"
        if vhost.router.exchange_type(exchange) != "topic":
            return
        node = connection.node
        known = connection.topic_authorization.get((kind, exchange, key))
        if known is None or known[0] != node.authorization_generation:
            known = (node.authorization_generation, connection.rights.topic_allowed(vhost.name, kind, exchange, key))
            if len(connection.topic_authorization) >= TOPICS_REMEMBERED_MAX:
                connection.topic_authorization.clear()
            connection.topic_authorization[(kind, exchange, key)] = known
        if not known[1]:
            raise access_refused(
                f"{kind} access to topic '{key}' in exchange '{exchange}' in vhost '{vhost.name}' refused for user "
                f"'{connection.user}'"
            )

    def queue_name(self, name: str) -> str:
        """The name, or that of the last queue declared on this channel when it is empty."""
        if name:
            return name
        if not self.last_queue:
            raise not_found("no previously declared queue")
        return self.last_queue

    def queue(self, name: str) -> QueueHandle:
        """404 for a missing queue, 405 for one that is exclusive to another connection."""
        assert self.connection.vhost is not None, "a channel is opened after its connection"
        queue = self.connection.vhost.queues.get(name)
        if queue is None:
            raise self.no_queue(name)
        self.check_exclusive(queue)
        return queue

    def no_queue(self, name: str) -> AmqpError:
        return not_found(f"no queue '{name}' in vhost '{self.vhost_name}'")

    def check_exclusive(self, queue: QueueHandle) -> None:
        owner = queue.entity.exclusive_owner
        if owner is not None and owner != self.connection.id:
            raise resource_locked(
                f"cannot obtain exclusive access to locked queue '{queue.name}' in vhost '{self.vhost_name}'. It could "
                "be originally declared on another connection or the exclusive property value does not match that of "
                "the original declaration."
            )

    def review_rights(self) -> None:
        """A permission changed: consumers of queues that may not be read any more end (amqp-rules 5.5)."""
        connection = self.connection
        for subscription in tuple(self.consumers.values()):
            queue = subscription.queue
            if not connection.rights.allowed(self.vhost_name, "read", queue.name):
                if subscription.reads_to_an_end:
                    self.fail(access_refused(f"read access to queue '{queue.name}' in vhost '{self.vhost_name}' ended"))
                    return
                queue.unsubscribe(subscription, connection.node.now_ms)
                self.cancelled(subscription)

    def cancelled(self, subscription: Subscription) -> None:
        """The broker ended a consumer: clients that can are told (amqp-rules 5.5), but by a channel that deletes the
        queue only after the answer, for which the client waits."""
        self.consumers.pop(subscription.tag, None)
        if self.connection.channels.get(self.number) is not self:
            return  # its connection has ended
        if not self.closing and self.connection.capabilities.get("consumer_cancel_notify") is True:
            notice = methods.BasicCancel(subscription.tag, True)
            if self.deletes is not None and self.deletes[0] == subscription.queue.entity.queue_id:
                self.deletes[1].append(notice)
            else:
                self.answers(self.send)(notice)

    def reply(self, message: Any) -> None:
        """Direct reply-to: the message goes straight to this channel's reply consumer."""
        out = self.connection.out
        if out.size > REPLY_BYTES_MAX:
            return  # replies are delivered at most once; a requester that does not read gets no more of them
        out.deliver(self.number, self.reply_tag, self.ledger.skip(), False, message)
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
        """Gives back all that the channel held: amqp-rules 5.5, closing requeues what is unacknowledged. `until`: with
        other channels; what is left of that when the node has done so much (`Labour.done`) is done in later turns."""
        node = self.connection.node
        if self.asked is not None and self.asked.withdraw is not None:
            withdraw, self.asked = self.asked.withdraw, self.asked._replace(withdraw=None)
            withdraw()
        self.ledger.flowing = False
        consumers = tuple(self.consumers.values())
        self.consumers.clear()
        let_go(node, consumers, node.labour.done + 1 if until is None else until)
        if self.transaction is not None:
            for entries in self.transaction.abandoned():
                give_back(node, entries, requeue=True, counted=counted, until=until)
            self.transaction = None
        give_back(node, self.ledger.drain(), requeue=True, counted=counted, until=until)
        if self.traced is not None:
            self.traced.settled(0, True, "closed")
        if self.reply_key:
            node.reply_targets.pop(self.reply_key, None)
            self.reply_key = ""
        self.confirms = None
        node.confirming.pop(self, None)

    def _gone(self) -> None:
        if self.connection.channels.pop(self.number, None) is not None:
            self.connection.channel_gone(self)

    def tick(self, now_ms: int, until: int) -> bool:
        """amqp-rules, last section: who holds a message, or waits, for too long is stopped. Raises ConnectionFault.
        False: the node has done what is to be done at once (`until`, of `Labour.done`), and there may be more."""
        if self.asked is not None:
            review(self, self.asked, now_ms)
        if self.deadlines:
            self.deadlines = [overdue for overdue in self.deadlines if not overdue(now_ms)]
        if self.ledger.unacked and not self.closing:
            return consuming.check_timeouts(self, now_ms, until)
        return True


def _weight(event: Published | Acked | MethodReceived) -> int:
    """What a waiting event counts against the connection's limit."""
    if isinstance(event, Published):
        return 1024 + event.size
    return 1024 + (len(event.payload) if isinstance(event, MethodReceived) else 0)


def refusal(error: WiringError | Unavailable) -> AmqpError:
    """The AMQP error for a command that was refused, or could not be stored."""
    return _REFUSALS[error.kind](error.text)


_REFUSALS: Final[dict[str, Callable[[str], AmqpError]]] = {
    "not_found": not_found,
    "access_refused": access_refused,
    "resource_locked": resource_locked,
    "precondition_failed": precondition_failed,
    "already_exists": precondition_failed,
    "in_use": precondition_failed,
    "limit": precondition_failed,
    "unavailable": resource_error,
}


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


_HANDLERS: Final[dict[type[Method], Callable[[Channel, Any], None]]] = {
    methods.ChannelOpen: _channel_open,
    methods.ChannelClose: _channel_close,
    methods.ChannelCloseOk: _channel_close_ok,
    methods.AccessRequest: _access_request,
    **declaring.HANDLERS,
    **publishing.HANDLERS,
    **transacting.HANDLERS,
    **consuming.HANDLERS,
}
