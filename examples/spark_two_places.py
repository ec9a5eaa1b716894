"""Orders into the broker and into Parquet, batch by batch, each once in both.

    python examples/spark_two_places.py --orders DIR --parquet DIR --endpoints localhost:5672 --queue orders

Each file of JSON lines that appears in the directory is a micro-batch. A batch may come again, when Spark died before
it noted that it was done. So what is written carries the batch's number: Parquet gets a directory for each batch,
which is written over, and the broker does not publish a batch that it has published.
"""

import argparse

from pyspark.sql import DataFrame

from clusterbroker.pipeline.foreach_batch import publish
from clusterbroker.pipeline.session import spark_session

SCHEMA = "id string, customer string, cents bigint"


def main() -> None:
    parser = argparse.ArgumentParser(description="Orders into the broker and into Parquet.")
    parser.add_argument("--orders", required=True, help="a directory in which files of JSON lines appear")
    parser.add_argument("--parquet", required=True, help="where Parquet goes")
    parser.add_argument("--endpoints", default="localhost:5672")
    parser.add_argument("--queue", default="orders")
    parser.add_argument("--guarantee", default="exactly-once", choices=("exactly-once", "at-least-once"))
    given = parser.parse_args()

    options = {"endpoints": given.endpoints, "routingKey": given.queue, "deliveryGuarantee": given.guarantee}
    if given.guarantee == "exactly-once":
        options["txnAppId"] = f"orders to {given.queue}"

    def both(frame: DataFrame, batch_id: int) -> None:
        frame.persist()
        frame.write.mode("overwrite").parquet(f"{given.parquet}/batch={batch_id}")
        publish(frame.selectExpr("to_json(struct(*)) AS value", "id AS message_id"), options, batch_id)
        frame.unpersist()

    spark = spark_session("two places", quick=True)
    orders = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(given.orders)
    writer = orders.writeStream.foreachBatch(both).option("checkpointLocation", f"{given.parquet}-checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
