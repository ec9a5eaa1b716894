"""`rabbitmqadmin` from RabbitMQ's distribution package, as it is, with all its subcommands.

Lists and definitions over a replica of a known set-up; all else against a node with its management process.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
import uvicorn

from clusterbroker import Broker
from clusterbroker.broker.http.app import create_app
from clusterbroker.cluster.passwords import COST_CHEAP
from tests.unit.broker.http.clients import OperationsAtOnce
from tests.unit.broker.management.set_up import NOW_MS, Place, recorded_place

PROGRAM = shutil.which("rabbitmqadmin")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="rabbitmqadmin is not installed")


class Served:
    """The application on a loopback port, in a thread with its own loop."""

    def __init__(self) -> None:
        self.place: Place = recorded_place()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        app = create_app(
            self.place.replica, OperationsAtOnce(self.place, True), now_ms=lambda: NOW_MS, password_cost=COST_CHEAP
        )
        self._server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
        self._thread = threading.Thread(target=lambda: asyncio.run(self._server.serve(sockets=[self._socket])))

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._server.should_exit = True
        self._thread.join()

    def admin(self, *words: str) -> str:
        return admin(self.port, *words)


def admin(port: int, *words: str) -> str:
    """What it says when it is content."""
    assert PROGRAM is not None
    argv = [PROGRAM, "-H", "127.0.0.1", "-P", str(port), *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    server = Served()
    server.start()
    yield server
    server.end()


@pytest.mark.parametrize(
    ("what", "shown"),
    [
        ("users", "guest"),
        ("vhosts", "a/b"),
        ("connections", "127.0.0.1:56222 -> 127.0.0.1:5672"),
        ("exchanges", "amq.topic"),
        ("bindings", "order.#"),
        ("permissions", "guest"),
        ("channels", "(1)"),
        ("parameters", "vhost-limits"),
        ("consumers", "slow"),
        ("queues", "plain/slash"),
        ("policies", "limits"),
        ("operator_policies", "most"),
        ("vhost_limits", "max-queues"),
        ("nodes", "n1"),
    ],
)
def test_lists(served: Served, what: str, shown: str) -> None:
    assert shown in served.admin("list", what)
    assert json.loads(served.admin("-f", "raw_json", "list", what))


def test_columns_sorted(served: Served) -> None:
    lines = served.admin("-f", "tsv", "-S", "messages", "-R", "list", "queues", "name", "messages").splitlines()
    assert [line.split("\t") for line in lines[-5:]][:2] == [["busy", "5"], ["limited", "4"]]


def test_of_one_vhost(served: Served) -> None:
    assert "there" in (text := served.admin("-V", "a/b", "list", "queues"))
    assert "busy" not in text


def test_the_overview(served: Served) -> None:
    assert "clusterbroker@n1" in served.admin("show", "overview")
    assert "publish_details.rate" in served.admin("-d", "4", "-f", "long", "show", "overview")


def test_definitions_out_and_in(served: Served, tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    served.admin("export", str(file))
    assert "limited" in file.read_text()
    served.admin("import", str(file))
    again = tmp_path / "again.json"
    served.admin("export", str(again))
    assert again.read_text() == file.read_text()


@pytest.mark.parametrize(
    ("what", "words", "delete"),
    [
        ("vhost", ["name=v/1"], ["name=v/1"]),
        ("user", ["name=u", "password=secret-pass", "tags=monitoring,management"], ["name=u"]),
        ("user", ["name=u", "password_hash=", "tags="], ["name=u"]),
        ("permission", ["vhost=a/b", "user=man", "configure=^$", "write=.*", "read=.*"], ["vhost=a/b", "user=man"]),
        ("policy", ["name=p", "pattern=^p", 'definition={"max-length":5}', "apply-to=queues"], ["name=p"]),
        ("operator_policy", ["name=o", "pattern=^p", 'definition={"max-length":5}'], ["name=o"]),
        ("parameter", ["component=mine", "name=x", 'value={"a":1}'], ["component=mine", "name=x"]),
        ("vhost_limit", ["vhost=/", "name=max-connections", "value=7"], ["vhost=/", "name=max-connections"]),
    ],
)
def test_what_is_declared_is_there_and_what_is_deleted_is_not(
    served: Served, what: str, words: list[str], delete: list[str]
) -> None:
    plural = {"policy": "policies", "operator_policy": "operator_policies"}.get(what, f"{what}s")
    before = served.admin("list", plural)
    assert f"{what} declared" in served.admin("declare", what, *words)
    assert served.admin("list", plural) != before
    assert f"{what} deleted" in served.admin("delete", what, *delete)
    assert served.admin("list", plural) == before


# -- against a node -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(http=True) as running:
        yield running


def test_a_life_of_a_queue_and_its_messages(broker: Broker, tmp_path: Path) -> None:
    def run(*words: str) -> str:
        return admin(broker.http_port, *words)

    assert "vhost declared" in run("declare", "vhost", "name=v/1")
    everything = ["configure=.*", "write=.*", "read=.*"]
    assert "permission declared" in run("declare", "permission", "vhost=v/1", "user=guest", *everything)
    v = ("-V", "v/1")
    assert "exchange declared" in run(*v, "declare", "exchange", "name=x/1", "type=topic")
    assert "queue declared" in run(*v, "declare", "queue", "name=q/1", 'arguments={"x-max-length": 10}')
    assert "queue declared" in run(*v, "declare", "queue", "name=q2", "queue_type=quorum", "durable=true")
    binding = ["source=x/1", "destination=q/1", "destination_type=queue"]
    assert "binding declared" in run(*v, "declare", "binding", *binding, "routing_key=k.#")
    assert "binding declared" in run(
        *v, "declare", "binding", "source=x/1", "destination=amq.fanout", "destination_type=exchange", "routing_key=all"
    )
    assert "k.#" in run(*v, "list", "bindings")
    assert "Message published\n" in run(*v, "publish", "exchange=x/1", "routing_key=k.1", "payload=hello, ä")
    assert "NOT routed" in run(*v, "publish", "exchange=x/1", "routing_key=other", "payload=lost")
    properties = 'properties={"delivery_mode": 2, "headers": {"a": 1}}'
    assert "Message published\n" in run(*v, "publish", "routing_key=q/1", "payload=second", properties)
    got = run(*v, "get", "queue=q/1", "count=5")
    assert "hello, ä" in got
    assert "second" in got
    file = tmp_path / "payload"
    run(*v, "get", "queue=q/1", "ackmode=ack_requeue_false", f"payload_file={file}")
    assert file.read_text() == "hello, ä"
    assert "queue purged" in run(*v, "purge", "queue", "name=q/1")
    assert "No items" in run(*v, "get", "queue=q/1")
    assert "binding deleted" in run(*v, "delete", "binding", *binding, "properties_key=k.%23")
    assert "k.#" not in run(*v, "list", "bindings")
    assert "queue deleted" in run(*v, "delete", "queue", "name=q/1")
    assert "exchange deleted" in run(*v, "delete", "exchange", "name=x/1")
    assert "permission deleted" in run("delete", "permission", "vhost=v/1", "user=guest")
    assert "vhost deleted" in run("delete", "vhost", "name=v/1")


def test_definitions_of_a_node(broker: Broker, tmp_path: Path) -> None:
    port = broker.http_port
    admin(port, "declare", "queue", "name=kept")
    admin(port, "declare", "policy", "name=p", "pattern=^kept", 'definition={"max-length":7}')
    file = tmp_path / "definitions.json"
    admin(port, "export", str(file))
    admin(port, "delete", "queue", "name=kept")
    admin(port, "delete", "policy", "name=p")
    admin(port, "import", str(file))
    assert "kept" in admin(port, "list", "queues", "name")
    assert "max-length" in admin(port, "list", "policies")
    admin(port, "delete", "queue", "name=kept")


def test_a_connection_is_closed(broker: Broker) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        deadline = pika.compat.time_now() + 20
        name = ""
        while not name and pika.compat.time_now() < deadline:
            names = json.loads(admin(broker.http_port, "-f", "raw_json", "list", "connections", "name"))
            name = next((entry["name"] for entry in names), "")
        assert "connection closed" in admin(broker.http_port, "close", "connection", f"name={name}")
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
            while True:
                connection.process_data_events(0.2)


def test_what_is_refused_is_said(broker: Broker) -> None:
    assert PROGRAM is not None
    for words, said in (
        (["declare", "queue", "name=amq.mine"], "Access refused"),
        (["delete", "queue", "name=none"], "Not found"),
        (["declare", "exchange", "name=x", "type=none"], "exchange type 'none'"),
        (["-u", "guest", "-p", "wrong", "list", "queues"], "Access refused"),
    ):
        argv = [PROGRAM, "-H", "127.0.0.1", "-P", str(broker.http_port), *words]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
        assert done.returncode != 0
        assert said in done.stderr + done.stdout, (words, done.stdout, done.stderr)
