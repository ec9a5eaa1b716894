"""What operators see of streams and leases at a node with its management API, and how they end a lease."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from typer.testing import CliRunner, Result

from clusterbroker import Broker
from clusterbroker.broker.cli.main import app


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "data", http=True) as broker:
        yield broker


@pytest.fixture
def command(node: Broker, tmp_path: Path) -> Callable[..., Result]:
    def run(*words: str) -> Result:
        return CliRunner(env={"COLUMNS": "200"}).invoke(app, [*words, "--data-dir", str(tmp_path / "data")])

    return run


def until(look: Callable[[], Any]) -> Any:
    """What it finds, as soon as that is something: rows come to the API every second."""
    end_s = time.monotonic() + 60
    while not (found := look()):
        assert time.monotonic() < end_s, "waited too long"
        time.sleep(0.05)
    return found


@pytest.mark.long
def test_a_lease_is_listed_and_ended(node: Broker, command: Callable[..., Result], tmp_path: Path) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(node.url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True)
    for _ in range(3):
        channel.basic_publish("", "q", b"x")
    assert command("leases", "list", "--json").stdout.strip() == "[]"
    take = json.dumps({"queue": "q", "name": "nightly", "run": "r1", "rows_max": 2})
    assert "published, and confirmed" in command("exchanges", "publish", "amq.lease", take, "-k", "take").stdout
    (row,) = until(lambda: json.loads(command("leases", "list", "--json").stdout))
    assert (row["queue"], row["lease"]["name"], row["lease"]["rows"]) == ("q", "nightly", 2)
    shown = command("leases", "list", "--vhost", "/").stdout.splitlines()
    assert [line.split()[:4] for line in shown] == [["vhost", "queue", "lease", "run"], ["/", "q", "nightly", "r1"]]
    refused = command("leases", "end", "q", "--name", "weekly")
    assert (refused.exit_code, refused.stderr.count("queue 'q' in vhost '/' is leased by 'nightly'")) == (4, 1)
    ended = command("leases", "end", "q", "--name", "nightly")
    assert (ended.exit_code, ended.stdout) == (0, "nobody leases queue 'q'\n"), ended.stderr
    assert command("leases", "end", "q").exit_code == 0, "it may be said again"
    assert channel.basic_get("q", auto_ack=True)[2] == b"x", "others get what was leased"
    until(lambda: command("leases", "list", "--json").stdout.strip() == "[]")
    connection.close()


@pytest.mark.long
def test_a_stream_tells_where_it_begins_and_ends(node: Broker, command: Callable[..., Result]) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(node.url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
    for number in range(20):
        channel.basic_publish("", "s", b"%d" % number)

    def stream() -> Any:
        told = json.loads(command("queues", "show", "s", "--json").stdout).get("stream", {})
        return told if told.get("files") else None

    told = until(stream)
    assert (told["first_offset"], told["next_offset"], told["files"]) == (0, 20, 1)
    assert told["file_bytes"] > 20 * 56
    assert told["oldest"].startswith("2")
    shown = command("queues", "list", "--columns", "name,first_offset,next_offset,file_bytes").stdout
    assert shown.splitlines()[1].split()[:3] == ["s", "0", "20"]
    connection.close()
