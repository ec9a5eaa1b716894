"""basic.consume, get, ack, nack, reject, recover, qos, cancel: how messages reach a client and what becomes of them.

amqp-rules 5.5: delivery tags count per channel from 1; `multiple` with tag 0 means all; a tag that is not outstanding
is 406; closing a channel requeues, basic.cancel does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.access.errors import Refusal
from clusterbroker.broker.access.receiver import attach, give_back
from clusterbroker.broker.access.services import REPLY_TO
from clusterbroker.broker.amqp import methods
from clusterbroker.broker.amqp.codec import Acked
from clusterbroker.broker.amqp.errors import (
    access_refused,
    not_allowed,
    not_implemented,
    precondition_failed,
    resource_locked,
)
from clusterbroker.broker.amqp.layout import Method
from clusterbroker.broker.content.formats import BASIC, translate
from clusterbroker.broker.fronts.amqp091 import stream_consuming
from clusterbroker.broker.fronts.amqp091.declaring import clean
from clusterbroker.broker.fronts.amqp091.delivery import BasicConsumer
from clusterbroker.broker.fronts.amqp091.leases import boolean, reader
from clusterbroker.broker.fronts.amqp091.subscription import Subscription
from clusterbroker.broker.queues.handle import Taken
from clusterbroker.broker.queues.watch import Delivery
from clusterbroker.cluster.wiring.stream_settings import STREAM

if TYPE_CHECKING:
    from clusterbroker.broker.fronts.amqp091.channel import Channel


QUEUE_SEQ: Final = b"\x0bx-queue-seq"
"""The header with a message's number in its queue, for consumers that ask for it, as a short string on the wire."""

CONSUMERS_IN_NEED_MAX: Final = 1000
"""Consumers of a connection while the node's memory is low: they are what makes room, and a few do."""


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
    if isinstance(method, methods.BasicRecover):
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


def _consumers(channel: Channel) -> int:
    return len(channel.consumers)


def _consume(channel: Channel, method: methods.BasicConsume) -> None:
    connection = channel.connection
    node = connection.node
    tag = method.consumer_tag or f"amq.ctag-{node.unique()}"
    if method.queue == REPLY_TO:
        _consume_replies(channel, method, tag)
        return
    name = channel.queue_name(clean(method.queue))
    channel.access.check("read", "queue", name)
    if tag in channel.consumers:
        raise not_allowed(f"attempt to reuse consumer tag '{tag}'")
    limit = node.options.consumers_per_channel_max
    if len(channel.consumers) >= limit:
        raise not_allowed(f"reached maximum ({limit}) of consumers per channel")
    if node.low_on_memory and sum(map(_consumers, connection.channels.values())) >= CONSUMERS_IN_NEED_MAX:
        channel.access.check_memory(f"consume from queue '{name}' with a consumer more")
    queue: Any = channel.access.queue(name)
    if queue.settings.queue_type == STREAM:
        stream_consuming.consume(channel, method, queue, tag)
        return
    if "x-lease" in method.arguments:
        queue = reader(channel, method, tag, queue)
    priority = method.arguments.get("x-priority", 0)
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise precondition_failed(f"invalid arg 'x-priority' for consumer '{tag}': expected an integer")
    subscription = Subscription(
        channel,
        channel.ledger,
        queue,
        tag,
        no_ack=method.no_ack,
        exclusive=method.exclusive,
        prefetch=channel.prefetch,
        priority=max(-(2**31), min(2**31 - 1, int(priority))),
        arguments=method.arguments,
    )
    if boolean(method, tag, "x-queue-seq") or "x-lease" in method.arguments:
        subscription.credit.numbered = QUEUE_SEQ

    @channel.answers
    def attached(refusal: Refusal | None) -> None:
        if not channel.awaits():
            if refusal is None:
                queue.unsubscribe(subscription, node.now_ms)
            return
        if refusal is not None:
            channel.refuse(refusal, method)
            return
        channel.consumers[tag] = subscription
        if not method.nowait:
            channel.send(methods.BasicConsumeOk(tag))
        if node.authorization_generation != generation or channel.access.rights is not rights:
            channel.review_rights()  # they changed while the owner was asked
        channel.resume()

    generation, rights = node.authorization_generation, channel.access.rights
    channel.ask(queue, method, lambda: queue.unsubscribe(subscription, node.now_ms))
    attach(channel.access, queue, subscription, attached)


def _consume_replies(channel: Channel, method: methods.BasicConsume, tag: str) -> None:
    """amqp-rules 5.1: one per channel, without acknowledgements."""
    if not method.no_ack:
        raise precondition_failed("reply consumer cannot acknowledge")
    if channel.reply_key:
        raise precondition_failed("reply consumer already set")
    node = channel.connection.node
    channel.reply_key = f"{REPLY_TO}.{node.secret_name()}"
    raw = tag.encode()
    channel.reply_tag = bytes((len(raw),)) + raw
    node.reply_targets[channel.reply_key] = channel
    if not method.nowait:
        channel.send(methods.BasicConsumeOk(tag))


def _cancel(channel: Channel, method: methods.BasicCancel) -> None:
    tag = method.consumer_tag
    node = channel.connection.node
    subscription = channel.consumers.pop(tag, None)
    if subscription is not None:
        subscription.queue.unsubscribe(subscription, node.now_ms)
    elif channel.reply_key and channel.reply_tag[1:] == tag.encode():
        node.reply_targets.pop(channel.reply_key, None)
        channel.reply_key = ""
    if not method.nowait:
        channel.send(methods.BasicCancelOk(tag))


def _get(channel: Channel, method: methods.BasicGet) -> None:
    name = channel.queue_name(clean(method.queue))
    channel.access.check("read", "queue", name)
    queue = channel.access.queue(name)
    if queue.settings.queue_type == STREAM:
        # amqp-rules 5.1: 540 connection
        raise not_implemented(f"basic.get not supported by stream '{name}' in vhost '{channel.vhost_name}'")
    if queue.settings.single_active_consumer and queue.settings.queue_type == "quorum":
        # amqp-rules 5.1
        raise resource_locked(
            f"cannot obtain access to locked queue '{name}' in vhost '{channel.vhost_name}'. basic.get operations are "
            "not supported by quorum queues with single active consumer"
        )
    node = channel.connection.node
    channel.ask(queue, method)

    @channel.answers
    def taken(answer: Taken | str | None) -> None:
        if not channel.awaits():
            if isinstance(answer, tuple):
                queue.requeue(answer[0], False)
            return
        if isinstance(answer, str):
            channel.refuse(access_refused(f"queue '{name}' in vhost '{channel.vhost_name}' {answer}"), method)
            return
        if answer is None:
            channel.counts.get_empty += 1
            queue.ring.got_empty += 1
            channel.send(methods.BasicGetEmpty())
        else:
            seq, message, redelivered, count = answer
            try:
                message = translate(queue.shown(seq, message, redelivered, count), BASIC)
            except Exception as error:
                queue.requeue(seq, False)
                node.stumbled(queue, error)
                raise
            channel.counts.redelivered += redelivered
            if method.no_ack:
                channel.counts.get_no_ack += 1
                queue.ring.got_no_ack += 1
                tag = channel.ledger.skip()
                queue.settle(seq)
            else:
                channel.counts.got += 1
                queue.ring.got += 1
                if channel.getter is None or channel.getter.ring is not queue.ring:
                    channel.getter = BasicConsumer(queue.ring, channel.ledger, b"\0", False, 0)
                tag = channel.ledger.add(channel.getter, seq, node.now_ms)
            if node.watches and (watch := node.watches.get(channel.vhost_name)) is not None:
                watch.delivered(Delivery(channel, name, "", tag, message, redelivered, not method.no_ack))
            channel.connection.out.get_ok(channel.number, tag, redelivered, message, queue.ready)
            node.sending[channel.connection] = None
        channel.resume()

    queue.get(node.now_ms, taken, no_ack=method.no_ack)


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
