"""What is on a node's disk: messages by queue and hour, and why dead letters died.

    python examples/spark_journal_audit.py /var/lib/clusterbroker

Reads the data directory beside the running node, or a copy of it; nothing is taken from any queue.
"""

import argparse

from clusterbroker.pipeline.session import spark_session


def main() -> None:
    parser = argparse.ArgumentParser(description="Messages on a node's disk by queue and hour, and dead letters.")
    parser.add_argument("directory", help="the node's data directory, or a copy of it")
    parser.add_argument("--vhost", default="/")
    given = parser.parse_args()

    spark = spark_session("journal audit", quick=True, spark_sql_session_timeZone="UTC", spark_log_level="ERROR")
    source = spark.read.format("clusterbroker").option("journal", given.directory).option("vhost", given.vhost)
    messages = source.option("includeHeaders", "true").option("minPartitions", "2").load()
    messages.createOrReplaceTempView("messages")
    spark.sql("""
        SELECT queue, date_trunc('hour', enqueued_at) AS hour, count(*) AS messages, sum(length(value)) AS bytes
        FROM messages GROUP BY queue, hour ORDER BY queue, hour
    """).show(100, truncate=False)
    spark.sql("""
        SELECT queue, headers['x-first-death-queue'] AS died_in, headers['x-first-death-reason'] AS reason,
               count(*) AS messages
        FROM messages WHERE headers['x-first-death-reason'] IS NOT NULL
        GROUP BY queue, died_in, reason ORDER BY messages DESC
    """).show(100, truncate=False)
    spark.stop()


if __name__ == "__main__":
    main()
