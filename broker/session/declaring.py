"""exchange.* and queue.*: what a client declares becomes a command of the wiring log.

Permissions (amqp-rules 5.3): declare and delete = configure; passive declare = any; bind = write on the destination
and read on the source; a dead-letter exchange in the arguments = read on the queue and write on that exchange, an
alternate exchange = read on the exchange and write on the alternate. Everything else that can be wrong is decided by
the cluster map, the same on every node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.access.services import REPLY_TO
from clusterbroker.broker.amqp import methods
from clusterbroker.broker.amqp.errors import access_refused, not_found, not_implemented, precondition_failed
from clusterbroker.broker.amqp.layout import Method
from clusterbroker.broker.session.unanswered import Asked, ownerless
from clusterbroker.cluster.commands import Bind, DeclareExchange, DeclareQueue, DeleteExchange, DeleteQueue, Unbind
from clusterbroker.cluster.entities import Binding, DestinationKind
from clusterbroker.cluster.exchange_rules import STAGING
from clusterbroker.cluster.ids import Epoch
from clusterbroker.cluster.state import Applied
from clusterbroker.cluster.stream_settings import STREAM
from clusterbroker.journal.values import stored

if TYPE_CHECKING:
    from clusterbroker.broker.session.channel import Channel


def clean(name: str) -> str:
    """amqp-rules 5.3: CR and LF are stripped from names."""
    return name.replace("\r", "").replace("\n", "")


def _answered(method: Any, reply: Method) -> Callable[[Applied], Method | None]:
    return lambda _: None if method.nowait else reply


def _exchange_declare(channel: Channel, method: methods.ExchangeDeclare) -> None:
    name = clean(method.exchange)
    vhost = channel.vhost_name
    if not name:
        raise access_refused("operation not permitted on the default exchange")
    if method.passive:
        if channel.connection.node.map.exchange(vhost, name) is None:
            raise not_found(f"no exchange '{name}' in vhost '{vhost}'")
        if not method.nowait:
            channel.send(methods.ExchangeDeclareOk())
        return
    channel.access.check("configure", "exchange", name)
    arguments = stored(method.arguments)
    staging = method.type == STAGING
    target = arguments.get("x-target")
    if staging and isinstance(target, str):
        channel.access.check("write", "exchange", target)
    alternate = arguments.get("alternate-exchange")
    if isinstance(alternate, str):
        channel.access.check("read", "exchange", name)
        channel.access.check("write", "exchange", alternate)
    node = channel.connection.node
    limit = node.options.exchanges_max
    if node.map.exchange(vhost, name) is None:
        if not staging and node.exchange_count >= limit:
            raise precondition_failed(f"cannot declare exchange '{name}': exchange limit ({limit}) is reached")
        channel.access.check_memory(f"declare exchange '{name}'")
    command = DeclareExchange(
        vhost=vhost,
        name=name,
        type=method.type,
        durable=method.durable,
        auto_delete=method.auto_delete,
        internal=method.internal,
        arguments=arguments,
        **_stager(channel) if staging else {},
    )
    channel.order(command, method, _answered(method, methods.ExchangeDeclareOk()))


def _stager(channel: Channel) -> dict[str, Any]:
    """What the wiring must know of who opens a segment, and when."""
    connection = channel.connection
    return {
        "at_ms": connection.node.now_ms,
        "user": channel.access.principal,
        "is_administrator": channel.access.is_administrator,
    }


def _exchange_delete(channel: Channel, method: methods.ExchangeDelete) -> None:
    name = clean(method.exchange)
    if not name:
        raise access_refused("operation not permitted on the default exchange")
    channel.access.check("configure", "exchange", name)
    command = DeleteExchange(vhost=channel.vhost_name, name=name, if_unused=method.if_unused)
    channel.order(command, method, _answered(method, methods.ExchangeDeleteOk()))


def _binding(
    channel: Channel,
    kind: type[Bind] | type[Unbind],
    source: str,
    destination: str,
    to: DestinationKind,
    method: Any,
) -> Bind | Unbind:
    if not source or (to == "exchange" and not destination):
        raise access_refused("operation not permitted on the default exchange")
    channel.access.check("write", to, destination)
    channel.access.check("read", "exchange", source)
    channel.access.check_topic("read", source, method.routing_key)
    vhost, key, arguments = channel.vhost_name, method.routing_key, stored(method.arguments)
    if kind is Bind and channel.access.node.low_on_memory:
        wanted = Binding(vhost, source, destination, to, key, arguments)
        if channel.connection.node.map.find_binding(wanted) is None:
            channel.access.check_memory(f"bind {to} '{destination}' to exchange '{source}'")
    return kind(
        vhost=vhost,
        source=source,
        destination=destination,
        destination_kind=to,
        routing_key=key,
        arguments=arguments,
        connection=channel.connection.id,
    )


def _exchange_bind(channel: Channel, method: methods.ExchangeBind) -> None:
    command = _binding(channel, Bind, clean(method.source), clean(method.destination), "exchange", method)
    channel.order(command, method, _answered(method, methods.ExchangeBindOk()))


def _exchange_unbind(channel: Channel, method: methods.ExchangeUnbind) -> None:
    command = _binding(channel, Unbind, clean(method.source), clean(method.destination), "exchange", method)
    channel.order(command, method, _answered(method, methods.ExchangeUnbindOk()))


def _queue_bind(channel: Channel, method: methods.QueueBind) -> None:
    name = channel.queue_name(clean(method.queue))
    if not method.queue and not method.routing_key:
        # amqp-rules 5.3: bind with both empty uses the queue's name as key
        method = methods.QueueBind(0, name, method.exchange, name, method.nowait, method.arguments)
    command = _binding(channel, Bind, clean(method.exchange), name, "queue", method)
    channel.order(command, method, _answered(method, methods.QueueBindOk()))


def _queue_unbind(channel: Channel, method: methods.QueueUnbind) -> None:
    name = channel.queue_name(clean(method.queue))
    command = _binding(channel, Unbind, clean(method.exchange), name, "queue", method)
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
    channel.access.check("configure", "queue", name)
    arguments = stored(method.arguments)
    dead_letters = arguments.get("x-dead-letter-exchange")
    if isinstance(dead_letters, str):
        channel.access.check("read", "queue", name)
        channel.access.check("write", "exchange", dead_letters)
    if connection.node.map.queue(channel.vhost_name, name) is None:
        limit = connection.node.options.queues_max
        if len(connection.node.queues) >= limit:
            raise precondition_failed(f"cannot declare queue '{name}': queue limit in this node ({limit}) is reached")
        channel.access.check_memory(f"declare queue '{name}'")
    command = DeclareQueue(
        at_ms=connection.node.now_ms,
        vhost=channel.vhost_name,
        name=name,
        durable=method.durable,
        auto_delete=method.auto_delete,
        exclusive=method.exclusive,
        arguments=arguments,
        connection=connection.id,
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
