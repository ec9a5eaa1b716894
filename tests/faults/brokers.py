"""Brokers as a mover meets them, ours and RabbitMQ, each with its management API; what is put in and taken out."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pika

from clusterbroker.broker.trial.client import Client, target
from clusterbroker.broker.trial.nodes import free_port
from clusterbroker.broker.wire.amqp091 import methods as m
from tests.faults.node import NodeProcess, wait_for
from tests.faults.rabbitmq_node import ManagedRabbitMq, skip_without_rabbitmq


class Broker(Protocol):
    """A source or a destination."""

    @property
    def url(self) -> str: ...
    @property
    def management(self) -> str: ...
    def start(self) -> object: ...
    def kill(self) -> None: ...


class ManagedNode(NodeProcess):
    """A node of ours with its management API."""

    def __init__(self, directory: Path, http: int) -> None:
        super().__init__(directory, {"http": f"127.0.0.1:{http}", "log.level": "warning"})
        self.http = http
        self.management = f"http://guest:guest@127.0.0.1:{http}"

    def start(self) -> NodeProcess:
        wait_for(self._http_is_free, "the management process of the killed node is gone")
        return super().start()

    def _http_is_free(self) -> bool:
        with socket.socket() as own:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                own.bind(("127.0.0.1", self.http))
            except OSError:
                return False
            return True


@contextmanager
def started_brokers(directory: Path) -> Iterator[Callable[[str], Any]]:
    """`make("ours")` or `make("rabbitmq")`: started, and gone behind the block."""
    made: list[Any] = []

    def make(kind: str) -> Any:
        if kind == "rabbitmq":
            skip_without_rabbitmq()
            made.append(ManagedRabbitMq(directory / f"rabbitmq{len(made)}"))
        else:
            made.append(ManagedNode(directory / f"node{len(made)}", free_port()))
        made[-1].start()
        return made[-1]

    try:
        yield make
    finally:
        for one in made:
            (one.close if isinstance(one, ManagedRabbitMq) else one.kill)()


async def put(url: str, queue: str, bodies: list[bytes]) -> None:
    client = await Client.open(target(url), timeout_s=30, heartbeat_s=30)
    confirmed = asyncio.Event()

    def on_confirm(ack: bool, tag: int, multiple: bool) -> None:
        assert ack, "the source takes what a test has for it"
        if tag == len(bodies):
            confirmed.set()

    client.on_confirm = on_confirm
    await client.call(m.ConfirmSelect())
    for body in bodies:
        client.publish(queue, body)
    await asyncio.wait_for(confirmed.wait(), 60)
    await client.close()


def taken(url: str, queue: str) -> list[bytes]:
    """All bodies of a queue, in their order."""
    found: list[bytes] = []
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        count = channel.queue_declare(queue, passive=True).method.message_count
        channel.basic_qos(prefetch_count=1000)
        for method, _, body in channel.consume(queue, inactivity_timeout=2 if len(found) < count else 0.5):
            if method is None:
                break
            found.append(body)
            channel.basic_ack(method.delivery_tag)
        channel.cancel()
    return found


def depth_of(url: str, queue: str) -> int:
    """Ready messages; -1: no queue, or no broker at the moment."""
    try:
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            count: int = connection.channel().queue_declare(queue, passive=True).method.message_count
            return count
    except (pika.exceptions.AMQPError, OSError):
        return -1
