"""Records for copies on their way to the disk, cut into groups.

Owners' records gather here while this node's disk is slow, and one group commit would hold up the node for the time
of all of them. They therefore go in portions, one with each group. An addition learns the group of its portion, and
nothing changes that: portions keep their places, also when nothing is left in them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

Bytes = bytes | bytearray | memoryview


class Pending(NamedTuple):
    """Records for a replica's ring, on their way into a group."""

    queue_id: int
    records: Bytes
    epochs: tuple[tuple[int, int], ...] | None
    begins: bool = False
    """It ends what an earlier copy may have left in the journal: it is written whatever becomes of the ring."""


class Portions:
    """The first one goes with the next group. `portion_bytes`: one is full with it, and one frame's records more."""

    __slots__ = ("_portion_bytes", "_portions", "_sizes")

    def __init__(self, portion_bytes: int) -> None:
        self._portion_bytes = portion_bytes
        self._portions: deque[list[Pending]] = deque()
        self._sizes: deque[int] = deque()

    def __len__(self) -> int:
        """How many groups it takes."""
        return len(self._portions)

    @property
    def next_bytes(self) -> int:
        """Of the first one."""
        return self._sizes[0] if self._sizes else 0

    def put(self, pending: Pending) -> None:
        if not self._sizes or self._sizes[-1] >= self._portion_bytes:
            self._portions.append([])
            self._sizes.append(0)
        self._portions[-1].append(pending)
        self._sizes[-1] += len(pending.records)

    def take(self) -> list[Pending]:
        """For the group that is being made."""
        if not self._portions:
            return []
        self._sizes.popleft()
        return self._portions.popleft()

    def drop(self, queue_id: int) -> None:
        """All of the queue, but for beginnings."""
        for place, portion in enumerate(self._portions):
            kept = [pending for pending in portion if pending.queue_id != queue_id or pending.begins]
            self._portions[place] = kept
            self._sizes[place] = sum(len(pending.records) for pending in kept)

    def rest(self) -> Iterable[Pending]:
        for portion in self._portions:
            yield from portion
