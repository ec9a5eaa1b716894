"""Documents of sessions and links of AMQP 1.0: links that are attached, which are parts of the rows of sessions, and
those whose clients are away (`stats.links`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from clusterbroker.broker.stats.links import ClientLink, SessionWindows, SuspendedRow, address_of
from clusterbroker.broker.stats.rows import ChannelRow, ConnectionRow
from clusterbroker.cluster.ids import QueueId
from clusterbroker.cluster.wiring.authorization import principal as told_as
from clusterbroker.cluster.wiring.entities import RecoverableLink

from .errors import bad_request, object_not_found
from .history import Track
from .paging import Listing
from .principals import ADMINISTRATOR, MONITORING, Principal
from .reading import Document, Reading, plain_table, same

CONTAINER: Final = "container-id"
"""Of a connection's client properties: what its client calls itself in open."""


class Found(NamedTuple):
    """A link that is attached, and where."""

    connection: ConnectionRow
    track: Track[ChannelRow]
    link: ClientLink

    @property
    def state(self) -> str:
        return "attached"

    @property
    def place(self) -> tuple[str, ...]:
        """In a list."""
        return (self.link.name, self.connection.connection_id, f"{self.track.row.number:05}", f"{self.link.handle:05}")

    @property
    def name(self) -> str:
        return self.link.name

    @property
    def vhost(self) -> str:
        return self.connection.vhost

    @property
    def container(self) -> str | None:
        return container_of(self.connection)

    @property
    def receives(self) -> bool:
        return self.link.receives

    def is_own(self, principal: Principal) -> bool:
        return principal.is_own(self.connection)

    def end(self, reading: Reading, force: bool) -> Document:
        """Of the node's operation `link.end`. Refused (400) without force."""
        where = reading.replica.node_of(self.track)
        if not force:
            raise bad_request(
                f"link '{self.name}' of container '{self.container}' is attached at node '{where}': with force=true it"
                " is detached first"
            )
        user = told_as(self.connection.user, self.connection.by_token)
        return _identity(where, self.vhost, self.container or "", self.name, self.receives, user) | {"force": True}


class Away(NamedTuple):
    """A link that is suspended. `node`: who keeps it; None: several do. `known`: a recoverable one."""

    row: SuspendedRow
    node: str | None
    known: RecoverableLink | None = None

    @property
    def state(self) -> str:
        return "suspended"

    @property
    def place(self) -> tuple[str, ...]:
        """In a list: before those of its name that are attached."""
        row = self.row
        return (row.name, "", row.vhost, row.container, row.user, str(row.receives), self.node or "")

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def vhost(self) -> str:
        return self.row.vhost

    @property
    def container(self) -> str | None:
        return None if self.row.container.startswith("\0") else self.row.container

    @property
    def receives(self) -> bool:
        return self.row.receives

    def is_own(self, principal: Principal) -> bool:
        return principal.is_principal(self.row.user)

    def end(self, _reading: Reading, _force: bool) -> Document:
        """Of the node's operation `link.end`."""
        row = self.row
        if self.known is not None:
            return {"link": self.known.link, "attach": self.known.attach}
        assert self.node is not None, "a node has it in its memory"
        return _identity(self.node, row.vhost, row.container, row.name, row.receives, row.user)


def _identity(node: str, vhost: str, container: str, name: str, receives: bool, user: str) -> Document:
    return {"node": node, "vhost": vhost, "container": container, "name": name, "receives": receives, "user": user}


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
        "queue_name": _queue(reading, link.queue_id).get("name", ""),
        "send_settled": link.settled,
        "unsettled_deliveries": link.unsettled,
        "filter": [{"name": name, "value": value} for name, value in plain_table(link.filters).items()],
    }


def _queue(reading: Reading, queue_id: int) -> Document:
    queue = reading.map.queue_by_id(QueueId(queue_id)) if queue_id else None
    return {} if queue is None else same(queue, "name", "vhost")


def listing(reading: Reading, vhost: str | None = None) -> Listing[Found | Away]:
    """Links that the user may hear of; `state` of the query: only those. Refused (400) for another one."""
    state = reading.query.get("state", "")
    if state not in ("", "attached", "suspended"):
        raise bad_request("state is attached or suspended")
    wanted = (item for item in _all(reading, vhost) if state in ("", item.state))
    found = sorted(wanted, key=lambda item: item.place)
    return Listing(
        found,
        name=lambda item: item.name,
        place=lambda item: item.place,
        document=lambda item: document(reading, item),
        quick=lambda path: (lambda item: item.name) if path == "name" else None,
    )


def named(reading: Reading, container: str, name: str) -> list[Document]:
    """Links of one container by one name: there is one of each role, and one for each of its connections. Refused (404)
    without any."""
    return [document(reading, item) for item in _named(reading, container, name)]


def named_in(reading: Reading, vhost: str, container: str, name: str) -> list[Document]:
    """Those of one vhost."""
    return [document(reading, item) for item in _named(reading, container, name, vhost)]


def _named(reading: Reading, container: str, name: str, vhost: str | None = None) -> list[Found | Away]:
    found = [item for item in _all(reading, vhost) if item.name == name and item.container == container]
    if not found:
        raise object_not_found()
    return sorted(found, key=lambda item: item.place)


def ends(reading: Reading, container: str, name: str, vhost: str | None = None) -> list[Document]:
    """Arguments of the node's operation `link.end`, for each link of this name. The query has `role`: only that one,
    and `force`: also one that is attached. Refused: 404 without any, 401 for another user's, 400 as the query says."""
    role, force = reading.query.get("role", ""), reading.query.get("force", "").lower() == "true"
    if role not in ("", "sender", "receiver"):
        raise bad_request("role is sender or receiver")
    found = [item for item in _named(reading, container, name, vhost) if role in ("", _role(item.receives))]
    if not found:
        raise object_not_found()
    if not all(item.is_own(reading.principal) for item in found):
        reading.principal.require(ADMINISTRATOR)
    return [item.end(reading, force) for item in found]


def _role(receives: bool) -> str:
    return "receiver" if receives else "sender"


def _all(reading: Reading, vhost: str | None = None) -> Iterator[Found | Away]:
    own = reading.principal.own()
    for owner in reading.replica.connections.values():
        if own(owner.row) and vhost in (None, owner.row.vhost):
            for track in reading.replica.channels.get(owner.row.connection_id, {}).values():
                yield from (Found(owner.row, track, link) for link in track.row.links)
    hears_all = reading.principal.has(MONITORING)
    for item in _away(reading):
        if vhost in (None, item.vhost) and (hears_all or item.is_own(reading.principal)):
            yield item


def _away(reading: Reading) -> Iterator[Away]:
    for node, tracks in reading.replica.suspended_links.items():
        yield from (Away(track.row, node) for track in tracks.values())
    for link in reading.map.links():
        if link.suspended:
            yield _recoverable(reading, link)


def _recoverable(reading: Reading, link: RecoverableLink) -> Away:
    """A link of the cluster's map, with what its members know of it."""
    queue = unsettled = since_ms = expires_ms = 0
    for (node, queue_id), track in reading.replica.recoverable_links.get(link.link, {}).items():
        if not queue_id:
            told = track.row
            since_ms, expires_ms, queue = max(
                (since_ms, expires_ms, queue), (told.since_ms, told.expires_ms, told.of_queue_id)
            )
        else:
            unsettled += track.row.unsettled if node == _leader(reading, QueueId(queue_id)) else 0
    row = SuspendedRow(
        vhost=link.vhost,
        container=link.container,
        name=link.name,
        receives=link.role == "receiver",
        user=link.user,
        level="log",
        address=address_of(link.terminus),
        queue_id=queue,
        unsettled=unsettled,
        since_ms=since_ms,
        expires_ms=expires_ms,
        expiry_policy="never" if link.timeout_ms is None else "link-detach",
        timeout_s=(link.timeout_ms or 0) // 1000,
    )
    return Away(row, _leader(reading, QueueId(queue)) if queue else None, link)


def _leader(reading: Reading, queue_id: QueueId) -> str | None:
    """The node whose word on a queue counts."""
    queue = reading.map.queue_by_id(queue_id)
    track = None if queue is None else reading.replica.queue_track(queue)
    return None if track is None else reading.replica.node_of(track)


def document(reading: Reading, found: Found | Away) -> Document:
    """One link."""
    return _suspended(reading, found) if isinstance(found, Away) else _attached(reading, found)


def _attached(reading: Reading, found: Found) -> Document:
    connection, track, link = found
    answer: dict[str, Any] = {
        **same(link, "name", "handle", "address", "credit", "delivery_count", "level", "expiry_policy", "timeout_s"),
        "role": _role(link.receives),
        "state": found.state,
        "since": link.attached_at_ms or None,
        "expires": None,
        "expires_in_s": None,
        "unsettled": link.unsettled,
        "snd_settle_mode": "settled" if link.settled else "mixed" if not link.receives else "unsettled",
        "rcv_settle_mode": "second" if link.settles_second else "first",
        "filter": plain_table(link.filters),
        "queue": _queue(reading, link.queue_id),
        "container_id": found.container,
        "session": track.row.number,
        "connection_details": same(connection, "name", "peer_host", "peer_port"),
        "node": reading.replica.node_of(track),
        "user": connection.user,
        "vhost": connection.vhost,
    }
    return answer


def _suspended(reading: Reading, found: Away) -> Document:
    row = found.row
    return {
        **same(row, "name", "address", "level", "expiry_policy", "timeout_s", "unsettled", "user", "vhost"),
        "handle": None,
        "credit": None,
        "delivery_count": None,
        "role": _role(row.receives),
        "state": found.state,
        "since": row.since_ms or None,
        "expires": row.expires_ms or None,
        "expires_in_s": max(0, row.expires_ms - reading.now_ms) // 1000 if row.expires_ms else None,
        "snd_settle_mode": None,
        "rcv_settle_mode": None,
        "filter": {},
        "queue": _queue(reading, row.queue_id),
        "container_id": found.container,
        "session": None,
        "connection_details": {},
        "node": found.node,
    }
