"""basic.consume, get, ack, nack, reject, recover, qos, cancel: how messages reach a client and what becomes of them.

amqp-rules 5.5: delivery tags count per channel from 1; `multiple` with tag 0 means all; a tag that is not outstanding
is 406; closing a channel requeues, basic.cancel does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.access.admin import Admin
from clusterbroker.broker.access.readers import RangeReader
from clusterbroker.broker.access.receiver import Got, attach, attach_replies, detach_replies, get, give_back, readable
from clusterbroker.broker.access.services import REPLY_TO
from clusterbroker.broker.fronts.amqp091.consume_arguments import ConsumeArguments
from clusterbroker.broker.fronts.amqp091.declaring import clean
from clusterbroker.broker.fronts.amqp091.delivery import too_large
from clusterbroker.broker.fronts.amqp091.subscription import Subscription
from clusterbroker.broker.pools.credentials import launch_of
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.wire.amqp091 import methods
from clusterbroker.broker.wire.amqp091.codec import Acked
from clusterbroker.broker.wire.amqp091.errors import not_allowed, not_implemented, precondition_failed
from clusterbroker.broker.wire.amqp091.layout import Method
from clusterbroker.cluster.wiring.stream_settings import STREAM
from clusterbroker.journal.record import Message

if TYPE_CHECKING:
    from clusterbroker.broker.fronts.amqp091.channel import Channel


QUEUE_SEQ: Final = b"\x0bx-queue-seq"
STREAM_OFFSET: Final = b"\x0fx-stream-offset"
"""Headers with a message's number, for consumers that ask for it, as short strings on the wire."""


def ack(channel: Channel, event: Acked) -> None:
    if channel.traced is not None:
        for value in event.acks:
            channel.traced.settled(value >> 1, bool(value & 1), "ack")
    if channel.transaction is not None:
        for value in event.acks:
            _stage(channel, value >> 1, bool(value & 1), "ack")
        return
    ledger = channel.ledger
    held = ledger.unacked
    unknown = ledger.ack(event)
    channel.counts.ack += held - ledger.unacked
    if unknown:
        raise precondition_failed(f"unknown delivery tag {unknown - 1}")


def _stage(channel: Channel, tag: int, multiple: bool, outcome: str) -> None:
    entries = channel.ledger.collect(tag, multiple)
    if entries is None:
        raise precondition_failed(f"unknown delivery tag {tag}")
    assert channel.transaction is not None, "staged in a transaction"
    channel.transaction.settle(entries, outcome)


def _give_back(channel: Channel, tag: int, multiple: bool, requeue: bool, counted: bool) -> None:
    if channel.traced is not None:
        channel.traced.settled(tag, multiple, "requeue" if requeue else "reject")
    if channel.transaction is not None:
        _stage(channel, tag, multiple, "requeue" if requeue else "reject")
        return
    entries = channel.ledger.collect(tag, multiple)
    if entries is None:
        raise precondition_failed(f"unknown delivery tag {tag}")
    give_back(channel.connection.node, entries, requeue=requeue, counted=counted)


def _nack(channel: Channel, method: methods.BasicNack) -> None:
    _give_back(channel, method.delivery_tag, method.multiple, method.requeue, counted=False)


def _reject(channel: Channel, method: methods.BasicReject) -> None:
    _give_back(channel, method.delivery_tag, False, method.requeue, counted=True)


def _recover(channel: Channel, method: methods.BasicRecover) -> None:
    if not method.requeue:
        # amqp-rules 5.1
        raise not_implemented("requeue=false")
    if channel.traced is not None:
        channel.traced.settled(0, True, "requeue")
    give_back(channel.connection.node, channel.ledger.drain(), requeue=True, counted=False)
    if isinstance(method, methods.BasicRecover):  # not basic.recover-async
        channel.send(methods.BasicRecoverOk())


def _qos(channel: Channel, method: methods.BasicQos) -> None:
    if method.prefetch_size:
        raise not_implemented(f"prefetch_size!=0 ({method.prefetch_size})")
    if method.global_qos:
        channel.ledger.prefetch = method.prefetch_count
        for subscription in channel.consumers.values():
            subscription.queue.limits_changed(subscription)
    else:
        # amqp-rules 5.5: applies to new consumers
        channel.prefetch = method.prefetch_count
        if channel.connection.client_properties.get("product") == "py-amqp":
            # Kombu takes every broker but RabbitMQ 3 for one that follows the specification, where consumers that
            # exist are meant as well: so Celery raises its limit for each task that waits for its time.
            for subscription in channel.consumers.values():
                subscription.credit.prefetch = method.prefetch_count
                subscription.queue.limits_changed(subscription)
    channel.send(methods.BasicQosOk())


def _flow(channel: Channel, method: methods.ChannelFlow) -> None:
    if not method.active:
        raise not_implemented("active=false")
    channel.send(methods.ChannelFlowOk(True))


def _consume(channel: Channel, method: methods.BasicConsume) -> None:
    connection = channel.connection
    access, node = channel.access, connection.node
    tag = method.consumer_tag or f"amq.ctag-{node.unique()}"
    if method.queue == REPLY_TO:
        _consume_replies(channel, method, tag)
        return
    name = channel.queue_name(clean(method.queue))
    access.check("read", "queue", name)
    if tag in channel.consumers:
        raise not_allowed(f"attempt to reuse consumer tag '{tag}'")
    limit = node.options.consumers_per_channel_max
    if len(channel.consumers) >= limit:
        raise not_allowed(f"reached maximum ({limit}) of consumers per channel")
    if Admin(access).order_group(name, channel.question(method), lambda: _consume_from(channel, method, tag, name)):
        channel.park()
        return
    _consume_from(channel, method, tag, name)


def _consume_from(channel: Channel, method: methods.BasicConsume, tag: str, name: str) -> None:
    """The queue is there, or is none of a pool."""
    connection, access = channel.connection, channel.access
    queue = readable(access, name, connection.channels.values(), settled=method.no_ack)
    arguments = ConsumeArguments(tag, method.arguments)
    source: QueueHandle | RangeReader = queue
    priority, shift, number = 0, 0, b""
    if queue.settings.queue_type == STREAM:
        source, number, shift = arguments.stream(access, queue), STREAM_OFFSET, -1
    else:
        if "x-lease" in method.arguments:
            source, number = arguments.lease(access, queue), QUEUE_SEQ
        priority = arguments.priority()
        if arguments.flag("x-queue-seq"):
            number = QUEUE_SEQ
    subscription = Subscription(
        channel,
        channel.ledger,
        source,
        tag,
        no_ack=method.no_ack,
        exclusive=method.exclusive,
        prefetch=channel.prefetch,
        priority=priority,
        arguments=method.arguments,
        worker=launch_of(channel.connection.user) or "",
    )
    subscription.credit.numbered, subscription.credit.shift = number, shift

    def attached(changed: bool) -> None:
        channel.consumers[tag] = subscription
        if not method.nowait:
            channel.send(methods.BasicConsumeOk(tag))
        if changed:
            channel.review_rights()
        channel.resume()

    attach(channel, source, subscription, channel.question(method), attached)


def _consume_replies(channel: Channel, method: methods.BasicConsume, tag: str) -> None:
    """amqp-rules 5.1: one per channel, without acknowledgements."""
    if not method.no_ack:
        raise precondition_failed("reply consumer cannot acknowledge")
    attach_replies(channel)
    raw = tag.encode()
    channel.reply_tag = bytes((len(raw),)) + raw
    if not method.nowait:
        channel.send(methods.BasicConsumeOk(tag))


def _cancel(channel: Channel, method: methods.BasicCancel) -> None:
    tag = method.consumer_tag
    subscription = channel.consumers.pop(tag, None)
    if subscription is not None:
        subscription.queue.unsubscribe(subscription, channel.connection.node.now_ms)
    elif channel.reply_key and channel.reply_tag[1:] == tag.encode():
        detach_replies(channel)
    if not method.nowait:
        channel.send(methods.BasicCancelOk(tag))


def _get(channel: Channel, method: methods.BasicGet) -> None:
    def taken(got: Got | None) -> None:
        if got is None:
            channel.send(methods.BasicGetEmpty())
        else:
            channel.connection.out.get_ok(channel.number, got.tag, got.redelivered, got.message, got.remaining)
            channel.want_send()
        channel.resume()

    name, question = channel.queue_name(clean(method.queue)), channel.question(method)
    out = channel.connection.out

    def unfit(message: Message) -> str:
        return "" if out.fits(message) else too_large(out, message)

    get(channel, name, question, taken, settled=method.no_ack, operation="basic.get", unfit=unfit)


HANDLERS: Final[dict[type[Method], Callable[[Channel, Any], None]]] = {
    methods.BasicNack: _nack,
    methods.BasicReject: _reject,
    methods.BasicRecover: _recover,
    methods.BasicRecoverAsync: _recover,
    methods.BasicQos: _qos,
    methods.ChannelFlow: _flow,
    methods.BasicConsume: _consume,
    methods.BasicCancel: _cancel,
    methods.BasicGet: _get,
}
