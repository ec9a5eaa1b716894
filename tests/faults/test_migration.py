"""`clusterbroker migrate` with real brokers: nothing lost, nothing doubled, whatever is killed (docs/design/013)."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest

from clusterbroker.broker.bridges.places import place
from tests.faults.brokers import Broker, ManagedNode, depth_of, put, taken
from tests.faults.node import ROOT, command, wait_for
from tests.support.processes import popen

QUEUES: dict[str, dict[str, Any]] = {
    "orders": {},
    "events": {"x-queue-type": "quorum"},
    "tasks": {"x-max-priority": 5},
    "empty": {},
}
logging.getLogger("pika").setLevel(logging.CRITICAL)
EACH = 6_700  # of three: 20,100 messages
RATE = 4_000


def fill(source: Broker) -> dict[str, list[bytes]]:
    """Declares the queues, with an exchange and a binding; what is in each."""
    there: dict[str, list[bytes]] = {}
    with pika.BlockingConnection(pika.URLParameters(source.url)) as connection:
        channel = connection.channel()
        channel.exchange_declare("shop", "topic", durable=True)
        for queue, arguments in QUEUES.items():
            channel.queue_declare(queue, durable=True, arguments=arguments)
            channel.queue_bind(queue, "shop", f"{queue}.#")
    for queue in QUEUES:
        there[queue] = [b"%s %06d" % (queue.encode(), number) for number in range(EACH if queue != "empty" else 0)]
        if there[queue]:
            asyncio.run(put(source.url, queue, there[queue]))
    return there


def counted(node: ManagedNode) -> int:
    """Messages of all queues, by the management API's last sample."""
    rows = httpx.get(f"{node.management}/api/queues", auth=("guest", "guest")).json()
    return sum(row.get("messages", 0) for row in rows)


def depth(url: str) -> int:
    """Messages of all queues, those that are there."""
    total = 0
    try:
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            for queue in QUEUES:
                try:
                    total += connection.channel().queue_declare(queue, passive=True).method.message_count
                except pika.exceptions.ChannelClosedByBroker:
                    pass
    except (pika.exceptions.AMQPError, OSError):
        return 0
    return total


class Run:
    """`clusterbroker migrate`, in a process."""

    def __init__(self, tmp_path: Path, source: Broker, destination: ManagedNode, *more: str) -> None:
        self.log = tmp_path / "migrate.log"
        words = ["migrate", "--from", source.url, "--management", source.management, "--amqp", destination.url]
        words += ["--data-dir", str(destination.data_dir), "--state", str(tmp_path / "state"), "--skip-unsupported"]
        with self.log.open("ab") as log:
            self.process = popen(
                [sys.executable, "-m", "clusterbroker.broker.cli.main", *words, *more],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
            )

    def ends(self, timeout_s: float = 180) -> tuple[int, str]:
        """Exit code and all that it said."""
        return self.process.wait(timeout_s), self.log.read_text()


def same(there: dict[str, list[bytes]], url: str, ordered: bool) -> None:
    for queue, bodies in there.items():
        found = taken(url, queue)
        lost = Counter(bodies) - Counter(found)
        doubled = Counter(found) - Counter(bodies)
        assert (len(lost), len(doubled)) == (0, 0), f"{queue}: lost {list(lost)[:3]}, doubled {list(doubled)[:3]}"
        if ordered:
            assert found == bodies, f"{queue}: out of order"


KINDS = ["ours", pytest.param("rabbitmq", marks=pytest.mark.timeout(400))]


@pytest.mark.parametrize("kind", KINDS)
def test_definitions_and_messages_move(brokers: Callable[[str], Any], tmp_path: Path, kind: str) -> None:
    source, destination = brokers(kind), brokers("ours")
    there = fill(source)
    code, said = Run(tmp_path, source, destination, "--dry-run").ends()
    assert code == 0, said
    assert "nothing was done" in said, said
    assert depth(destination.url) == 0
    code, said = Run(tmp_path, source, destination).ends()
    assert code == 0, said
    assert "20,100 messages of 3 queues moved" in said, said
    assert depth(source.url) == 0
    with pika.BlockingConnection(pika.URLParameters(destination.url)) as connection:
        connection.channel().basic_publish("shop", "empty.x", b"routed")
    there["empty"] = [b"routed"]
    same(there, destination.url, ordered=True)


@pytest.mark.parametrize("arguments", [{}, {"x-delivery-limit": -1}, {"x-single-active-consumer": True}])
@pytest.mark.timeout(400)
def test_a_quorum_queue_keeps_its_order_while_its_broker_stands_still(
    brokers: Callable[[str], Any], tmp_path: Path, arguments: dict[str, Any]
) -> None:
    """Windows stay empty, or half full, with deliveries on their way: a quorum queue would take these back."""
    source, destination = brokers("rabbitmq"), brokers("ours")
    bodies = [b"%06d" % number for number in range(2 * EACH)]
    with pika.BlockingConnection(pika.URLParameters(source.url)) as connection:
        connection.channel().queue_declare("orders", durable=True, arguments={"x-queue-type": "quorum", **arguments})
    asyncio.run(put(source.url, "orders", bodies[:EACH]))
    run = Run(tmp_path, source, destination, "--rate", "2000", "--follow")
    wait_for(lambda: depth_of(destination.url, "orders") > 0, "messages moved", 60)
    flow = threading.Thread(target=trickle, args=(source.url, "orders", bodies[EACH:]))
    flow.start()
    for _ in range(6):
        source.send(signal.SIGSTOP)
        time.sleep(0.7)  # longer than a window waits for messages
        source.send(signal.SIGCONT)
        time.sleep(0.3)  # and hands out meanwhile
    flow.join(120)
    wait_for(lambda: depth_of(destination.url, "orders") >= len(bodies), "all moved", 120)
    run.process.terminate()
    assert run.ends(30)[0] == 0
    got = taken(destination.url, "orders")
    place = next((at for at, (one, other) in enumerate(zip(got, bodies, strict=False)) if one != other), len(bodies))
    assert (got[place : place + 40], len(got)) == (bodies[place : place + 40], len(bodies))
    assert got == bodies
    with pika.BlockingConnection(pika.URLParameters(source.url)) as connection:
        connection.channel().basic_publish("", "orders", b"last", pika.BasicProperties(delivery_mode=2))
    code, said = Run(tmp_path, source, destination).ends()
    assert code == 0, said
    assert "1 messages of 1 queues moved" in said, said


def trickle(url: str, queue: str, bodies: list[bytes]) -> None:
    """Publishes about 1,000 a second, in their order."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        for at, body in enumerate(bodies):
            channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2))
            if at % 20 == 0:
                connection.sleep(0.02)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("victim", ["mover", "source", "destination"])
def test_nothing_is_lost_or_doubled_by_a_kill(
    brokers: Callable[[str], Any], tmp_path: Path, kind: str, victim: str
) -> None:
    source, destination = brokers(kind), brokers("ours")
    there = fill(source)
    run = Run(tmp_path, source, destination, "--rate", str(RATE))
    for kill in range(3):
        wait_for(lambda: depth(destination.url) > 4_000 * (kill + 1), "messages moved", 120)  # noqa: B023
        if victim == "mover":
            run.process.kill()
            run.process.wait(10)
            run = Run(tmp_path, source, destination, "--rate", str(RATE))
        else:
            broker = source if victim == "source" else destination
            broker.kill()
            broker.start()
    code, said = run.ends()
    if code:  # what it gave up, the next run takes up
        code, said = Run(tmp_path, source, destination).ends()
    assert code == 0, said
    assert depth(source.url) == 0
    same(there, destination.url, ordered=False)


def test_a_second_one_at_the_same_time_is_refused(brokers: Callable[[str], Any], tmp_path: Path) -> None:
    source, destination = brokers("ours"), brokers("ours")
    fill(source)
    first = Run(tmp_path, source, destination, "--rate", "1000")
    wait_for(lambda: depth(destination.url) > 100, "messages moved")
    code, said = Run(tmp_path, source, destination).ends()
    assert code == 1, said
    assert "another process migrates" in said, said
    first.process.kill()
    first.process.wait(10)


def test_what_cannot_be_reached_or_is_the_same_is_told_in_a_line(brokers: Callable[[str], Any], tmp_path: Path) -> None:
    node = brokers("ours")
    where = ["--amqp", node.url, "--state", str(tmp_path / "state"), "--data-dir", str(node.data_dir)]
    code, said = command("migrate", "--from", node.url, "--queue", "q", *where)
    assert (code, said) == (1, "clusterbroker: source and destination are the same broker\n")
    wrong = f"amqp://guest:wrong@127.0.0.1:{node.port}"
    code, said = command("migrate", "--from", wrong, "--queue", "q", *where)
    assert code == 1, said
    assert said.count("\n") == 1
    assert "login of user 'guest' was refused" in said
    assert "wrong" not in said, "no password is told"
    assert place(wrong).password == "wrong"
    code, said = command("migrate", "--queue", "q", *where)
    assert code == 2
    assert "--from" in said


def test_who_follows_moves_what_comes_later_and_ends_on_a_signal(brokers: Callable[[str], Any], tmp_path: Path) -> None:
    source, destination = brokers("ours"), brokers("ours")
    with pika.BlockingConnection(pika.URLParameters(source.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        run = Run(tmp_path, source, destination, "--follow")
        for number in range(5):
            channel.basic_publish("", "orders", b"%d" % number, pika.BasicProperties(delivery_mode=2))
            wait_for(lambda: depth(destination.url) == number + 1, f"message {number}")  # noqa: B023
    wait_for(lambda: "5 messages moved, " in run.log.read_text(), "a line tells it, without a terminal", 30)
    run.process.terminate()
    began_s = time.monotonic()
    code, said = run.ends(30)
    assert code == 0, said
    assert "5 messages of 1 queues moved; interrupted: run it again to go on" in said, said
    assert time.monotonic() - began_s < 20
    assert taken(destination.url, "orders") == [b"%d" % number for number in range(5)]


@pytest.mark.parametrize("kind", KINDS)
def test_back_with_to(brokers: Callable[[str], Any], tmp_path: Path, kind: str) -> None:
    """Definitions that the other broker knows, and all messages, in their order."""
    node, other = brokers("ours"), brokers(kind)
    there = fill(node)
    wait_for(lambda: counted(node) == 3 * EACH, "its statistics have them")
    words = ["migrate", "--to", other.url, "--management", other.management, "--amqp", node.url]
    words += ["--data-dir", str(node.data_dir), "--state", str(tmp_path / "state")]
    code, said = command(*words, "--dry-run")
    assert code == 0, said
    assert "20,100 messages in 4 queues would move" in said, said
    assert depth(other.url) == 0, "nothing was done"
    code, said = command(*words)
    assert code == 0, said
    assert "20,100 messages of 3 queues moved" in said, said
    assert "users and their permissions: not taken along" in said, said
    assert depth(node.url) == 0
    with pika.BlockingConnection(pika.URLParameters(other.url)) as connection:
        connection.channel().basic_publish("shop", "empty.x", b"routed")
    there["empty"] = [b"routed"]
    same(there, other.url, ordered=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_is_moved_once_and_in_its_order(brokers: Callable[[str], Any], tmp_path: Path, kind: str) -> None:
    """Bodies, headers and times of publishers; the mover is killed, and forgets where it was."""
    source, destination = brokers(kind), brokers("ours")
    count = 4_000
    with pika.BlockingConnection(pika.URLParameters(source.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("events", durable=True, arguments={"x-queue-type": "stream"})
        for number in range(count):
            more = pika.BasicProperties(headers={"n": number}, timestamp=1_700_000_000 + number, delivery_mode=2)
            channel.basic_publish("", "events", b"%d" % number, more)
    wait_for(lambda: len(read(source.url)) == count, "all is in the stream", 60)
    run = Run(tmp_path, source, destination, "--rate", "1000")
    for kill in range(2):
        wait_for(lambda: len(read(destination.url)) > 800 * (kill + 1), "messages moved", 120)  # noqa: B023
        run.process.kill()
        run.process.wait(10)
        (place,) = (tmp_path / "state").glob("*.stream")
        told = json.loads(place.read_text())
        place.write_text(json.dumps({**told, "offset": 0} if kill else told))
        run = Run(tmp_path, source, destination, "--rate", "1000")
    code, said = run.ends()
    assert code == 0, said
    assert "places of its readers are not moved" in said, said
    found = read(destination.url)
    assert [body for body, _ in found] == [b"%d" % number for number in range(count)]
    assert [(one.headers["n"], one.timestamp) for _, one in found] == [(n, 1_700_000_000 + n) for n in range(count)]
    assert [one.headers["x-stream-offset"] for _, one in found] == list(range(count))
    code, said = Run(tmp_path, source, destination).ends()
    assert code == 0, said
    assert len(read(destination.url)) == count
    assert len(read(source.url)) == count, "a stream keeps what is read"


def read(url: str) -> list[tuple[bytes, pika.BasicProperties]]:
    """All that is in the stream."""
    found: list[tuple[bytes, pika.BasicProperties]] = []
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=1000)
        try:
            for method, properties, body in channel.consume(
                "events", arguments={"x-stream-offset": "first"}, inactivity_timeout=1
            ):
                if method is None:
                    break
                found.append((body, properties))
                channel.basic_ack(method.delivery_tag)
        except pika.exceptions.ChannelClosedByBroker:  # it is not declared yet
            return []
        channel.cancel()
    return found
