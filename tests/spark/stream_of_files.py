"""A streaming query whose micro-batches a test decides: one file of numbers each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Stream:
    """Files of numbers, one a micro-batch, into the sink; `run` does what is there and ends."""

    def __init__(self, spark: Any, directory: Path, options: dict[str, str]) -> None:
        self._spark = spark
        self.source = directory / "source"
        self.source.mkdir()
        self.checkpoint = directory / "checkpoint"
        self.options = options
        self._files = 0

    def add(self, first: int, count: int) -> None:
        path = self.source / f"{self._files:04d}.json"
        self._files += 1
        fresh = path.with_suffix(".new")
        fresh.write_text("".join(json.dumps({"value": str(n)}) + "\n" for n in range(first, first + count)))
        fresh.rename(path)

    def query(self, change: Callable[[Any], Any] = lambda frame: frame) -> Any:
        frame = self._spark.readStream.schema("value string").option("maxFilesPerTrigger", 1)
        writer = change(frame.json(str(self.source / "*.json"))).writeStream.format("clusterbroker")
        writer = writer.options(**self.options).option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(availableNow=True).start()

    def run(self, change: Callable[[Any], Any] = lambda frame: frame) -> None:
        assert self.query(change).awaitTermination(240), "it ends by itself"

    def forget_last_commit(self) -> None:
        """As if Spark had died before it noted that its last batch is done."""
        commits = self.checkpoint / "commits"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        for path in (commits / str(last), *commits.glob(f".{last}.*")):
            path.unlink()
