"""A client that stages and commits, as any AMQP client may; for tests of transactions."""

from __future__ import annotations

import json
from typing import Any

from clusterbroker.broker.wire.amqp091 import methods as m
from tests.unit.broker.fronts.amqp091.harness import Client, Content

REPLY_TO = "amq.rabbitmq.reply-to"


class Stager:
    """Of one producer and run. `answers` come to a channel of its own."""

    def __init__(self, client: Client, producer: str = "p", run: str = "r1") -> None:
        self.client = client
        self.producer = producer
        self.run = run
        client.say(m.ConfirmSelect())
        client.say(m.ConfirmSelect(), m.BasicConsume(queue=REPLY_TO, no_ack=True), channel=2)

    def declare(self, name: str, epoch: int = 0, target: str = "amq.topic", **more: Any) -> list[Any]:
        words = {"x-producer": self.producer, "x-epoch": epoch, "x-run": self.run, "x-target": target}
        words |= {word.replace("_", "-"): value for word, value in more.items()}
        return self.client.say(m.ExchangeDeclare(exchange=name, type="x-staging", durable=True, arguments=words))

    def stage(self, name: str, *rows: bytes, key: str = "k", **properties: Any) -> list[Any]:
        """What was heard: acks, nacks, returns, or a close."""
        content = b"".join(self.client.content(name, key, row, **properties) for row in rows)
        self.client.raw(content)
        self.client.world.turn()
        return self.client.hear(1)

    def ask(self, what: str, **body: Any) -> dict[str, Any]:
        self.order(what, **body)
        return self.answer()

    def order(self, what: str, **body: Any) -> None:
        """Asks for what may be answered later."""
        raw = json.dumps({"producer": self.producer, **body}).encode()
        self.client.raw(self.client.content("amq.txn", what, raw, channel=2, reply_to=REPLY_TO, correlation_id="7"))
        self.client.world.turn()

    def answer(self) -> dict[str, Any]:
        heard = self.client.hear(2)
        answer, confirm = heard
        assert isinstance(answer, Content), heard
        assert (answer.properties.correlation_id, answer.properties.content_type) == ("7", "application/json")
        told: dict[str, Any] = json.loads(answer.body)
        assert isinstance(confirm, m.BasicNack if told["outcome"] == "refused" else m.BasicAck)
        return told

    def commit(self, *names: str, epoch: int = 0, **more: Any) -> dict[str, Any]:
        return self.ask("commit", epoch=epoch, run=self.run, transactions=list(names), **more)

    def order_commit(self, *names: str, epoch: int = 0) -> None:
        self.order("commit", epoch=epoch, run=self.run, transactions=list(names))

    def abort(self, *names: str, epoch: int = 0) -> dict[str, Any]:
        return self.ask("abort", epoch=epoch, run=self.run, transactions=list(names))

    def status(self) -> dict[str, Any]:
        return self.ask("status")
