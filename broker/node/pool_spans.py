"""Spans of requests of worker pools, beside those of their publishes and deliveries (`broker.node.spans`).

    wait P-orphan   a sampled request waited among the orphans, until it was moved to its key's queue
    start POOL      a worker of its key: from its order until it was ready. Failed: it ended before
    answer POOL     the broker answered the request, or would have: it died

All are children of the request's publisher's span. The controller starts a worker for a key and not for a request, so a
start belongs to the request of the key that was moved last, until a worker of the key is ready.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from clusterbroker.broker.node.spans import Attributes, Context, Spans
from clusterbroker.broker.pools.controller import key_of
from clusterbroker.broker.pools.known import Started
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.wiring.pool_entities import Pool
from clusterbroker.journal.record import Message

if TYPE_CHECKING:
    from clusterbroker.broker.node.ports import NodeCore
    from clusterbroker.broker.node.watching import Watching

    class WatchedNode(NodeCore, Protocol):
        """The node."""

        watching: Watching


ASKING_MAX: Final = 1000
"""Keys whose sampled request is remembered for the start of their worker."""


class PoolSpans:
    """Of one node."""

    def __init__(self, node: WatchedNode) -> None:
        self._node = node
        self._asking: dict[tuple[LogIndex, str], Context] = {}

    @property
    def _spans(self) -> Spans | None:
        """None: nobody wants any."""
        found = self._node.watching.spans
        return found if isinstance(found, Spans) else None

    def moved(self, pool: Pool, key: str, queue: LocalQueue, request: Message) -> None:
        """From the orphans to the queue of its key."""
        spans = self._spans
        context = None if spans is None else spans.of(request)
        if spans is None or context is None:
            return
        self._asking.pop((pool.pool_id, key), None)
        if len(self._asking) >= ASKING_MAX:
            del self._asking[next(iter(self._asking))]
        self._asking[pool.pool_id, key] = context
        about = spans.about("wait", request, pool.vhost) | _of(pool, key) | {"messaging.destination.name": queue.name}
        spans.step(f"wait {queue.name}", context, request.time_ms, about)

    def started(self, pool: Pool, one: Started, now_ms: int) -> None:
        """A worker is ready, or is gone before."""
        spans = self._spans
        context = self._asking.get((pool.pool_id, one.key))
        if not one.failed:
            self._asking.pop((pool.pool_id, one.key), None)
        if spans is None or context is None:
            return
        about: Attributes = {
            "clusterbroker.node": self._node.options.name,
            "clusterbroker.vhost": pool.vhost,
            "clusterbroker.worker": one.worker_id,
            "clusterbroker.place": one.place,
        }
        spans.step(
            f"start {pool.name}", context, now_ms - round(1000 * one.took_s), about | _of(pool, one.key), one.failed
        )

    def answered(self, pool: Pool, request: Message, reason: str, heard: bool) -> None:
        """By the responder. `heard`: there was an address, and it took the answer."""
        spans = self._spans
        context = None if spans is None else spans.of(request)
        if spans is not None and context is not None:
            about = spans.about("answer", request, pool.vhost) | _of(pool, key_of(request.routing_key) or "")
            about |= {"clusterbroker.reason": reason, "clusterbroker.heard": heard}
            spans.step(f"answer {pool.name}", context, request.time_ms, about, reason)

    def pool_ended(self, pool_id: LogIndex) -> None:
        """No worker of it is started any more."""
        for of in [of for of in self._asking if of[0] == pool_id]:
            del self._asking[of]


def _of(pool: Pool, key: str) -> Attributes:
    return {"clusterbroker.pool": pool.name, "clusterbroker.key": key}
