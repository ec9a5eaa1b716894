"""basic.publish and confirm.select: a batch of messages on its way to the publisher (`broker.access.publisher`).

The usual batch takes the short way: all of it goes by one remembered route. The long way, message by message, is for
what may differ between messages of one batch: user-id, reply-to, CC and BCC, producers that number their messages
(headers x-producer, a name, and x-seq, rising from 1), exchanges that look into headers, and queues that may refuse
(overflow reject-publish).

Order of checks (amqp-rules 5.1, 5.4): size and expiration, immediate, those of the publisher, properties.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from clusterbroker.broker.access.publisher import DELIVERIES_AT_ONCE, Named, affordable
from clusterbroker.broker.access.services import REPLY_TO, requested
from clusterbroker.broker.access.virtual_exchanges import VIRTUAL_EXCHANGES
from clusterbroker.broker.amqp import methods
from clusterbroker.broker.amqp.codec import Published
from clusterbroker.broker.amqp.errors import not_implemented, precondition_failed
from clusterbroker.broker.amqp.fields import FieldTable
from clusterbroker.broker.amqp.layout import Method
from clusterbroker.broker.content.message import with_flags, with_properties
from clusterbroker.broker.content.properties import properties_of
from clusterbroker.broker.fronts.amqp091.confirms import Confirms
from clusterbroker.broker.fronts.amqp091.dividing import divide
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.routing.carbon_copy import UnacceptableHeader, accepted_keys
from clusterbroker.broker.routing.router import Route
from clusterbroker.broker.transactions.onward import route_of
from clusterbroker.journal.layout import HAS_BCC, HAS_HEADERS, HAS_REPLY_TO, HAS_USER_ID, PERSISTENT
from clusterbroker.journal.record import Message

if TYPE_CHECKING:
    from clusterbroker.broker.fronts.amqp091.channel import Channel

PRODUCER_BYTES_MAX: Final = 255
NUMBER_MAX: Final = 2**62
"""Of x-seq."""
LOOKED_INTO: Final = HAS_HEADERS | HAS_USER_ID | HAS_REPLY_TO


def publish(channel: Channel, event: Published) -> None:
    """Takes a batch; raises the error that it deserves."""
    if event.refusal is not None:
        raise event.refusal
    if event.immediate:
        # amqp-rules 5.1: unsupported, 540
        raise not_implemented("immediate=true")
    access, publisher = channel.access, channel.publisher
    node = access.node
    known = publisher.routes.get(event.address)
    if known is None or known[0] != access.vhost.router.generation or known[1] != node.authorization_generation:
        service = VIRTUAL_EXCHANGES.get(event.exchange)
        if service is not None and requested(channel, service, event.exchange, event.routing_key, event.messages):
            return
        route = publisher.find(event.address, event.exchange, event.routing_key)
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
        count = len(event.messages)
        if len(route.targets) > 1 or count > DELIVERIES_AT_ONCE:
            portion = publisher.portion(route, count)
            if portion < count:
                divide(channel.connection, event, portion)
        _stage_or_send(channel, route, event.messages, event.mandatory)


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
    # what is staged outlives its node, whatever a row's delivery mode is: a commit means all rows
    messages = [one if one.persistent else with_flags(one, one.flags | PERSISTENT) for one in messages]
    mandatory = event.mandatory and bool(route.targets)
    if mandatory and (looked_into or onward.uncacheable):
        vhost = channel.access.vhost
        target = vhost.segments[event.exchange].target
        for place, message in enumerate(messages, 1):
            found = affordable(route_of, vhost.router, target, message)
            way = route if found.targets else Route()
            channel.publisher.publish(way, (message,), mandatory, channel.ticket(1))
            if not looked_into and labour.done > until and place < len(messages):
                divide(channel.connection, event, place)
                return
    else:
        way = Route() if mandatory and not onward.targets else route
        channel.publisher.publish(way, messages, mandatory, channel.ticket(len(messages)))


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
    properties = properties_of(message)
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
        reply = with_properties(message, changed) if changed is not properties else message
        if channel.transaction is not None:
            return reply, Route(uncacheable=True), None  # `replied` with the commit
        return message, channel.publisher.replied(reply), None
    try:
        copies, blind = accepted_keys(properties.headers)
    except UnacceptableHeader as error:
        raise precondition_failed(str(error)) from None
    if copies or blind:
        segment = vhost.segments.get(exchange)
        topic = exchange if segment is None else segment.target  # where its rows go when they are committed
        for each in (*copies, *blind):
            channel.access.check_topic("write", topic, each)
    route = affordable(
        vhost.router.route, exchange, key, lambda: properties.headers, (*copies, *blind),
        lambda name: getattr(properties, name, None),
    )  # fmt: skip
    if blind or changed is not properties:
        message = with_properties(message, changed, message.flags | HAS_BCC if blind else None)
    return message, route, _named(properties.headers)


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
    publisher, confirms = channel.publisher, channel.confirms
    if confirms is not None and any(queue.rejects for queue in route.targets):
        for message in messages:
            publisher.publish(route, (message,), mandatory, confirms.ticket(1), named)
    else:
        ticket = None if confirms is None else confirms.ticket(len(messages))
        publisher.publish(route, messages, mandatory, ticket, named)


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
