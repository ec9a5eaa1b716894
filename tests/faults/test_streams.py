"""Streams at three real nodes: somebody is killed while others publish and read; every copy has the same afterwards."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pika
import pika.exceptions
import pytest

pytest.importorskip("pyarrow")

from clusterbroker.broker.server.control.client import ask
from tests.faults.staging import Nodes

BATCH = 50
LOST = (pika.exceptions.AMQPError, OSError)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    running = Nodes(tmp_path_factory.mktemp("cluster"))
    running.begin()
    yield running
    running.end()
    for node in running.nodes.values():
        assert "Traceback" not in node.log.read_text(errors="replace"), node.log


@pytest.fixture(autouse=True)
def all_alive(nodes: Nodes) -> None:
    for name in "abc":
        if name not in nodes.alive:
            nodes.revive(name)


def declare(nodes: Nodes, name: str, **arguments: Any) -> None:
    words = {"x-queue-type": "stream", "x-queue-leader-locator": "client-local", **arguments}
    with nodes.connected("a") as connection:
        connection.channel().queue_declare(name, durable=True, arguments=words)


class Writer(threading.Thread):
    """Publishes numbers to a stream until it is told to stop, a transaction of BATCH at a time; what is committed is in
    `confirmed`, in order. What is not is published again."""

    def __init__(self, nodes: Nodes, stream: str, over: str, size: int = 1000) -> None:
        super().__init__(daemon=True)
        self.nodes, self.stream, self.over, self.size = nodes, stream, over, size
        self.confirmed: list[int] = []
        self.done = threading.Event()
        self.failed = ""

    def run(self) -> None:
        end_s = time.monotonic() + 120
        while not self.done.is_set() and time.monotonic() < end_s:
            try:
                with self.nodes.connected(self.over) as connection:
                    channel = connection.channel()
                    channel.tx_select()
                    while not self.done.is_set():
                        numbers = range(len(self.confirmed), len(self.confirmed) + BATCH)
                        for number in numbers:
                            channel.basic_publish("", self.stream, b"%d " % number + b"x" * self.size)
                        channel.tx_commit()
                        self.confirmed.extend(numbers)
            except LOST:
                time.sleep(0.05)

    def upto(self, count: int) -> None:
        """Waits until so many are confirmed."""
        end_s = time.monotonic() + 60
        while len(self.confirmed) < count:
            assert time.monotonic() < end_s, f"{len(self.confirmed)} of {count} are confirmed"
            time.sleep(0.01)

    def stop(self) -> None:
        self.done.set()
        self.join(30)
        assert not self.is_alive()


def read(nodes: Nodes, stream: str, node: str, first: int | str = "first") -> dict[int, int]:
    """Offset -> number of all that a node shows of the stream."""
    found: dict[int, int] = {}
    silent = 0
    with nodes.connected(node) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=200)
        words = {"x-stream-offset": first}
        for method, properties, body in channel.consume(stream, arguments=words, inactivity_timeout=1.0):
            if method is None:
                silent += 1
                if silent == (2 if found else 60):
                    break
                continue
            silent = 0
            assert not method.redelivered
            found[properties.headers["x-stream-offset"]] = int(body.split()[0])
            channel.basic_ack(method.delivery_tag)
    return found


def judged(writer: Writer, found: dict[int, int], all_of_it: bool = True) -> None:
    """Offsets have no gap, and each confirmed number is there, first times in order."""
    offsets = sorted(found)
    assert offsets == list(range(offsets[0], offsets[-1] + 1))
    numbers = list(dict.fromkeys(found[offset] for offset in offsets))
    assert numbers == sorted(numbers)
    if all_of_it:
        assert set(writer.confirmed) <= set(numbers)
        assert offsets[0] == 0


def owner(nodes: Nodes, stream: str) -> str:
    queues = asyncio.run(nodes.ask(nodes.alive[0], "queues"))["queues"]
    return next(str(queue["owner"]) for queue in queues if queue["name"] == stream)


def moved(nodes: Nodes, stream: str, to: str) -> None:
    """The copy at that node becomes the owner's, once it is in sync."""
    end_s = time.monotonic() + 60
    while owner(nodes, stream) != to:
        assert time.monotonic() < end_s, f"{stream} does not come to {to}"
        asked = {"vhost": "/", "queue": stream, "to": to}
        told = ask(nodes.node(nodes.alive[0]).data_dir, "queues.move", asked, 60.0)
        time.sleep(0 if told and told.get("ok") else 0.2)


@pytest.mark.parametrize("whom", ["owner", "copy"])
def test_a_node_dies_while_others_publish_and_read(nodes: Nodes, whom: str) -> None:
    stream = f"dies.{whom}"
    declare(nodes, stream, **{"x-stream-max-segment-size-bytes": 1 << 20})
    writer = Writer(nodes, stream, "c")
    writer.start()
    shown: dict[int, int] = {}
    reader = threading.Thread(target=lambda: shown.update(read(nodes, stream, "c")), daemon=True)
    writer.upto(1500)
    reader.start()
    victim = {"owner": "a", "copy": "b"}[whom]
    assert owner(nodes, stream) == "a"
    nodes.shoot(victim)
    writer.upto(len(writer.confirmed) + 500)
    nodes.revive(victim)
    writer.upto(len(writer.confirmed) + 1000)
    writer.stop()
    reader.join(60)
    judged(writer, shown, all_of_it=False)
    whole = read(nodes, stream, "c")
    judged(writer, whole)
    assert shown.items() <= whole.items()
    for name in "abc":
        moved(nodes, stream, name)
        assert read(nodes, stream, "c") == whole, f"the copy at {name} has the same"
        assert (nodes.node(name).data_dir / "journal" / "streams").exists()


def test_all_die_at_once(nodes: Nodes) -> None:
    declare(nodes, "all", **{"x-stream-max-segment-size-bytes": 1 << 20})
    writer = Writer(nodes, "all", "b")
    writer.start()
    writer.upto(3000)
    for name in "abc":
        nodes.shoot(name)
    for name in "abc":
        nodes.launch(name, "--peers", nodes.peers("a", "b", "c"))
    asyncio.run(nodes.ready("a", "b", "c"))
    writer.upto(len(writer.confirmed) + 200)
    writer.stop()
    whole = read(nodes, "all", "a")
    judged(writer, whole)
    for name in "abc":
        moved(nodes, "all", name)
        assert read(nodes, "all", "c") == whole


def test_retention_lets_the_same_go_everywhere(nodes: Nodes) -> None:
    declare(nodes, "short", **{"x-stream-max-segment-size-bytes": 1 << 20, "x-max-length-bytes": 2 << 20})
    writer = Writer(nodes, "short", "c", size=8000)
    writer.start()
    writer.upto(700)
    nodes.shoot("b")
    writer.upto(len(writer.confirmed) + 300)
    nodes.revive("b")
    writer.upto(len(writer.confirmed) + 500)
    writer.stop()
    before: dict[int, int] = {}
    while (whole := read(nodes, "short", "c")) != before:  # retention may still be at it
        before = whole
    judged(writer, whole, all_of_it=False)
    assert min(whole) > 300
    assert whole[max(whole)] == writer.confirmed[-1]
    for name in "abc":
        moved(nodes, "short", name)
        assert read(nodes, "short", "c") == whole
