"""What `spark-submit` runs in a test: numbers into a stream, exactly once, one task of them slow, and back again.

submitted_job.py DIRECTORY ENDPOINTS STREAM ROWS
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

PARTITIONS = 4


def main(directory: Path, endpoints: str, stream: str, rows: int) -> None:
    from pyspark import TaskContext
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import udf

    attempts, hangs_at = str(directory / "attempts"), rows // PARTITIONS // 2

    def slow(number: int) -> int:
        """The first attempt at the first partition never ends by itself."""
        context = TaskContext.get()
        if number % 100 == 0:
            Path(attempts, f"{context.partitionId()}-{context.attemptNumber()}-{os.getpid()}").touch()
        while number == hangs_at and context.attemptNumber() == 0:
            time.sleep(0.1)
        return number

    spark: Any = SparkSession.builder.getOrCreate()
    numbers = spark.range(0, rows, 1, PARTITIONS).select(udf(slow, "bigint", useArrow=False)("id").alias("id"))
    writer = numbers.selectExpr("cast(id as string) AS value").write.format("clusterbroker").mode("append")
    writer.options(endpoints=endpoints, routingKey=stream, deliveryGuarantee="exactly-once").save()

    reader = spark.read.schema("value string").format("clusterbroker").options(endpoints=endpoints, stream=stream)
    found = reader.option("minPartitions", PARTITIONS).load()
    while found.count() < rows:  # they are on their way
        time.sleep(0.2)
    told = {"rows": found.count(), "distinct": found.distinct().count(), "executors": spark.sparkContext.master}
    (directory / "result.json").write_text(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
