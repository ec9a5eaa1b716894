"""Events that held the node's loop, without service to clients meanwhile.

Every event of a client or another node is meant to be short (`broker.routing.labour`, `broker.queues.effort`). The
log names the others: the client whose bytes were read, the member with the frame, the queue with the longest turn, or
the cluster's event (a command of the wiring, a link, a lease). Time is that of the wall: a machine that is too busy
shows, too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from clusterbroker.broker.node.clients import SocketCore
    from clusterbroker.broker.node.core import Node
    from clusterbroker.broker.server.log import NodeLog


HELD_MS: Final = 100


class Held:
    """Of one node's loop. `count`: events that held it for HELD_MS or longer."""

    __slots__ = ("_log", "count")

    def __init__(self, log: NodeLog) -> None:
        self._log = log
        self.count = 0

    def read(self, took_ms: int, connection: SocketCore) -> None:
        """A client's bytes were handled."""
        if took_ms >= HELD_MS:
            self._say("read", took_ms, peer=connection.peer, user=connection.user)

    def frame(self, took_ms: int, peer: str) -> None:
        """A frame of another node was carried out."""
        if took_ms >= HELD_MS:
            self._say("frame", took_ms, peer=peer)

    def turn(self, took_ms: int, node: Node) -> None:
        """A turn has ended; `Node.longest` is the queue that took most of it."""
        if took_ms >= HELD_MS:
            queue, longest_ns = node.longest, node.longest_ns
            facts = {}
            if queue is not None:
                facts = {"queue": queue.name, "vhost": queue.entity.vhost, "queue_ms": longest_ns // 1_000_000}
            self._say("turn", took_ms, **facts)

    @contextmanager
    def event(self, what: str, **facts: Any) -> Iterator[None]:
        """Something that happened to the cluster is carried out: "wiring", "linked", "unlinked", "lease", "tick"."""
        began_ns = time.monotonic_ns()
        yield
        took_ms = (time.monotonic_ns() - began_ns) // 1_000_000
        if took_ms >= HELD_MS:
            self._say(what, took_ms, **facts)

    def _say(self, what: str, took_ms: int, **facts: Any) -> None:
        self.count += 1
        self._log.held(what, took_ms, facts)
