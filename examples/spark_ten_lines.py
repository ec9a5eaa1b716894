"""A stream of made-up rows into an exchange: `python examples/spark_ten_lines.py localhost:5672`."""

import sys
import tempfile

from clusterbroker.pipeline.session import spark_session

spark = spark_session("ten lines")
rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10_000).load()
messages = rows.selectExpr("to_json(struct(*)) AS value", "concat('rate.', value % 10) AS routing_key")
query = (
    messages.writeStream.format("clusterbroker")
    .option("endpoints", sys.argv[1])
    .option("exchange", "amq.topic")
    .option("unroutable", "ignore")  # nobody may have bound a queue
    .option("checkpointLocation", tempfile.mkdtemp())
    .start()
)
query.awaitTermination(float(sys.argv[2]) if len(sys.argv) > 2 else None)
