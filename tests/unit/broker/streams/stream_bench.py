"""One copy of a stream and its journal, without a node around it: what is written, moved into files, cut and read back.

The copy is a replica's ring, for that is told everything: messages, SET and CUT. `crash` opens a copy of the directory
as it stands, as after a kill; `model` is what the stream must have.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.server.recovery import Recovery
from clusterbroker.broker.streams.past import Past
from clusterbroker.journal.journal import Journal
from clusterbroker.journal.options import JournalOptions
from clusterbroker.journal.record import Message, RecordBuffer, read_records
from clusterbroker.journal.stream_catalogue import StreamFile, Taken, Wish
from clusterbroker.replication.records import Records
from tests.unit.journal.journal_bench import Loop

QUEUE = 7
OPTIONS = JournalOptions(
    segment_bytes=32768, reserve_bytes=0, full_retry_s=0.01, flush_interval_s=0.02, map_bytes=1 << 28
)


class Copy:
    """See the module."""

    def __init__(self, directory: Path, file_bytes: int = 4096, options: JournalOptions = OPTIONS) -> None:
        self.base = directory
        self.directory = directory / "0"
        self.lives = 0
        self.file_bytes = file_bytes
        self.options = options
        self.model: dict[int, bytes] = {}
        self.open()

    def open(self) -> None:
        self.loop = Loop()
        self.journal = Journal.open(self.directory, self.options, self.loop.calls.put, lambda *_: None, self.loop.watch)
        recovery = Recovery(lambda _: self, self.new_ring, lambda _: True, None)  # type: ignore[arg-type, return-value]
        try:
            self.journal.recover(recovery)
        except BaseException:
            self.journal.close()
            raise
        recovery.finish()
        self.ring = recovery.rings.get(QUEUE) or self.new_ring()

    def new_ring(self, _: Any = None) -> Ring:
        ring = Ring(QUEUE, True, 0, self.journal.use, [], replica=True)
        ring.past = Past(QUEUE, self.file_bytes)
        return ring

    def close(self) -> None:
        self.journal.close()

    def crash(self) -> None:
        """The node is killed, and starts with what the disk has."""
        self.lives += 1
        copied = self.base / str(self.lives)
        while True:  # a checkpoint may be under way: what was copied in the midst of its changes was never on the disk
            before = self._files()
            with contextlib.suppress(shutil.Error, FileNotFoundError):
                shutil.copytree(self.directory, copied)
                if self._files() == before:
                    break
            shutil.rmtree(copied, ignore_errors=True)
        self.journal.close()
        shutil.rmtree(self.directory)
        self.directory = copied
        self.open()

    def _files(self) -> dict[str, tuple[int, int]]:
        found = {}
        for path in self.directory.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                found[str(path)] = status.st_size, status.st_mtime_ns
        return found

    # -- what its owner says

    def fold(self, records: bytes) -> None:
        writer = self.journal.begin_group(len(records))
        offset = writer.append(records)
        self.ring.fold(records, writer.segment, offset)
        done: list[int] = []
        self.journal.submit(writer, True, lambda: done.append(1))
        self.loop.until(lambda: bool(done))

    def append(self, *bodies: bytes, first: int | None = None) -> None:
        buffer = RecordBuffer()
        seq = self.ring.next_seq if first is None else first
        for body in bodies:
            buffer.enqueue(QUEUE, 1, seq, message_of(body, 1000 + seq), 0, False)
            self.model[seq] = body
            seq += 1
        self.fold(buffer.take())

    def drop(self, first: int, last: int) -> None:
        self.fold(Records().settle(QUEUE, 1, [(first, last)]))
        self.model = {seq: body for seq, body in self.model.items() if not first <= seq <= last}

    def cut(self, from_seq: int) -> None:
        self.fold(Records().cut(QUEUE, 1, from_seq))
        self.model = {seq: body for seq, body in self.model.items() if seq < from_seq}

    # -- checkpoints

    def begin_checkpoint(self) -> list[int]:
        """Not waited for; the list is filled when it is durable."""
        parts = self.ring.move_out()
        runs = [(QUEUE, first, run) for first, run in self.ring.dirty_runs()]
        meta = self.ring.checkpoint_meta()
        filing = self.ring.past.begin(parts, meta)
        done: list[int] = []
        self.journal.checkpoint(runs, [(QUEUE, meta)], [], self.journal.position, lambda: done.append(1), [filing])
        return done

    def checkpoint(self) -> None:
        done = self.begin_checkpoint()
        self.loop.until(lambda: bool(done))

    # -- reading

    def read(self, wish: Wish) -> Any:
        part = self.ring.past.part_at(wish.seq)
        assert part is not None, "there is something to read"
        return self.take(part, wish)

    def take(self, part: Any, wish: Wish) -> Any:
        got: list[Any] = []
        self.journal.read_stream(QUEUE, part, wish, got.append)
        self.loop.until(lambda: bool(got))
        return got[0]

    def content(self, bytes_max: int = 1 << 20) -> dict[int, bytes]:
        """All that it has."""
        found: dict[int, bytes] = {}
        past, seq = self.ring.past, 1
        while (part := past.part_at(seq)) is not None:
            seq = max(seq, part.first, past.first)
            taken = self.take(part, Wish(seq, part.end, 4096, bytes_max))
            assert isinstance(taken, Taken), f"{seq} is in {part}: {taken}"
            assert taken.first == seq, f"{seq} is in {part}"
            for number, message, _, _ in read_records(taken.records):
                assert number not in found
                found[number] = message.body
            seq = taken.next_seq
        living = [entry[0] for entry in self.ring.living(1, self.ring.next_seq, 10**6)]
        wanted = [self.ring.location(seq) for seq in living]
        if wanted:
            got = []
            self.journal.read(QUEUE, wanted, got.append)
            self.loop.until(lambda: bool(got))
            for seq, message in zip(living, got[0], strict=True):
                assert seq not in found
                found[seq] = message.body
        return dict(sorted(found.items()))

    def check(self) -> None:
        """It has what the model has, and says so."""
        assert self.content() == dict(sorted(self.model.items()))
        assert self.ring.ready + self.ring.past.count == len(self.model)

    def files(self) -> list[Path]:
        return sorted((self.directory / "streams" / str(QUEUE)).glob("*.seg"))

    @property
    def parts(self) -> list[StreamFile]:
        files: list[StreamFile] = self.ring.past.files
        return files


def message_of(body: bytes, time_ms: int = 1000) -> Message:
    return Message(b"\x00\x01s", b"\x10\x00\x02" + body, 3, 1, 0, time_ms, -1)
