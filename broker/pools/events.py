"""What happens in a pool that tells it: messages of its stream `P-events` (pure).

    received    a request stands in one of the pool's queues for the first time
    moved       it came from the orphans to the queue of its key
    delivered   a consumer has got it; `delivery_count`: how often it came back before after a failure
    returned    it was given back; `why`: `lost`, `rejected`, `failed`, `released`, or empty: nobody knows
    answered    who had it has acknowledged it; `took_ms`: since it was delivered
    died        nobody will; `reason` as in the caller's answer, `heard`: the caller has that
    started     a worker was ordered
    ready       it consumes, or has said so; `took_ms`: since its order
    exited      it is gone; `why` it was to leave, else empty

Each is a JSON object: `event`, `at_ms` (since 1970), `pool`, `vhost`, `node` (that says so), `key`, and what is known
of `queue`, `queue_id`, `seq` (its number there), `correlation_id`, `message_id`, `worker`, `place`. The message has the
event as its type, the key as its routing key, and both as headers: `x-event`, and `x-stream-filter-value` for readers
of one key.

An event is told once, when it happens, and waits for nothing: it is not part of what it tells. So those that a node
which dies has not handed over are missing, and what another owner finds to do again is told again.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

import msgspec

from clusterbroker.broker.content.message import KEY_BYTES_MAX, new_message
from clusterbroker.broker.content.properties import properties_of
from clusterbroker.broker.content.sections import readable
from clusterbroker.broker.content.selector.filters import FILTER_VALUE
from clusterbroker.broker.pools.activity_headers import EVENT, WORKER
from clusterbroker.broker.wire.amqp091.properties import Properties
from clusterbroker.cluster.wiring.pool_entities import NO_KEY, Pool
from clusterbroker.journal.record import Message

Name = Literal["received", "moved", "delivered", "returned", "answered", "died", "started", "ready", "exited"]
JSON: Final = "application/json"


class Event(NamedTuple):
    """One. `about`: the fields of its own."""

    name: Name
    at_ms: int
    key: str
    about: dict[str, Any]


class Ids(NamedTuple):
    """By which its caller knows a request; empty: it has not said."""

    correlation_id: str = ""
    message_id: str = ""

    @property
    def fields(self) -> dict[str, str]:
        """Those that there are."""
        return {name: value for name, value in self._asdict().items() if value}


def ids_of(request: Message) -> Ids:
    """Of a request."""
    properties = properties_of(request)
    return Ids(readable(properties.correlation_id or ""), readable(properties.message_id or ""))


def message_of(pool: Pool, node: str, event: Event) -> Message:
    """As the stream has it."""
    key = "" if event.key == NO_KEY else event.key
    said = {"event": event.name, "at_ms": event.at_ms, "pool": pool.name, "vhost": pool.vhost, "node": node, "key": key}
    headers: dict[str, Any] = {EVENT: event.name, FILTER_VALUE: key}
    if worker := event.about.get("worker"):
        headers[WORKER] = worker
    properties = Properties(
        content_type=JSON, type=event.name, headers=headers, delivery_mode=2, timestamp=event.at_ms // 1000,
        correlation_id=event.about.get("correlation_id"),
    )  # fmt: skip
    address = key if len(key.encode()) <= KEY_BYTES_MAX else ""
    return new_message("", address, properties, msgspec.json.encode(said | event.about), event.at_ms)
