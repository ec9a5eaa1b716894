"""The node that leads ends links that were suspended for their timeout (`cluster.wiring.link_expiry`)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from clusterbroker.broker.fronts.amqp10.addresses import queue_of, target_of
from clusterbroker.broker.stats.links import address_of
from clusterbroker.broker.wire.amqp10.errors import LinkError
from clusterbroker.cluster.wiring.changes import LinkSuspended
from clusterbroker.cluster.wiring.link_expiry import LinkExpiry

if TYPE_CHECKING:
    from clusterbroker.broker.server.ports import ServerPort
    from clusterbroker.cluster.ids import LogIndex
    from clusterbroker.cluster.wiring.entities import RecoverableLink
    from clusterbroker.cluster.wiring.map import Applied
    from clusterbroker.cluster.wiring.view import ClusterView

EVERY_MS: Final = 10_000
"""A node hears within this time that it leads."""
SOON_MS: Final = 10


def queue_id_of(view: ClusterView, link: RecoverableLink) -> int:
    """The queue that a link receives from, or sends to; 0: an exchange, or none that there is."""
    try:
        if link.role == "receiver":
            name = queue_of(address_of(link.terminus))
        else:
            target = target_of(link.terminus, lambda name: view.queue(link.vhost, name) is None)
            if target.exchange:
                return 0
            name = target.key
    except LinkError:
        return 0
    queue = view.queue(link.vhost, name)
    return 0 if queue is None else queue.queue_id


class LinkEnds:
    """Looks at the map when a link was suspended, when one is due, and every EVERY_MS."""

    def __init__(self, shell: ServerPort) -> None:
        self._shell = shell
        self._expiry = LinkExpiry()
        self._timer: asyncio.TimerHandle | None = None
        self._seen: dict[LogIndex, tuple[int, int]] = {}  # suspended link -> (its attach, since when)
        shell.storage.wiring.listen(self._applied)
        self._look()

    def since(self) -> Iterator[tuple[RecoverableLink, int]]:
        """Links that this node, which leads, sees suspended, and since when: wall clock, ms."""
        for link, (attach, since_ms) in self._seen.items():
            found = self._shell.storage.wiring.map.link(link)
            if found is not None and found.suspended and found.attach == attach:
                yield found, since_ms

    def _applied(self, applied: Applied) -> None:
        if any(isinstance(change, LinkSuspended) for change in applied.changes):
            self._in(SOON_MS)

    def _in(self, ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._shell.loop.call_later(ms / 1000, self._look)

    def _look(self) -> None:
        shell, wiring = self._shell, self._shell.storage.wiring
        if shell.ended.done():
            return
        leads = shell.cluster is None or shell.cluster.raft.is_leader
        now_ms = shell.clock.monotonic_ms()
        over, next_ms = self._expiry.look(leads, wiring.map, now_ms)
        wall_ms, before = shell.clock.now_ms(), self._seen
        self._seen = {
            link: before[link] if before.get(link, (0,))[0] == attach else (attach, wall_ms - (now_ms - seen_ms))
            for link, (attach, seen_ms) in self._expiry.seen.items()
        }
        self._in(EVERY_MS if next_ms is None else max(SOON_MS, min(EVERY_MS, next_ms - now_ms)))
        for command in over:
            wiring.propose(command)
