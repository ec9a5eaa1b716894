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

from clusterbroker.broker.access.addressing import LOOKED_INTO, OWN_WAY, addressed, as_row, looks_into, way_of_row
from clusterbroker.broker.access.publisher import DELIVERIES_AT_ONCE, Run, run_of
from clusterbroker.broker.access.services import requested
from clusterbroker.broker.access.virtual_exchanges import VIRTUAL_EXCHANGES
from clusterbroker.broker.content import numbers
from clusterbroker.broker.content.delays import runs as delay_runs
from clusterbroker.broker.fronts.amqp091.confirms import Confirms
from clusterbroker.broker.fronts.amqp091.dividing import divide
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.routing.router import Route
from clusterbroker.broker.wire.amqp091 import methods
from clusterbroker.broker.wire.amqp091.codec import Published
from clusterbroker.broker.wire.amqp091.errors import not_implemented, precondition_failed
from clusterbroker.broker.wire.amqp091.layout import Method
from clusterbroker.journal.record import Message

if TYPE_CHECKING:
    from clusterbroker.broker.fronts.amqp091.channel import Channel


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
    elif (
        not event.flags & OWN_WAY
        and (route.uncacheable or event.flags & LOOKED_INTO)
        and _sent_in_runs(channel, event, route)
    ):
        return
    elif route.uncacheable or (event.flags & LOOKED_INTO and looks_into(event.flags, event.messages)):
        labour, until = node.labour, channel.connection.until
        for place, message in enumerate(event.messages, 1):
            own, own_route, named = addressed(channel, event.exchange, event.routing_key, message, known=route)
            _stage_or_send(channel, own_route, (own,), event.mandatory, run_of(named))
            if place < len(event.messages) and (labour.done > until or channel.is_parked):
                divide(channel.connection, event, place)
                return
    else:
        count = len(event.messages)
        if len(route.targets) > 1 or count > DELIVERIES_AT_ONCE:
            portion = publisher.portion(route, count)
            if portion < count:
                divide(channel.connection, event, portion)
        _stage_or_send(channel, route, event.messages, event.mandatory)


def _sent_in_runs(channel: Channel, event: Published, route: Route[QueueHandle]) -> bool:
    """A batch with headers that need no decoding: to a delayed exchange, or where headers do not matter but for numbers
    of producers. False: nothing was done."""
    publisher, now_ms = channel.publisher, channel.access.node.now_ms
    delays = route.uncacheable
    ways = publisher.ways(event.exchange, event.routing_key) if delays else (route, route)
    found = None if ways is None else _runs(event.messages, delays, now_ms)
    if ways is None or found is None:
        return False
    portion = min(publisher.portion(way, len(event.messages)) for way in ways)
    if portion < len(event.messages):
        divide(channel.connection, event, portion)
        found = _runs(event.messages, delays, now_ms)
        assert found is not None, "each of them can be seen"
    for delayed, run, messages in found:
        _stage_or_send(channel, ways[delayed], messages, event.mandatory, run)
    return True


def _runs(
    messages: Sequence[Message], delays: bool, now_ms: int
) -> list[tuple[bool, Run | None, Sequence[Message]]] | None:
    """In runs of (whether they are delayed, their numbers, messages); None: one of them has to be decoded."""
    made: list[tuple[bool, Run | None, Sequence[Message]]] = []
    runs = numbers.runs(messages)
    for producer, numbered, some in runs or ():
        parts = delay_runs(some, now_ms) if delays else ((False, some),)
        if parts is None:
            return None
        at = 0
        for delayed, part in parts:
            run = None if producer is None or numbered is None else Run(producer, numbered[at : at + len(part)])
            made.append((delayed, run, part))
            at += len(part)
    return None if runs is None else made


def _stage_rows(channel: Channel, event: Published, route: Route[QueueHandle], onward: Route[QueueHandle]) -> None:
    """Rows of a segment. Those that are mandatory are returned when their target leads nowhere at this moment; a replay
    returns nothing."""
    if channel.transaction is not None:
        raise precondition_failed(f"exchange '{event.exchange}' takes nothing on a transactional channel")
    messages: Sequence[Message] = event.messages
    looked_into = looks_into(event.flags, event.messages)
    labour, until = channel.connection.node.labour, channel.connection.until
    if looked_into:
        looked_at: list[Message] = []
        for message in event.messages:
            looked_at.append(addressed(channel, event.exchange, event.routing_key, message)[0])
            if labour.done > until and len(looked_at) < len(event.messages):
                divide(channel.connection, event, len(looked_at))
                break
        messages = looked_at
    messages = [as_row(one) for one in messages]
    mandatory = event.mandatory and bool(route.targets)
    if mandatory and (looked_into or onward.uncacheable):
        for place, message in enumerate(messages, 1):
            way = way_of_row(channel.access, event.exchange, route, message)
            channel.publisher.publish(way, (message,), mandatory, channel.ticket(1))
            if not looked_into and labour.done > until and place < len(messages):
                divide(channel.connection, event, place)
                return
    else:
        way = Route() if mandatory and not onward.targets else route
        channel.publisher.publish(way, messages, mandatory, channel.ticket(len(messages)))


def _stage_or_send(
    channel: Channel,
    route: Route[QueueHandle],
    messages: Sequence[Message],
    mandatory: bool,
    run: Run | None = None,
) -> None:
    if channel.transaction is not None:
        if run is None:
            channel.transaction.publish(route, messages, mandatory, None)
            return
        for number, message in zip(run.numbers, messages, strict=True):
            channel.transaction.publish(route, (message,), mandatory, (run.producer, number))
        return
    publisher, confirms = channel.publisher, channel.confirms
    if confirms is not None and any(queue.rejects for queue in route.targets):
        for place, message in enumerate(messages):
            own = None if run is None else Run(run.producer, run.numbers[place : place + 1])
            publisher.publish(route, (message,), mandatory, confirms.ticket(1), own)
    else:
        ticket = None if confirms is None else confirms.ticket(len(messages))
        publisher.publish(route, messages, mandatory, ticket, run)


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
