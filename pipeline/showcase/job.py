"""The Spark job: files of readings into the broker, and what the broker archives into files by date (waits).

    lines -> readings   valid, each id once            -> exchange `readings`, key REGION.ok or REGION.alarm
          -> windows    sums by region and quarter     -> exchange `readings`, key REGION.window
          -> malformed  what is no reading, as it came -> exchange `readings.malformed`
    stream `archive`    all REGION.ok and REGION.alarm -> Parquet by date

Four streaming queries of one driver, each with a checkpoint of its own: whoever kills the driver starts it again with
the same words, and it goes on. When the file `_DONE` stands beside the input's directory it does the rest, compares,
writes `result.json` and ends.

    python -m clusterbroker.pipeline.showcase.job --directory DIR --endpoints HOST:PORT,...
    spark-submit --master spark://HOST:7077 job.py --directory DIR --endpoints ...
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from clusterbroker.pipeline.showcase.frames import (
    ARCHIVE,
    EXCHANGE,
    MALFORMED,
    SCHEMA,
    archived,
    malformed_messages,
    once,
    reading_messages,
    valid,
    window_messages,
)
from clusterbroker.pipeline.showcase.reconcile import compare

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

RESTARTS_MAX: Final = 20
EVERY: Final = "1 second"
QUIET_S: Final = 90.0
"""So long the end waits for the next row of the archive."""


class Job:
    """The four queries. `directory` holds input, checkpoints, output and progress."""

    def __init__(self, spark: SparkSession, directory: Path, endpoints: str, guarantee: str) -> None:
        self._spark = spark
        self._directory = directory
        self._endpoints = endpoints
        self._guarantee = guarantee
        self.input = str(directory / "input")
        self.output = str(directory / "parquet")
        self.queries: list[StreamingQuery] = []
        self.restarts = 0
        self._begins = (self._readings, self._windows, self._malformed, self._archive)

    def _lines(self) -> DataFrame:
        return self._spark.readStream.option("maxFilesPerTrigger", 8).text(self.input)

    def _publish(self, frame: DataFrame, name: str, exchange: str) -> StreamingQuery:
        writer = frame.writeStream.format("clusterbroker").queryName(name).option("exchange", exchange)
        writer = (
            writer.trigger(processingTime=EVERY)
            .option("endpoints", self._endpoints)
            .option("deliveryGuarantee", self._guarantee)
        )
        return writer.option("checkpointLocation", str(self._directory / "checkpoints" / name)).start()

    def start(self) -> None:
        self.queries = [begin() for begin in self._begins]

    def look_after(self) -> None:
        """Begins a query anew that failed, as its checkpoint allows; raises what it raised when it fails too often."""
        for place, query in enumerate(self.queries):
            if not query.isActive:
                if self.restarts == RESTARTS_MAX:
                    query.awaitTermination()
                self.restarts += 1
                self.queries[place] = self._begins[place]()

    def _readings(self) -> StreamingQuery:
        return self._publish(reading_messages(once(valid(self._lines()))), "readings", EXCHANGE)

    def _windows(self) -> StreamingQuery:
        return self._publish(window_messages(once(valid(self._lines()))), "windows", EXCHANGE)

    def _malformed(self) -> StreamingQuery:
        return self._publish(malformed_messages(self._lines()), "malformed", MALFORMED)

    def _archive(self) -> StreamingQuery:
        stream = self._spark.readStream.format("clusterbroker").option("endpoints", self._endpoints)
        stream = stream.option("stream", ARCHIVE).option("startingOffsets", "earliest")
        files = (
            archived(stream.load())
            .writeStream.trigger(processingTime=EVERY)
            .format("parquet")
            .queryName("archive")
            .partitionBy("date")
        )
        files = files.option("checkpointLocation", str(self._directory / "checkpoints" / "archive"))
        return files.start(self.output)

    def finish(self) -> None:
        """Does what is there and ends the queries. What was published may still be on its way to the archive."""
        for place in range(len(self.queries) - 1):
            self._do_all(place)
        expected = valid(self._spark.read.text(self.input)).dropDuplicates(["id"]).count()
        moved_s, before = time.monotonic(), -1
        while True:
            self._do_all(-1)
            found = self._spark.read.schema(SCHEMA).parquet(self.output).count()
            if found >= expected or time.monotonic() - moved_s > QUIET_S:
                break
            if found > before:
                before, moved_s = found, time.monotonic()
            time.sleep(0.5)
        for query in self.queries:
            query.stop()

    def _do_all(self, place: int) -> None:
        """What one query has to do now, also when it fails on the way."""
        while True:
            query = self.queries[place]
            try:
                query.processAllAvailable()
                return
            except Exception:
                if query.isActive:
                    raise
                self.look_after()


def run(spark: SparkSession, directory: Path, endpoints: str, guarantee: str) -> None:
    """Until the input is done. Raises what a query raised."""
    from clusterbroker.pipeline.listener import ProgressListener

    listener = ProgressListener(directory / "progress.jsonl")
    spark.streams.addListener(listener)
    job = Job(spark, directory, endpoints, guarantee)
    job.start()
    while not (directory / "_DONE").exists():
        job.look_after()
        time.sleep(0.2)
    job.finish()
    fresh = directory / "result.new"
    fresh.write_text(json.dumps(compare(spark, job.input, job.output)))
    fresh.rename(directory / "result.json")


def main() -> None:
    parser = argparse.ArgumentParser(description="The Spark job of the showcase.")
    parser.add_argument(
        "--directory", type=Path, required=True, help="input, checkpoints and output; seen by all workers"
    )
    parser.add_argument("--endpoints", required=True, help="nodes of the broker, HOST:PORT,...")
    parser.add_argument("--guarantee", default="exactly-once", choices=("exactly-once", "at-least-once"))
    parser.add_argument("--master", help="where Spark runs, when this is not run by spark-submit: local[2,4]")
    given = parser.parse_args()
    if given.master:
        from clusterbroker.pipeline.session import spark_session

        settings = {
            "spark_sql_session_timeZone": "UTC",
            "spark_log_level": "ERROR",
        }
        spark = spark_session("meter readings", given.master, quick=True, **settings)
    else:
        from pyspark.sql import SparkSession

        spark = SparkSession.builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    try:
        run(spark, given.directory, given.endpoints, given.guarantee)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
