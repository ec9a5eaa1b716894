"""A client that reads a queue by leases, for tests as conversations."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from clusterbroker.broker.queues import leasing
from clusterbroker.broker.wire.amqp091 import methods as m
from tests.unit.broker.fronts.amqp091.harness import Client, Content

ANSWERS = "amq.rabbitmq.reply-to"


def sliced(monkeypatch: pytest.MonkeyPatch, rows: int = 2, seqs: int = 1, steps: int = 3) -> None:
    """Words walk so few messages at a time."""
    monkeypatch.setattr(leasing, "SLICE_ROWS", rows)
    monkeypatch.setattr(leasing, "SLICE_SEQS", seqs)
    monkeypatch.setattr(leasing, "SLICE_STEPS", steps)


class Reader:
    """`wait`: lets time pass while an answer is awaited (clusters)."""

    def __init__(
        self, client: Client, run: str = "r1", name: str = "n", wait: Callable[[], None] | None = None
    ) -> None:
        self.client = client
        self.run = run
        self.name = name
        self._wait = wait or (lambda: client.world.wait(1))
        client.say(m.BasicConsume(queue=ANSWERS, consumer_tag="answers", no_ack=True))
        self._channel = 1

    def word(self, key: str, queue: str = "q", **fields: Any) -> dict[str, Any]:
        """The answer, by which time an owner that had to be replaced was."""
        body = {"queue": queue, "name": self.name, "run": self.run, **fields}
        heard = self.client.publish("amq.lease", key, json.dumps(body).encode(), reply_to=ANSWERS)
        for _ in range(100):
            if heard:
                break
            self._wait()
            heard = self.client.hear(1)
        (answer,) = heard
        assert isinstance(answer, Content), answer
        told: dict[str, Any] = json.loads(answer.body)
        return told

    def take(self, start: int | None = None, rows: int = 1000, **more: Any) -> dict[str, Any]:
        return self.word("take", **{"from": start}, rows_max=rows, **more)

    def read(self, first: int, end: int, prefetch: int = 100, queue: str = "q") -> list[tuple[int, bytes]]:
        """(seq, body) of all of the range, acknowledged as they come, until the broker says that it was all."""
        self._channel += 1
        client, channel = self.client, self._channel
        arguments = {"x-lease": self.name, "x-stream-offset": first, "x-stream-end": end}
        heard = client.say(
            m.ChannelOpen(),
            m.BasicQos(0, prefetch, False),
            m.BasicConsume(queue=queue, consumer_tag="lease", arguments=arguments),
            channel=channel,
        )
        found: list[tuple[int, bytes]] = []
        for _ in range(1000):
            for said in heard:
                if isinstance(said, Content):
                    found.append((said.properties.headers["x-queue-seq"], said.body))
                assert not isinstance(said, m.ChannelClose), said.reply_text
            if any(isinstance(said, m.BasicCancel) for said in heard):
                client.say(m.BasicAck(0, True), m.ChannelClose(0, "", 0, 0), channel=channel)
                return found
            last = [said.method.delivery_tag for said in heard if isinstance(said, Content)][-1:]
            heard = client.say(*[m.BasicAck(tag, True) for tag in last], channel=channel)
            if not heard:
                self._wait()
                heard = client.hear(channel)
        raise AssertionError(f"no end came, after {len(found)} messages")

    def refused(self, queue: str = "q", prefetch: int = 10, **arguments: Any) -> tuple[int, str]:
        """The code and text with which a consumer is refused."""
        self._channel += 1
        table = {"x-lease": self.name, **{name.replace("_", "-"): value for name, value in arguments.items()}}
        heard = self.client.say(
            m.ChannelOpen(),
            *([m.BasicQos(0, prefetch, False)] if prefetch else []),
            m.BasicConsume(queue=queue, arguments=table),
            channel=self._channel,
        )
        close = heard[-1]
        assert isinstance(close, m.ChannelClose), heard
        return close.reply_code, close.reply_text
