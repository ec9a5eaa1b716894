"""A loop, a node's queues and their journal in one process, small enough to read: for the journal's tests."""

from __future__ import annotations

import queue
import select
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusterbroker.journal.journal import Journal
from clusterbroker.journal.layout import RUN_ENTRY
from clusterbroker.journal.options import JournalOptions
from clusterbroker.journal.queue_state import QueueState
from clusterbroker.journal.record import Message, Record

SMALL = JournalOptions(segment_bytes=4096, reserve_bytes=0, full_retry_s=0.01, flush_interval_s=0.02)


class Loop:
    """Runs what the journal's threads hand over."""

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self.watched: dict[int, Callable[[], object]] = {}

    def watch(self, fd: int, call: Callable[[], object]) -> None:
        self.watched[fd] = call

    def until(self, condition: Callable[[], bool], deadline_s: float = 60.0) -> None:
        end = time.monotonic() + deadline_s
        while not condition():
            for fd in select.select(list(self.watched), [], [], 0)[0] if self.watched else ():
                self.watched[fd]()
            try:
                self.calls.get(timeout=0.0005 if self.watched else 0.05)()
            except queue.Empty:
                assert time.monotonic() < end, "waited too long"


@dataclass
class Place:
    segment: int
    offset: int
    length: int
    body_length: int
    priority: int = 0
    delivery_count: int = 0


@dataclass
class Memory:
    """What queues would remember: a recovery sink, and the source of runs."""

    queues: dict[int, dict[int, Place]] = field(default_factory=dict)
    metas: dict[int, dict[str, Any]] = field(default_factory=dict)
    upto: dict[int, int] = field(default_factory=dict)
    states: dict[int, QueueState] = field(default_factory=dict)
    indexed: set[tuple[int, int]] = field(default_factory=set)
    """Runs that the index has; one that the tail empties must still be deleted there."""

    def meta(self, queue_id: int, meta: dict[str, Any]) -> None:
        self.metas[queue_id] = meta

    def run(self, queue_id: int, first_seq: int, entries: bytes) -> None:
        self.indexed.add((queue_id, first_seq))
        for low, priority, _, count, segment, offset, length, body in RUN_ENTRY.iter_unpack(entries):
            self.queues.setdefault(queue_id, {})[first_seq // 256 * 256 + low] = Place(
                segment, offset, length, body, priority, count
            )

    def enqueued(self, queue_id: int, segment: int, record: Record) -> None:
        self.queues.setdefault(queue_id, {})[record.seq] = Place(
            segment, record.offset, record.length, record.body_length, record.priority, record.delivery_count
        )

    def settled(self, queue_id: int, ranges: tuple[tuple[int, int], ...]) -> None:
        for first, last in ranges:
            for seq in range(first, last + 1):
                self.queues[queue_id].pop(seq, None)

    def reserved(self, queue_id: int, upto: int) -> None:
        self.upto[queue_id] = upto

    def counted(self, queue_id: int, seq: int, delivery_count: int) -> None:
        self.queues[queue_id][seq].delivery_count = delivery_count

    def dead(self, queue_id: int, seq: int, mark: int) -> None:
        self.states.setdefault(queue_id, QueueState()).died(seq, mark)

    def cut(self, queue_id: int, from_seq: int) -> None:
        self.states.setdefault(queue_id, QueueState()).cut(from_seq)
        for seq in [seq for seq in self.queues[queue_id] if seq >= from_seq]:
            del self.queues[queue_id][seq]

    def set_attribute(self, queue_id: int, producer: bytes, upto: int) -> None:
        self.states.setdefault(queue_id, QueueState()).set_attribute(producer, upto)

    def began(self, queue_id: int, epoch: int, first_seq: int) -> None:
        self.states.setdefault(queue_id, QueueState()).began(epoch, first_seq)

    def runs(self) -> list[tuple[int, int, bytes]]:
        found: dict[tuple[int, int], bytes] = {}
        for queue_id, places in self.queues.items():
            for seq, p in sorted(places.items()):
                found[queue_id, seq // 256 * 256] = found.get((queue_id, seq // 256 * 256), b"") + RUN_ENTRY.pack(
                    seq & 255, p.priority, 0, p.delivery_count, p.segment, p.offset, p.length, p.body_length
                )
        return [(*key, entries) for key, entries in found.items()]


class Node:
    """One journal with its queues; `crash` leaves the files as they are and opens them again."""

    def __init__(self, directory: Path, options: JournalOptions = SMALL, here: bool = False) -> None:
        """`here`: groups are written on the loop where they may be."""
        self.directory = directory
        self.here = here
        self.options = options
        self.states: list[str] = []
        self.start()

    def start(self) -> None:
        self.loop = Loop()
        self.memory = Memory()
        self.seqs: dict[int, int] = {}
        self.journal = Journal.open(
            self.directory,
            self.options,
            self.loop.calls.put,
            lambda state, detail: self.states.append(state),
            self.loop.watch,
        )
        try:
            self.tail = self.journal.recover(self.memory)
        except BaseException:
            self.journal.close()
            raise
        for queue_id, places in self.memory.queues.items():
            self.seqs[queue_id] = max(places, default=0)
            for place in places.values():
                self.journal.use.add(place.segment, place.length)

    def restart(self) -> None:
        self.journal.close()
        self.start()

    @property
    def soon(self) -> Callable[[Callable[[], object]], object] | None:
        return self.loop.calls.put if self.here else None

    def write(self, *bodies: bytes, queue_id: int = 1, sync: bool = True, wait: bool = True) -> list[int]:
        """One group; returns the seqs."""
        done: list[int] = []
        seqs = self.submit(*bodies, queue_id=queue_id, sync=sync, done=lambda: done.append(1))
        if wait:
            self.loop.until(lambda: bool(done))
        return seqs

    def submit(
        self, *bodies: bytes, queue_id: int = 1, sync: bool = True, done: Callable[[], object] = lambda: None
    ) -> list[int]:
        messages = [message_of(body) for body in bodies]
        writer = self.journal.begin_group(sum(message.size for message in messages))
        seqs = []
        for message in messages:
            seq = self.seqs[queue_id] = self.seqs.get(queue_id, 0) + 1
            self.put(writer, queue_id, seq, message)
            seqs.append(seq)
        self.journal.submit(writer, sync, done, self.soon)
        return seqs

    def put(self, writer: Any, queue_id: int, seq: int, message: Message) -> None:
        offset = writer.enqueue(queue_id, 1, seq, message, 0)
        length = 56 + len(message.address) + len(message.payload)
        places = self.memory.queues.setdefault(queue_id, {})
        if seq in places:
            self.journal.use.release(places[seq].segment, places[seq].length)
        places[seq] = Place(writer.segment, offset, length, message.body_length)
        self.journal.use.add(writer.segment, length)

    def settle(self, first: int, last: int, queue_id: int = 1, sync: bool = True) -> None:
        writer = self.journal.begin_group(64)
        writer.settle(queue_id, 1, [(first, last)], 0)
        for seq in range(first, last + 1):
            place = self.memory.queues[queue_id].pop(seq, None)
            if place is not None:
                self.journal.use.release(place.segment, place.length)
        self.commit(writer, sync)

    def commit(self, writer: Any, sync: bool = True) -> None:
        done: list[int] = []
        self.journal.submit(writer, sync, lambda: done.append(1), self.soon)
        self.loop.until(lambda: bool(done))

    def checkpoint(self, forgotten: tuple[int, ...] = ()) -> None:
        done: list[int] = []
        runs = self.memory.runs()
        known = {(q, first) for q, first, _ in runs}
        runs += [(q, first, b"") for q, first in self.memory.indexed - known if q not in forgotten]
        self.memory.indexed = known
        metas = [(q, {"next_seq": seq + 1, "reserved": 0}) for q, seq in self.seqs.items() if q not in forgotten]
        self.journal.checkpoint(runs, metas, forgotten, self.journal.position, lambda: done.append(1))
        self.loop.until(lambda: bool(done))

    def read(self, *seqs: int, queue_id: int = 1) -> Any:
        places = self.memory.queues[queue_id]
        wanted = [(seq, places[seq].segment, places[seq].offset, places[seq].length) for seq in seqs]
        got: list[Any] = []
        self.journal.read(queue_id, wanted, got.append)
        self.loop.until(lambda: bool(got))
        return got[0]

    def segments(self) -> list[int]:
        """Once the reader thread has unlinked what it was told to."""
        got: list[Any] = []
        self.journal.read(1, [], got.append)
        self.loop.until(lambda: bool(got))
        return sorted(int(path.stem) for path in (self.directory / "segments").glob("*.seg"))


def message_of(body: bytes) -> Message:
    return Message(b"\x00\x03key", b"\x10\x00\x02" + body, 3, 1, 0, 1000, -1)
