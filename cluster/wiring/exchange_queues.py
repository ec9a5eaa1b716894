"""Queues that are a part of an exchange: of a delayed one, of one with a recent history, of one that deduplicates, and
of one with delays in keys. Pure."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from clusterbroker.cluster.ids import QueueId

from .commands import QueuedExchange
from .delay_commands import KeepDelays
from .entities import Queue
from .queue_rules import NAME_BYTES_MAX


def name_of(prefix: str, exchange: str) -> str:
    """The name of the queue of an exchange, which fits whatever the exchange is called."""
    name = prefix + exchange
    if len(name.encode("utf-8", "surrogatepass")) <= NAME_BYTES_MAX:
        return name
    return f"{prefix}~{sha256(exchange.encode('utf-8', 'surrogatepass')).hexdigest()}"


def queue_with(queue_id: QueueId, name: str, command: QueuedExchange | KeepDelays, arguments: dict[str, Any]) -> Queue:
    """The queue of an exchange, before it has a place."""
    return Queue(
        vhost=command.vhost,
        name=name,
        queue_id=queue_id,
        durable=True,
        auto_delete=False,
        exclusive_owner=None,
        arguments=arguments,
        owner=command.owner,
        incarnation=command.incarnation,
        replicas=(command.owner,),
        in_sync=(command.owner,),
        declared_ms=command.at_ms,
    )
