"""What operators are told of a connection of 0-9-1: rows of it, of its channels and of their consumers."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from clusterbroker.broker.fronts.amqp091.channel import Channel
from clusterbroker.broker.fronts.amqp091.ports import ConnectionCore
from clusterbroker.broker.fronts.amqp091.state import State
from clusterbroker.broker.fronts.amqp091.subscription import Subscription
from clusterbroker.broker.stats.rows import AnyRow, ChannelRow, ConnectionRow, ConsumerRow, free


def rows_of(connection: ConnectionCore, row: ConnectionRow) -> Iterator[AnyRow]:
    """None before the client has opened its connection. The walk may be interrupted between two rows."""
    if connection.state not in (State.OPEN, State.CLOSING):
        return
    yield connection_row(connection, row)
    for channel in tuple(connection.channels.values()):
        yield channel_row(connection.id, channel)
        for subscription in tuple(channel.consumers.values()):
            yield consumer_row(connection.id, channel.number, subscription)


def connection_row(connection: ConnectionCore, row: ConnectionRow) -> ConnectionRow:
    """`row`: what the shell knows."""
    backpressure = connection.backpressure
    if connection.state is State.CLOSING:
        state = "closing"
    elif backpressure.publishes and (connection.node.alarms or backpressure.fed):
        state = "blocked"
    else:
        state = "running" if connection.reading else "flow"
    return replace(
        row,
        vhost=connection.vhost.name if connection.vhost is not None else "",
        auth_mechanism=connection.mechanism,
        tls=None if row.tls is None else replace(row.tls, peer_subject=connection.peer_identity or ""),
        client_properties=free(connection.client_properties),
        frame_max_bytes=connection.out.frame_max,
        channel_max=connection.channel_max,
        heartbeat_s=connection.heartbeat_s,
        connected_at_ms=connection.opened_at_ms,
        state=state,
        by_token=connection.access.by_token,
    )


def channel_row(connection_id: str, channel: Channel) -> ChannelRow:
    """One channel."""
    staged = channel.transaction
    return ChannelRow(
        connection_id=connection_id,
        number=channel.number,
        confirm=channel.confirms is not None,
        transactional=staged is not None,
        prefetch_count=channel.prefetch,
        global_prefetch_count=channel.ledger.prefetch,
        state="closing" if channel.closing else "running",
        consumers=len(channel.consumers),
        unacknowledged=channel.ledger.unacked,
        unconfirmed=0 if channel.confirms is None else channel.confirms.unconfirmed,
        uncommitted=0 if staged is None else sum(len(messages) for _, messages, _, _ in staged.publishes),
        acks_uncommitted=0 if staged is None else sum(len(entries) for entries, *_ in staged.settles),
        messages=channel.totals,
        publishes=tuple(
            (exchange.decode("utf-8", "replace"), count) for exchange, count in channel.counts.publishes.items()
        ),
    )


def consumer_row(connection_id: str, channel: int, subscription: Subscription) -> ConsumerRow:
    """One consumer."""
    credit = subscription.credit
    return ConsumerRow(
        connection_id=connection_id,
        channel=channel,
        tag=subscription.tag,
        queue_id=subscription.queue.entity.queue_id,
        ack_required=not subscription.no_ack,
        exclusive=subscription.exclusive,
        priority=credit.priority,
        prefetch_count=credit.prefetch,
        active=credit.active,
        arguments=free(subscription.arguments),
        delivered=credit.delivered,
    )
