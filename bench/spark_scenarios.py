"""How each kind of Spark workload is carried out; the sister of `scenarios.py`.

One Spark session for all rows, in this process: a Java takes long to start and longer to get warm. So each scenario
does a little of everything before it measures. What a row costs the client is the time on processors of the Python
workers, as the system counts it; Java's is not in it.
"""

from __future__ import annotations

import functools
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pika
import psutil

from bench import generator
from bench.clusters import Cluster
from bench.scenarios import Measurement, Scenario
from bench.servers import Server
from bench.workloads import Kind, Load, Scale, Workload

BODY_BYTES = 200
WARM_ROWS = 20_000
BASELINE_ROWS = 20_000
TRIGGER_ROWS, SMALL_TRIGGER_ROWS = 20_000, 1_000
PARTITIONS = 2
QUEUE = "spark"
PATIENCE_S = 300


@functools.cache
def session() -> Any:
    """The one of this process."""
    from clusterbroker.pipeline.session import spark_session

    settings = {
        "spark_ui_enabled": "false",
        "spark_ui_showConsoleProgress": "false",
        "spark_sql_shuffle_partitions": "2",
        "spark_log_level": "OFF",
        "spark_local_dir": tempfile.mkdtemp(prefix="bench-spark-"),
    }
    return spark_session("bench", **settings)


def stop() -> None:
    """Ends it, if it was ever begun."""
    if session.cache_info().currsize:
        session().stop()


def _url(port: int) -> Any:
    return pika.URLParameters(f"amqp://guest:guest@127.0.0.1:{port}/")


@contextmanager
def _channel(port: int) -> Iterator[Any]:
    with pika.BlockingConnection(_url(port)) as connection:
        yield connection.channel()


def _arguments(words: str) -> dict[str, str]:
    """The generator's words for queue arguments as pika wants them."""
    return dict(word.split("=", 1) for word in words.split(",") if word)


def _declared(port: int, arguments: dict[str, Any] | None = None, name: str = QUEUE) -> None:
    with _channel(port) as channel:
        channel.queue_declare(name, durable=True, arguments=arguments)


def _count(port: int, name: str = QUEUE) -> int:
    with _channel(port) as channel:
        return int(channel.queue_declare(name, passive=True).method.message_count)


def _emptied(port: int) -> None:
    with _channel(port) as channel:
        channel.queue_purge(QUEUE)


def _await(port: int, count: int) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while (found := _count(port)) != count:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{found} messages in the queue instead of {count}")
        time.sleep(0.02)


def _frame(rows: int, headers: bool = False) -> Any:
    frame = session().range(rows, numPartitions=PARTITIONS)
    columns = [f"cast(repeat(cast(id % 10 AS string), {BODY_BYTES}) AS binary) AS value"]
    if headers:
        columns += [
            "map('a', 'one', 'b', 'two', 'c', cast(id AS string)) AS headers",
            "cast(id AS string) AS message_id",
        ]
    return frame.selectExpr(*columns)


def _options(ports: list[int], **more: str) -> dict[str, str]:
    endpoints = ",".join(f"127.0.0.1:{port}" for port in ports)
    return {"endpoints": endpoints, "routingKey": QUEUE, "messageId": "none", **more}


def _write(ports: list[int], frame: Any, **more: str) -> float:
    """Seconds until it is confirmed (or committed)."""
    began_s = time.perf_counter()
    frame.write.format("clusterbroker").options(**_options(ports, **more)).mode("append").save()
    return time.perf_counter() - began_s


def _workers_s() -> float:
    """Processor seconds of the Python workers so far."""
    used = 0.0
    for child in psutil.Process().children(recursive=True):
        try:
            if "java" not in child.name() and any("pyspark" in word for word in child.cmdline()):
                times = child.cpu_times()
                used += times.user + times.system
        except psutil.Error:
            pass
    return used


# -- what people use today ------------------------------------------------------------------------------------------


class _EachConfirmed:
    """A ForeachWriter: publishes a row and waits for its confirm."""

    def __init__(self, port: int) -> None:
        self._port = port

    def open(self, _partition: int, _epoch: int) -> bool:
        self._connection = pika.BlockingConnection(_url(self._port))
        self._channel = self._connection.channel()
        self._channel.confirm_delivery()
        return True

    def process(self, row: Any) -> None:
        properties = pika.BasicProperties(delivery_mode=2)
        self._channel.basic_publish("", QUEUE, bytes(row.value), properties, mandatory=True)

    def close(self, _error: Exception | None) -> None:
        self._connection.close()

    def all_of(self, rows: Iterator[Any]) -> None:
        """For foreachPartition."""
        self.open(0, 0)
        for row in rows:
            self.process(row)
        self.close(None)


# -- scenarios ---------------------------------------------------------------------------------------------------------


def _triggers(rows: int, count: int, begin: Any, warm: int = 2) -> list[float]:
    """Seconds of each trigger, the first `warm` left out."""
    stream = session().readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
    frame = stream.option("numPartitions", PARTITIONS).load()
    frame = frame.selectExpr(f"cast(repeat(cast(value % 10 AS string), {BODY_BYTES}) AS binary) AS value")
    with tempfile.TemporaryDirectory() as checkpoint:
        query = begin(frame.writeStream).option("checkpointLocation", checkpoint).start()
        deadline_s = time.monotonic() + PATIENCE_S
        try:
            while len(query.recentProgress) < count + warm and query.isActive and time.monotonic() < deadline_s:
                time.sleep(0.05)
        finally:
            query.stop()
        if (error := query.exception()) is not None:
            raise error
        progress = [one for one in query.recentProgress if one["numInputRows"] == rows]
    return [one["durationMs"]["triggerExecution"] / 1000 for one in progress[warm:]]


def _trigger(server: Server, _workload: Workload, scale: Scale) -> Measurement:
    server.start()
    _declared(server.port, _arguments(server.durable_arguments))
    options = _options([server.port])

    def ours(writer: Any) -> Any:
        return writer.format("clusterbroker").options(**options)

    large = _triggers(TRIGGER_ROWS, scale.triggers, ours)
    # most of such a trigger is Java's own, which gets quicker for some twenty of them
    small = _triggers(SMALL_TRIGGER_ROWS, scale.triggers, ours, warm=scale.triggers)
    base = _triggers(
        TRIGGER_ROWS, max(scale.triggers // 4, 1), lambda writer: writer.foreach(_EachConfirmed(server.port))
    )
    rate, baseline = TRIGGER_ROWS / statistics.median(large), TRIGGER_ROWS / statistics.median(base)
    return Measurement({
        "times_baseline": rate / baseline, "rows_per_s": rate, "baseline_per_s": baseline,
        "trigger_1000_ms": 1000 * statistics.median(small),
    })  # fmt: skip


def _batch(server: Server, _workload: Workload, scale: Scale) -> Measurement:
    server.start()
    _declared(server.port, _arguments(server.durable_arguments))
    ports, rows = [server.port], scale.spark_rows
    _write(ports, _frame(WARM_ROWS))
    before_s = _workers_s()
    took_s = _write(ports, _frame(rows))
    cpu_s = _workers_s() - before_s
    _emptied(server.port)
    before_s = _workers_s()
    _write(ports, _frame(rows, headers=True))
    headers_s = _workers_s() - before_s
    _emptied(server.port)
    began_s = time.perf_counter()
    _frame(BASELINE_ROWS).foreachPartition(_EachConfirmed(server.port).all_of)
    baseline = BASELINE_ROWS / (time.perf_counter() - began_s)
    measured = Measurement({
        "times_baseline": rows / took_s / baseline, "rows_per_s": rows / took_s, "baseline_per_s": baseline,
        "cpu_us": cpu_s / rows * 1e6, "cpu_headers_us": headers_s / rows * 1e6,
    })  # fmt: skip
    if (found := _count(server.port)) != BASELINE_ROWS:
        measured.faults.append(f"{found} messages of the baseline instead of {BASELINE_ROWS}")
    return measured


def _cluster(cluster: Cluster, _workload: Workload, scale: Scale) -> Measurement:
    measured = Measurement()
    cluster.start()
    _declared(cluster.ports[0], _arguments(cluster.arguments()))
    rows = scale.spark_rows
    _write(cluster.ports, _frame(WARM_ROWS))
    took_s = _write(cluster.ports, _frame(rows))
    if (found := _count(cluster.ports[0])) != rows + WARM_ROWS:
        measured.faults.append(f"{found} messages in the queue instead of {rows + WARM_ROWS}")
    load = Load(publishers=PARTITIONS, size_bytes=BODY_BYTES, window=10_000)
    options = [*load.options(cluster.arguments()), "--consumers", "0", "--count", str(rows)]
    published = measured.take(generator.load(cluster.ports[0], options), "generator")
    rate, peak = rows / took_s, published.rate("confirm")
    measured.figures = {"share": rate / max(peak, 1e-9), "rows_per_s": rate, "generator_per_s": peak}
    return measured


def _exactly_once(cluster: Cluster, _workload: Workload, scale: Scale) -> Measurement:
    cluster.start()
    port, rows = cluster.ports[0], scale.spark_rows
    _declared(port, _arguments(cluster.arguments()))
    staged, seen, plain = [], [], []
    for guarantee in ("at-least-once", "exactly-once"):
        _write(cluster.ports, _frame(WARM_ROWS), deliveryGuarantee=guarantee)
        _await(port, WARM_ROWS)
        _emptied(port)
    for _ in range(scale.pairs):
        plain.append(_write(cluster.ports, _frame(rows)))
        _await(port, rows)
        _emptied(port)
        began_s = time.perf_counter()
        staged.append(_write(cluster.ports, _frame(rows), deliveryGuarantee="exactly-once"))
        _await(port, rows)
        seen.append(time.perf_counter() - began_s)
        _emptied(port)
    rate, at_least_once = rows / statistics.median(staged), rows / statistics.median(plain)
    triggers: dict[str, list[float]] = {"at-least-once": [], "exactly-once": []}
    for guarantee in tuple(triggers) * scale.pairs:
        options = _options(cluster.ports, deliveryGuarantee=guarantee)
        triggers[guarantee] += _triggers(
            TRIGGER_ROWS,
            max(scale.triggers // scale.pairs, 1),
            lambda writer, options=options: writer.format("clusterbroker").options(**options),
        )
    plain_s, staged_s = (statistics.median(triggers[guarantee]) for guarantee in ("at-least-once", "exactly-once"))
    return Measurement({
        "share": rate / at_least_once, "trigger_share": plain_s / staged_s,
        "trigger_rows_per_s": TRIGGER_ROWS / staged_s, "rows_per_s": rate, "at_least_once_per_s": at_least_once,
        "visible_per_s": rows / statistics.median(seen),
    })  # fmt: skip


def _source(server: Server, _workload: Workload, scale: Scale) -> Measurement:
    server.start()
    _declared(server.port, {"x-queue-type": "stream", **_arguments(server.durable_arguments)})
    ports, rows = [server.port], scale.spark_rows
    _write(ports, _frame(rows))
    measured = Measurement()
    options = {"endpoints": f"127.0.0.1:{server.port}", "stream": QUEUE, "minPartitions": str(PARTITIONS)}

    def batch() -> float:
        began_s = time.perf_counter()
        session().read.format("clusterbroker").options(**options).load().write.format("noop").mode("append").save()
        return time.perf_counter() - began_s

    batch()
    before_s = _workers_s()
    took_s = batch()
    cpu_s = _workers_s() - before_s
    stream = session().readStream.format("clusterbroker").options(**options, startingOffsets="earliest").load()
    with tempfile.TemporaryDirectory() as checkpoint:
        query = stream.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = query.trigger(availableNow=True).start()
        query.awaitTermination(PATIENCE_S)
        progress = list(query.recentProgress)
    read = sum(one["numInputRows"] for one in progress)
    if read != rows:
        measured.faults.append(f"{read} rows were read instead of {rows}")
    busy_s = sum(one["durationMs"]["triggerExecution"] for one in progress) / 1000
    measured.figures = {"read_per_s": read / busy_s, "batch_per_s": rows / took_s, "cpu_us": cpu_s / rows * 1e6}
    return measured


SCENARIOS: dict[Kind, Scenario[Server]] = {
    Kind.SPARK_TRIGGER: _trigger,
    Kind.SPARK_BATCH: _batch,
    Kind.SPARK_SOURCE: _source,
}
CLUSTER_SCENARIOS: dict[Kind, Scenario[Cluster]] = {
    Kind.SPARK_CLUSTER: _cluster,
    Kind.SPARK_EXACTLY_ONCE: _exactly_once,
}
