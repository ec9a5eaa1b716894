"""Counts of a running node, as rows of `broker.stats`: a walk over its connections and queues.

The walk may be interrupted between two rows, for as long as it likes. So it looks at each thing only when it is that
thing's turn, and passes over what has ended meanwhile.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Container, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from clusterbroker.broker.content.formats import UnknownFormatError
from clusterbroker.broker.content.properties import property_of
from clusterbroker.broker.node.alerts import ALERTS_SHOWN_MAX
from clusterbroker.broker.node.counts import ExchangeCounts
from clusterbroker.broker.queues.queue import Queue
from clusterbroker.broker.queues.states import LEASED
from clusterbroker.broker.server.alarms import free_bytes, resident_bytes
from clusterbroker.broker.server.control.copying_operations import copying_facts
from clusterbroker.broker.server.link_ends import queue_id_of
from clusterbroker.broker.server.tls import shown
from clusterbroker.broker.stats.links import RecoverableRow
from clusterbroker.broker.stats.rows import (
    FLUSH_BOUNDS_MS,
    AlertRow,
    AnyRow,
    ConnectionRow,
    CopyLag,
    ExchangeRow,
    Key,
    LeaseRow,
    LinkRow,
    Listener,
    LoginSourceRow,
    LoginTotals,
    MessageTotals,
    NodeRow,
    QueueFlowRow,
    QueueRow,
    StreamRow,
    TlsFacts,
)
from clusterbroker.broker.streams.stream import Stream
from clusterbroker.broker.version import VERSION
from clusterbroker.cluster.ids import NodeId, QueueId
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from clusterbroker.cluster.wiring.levels import LEVEL, LINK_POLICIES
from clusterbroker.journal.flushes import BOUNDS_MS
from clusterbroker.replication.copies import State as CopyState

if TYPE_CHECKING:
    from clusterbroker.broker.node.clients import ClientCore
    from clusterbroker.broker.node.core import Node
    from clusterbroker.broker.node.vhost import VirtualHost
    from clusterbroker.broker.queues.local_queue import LocalQueue
    from clusterbroker.broker.queues.ring import Ring
    from clusterbroker.broker.queues.subscription import LocalConsumer, Member
    from clusterbroker.broker.server.client import Client
    from clusterbroker.broker.server.ports import ServerPort
    from clusterbroker.broker.server.scrub import Scrub
    from clusterbroker.journal.journal import Journal
    from clusterbroker.journal.record import Message

assert FLUSH_BOUNDS_MS == BOUNDS_MS, "rows have the journal's counts"


def rows(
    shell: ServerPort, started_at_ms: int, lag_ms: float, kept: Container[Key] = ()
) -> Iterator[AnyRow | Key]:  # fmt: skip
    """All that this node has to tell, itself first. `lag_ms`: how late its loop was at worst. `kept`: keys of rows that
    the asker has; of a queue that has been at rest since the last sample the key is enough."""
    node = shell.node
    yield node_row(shell, started_at_ms, lag_ms)
    for connection in tuple(node.clients.values()):
        client = shell.clients.get(connection)
        if client is not None:
            yield from connection.rows(connection_row(connection, client))
    for vhost in tuple(node.vhosts.values()):
        for name in tuple(vhost.exchanges):
            if name in vhost.exchanges:  # a slice may be long over
                yield exchange_row(vhost, name)
    for (vhost_name, exchange, queue_id), count in tuple(node.flows.totals.items()):
        if node.map.queue_by_id(QueueId(queue_id)) is not None:
            name = exchange.decode("utf-8", "replace")
            yield QueueFlowRow(vhost=vhost_name, exchange=name, queue_id=queue_id, publish=count)
    yield from queue_rows(node, kept)
    if node.role is not None:
        for queue_id, ring in tuple(node.role.copying.replicas.items()):
            entity = node.map.queue_by_id(QueueId(queue_id))
            if entity is not None and entity.owner is None:
                yield copy_row(entity, ring)
    if node.map.level >= LINK_POLICIES:  # older members could not read a batch with such rows
        yield from _suspended_links(shell)
    for source in node.churn.logins.sources():
        yield LoginSourceRow("amqp", *source)
    if shell.control is not None and (told := shell.control.logins) is not None:
        for source in told.sources:
            yield LoginSourceRow("http", *source)


def _suspended_links(shell: ServerPort) -> Iterator[AnyRow]:
    """Links whose clients are away, as far as this node knows them."""
    node = shell.node
    for left in node.links:
        if node.links.find(left.identity) is left:  # a slice may be long over
            yield left.row
    for queue, counts in node.recovery.known():
        for link, count in counts.items():
            yield RecoverableRow(link=link, queue_id=queue.entity.queue_id, unsettled=count)
    for found, since_ms in () if shell.link_ends is None else tuple(shell.link_ends.since()):
        expires_ms = 0 if found.timeout_ms is None else since_ms + found.timeout_ms
        queue_id = queue_id_of(node.map, found)
        yield RecoverableRow(link=found.link, since_ms=since_ms, expires_ms=expires_ms, of_queue_id=queue_id)


def _logins_over_http(shell: ServerPort) -> Iterator[LoginTotals]:
    if shell.control is not None and (told := shell.control.logins) is not None:
        yield LoginTotals("http", told.succeeded, told.failed)


DESCRIPTORS: Final = "/dev/fd"
"""The open ones of this process, as Linux and macOS list them."""


def node_row(shell: ServerPort, started_at_ms: int, lag_ms: float) -> NodeRow:
    """What the process and its place in the cluster are like at this moment."""
    node, options = shell.node, shell.options
    directory = options.data_dir
    member = node.map.member(NodeId(options.node.name))
    now_ms = time.time_ns() // 1_000_000
    files_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    listeners = [
        Listener(listener.protocol, where.host, where.port)
        for listener in shell.listeners
        for where in listener.addresses
    ]
    if options.cluster is not None:
        listeners.append(Listener("clustering", options.cluster.listen.host, options.cluster.listen.port))
    listeners += [Listener("http", where.host, where.port) for where in options.http]
    listeners += [Listener("https", where.host, where.port) for where in options.https]
    return NodeRow(
        name=options.node.name,
        version=VERSION,
        os_pid=os.getpid(),
        started_at_ms=started_at_ms,
        uptime_ms=max(0, now_ms - started_at_ms),
        processors=os.cpu_count() or 1,
        data_directory="" if directory is None else str(directory.absolute()),
        memory_used_bytes=resident_bytes(),
        memory_limit_bytes=shell.alarms.memory_limit_bytes,
        disk_free_bytes=free_bytes(directory or Path("/")),
        disk_free_limit_bytes=options.alarms.disk_free_bytes,
        files_used=len(os.listdir(DESCRIPTORS)),
        files_limit=files_limit,
        sockets_used=len(shell.clients),
        sockets_limit=min(files_limit, options.node.connections_max),
        alarms=tuple(node.alarms),
        draining=member is not None and member.draining,
        listeners=tuple(listeners),
        loop_lag_ms=round(lag_ms, 3),
        wiring_index=node.map.applied,
        feature_level=node.map.level,
        supported_feature_level=LEVEL,
        links=tuple(_links(shell)),
        connections_created=shell.connections_created,
        connections_closed=shell.connections_created - len(shell.clients),
        channels_created=node.churn.channels,
        channels_closed=node.churn.channels - sum(len(one.channels) for one in node.clients.values()),
        queues_declared=node.churn.queues_declared,
        queues_created=node.churn.queues_created,
        queues_deleted=node.churn.queues_deleted,
        logins=(LoginTotals("amqp", node.churn.logins.succeeded, node.churn.logins.failed), *_logins_over_http(shell)),
        messages=node.churn.messages(
            channel.totals for connection in node.clients.values() for channel in connection.channels.values()
        ),
        certificates=tuple(
            shown(listener.protocol, where.host, where.port, listener.tls)
            for listener in shell.listeners
            if listener.tls is not None
            for where in listener.addresses
        ),
        alerts=tuple(
            AlertRow(one.kind, one.subject, one.text, one.since_ms) for one in islice(node.alerts, ALERTS_SHOWN_MAX)
        ),
        alerts_count=len(node.alerts),
        loop_held=shell.held.count,
        clock_jumps=shell.clock.jumps,
        routes_refused=node.labour.refused,
        bridges=() if shell.bridges is None else tuple(shell.bridges.counted()),
        pools=node.pools.rows(),
        place=node.pools.place(),
        **_of_journal(shell.storage.journal),
        **_of_scrub(shell.scrub),
        **_of_member(shell),
        **copying_facts(shell),
    )


def _of_journal(journal: Journal | None) -> dict[str, Any]:
    """Of a node that has one; what is missing is as the row says."""
    if journal is None:
        return {}
    segments, octets = journal.size()
    return {
        "journal_segments": segments,
        "journal_bytes": octets,
        "journal_written_bytes": journal.written_bytes,
        "journal_flushes": journal.flushes.count,
        "journal_flush_us": journal.flushes.us,
        "journal_flush_counts": tuple(journal.flushes.counts),
        "journal_reads": journal.reads,
        "journal_read_bytes": journal.read_bytes,
        "journal_read_us": journal.read_us,
    }


def _of_scrub(scrub: Scrub | None) -> dict[str, Any]:
    if scrub is None:
        return {}
    return {
        "scrub_percent": scrub.percent,
        "scrub_passes": scrub.passes,
        "scrub_bytes": scrub.bytes_read,
        "scrub_found": scrub.found,
    }


def _of_member(shell: ServerPort) -> dict[str, Any]:
    """Of a node that is in a cluster."""
    cluster, role = shell.cluster, shell.node.role
    found: dict[str, Any] = {}
    if cluster is not None:
        found = {
            "incarnation": shell.node.options.incarnation,
            "leased": cluster.heart.leased(),
            "lease_left_ms": cluster.heart.lease_left_ms(),
            "wiring_leader": cluster.raft.leader or "",
            "wiring_term": cluster.raft.term,
        }
    if role is not None:
        found["copies_sent_bytes"] = role.copying.sent_bytes
        found["copies_received_bytes"] = role.copying.received_bytes
    return found


def _links(shell: ServerPort) -> Iterator[LinkRow]:
    cluster, role = shell.cluster, shell.node.role
    linked = () if role is None else role.hub.linked
    clocks = {} if cluster is None else cluster.heart.clocks_ahead_ms()
    for member in shell.node.map.members():
        if (peer := member.name) != shell.options.node.name:
            sent, received = (0, 0) if cluster is None else cluster.mesh.traffic(peer)
            yield LinkRow(peer, peer in linked, sent, received, clocks.get(peer, 0))


def connection_row(core: ClientCore, client: Client) -> ConnectionRow:
    """What the shell knows of a client; its protocol tells the rest (`ClientCore.rows`)."""
    host, port = client.own_address
    peer_host, _, peer_port = core.peer.rpartition(":")
    negotiated = client.cipher
    return ConnectionRow(
        connection_id=core.id,
        user=core.user,
        peer_host=peer_host.strip("[]") or core.peer,
        peer_port=int(peer_port) if peer_port.isdigit() else 0,
        host=host,
        port=port,
        tls=None if negotiated is None else TlsFacts(protocol=negotiated[1].lower(), cipher=negotiated[0]),
        channels=len(core.channels),
        received_bytes=client.received_bytes,
        received_reads=client.received_reads,
        sent_bytes=client.sent_bytes,
        sent_writes=client.sent_writes,
        pending_send_bytes=core.out.size + client.unsent_bytes,
    )


def exchange_row(vhost: VirtualHost, name: str) -> ExchangeRow:
    """What was published to an exchange here."""
    counts = vhost.exchanges[name]
    return ExchangeRow(
        vhost=vhost.name, name=name, **{field: getattr(counts, field) for field in ExchangeCounts.__slots__}
    )


def lags(node: Node, queue: LocalQueue) -> tuple[CopyLag, ...]:
    """How much each copy of a queue may lack at most. One that has acknowledged all it was sent lacks nothing; one that
    owes an answer, what is not committed; and nobody knows what one has that is not synced yet."""
    if node.role is None:
        return ()
    ring, found = queue.ring, []
    for copy in node.role.copying.primary.copies(queue.entity.queue_id):
        if copy.state is CopyState.SYNCED:
            found.append(CopyLag(copy.node, max(0, ring.next_seq - ring.committed) if copy.owed_last else 0))
        else:
            found.append(CopyLag(copy.node, queue.ready + ring.unacked, queue.ready_bytes, in_sync=False))
    return tuple(found)


def queue_totals(ring: Ring) -> MessageTotals:
    """What the ring has counted since this node owns the queue."""
    return MessageTotals(
        publish=ring.published,
        deliver=ring.handed - ring.handed_no_ack,
        deliver_no_ack=ring.handed_no_ack,
        get=ring.got,
        get_no_ack=ring.got_no_ack,
        get_empty=ring.got_empty,
        redeliver=ring.redelivered,
        ack=ring.acked,
        disk_reads=ring.disk_reads,
        disk_writes=ring.disk_writes,
    )


def queue_rows(node: Node, kept: Container[Key]) -> Iterator[QueueRow | Key]:
    """Of the queues that are owned here; `kept`: as for `rows`."""
    for queue_id, queue in tuple(node.queues.items()):
        if queue.rest_at and queue.rest_at == queue.ring.counted_at_rest and (key := ("queue", queue_id)) in kept:
            yield key
        elif not queue.deleted:
            yield queue_row(queue, lags(node, queue), node.damages.held_back(queue_id))


def queue_row(queue: LocalQueue, copies: tuple[CopyLag, ...] = (), held_back: tuple[int, ...] = ()) -> QueueRow:
    """A queue that is owned here. Whether it is at rest is noted with it: ten thousand are, and need no other row."""
    rests = isinstance(queue, Queue) and queue.leasing is None and not queue.paused and not queue.subscriptions
    queue.rest_at = queue.ring.counted_at_rest if rests and not copies and not held_back else 0
    ring = queue.ring
    subscriptions, head = queue.subscriptions, ring.head_message()
    return QueueRow(
        queue_id=queue.entity.queue_id,
        epoch=queue.entity.epoch,
        state="opening" if queue.paused and not queue.broken else "running",
        ready=queue.ready,
        unacknowledged=ring.unacked,
        ready_bytes=queue.ready_bytes,
        persistent=queue.ready + ring.unacked - ring.fleeting if _kept(ring) else 0,
        persistent_bytes=queue.ready_bytes if _kept(ring) and not ring.fleeting else 0,
        in_memory=ring.resident,
        in_memory_bytes=ring.resident_bytes,
        memory_bytes=ring.resident_bytes,
        consumers=len(subscriptions),
        consumer_capacity=round(subscriptions.capacity(queue.host.now_ms), 3),
        head_timestamp_s=_stamped(head),
        head_ms=None if head is None else head.time_ms or None,
        exclusive_consumer_tag=next(filter(None, map(_tag, subscriptions)), None) if subscriptions.exclusive else None,
        single_active_consumer_tag=_tag(subscriptions.active),
        messages=queue_totals(ring),
        copies=copies,
        lease=_lease(queue),
        stream=_stream(queue) if isinstance(queue, Stream) else None,
        readers=queue.readers() if isinstance(queue, Stream) and not queue.paused else (),
        held_back=held_back,
    )


def _stream(queue: Stream) -> StreamRow:
    (first, end), files = queue.bounds, queue.ring.past.files
    return StreamRow(first, end, len(files), sum(part.size for part in files), files[0].first_ms if files else None)


def _lease(queue: LocalQueue) -> LeaseRow | None:
    lease = queue.leasing.lease if isinstance(queue, Queue) and queue.leasing is not None else None
    if lease is None:
        return None
    rows, until_ms = queue.ring.held_by(LEASED), lease.heard_ms + lease.ttl_ms
    return LeaseRow(lease.name, lease.run, lease.acknowledged, lease.end, rows, until_ms)


def _kept(ring: Ring) -> bool:
    return bool(ring.journaled or ring.replicated)


def _stamped(head: Message | None) -> int | None:
    """The property `timestamp` of a message, if this release can read it."""
    try:
        return None if head is None else property_of(head, "timestamp")
    except UnknownFormatError:
        return None


def _tag(consumer: Member | None) -> str | None:
    """Of a consumer at this node; one at another node is known there by its tag."""
    return None if consumer is None or consumer.node else cast("LocalConsumer", consumer).tag


def copy_row(entity: QueueEntity, ring: Ring) -> QueueRow:
    """A copy of a queue that nobody owns: what would be there if this node took it over."""
    past = ring.past
    ready = ring.ready + (0 if past is None else past.count)
    ready_bytes = ring.ready_bytes + (0 if past is None else past.bytes)
    return QueueRow(
        queue_id=entity.queue_id,
        owned=False,
        epoch=ring.epoch,
        state="down",
        ready=ready,
        ready_bytes=ready_bytes,
        persistent=ready,
        persistent_bytes=ready_bytes,
        in_memory=ring.resident,
        in_memory_bytes=ring.resident_bytes,
        memory_bytes=ring.resident_bytes,
    )
