"""How far everything has got, over time: what the progress bar shows and the picture is made of (waits)."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from clusterbroker.pipeline.asking import Line
from clusterbroker.pipeline.connection import PublisherError
from clusterbroker.pipeline.options import parse
from clusterbroker.pipeline.reading import bounds
from clusterbroker.pipeline.showcase.frames import ARCHIVE

EVERY_S: Final = 0.25
PATIENCE_MS: Final = 2_000


class Sample(NamedTuple):
    """Rows so far, `at_s` seconds after the beginning."""

    at_s: float
    fed: int
    archived: int
    consumed: int
    filed: int


class Watch(threading.Thread):
    """Looks every quarter of a second."""

    def __init__(self, endpoints: str, progress: Path, fed: Callable[[], int], consumed: Callable[[], int]) -> None:
        super().__init__(daemon=True)
        self._options = parse({
            "endpoints": endpoints, "stream": ARCHIVE, "readTimeoutMs": str(PATIENCE_MS),
            "connectTimeoutMs": str(PATIENCE_MS), "reconnectAttempts": "0",
        }, reads=True)  # fmt: skip
        self._progress = progress
        self._fed = fed
        self._consumed = consumed
        self._ended = threading.Event()
        self._archived = 0
        self._filed = 0
        self._read_to = 0
        self.began_s = time.monotonic()
        self.samples: list[Sample] = []

    @property
    def last(self) -> Sample:
        return self.samples[-1] if self.samples else Sample(0, 0, 0, 0, 0)

    def run(self) -> None:
        line = Line(self._options, "showcase")
        while not self._ended.wait(EVERY_S):
            try:
                self._archived = bounds(line, ARCHIVE).next
            except PublisherError:  # a node is being killed, or nobody owns the stream yet
                pass
            self._filed += self._fresh_rows()
            at_s = time.monotonic() - self.began_s
            self.samples.append(Sample(at_s, self._fed(), self._archived, self._consumed(), self._filed))
        line.close()

    def _fresh_rows(self) -> int:
        """Rows of archive batches that ended since the last look."""
        if not self._progress.exists():
            return 0
        with self._progress.open("rb") as lines:
            lines.seek(self._read_to)
            rows = 0
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                self._read_to += len(line)
                said = json.loads(line)
                rows += said.get("rows", 0) if said["query"] == "archive" else 0
        return rows

    def stop(self) -> None:
        self._ended.set()
        self.join(10)
