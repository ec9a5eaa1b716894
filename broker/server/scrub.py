"""The scrub: a slow reading of all data on the disk (waits for the journal's checkpoint thread).

    a pass   all complete segments, the oldest first, the files of streams and the index, a piece at a time, at
             `journal.scrub_rate_bytes` (`scrub_regions`); then the queues that this node owns, one by one: their copies
             are told the expected content (`Primary.compare`)
    found    damage is its queue's matter (`broker.node.damages`); a message still in this node's memory is written
             again

It yields: a piece is begun when no group is with the disk, or after YIELDS of waiting for that moment. Pages in the
page cache are proved as they are there; they were read from the disk once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.server.scrub_regions import IndexRegion, Region, SegmentRegion, streams_of

if TYPE_CHECKING:
    from clusterbroker.broker.node.core import Node
    from clusterbroker.journal.journal import Journal

FIRST_S: Final = 30.0
"""After a start there is enough to do."""
PASS_S: Final = 6 * 3600.0
"""From the beginning of one pass to that of the next, at least."""
YIELD_S: Final = 0.01
YIELDS: Final = 50
QUEUE_S: Final = 0.1
"""Between two queues: a million messages are 5 ms of each loop."""


class Scrub:
    """Of one node. `bytes_done` of `bytes_total` are those of the pass that is under way, or of the last one."""

    def __init__(
        self,
        journal: Journal,
        node: Node,
        loop: asyncio.AbstractEventLoop,
        schedule: Callable[[], None],
        fail: Callable[[BaseException], None],
        pass_s: float = PASS_S,
    ) -> None:
        self._journal = journal
        self._node = node
        self._loop = loop
        self._schedule = schedule
        self._fail = fail
        self._pass_s = pass_s
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        self._pieces: deque[Region] = deque()
        self._yielded = 0
        self._queues: deque[int] = deque()
        self._began_s = 0.0
        self.bytes_total = self.bytes_done = 0
        self.bytes_read = 0
        """Since the start."""
        self.passes = 0
        """That came to their end since the start."""
        self.found = 0
        """Damages since the start: messages, pieces of a stream's file, queues of which the index is wrong."""

    @property
    def percent(self) -> int:
        """Of the pass that is under way; 100: none is."""
        return 100 * self.bytes_done // self.bytes_total if self._pieces and self.bytes_total else 100

    def begin(self, after_s: float = FIRST_S) -> None:
        if self._journal.options.scrub_rate_bytes:
            self._later(after_s, self._pass)

    def stop(self) -> None:
        """The journal closes."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _later(self, after_s: float, what: Callable[[], None]) -> None:
        if not self._stopped:
            self._timer = self._loop.call_later(after_s, self._do, what)

    def _do(self, what: Callable[[], None]) -> None:
        try:
            what()
        except Exception as error:
            self._fail(error)

    # -- segments, streams' files, the index

    def _pass(self) -> None:
        self._began_s = self._loop.time()
        journal, node = self._journal, self._node
        segments = [SegmentRegion(journal, node, number, size) for number, size in journal.scrubbable()]
        self._pieces = deque([*segments, *streams_of(journal, node), IndexRegion(journal, node)])
        self.bytes_total, self.bytes_done = sum(region.size for region in self._pieces), 0
        self._next()

    def _next(self) -> None:
        if not self._pieces:
            self._queues = deque(sorted(self._node.queues)) if self._node.part is not None else deque()
            self._compare()
        elif not self._journal.idle and self._yielded < YIELDS:
            self._yielded += 1
            self._later(YIELD_S, self._next)
        else:
            self._yielded = 0
            self._pieces[0].step(lambda piece: self._do(lambda: self._proved(piece)))

    def _proved(self, piece: Any) -> None:
        if self._stopped or not self._pieces:
            return
        region = self._pieces[0]
        before = region.done
        read, found = region.proved(piece)
        self.found += found
        if found:
            self._schedule()
        self.bytes_read += read
        if region.over:
            self._pieces.popleft()
        self.bytes_done += (region.size if region.over else region.done) - before
        self._later(read / self._journal.options.scrub_rate_bytes, self._next)

    # -- copies

    def _compare(self) -> None:
        part = self._node.part
        while self._queues and part is not None:
            if part.copying.primary.compare(self._queues.popleft()):
                self._schedule()
                self._later(QUEUE_S, self._compare)
                return
        self.passes += 1
        self._later(max(0.0, self._began_s + self._pass_s - self._loop.time()), self._pass)
