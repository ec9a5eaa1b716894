"""The stream source in a real Spark at a real node: batches, micro-batches, limits, restarts, and what is lost."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from clusterbroker.pipeline.asking import Line
from clusterbroker.pipeline.options import parse
from tests.conftest import RunningNode

Sink = Callable[..., dict[str, str]]


class StreamQueue:
    """A stream of one test."""

    def __init__(self, broker: RunningNode, name: str) -> None:
        self._broker = broker
        self.name = name
        self.arguments: dict[str, Any] = {"x-queue-type": "stream"}
        self.declare()

    def _channel(self, deed: Callable[[Any], None]) -> None:
        with pika.BlockingConnection(pika.URLParameters(self._broker.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            deed(channel)

    def declare(self) -> None:
        self._channel(lambda channel: channel.queue_declare(self.name, durable=True, arguments=self.arguments))

    def delete(self) -> None:
        self._channel(lambda channel: channel.queue_delete(self.name))

    def add(self, first: int, count: int) -> None:
        def publish(channel: Any) -> None:
            for number in range(first, first + count):
                properties = pika.BasicProperties(delivery_mode=2, headers={"n": number}, message_id=f"m{number}")
                channel.basic_publish("", self.name, b"%d" % number, properties)

        self._channel(publish)


@pytest.fixture
def stream(broker: RunningNode, request: pytest.FixtureRequest) -> Iterator[StreamQueue]:
    made = StreamQueue(broker, request.node.name)
    yield made
    made.delete()


@pytest.fixture
def source(broker: RunningNode, stream: StreamQueue) -> Callable[..., dict[str, str]]:
    """Options."""
    return lambda **more: {"endpoints": f"127.0.0.1:{broker.port}", "stream": stream.name, **more}


def batch(spark: Any, options: dict[str, str]) -> Any:
    return spark.read.format("clusterbroker").options(**options).load()


def numbers(frame: Any) -> list[int]:
    return sorted(int(row.n) for row in frame.selectExpr("cast(value AS string) AS n").collect())


class Query:
    """A streaming query into Parquet; `run` does what is there and ends."""

    def __init__(self, spark: Any, directory: Path, options: dict[str, str]) -> None:
        self._spark = spark
        self.directory = directory
        self.options = options

    def run(self) -> list[int]:
        """Rows of each of its micro-batches."""
        frame = self._spark.readStream.format("clusterbroker").options(**self.options).load()
        writer = frame.selectExpr("cast(value AS string) AS n", "offset").writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(self.directory / "checkpoint"))
        query = writer.trigger(availableNow=True).start(str(self.directory / "out"))
        assert query.awaitTermination(240), "it ends by itself"
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    def rows(self) -> list[tuple[int, int]]:
        found = self._spark.read.schema("n string, offset bigint").parquet(str(self.directory / "out")).collect()
        return sorted((row.offset, int(row.n)) for row in found)


@pytest.mark.smoke
def test_a_stream_as_a_batch(spark: Any, stream: StreamQueue, source: Any) -> None:
    stream.add(0, 500)
    for more in ({}, {"minPartitions": "3"}, {"maxRecordsPerPartition": "100"}):
        assert numbers(batch(spark, source(**more))) == list(range(500))
    assert batch(spark, source(minPartitions="3")).rdd.getNumPartitions() == 3
    part = source(startingOffsets=f'{{"{stream.name}": 100}}', endingOffsets=f'{{"{stream.name}": 110}}')
    assert numbers(batch(spark, part)) == list(range(100, 110))
    assert numbers(batch(spark, source(startingOffsets="latest"))) == []
    whole = batch(spark, source(includeHeaders="true", startingOffsets=f'{{"{stream.name}": 499}}'))
    [row] = whole.collect()
    assert (bytes(row.value), row.queue, row.offset, row.headers, row.message_id, row.routing_key, row.exchange) == (
        b"499", stream.name, 499, {"n": "499"}, "m499", stream.name, "",
    )  # fmt: skip
    assert row.priority is None
    moment = int(row.enqueued_at.timestamp() * 1000)
    assert 499 in numbers(batch(spark, source(startingTimestamp=str(moment))))
    assert numbers(batch(spark, source(endingTimestamp="2020-01-01T00:00:00Z"))) == []
    chosen = spark.read.format("clusterbroker").schema("offset bigint, value string").options(**source()).load()
    assert [tuple(row) for row in chosen.where("offset < 2").collect()] == [(0, "0"), (1, "1")]


def test_no_plan_shows_the_password_of_a_uri(spark: Any, stream: StreamQueue, broker: RunningNode) -> None:
    frame = spark.read.format("clusterbroker").option("uri", broker.url).option("stream", stream.name).load()
    assert broker.url not in frame._jdf.queryExecution().toString()
    assert spark.conf.get("spark.sql.redaction.options.regex") == "(?i)url|uri"


def test_filters_narrow_what_is_read(spark: Any, stream: StreamQueue, source: Any) -> None:
    """With Spark's setting and without it the rows are the same."""
    setting = "spark.sql.python.filterPushdown.enabled"
    stream.add(0, 12)
    moment = batch(spark, source()).where("offset = 11").first().enqueued_at
    cases = [
        ("offset >= 2 AND offset < 7", [2, 3, 4, 5, 6], 2),
        ("queue = 'another'", [], 0),
        (f"routing_key = '{stream.name}' AND offset > 9", [10, 11], 1),
        ("routing_key = 'another' OR message_id = 'm7'", [7], 3),
        ("routing_key = 'another'", [], 3),
    ]
    try:
        for value, some in (("true", cases), ("false", cases[:1])):
            spark.conf.set(setting, value)
            for where, rows, planned in some:
                frame = batch(spark, source(maxRecordsPerPartition="4")).where(where)
                assert numbers(frame) == rows, where
                assert frame.rdd.getNumPartitions() == ((planned or 1) if value == "true" else 3), where
        spark.conf.set(setting, "true")
        assert 11 in numbers(batch(spark, source()).where(f"enqueued_at >= timestamp '{moment.isoformat()}'"))
    finally:
        spark.conf.unset(setting)


def test_a_query_goes_on_where_it_was(spark: Any, stream: StreamQueue, source: Any, tmp_path: Path) -> None:
    more = {"maxRecordsPerTrigger": "40", "minPartitions": "2", "consumerName": "to parquet"}
    query = Query(spark, tmp_path, source(startingOffsets="earliest", **more))
    stream.add(0, 100)
    assert query.run() == [40, 40, 20]
    assert query.run() == [], "nothing new"
    stream.add(100, 10)
    assert query.run() == [10]
    assert query.rows() == [(n, n) for n in range(110)]
    line = Line(parse(source(), reads=True), "test")
    try:
        [reader] = line.ask("amq.stream", "stored", {"queue": stream.name}, "it")["readers"]
    finally:
        line.close()
    assert (reader["name"], reader["offset"] + reader["lag"]) == ("to parquet", 110)
    assert reader["offset"] >= 100, "what the batches before have read is told with each trigger"
    with pytest.raises(Exception) as error:
        batch(spark, source(consumerName="n")).count()
    assert "option 'consumerName' is for streams, which have triggers: leave it out" in str(error.value)


def test_limits_of_bytes(spark: Any, stream: StreamQueue, source: Any, tmp_path: Path) -> None:
    stream.add(0, 100)
    size = 130
    counts = Query(spark, tmp_path, source(startingOffsets="earliest", maxBytesPerTrigger=str(30 * size))).run()
    assert sum(counts) == 100
    assert 3 <= len(counts) <= 8, "about so many"


def test_a_stream_that_was_declared_anew(spark: Any, stream: StreamQueue, source: Any, tmp_path: Path) -> None:
    query = Query(spark, tmp_path, source(startingOffsets="earliest"))
    stream.add(0, 10)
    query.run()
    stream.delete()
    stream.declare()
    stream.add(100, 20)
    with pytest.raises(Exception) as error:
        query.run()
    assert f"stream '{stream.name}' is not the one that the checkpoint is of" in str(error.value)
    query.options = source(failOnDataLoss="false")
    query.run()
    assert [n for _, n in query.rows()] == sorted([*range(10), *range(100, 120)], key=lambda n: (n % 100, n))


def test_a_checkpoint_of_another_stream(spark: Any, stream: StreamQueue, source: Any, tmp_path: Path) -> None:
    query = Query(spark, tmp_path, source(startingOffsets="earliest"))
    stream.add(0, 1)
    query.run()
    query.options = {**query.options, "stream": "another"}
    with pytest.raises(Exception) as error:
        query.run()
    assert "'another'" in str(error.value)


@pytest.mark.parametrize(
    "options, said",
    [
        ({"stream": "nowhere"}, "nowhere"),
        ({"maxRecordsPerTrigger": "5"}, "option 'maxRecordsPerTrigger' is for streams, which have triggers"),
        ({"exchange": "e"}, "option 'exchange' is one of the sink only: leave it out"),
        ({"startingOffsets": '{"x": 1}'}, "option 'startingOffsets' must name the streams of option 'stream'"),
    ],
)
def test_what_a_source_is_refused(spark: Any, stream: StreamQueue, source: Any, options: Any, said: str) -> None:
    with pytest.raises(Exception) as error:
        batch(spark, source(**options)).count()
    assert said in str(error.value)


def test_a_column_that_there_is_not(spark: Any, source: Any) -> None:
    with pytest.raises(Exception) as error:
        spark.read.format("clusterbroker").schema("offset int").options(**source()).load().count()
    assert "column 'offset' has type int in the schema: it is read as bigint" in str(error.value)


def test_into_the_sink_and_back(spark: Any, stream: StreamQueue, source: Any, sink: Sink) -> None:
    frame = spark.range(30_000, numPartitions=2).selectExpr("cast(id AS string) AS value", "'t' AS type")
    frame.write.format("clusterbroker").options(**sink(routingKey=stream.name)).mode("append").save()
    found = batch(spark, source(minPartitions="4"))
    assert numbers(found) == list(range(30_000))
    assert [row.type for row in found.select("type").distinct().collect()] == ["t"]


def test_a_node_that_is_killed_under_a_reader(
    spark: Any, broker: RunningNode, stream: StreamQueue, source: Any, sink: Sink, tmp_path: Path
) -> None:
    from pyspark.sql.functions import udf

    frame = spark.range(200_000, numPartitions=2).selectExpr("cast(id AS string) AS value")
    frame.write.format("clusterbroker").options(**sink(routingKey=stream.name)).mode("append").save()
    begun, back = str(tmp_path / "begun"), str(tmp_path / "back")

    def told(value: bytes) -> str:
        if value == b"10000":
            open(begun, "w").close()
            while not os.path.exists(back):
                time.sleep(0.01)
        return value.decode()

    def kill_it() -> None:
        while not os.path.exists(begun):
            time.sleep(0.005)
        broker.kill()
        broker.start()
        open(back, "w").close()

    killer = threading.Thread(target=kill_it)
    killer.start()
    read = batch(spark, source()).select(udf(told, "string", useArrow=False)("value").alias("value")).collect()
    killer.join()
    assert sorted(int(row.value) for row in read) == list(range(200_000))
