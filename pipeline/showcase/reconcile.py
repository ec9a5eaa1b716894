"""Both ends of the pipeline, compared: the readings in the input's files, and those in the archive's.

`exceptAll` keeps repeats: a row that came twice is one that is too many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterbroker.pipeline.showcase.frames import COLUMNS, malformed_messages, reading_messages, valid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def compare(spark: SparkSession, given: str, archived: str) -> dict[str, Any]:
    """Counts, and what must be empty: `missing` and `surplus` rows; sums that consumers can be held against."""
    from pyspark.sql import functions as f

    lines = spark.read.text(given)
    expected = valid(lines).dropDuplicates(["id"]).persist()
    found = spark.read.parquet(archived).select(*COLUMNS).persist()
    alarms = reading_messages(expected).where("routing_key LIKE '%.alarm'").count()
    totals = {row.region: row.wh for row in expected.groupBy("region").agg(f.sum("wh").alias("wh")).collect()}
    return {
        "lines": lines.count(),
        "malformed": malformed_messages(lines).count(),
        "readings": expected.count(),
        "archived": found.count(),
        "missing": expected.exceptAll(found).count(),
        "surplus": found.exceptAll(expected).count(),
        "alarms": alarms,
        "totals": totals,
        "dates": [
            str(row.date) for row in spark.read.parquet(archived).select("date").distinct().orderBy("date").collect()
        ],
    }
