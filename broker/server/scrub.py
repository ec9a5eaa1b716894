"""The slow look at what lies on the disk and nobody asks for (waits for the journal's checkpoint thread).

    a pass   all complete segments, the oldest first, a piece at a time, at `journal.scrub_rate_bytes`; then the queues
             that this node owns, one by one: their copies are told what they should be (`Primary.compare`)
    found    a message that cannot be read is its queue's affair (`broker.node.damages`); one that this node has in
             memory still is written again

It yields: a piece is begun when no group is with the disk, or after YIELDS of waiting for that moment. Pages that the
system holds in memory are proved as they are there; they were read from the disk once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from journal.scrub import Piece
from journal.survivors import Hurt
from replication.sync import BUCKET_SEQS, contains

if TYPE_CHECKING:
    from broker.node.core import Node
    from journal.journal import Journal

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
        self._segments: deque[tuple[int, int]] = deque()
        self._at = self._yielded = 0
        self._queues: deque[int] = deque()
        self._began_s = 0.0
        self.bytes_total = self.bytes_done = 0
        self.bytes_read = 0
        """Since the start."""
        self.passes = 0
        """That came to their end since the start."""
        self.found = 0
        """Messages that could not be read, since the start."""

    @property
    def percent(self) -> int:
        """Of the pass that is under way; 100: none is."""
        return 100 * self.bytes_done // self.bytes_total if self._segments and self.bytes_total else 100

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

    # -- segments

    def _pass(self) -> None:
        self._began_s = self._loop.time()
        self._segments = deque(self._journal.scrubbable())
        self.bytes_total, self.bytes_done = sum(size for _, size in self._segments), 0
        self._at = 0
        self._next()

    def _next(self) -> None:
        if not self._segments:
            self._queues = deque(sorted(self._node.queues)) if self._node.part is not None else deque()
            self._compare()
        elif not self._journal.idle and self._yielded < YIELDS:
            self._yielded += 1
            self._later(YIELD_S, self._next)
        else:
            self._yielded = 0
            self._journal.scrub(self._segments[0][0], self._at, lambda piece: self._do(lambda: self._proved(piece)))

    def _proved(self, piece: Piece) -> None:
        if self._stopped or not self._segments:
            return
        segment, size = self._segments[0]
        for hurt in piece.hurt:
            self._treat(segment, hurt)
        read = max(0, piece.end - self._at)
        self.bytes_read += read
        self.bytes_done += size - self._at if piece.over else read
        self._at = piece.end
        if piece.over:
            self._segments.popleft()
            self._at = 0
        self._later(read / self._journal.options.scrub_rate_bytes, self._next)

    def _treat(self, segment: int, hurt: Hurt) -> None:
        node, queue_id, seq = self._node, hurt.queue_id, hurt.seq
        queue = node.queues.get(queue_id)
        if queue is not None and not queue.deleted:
            ring = queue.ring
            if not ring.living(seq, seq, 1) or ring.location(seq)[1] != segment:
                return  # it has left, or stands elsewhere by now
            message = ring.message(seq)
            if message is not None:
                ring.rewrite(seq, segment, ring.location(seq)[2], message)
                self._schedule()
                return
        else:
            replica = None if node.part is None else node.part.copying.replicas.get(queue_id)
            if replica is None or not contains(replica.emitted_live(seq // BUCKET_SEQS), seq):
                return
            if replica.location(seq)[1] != segment:
                return
        self.found += 1
        node.damages.found(queue_id, (seq,), hurt.damage.args[1])
        self._schedule()

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
