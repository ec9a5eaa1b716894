"""A stream at a real node with its disk: files that come and go while clients publish and read, and restarts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pika
import pytest

from clusterbroker import Broker
from clusterbroker.journal.record import read_records

pytestmark = [pytest.mark.processes]
PIECE = b"x" * 4000


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Broker]:
    with Broker(data_dir=tmp_path / "data") as broker:
        yield broker


def connected(node: Broker) -> Any:
    connection = pika.BlockingConnection(pika.URLParameters(node.url))
    return connection, connection.channel()


def declare(node: Broker, **arguments: Any) -> None:
    connection, channel = connected(node)
    words = {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 1 << 20, **arguments}
    channel.queue_declare("s", durable=True, arguments=words)
    connection.close()


def publish(node: Broker, first: int, count: int, filed: Path | None = None) -> None:
    """`filed`: waits until a checkpoint has put it into files, of this directory."""
    before = 0 if filed is None else stored(filed)
    connection, channel = connected(node)
    channel.tx_select()
    for number in range(first, first + count):
        channel.basic_publish("", "s", b"%d " % number + PIECE)
    channel.tx_commit()
    connection.close()
    if filed is not None:
        until(lambda: stored(filed) != before)


def read(node: Broker, first: Any = "first", end: int | None = None, **more: Any) -> dict[int, int]:
    """Offset -> number."""
    connection, channel = connected(node)
    channel.basic_qos(prefetch_count=100)
    words = {"x-stream-offset": first, **more} | ({} if end is None else {"x-stream-end": end})
    found: dict[int, int] = {}
    for method, properties, body in channel.consume("s", arguments=words, inactivity_timeout=1.0):
        if method is None:
            break
        offset = properties.headers["x-stream-offset"]
        if "x-stream-count" in properties.headers:
            for seq, message, _, _ in read_records(body):
                found[seq - 1] = int(message.body.split()[0])
            assert len(found) >= properties.headers["x-stream-count"]
        else:
            found[offset] = int(body.split()[0])
        channel.basic_ack(method.delivery_tag)
    connection.close()
    return found


def at_one_moment(node: Broker, first: Any) -> tuple[int, dict[int, int]]:
    """Where the stream begins and what is read of it, while retention does not move that."""
    while True:
        before = offsets(node)["first"]
        found = read(node, first)
        if offsets(node)["first"] == before:
            return before, found


def offsets(node: Broker, **more: Any) -> Any:
    connection, channel = connected(node)
    answers: list[Any] = []
    channel.basic_consume("amq.rabbitmq.reply-to", lambda *said: answers.append(json.loads(said[3])), auto_ack=True)
    body = json.dumps({"queue": "s", **more}).encode()
    channel.basic_publish("amq.stream", "offsets", body, pika.BasicProperties(reply_to="amq.rabbitmq.reply-to"))
    connection.process_data_events(5)
    connection.close()
    return answers[0]


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "data" / "journal" / "streams").rglob("*.seg"))


def stored(tmp_path: Path) -> int:
    total = 0
    for path in files(tmp_path):
        with suppress(FileNotFoundError):  # the node let go of it meanwhile
            total += path.stat().st_size
    return total


def until(condition: Any) -> None:
    end_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end_s, "waited too long"
        time.sleep(0.02)


@pytest.mark.parametrize("chunks", [False, True])
def test_files_are_read_as_one_with_what_is_not_in_them_yet(node: Broker, tmp_path: Path, chunks: bool) -> None:
    declare(node)
    for first in range(0, 900, 300):
        publish(node, first, 300, tmp_path)
    publish(node, 900, 20)
    wanted = {number: number for number in range(920)}
    more = {"x-stream-chunks": True} if chunks else {}
    assert len(files(tmp_path)) >= 2
    assert read(node, **more) == wanted
    assert read(node, 850, 910, **more) == {number: number for number in range(850, 910)}
    node.stop()
    node.start()
    assert read(node, **more) == wanted
    publish(node, 920, 1)
    assert read(node, "first", 921, **more) == wanted | {920: 920}


def test_retention_by_bytes_lets_whole_files_go(node: Broker, tmp_path: Path) -> None:
    declare(node, **{"x-max-length-bytes": 2 << 20})
    before = 0
    for first in range(0, 1500, 250):
        publish(node, first, 250, tmp_path)
    until(lambda: stored(tmp_path) <= 3 << 20)
    assert offsets(node)["next"] == 1500
    before, found = at_one_moment(node, "first")
    assert 0 < before < 1500
    assert found == {number: number for number in range(before, 1500)}
    before, found = at_one_moment(node, 3)
    assert found == {number: number for number in range(before, 1500)}
    node.stop()
    node.start()
    before, found = at_one_moment(node, "first")
    assert found == {number: number for number in range(before, 1500)}
    connection, channel = connected(node)
    channel.basic_qos(prefetch_count=1)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match=f"is gone, the first is {before}"):
        channel.basic_consume("s", print, arguments={"x-stream-offset": 1, "x-stream-exact": True})
    connection.close()


def test_retention_by_age_of_a_stream_at_rest(node: Broker, tmp_path: Path) -> None:
    declare(node, **{"x-max-age": "3s"})
    for first in range(0, 600, 300):
        publish(node, first, 300, tmp_path)
    until(lambda: offsets(node)["first"] > 0)
    told = offsets(node)
    assert told["next"] == 600, "the newest file stays"
    until(lambda: len(files(tmp_path)) == 1)


def test_a_deleted_stream_takes_its_files_along(node: Broker, tmp_path: Path) -> None:
    declare(node)
    publish(node, 0, 300)
    until(lambda: files(tmp_path))
    connection, channel = connected(node)
    channel.queue_delete("s")
    until(lambda: not files(tmp_path))
    declare(node)
    publish(node, 7, 1)
    assert read(node) == {0: 7}
    connection.close()


def test_a_moment_is_found_in_files_and_behind_them(node: Broker, tmp_path: Path) -> None:
    declare(node)
    moments = []
    for number in range(3):
        publish(node, number * 300, 300, tmp_path)
        moments.append(int(time.time() * 1000) + 1)
        until(lambda: time.time() * 1000 > moments[-1])
    until(lambda: len(files(tmp_path)) > 1)
    publish(node, 900, 1)
    assert [offsets(node, timestamp_ms=moment)["at"] for moment in moments] == [300, 600, 900]
    assert offsets(node, timestamp_ms=1)["at"] == 0
