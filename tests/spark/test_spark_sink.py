"""The data source in a real Spark at a real node: batches, streams, what is refused, tasks and nodes that fail."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunningNode
from tests.spark.stream_of_files import Stream

Sink = Callable[..., dict[str, str]]


def write(frame: Any, options: dict[str, str]) -> None:
    frame.write.format("clusterbroker").options(**options).mode("append").save()


def numbers(spark: Any, count: int, partitions: int = 2) -> Any:
    return spark.range(count, numPartitions=partitions).selectExpr("cast(id AS string) AS value")


def counted(bodies: list[bytes]) -> Counter[int]:
    return Counter(map(int, bodies))


# -- batches -------------------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_a_frame_is_written(spark: Any, queue: Any, sink: Sink) -> None:
    write(numbers(spark, 25_000), sink(routingKey=queue.name))
    found = queue.take()
    assert Counter(int(body) for _, body in found) == Counter(range(25_000))
    assert len({properties.message_id for properties, _ in found}) == 25_000
    assert {properties.delivery_mode for properties, _ in found} == {2}


def test_every_column(spark: Any, queue: Any, sink: Sink) -> None:
    frame = spark.sql(
        f"""SELECT encode('body', 'utf-8') AS value, '{queue.name}' AS routing_key, '' AS exchange,
            map('a', '1', 'b', CAST(NULL AS string)) AS headers, 'm' AS message_id, 'c' AS correlation_id,
            'r' AS reply_to, 'text/plain' AS content_type, CAST(NULL AS string) AS content_encoding, 't' AS type,
            'app' AS app_id, 7 AS priority, 60000L AS expiration, timestamp_seconds(1700000000) AS timestamp"""
    )
    write(frame, sink())
    [(properties, body)] = queue.take()
    assert body == b"body"
    said = {name: value for name, value in vars(properties).items() if value is not None}
    assert said == {
        "headers": {"a": "1", "b": None}, "message_id": "m", "correlation_id": "c", "reply_to": "r",
        "content_type": "text/plain", "type": "t", "app_id": "app", "priority": 7, "expiration": "60000",
        "timestamp": 1_700_000_000, "delivery_mode": 2,
    }  # fmt: skip


def test_bad_rows_are_counted_out(spark: Any, queue: Any, sink: Sink) -> None:
    frame = spark.sql("SELECT CASE WHEN id % 3 = 0 THEN NULL ELSE cast(id AS string) END AS value FROM range(9)")
    write(frame, sink(routingKey=queue.name, onRowError="skip"))
    assert sorted(queue.bodies()) == [b"1", b"2", b"4", b"5", b"7", b"8"]


@pytest.mark.parametrize(
    "select, options, said",
    [
        ("1 AS value", {}, "column 'value' has type int: cast it to binary or string"),
        ("'x' AS value, 1 AS vaule", {}, "unknown column 'vaule'. did you mean 'value'?"),
        ("'x' AS value", {"maxinflite": "1"}, "unknown option 'maxinflite': did you mean 'maxInFlight'?"),
        ("'x' AS value", {"vhost": "nowhere"}, "530 NOT_ALLOWED"),
        ("'x' AS value", {"countsFile": "/nowhere/x"}, "option 'countsFile' is '/nowhere/x': its directory"),
        ("'x' AS value", {"routingKey": "no-such-queue"}, "no queue takes rows for exchange '' with routing key"),
        ("CAST(NULL AS string) AS value", {}, "row 0 of its partition is no message: column 'value' is null"),
        ("'x' AS value", {"endpoints": "127.0.0.1:1", "reconnectAttempts": "0"}, "no endpoint answers: 127.0.0.1:1"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told(spark: Any, sink: Sink, select: str, options: dict[str, str], said: str) -> None:
    with pytest.raises(Exception) as error:
        write(spark.sql(f"SELECT {select}"), {**sink(), **options})
    assert said in str(error.value)


def test_nothing_is_overwritten(spark: Any, sink: Sink) -> None:
    frame = numbers(spark, 1)
    with pytest.raises(Exception) as error:
        frame.write.format("clusterbroker").options(**sink()).mode("overwrite").save()
    assert 'use .mode("append")' in str(error.value)


@pytest.mark.parametrize("message_format", ["arrow", "jsonl"])
def test_many_rows_in_one_message(
    spark: Any, broker: RunningNode, queue_with: Callable[..., Any], sink: Sink, message_format: str
) -> None:
    """Written, and read back as the page says."""
    stream = queue_with({"x-queue-type": "stream"})
    value = "struct(concat('d', id) AS device, id / 4 AS kwh)"
    frame = spark.range(2000, numPartitions=2).selectExpr(
        f"{value if message_format == 'arrow' else f'to_json({value})'} AS value", f"'{stream.name}' AS routing_key"
    )
    write(frame, sink(messageFormat=message_format, rowsPerMessage="300"))
    page = (Path(__file__).resolve().parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")
    lines = page.partition("## Many rows in one message")[2].partition("```python\nimport ")[2].partition("```")[0]
    where = f'.option("endpoints", "127.0.0.1:{broker.port}").option("stream", "{stream.name}")'
    lines = lines.replace('.option("stream", "readings")', where)
    names: dict[str, Any] = {"spark": spark}
    exec("import " + lines, names)
    assert names["messages"].count() == 2 * 4, "1,000 rows of each task, at most 300 in a message"
    rows = names["of_arrow" if message_format == "arrow" else "of_lines"].collect()
    assert sorted((row.device, row.kwh) for row in rows) == sorted((f"d{id}", id / 4) for id in range(2000))


# -- streams -------------------------------------------------------------------------------------------------------


def test_a_stream_and_its_next_run(spark: Any, queue: Any, sink: Sink, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path, sink(routingKey=queue.name))
    stream.add(0, 1000)
    stream.add(1000, 1000)
    stream.run()
    assert counted(queue.bodies()) == Counter(range(2000))
    stream.add(2000, 10)
    stream.run()
    found = queue.take()
    assert counted([body for _, body in found]) == Counter(range(2000, 2010))
    query, batch, partition, row = found[0][0].message_id.split("/")
    assert (len(query), batch, partition, row) == (36, "2", "0", "0")


def test_a_batch_that_comes_again(spark: Any, queue: Any, sink: Sink, tmp_path: Path) -> None:
    """A crash before Spark has noted that a batch is done: at least once is twice then."""
    stream = Stream(spark, tmp_path, sink(routingKey=queue.name))
    stream.add(0, 100)
    stream.add(100, 100)
    stream.run()
    stream.forget_last_commit()
    stream.run()
    assert counted(queue.bodies()) == Counter(range(200)) + Counter(range(100, 200))


def through(spark: Any, count: int, partitions: int, look: Callable[[int], None]) -> Any:
    """Numbers that `look` sees in a worker, one after another, before they are written."""
    from pyspark.sql.functions import udf

    def seen(value: int) -> str:
        look(value)
        return str(value)

    return spark.range(count, numPartitions=partitions).select(udf(seen, "string", useArrow=False)("id").alias("value"))


def test_a_task_that_dies_half_way_is_run_again(spark: Any, queue: Any, sink: Sink, tmp_path: Path) -> None:
    marker = str(tmp_path / "died")

    def die_once(value: int) -> None:
        if value == 20_000 and not os.path.exists(marker):
            open(marker, "w").close()
            raise RuntimeError("more than half way")

    write(through(spark, 25_000, 1, die_once), sink(routingKey=queue.name))
    found = counted(queue.bodies())
    assert set(found) == set(range(25_000))
    assert max(found.values()) <= 2


def test_a_node_that_is_killed_under_a_batch(
    spark: Any, broker: RunningNode, queue: Any, sink: Sink, tmp_path: Path
) -> None:
    marker = str(tmp_path / "begun")

    def tell(value: int) -> None:
        if value == 12_000:
            open(marker, "w").close()

    def kill_it() -> None:
        while not os.path.exists(marker):
            time.sleep(0.005)
        broker.kill()
        broker.start()

    killer = threading.Thread(target=kill_it)
    killer.start()
    write(through(spark, 60_000, 2, tell), sink(routingKey=queue.name, maxInFlight="1000"))
    killer.join()
    assert set(counted(queue.bodies())) == set(range(60_000)), "confirmed rows outlive the node, others are sent again"


# -- beside the data source ----------------------------------------------------------------------------------------


def test_foreach_batch(spark: Any, queue: Any, sink: Sink, tmp_path: Path) -> None:
    from clusterbroker.pipeline.columns import BadColumns
    from clusterbroker.pipeline.counts import Counts
    from clusterbroker.pipeline.foreach_batch import publish
    from clusterbroker.pipeline.options import BadOption

    source = tmp_path / "source"
    numbers(spark, 500).write.json(str(source))
    told: list[Counts] = []

    def both(frame: Any, batch_id: int) -> None:
        frame.persist()
        frame.write.mode("append").json(str(tmp_path / "archive"))
        told.append(publish(frame, sink(routingKey=queue.name), batch_id))
        frame.unpersist()

    query = spark.readStream.schema("value string").json(str(source)).writeStream.foreachBatch(both)
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(240)
    assert told == [Counts(rows=500, messages=500)]
    assert counted(queue.bodies()) == Counter(range(500))
    assert spark.read.schema("value string").json(str(tmp_path / "archive")).count() == 500
    with pytest.raises(BadOption, match="'txnAppId' must name who writes"):
        publish(numbers(spark, 1), sink(deliveryGuarantee="exactly-once"), 0)
    once = sink(routingKey=queue.name, deliveryGuarantee="exactly-once", txnAppId="a", onRowError="skip")
    frame = spark.sql("SELECT CASE WHEN id < 3 THEN 'x' END AS value FROM range(5)")
    again = [publish(frame, once, 7) for _ in range(2)]
    assert again == [Counts(3, 3, skipped=2), Counts(3, 3, skipped=2, already=True)]
    assert queue.take(3)
    with pytest.raises(BadOption, match="option 'countsFile' is for writers: `publish` returns its counts"):
        publish(frame, once | {"countsFile": "x"}, 8)
    with pytest.raises(BadOption, match="'txnVersion' is said by `batch_id` here"):
        publish(numbers(spark, 1), sink(deliveryGuarantee="exactly-once", txnAppId="a", txnVersion="1"), 0)
    with pytest.raises(BadColumns, match="column 'value' has type bigint"):
        publish(spark.sql("SELECT 1L AS value"), sink(), 0)


def test_progress_is_written_down(spark: Any, queue: Any, sink: Sink, tmp_path: Path) -> None:
    from clusterbroker.pipeline.listener import ProgressListener

    listener = ProgressListener(tmp_path / "progress.jsonl", tmp_path / "spark.prom", tmp_path / "counts.jsonl")
    spark.streams.addListener(listener)
    counts = {"countsFile": str(tmp_path / "counts.jsonl"), "onRowError": "skip", "maxMessageBytes": "1"}
    stream = Stream(spark, tmp_path, sink(routingKey=queue.name, **counts))
    try:
        stream.add(0, 15)
        query = stream.query()
        assert query.awaitTermination(240)
        lines: list[Any] = []
        while not lines or "ended" not in lines[-1]:  # told on a thread of Spark's, soon after
            time.sleep(0.01)
            said = (tmp_path / "progress.jsonl").read_text() if (tmp_path / "progress.jsonl").exists() else ""
            lines = [json.loads(line) for line in said.splitlines(keepends=True) if line.endswith("\n")]
    finally:
        spark.streams.removeListener(listener)
    assert [(line["rows"], line["skipped"], line["skipped_total"]) for line in lines[:-1]] == [(15, 5, 5)]
    assert lines[0]["query"] == lines[-1]["id"] == str(query.id)
    assert lines[-1]["ended"] == ""
    assert "clusterbroker_spark_skipped_total" in (tmp_path / "spark.prom").read_text()


def test_the_ten_lines_of_the_page(spark: Any, broker: RunningNode, queue: Any, tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")
    lines = page.partition("## Ten lines")[2].partition("```python\n")[2].partition("```")[0]
    lines = lines.replace("localhost:5672", f"127.0.0.1:{broker.port}").replace("/tmp/rate-to-broker", str(tmp_path))
    assert lines.endswith("query.awaitTermination()\n")
    queue.bind("amq.topic", "rate.#")
    names: dict[str, Any] = {}
    exec(lines.removesuffix("query.awaitTermination()\n"), names)
    try:
        bodies = [json.loads(body) for _, body in queue.take(100)]
    finally:
        names["query"].stop()
    assert len({body["value"] for body in bodies}) == 100
