"""The proof that a journal is whole, offline or beside a running node (waits). Nothing is written.

What is proved: every group of every segment has right checksums and the next lsn; the checkpoint lies between two
groups; the log goes on from it without a gap to its end; every run of the index points to ENQ records of the right
queue and seq, with the lengths it says; every value of the index has its checksum.

What is broken says what it *costs* (`Costs`), for a start goes on with most damage (salvage.py).

Beside a running node the end of the log moves, segments disappear, and runs are replaced. What looks broken there
is looked at again before it is reported.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from clusterbroker.journal.errors import DamagedJournal
from clusterbroker.journal.index import META_KEY, RUN_KEY, Index
from clusterbroker.journal.inspect import LOOKS, PAUSE_S, is_running
from clusterbroker.journal.layout import ENQ, GROUP_HEADER_BYTES, KIND_NAMES, RUN_ENTRY, RUN_LENGTH
from clusterbroker.journal.record import DamagedRecord, Record, read_message
from clusterbroker.journal.recovery import start_of_tail
from clusterbroker.journal.replay import group_at, replay
from clusterbroker.journal.salvage import HurtRecord, Knows, believed_beside, group_beside
from clusterbroker.journal.segments import START, Position, SegmentFile, Segments
from clusterbroker.journal.stream_catalogue import StreamFile
from clusterbroker.journal.stream_files import StreamFiles
from clusterbroker.journal.sums import Sums


class Costs(enum.StrEnum):
    """What a start, or the node that runs, makes of damage."""

    NOTHING = "nothing"
    """No start reads it, unless a queue must be read from the log anew."""
    MESSAGE = "message"
    """The message is held back, or comes from another copy."""
    QUEUE = "queue"
    """What can be read of the queue is served, or comes from another copy."""
    JOURNAL = "journal"
    """The start ends, or all copies come from others."""


class Broken(NamedTuple):
    """One place that is not what was written."""

    file: str
    offset: int | None
    what: str
    queue_id: int | None = None
    seq: int | None = None
    """Of the message, where it is one's."""
    costs: Costs = Costs.JOURNAL

    def __str__(self) -> str:
        place = "" if self.offset is None else f" at byte {self.offset}"
        message = "" if self.seq is None else f"message {self.seq} of "
        queue = "" if self.queue_id is None else f" ({message}queue {self.queue_id:#x})"
        return f"{self.file}{place}{queue}: {self.what}"


@dataclass(slots=True)
class CheckReport:
    """`broken` is empty when the journal is proved."""

    directory: Path
    running: bool
    segments: int = 0
    groups: int = 0
    records: dict[str, int] = field(default_factory=dict)
    bytes: int = 0
    """of groups"""
    queues: int = 0
    runs: int = 0
    indexed_messages: int = 0
    checkpoint: Position | None = None
    end: Position = START
    torn: bool = False
    """a torn tail, which the node will cut when it starts; no damage"""
    broken: list[Broken] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.broken


def check(
    directory: Path | str,
    progress: Callable[[int, int], object] | None = None,
    knows: Knows = lambda queue_id: True,  # noqa: ARG005
) -> CheckReport:
    """Raises FileNotFoundError when no journal is there, ForeignJournal; damage is reported, not raised.

    `progress(done, of)` counts segments. `knows(queue_id)`: there is such a queue; what a damaged record says is not
    believed without one.
    """
    directory = Path(directory)
    report = CheckReport(directory, is_running(directory))
    try:
        index = Index(directory, readonly=True, lock=report.running)
    except DamagedJournal as damage:
        report.broken.append(_broken(damage))
        return report
    try:
        _Check(report, index, Segments(directory), progress or (lambda *_: None), knows).run()
    finally:
        index.close()
    return report


def _broken(damage: DamagedJournal, costs: Costs = Costs.JOURNAL) -> Broken:
    return Broken(damage.file, damage.offset, damage.what, damage.queue_id, None, costs)


@dataclass(slots=True)
class _Check:
    report: CheckReport
    index: Index
    segments: Segments
    progress: Callable[[int, int], object]
    knows: Knows
    metas: dict[int, dict[str, Any]] = field(default_factory=dict)
    places: dict[tuple[str, int], int] = field(default_factory=dict)
    """Of damaged records, by file and byte: index in `broken`."""

    @property
    def looks(self) -> int:
        return LOOKS if self.report.running else 1

    def run(self) -> None:
        try:
            start = start_of_tail(self.index, self.segments)
            self.report.checkpoint = self.index.checkpoint
            self._older(start)
            self._tail()
            self._runs()
            self._streams()
        except DamagedJournal as damage:
            self.report.broken.append(_broken(damage))

    def _older(self, start: Position) -> None:
        """Everything before the checkpoint: whole segments, and the beginning of the checkpoint's own."""
        numbers = [number for number in self.segments.numbers() if number <= start.segment]
        lsn, last = 0, 0
        for done, segment in enumerate(numbers):
            self.progress(done, len(numbers))
            try:
                lsn = self._segment(segment, lsn if segment == last + 1 else None, start, at_least=lsn)
            except FileNotFoundError:
                continue
            except DamagedJournal as damage:
                self.report.broken.append(_broken(damage, Costs.NOTHING))
            last = segment
        self.progress(len(numbers), len(numbers))

    def _segment(self, segment: int, lsn: int | None, start: Position, at_least: int) -> int:
        """Its last lsn. `lsn` is the one before its first, None when a neighbour is gone."""
        with self.segments.open(segment) as file:
            self.report.segments += 1
            end = start.offset if segment == start.segment else file.size
            at = 0
            while at < end:
                data, base = file.around(at, 4)
                if segment < start.segment and data[at - base : at - base + 4] == bytes(4):
                    break
                try:
                    found, length, records = group_at(file, at)
                except DamagedRecord as damage:
                    beside = group_beside(file, at, self.knows)
                    if beside is None:
                        raise self.segments.damaged(segment, damage.offset, damage.args[1]) from damage
                    head, records = beside[0], self._sound(segment, beside[1], Costs.NOTHING)
                    found, length = head.lsn, head.length
                if found != (lsn + 1 if lsn is not None else found) or found <= at_least:
                    what = f"group {found} follows group {at_least if lsn is None else lsn}"
                    raise self.segments.damaged(segment, at, what)
                self._count(records)
                self.report.bytes += length
                self.report.groups += 1
                lsn = at_least = found
                at += length
            if segment == start.segment and (at != start.offset or (lsn or at_least) not in (0, start.lsn)):
                what = f"the checkpoint (byte {start.offset}, group {start.lsn}) is not between two groups"
                raise self.segments.damaged(segment, at, what)
            if segment < start.segment and file.any_byte(at):
                raise self.segments.damaged(segment, at, "the segment's groups are followed by something else")
            return at_least

    def _tail(self) -> None:
        """What comes after the checkpoint, up to the end."""
        seen: list[Record] = []

        def beside(segment: int, file: SegmentFile, at: int) -> int:
            found = believed_beside(file, at, self.knows)
            if found is None:
                return 0
            seen.extend(self._sound(segment, found[1], Costs.QUEUE))
            return found[0].length

        for look in range(1, self.looks + 1):
            seen.clear()
            try:
                start = start_of_tail(self.index, self.segments)
                last = beside if look == self.looks else None
                tail = replay(self.segments, start, lambda _, records: seen.extend(records), last)
                break
            except (DamagedJournal, FileNotFoundError):
                if look == self.looks:
                    raise
                time.sleep(PAUSE_S)
        self._count(seen)
        self.report.groups += tail.groups
        self.report.segments += max(0, tail.position.segment - start.segment)
        self.report.bytes += tail.groups * GROUP_HEADER_BYTES + sum((record.length + 7) & ~7 for record in seen)
        self.report.end = tail.position
        self.report.torn = tail.torn and not self.report.running

    def _sound(self, segment: int, records: list[Record | HurtRecord], costs: Costs) -> list[Record]:
        """Those of a damaged group that are whole. The others are reported; a message's damage in the tail costs it."""
        sound: list[Record] = []
        for one in records:
            if isinstance(one, HurtRecord):
                record = one.record
                cost = Costs.MESSAGE if record.kind == ENQ and costs is Costs.QUEUE else costs
                seq = record.seq if record.kind == ENQ else None
                self._hurt(Broken(self._name(segment), record.offset, one.what, record.queue_id, seq, cost))
            else:
                sound.append(one)
        return sound

    def _hurt(self, broken: Broken) -> None:
        """A record; what was known of it before is said once."""
        assert broken.offset is not None, "a record has a place"
        at = self.places.setdefault((broken.file, broken.offset), len(self.report.broken))
        self.report.broken[at : at + 1] = [broken]

    def _name(self, segment: int) -> str:
        return f"segments/{self.segments.path(segment).name}"

    def _count(self, records: list[Record]) -> None:
        counts = self.report.records
        for record in records:
            name = KIND_NAMES[record.kind]
            counts[name] = counts.get(name, 0) + 1

    def _runs(self) -> None:
        sums = Sums()
        lost: dict[int | None, DamagedJournal] = {}

        def told(damage: DamagedJournal) -> None:
            lost.setdefault(damage.queue_id, damage)

        for key, payload in self.index.scan(sums=sums, hurt=told):
            if len(key) != RUN_KEY.size:
                self.report.queues += 1
                self.metas[META_KEY.unpack(key)[0]] = msgspec.msgpack.decode(payload)
                continue
            queue_id, first_seq = RUN_KEY.unpack(key)
            self.report.runs += 1
            wrong = self._run(queue_id, first_seq, payload)
            if wrong and not self._replaced(queue_id, first_seq, payload):
                for broken in wrong:
                    self._hurt(broken) if broken.offset is not None else self.report.broken.append(broken)
        if not self.report.running:  # a checkpoint came between, perhaps
            self.index.prove(sums, told)
        self.report.broken += [_broken(damage, Costs.QUEUE) for damage in lost.values()]

    def _streams(self) -> None:
        """Every record that a stream's catalogue counts."""
        files = StreamFiles(self.report.directory, self.segments)
        for queue_id, meta in self.metas.items():
            for part in map(StreamFile.of_entry, meta.get("files", ())):
                try:
                    self.report.indexed_messages += files.prove(queue_id, part)
                except FileNotFoundError:
                    if not self.report.running:
                        self._missing(files, queue_id, part, None, "the file is gone")
                except DamagedRecord as damage:
                    if not self._refiled(queue_id, part):
                        self._missing(files, queue_id, part, damage.offset, damage.args[1])
        files.close()

    def _refiled(self, queue_id: int, part: StreamFile) -> bool:
        """Whether the running node has another catalogue meanwhile."""
        return self.report.running and part.entry() not in dict(self.index.metas()).get(queue_id, {}).get("files", ())

    def _missing(self, files: StreamFiles, queue_id: int, part: StreamFile, at: int | None, what: str) -> None:
        file = str(files.path(queue_id, part.name).relative_to(self.report.directory))
        self.report.broken.append(Broken(file, at, what, queue_id, None, Costs.QUEUE))

    def _replaced(self, queue_id: int, first_seq: int, payload: bytes) -> bool:
        """Whether the running node has written this run anew meanwhile, which it does before a segment goes."""
        return self.report.running and (first_seq, payload) not in self.index.runs(queue_id, first_seq, first_seq)

    def _run(self, queue_id: int, first_seq: int, payload: bytes) -> list[Broken]:
        broken: list[Broken] = []
        block = first_seq // RUN_LENGTH * RUN_LENGTH
        by_segment: dict[int, list[tuple[int, int, int, int]]] = {}
        before = -1
        for low, _, _, _, segment, offset, length, body_length in RUN_ENTRY.iter_unpack(payload):
            if low <= before:
                return [Broken("index/data.mdb", None, f"the run from seq {first_seq} on is out of order", queue_id)]
            before = low
            by_segment.setdefault(segment, []).append((block + low, offset, length, body_length))
            self.report.indexed_messages += 1
        for segment, wanted in by_segment.items():
            file = self._name(segment)
            try:
                with self.segments.mapped(segment) as data:
                    for seq, offset, length, body_length in wanted:
                        what = self._message(data, queue_id, (seq, offset, length, body_length))
                        if what:
                            broken.append(Broken(file, offset, what, queue_id, seq, Costs.MESSAGE))
            except FileNotFoundError:
                what = f"the file is gone, but {len(wanted)} messages from seq {wanted[0][0]} on are in it"
                costs = Costs.MESSAGE if self.segments.numbers() else Costs.JOURNAL
                broken.append(Broken(file, None, what, queue_id, None, costs))
        return broken

    @staticmethod
    def _message(data: Any, queue_id: int, entry: tuple[int, int, int, int]) -> str:
        """What is wrong with it."""
        seq, offset, length, body_length = entry
        try:
            message = read_message(data, offset, queue_id, seq)
        except DamagedRecord as damage:
            return str(damage.args[1])
        found = 56 + len(message.address) + len(message.payload), message.body_length
        return "" if found == (length, body_length) else f"it has lengths {found}, the index says {entry[2:]}"


__all__ = ["Broken", "CheckReport", "Costs", "check"]
