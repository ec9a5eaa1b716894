"""A caller and a worker of OSRD's "Scalable async RPC", written from the tables of that document alone, with raw pika.

Nothing here knows the broker or the library. Tables: Client protocol (exchange = pool, routing key = requested key,
correlation-id, reply-to, mandatory), Worker protocol (five variables, `started`, basic.consume, `request-received`,
answer to the default exchange, ack), response (`x-status`), activity (exchange, routing key = key, `x-event`).

    python tests/interop/pools_by_the_document.py worker         with the five variables and AMQP_URL
    python tests/interop/pools_by_the_document.py call POOL KEY BODY
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Mapping

import pika
from pika.adapters.blocking_connection import BlockingChannel


class Caller:
    """`basic.publish` to the pool, and the answer at a queue of its own, or at direct reply-to."""

    def __init__(self, url: str, pool: str, exchange: str | None = None, direct: bool = False) -> None:
        self._connection = pika.BlockingConnection(pika.URLParameters(url))
        self._channel = self._connection.channel()
        self._exchange = pool if exchange is None else exchange
        self._answers: dict[str, tuple[str, bytes]] = {}
        if direct:
            self._reply_to = "amq.rabbitmq.reply-to"
        else:
            self._reply_to = self._channel.queue_declare("", exclusive=True).method.queue
        self._channel.basic_consume(self._reply_to, self._on_answer, auto_ack=True)

    def _on_answer(self, _channel: object, _method: object, properties: pika.BasicProperties, body: bytes) -> None:
        status = (properties.headers or {})["x-status"]
        if isinstance(status, (bytes, bytearray)):
            status = bytes(status).decode()
        self._answers[str(properties.correlation_id)] = (status, body)

    def call(self, key: str, body: bytes, timeout_s: float = 60.0) -> tuple[str, bytes]:
        """(status, body): `ok`, or the reason of dead lettering."""
        correlation_id = str(uuid.uuid4())
        self._channel.basic_publish(
            self._exchange,
            key,
            body,
            pika.BasicProperties(correlation_id=correlation_id, reply_to=self._reply_to),
            mandatory=True,
        )
        ticks = int(timeout_s / 0.1)
        for _ in range(ticks):
            self._connection.process_data_events(time_limit=0.1)
            if correlation_id in self._answers:
                return self._answers.pop(correlation_id)
        raise TimeoutError(f"no answer for {key!r} within {timeout_s:g} s")

    def close(self) -> None:
        self._connection.close()


class Worker:
    """One message after the other, acknowledged when it is answered."""

    def __init__(self, url: str, variables: Mapping[str, str], handle: Callable[[bytes], bytes]) -> None:
        self._id = variables["WORKER_ID"]
        self._key = variables["WORKER_KEY"]
        self._activity = variables["WORKER_ACTIVITY_EXCHANGE"]
        self._handle = handle
        self._connection = pika.BlockingConnection(pika.URLParameters(url))
        self._channel = self._connection.channel()
        self._channel.basic_qos(prefetch_count=1)
        self._report("started")
        self._channel.basic_consume(variables["WORKER_REQUESTS_QUEUE"], self._on_request)

    def _report(self, event: str) -> None:
        self._channel.basic_publish(self._activity, self._key, b"", pika.BasicProperties(headers={"x-event": event}))

    def _on_request(
        self,
        channel: BlockingChannel,
        method: pika.spec.Basic.Deliver,
        properties: pika.BasicProperties,
        body: bytes,
    ) -> None:
        self._report("request-received")
        if properties.reply_to is not None:
            answer = pika.BasicProperties(correlation_id=properties.correlation_id, headers={"x-status": b"ok"})
            channel.basic_publish("", properties.reply_to, self._handle(body), answer)
        channel.basic_ack(method.delivery_tag)

    def serve(self) -> None:
        self._channel.start_consuming()


def main(arguments: list[str]) -> int:
    url = os.environ.get("AMQP_URL", "amqp://guest:guest@localhost/")
    if arguments == ["worker"]:
        me = f"{os.environ['WORKER_POOL']} {os.environ['WORKER_KEY']}".encode()
        Worker(url, os.environ, lambda body: me + b": " + body).serve()
        return 0
    if len(arguments) == 4 and arguments[0] == "call":
        _, pool, key, body = arguments
        status, answer = Caller(url, pool).call(key, body.encode())
        print(status, answer.decode(errors="replace"))
        return 0 if status == "ok" else 1
    print(__doc__, file=sys.stderr)
    return 64


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
