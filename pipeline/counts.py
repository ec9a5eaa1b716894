"""What became of a batch's rows, told from the process that commits it: as lines of JSON in a file beside the driver.

Spark calls `commit` in a process of its own and tells its caller nothing of it. So who wants the counts names a file
(`countsFile`), and each committed batch adds a line:

    {"query": "6f0e...", "batch": 17, "rows": 12000, "messages": 12000, "skipped": 3, "dead_lettered": 0, "resent": 0,
     "already": false}

A batch that Spark commits again, after a restart, adds another line of the same query and batch.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from clusterbroker.pipeline.task import Written

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Counts:
    """Of one batch. All but `skipped` and `dead_lettered` are of rows and messages that the broker has confirmed."""

    rows: int = 0
    messages: int = 0
    """In which they are: as many, unless messages hold several rows."""
    skipped: int = 0
    dead_lettered: int = 0
    resent: int = 0
    """Messages that were sent again after a lost connection, and may be there twice."""
    already: bool = False
    """Exactly-once: this batch was committed before, and nothing of it is published again."""

    @property
    def left_out(self) -> int:
        """Rows that are no message where they were to go."""
        return self.skipped + self.dead_lettered


def total(written: Iterable[Written], already: bool = False) -> Counts:
    """Of the tasks that make a batch."""
    tasks = list(written)
    return Counts(
        sum(one.rows for one in tasks), sum(one.messages for one in tasks), sum(one.skipped for one in tasks),
        sum(one.dead_lettered for one in tasks), sum(one.resent for one in tasks), already,
    )  # fmt: skip


def tell(path: str | None, query: str, batch: int, counts: Counts) -> None:
    """Adds the line. The batch is published, so a file that cannot be written must not make it fail."""
    if counts.left_out:
        _log.warning(
            "batch %d of %s: %d rows skipped, %d dead-lettered", batch, query, counts.skipped, counts.dead_lettered
        )
    if counts.already:
        _log.warning("batch %d of %s was committed before, so it is not published again", batch, query)
    if path is None:
        return
    try:
        with Path(path).open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({"query": query, "batch": batch, **asdict(counts)}) + "\n")
    except OSError as error:
        _log.warning("option 'countsFile' is '%s', which cannot be written: %s", path, error)


class CountsFile:
    """Reads what is added to such a file, whole lines at a time. A file that is not there has none."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._read = 0

    def news(self) -> list[tuple[str, int, Counts]]:
        """(query, batch, counts) of each line since the last call. Lines of others' making are passed over."""
        try:
            with self._path.open("rb") as lines:
                lines.seek(self._read)
                data = lines.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        return [told for line in whole.splitlines() if (told := _understood(line)) is not None]


def _understood(line: bytes) -> tuple[str, int, Counts] | None:
    try:
        said: dict[str, Any] = json.loads(line)
        return said.pop("query"), said.pop("batch"), Counts(**said)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
