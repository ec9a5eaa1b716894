"""Frames of one turn to one owner, in their order.

A turn's output is bundled: all publishes come first, in as few frames as their bytes allow, then everything else in
its order, then one frame with all credit. Per queue this is the order of calls: a client that publishes and then asks
for the number of messages counts its own.

The window: at most WINDOW_BYTES of messages are on the way to one owner, sent and not reported as committed. The rest
waits at the proxy, where it slows publishers down (`RemoteQueues.unacknowledged_bytes`), and not in a shared link.

At most about TURN_BYTES of messages are put into frames in one turn: one large message may go to thousands of queues.
The others have their turn in the next one (`RemoteQueues.held`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from clusterbroker.broker.remote.host import ProxyHost
from clusterbroker.broker.remote.messages import Commit, Credit, NamedPublish, ProxyMessage, Publish, TaggedPublish
from clusterbroker.cluster.wiring.levels import LEVEL, LOST_NUMBERS, NUMBERED_RUNS

WINDOW_BYTES: Final = 16 << 20
TURN_BYTES: Final = 8 << 20
FRAME_BYTES_MAX: Final = 1 << 20
"""Of records in one Publish frame to another node, unless a single part is longer. To the node itself each part is a
frame, for there the parts of one would be copied together."""

Part = tuple[int, int, int, int, int]  # queue_id, epoch, gen, number of the first, count
Grant = tuple[int, int, int, int, int]


class Outbox:
    """The frames for `owner`. `in_flight_bytes`: messages sent and not yet committed. `shut`: the owner runs out of
    memory or disk and takes no messages."""

    __slots__ = (
        "_data", "_frame_bytes_max", "_grants", "_level", "_others", "_parts", "_publishes", "_size", "_turn_bytes",
        "in_flight_bytes", "owner", "shut",
    )  # fmt: skip

    def __init__(self, owner: str, own: bool, level: Callable[[], int] = lambda: LEVEL) -> None:
        """`own`: the owner is this node. `level`: of the cluster."""
        self.owner = owner
        self._level = level
        self._frame_bytes_max = 0 if own else FRAME_BYTES_MAX
        self.in_flight_bytes = 0
        self.shut = False
        self._publishes: list[tuple[ProxyMessage, list[bytes]]] = []
        self._others: list[ProxyMessage] = []
        self._grants: list[Grant] = []
        self._parts: list[tuple[int, int, int, int, int, int]] = []  # of the Publish that is being filled
        self._data: list[bytes] = []
        self._size = 0
        self._turn_bytes = 0

    @property
    def spent(self) -> bool:
        """Enough for this turn."""
        return self._turn_bytes >= TURN_BYTES

    @property
    def open(self) -> bool:
        """Whether the owner may be sent another message."""
        return self.in_flight_bytes < WINDOW_BYTES and not self.shut

    @property
    def takes_runs(self) -> bool:
        """Whether the owner reads a frame with more than one numbered message: this node does."""
        return not self._frame_bytes_max or self._level() >= NUMBERED_RUNS

    @property
    def takes_lost_numbers(self) -> bool:
        """Whether the owner reads `Commit.lost`: this node does."""
        return not self._frame_bytes_max or self._level() >= LOST_NUMBERS

    def publish(self, part: Part, data: bytes) -> None:
        if self._size and self._size + len(data) > self._frame_bytes_max:
            self._close()
        self._parts.append((*part, len(data)))
        self._data.append(data)
        self._size += len(data)
        self._turn_bytes += len(data)

    def publish_apart(self, head: NamedPublish | Commit | TaggedPublish, data: bytes) -> None:
        """A frame of its own."""
        self._close()  # its number comes after those
        self._publishes.append((head, [data]))
        self._turn_bytes += len(data)

    def _close(self) -> None:
        if self._parts:
            self._publishes.append((Publish(tuple(self._parts)), self._data))
            self._parts, self._data, self._size = [], [], 0

    def say(self, head: ProxyMessage) -> None:
        self._others.append(head)

    def grant(self, grant: Grant) -> None:
        self._grants.append(grant)

    def flush(self, host: ProxyHost) -> None:
        """Sends everything. Without a link it is lost, which the next attachment makes good."""
        self._close()
        self._turn_bytes = 0
        publishes, self._publishes = self._publishes, []
        others, self._others = self._others, []
        for head, data in publishes:
            host.send(self.owner, head, data)
        for head in others:
            host.send(self.owner, head)
        if self._grants:
            head = Credit(tuple(self._grants))
            self._grants = []
            host.send(self.owner, head)
