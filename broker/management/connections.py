"""Documents of connections, channels and consumers: all of them rows, told by the node that a client is at."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final

from clusterbroker.broker.stats.rows import ChannelRow, ConnectionRow, ConsumerRow

from .errors import object_not_found
from .history import Get, Track, quick
from .links import container_of
from .paging import Listing
from .principals import MONITORING
from .reading import Document, Reading, moment, plain, plain_table, same
from .statistics import CHANNEL_FIELDS, CHANNEL_GAUGES, CONNECTION_BYTES, CONNECTION_COUNTS

PUBLISHERS_MAX: Final = 500
Visible = tuple[str, Track[Any]]
"""A name, and the row behind it."""


# -- connections ----------------------------------------------------------------------------------------------


def connection_listing(reading: Reading, vhost: str | None = None) -> Listing[Visible]:
    """Connections that the user may hear of."""
    own = reading.principal.own()
    found = sorted(
        (
            (track.row.name, track)
            for track in reading.replica.connections.values()
            if own(track.row) and vhost in (None, track.row.vhost)
        ),
        key=lambda item: (item[0], item[1].row.connection_id),
    )
    return Listing(
        found,
        name=lambda item: item[0],
        place=lambda item: (item[0], item[1].row.connection_id),
        document=lambda item: connection_document(reading, item[1]),
        quick=_quick_connection,
    )


def _quick_connection(path: str) -> Callable[[Visible], Any] | None:
    field = "connected_at_ms" if path == "connected_at" else path
    get = quick(path, CONNECTION_BYTES) or quick(path, CONNECTION_COUNTS)
    if get is None and field in ("name", "user", "vhost", "state", "connected_at_ms"):
        return lambda item: getattr(item[1].row, field)
    return None if get is None else lambda item: get(item[1])


_AS_TOLD: Final = (
    "auth_mechanism", "channel_max", "connection_id", "host", "name", "peer_host", "peer_port", "port", "protocol",
    "state", "user", "vhost",
)  # fmt: skip
"""Of a row, what its document names alike."""
_TLS: Final = {
    "peer_cert_issuer": "peer_issuer", "peer_cert_subject": "peer_subject", "peer_cert_validity": "peer_validity",
    "ssl_cipher": "cipher", "ssl_hash": "digest", "ssl_key_exchange": "key_exchange", "ssl_protocol": "protocol",
}  # fmt: skip


def connection_document(reading: Reading, track: Track[ConnectionRow]) -> Document:
    """One connection."""
    row = track.row
    answer: Document = {
        **same(row, *_AS_TOLD),
        **{field: getattr(row.tls, source, None) for field, source in _TLS.items()},
        **{field: get(row) for field, get in CONNECTION_COUNTS.items()},
        "client_properties": plain_table(row.client_properties),
        "connected_at": row.connected_at_ms,
        "container_id": container_of(row),
        "frame_max": row.frame_max_bytes,
        "node": reading.replica.node_of(track),
        "send_pend": row.pending_send_bytes,
        "ssl": row.tls is not None,
        "timeout": row.heartbeat_s,
        "type": "network",
        "user_who_performed_action": row.user,
    }
    given = row.client_properties.get("connection_name")
    if given is not None:
        answer["user_provided_name"] = plain(given)
    answer.update(reading.counted("data_rates", (track,), CONNECTION_BYTES))
    return answer


def connection_named(reading: Reading, name: str) -> Track[ConnectionRow]:
    """The connection of this name that the user may hear of. Refused (404) without one."""
    track = reading.replica.connections.get(reading.replica.connection_ids.get(name, ""))
    if track is None:
        raise object_not_found()
    if not reading.principal.is_own(track.row):
        reading.principal.require(MONITORING)
    return track


def rows_of_user(reading: Reading, user: str) -> list[ConnectionRow]:
    """All connections of one user that may be heard of, by name. Refused (401) when it is another one and the user does
    not monitor."""
    if user != reading.principal.name:
        reading.principal.require(MONITORING)
    own = reading.principal.own()
    found = (track.row for track in reading.replica.connections.values())
    return sorted((row for row in found if row.user == user and own(row)), key=lambda row: row.name)


def connections_of_user(reading: Reading, user: str) -> list[Document]:
    """Short lines about all connections of one user."""
    return [
        same(row, "name", "user", "vhost")
        | {"node": reading.replica.node_of(reading.replica.connections[row.connection_id])}
        for row in rows_of_user(reading, user)
    ]


# -- channels -------------------------------------------------------------------------------------------------


def channel_name(connection: ConnectionRow, number: int) -> str:
    """`client -> node (number)`."""
    return f"{connection.name} ({number})"


def channel_listing(
    reading: Reading, vhost: str | None = None, connection: Track[ConnectionRow] | None = None
) -> Listing[Visible]:
    """Channels that the user may hear of; of one vhost or one connection when told so."""
    own = reading.principal.own()
    owners: Iterable[Track[ConnectionRow]] = reading.replica.connections.values()
    if connection is not None:
        owners = (connection,)
    found = sorted(
        (
            ((owner.row.name, track.row.number), track)
            for owner in owners
            if own(owner.row) and vhost in (None, owner.row.vhost)
            for track in reading.replica.channels.get(owner.row.connection_id, {}).values()
        ),
        key=lambda item: (*item[0], item[1].row.connection_id),
    )
    named = [(f"{name} ({number})", track) for (name, number), track in found]
    return Listing(
        named,
        name=lambda item: item[0],
        place=lambda item: (
            item[0].rpartition(" ")[0], f"{item[1].row.number:05}", item[1].row.connection_id,
        ),
        document=lambda item: channel_document(reading, item[1]),
        quick=lambda path: (lambda item: item[0]) if path == "name" else None,
    )  # fmt: skip


def channel_document(reading: Reading, track: Track[ChannelRow]) -> Document:
    """One channel, as in a list."""
    row = track.row
    connection = reading.replica.connections.get(row.connection_id)
    assert connection is not None, "a channel that is shown has a connection"
    about = connection.row
    answer: Document = {
        **same(row, "confirm", "number", "state", "transactional"),
        "connection_details": same(about, "name", "peer_host", "peer_port"),
        "message_stats": reading.counted("msg_rates", (track,), CHANNEL_FIELDS),
        "name": channel_name(about, row.number),
        "node": reading.replica.node_of(track),
        "user": about.user,
        "user_who_performed_action": about.user,
        "vhost": about.vhost,
        **{field: get(row) for field, get in CHANNEL_GAUGES.items()},
    }
    if track.idle_since_ms:
        answer["idle_since"] = moment(track.idle_since_ms)
    return answer


def channel_full(reading: Reading, name: str) -> Document:
    """One channel with its consumers. Refused (404) without one."""
    connection_name, _, number = name.rpartition(" (")
    connection = connection_named(reading, connection_name)
    place = number.removesuffix(")")
    channels = reading.replica.channels.get(connection.row.connection_id, {})
    track = channels.get(int(place)) if place.isascii() and place.isdigit() and len(place) < 6 else None
    if track is None:
        raise object_not_found()
    answer = channel_document(reading, track)
    consumers = reading.replica.consumers_of_channel.get((track.row.connection_id, track.row.number), {})
    answer["consumer_details"] = [consumer_document(reading, consumers[tag]) for tag in sorted(consumers)]
    answer["deliveries"] = deliveries(reading, consumers.values(), by_queue=True)
    vhost = connection.row.vhost
    answer["publishes"] = [
        {"exchange": {"name": exchange, "vhost": vhost}, "stats": published(reading, track, exchange)}
        for exchange, _ in sorted(track.row.publishes)
    ]
    return answer


def published(reading: Reading, track: Track[ChannelRow], exchange: str) -> Document:
    """What a channel published to an exchange."""
    return reading.counted("msg_rates", (track,), {"publish": lambda row: dict(row.publishes).get(exchange, 0)})


def publishers(reading: Reading, vhost: str, exchange: str) -> list[Document]:
    """Channels that published to an exchange, of those that the user may hear of; the first PUBLISHERS_MAX."""
    channels = (track for _, track in channel_listing(reading, vhost).items)
    found = (track for track in channels if any(name == exchange for name, _ in track.row.publishes))
    return [
        {
            "channel_details": _channel_details(reading, track, track.row.connection_id, track.row.number),
            "stats": published(reading, track, exchange),
        }
        for track in islice(found, PUBLISHERS_MAX)
    ]


def deliveries(reading: Reading, consumers: Iterable[Track[ConsumerRow]], *, by_queue: bool) -> list[Document]:
    """What consumers that are there were handed, by queue or by channel."""
    told: dict[Any, list[Track[ConsumerRow]]] = {}
    for track in consumers:
        row = track.row
        told.setdefault(row.queue_id if by_queue else (row.connection_id, row.channel), []).append(track)
    answer = []
    for key in sorted(told):
        about = consumer_document(reading, told[key][0])
        place = {"queue": about["queue"]} if by_queue else {"channel_details": about["channel_details"]}
        answer.append({**place, "stats": reading.counted("msg_rates", told[key], _DELIVERED)})
    return answer


_DELIVERED: Final[dict[str, Get]] = {
    "deliver": lambda row: row.delivered if row.ack_required else 0,
    "deliver_get": lambda row: row.delivered,
    "deliver_no_ack": lambda row: 0 if row.ack_required else row.delivered,
}

# -- consumers ------------------------------------------------------------------------------------------------


def consumer_listing(reading: Reading, vhost: str | None = None) -> Listing[Visible]:
    """Consumers that the user may hear of."""
    own = reading.principal.own()
    found: list[tuple[tuple[str, ...], Track[ConsumerRow]]] = []
    for queue_id in reading.replica.consumers:
        for track in reading.replica.consumers[queue_id].values():
            connection = reading.replica.connections.get(track.row.connection_id)
            if connection is None or not own(connection.row) or vhost not in (None, connection.row.vhost):
                continue
            found.append((_consumer_place(track.row), track))
    found.sort(key=lambda item: item[0])
    return Listing(
        [(track.row.tag, track) for _, track in found],
        name=lambda item: item[0],
        place=lambda item: _consumer_place(item[1].row),
        document=lambda item: consumer_document(reading, item[1]),
        quick=lambda path: (lambda item: item[0]) if path == "consumer_tag" else None,
    )


def _consumer_place(row: ConsumerRow) -> tuple[str, ...]:
    return (row.tag, row.connection_id, f"{row.channel:05}")


def _channel_details(reading: Reading, track: Track[Any], connection_id: str, number: int) -> Document:
    connection = reading.replica.connections.get(connection_id)
    about: Document = {"number": number, "node": reading.replica.node_of(track)}
    if connection is not None:
        told = connection.row
        about |= {"connection_name": told.name, "name": channel_name(told, number)}
        about |= same(told, "peer_host", "peer_port", "user")
    return about


def consumer_document(reading: Reading, track: Track[ConsumerRow]) -> Document:
    """One consumer."""
    row = track.row
    queue = reading.map.queue_by_id(row.queue_id)  # type: ignore[arg-type]
    return {
        **same(row, "ack_required", "active", "exclusive", "prefetch_count"),
        "activity_status": "up" if row.active else "waiting",
        "arguments": plain_table(row.arguments),
        "channel_details": _channel_details(reading, track, row.connection_id, row.channel),
        "consumer_tag": row.tag,
        "queue": same(queue, "name", "vhost") if queue is not None else {},
    }
