"""Documents of sessions and links of AMQP 1.0: parts of the rows of sessions, which stand among channels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from clusterbroker.broker.stats.links import ClientLink, SessionWindows
from clusterbroker.broker.stats.rows import ChannelRow, ConnectionRow

from .errors import object_not_found
from .history import Track
from .paging import Listing
from .reading import Document, Reading, plain_table, same

CONTAINER: Final = "container-id"
"""Of a connection's client properties: what its client calls itself in open."""


class Found(NamedTuple):
    """A link, and where it is."""

    connection: ConnectionRow
    track: Track[ChannelRow]
    link: ClientLink

    @property
    def place(self) -> tuple[str, ...]:
        """In a list."""
        return (self.link.name, self.connection.connection_id, f"{self.track.row.number:05}", f"{self.link.handle:05}")


def container_of(connection: ConnectionRow) -> str | None:
    """The container-id of a client of AMQP 1.0."""
    told = connection.client_properties.get(CONTAINER)
    return told if isinstance(told, str) else None


def sessions(reading: Reading, connection: Track[ConnectionRow]) -> list[Document]:
    """All sessions of a connection, each with its links, as RabbitMQ 4 has them; one of AMQP 0-9-1 has none."""
    channels = reading.replica.channels.get(connection.row.connection_id, {})
    return [
        _session(reading, channels[number].row, channels[number].row.windows)
        for number in sorted(channels)
        if channels[number].row.windows is not None
    ]


def _session(reading: Reading, row: ChannelRow, windows: SessionWindows | None) -> Document:
    return {
        **same(windows, "handle_max", "next_incoming_id", "incoming_window", "next_outgoing_id",
               "remote_incoming_window"),
        "channel_number": row.number,
        "link_count": row.link_count,
        "outgoing_unsettled_deliveries": row.unacknowledged,
        "incoming_links": [_incoming(link) for link in row.links if not link.receives],
        "outgoing_links": [_outgoing(reading, link) for link in row.links if link.receives],
    }  # fmt: skip


def _incoming(link: ClientLink) -> Document:
    return {
        **same(link, "handle", "credit", "delivery_count"),
        "link_name": link.name,
        "target_address": link.address,
        "snd_settle_mode": "settled" if link.settled else "mixed",
        "max_message_size": link.message_bytes_max,
        "unconfirmed_messages": link.unsettled,
    }


def _outgoing(reading: Reading, link: ClientLink) -> Document:
    return {
        **same(link, "handle", "credit", "delivery_count"),
        "link_name": link.name,
        "source_address": link.address,
        "queue_name": _queue(reading, link).get("name", ""),
        "send_settled": link.settled,
        "unsettled_deliveries": link.unsettled,
        "filter": [{"name": name, "value": value} for name, value in plain_table(link.filters).items()],
    }


def _queue(reading: Reading, link: ClientLink) -> Document:
    queue = reading.map.queue_by_id(link.queue_id) if link.queue_id else None  # type: ignore[arg-type]
    return {} if queue is None else same(queue, "name", "vhost")


def listing(reading: Reading, vhost: str | None = None) -> Listing[Found]:
    """Links that the user may hear of."""
    found = sorted(_all(reading, vhost), key=lambda item: item.place)
    return Listing(
        found,
        name=lambda item: item.link.name,
        place=lambda item: item.place,
        document=lambda item: document(reading, item),
        quick=lambda path: (lambda item: item.link.name) if path == "name" else None,
    )


def named(reading: Reading, container: str, name: str) -> list[Document]:
    """Links of one container by one name: there is one of each role, and one for each of its connections. Refused (404)
    without any."""
    found = [item for item in _all(reading) if item.link.name == name and container_of(item.connection) == container]
    if not found:
        raise object_not_found()
    return [document(reading, item) for item in sorted(found, key=lambda item: item.place)]


def _all(reading: Reading, vhost: str | None = None) -> Iterator[Found]:
    own = reading.principal.own()
    for owner in reading.replica.connections.values():
        if own(owner.row) and vhost in (None, owner.row.vhost):
            for track in reading.replica.channels.get(owner.row.connection_id, {}).values():
                yield from (Found(owner.row, track, link) for link in track.row.links)


def document(reading: Reading, found: Found) -> Document:
    """One link."""
    connection, track, link = found
    answer: dict[str, Any] = {
        **same(link, "name", "handle", "address", "credit", "delivery_count"),
        "role": "receiver" if link.receives else "sender",
        "unsettled": link.unsettled,
        "snd_settle_mode": "settled" if link.settled else "mixed" if not link.receives else "unsettled",
        "rcv_settle_mode": "second" if link.settles_second else "first",
        "filter": plain_table(link.filters),
        "queue": _queue(reading, link),
        "container_id": container_of(connection),
        "session": track.row.number,
        "connection_details": same(connection, "name", "peer_host", "peer_port"),
        "node": reading.replica.node_of(track),
        "user": connection.user,
        "vhost": connection.vhost,
    }
    return answer
