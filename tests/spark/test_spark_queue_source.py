"""The source for queues that are taken from, in a real Spark at a real node: batches leave the queue when they are
committed, and a query that starts again reads what it had not committed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.conftest import RunningNode

Options = Callable[..., dict[str, str]]


class TakenQueue:
    """A queue of one test."""

    def __init__(self, broker: RunningNode, name: str) -> None:
        self._broker = broker
        self.name = name
        self.use(lambda channel: channel.queue_declare(name, durable=True))

    def use(self, deed: Callable[[Any], Any], confirms: bool = True) -> Any:
        with pika.BlockingConnection(pika.URLParameters(self._broker.url)) as connection:
            channel = connection.channel()
            if confirms:
                channel.confirm_delivery()
            return deed(channel)

    def add(self, first: int, count: int) -> None:
        def publish(channel: Any) -> None:
            for number in range(first, first + count):
                channel.basic_publish("", self.name, b"%d" % number, pika.BasicProperties(delivery_mode=2))

        self.use(publish)

    def hand_back(self, count: int) -> None:
        """A consumer has so many, and goes away."""
        self.use(lambda channel: [channel.basic_get(self.name) for _ in range(count)])

    @property
    def ready(self) -> int:
        answer = self.use(lambda channel: channel.queue_declare(self.name, passive=True))
        return int(answer.method.message_count)

    def drop(self) -> None:
        self.use(lambda channel: channel.queue_delete(self.name))

    def ask(self, key: str, **body: Any) -> dict[str, Any]:
        def asked(channel: Any) -> dict[str, Any]:
            answers: list[bytes] = []
            channel.basic_consume("amq.rabbitmq.reply-to", lambda *came: answers.append(came[3]), auto_ack=True)
            properties = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to")
            channel.basic_publish("amq.lease", key, json.dumps({"queue": self.name, **body}), properties)
            while not answers:
                channel.connection.process_data_events(1)
            told: dict[str, Any] = json.loads(answers[0])
            return told

        told: dict[str, Any] = self.use(asked, confirms=False)
        return told

    @property
    def held(self) -> int:
        """Messages that a lease has, which this ends."""
        before = self.ready
        self.ask("take", name="spark", run="look")
        self.ask("release", name="spark", run="look")
        return self.ready - before


@pytest.fixture
def queue(broker: RunningNode, request: pytest.FixtureRequest) -> Iterator[TakenQueue]:
    made = TakenQueue(broker, request.node.name)
    yield made
    made.drop()


@pytest.fixture
def source(broker: RunningNode, queue: TakenQueue) -> Options:
    return lambda **more: {
        "endpoints": f"127.0.0.1:{broker.port}", "queue": queue.name, "consumerName": "spark", **more
    }  # fmt: skip


class Query:
    """A streaming query into Parquet."""

    def __init__(self, spark: Any, directory: Path, options: dict[str, str]) -> None:
        self._spark = spark
        self.directory = directory
        self.options = options

    def start(self, **trigger: Any) -> Any:
        frame = self._spark.readStream.format("clusterbroker").options(**self.options).load()
        writer = frame.selectExpr("cast(value AS string) AS n", "offset", "redelivered").writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(self.directory / "checkpoint"))
        return writer.trigger(**trigger).start(str(self.directory / "out"))

    def run(self) -> list[int]:
        """Does what is there; rows of each of its micro-batches."""
        query = self.start(availableNow=True)
        assert query.awaitTermination(240), "it ends by itself"
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    def rows(self) -> list[int]:
        return sorted(int(row.n) for row in self._read("n string"))

    def redelivered(self) -> list[int]:
        return sorted(int(row.n) for row in self._read("n string, redelivered boolean") if row.redelivered)

    def _read(self, schema: str) -> list[Any]:
        rows: list[Any] = self._spark.read.schema(schema).parquet(str(self.directory / "out")).collect()
        return rows


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end_s, "in time"
        threading.Event().wait(0.1)


@pytest.mark.smoke
def test_a_query_takes_what_is_there_and_goes_on_where_it_was(
    spark: Any, queue: TakenQueue, source: Options, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path, source(maxRecordsPerTrigger="40", minPartitions="3"))
    queue.add(0, 100)
    queue.hand_back(2)
    assert query.run() == [40, 40, 20]
    assert query.redelivered() == [0, 1]
    assert query.run() == [], "nothing new"
    queue.add(100, 10)
    assert query.run() == [10]
    assert query.rows() == list(range(110))
    assert queue.ask("take", name="other", run="r")["code"] == 403


def test_what_is_committed_leaves_the_queue_though_nothing_follows(
    spark: Any, queue: TakenQueue, source: Options, tmp_path: Path
) -> None:
    """Spark never commits the last batch of an idle source: its next trigger settles it."""
    query = Query(spark, tmp_path, source())
    queue.add(0, 20)
    running = query.start(processingTime="100 milliseconds")
    try:
        until(lambda: any(progress["numInputRows"] for progress in running.recentProgress))
        until(lambda: len(running.recentProgress) > 2 or queue.ready == 0)
    finally:
        running.stop()
    assert query.rows() == list(range(20))
    until(lambda: queue.held == 0)
    assert queue.ready == 0


def test_a_batch_that_fails_is_run_again_with_the_same_rows(
    spark: Any, queue: TakenQueue, source: Options, tmp_path: Path
) -> None:
    """In another process of the source; what was published meanwhile is not in it."""
    seen: list[tuple[int, list[int]]] = []
    fails = [True]

    def sink(frame: Any, number: int) -> None:
        seen.append((number, sorted(int(row.n) for row in frame.selectExpr("cast(value AS string) AS n").collect())))
        if number == 1 and fails:
            raise RuntimeError("the sink is full")

    def run() -> None:
        frame = spark.readStream.format("clusterbroker").options(**source(maxRecordsPerTrigger="30")).load()
        writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination(240)

    queue.add(0, 50)
    with pytest.raises(Exception, match="the sink is full"):
        run()
    queue.add(50, 5)
    fails.clear()
    run()
    assert seen == [
        (0, list(range(30))), (1, list(range(30, 50))), (1, list(range(30, 50))), (2, list(range(50, 55)))
    ]  # fmt: skip


def test_a_batch_whose_rows_are_gone_fails_the_query(
    spark: Any, queue: TakenQueue, source: Options, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path, source())
    queue.add(0, 5)
    assert query.run() == [5]
    queue.drop()
    queue.use(lambda channel: channel.queue_declare(queue.name, durable=True))
    queue.add(5, 5)
    with pytest.raises(Exception, match="is not the one that the checkpoint is of"):
        query.run()
    query.options["failOnDataLoss"] = "false"
    assert query.run() == [5]


def test_who_else_takes_from_it_is_told(spark: Any, queue: TakenQueue, source: Options, tmp_path: Path) -> None:
    queue.add(0, 5)
    with pika.BlockingConnection(pika.URLParameters(queue._broker.url)) as connection:
        connection.channel().basic_consume(queue.name, lambda *_: None)
        with pytest.raises(Exception, match="has 1 consumers, and a lease needs it alone"):
            Query(spark, tmp_path, source()).run()


def test_a_queue_is_no_batch(spark: Any, source: Options) -> None:
    with pytest.raises(Exception, match=r"option 'queue' is for streams: readStream"):
        spark.read.format("clusterbroker").options(**source()).load().collect()
