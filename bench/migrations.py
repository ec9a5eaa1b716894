"""`clusterbroker migrate` between two nodes on loopback: its rate, and what it costs each process.

    python -m bench.migrations [--messages 100000] [--from clusterbroker,rabbitmq] [--queues 1,4]
                               [--types quorum,classic]

Messages of 100 bytes, persistent, in one queue or several, are moved with numbers, by the command in a process of its
own. A run without messages before it is taken off: start of the interpreter, connections. Printed: messages a second,
and microseconds of processor time a message of source, mover and destination. Beside it the peer of the same run: the
same messages read and acknowledged by the mover's own compiled reader, a channel for each queue, with no destination,
which is what the source gives.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final

from bench.confirmed import Confirmed
from bench.servers import SERVERS, OurNode, Server
from clusterbroker.broker.bridges.channel import CONTENT_BYTES_MAX, Channel
from clusterbroker.broker.bridges.places import place
from clusterbroker.broker.bridges.rewriting import Parcel, Rewriter
from clusterbroker.broker.trial.client import Client, target
from clusterbroker.broker.wire.amqp091 import methods as m

BODY: Final = b"x" * 100
WINDOW: Final = 10_000


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one run: wall time and processor time, s."""

    wall_s: float
    source_s: float
    mover_s: float
    destination_s: float

    def less(self, base: Cost, count: int) -> str:
        """A row: messages a second, us of each process."""
        costs = (self.source_s - base.source_s, self.mover_s - base.mover_s, self.destination_s - base.destination_s)
        row = "".join(f"{cost / count * 1e6:12.1f}" for cost in costs)
        return f"{count / (self.wall_s - base.wall_s):12,.0f}{row}"


def url(server: Server) -> str:
    return f"amqp://guest:guest@127.0.0.1:{server.port}"


def names(queues: int) -> list[str]:
    return [f"moved-{number}" for number in range(queues)]


async def filled(server: Server, queues: int, queue_type: str, count: int) -> None:
    """The queues, with so many messages in them altogether, confirmed."""
    client = await Client.open(target(url(server)), timeout_s=30, heartbeat_s=60)
    for name in names(queues):
        await client.call(m.QueueDeclare(queue=name, durable=True, arguments={"x-queue-type": queue_type}))
    await client.call(m.ConfirmSelect())
    confirmed = Confirmed(client)
    for number in range(count):
        client.publish(names(queues)[number % queues], BODY)
        if number % WINDOW == WINDOW - 1 or number == count - 1:
            await confirmed.wait(number + 1)
    await client.close()


async def depth(server: Server, queues: int) -> int:
    """Ready messages of the queues."""
    client = await Client.open(target(url(server)), timeout_s=30, heartbeat_s=60)
    ready = 0
    for name in names(queues):
        answer = await client.call(m.QueueDeclare(queue=name, passive=True))
        assert isinstance(answer, m.QueueDeclareOk), "the queue is there"
        ready += answer.message_count
    await client.close()
    return ready


async def read_only(server: Server, queues: int, count: int) -> tuple[float, float]:
    """Messages a second that the source gives, and its processor time for each, us."""
    began_s, before_s = time.perf_counter(), server.processor_s()
    ends_s = await asyncio.gather(*[_read_queue(server, name, count // queues) for name in names(queues)])
    return count / (max(ends_s) - began_s), (server.processor_s() - before_s) / count * 1e6


async def _read_queue(server: Server, queue: str, count: int) -> float:
    """When all had come, by `perf_counter`."""
    channel = await Channel.open(place(url(server)))
    came, over = 0, asyncio.Event()

    def on_parcel(parcel: Parcel) -> None:
        nonlocal came
        before, came = came, came + parcel.count
        if before // (WINDOW // 4) != came // (WINDOW // 4) or came == count:
            channel.send(m.BasicAck(delivery_tag=came, multiple=True))
        if came == count:
            over.set()

    channel.on_parcel = on_parcel
    channel.rewrite(Rewriter("nowhere", None, b"p" * 16, b"", channel.frame_max, channel.frame_max, CONTENT_BYTES_MAX))
    channel.send(m.BasicQos(prefetch_count=WINDOW))
    channel.send(m.BasicConsume(queue=queue, consumer_tag="reader"))
    await over.wait()
    ended_s = time.perf_counter()
    await asyncio.sleep(0.5)  # the last ack is on its way
    await channel.close()
    return ended_s


def moved(source: Server, destination: Server, queues: int, state: Path) -> Cost:
    """The command, once."""
    words = ["migrate", "--from", url(source), "--amqp", url(destination), "--state", str(state)]
    words += [word for name in names(queues) for word in ("--queue", name)]
    words += ["--no-definitions", "--data-dir", str(destination.directory / "data")]
    before = source.processor_s(), destination.processor_s(), time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "clusterbroker.broker.cli.main", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None, "it was asked for"
    said = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    after = time.perf_counter(), source.processor_s(), destination.processor_s()
    if status:
        raise SystemExit(said.decode(errors="replace"))
    return Cost(after[0] - before[2], after[1] - before[0], used.ru_utime + used.ru_stime, after[2] - before[1])


async def main(kinds: list[str], shapes: list[tuple[int, str]], count: int) -> None:
    print(f"{'from':30}{'messages/s':>12}{'source us':>12}{'mover us':>12}{'dest us':>12}{'read only/s':>14}{'us':>8}")
    for kind, (queues, queue_type) in product(kinds, shapes):
        each = count // queues * queues
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            with SERVERS[kind](directory / "source") as source, OurNode(directory / "destination") as destination:
                source.start()
                destination.start()
                await filled(destination, queues, queue_type, 0)
                await filled(source, queues, queue_type, each)
                rate, cost_us = await read_only(source, queues, each)
                base = await asyncio.to_thread(moved, source, destination, queues, directory / "state0")
                await filled(source, queues, queue_type, each)
                whole = await asyncio.to_thread(moved, source, destination, queues, directory / "state1")
                assert await depth(destination, queues) == each, "all are there, once"
                shape = f"{kind} {queues} {queue_type}"
                print(f"{shape:30}{whole.less(base, each)}{rate:14,.0f}{cost_us:8.1f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--from", dest="kinds", default="clusterbroker,rabbitmq")
    parser.add_argument("--queues", default="1")
    parser.add_argument("--types", default="quorum")
    asked = parser.parse_args()
    shapes = [(int(queues), each) for queues in asked.queues.split(",") for each in asked.types.split(",")]
    asyncio.run(main(asked.kinds.split(","), shapes, asked.messages))
