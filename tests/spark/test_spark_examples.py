"""The examples, run as their readers run them: each a process of its own."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pika

from tests.conftest import RunningNode
from tests.support import processes

ROOT = Path(__file__).resolve().parents[2]


def run(*words: str, timeout_s: float = 300) -> str:
    done = processes.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_ten_lines(broker: RunningNode, queue: Any) -> None:
    queue.bind("amq.topic", "rate.#")
    words = [sys.executable, "examples/spark_ten_lines.py", f"127.0.0.1:{broker.port}"]
    process = processes.popen(words, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        bodies = [json.loads(body) for _, body in queue.take(10_000)]
    finally:
        process.terminate()
        process.wait()
    assert len({body["value"] for body in bodies}) == 10_000


def test_two_places(spark: Any, broker: RunningNode, queue: Any, tmp_path: Path) -> None:
    orders = tmp_path / "orders"
    orders.mkdir()
    for number in range(3):
        lines = [{"id": f"{number}-{row}", "customer": "c", "cents": row} for row in range(100)]
        (orders / f"{number}.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    endpoint, parquet = f"127.0.0.1:{broker.port}", str(tmp_path / "parquet")
    words = ["--orders", str(orders), "--parquet", parquet, "--endpoints", endpoint, "--queue", queue.name]
    run("examples/spark_two_places.py", *words, "--guarantee", "at-least-once")
    published = {json.loads(body)["id"] for body in queue.bodies()}
    filed = {row.id for row in spark.read.parquet(parquet).select("id").collect()}
    assert published == filed == {f"{number}-{row}" for number in range(3) for row in range(100)}


def test_journal_audit(broker: RunningNode, queue_with: Any) -> None:
    graves = queue_with({})
    short = queue_with({"x-message-ttl": 0, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": graves.name})
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for name in (short.name, short.name, graves.name):
            channel.basic_publish("", name, b"12345", pika.BasicProperties(delivery_mode=2))
        while channel.queue_declare(graves.name, passive=True).method.message_count < 3:
            connection.process_data_events(0.01)
    said = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in run("examples/spark_journal_audit.py", str(broker.data_dir)).splitlines()
    ]
    [counted] = [row for row in said if row[:1] == [graves.name] and len(row) == 4 and row[1].endswith(":00:00")]
    assert counted[2:] == ["3", "15"]
    assert [graves.name, short.name, "expired", "2"] in said
