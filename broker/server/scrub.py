"""Damage on the disk, found by a slow reading of all data, or by a read of messages (waits for the journal's threads).

    a pass   all complete segments, the oldest first, the files of streams and the index, a piece at a time, at
             `journal.scrub_rate_bytes`; then the queues that this node leads, one by one: their copies get the expected
             content to compare with (`Primary.compare`)
    found    damage is its queue's matter (`broker.node.damages`); a message still in this node's memory is written
             again

A scrub yields: a piece is begun when no group is with the disk, or after YIELDS of waiting for that moment. Pages in
the page cache are proved as they are there; they were read from the disk once.

    a segment        its groups are walked; a live message that cannot be read is held back, or written again
    a stream's file  the part counted by its catalogue is read. A file that has changed meanwhile is read again, once:
                     retention removes files, and a sync cuts their ends off
    the index        its values, and that none is missing. The node's memory is right, for a start would not have begun
                     with less: of a queue without other copies an operator gets an alert, and the next start makes the
                     index anew from the log (`journal.salvage`)
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.node.effects import Load, StreamLoad
from clusterbroker.journal.index_walk import Looked
from clusterbroker.journal.ranges import contains
from clusterbroker.journal.record import DamagedRecord, Message
from clusterbroker.journal.scrub import Piece
from clusterbroker.journal.stream_catalogue import StreamFile
from clusterbroker.journal.stream_files import Proved
from clusterbroker.journal.survivors import Hurt
from clusterbroker.replication.sync import BUCKET_SEQS

if TYPE_CHECKING:
    from clusterbroker.broker.node.core import Node
    from clusterbroker.broker.streams.past import Past
    from clusterbroker.journal.journal import Journal

FIRST_S: Final = 30.0
"""The work of a start goes first."""
PASS_S: Final = 6 * 3600.0
"""From the beginning of one pass to that of the next, at least."""
YIELD_S: Final = 0.01
YIELDS: Final = 50
QUEUE_S: Final = 0.1
"""Between two queues: a million messages are 5 ms of each loop."""


class Scrub:
    """Of one node. `bytes_done` of `bytes_total` belong to the pass under way, or to the last one."""

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
        """Since the start, as `passes` (those complete) and `found`."""
        self.passes = 0
        self.found = 0
        """Damages: messages, pieces of a stream's file, queues of which the index is wrong."""

    @property
    def percent(self) -> int:
        """Of the pass under way; 100: none is."""
        return 100 * self.bytes_done // self.bytes_total if self._pieces and self.bytes_total else 100

    def begin(self, after_s: float = FIRST_S) -> None:
        if self._journal.options.scrub_rate_bytes:
            self._later(after_s, self._pass)

    def stop(self) -> None:
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
            self._queues = deque(sorted(self._node.queues)) if self._node.role is not None else deque()
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
        role = self._node.role
        while self._queues and role is not None:
            if role.copying.primary.compare(self._queues.popleft()):
                self._schedule()
                self._later(QUEUE_S, self._compare)
                return
        self.passes += 1
        self._later(max(0.0, self._began_s + self._pass_s - self._loop.time()), self._pass)


class Region(ABC):
    """`done` of `size` bytes were proved; both are estimates, but `over` is not."""

    def __init__(self, journal: Journal, node: Node, size: int) -> None:
        self._journal = journal
        self._node = node
        self.size = size
        self.done = 0
        self.over = False

    @abstractmethod
    def step(self, done: Callable[[Any], object]) -> None:
        """Proves the next piece; the result goes to `proved`, on the loop."""

    @abstractmethod
    def proved(self, piece: Any) -> tuple[int, int]:
        """(bytes read, damages found); they are treated."""


class SegmentRegion(Region):
    def __init__(self, journal: Journal, node: Node, segment: int, size: int) -> None:
        super().__init__(journal, node, size)
        self._segment = segment

    def step(self, done: Callable[[Piece], object]) -> None:
        self._journal.scrub(self._segment, self.done, done)

    def proved(self, piece: Piece) -> tuple[int, int]:
        found = sum(self._treat(hurt) for hurt in piece.hurt)
        read = max(0, piece.end - self.done)
        self.done, self.over = piece.end, piece.over
        return read, found

    def _treat(self, hurt: Hurt) -> bool:
        node, queue_id, seq = self._node, hurt.queue_id, hurt.seq
        queue = node.queues.get(queue_id)
        if queue is not None and not queue.deleted:
            ring = queue.ring
            if not ring.living(seq, seq, 1) or ring.location(seq)[1] != self._segment:
                return False  # it has left, or stands elsewhere by now
            message = ring.message(seq)
            if message is not None:
                ring.rewrite(seq, self._segment, ring.location(seq)[2], message)
                return False
        else:
            replica = None if node.role is None else node.role.copying.replicas.get(queue_id)
            if replica is None or not contains(replica.emitted_live(seq // BUCKET_SEQS), seq):
                return False
            if replica.location(seq)[1] != self._segment:
                return False
        node.damages.found(queue_id, (seq,), hurt.damage.args[1])
        return True


def _past(node: Node, queue_id: int) -> Past | None:
    queue = node.queues.get(queue_id)
    if queue is not None:
        return queue.ring.past  # type: ignore[no-any-return]
    replica = None if node.role is None else node.role.copying.replicas.get(queue_id)
    return None if replica is None else replica.past


def streams_of(journal: Journal, node: Node) -> Iterator[StreamRegion]:
    """The files that the streams of this node have now."""
    copies = () if node.role is None else tuple(node.role.copying.replicas)
    for queue_id in sorted({*node.queues, *copies}):
        past = _past(node, queue_id)
        for part in () if past is None else past.files:
            yield StreamRegion(journal, node, queue_id, part)


class StreamRegion(Region):
    def __init__(self, journal: Journal, node: Node, queue_id: int, part: StreamFile) -> None:
        super().__init__(journal, node, part.size)
        self._queue_id = queue_id
        self._part = part
        self._at = (0, 0)
        self._anew = False

    def step(self, done: Callable[[Proved], object]) -> None:
        self._journal.scrub_stream(self._queue_id, self._part, self._at, done)

    def proved(self, piece: Proved) -> tuple[int, int]:
        read = max(0, piece.at[0] - self._at[0])
        self._at, self.done = piece.at, min(piece.at[0], self.size)
        if not piece.damage:
            self.over = piece.at[1] >= self._part.end
            return read, 0
        now = self._now()
        if now is not None and not self._anew:
            self._part, self._at, self._anew, self.done = now, (0, 0), True, 0
            return read, 0
        self.over = True
        if now is None:
            return read, 0
        self._node.damages.found(self._queue_id, (), piece.damage)
        return read, 1

    def _now(self) -> StreamFile | None:
        """The part of the file that counts now."""
        past = _past(self._node, self._queue_id)
        if past is None:
            return None
        return next((part for part in past.files if part.name == self._part.name and part.end > past.first), None)


class IndexRegion(Region):
    def __init__(self, journal: Journal, node: Node) -> None:
        super().__init__(journal, node, journal.index_bytes())

    def step(self, done: Callable[[Looked], object]) -> None:
        self._journal.scrub_index(done)

    def proved(self, looked: Looked) -> tuple[int, int]:
        self.done, self.over = min(self.done + looked.bytes_read, self.size), looked.over
        for damage in looked.hurt:
            what = f"{damage.file}: {damage.what}"
            if damage.queue_id is None:
                self._node.alerts.set(
                    "journal.damaged", "index", f"{what}; look at the disk, then start the node again: it is rebuilt"
                )
            else:
                self._node.damages.found(damage.queue_id, (), what)
        return looked.bytes_read, len(looked.hurt)


@dataclass(frozen=True)
class Apart:
    """Repeats a read of several messages that met damage, one message at a time.

    `fail` gets the node's own errors, `schedule()` asks for a turn. Readable messages go to the asking queue, as far as
    the damage leaves one (`broker.node.damages`).
    """

    _journal: Journal
    _node: Node
    _schedule: Callable[[], None]
    _fail: Callable[[BaseException], None]

    def read(self, load: Load | StreamLoad, damage: DamagedRecord) -> None:
        """The load met this damage. A stream's file is not read again: its readers at that place wait."""
        if not load.wanted():
            return
        if isinstance(load, StreamLoad):
            self._node.damages.found(load.queue_id, (), damage.args[1])
            self._schedule()
            return
        read: list[Message | DamagedRecord] = []
        for location in load.locations:
            self._journal.read(load.queue_id, (location,), partial(self._came, load, read))

    def _came(self, load: Load, read: list[Message | DamagedRecord], messages: list[Message] | DamagedRecord) -> None:
        """Called in the order of the reads."""
        read.append(messages if isinstance(messages, DamagedRecord) else messages[0])
        if len(read) == len(load.locations) and load.wanted():
            try:
                self._finish(load, read)
            except Exception as error:
                self._fail(error)
            self._schedule()

    def _finish(self, load: Load, read: list[Message | DamagedRecord]) -> None:
        sound = [None if isinstance(one, DamagedRecord) else one for one in read]
        pairs = zip(load.locations, read, strict=True)
        damaged = {seq: one.args[1] for (seq, *_), one in pairs if isinstance(one, DamagedRecord)}
        if damaged:
            self._node.damages.found(load.queue_id, damaged, next(iter(damaged.values())), lambda: load.unread(sound))
        else:
            load.then([one for one in sound if one is not None])
