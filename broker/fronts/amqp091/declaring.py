"""exchange.* and queue.*: what a client declares becomes a command of the wiring log (`broker.access.admin`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.access.admin import Admin
from clusterbroker.broker.access.services import REPLY_TO
from clusterbroker.broker.amqp import methods
from clusterbroker.broker.amqp.errors import access_refused
from clusterbroker.broker.amqp.layout import Method
from clusterbroker.cluster.wiring.commands import AnyCommand

if TYPE_CHECKING:
    from clusterbroker.broker.fronts.amqp091.channel import Channel


def clean(name: str) -> str:
    """amqp-rules 5.3: CR and LF are stripped from names."""
    return name.replace("\r", "").replace("\n", "")


def _answer(channel: Channel, method: Any, reply: Method) -> None:
    """The parked channel goes on."""
    if not method.nowait:
        channel.send(reply)
    channel.resume()


def _order(channel: Channel, command: AnyCommand, method: Any, reply: Method) -> None:
    question = channel.question(method)
    channel.park()
    Admin(channel.access).order(command, question, lambda _: _answer(channel, method, reply))


def _exchange_declare(channel: Channel, method: methods.ExchangeDeclare) -> None:
    name, admin = clean(method.exchange), Admin(channel.access)
    if not name:
        raise access_refused("operation not permitted on the default exchange")
    if method.passive:
        admin.find_exchange(name)
        if not method.nowait:
            channel.send(methods.ExchangeDeclareOk())
        return
    command = admin.declare_exchange(
        name,
        method.type,
        method.arguments,
        durable=method.durable,
        auto_delete=method.auto_delete,
        internal=method.internal,
    )
    _order(channel, command, method, methods.ExchangeDeclareOk())


def _exchange_delete(channel: Channel, method: methods.ExchangeDelete) -> None:
    name = clean(method.exchange)
    if not name:
        raise access_refused("operation not permitted on the default exchange")
    command = Admin(channel.access).delete_exchange(name, if_unused=method.if_unused)
    _order(channel, command, method, methods.ExchangeDeleteOk())


def _exchange_bind(channel: Channel, method: methods.ExchangeBind) -> None:
    source, destination = clean(method.source), clean(method.destination)
    command = Admin(channel.access).bind(source, destination, "exchange", method.routing_key, method.arguments)
    _order(channel, command, method, methods.ExchangeBindOk())


def _exchange_unbind(channel: Channel, method: methods.ExchangeUnbind) -> None:
    source, destination = clean(method.source), clean(method.destination)
    command = Admin(channel.access).unbind(source, destination, "exchange", method.routing_key, method.arguments)
    _order(channel, command, method, methods.ExchangeUnbindOk())


def _queue_bind(channel: Channel, method: methods.QueueBind) -> None:
    name, key = channel.queue_name(clean(method.queue)), method.routing_key
    if not method.queue and not key:
        key = name  # amqp-rules 5.3: bind with both empty uses the queue's name as key
    command = Admin(channel.access).bind(clean(method.exchange), name, "queue", key, method.arguments)
    _order(channel, command, method, methods.QueueBindOk())


def _queue_unbind(channel: Channel, method: methods.QueueUnbind) -> None:
    name = channel.queue_name(clean(method.queue))
    admin, question = Admin(channel.access), channel.question(method)
    command = admin.unbind(clean(method.exchange), name, "queue", method.routing_key, method.arguments)

    def unbound(_: object) -> None:
        channel.send(methods.QueueUnbindOk())
        channel.resume()

    channel.park()
    admin.order(command, question, unbound)


def _queue_declare(channel: Channel, method: methods.QueueDeclare) -> None:
    name, connection = clean(method.queue), channel.connection
    admin, question = Admin(channel.access), channel.question(method)
    if method.passive and name.startswith(REPLY_TO):
        _seek_requester(channel, method, name)
        return

    def declared(ready: int, consumers: int) -> None:
        channel.last_queue = name
        _answer(channel, method, methods.QueueDeclareOk(name, ready, consumers))

    if method.passive:
        name = channel.access.queue(channel.queue_name(name)).name
        channel.park()
        admin.count_queue(name, question, declared)
        return
    server_named = not name
    name = name or f"amq.gen-{connection.node.secret_name()}"
    command = admin.declare_queue(
        name,
        method.arguments,
        durable=method.durable,
        auto_delete=method.auto_delete,
        exclusive=method.exclusive,
        server_named=server_named,
    )
    # said before the answer: a connection that is lost meanwhile must end the queue as well
    connection.exclusive_queues = connection.exclusive_queues or method.exclusive
    channel.park()
    admin.order_queue(command, question, declared)


def _seek_requester(channel: Channel, method: methods.QueueDeclare, name: str) -> None:
    """Direct reply-to: a passive declare tells whether the one who waits for the reply is still there."""

    @channel.answers
    def found(there: bool) -> None:
        if not channel.awaits():
            return
        if there:
            _answer(channel, method, methods.QueueDeclareOk(name, 0, 1))
        else:
            channel.refuse(channel.access.no_queue(name), method)

    channel.park()
    if name == REPLY_TO:
        found(True)
    else:
        channel.connection.node.seek_requester(channel.vhost_name, name, found)


def _queue_purge(channel: Channel, method: methods.QueuePurge) -> None:
    name = channel.queue_name(clean(method.queue))

    def purged(count: int) -> None:
        _answer(channel, method, methods.QueuePurgeOk(count))

    Admin(channel.access).purge_queue(name, channel.question(method), purged)


def _queue_delete(channel: Channel, method: methods.QueueDelete) -> None:
    admin = Admin(channel.access)
    queue = admin.may_delete_queue(channel.queue_name(clean(method.queue)))
    if queue is None:
        # amqp-rules 5.3: deleting a missing queue succeeds
        if not method.nowait:
            channel.send(methods.QueueDeleteOk(0))
        return

    def deleted(count: int) -> None:
        if not method.nowait:
            channel.send(methods.QueueDeleteOk(count))
        assert channel.deletes is not None, "a channel deletes one queue at a time"
        notices, channel.deletes = channel.deletes[1], None
        for notice in notices:
            channel.send(notice)
        channel.resume()

    channel.deletes = (queue.entity.queue_id, [])
    admin.delete_queue(queue, channel.question(method), deleted, if_unused=method.if_unused, if_empty=method.if_empty)


HANDLERS: Final[dict[type[Method], Callable[[Channel, Any], None]]] = {
    methods.ExchangeDeclare: _exchange_declare,
    methods.ExchangeDelete: _exchange_delete,
    methods.ExchangeBind: _exchange_bind,
    methods.ExchangeUnbind: _exchange_unbind,
    methods.QueueDeclare: _queue_declare,
    methods.QueueBind: _queue_bind,
    methods.QueueUnbind: _queue_unbind,
    methods.QueuePurge: _queue_purge,
    methods.QueueDelete: _queue_delete,
}
