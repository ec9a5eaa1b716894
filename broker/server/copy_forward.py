"""Copying forward: live messages of sparse segments are written again (waits).

    checkpoint durable -> sparse segments -> read one (the journal's thread) -> rings write again what they still
    hold there -> next one

The journal chooses the segments and bounds the work for each checkpoint. The rest is done beside a load that goes on,
so the loop takes a slice of messages at a time. A message's presence is checked at that very moment; departed or
moved messages are passed over. A damaged record is its queue's matter (`broker.node.damages`); its segment stays.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from clusterbroker.broker.node.core import Node
from clusterbroker.journal.journal import Journal
from clusterbroker.journal.record import DamagedRecord
from clusterbroker.journal.survivors import Hurt, Survivor

SLICE = 500
"""Messages; about a millisecond when they are a replica's."""


@dataclass
class CopyForward:
    """`schedule()` asks for a turn: rings have something to write. `fail` gets the node's own errors."""

    _journal: Journal
    _node: Node
    _loop: asyncio.AbstractEventLoop
    _schedule: Callable[[], None]
    _fail: Callable[[BaseException], None]
    _damaged: dict[int, None] = field(default_factory=dict)
    """Segments with damage stay: a damaged record cannot be written again."""
    _segments: deque[int] = field(default_factory=deque)
    """To be emptied; the first one is under way."""

    def checkpointed(self) -> None:
        """A checkpoint is durable."""
        begins = not self._segments
        known = {*self._segments, *self._damaged}
        self._segments += [segment for segment in self._journal.lingering_segments() if segment not in known]
        if begins:
            self._next()

    def stop(self) -> None:
        self._segments.clear()

    def _next(self) -> None:
        while self._segments and not self._journal.use.live(self._segments[0]):
            self._segments.popleft()  # it became empty while it waited, and may be gone
        if self._segments:
            self._journal.survivors(self._segments[0], self._read)

    def _read(self, survivors: list[Survivor | Hurt] | DamagedRecord) -> None:
        if isinstance(survivors, DamagedRecord):
            segment = self._segments.popleft()
            self._damaged[segment] = None
            self._node.alerts.set("journal.damaged", f"segment {segment}", f"it cannot be walked: {survivors.args[1]}")
            self._next()
        else:
            self._slice(iter(survivors))

    def _slice(self, survivors: Iterator[Survivor | Hurt]) -> None:
        if not self._segments:
            return  # stopped
        segment, node, seen = self._segments[0], self._node, 0
        try:
            for survivor in islice(survivors, SLICE):
                seen += 1
                if isinstance(survivor, Hurt):
                    self._damaged[segment] = None
                    node.damages.found(survivor.queue_id, (survivor.seq,), survivor.damage.args[1])
                    continue
                queue_id, seq, offset, message = survivor
                queue = node.queues.get(queue_id)
                if queue is not None and not queue.deleted:
                    queue.ring.rewrite(seq, segment, offset, message)
                elif node.role is not None:
                    node.role.copying.move(queue_id, seq, segment, offset, message)
        except Exception as error:
            self._fail(error)
            return
        self._schedule()
        if seen == SLICE:
            self._loop.call_soon(self._slice, survivors)
        else:
            self._segments.popleft()
            self._next()
