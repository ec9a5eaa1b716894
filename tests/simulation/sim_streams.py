"""Files of streams in the simulation: the real ones, in a folder of the run's; their flushes count for nothing.

What stands in the shared log is in memory; a segment of it is written to a file when a checkpoint copies it or a reader
asks for it. A file has room for a few dozen messages, so that streams have some of them and retention has work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from journal.record import DamagedRecord
from journal.segments import Segments
from journal.stream_catalogue import Filing, Moved, StreamFile, Taken, Wish
from journal.stream_files import StreamFiles

FILE_BYTES = 1500


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

    def take(self, queue_id: int, part: StreamFile | Moved, wish: Wish) -> Taken:
        taken = self._files.take(queue_id, part, wish)
        assert not isinstance(taken, DamagedRecord), f"a stream's records are whole: {taken}"
        return taken
