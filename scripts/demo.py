"""The main job, seen from a client: durable messages through a node that is killed in the middle and started again.

pika publishes with confirms and consumes with acknowledgements, as any RabbitMQ client would. Two rounds:

    flow       half of the messages pass through while both sides work
    backlog    the other half piles up, a consumer has begun to acknowledge it, publishes are under way: SIGKILL;
               the node starts again on what its disk has, and the rest is drained

The verdict follows from the messages themselves, each of which carries its number: what the node confirmed must
come out; what comes out again after the kill must say that it is redelivered.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
from pika.adapters.select_connection import SelectConnection
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

QUEUE = "demo"
WINDOW = 1000
"""Publishes that may wait for their confirm, and the consumer's prefetch."""
ACK_EVERY = 100
BODY = b"." * 100
START_TIMEOUT_S = 30.0
QUIET_TIMEOUT_S = 20.0
"""So long may a round make no progress."""


class DemoFailed(Exception):
    """The text says what went wrong."""


class StartedNode:
    """`clusterbroker start` on a free port of the loopback."""

    def __init__(self, directory: Path) -> None:
        began = time.perf_counter()
        command = [sys.executable, "-m", "clusterbroker.broker.cli.main", "start", "--name", "demo"]
        command += ["--data-dir", str(directory / "data"), "--amqp", "127.0.0.1:0"]
        self.log = directory / "node.log"
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)  # noqa: S603
        watchdog = threading.Timer(START_TIMEOUT_S, self.process.kill)
        watchdog.daemon = True
        watchdog.start()
        address = ""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("amqp "):
                address = line.split()[1]
            if line.strip() == "ready":
                break
        else:
            self.process.wait()
            raise DemoFailed(f"the node did not start: {self.log.read_text()[-1000:].strip()}")
        watchdog.cancel()
        self.ready_s = time.perf_counter() - began
        self.url = f"amqp://guest:guest@{address}/?heartbeat=60"

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()


class Client(threading.Thread):
    """A pika connection with a thread of its own; `begin` runs when its channel is open."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.failure = ""
        self.channel: Any = None
        self._stopping = False
        self.connection = SelectConnection(
            pika.URLParameters(url),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._opened),
            on_open_error_callback=lambda _, error: self._ended(error),
            on_close_callback=lambda _, error: self._ended(error),
        )

    def _opened(self, channel: Any) -> None:
        self.channel = channel
        self.begin()

    def begin(self) -> None:
        raise NotImplementedError

    def _ended(self, error: Any) -> None:
        if not self._stopping:
            self.failure = f"{type(error).__name__}: {error}"
        self.connection.ioloop.stop()

    def run(self) -> None:
        self.connection.ioloop.start()

    def finish(self) -> None:
        """Closes the connection properly, when it is still there."""

        def close() -> None:
            self._stopping = True
            if self.connection.is_open:
                self.connection.close()

        if self.is_alive():
            self.connection.ioloop.add_callback_threadsafe(close)
            self.join(10)


class Publisher(Client):
    """Publishes the numbers of a range; `confirmed` are those that the node has taken over."""

    def __init__(self, url: str, numbers: range) -> None:
        super().__init__(url)
        self.numbers = numbers
        self.confirmed: set[int] = set()
        self.rejected = 0
        self._sent = 0
        self._confirmed_upto = 0

    def begin(self) -> None:
        self.channel.confirm_delivery(self._answered, callback=lambda _: self._fill())

    def _fill(self) -> None:
        properties = pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent.value)
        while self._sent < len(self.numbers) and self._sent - self._confirmed_upto < WINDOW:
            body = b"%d " % self.numbers[self._sent] + BODY
            self.channel.basic_publish("", QUEUE, body, properties)
            self._sent += 1

    def _answered(self, frame: Any) -> None:
        upto = frame.method.delivery_tag
        first = self._confirmed_upto if frame.method.multiple else upto - 1
        answered = self.numbers[first:upto]
        if isinstance(frame.method, pika.spec.Basic.Ack):
            self.confirmed.update(answered)
        else:
            self.rejected += len(answered)
        self._confirmed_upto = max(self._confirmed_upto, upto)
        self._fill()


class Consumer(Client):
    """Takes messages and acknowledges them. `acknowledge_max` leaves the others unacknowledged."""

    def __init__(self, url: str, acknowledge_max: int = sys.maxsize) -> None:
        super().__init__(url)
        self.acknowledge_max = acknowledge_max
        self.numbers: list[int] = []
        self.redelivered: set[int] = set()

    def begin(self) -> None:
        self.channel.basic_qos(prefetch_count=WINDOW, callback=lambda _: self.channel.basic_consume(QUEUE, self._take))

    def _take(self, channel: Any, method: Any, _: Any, body: bytes) -> None:
        number = int(body.split(b" ", 1)[0])
        self.numbers.append(number)
        if method.redelivered:
            self.redelivered.add(number)
        if len(self.numbers) % ACK_EVERY == 0 and len(self.numbers) <= self.acknowledge_max:
            channel.basic_ack(method.delivery_tag, multiple=True)

    def acknowledge_rest(self) -> None:
        def acknowledge() -> None:
            if self.channel is not None and self.channel.is_open:
                self.channel.basic_ack(0, multiple=True)

        self.connection.ioloop.add_callback_threadsafe(acknowledge)


def watch(progress: Progress, title: str, total: int, count: Callable[[], int], *clients: Client) -> float:
    """Shows `count()` until it is `total`; the seconds it took. Raises DemoFailed."""
    task = progress.add_task(title, total=total)
    began = moved = time.perf_counter()
    before = -1
    while True:
        now, found = time.perf_counter(), count()
        progress.update(task, completed=min(found, total))
        if found >= total:
            return now - began
        failed = next((client.failure for client in clients if client.failure), "")
        if failed:
            raise DemoFailed(f"a client lost its connection while {title}: {failed}")
        if found > before:
            before, moved = found, now
        elif now - moved > QUIET_TIMEOUT_S:
            raise DemoFailed(f"nothing moved for {QUIET_TIMEOUT_S:.0f} s while {title}: {found:,} of {total:,}")
        time.sleep(0.01)


def ready_count(url: str, *, declare: bool = False) -> int:
    """Messages that wait in the queue."""
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(url))) as connection:
        found = connection.channel().queue_declare(QUEUE, durable=True, passive=not declare)
        return int(found.method.message_count)


def run(directory: Path, messages: int, progress: Progress, table: Table) -> str:
    """Both rounds; returns the verdict's figures. Raises DemoFailed."""
    half = messages // 2
    node = StartedNode(directory)
    try:
        table.add_row("node ready", f"{node.ready_s:.2f} s", "free port on 127.0.0.1, empty directory")
        ready_count(node.url, declare=True)

        publisher, consumer = Publisher(node.url, range(half)), Consumer(node.url)
        publisher.start()
        consumer.start()
        flow_s = watch(
            progress,
            "publishing and consuming",
            half,
            lambda: min(len(publisher.confirmed), len(consumer.numbers)),
            publisher,
            consumer,
        )
        consumer.acknowledge_rest()
        publisher.finish()
        consumer.finish()
        if consumer.numbers != list(range(half)):
            raise DemoFailed(f"{half:,} messages went in, other ones or another order came out")
        table.add_row("published and consumed", f"{half:,}", f"durable, confirmed, in order: {half / flow_s:,.0f}/s")

        before, backlog = Consumer(node.url, acknowledge_max=half // 4), Publisher(node.url, range(half, 2 * half))
        backlog.start()
        before.start()
        enough = half * 7 // 10
        watch(
            progress,
            "publishing a backlog",
            enough,
            lambda: (
                len(backlog.confirmed) if len(before.numbers) > half // 4 else min(len(backlog.confirmed), enough - 1)
            ),
            backlog,
            before,
        )
        node.kill()
        backlog.join(10)
        before.join(10)
        taken = before.numbers
        table.add_row(
            "killed (SIGKILL)",
            f"{len(backlog.confirmed):,} confirmed",
            f"of {half:,} so far; {len(taken):,} taken, {half // 4:,} acknowledged",
        )
    finally:
        node.stop()

    node = StartedNode(directory)
    try:
        waiting = ready_count(node.url)
        table.add_row("started again", f"{node.ready_s:.2f} s", f"{waiting:,} messages came from the disk")
        after = Consumer(node.url)
        after.start()
        drain_s = watch(progress, "draining", waiting, lambda: len(after.numbers), after)
        after.acknowledge_rest()
        after.finish()
        left = ready_count(node.url)
        rate = len(after.numbers) / max(drain_s, 1e-9)
        table.add_row("drained", f"{len(after.numbers):,}", f"{rate:,.0f}/s; {left:,} left in the queue")
    finally:
        node.stop()

    lost = backlog.confirmed - set(taken) - set(after.numbers)
    again = set(taken) & set(after.numbers)
    unflagged = again - after.redelivered
    twice = len(after.numbers) - len(set(after.numbers))
    table.add_row(
        "confirmed and lost",
        f"{len(lost):,}",
        "each message carries its number" if lost else "every confirmed number came out",
    )
    table.add_row("delivered again", f"{len(again):,}", f"taken before the kill; {len(unflagged):,} without the flag")
    in_order = after.numbers == sorted(after.numbers)
    figures = (
        f"{half + len(backlog.confirmed):,} confirmed, {len(lost):,} lost, {len(again):,} delivered again "
        f"({len(unflagged):,} without redelivered), restart in {node.ready_s:.2f} s, {half / flow_s:,.0f} messages/s"
    )
    if lost or unflagged or twice or left or not in_order or backlog.rejected or publisher.rejected:
        order = "" if in_order else ", order broken after the restart"
        raise DemoFailed(f"{figures}, {twice:,} twice in one drain, {left:,} left{order}")
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=100_000, help="how many to publish (default: 100000)")
    messages = parser.parse_args().messages
    if messages < 8 * WINDOW:
        parser.error(f"--messages must be at least {8 * WINDOW}: a kill needs a backlog")
    began = time.perf_counter()
    console = Console(highlight=False)
    table = Table(header_style="bold", box=None, pad_edge=False)
    for title in ("step", "figure", "what happened"):
        table.add_column(title)
    directory = Path(tempfile.mkdtemp(prefix="clusterbroker-demo-"))
    columns = TextColumn("{task.description:<26}"), BarColumn(), MofNCompleteColumn()
    failure = figures = ""
    with Progress(*columns, console=console) as progress:
        try:
            figures = run(directory, messages, progress, table)
        except DemoFailed as error:
            failure = " ".join(str(error).split())
    console.print(table)
    if failure:
        print(f"demo failed: {failure} (data and log are kept in {directory})")
        return 1
    shutil.rmtree(directory)
    print(f"demo passed: {figures}, {time.perf_counter() - began:.0f} s in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
