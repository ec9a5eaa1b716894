"""A driver of its own process, to be killed: one micro-batch of two files, hanging at a row until a file is there.

killed_driver.py DIRECTORY ENDPOINTS VHOST CORES
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

HANGS_AT = "15000"


def main(directory: Path, endpoints: str, vhost: str, cores: int) -> None:
    from pyspark.sql.functions import udf

    from clusterbroker.pipeline.session import spark_session

    go = str(directory / "go")

    def hang(value: str) -> str:
        while value == HANGS_AT and not os.path.exists(go):
            time.sleep(0.05)
        return value

    spark: Any = spark_session("killed", f"local[{cores}]", quick=True, spark_log_level="OFF")
    frame = spark.readStream.schema("value string").json(str(directory / "source" / "*.json"))
    frame = frame.select(udf(hang, "string", useArrow=False)("value").alias("value"))
    writer = frame.writeStream.format("clusterbroker").option("checkpointLocation", str(directory / "checkpoint"))
    writer = writer.options(endpoints=endpoints, vhost=vhost, deliveryGuarantee="exactly-once", routingKey="q")
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
