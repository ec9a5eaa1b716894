"""A model of a broker with transactions, in a hundred lines: what docs/design/005-spark.md says of amq.txn, in memory.

For tests of the client's half. It speaks AMQP with the broker's own codec, one thread per connection, and keeps
everything in dictionaries; `answers_lost` makes it do a commit and say nothing.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from clusterbroker.broker.wire.amqp091 import codec, properties
from clusterbroker.broker.wire.amqp091 import methods as m


@dataclass
class Segment:
    """What one attempt stages. `discards`: its epoch is committed already."""

    producer: str
    epoch: int
    run: str
    target: str
    rows: list[tuple[str, str, bytes]] = field(default_factory=list)
    discards: bool = False


class TransactionBroker:
    """`messages` are those that consumers would see: (exchange, key, body)."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, str, bytes]] = []
        self.segments: dict[str, Segment] = {}
        self.ledger: dict[str, int] = {}
        self.runs: dict[str, list[str]] = {}
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.answers_lost = 0
        self.refuse: tuple[int, str] | None = None
        self.knows_transactions = True
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def options(self) -> dict[str, str]:
        """Of a client that is to meet it."""
        return {"endpoints": f"127.0.0.1:{self.port}"}

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=(self._listening.accept()[0],), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        tags = 0
        decoder = codec.FrameDecoder(131_072)
        decoder.opened = True

        def say(channel: int, method: Any) -> None:
            payload = m.encode(method)
            client.sendall(struct.pack(">BHI", 1, channel, len(payload)) + payload + b"\xce")

        with contextlib.suppress(OSError), client:
            assert client.recv(8) == b"AMQP\x00\x00\x09\x01"
            say(0, m.ConnectionStart(version_minor=9, mechanisms=b"PLAIN", locales=b"en_US"))
            while data := client.recv(1 << 16):
                for event in decoder.feed(decoder.rest + data, 0):
                    if isinstance(event, codec.Published):
                        for message in event.messages:
                            tags += 1
                            with self._lock:
                                good = self._publish(event, message.body, say, client)
                            if good is not None:
                                say(1, m.BasicAck(delivery_tag=tags) if good else m.BasicNack(delivery_tag=tags))
                    elif isinstance(event, codec.MethodReceived):
                        with self._lock:
                            self._method(event.channel, m.decode(event.payload), say)

    def _method(self, channel: int, method: Any, say: Callable[[int, Any], None]) -> None:
        answers = {
            m.ConnectionStartOk: m.ConnectionTune(channel_max=10, frame_max=131_072),
            m.ConnectionOpen: m.ConnectionOpenOk(),
            m.ConnectionClose: m.ConnectionCloseOk(),
            m.ChannelOpen: m.ChannelOpenOk(),
            m.ConfirmSelect: m.ConfirmSelectOk(),
            m.BasicConsume: m.BasicConsumeOk(consumer_tag="reply"),
        }
        if type(method) in answers:
            say(channel, answers[type(method)])
        elif isinstance(method, m.ExchangeDeclare):
            if (why := self._declare(method)) is not None:
                say(channel, m.ChannelClose(reply_code=406, reply_text=f"PRECONDITION_FAILED - {why}"))
            else:
                say(channel, m.ExchangeDeclareOk())

    def _declare(self, method: m.ExchangeDeclare) -> str | None:
        if not self.knows_transactions:
            return f"unknown exchange type '{method.type}'"
        assert (method.type, method.durable) == ("x-staging", True)
        words: Any = method.arguments
        producer, epoch, run = words["x-producer"], words["x-epoch"], words["x-run"]
        last = self.ledger.get(producer, -1)
        if epoch < last:
            return f"fenced: producer '{producer}' has committed epoch {last}, and {epoch} is over"
        runs = self.runs.setdefault(producer, [])
        if run in runs[:-1]:
            return f"fenced: run {run} of producer '{producer}' was replaced by run {runs[-1]}"
        if not runs or runs[-1] != run:
            runs.append(run)
            self._drop(lambda segment: segment.producer == producer)
        self.segments[method.exchange] = Segment(producer, epoch, run, words["x-target"], discards=epoch == last)
        return None

    def _drop(self, which: Callable[[Segment], bool]) -> None:
        self.segments = {name: segment for name, segment in self.segments.items() if not which(segment)}

    def _publish(
        self, event: codec.Published, body: bytes, say: Callable[[int, Any], None], client: socket.socket
    ) -> bool | None:
        if event.exchange == "amq.txn":
            return self._asked(event.routing_key, json.loads(body), say, client)
        segment = self.segments.get(event.exchange)
        if event.exchange.startswith("txn."):
            if segment is None:
                say(1, m.ChannelClose(reply_code=404, reply_text=f"NOT_FOUND - no exchange '{event.exchange}'"))
                return None
            if not segment.discards:
                segment.rows.append((segment.target, event.routing_key, body))
        else:
            self.messages.append((event.exchange, event.routing_key, body))
        return True

    def _asked(
        self, key: str, body: dict[str, Any], say: Callable[[int, Any], None], client: socket.socket
    ) -> bool | None:
        self.asked.append((key, body))
        answer = self.refusal() or getattr(self, f"_{key}")(body)
        if self.answers_lost:
            self.answers_lost -= 1
            client.shutdown(socket.SHUT_RDWR)
            return None
        say(1, m.BasicDeliver(consumer_tag="reply", delivery_tag=1, routing_key="reply"))
        raw = json.dumps(answer).encode()
        header = struct.pack(">HHQ", 60, 0, len(raw)) + properties.encode(properties.Properties())
        for kind, payload in ((2, header), (3, raw)):
            client.sendall(struct.pack(">BHI", kind, 1, len(payload)) + payload + b"\xce")
        return answer["outcome"] != "refused"

    def refusal(self) -> dict[str, Any] | None:
        """Once, what a test wants it to say."""
        refuse, self.refuse = self.refuse, None
        return None if refuse is None else {"outcome": "refused", "code": refuse[0], "reason": refuse[1]}

    def _commit(self, body: dict[str, Any]) -> dict[str, Any]:
        producer, epoch = body["producer"], body["epoch"]
        last = self.ledger.get(producer, -1)
        if epoch == last:
            return {"outcome": "already", "code": 0, "reason": ""}
        if epoch < last:
            reason = f"fenced: producer '{producer}' has committed epoch {last}, and {epoch} is over"
            return {"outcome": "refused", "code": 409, "reason": reason}
        runs = self.runs.get(producer, [])
        if body["run"] in runs[:-1]:
            reason = f"fenced: run {body['run']} of producer '{producer}' was replaced by run {runs[-1]}"
            return {"outcome": "refused", "code": 409, "reason": reason}
        for name in body["transactions"]:
            if name not in self.segments:
                reason = f"transaction '{name}' of producer '{producer}' is not there: it expired or was aborted"
                return {"outcome": "refused", "code": 404, "reason": reason}
        for name in body["transactions"]:
            self.messages += self.segments[name].rows
        self.ledger[producer] = epoch
        self._drop(lambda segment: segment.producer == producer and segment.epoch <= epoch)
        return {"outcome": "committed", "code": 0, "reason": ""}

    def _abort(self, body: dict[str, Any]) -> dict[str, Any]:
        for name in body["transactions"]:
            self.segments.pop(name, None)
        return {"outcome": "aborted", "code": 0, "reason": ""}

    def _status(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"outcome": "status", "producer": body["producer"], "epoch": self.ledger.get(body["producer"])}
