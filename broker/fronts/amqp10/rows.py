"""What operators are told of a connection of AMQP 1.0: rows of it, of its sessions with their links, and of receivers
as consumers of their queues."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from msgspec.structs import replace

from clusterbroker.broker.content.sections import to_field
from clusterbroker.broker.fronts.amqp10.attaching import HANDLE_MAX
from clusterbroker.broker.fronts.amqp10.expiry import NOTHING_KEPT
from clusterbroker.broker.fronts.amqp10.links import Link
from clusterbroker.broker.fronts.amqp10.ports import ConnectionCore
from clusterbroker.broker.fronts.amqp10.receiver_link import ReceiverLink
from clusterbroker.broker.fronts.amqp10.sender_link import SETTLED, SenderLink
from clusterbroker.broker.fronts.amqp10.session import Session
from clusterbroker.broker.stats.links import ClientLink, Level, SessionWindows
from clusterbroker.broker.stats.rows import AnyRow, ChannelRow, ConnectionRow, ConsumerRow, free

PROTOCOL: Final = "AMQP 1.0"
LINKS_TOLD: Final = 256
"""Links of one session: a row has to fit into a frame."""


def rows_of(connection: ConnectionCore, row: ConnectionRow) -> Iterator[AnyRow]:
    """None before the client has opened its connection. The walk may be interrupted between two rows."""
    if not connection.is_open:
        return
    yield connection_row(connection, row)
    for session in tuple(connection.sessions.values()):
        yield session_row(connection.id, session)
        for link in tuple(session.consumers.values()):
            yield receiver_row(connection.id, session.number, link)


def connection_row(connection: ConnectionCore, row: ConnectionRow) -> ConnectionRow:
    """`row`: what the shell knows."""
    backpressure = connection.backpressure
    if backpressure.publishes and (connection.node.alarms or backpressure.fed):
        state = "blocked"
    else:
        state = "running" if connection.reading and not backpressure.holds else "flow"
    entered = connection.access.entered
    return replace(
        row,
        protocol=PROTOCOL,
        vhost="" if entered is None else entered.name,
        auth_mechanism=connection.mechanism,
        tls=None if row.tls is None else replace(row.tls, peer_subject=connection.peer_identity or ""),
        client_properties=free({"container-id": connection.container_id, **to_field(connection.properties)}),
        frame_max_bytes=connection.out.frame_max,
        channel_max=connection.peer_channel_max,
        heartbeat_s=connection.heartbeat_s,
        connected_at_ms=connection.opened_at_ms,
        state=state,
        by_token=connection.access.by_token,
    )


def session_row(connection_id: str, session: Session) -> ChannelRow:
    """One session, which stands among channels."""
    return ChannelRow(
        connection_id=connection_id,
        number=session.number,
        confirm=True,
        state="closing" if session.closing else "running",
        consumers=len(session.consumers),
        unacknowledged=session.ledger.unacked,
        unconfirmed=session.outcomes.waiting,
        messages=session.totals,
        publishes=tuple(
            (exchange.decode("utf-8", "replace"), count) for exchange, count in session.counts.publishes.items()
        ),
        windows=SessionWindows(
            HANDLE_MAX,
            session.next_incoming_id,
            max(0, session.incoming_window),
            session.ledger.next_outgoing_id,
            session.ledger.window,
        ),
        links=tuple(link_row(session, session.links[handle]) for handle in islice(sorted(session.links), LINKS_TOLD)),
        link_count=len(session.links),
        receiver_count=sum(link.role for link in session.links.values()),
    )


def link_row(session: Session, link: Link) -> ClientLink:
    """One link, of any kind."""
    address, credit, unsettled, count = link.state
    told: dict[str, Any] = {}
    if isinstance(link, ReceiverLink):
        told = {
            "queue_id": link.queue.entity.queue_id,
            "settled": link.settled,
            "settles_second": link.rcv_second,
            "filters": free(to_field(link.source.filter or {})),
        }
    elif isinstance(link, SenderLink):
        told = {
            "settled": link.mode == SETTLED,
            "settles_second": not link.settles_first,
            "message_bytes_max": session.access.node.options.message_bytes_max,
        }
    terms = link.terms
    if isinstance(link, ReceiverLink | SenderLink):
        level: Level = "none" if terms is NOTHING_KEPT else "node" if terms.outlives_connection else "session"
        told["attached_at_ms"] = 0 if link.store is None else link.store.attachment.since_ms
        told |= {"level": level if link.store is None else "log", "expiry_policy": terms.policy}
        told["timeout_s"] = terms.timeout_s
    return ClientLink(
        name=link.name,
        handle=link.handle,
        receives=link.role,
        address=address,
        credit=credit,
        unsettled=unsettled,
        delivery_count=count,
        **told,
    )


def receiver_row(connection_id: str, session: int, link: ReceiverLink) -> ConsumerRow:
    """One link whose receiver is the client, which stands among consumers; its credit is its prefetch count."""
    credit = link.credit
    return ConsumerRow(
        connection_id=connection_id,
        channel=session,
        tag=link.name,
        queue_id=link.queue.entity.queue_id,
        ack_required=not link.settled,
        exclusive=link.exclusive,
        priority=credit.priority,
        prefetch_count=max(0, credit.limit - credit.delivered),
        active=credit.active,
        arguments=free(to_field(link.source.filter or {})),
        delivered=credit.delivered,
    )
