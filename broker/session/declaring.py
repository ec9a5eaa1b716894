"""exchange.* and queue.*: what a client declares becomes a command of the wiring log (`broker.access.admin`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.access.admin import Admin
from clusterbroker.broker.access.services import REPLY_TO
from clusterbroker.broker.amqp import methods
from clusterbroker.broker.amqp.errors import access_refused, not_implemented, precondition_failed
from clusterbroker.broker.amqp.layout import Method
from clusterbroker.broker.session.unanswered import Asked, ownerless
from clusterbroker.cluster.commands import DeleteQueue
from clusterbroker.cluster.ids import Epoch
from clusterbroker.cluster.state import Applied
from clusterbroker.cluster.stream_settings import STREAM

if TYPE_CHECKING:
    from clusterbroker.broker.session.channel import Channel


def clean(name: str) -> str:
    """amqp-rules 5.3: CR and LF are stripped from names."""
    return name.replace("\r", "").replace("\n", "")


def _answered(method: Any, reply: Method) -> Callable[[Applied], Method | None]:
    return lambda _: None if method.nowait else reply


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
    channel.order(command, method, _answered(method, methods.ExchangeDeclareOk()))


def _exchange_delete(channel: Channel, method: methods.ExchangeDelete) -> None:
    name = clean(method.exchange)
    if not name:
        raise access_refused("operation not permitted on the default exchange")
    command = Admin(channel.access).delete_exchange(name, if_unused=method.if_unused)
    channel.order(command, method, _answered(method, methods.ExchangeDeleteOk()))


def _exchange_bind(channel: Channel, method: methods.ExchangeBind) -> None:
    source, destination = clean(method.source), clean(method.destination)
    command = Admin(channel.access).bind(source, destination, "exchange", method.routing_key, method.arguments)
    channel.order(command, method, _answered(method, methods.ExchangeBindOk()))


def _exchange_unbind(channel: Channel, method: methods.ExchangeUnbind) -> None:
    source, destination = clean(method.source), clean(method.destination)
    command = Admin(channel.access).unbind(source, destination, "exchange", method.routing_key, method.arguments)
    channel.order(command, method, _answered(method, methods.ExchangeUnbindOk()))


def _queue_bind(channel: Channel, method: methods.QueueBind) -> None:
    name, key = channel.queue_name(clean(method.queue)), method.routing_key
    if not method.queue and not key:
        key = name  # amqp-rules 5.3: bind with both empty uses the queue's name as key
    command = Admin(channel.access).bind(clean(method.exchange), name, "queue", key, method.arguments)
    channel.order(command, method, _answered(method, methods.QueueBindOk()))


def _queue_unbind(channel: Channel, method: methods.QueueUnbind) -> None:
    name = channel.queue_name(clean(method.queue))
    command = Admin(channel.access).unbind(clean(method.exchange), name, "queue", method.routing_key, method.arguments)
    channel.order(command, method, lambda _: methods.QueueUnbindOk())


def _queue_declare(channel: Channel, method: methods.QueueDeclare) -> None:
    name = clean(method.queue)
    connection = channel.connection
    if method.passive and name.startswith(REPLY_TO):
        _seek_requester(channel, method, name)
        return
    if method.passive:
        name = channel.access.queue(channel.queue_name(name)).name
        channel.park()
        _declared(channel, method, name, None)
        return
    server_named = not name
    if server_named:
        name = f"amq.gen-{connection.node.secret_name()}"
    command = Admin(channel.access).declare_queue(
        name,
        method.arguments,
        durable=method.durable,
        auto_delete=method.auto_delete,
        exclusive=method.exclusive,
        server_named=server_named,
    )

    # said before the answer: a connection that is lost meanwhile must end the queue as well
    connection.exclusive_queues = connection.exclusive_queues or method.exclusive

    def declare() -> None:
        channel.propose(command, method, declared)

    def declared(applied: Applied) -> None:
        _declared(channel, method, name, declare, new=bool(applied.changes))

    channel.park()
    _once_unlocked(channel, method, name, declare)


def _once_unlocked(channel: Channel, method: methods.QueueDeclare, name: str, declare: Callable[[], None]) -> None:
    """Calls `declare` at once, or when another node whose client has the queue for itself has shown that it lives, or
    is failed, and the queue with it (`broker.session.unanswered`). The declaration is judged by the map in any case."""
    connection = channel.connection
    queue = channel.access.vhost.queues.get(name)
    own = (connection.node.options.name, None)
    if queue is None or queue.entity.exclusive_owner in (None, connection.id) or queue.entity.owner in own:
        declare()
        return
    asking = True

    @channel.answers
    def known(*_: int) -> None:
        nonlocal asking
        if asking:
            asking = False
            if channel.awaits():
                declare()

    channel.asked = Asked(queue, method, connection.node.now_ms, None, known)
    queue.counts(connection.node.now_ms, known)


def _seek_requester(channel: Channel, method: methods.QueueDeclare, name: str) -> None:
    """Direct reply-to: a passive declare tells whether the one who waits for the reply is still there."""

    @channel.answers
    def found(there: bool) -> None:
        if not channel.awaits():
            return
        if not there:
            channel.refuse(channel.access.no_queue(name), method)
            return
        if not method.nowait:
            channel.send(methods.QueueDeclareOk(name, 0, 1))
        channel.resume()

    channel.park()
    if name == REPLY_TO:
        found(True)
    else:
        channel.connection.node.seek_requester(channel.vhost_name, name, found)


def _declared(
    channel: Channel, method: methods.QueueDeclare, name: str, again: Callable[[], None] | None, new: bool = False
) -> None:
    """The queue is there: tells the parked channel its counts. A new one has nothing in it, so its owner, perhaps at
    another node, needs not be asked.

    `again` is called when the queue ended before it was counted, as one does that lived on a node which was lost: who
    comes from there and declares it is the first to hear of that. None: then there is no such queue.
    """
    channel.last_queue = name

    @channel.answers
    def counted(ready: int, consumers: int) -> None:
        if not channel.awaits():
            return
        if queue is not None and queue.deleted:
            if again is None:
                channel.refuse(channel.access.no_queue(name), method)
            else:
                again()
            return
        channel.connection.node.churn.queues_declared += 1
        if not method.nowait:
            channel.send(methods.QueueDeclareOk(name, ready, consumers))
        channel.resume()

    queue = channel.access.vhost.queues.get(name)
    if queue is None or new:  # None: deleted again before the answer
        counted(0, 0)
    else:
        channel.ask(queue, method)
        queue.touch(channel.connection.node.now_ms, counted)


def _queue_purge(channel: Channel, method: methods.QueuePurge) -> None:
    name = channel.queue_name(clean(method.queue))
    channel.access.check("read", "queue", name)
    queue = channel.access.queue(name)
    if queue.settings.queue_type == STREAM:
        # amqp-rules 5.1: 540 connection
        raise not_implemented(f"purge not supported by stream '{name}' in vhost '{channel.vhost_name}'")
    if error := ownerless(queue):
        raise error

    @channel.answers
    def purged(count: int) -> None:
        if not channel.awaits():
            return
        if not method.nowait:
            channel.send(methods.QueuePurgeOk(count))
        channel.resume()

    channel.ask(queue, method)
    queue.purge(purged)


def _queue_delete(channel: Channel, method: methods.QueueDelete) -> None:
    name = channel.queue_name(clean(method.queue))
    channel.access.check("configure", "queue", name)
    vhost = channel.access.vhost
    queue = vhost.queues.get(name)
    if queue is None:
        # amqp-rules 5.3: deleting a missing queue succeeds
        if not method.nowait:
            channel.send(methods.QueueDeleteOk(0))
        return
    channel.access.check_exclusive(queue)
    conditional = method.if_unused or method.if_empty
    if conditional and (error := ownerless(queue)):
        raise error

    def ask() -> None:
        channel.ask(queue, method)
        queue.begin_delete(method.if_unused, method.if_empty, channel.connection.node.now_ms, may)

    @channel.answers
    def may(refused: str, count: int) -> None:
        if not channel.awaits():
            return
        if refused:
            channel.refuse(precondition_failed(f"queue '{name}' in vhost '{vhost.name}' {refused}"), method)
            return

        def deleted(_: Applied) -> None:
            if not queue.deleted:  # another owner took over meanwhile, and knows nothing of it
                ask()
                return
            if not method.nowait:
                channel.send(methods.QueueDeleteOk(count))
            assert channel.deletes is not None, "a channel deletes one queue at a time"
            notices, channel.deletes = channel.deletes[1], None
            for notice in notices:
                channel.send(notice)
            channel.resume()

        entity = queue.entity
        epoch = entity.epoch if conditional else Epoch(0)
        command = DeleteQueue(vhost=vhost.name, name=name, queue_id=entity.queue_id, epoch=epoch)
        channel.propose(command, method, deleted)

    channel.deletes = (queue.entity.queue_id, [])
    ask()


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
