"""A node's wall clock is a month ahead at one start, as after a dead battery: what is kept by age is all there after.

Findings, p10 (streams) and p7 (producers of transactions; the whole of it is tests/unit/broker/server/test_upkeep.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika

from clusterbroker.broker.trial.clocks import Clocks
from tests.faults.node import NodeProcess, wait_for
from tests.faults.test_clocks import library as library

MONTH_S = 31 * 86_400.0
BODY = b"x" * 100_000
ARGUMENTS = {"x-queue-type": "stream", "x-max-age": "7D", "x-stream-max-segment-size-bytes": 1 << 20}


def ask(connection: Any, exchange: str, key: str, **body: Any) -> Any:
    answers: list[Any] = []
    channel = connection.channel()
    channel.basic_consume("amq.rabbitmq.reply-to", lambda *said: answers.append(json.loads(said[3])), auto_ack=True)
    properties = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to")
    channel.basic_publish(exchange, key, json.dumps(body).encode(), properties)
    while not answers:
        connection.process_data_events(5)
        assert channel.is_open
    return answers[0]


def commit(connection: Any) -> str:
    return str(ask(connection, "amq.txn", "commit", producer="job", epoch=17, run="r", transactions=[])["outcome"])


def test_a_month_ahead_for_one_start(make_node: Callable[..., NodeProcess], library: Path, tmp_path: Path) -> None:
    clocks = Clocks(tmp_path, library, "n1")
    node = make_node({"journal.checkpoint_interval_s": 0.05})
    node.environment = clocks.environment

    def life(ahead_s: float) -> Any:
        clocks.set(ahead_s)
        node.start()
        connection = pika.BlockingConnection(pika.URLParameters(node.url))
        connection.channel().queue_declare("s", durable=True, arguments=ARGUMENTS)
        return connection

    def publish(count: int) -> None:
        channel = connection.channel()
        channel.tx_select()
        for _ in range(count):
            channel.basic_publish("", "s", BODY)
        channel.tx_commit()

    def files() -> int:
        return len(list((node.data_dir / "journal" / "streams").rglob("*.seg")))

    connection = life(0)
    assert commit(connection) == "committed"
    for round_ in range(1, 4):
        publish(12)
        wait_for(lambda n=round_: files() >= n, "a checkpoint has moved it into files")
    node.stop()
    connection = life(MONTH_S)
    wait_for(lambda: "clock.ahead" in node.log, "the node doubts its clock")
    publish(1)  # the stream looks at what it keeps
    publish(1)
    assert ask(connection, "amq.stream", "offsets", queue="s")["first"] == 0
    node.stop()
    connection = life(0)
    publish(1)
    told = ask(connection, "amq.stream", "offsets", queue="s")
    assert (told["first"], told["next"]) == (0, 39)
    assert commit(connection) == "already"
    node.stop()
