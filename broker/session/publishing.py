"""basic.publish and confirm.select: a batch of messages on its way to its queues.

The usual batch takes the short way: its route is remembered per channel and address until the wiring or a permission
changes, so neither names are decoded nor rights checked again. The long way, message by message, is for what may
differ between messages of one batch: user-id, reply-to, CC and BCC, producers that number their messages, exchanges
that look into headers, and queues that may refuse (overflow reject-publish).

A producer that numbers its messages (headers x-producer, a name, and x-seq, rising from 1) may publish one again, over
another connection, node or day: each queue stores a number once, and confirms the repeat when the original is safe.
One that a queue refused may come again too, also behind later ones.

Order of checks (amqp-rules 5.1, 5.4): size and expiration, immediate, permission, exchange, internal, topic
permission, properties; then returns, before the ack.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from clusterbroker.broker.access.services import REPLY_TO, requested
from clusterbroker.broker.access.virtual_exchanges import VIRTUAL_EXCHANGES
from clusterbroker.broker.amqp import methods
from clusterbroker.broker.amqp import properties as codec
from clusterbroker.broker.amqp.codec import Published
from clusterbroker.broker.amqp.errors import access_refused, not_found, not_implemented, precondition_failed
from clusterbroker.broker.amqp.fields import FieldTable
from clusterbroker.broker.amqp.layout import Method
from clusterbroker.broker.node.counts import ExchangeCounts
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.routing.carbon_copy import UnacceptableHeader, accepted_keys
from clusterbroker.broker.routing.labour import TooCostly
from clusterbroker.broker.routing.router import Route
from clusterbroker.broker.session.confirms import Confirms
from clusterbroker.broker.session.dividing import DELIVERIES_AT_ONCE, DELIVERY_STEPS, divide
from clusterbroker.broker.transactions.onward import route_of
from clusterbroker.cluster.entities import Segment
from clusterbroker.journal.layout import HAS_BCC, HAS_HEADERS, HAS_REPLY_TO, HAS_USER_ID, PERSISTENT
from clusterbroker.journal.record import Message

if TYPE_CHECKING:
    from clusterbroker.broker.session.channel import Channel

NO_ROUTE: Final = 312
NO_ROUTE_TEXT: Final = b"NO_ROUTE"
ROUTES_MAX: Final = 1024
PRODUCER_BYTES_MAX: Final = 255
NUMBER_MAX: Final = 2**62
"""Of x-seq."""
Named = tuple[bytes, int]
TARGETS_AT_ONCE: Final = 5_000
"""Queues that get a message in one turn; their own turns and the group that they write take as long again."""
REPLY_KEY: Final = REPLY_TO.encode() + b"."
LOOKED_INTO: Final = HAS_HEADERS | HAS_USER_ID | HAS_REPLY_TO


def publish(channel: Channel, event: Published) -> None:
    """Takes a batch; raises the AMQP error that it deserves."""
    if event.refusal is not None:
        raise event.refusal
    if event.immediate:
        # amqp-rules 5.1: unsupported, 540
        raise not_implemented("immediate=true")
    node = channel.connection.node
    vhost = channel.access.vhost
    known = channel.routes.get(event.address)
    if known is None or known[0] != vhost.router.generation or known[1] != node.authorization_generation:
        service = VIRTUAL_EXCHANGES.get(event.exchange)
        if service is not None and requested(channel, service, event.exchange, event.routing_key, event.messages):
            return
        route = _permitted(channel, event)
        if len(channel.routes) >= ROUTES_MAX:
            channel.routes.clear()
        if not route.uncacheable:
            channel.routes[event.address] = (vhost.router.generation, node.authorization_generation, route)
    else:
        route = known[2]
    if route.onward is not None:
        _stage_rows(channel, event, route, route.onward)
    elif route.uncacheable or (event.flags & LOOKED_INTO and _looks_into(event)):
        labour, until = node.labour, channel.connection.until
        for place, message in enumerate(event.messages, 1):
            own, own_route, named = _one(channel, event, message)
            _stage_or_send(channel, own_route, (own,), event.mandatory, named)
            if (labour.done > until or channel.is_parked) and place < len(event.messages):
                divide(channel.connection, event, place)
                return
    else:
        if len(route.targets) > TARGETS_AT_ONCE and len(event.messages) > 1:
            divide(channel.connection, event, 1)
        elif len(event.messages) * len(route.targets) > DELIVERIES_AT_ONCE and len(event.messages) > 1:
            divide(channel.connection, event, max(1, DELIVERIES_AT_ONCE // len(route.targets)))
        _stage_or_send(channel, route, event.messages, event.mandatory)


def _permitted(channel: Channel, event: Published) -> Route[QueueHandle]:
    vhost = channel.access.vhost
    exchange, key = event.exchange, event.routing_key
    if exchange in VIRTUAL_EXCHANGES:
        return Route(uncacheable=True)  # a key that it does not know
    segment = vhost.segments.get(exchange)
    if segment is not None:
        return _staging_route(channel, segment, key)
    channel.access.check("write", "exchange", exchange)
    if not exchange and key.startswith(REPLY_TO + "."):
        return Route(uncacheable=True)
    route = _affordable(vhost.router.route, exchange, key, lambda: None)
    if not route.found_exchange:
        raise not_found(f"no exchange '{exchange}' in vhost '{vhost.name}'")
    if route.internal:
        raise access_refused(f"cannot publish to internal exchange '{exchange}' in vhost '{vhost.name}'")
    channel.access.check_topic("write", exchange, key)
    return route


def replied(channel: Channel, reply: Message) -> Route[QueueHandle]:
    """Hands a direct reply to its requester; the route says whether there is one."""
    connection = channel.connection
    found = connection.node.reply(channel.vhost_name, reply.routing_key.decode("utf-8", "surrogateescape"), reply)
    return Route(found_exchange=found, uncacheable=True)


def is_reply(message: Message) -> bool:
    """It has a key of direct reply-to, so no queue gets it."""
    return not message.exchange and message.routing_key.startswith(REPLY_KEY)


def _affordable(find: Callable[..., Route[QueueHandle]], *asked: Any) -> Route[QueueHandle]:
    """A route, or 406 for one that costs too much."""
    try:
        return find(*asked)
    except TooCostly as error:
        raise precondition_failed(str(error)) from None


def _staging_route(channel: Channel, segment: Segment, key: str) -> Route[QueueHandle]:
    """To the queue that keeps rows until they are committed, if their target may be published to; or nowhere."""
    vhost = channel.access.vhost
    channel.access.check("write", "exchange", segment.target)
    channel.access.check_topic("write", segment.target, key)
    if segment.place is not None:
        raise access_refused(f"exchange '{segment.name}' in vhost '{vhost.name}' is committed")
    targets = () if segment.discards else (vhost.staging[segment.name],)
    route = Route(tuple(target.name for target in targets), targets)
    route.onward = _affordable(vhost.router.route, segment.target, key, lambda: None)
    return route


def _stage_rows(channel: Channel, event: Published, route: Route[QueueHandle], onward: Route[QueueHandle]) -> None:
    """Rows of a segment. Those that are mandatory are returned when their target leads nowhere at this moment; a replay
    returns nothing."""
    if channel.transaction is not None:
        raise precondition_failed(f"exchange '{event.exchange}' takes nothing on a transactional channel")
    messages: Sequence[Message] = event.messages
    looked_into = bool(event.flags & LOOKED_INTO) and _looks_into(event)
    labour, until = channel.connection.node.labour, channel.connection.until
    if looked_into:
        looked_at: list[Message] = []
        for message in event.messages:
            looked_at.append(_one(channel, event, message)[0])
            if labour.done > until and len(looked_at) < len(event.messages):
                divide(channel.connection, event, len(looked_at))
                break
        messages = looked_at
    messages = [message if message.persistent else _lasting(message) for message in messages]
    mandatory = event.mandatory and bool(route.targets)
    if mandatory and (looked_into or onward.uncacheable):
        vhost = channel.access.vhost
        target = vhost.segments[event.exchange].target
        for place, message in enumerate(messages, 1):
            found = _affordable(route_of, vhost.router, target, message)
            _stage(channel, route if found.targets else Route(), (message,), mandatory)
            if not looked_into and labour.done > until and place < len(messages):
                divide(channel.connection, event, place)
                return
    else:
        _stage(channel, Route() if mandatory and not onward.targets else route, messages, mandatory)


def _stage(channel: Channel, route: Route[QueueHandle], messages: Sequence[Message], mandatory: bool) -> None:
    ticket = None if channel.confirms is None else channel.confirms.ticket(len(messages))
    send(channel, route, messages, mandatory, ticket)


def _lasting(message: Message) -> Message:
    """What is staged outlives its node, whatever the row's delivery mode says: a commit means all rows."""
    return Message(
        message.address, message.payload, message.header_length, message.flags | PERSISTENT, message.priority,
        message.time_ms, message.ttl_ms,
    )  # fmt: skip


def _looks_into(event: Published) -> bool:
    """Whether a message of the batch has properties that matter here. May err on the careful side."""
    if event.flags & (HAS_USER_ID | HAS_REPLY_TO):
        return True
    return any(b"CC" in message.header or b"x-producer" in message.header for message in event.messages)


def _named(headers: FieldTable | None) -> Named | None:
    """Producer and number of a message that has them; a name without a good number is an error."""
    producer = headers.get("x-producer") if headers else None
    if producer is None or headers is None:
        return None
    if not isinstance(producer, str) or not 0 < len(raw := producer.encode()) <= PRODUCER_BYTES_MAX or not raw[0]:
        raise precondition_failed(f"invalid header 'x-producer': expected a text of 1 to {PRODUCER_BYTES_MAX} bytes")
    number = headers.get("x-seq")
    if not isinstance(number, int) or isinstance(number, bool) or not 0 < number <= NUMBER_MAX:
        raise precondition_failed(
            f"invalid header 'x-seq' beside 'x-producer': expected an integer of 1 to {NUMBER_MAX}"
        )
    return raw, int(number)


def _one(channel: Channel, event: Published, message: Message) -> tuple[Message, Route[QueueHandle], Named | None]:
    """A message with what the broker changes in it, its own route, and its number if its producer gave one."""
    connection = channel.connection
    vhost = channel.access.vhost
    properties = codec.decode(message.header)
    changed = properties
    named = properties.user_id
    if named not in (None, connection.user) and "impersonator" not in channel.access.rights.tags:
        raise precondition_failed(f"user_id property set to '{named}' but authenticated user was '{connection.user}'")
    if named is not None and channel.access.by_token and connection.node.map.user(named) is not None:
        raise precondition_failed(f"user_id property set to '{named}', an account, but a token signed in")
    if properties.reply_to == REPLY_TO:
        if not channel.reply_key:
            raise precondition_failed("fast reply consumer does not exist")
        changed = replace(changed, reply_to=channel.reply_key)
    exchange, key = event.exchange, event.routing_key
    if not exchange and key.startswith(REPLY_TO + "."):
        reply = _rebuilt(message, changed) if changed is not properties else message
        if channel.transaction is not None:
            return reply, Route(uncacheable=True), None  # `replied` with the commit
        return message, replied(channel, reply), None
    try:
        copies, blind = accepted_keys(properties.headers)
    except UnacceptableHeader as error:
        raise precondition_failed(str(error)) from None
    if copies or blind:
        segment = vhost.segments.get(exchange)
        topic = exchange if segment is None else segment.target  # where its rows go when they are committed
        for each in (*copies, *blind):
            channel.access.check_topic("write", topic, each)
    route = _affordable(
        vhost.router.route, exchange, key, lambda: properties.headers, (*copies, *blind),
        lambda name: getattr(properties, name, None),
    )  # fmt: skip
    if blind or changed is not properties:
        message = _rebuilt(message, changed, HAS_BCC if blind else 0)
    return message, route, _named(properties.headers)


def _rebuilt(message: Message, properties: codec.Properties, flags: int = 0) -> Message:
    header = codec.encode(properties)
    return Message(
        message.address, header + message.body, len(header), message.flags | flags, message.priority, message.time_ms,
        message.ttl_ms,
    )  # fmt: skip


def _stage_or_send(
    channel: Channel,
    route: Route[QueueHandle],
    messages: Sequence[Message],
    mandatory: bool,
    named: Named | None = None,
) -> None:
    if channel.transaction is not None:
        channel.transaction.publish(route, messages, mandatory, named)
        return
    confirms = channel.confirms
    if confirms is not None and any(queue.rejects for queue in route.targets):
        for message in messages:
            send(channel, route, (message,), mandatory, confirms.ticket(1), named)
    else:
        ticket = None if confirms is None else confirms.ticket(len(messages))
        send(channel, route, messages, mandatory, ticket, named)


def send(
    channel: Channel,
    route: Route[QueueHandle],
    messages: Sequence[Message],
    mandatory: bool,
    ticket: Ticket | None,
    named: Named | None = None,
) -> None:
    """Puts the messages into the queues of the route. `ticket` is passed when the last of them has answered. More than
    TARGETS_AT_ONCE get it by and by, and the channel is parked until the last of them has it."""
    messages = depart(channel, route, messages, mandatory, ticket)
    if ticket is not None:
        ticket.counts = route.counts
    if len(route.targets) <= TARGETS_AT_ONCE:
        _deliver(channel, route, route.targets, messages, ticket, named)
        if ticket is not None:
            ticket.pass_()
        return
    targets = iter(route.targets)

    @channel.answers
    def go_on() -> None:
        part = tuple(islice(targets, TARGETS_AT_ONCE))
        _deliver(channel, route, part, messages, ticket, named)
        if len(part) == TARGETS_AT_ONCE:
            channel.connection.node.soon(go_on)
            return
        if ticket is not None:
            ticket.pass_()
        if channel.awaits():
            channel.resume()

    channel.park()
    go_on()


def _deliver(
    channel: Channel,
    route: Route[QueueHandle],
    targets: Sequence[QueueHandle],
    messages: Sequence[Message],
    ticket: Ticket | None,
    named: Named | None,
) -> None:
    """To these of the route's queues."""
    node = channel.connection.node
    node.labour.done += DELIVERY_STEPS * len(messages) * len(targets)
    journaled = 0
    for queue in targets:
        if queue.deleted:
            continue
        if named is not None:
            _send_named(queue, messages[0], ticket, named, node.now_ms)
        elif route.onward is not None:
            if queue.takes(messages, node.now_ms):
                queue.publish(messages, ticket, node.now_ms)
            elif ticket is not None:
                ticket.rejected = True
        elif queue.rejects:
            accepted = [message for message in messages if _accepted(queue, message, ticket, node.now_ms)]
            if ticket is not None and len(accepted) < len(messages):
                ticket.rejected = True
        else:
            queue.publish(messages, ticket, node.now_ms)
        journaled += queue.ring.journaled
    if journaled:
        node.published(journaled * len(messages) * messages[0].size)


def depart(
    channel: Channel, route: Route[QueueHandle], messages: Sequence[Message], mandatory: bool, ticket: Ticket | None
) -> Sequence[Message]:
    """Counts the messages, and returns to their publisher what has no queue to go to. The queues get those that are the
    result: who looks at them may mark some."""
    node = channel.connection.node
    count, own, exchange = len(messages), channel.counts, route.counts or _counts(channel, route, messages[0])
    own.publish += count
    exchange.publish_in += count
    exchange.publish_out += count * len(route.targets)
    if not route.targets and not _is_direct_reply(route, messages):
        if mandatory:
            # amqp-rules 5.4: the return comes before the ack
            for message in messages:
                channel.connection.out.returned(channel.number, NO_ROUTE, NO_ROUTE_TEXT, message)
            node.sending[channel.connection] = None
            own.return_unroutable += count
            exchange.return_unroutable += count
        else:
            own.drop_unroutable += count
            exchange.drop_unroutable += count
    if node.flows.counting and route.onward is None:
        node.flows.published(own, channel.vhost_name, messages[0].exchange, route.targets, count, node.now_ms)
    if node.watches and (watch := node.watches.get(channel.vhost_name)) is not None:
        messages = watch.published(channel, route, messages, ticket)
    if node.alarms_elsewhere:
        channel.connection.feeds(route.targets)
    if node.congested:
        for queue in route.targets:
            if queue in node.congested:
                channel.connection.waits_for(queue)
    return messages


def _counts(channel: Channel, route: Route[QueueHandle], message: Message) -> ExchangeCounts:
    """The counts of the exchange that a route begins at; the route remembers them."""
    vhost = channel.access.vhost
    # None is found of one that was deleted before the transaction was committed
    counts = vhost.counts(message.exchange.decode("utf-8", "surrogateescape"))
    route.counts = counts
    return counts


def _send_named(queue: QueueHandle, message: Message, ticket: Ticket | None, named: Named, now_ms: int) -> None:
    """A repeat is never refused: it is there already."""
    if not queue.rejects or queue.accepts(message, now_ms, named):
        queue.publish_named(*named, message, ticket, now_ms)
    elif ticket is not None:
        ticket.rejected = True


def _accepted(queue: QueueHandle, message: Message, ticket: Ticket | None, now_ms: int) -> bool:
    if not queue.accepts(message, now_ms):
        return False
    queue.publish((message,), ticket, now_ms)
    return True


def _is_direct_reply(route: Route[QueueHandle], messages: Sequence[Message]) -> bool:
    """A reply that reached its consumer was routed (amqp-rules 5.4)."""
    return route.found_exchange and route.uncacheable and messages[0].routing_key.startswith(REPLY_KEY)


def _confirm_select(channel: Channel, method: methods.ConfirmSelect) -> None:
    if channel.transaction is not None:
        raise precondition_failed("cannot switch from tx to confirm mode")
    if channel.confirms is None:
        channel.confirms = Confirms(channel.want_flush)
    if not method.nowait:
        channel.send(methods.ConfirmSelectOk())


HANDLERS: Final[dict[type[Method], Callable[[Channel, Any], None]]] = {
    methods.ConfirmSelect: _confirm_select,
}
