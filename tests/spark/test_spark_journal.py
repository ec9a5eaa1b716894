"""The journal reader in a real Spark: what is on a node's disk, beside the node and in a copy."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.conftest import RunningNode

Sink = Callable[..., dict[str, str]]


def journal(spark: Any, directory: Path, **options: str) -> Any:
    return spark.read.format("clusterbroker").option("journal", str(directory)).options(**options)


def acknowledged(broker: RunningNode, queue: str, count: int) -> Counter[int]:
    """So many messages leave the queue."""
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=count)
        found: Counter[int] = Counter()
        for method, _, body in channel.consume(queue):
            assert body is not None
            found[int(body)] += 1
            if found.total() == count:
                channel.basic_ack(method.delivery_tag, multiple=True)
                channel.close()
                return found
    raise AssertionError("the queue has more")


def test_what_is_on_a_nodes_disk(spark: Any, broker: RunningNode, queue: Any, sink: Sink, tmp_path: Path) -> None:
    rows = spark.range(20_000, numPartitions=2).selectExpr(
        "cast(id AS string) AS value", "map('n', cast(id AS string)) AS headers", "'t' AS type"
    )
    rows.write.format("clusterbroker").options(**sink(routingKey=queue.name)).mode("append").save()
    taken = acknowledged(broker, queue.name, 5_000)
    copy = tmp_path / "copy"
    shutil.copytree(broker.data_dir, copy, ignore=shutil.ignore_patterns("*.sock", "lock"))
    for place, options in ((broker.data_dir, {"minPartitions": "4"}), (copy, {}), (copy / "journal", {})):
        frame = journal(spark, place, queues=queue.name, includeHeaders="true", **options).load()
        found = frame.selectExpr("cast(value AS string) AS n", "headers['n'] AS h", "type", "queue", "offset").collect()
        assert Counter(int(row.n) for row in found) + taken == Counter(range(20_000))
        assert {row.offset for row in found} == {*range(5_000, 20_000)}
        assert all((row.h, row.type, row.queue) == (row.n, "t", queue.name) for row in found)
    parts = journal(spark, broker.data_dir, queues=queue.name, minPartitions="4").load().rdd.getNumPartitions()
    assert parts == 4
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = journal(spark, copy, maxRecordsPerPartition="100").load()
        part = frame.where(f"queue = '{queue.name}' AND offset >= 19900 AND routing_key = '{queue.name}'")
        assert sorted(row.offset for row in part.collect()) == list(range(19_900, 20_000))
        assert part.rdd.getNumPartitions() == 1
        assert part.where("exchange = 'another'").count() == 0
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.parametrize(
    "options, said",
    [
        ({"queues": "nobody"}, "option 'queues': vhost '/' has no queue 'nobody' in"),
        ({"journal": "/nowhere"}, "option 'journal': no journal is in /nowhere: give the directory that the node has"),
        ({"stream": "s"}, "option 'stream' is not for a journal: leave it out"),
        ({"maxRecordsPerTrigger": "1"}, "option 'maxRecordsPerTrigger' is not for a journal"),
    ],
)
def test_what_a_journal_reader_is_refused(spark: Any, broker: RunningNode, options: dict[str, str], said: str) -> None:
    with pytest.raises(Exception) as error:
        journal(spark, broker.data_dir, **options).load().count()
    assert said in str(error.value)


def test_a_stream_on_a_nodes_disk(spark: Any, broker: RunningNode, queue_with: Any, sink: Sink, tmp_path: Path) -> None:
    """Part of it in the stream's own files, part of it in the shared log."""
    stream = queue_with({"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 1 << 20})
    files = broker.data_dir / "journal" / "streams"
    for number in range(3):
        rows = spark.range(number * 10_000, (number + 1) * 10_000).selectExpr(
            "repeat(cast(id AS string), 50) AS value", "cast(id AS string) AS type"
        )
        rows.write.format("clusterbroker").options(**sink(routingKey=stream.name)).mode("append").save()
        while number == 0 and not list(files.rglob("*.seg")):
            time.sleep(0.05)
    copy = tmp_path / "copy"
    shutil.copytree(broker.data_dir, copy, ignore=shutil.ignore_patterns("*.sock", "lock"))
    frame = journal(spark, copy, queues=stream.name, minPartitions="3").load().selectExpr("offset", "type")
    found = [(row.offset, row.type) for row in frame.collect()]
    assert sorted(offset for offset, _ in found) == list(range(30_000))
    assert sorted(int(number) for _, number in found) == list(range(30_000))


def test_damage_is_told_and_nothing_is_made_up(
    spark: Any, broker: RunningNode, queue: Any, sink: Sink, tmp_path: Path
) -> None:
    rows = spark.range(1_000, numPartitions=1).selectExpr("concat('needle-', id) AS value")
    for _ in range(2):  # what the log's last group has may be torn; what is before it was durable
        rows.write.format("clusterbroker").options(**sink(routingKey=queue.name)).mode("append").save()
    copy = tmp_path / "copy"
    shutil.copytree(broker.data_dir, copy, ignore=shutil.ignore_patterns("*.sock", "lock"))
    [segment] = [path for path in (copy / "journal" / "segments").glob("*.seg") if b"needle-500" in path.read_bytes()]
    segment.write_bytes(segment.read_bytes().replace(b"needle-500", b"needle-5OO", 1))
    with pytest.raises(Exception) as error:
        journal(spark, copy, queues=queue.name).load().collect()
    assert "damaged" in str(error.value).lower()
