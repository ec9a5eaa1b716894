"""exchange.* and queue.*: what a client declares becomes a command of the wiring log (`broker.access.admin`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.access.admin import Admin
from clusterbroker.broker.access.services import REPLY_TO
from clusterbroker.broker.wire.amqp091 import methods
from clusterbroker.broker.wire.amqp091.layout import Method
from clusterbroker.cluster.wiring.commands import AnyCommand
from clusterbroker.cluster.wiring.entities import DestinationKind

if TYPE_CHECKING:
    from clusterbroker.broker.fronts.amqp091.channel import Channel


_Binding = methods.ExchangeBind | methods.ExchangeUnbind | methods.QueueBind | methods.QueueUnbind
_BINDINGS: Final[dict[type, tuple[Callable[..., AnyCommand], DestinationKind, Method]]] = {
    methods.ExchangeBind: (Admin.bind, "exchange", methods.ExchangeBindOk()),
    methods.ExchangeUnbind: (Admin.unbind, "exchange", methods.ExchangeUnbindOk()),
    methods.QueueBind: (Admin.bind, "queue", methods.QueueBindOk()),
    methods.QueueUnbind: (Admin.unbind, "queue", methods.QueueUnbindOk()),
}


def clean(name: str) -> str:
    """amqp-rules 5.3: CR and LF are stripped from names."""
    return name.replace("\r", "").replace("\n", "")


def _answer(channel: Channel, method: Any, reply: Method) -> None:
    """The parked channel goes on."""
    if not getattr(method, "nowait", False):  # queue.unbind has none
        channel.send(reply)
    channel.resume()


def _order(channel: Channel, command: AnyCommand, method: Any, reply: Method) -> None:
    question = channel.question(method)
    channel.park()
    Admin(channel.access).order(command, question, lambda _: _answer(channel, method, reply))


def _exchange_declare(channel: Channel, method: methods.ExchangeDeclare) -> None:
    name, admin = clean(method.exchange), Admin(channel.access)
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
    admin = Admin(channel.access)
    command = admin.delete_exchange(clean(method.exchange), if_unused=method.if_unused)
    queue = admin.delay_queue(command.name) if method.if_unused else None
    if queue is None:
        _order(channel, command, method, methods.ExchangeDeleteOk())
        return
    question = channel.question(method)
    channel.park()
    admin.delete_if_nothing_waits(
        command, queue, question, lambda _: _answer(channel, method, methods.ExchangeDeleteOk())
    )


def _bind(channel: Channel, method: _Binding) -> None:
    """exchange.bind, exchange.unbind, queue.bind and queue.unbind."""
    admin, key = Admin(channel.access), method.routing_key
    if isinstance(method, methods.QueueBind | methods.QueueUnbind):
        source, destination = clean(method.exchange), channel.queue_name(clean(method.queue))
        if isinstance(method, methods.QueueBind) and not method.queue and not key:
            key = destination  # amqp-rules 5.3: bind with both empty uses the queue's name as key
    else:
        source, destination = clean(method.source), clean(method.destination)
    ordered, to, reply = _BINDINGS[type(method)]
    _order(channel, ordered(admin, source, destination, to, key, method.arguments), method, reply)


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
    # before the reply: a connection that is lost meanwhile must end the queue as well
    connection.exclusive_queues = connection.exclusive_queues or method.exclusive
    channel.park()
    admin.order_queue(command, question, declared)


def _seek_requester(channel: Channel, method: methods.QueueDeclare, name: str) -> None:
    """Direct reply-to: a passive declare finds out whether the requester is still there."""

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
    methods.ExchangeBind: _bind,
    methods.ExchangeUnbind: _bind,
    methods.QueueDeclare: _queue_declare,
    methods.QueueBind: _bind,
    methods.QueueUnbind: _bind,
    methods.QueuePurge: _queue_purge,
    methods.QueueDelete: _queue_delete,
}
