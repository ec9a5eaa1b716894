"""Files of streams in the simulation: the real ones, in a folder of the run's; their flushes count for nothing.

What stands in the shared log is in memory; a segment of it is written to a file when a checkpoint copies it or a reader
asks for it. A file has room for a few dozen messages, so that streams have some of them and retention has work.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Final

from clusterbroker.journal.record import DamagedRecord
from clusterbroker.journal.segments import Segments
from clusterbroker.journal.stream_catalogue import Filing, Moved, StreamFile, Taken, Wish
from clusterbroker.journal.stream_files import StreamFiles

FILE_BYTES = 1500
BODY: Final = re.compile(rb"[a-z]\d(\.\d+)?:\d+")
"""Of a message: publisher and number."""


class LogFiles(Segments):
    """The shared log's segments as files; `segments` is what the log has."""

    __slots__ = ("segments",)

    def __init__(self, directory: Path, segments: Mapping[int, bytearray]) -> None:
        super().__init__(directory)
        self.segments = segments
        self.folder.mkdir(parents=True, exist_ok=True)

    def path(self, segment: int) -> Path:
        path = super().path(segment)
        path.write_bytes(self.segments[segment])
        return path


class SimStreams:
    """Of one disk: what its checkpoints have to do for streams, and what is read of them."""

    def __init__(self, directory: Path, segments: Mapping[int, bytearray]) -> None:
        self._files = StreamFiles(directory, LogFiles(directory, segments))
        self._filings: list[Filing] = []
        self._filed: list[Sequence[StreamFile]] = []
        self._rotten: tuple[Path, int, int] | None = None
        """A file with a byte that flipped: where that is, and the file's inode."""
        self._rotten_queue = 0

    def begin(self, filings: Sequence[Filing]) -> None:
        """A checkpoint is under way."""
        self._filings = [filing._replace(segment_bytes=FILE_BYTES) for filing in filings]
        self._filed = []

    def file(self) -> None:
        """The log is durable: what moved out of it is copied. Nothing counts yet."""
        self._filed = [self._files.file(filing) for filing in self._filings]

    def counted(self, forgotten: Sequence[int]) -> None:
        """The index has the new catalogues."""
        self._files.counted()
        kept = {filing.queue_id: files for filing, files in zip(self._filings, self._filed, strict=True)}
        for queue_id in forgotten:
            self._files.forget(queue_id, kept.get(queue_id, ()))
            self._files.forget_open(queue_id)
        for filing, files in zip(self._filings, self._filed, strict=True):
            filing.done(files)
            self._files.remove(filing.queue_id, filing.gone)
        self._filings = []

    def crash(self) -> None:
        """The process ends."""
        self._filings = []
        self._files.close()

    def recover(self, metas: Mapping[int, Mapping[str, Sequence[Sequence[int]]]]) -> None:
        """A new process: what the catalogues in the index say is there, and nothing else stays."""
        found = {
            queue_id: [StreamFile.of_entry(entry) for entry in meta["files"]]
            for queue_id, meta in metas.items()
            if "files" in meta
        }
        self._files = StreamFiles(self._files.folder.parent, self._files._segments)
        self._files.sweep(found)

    def take(self, queue_id: int, part: StreamFile | Moved, wish: Wish) -> Taken | DamagedRecord:
        taken = self._files.take(queue_id, part, wish)
        assert not isinstance(taken, DamagedRecord) or self.rots, f"a stream's records are whole: {taken}"
        return taken

    # -- bits that flip

    def rot(self, queue_id: int, chance: Random) -> bool:
        """One message in a file of this stream cannot be read any more, if there is one."""
        names = self._files.names(queue_id)
        if not names:
            return False
        path = self._files.path(queue_id, chance.choice(names))
        found = [match.end() - 1 for match in BODY.finditer(path.read_bytes())]
        if not found:
            return False
        at = chance.choice(found)
        self._rotten, self._rotten_queue = (path, at, path.stat().st_ino), queue_id
        _flip(path, at)
        return True

    @property
    def rots(self) -> int:
        """Whose file that is, if it is still there; else 0."""
        if self._rotten is not None:
            path, at, inode = self._rotten
            if not path.exists() or path.stat().st_ino != inode or path.stat().st_size <= at:
                self._rotten = None
        return self._rotten_queue if self._rotten is not None else 0

    def mend(self) -> None:
        """What is damaged is put right, between two processes."""
        if self.rots:
            assert self._rotten is not None, "it rots"
            _flip(*self._rotten[:2])
        self._rotten = None


def _flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
