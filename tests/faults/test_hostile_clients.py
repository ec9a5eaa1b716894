"""Clients that stall, flood, never read or never say goodbye: they are cut, memory stays bounded, others go on."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from statistics import median

import psutil
from pika import spec

from tests.faults.client import Channel, Client, Delivery
from tests.faults.node import ROOT, NodeProcess, until
from tests.support import processes

MakeNode = Callable[..., NodeProcess]
MIB = 1 << 20


def stop_reading(client: Client) -> None:
    client._task.cancel()
    client._writer.transport.pause_reading()  # type: ignore[attr-defined]


def connections_of(node: NodeProcess) -> int:
    return sum(one.status == "ESTABLISHED" for one in psutil.Process(node.pid).net_connections("tcp"))


@asynccontextmanager
async def bystander(node: NodeProcess) -> AsyncIterator[list[float]]:
    """Another client, at work all the time; yields its round trips in seconds. It must never fail."""
    client = await Client.open(node.port)
    channel = await client.channel(confirm=True)
    await channel.declare("bystander")
    took_s: list[float] = []
    back = asyncio.Event()
    channel.on_deliver = lambda delivery: (channel.ack(delivery.tag), back.set())[1]
    await channel.consume("bystander", prefetch=1)

    async def work() -> None:
        while True:
            began_s = time.monotonic()
            back.clear()
            channel.publish("", "bystander", b"x")
            await asyncio.wait_for(back.wait(), 10)
            took_s.append(time.monotonic() - began_s)
            await asyncio.sleep(0.01)

    task = asyncio.create_task(work())
    yield took_s
    assert not task.done(), task
    task.cancel()
    await client.close()


class Peak:
    """The highest RSS while the block runs, above that at its start."""

    def __init__(self, node: NodeProcess) -> None:
        self.node = node
        self.before = node.rss_bytes
        self.bytes = 0

    async def __aenter__(self) -> Peak:
        self.task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        self.bytes = max(self.bytes, self.node.rss_bytes - self.before)

    async def _watch(self) -> None:
        while True:
            self.bytes = max(self.bytes, self.node.rss_bytes - self.before)
            await asyncio.sleep(0.02)


async def filled(node: NodeProcess, queue: str, count: int, size: int) -> Channel:
    """A confirming channel that has put `count` messages into the queue, all confirmed."""
    client = await Client.open(node.port)
    channel = await client.channel(confirm=True)
    await channel.declare(queue)
    upto = 0

    def on_confirm(ack: bool, tag: int, multiple: bool) -> None:
        nonlocal upto
        assert ack
        upto = max(upto, tag)

    channel.on_confirm = on_confirm
    body = b"x" * size
    for number in range(1, count + 1):
        channel.publish("", queue, body)
        if number % 50 == 0:
            await client.drain()
            await until(lambda number=number: upto > number - 2000, "confirms")  # type: ignore[misc]
    await until(lambda: upto == count, "all confirms")
    return channel


async def come_back(channel: Channel, queue: str, count: int) -> None:
    """All messages are ready again, and once: in parts, when the holder goes. They belong to nobody."""
    ready, end_s = 0, time.monotonic() + 60
    while ready < count and time.monotonic() < end_s:
        before = ready
        said = await channel.call(spec.Queue.Declare(queue=queue, passive=True))
        ready = said.message_count
        assert said.consumer_count == 0
        assert ready >= before, "nobody takes any"
        await asyncio.sleep(0.02)
    assert ready == count


async def test_consumer_that_never_reads(make_node: MakeNode) -> None:
    """prefetch 0, 300 MB ready, and it reads nothing: cut after `stalled_write_s`; its messages return."""
    node = make_node({"limits.stalled_write_s": 2}).start()
    publisher = await filled(node, "deep", 30_000, 10_000)
    async with bystander(node) as took_s, Peak(node) as peak:
        stalled = await Client.open(node.port)
        channel = await stalled.channel()
        # a delivery that arrives before the pause is no harm
        stop_reading_soon = channel.consume("deep", prefetch=0)
        asyncio.get_running_loop().call_later(0.01, stop_reading, stalled)
        try:
            await asyncio.wait_for(stop_reading_soon, 0.5)
        except (TimeoutError, ConnectionError):
            pass
        first, before_s = len(took_s), node.cpu_s
        await until(lambda: connections_of(node) == 2, "the cut")
        beside, work_s = took_s[first:], node.cpu_s - before_s
        stalled.abandon()
    assert peak.bytes < 128 * MIB, f"{peak.bytes / MIB:.0f} MiB, whatever the backlog"
    assert beside
    assert work_s / len(beside) < 0.05, "of the node's processor time for a round trip, whatever else the machine does"
    assert median(beside) < 0.5, "and nobody waits for one who does not read"
    await come_back(publisher, "deep", 30_000)
    assert "127.0.0.1:" in node.log, "the log names the peer"
    await publisher.client.close()


async def test_publisher_that_never_reads_returns(make_node: MakeNode) -> None:
    """A flood of unroutable mandatory publishes, each with a return that nobody takes."""
    node = make_node({"limits.stalled_write_s": 2}).start()
    async with bystander(node) as took_s, Peak(node) as peak:
        client = await Client.open(node.port)
        channel = await client.channel()
        stop_reading(client)
        body = b"x" * 50_000

        async def flood() -> None:
            while not client._writer.transport.is_closing():
                channel.publish("", "nowhere", body, mandatory=True)
                await client.drain()

        flooding = asyncio.create_task(flood())
        await until(lambda: connections_of(node) == 1, "the cut")
        flooding.cancel()
        client.abandon()
    assert peak.bytes < 32 * MIB, f"{peak.bytes / MIB:.0f} MiB"
    assert took_s


async def test_publisher_that_never_reads_confirms(make_node: MakeNode) -> None:
    """Confirms, which `multiple` makes few, and nacks, which it may not: neither fills memory."""
    node = make_node({"limits.stalled_write_s": 2}).start()
    async with bystander(node) as took_s, Peak(node) as peak:
        client = await Client.open(node.port)
        channel = await client.channel(confirm=True)
        await channel.declare("full", **{"x-max-length": 1, "x-overflow": "reject-publish"})
        stop_reading(client)

        async def flood() -> None:
            for _ in range(200_000):
                channel.publish("", "full", b"x")
                if channel.published % 100 == 0:
                    await client.drain()

        try:
            await asyncio.wait_for(flood(), 15)
        except (TimeoutError, OSError):
            pass
        client.abandon()
        await until(lambda: connections_of(node) == 1, "the end of the connection")
    assert peak.bytes < 64 * MIB, f"{peak.bytes / MIB:.0f} MiB"
    assert took_s


async def test_deep_backlog_without_acks(make_node: MakeNode) -> None:
    """A consumer with prefetch 0 that reads all of 100 MB and acknowledges nothing: what it holds is not in memory."""
    node = make_node().start()
    async with Peak(node) as peak:
        publisher = await filled(node, "held", 100_000, 1000)
        client = await Client.open(node.port)
        channel = await client.channel()
        seen = 0

        def on_deliver(_: Delivery) -> None:
            nonlocal seen
            seen += 1

        channel.on_deliver = on_deliver
        await channel.consume("held", prefetch=0)
        await until(lambda: seen == 100_000, "all deliveries")
    await client.close()
    assert peak.bytes < 60 * MIB, f"{peak.bytes / MIB:.0f} MiB"
    await come_back(publisher, "held", 100_000)
    await publisher.client.close()


async def test_ten_thousand_connections(make_node: MakeNode) -> None:
    """Opened and dropped at every stage of the handshake: descriptors and memory return."""
    node = make_node().start()
    hello = b"AMQP\x00\x00\x09\x01"
    process = psutil.Process(node.pid)
    async with bystander(node) as took_s:
        descriptors = process.num_fds()

        def storm(count: int) -> None:
            for number in range(count):
                with socket.create_connection(("127.0.0.1", node.port), 10) as peer:
                    if number % 4:
                        peer.sendall(hello[: number % 9])
                    if number % 4 == 3:
                        peer.sendall(hello)
                        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        await asyncio.to_thread(storm, 2000)
        await until(lambda: process.num_fds() <= descriptors, "descriptors back")
        before = node.rss_bytes
        await asyncio.to_thread(storm, 10_000)
        await until(lambda: process.num_fds() <= descriptors, "descriptors back")
        assert node.rss_bytes - before < 4 * MIB
        assert max(took_s) < 2
    assert node.log.count("\n") < 15_000


async def test_slow_loris(make_node: MakeNode) -> None:
    """Two hundred handshakes, one octet at a time: cut at `handshake_timeout_s`, while others connect."""
    node = make_node({"limits.handshake_timeout_s": 1.5}).start()
    opening = [asyncio.open_connection("127.0.0.1", node.port) for _ in range(200)]
    peers = await asyncio.gather(*opening)
    began_s = time.monotonic()

    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for octet in b"AMQP\x00\x00\x09\x01" + b"\x01\x00\x00\x00\x00\x10\x00\x00\x0a\x00\x0b" * 100:
                writer.write(bytes((octet,)))
                await writer.drain()
                await asyncio.sleep(0.05)
            raise AssertionError("it was never cut")
        except OSError:
            pass
        finally:
            writer.transport.abort()

    async with bystander(node):
        trickling = asyncio.gather(*(trickle(*peer) for peer in peers))
        other = await Client.open(node.port)
        await other.close()
        await asyncio.wait_for(trickling, 20)
    assert time.monotonic() - began_s < 10
    assert "127.0.0.1:" in node.log


STOPPED = """
import pika, sys
connection = pika.BlockingConnection(pika.URLParameters(sys.argv[1] + "?heartbeat=1"))
channel = connection.channel()
channel.basic_qos(prefetch_count=10)
channel.basic_consume("paused", lambda *_: print("got", flush=True))
channel.start_consuming()
"""


async def test_client_stopped_and_continued(make_node: MakeNode) -> None:
    """SIGSTOP of a consumer: after two missed heartbeats its messages go to another; SIGCONT finds it closed."""
    node = make_node().start()
    publisher = await filled(node, "paused", 20, 10)
    program = processes.popen(
        [sys.executable, "-c", STOPPED, node.url], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT
    )
    assert program.stdout is not None
    for _ in range(10):
        await asyncio.to_thread(program.stdout.readline)
    os.kill(program.pid, signal.SIGSTOP)
    try:
        other = await Client.open(node.port)
        channel = await other.channel()
        seen: list[bool] = []
        channel.on_deliver = lambda delivery: seen.append(delivery.redelivered)
        await channel.consume("paused", prefetch=0)
        await until(lambda: len(seen) == 20, "the messages of the stopped client")
        assert sorted(seen) == [False] * 10 + [True] * 10
    finally:
        os.kill(program.pid, signal.SIGCONT)
    assert await asyncio.to_thread(program.wait, 15) != 0, "it finds its connection gone"
    await other.close()
    await publisher.client.close()
