"""The last stage of the Containerfile, built by a podman and run: a node that reads RabbitMQ's variables, keeps its
messages over a restart, and ends in order.
"""

from __future__ import annotations

import io
import json
import socket as sockets
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import pytest

from tests.support.daemons import Missing, podman, request
from tests.support.images import BASE, base_image, context

IMAGE = "localhost/clusterbroker:tested"
PATIENCE_S = 120.0

pytestmark = [pytest.mark.long, pytest.mark.processes, pytest.mark.interop]


def until(met: Callable[[], Any], what: str) -> Any:
    """What `met` answers when it is something."""
    end_s = time.monotonic() + PATIENCE_S
    while not (found := met()):
        assert time.monotonic() < end_s, what
        time.sleep(0.05)
    return found


def packed(directory: Path) -> bytes:
    """The context of the build, as the API takes it."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        tar.add(directory, ".")
    return made.getvalue()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of a podman that has built the image."""
    directory = tmp_path_factory.mktemp("podman")
    try:
        base = base_image()
        daemon, address = podman(directory)
    except Missing as missing:
        pytest.skip(str(missing))
    try:
        socket = Path(address.removeprefix("unix://"))
        name, _, tag = BASE.rpartition(":")
        where = f"/v1.40/images/create?fromSrc=-&repo={quote(name, safe='')}&tag={tag}"
        told = request(socket, "POST", where, base.read_bytes(), timeout_s=600)
        tagged = f"/v1.40/images/{told.get('id') or told['status']}/tag?repo={quote(name, safe='')}&tag={tag}"
        request(socket, "POST", tagged)
        made = packed(context(tmp_path_factory.mktemp("image")))
        where = f"/v1.40/build?dockerfile=Containerfile&t={quote(IMAGE, safe='')}&pull=0&layers=0&forcerm=1"
        told = request(socket, "POST", where, made, timeout_s=900)
        assert "error" not in told, told
        yield socket
    finally:
        daemon.end()


def free_port() -> int:
    with sockets.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


class Container:
    """A node in a container of the image, in the network of this machine."""

    def __init__(self, engine: Path, **environment: str) -> None:
        self.engine, self.port, self.http = engine, free_port(), free_port()
        listens = {"CLUSTERBROKER_AMQP": f"127.0.0.1:{self.port}", "CLUSTERBROKER_HTTP": f"127.0.0.1:{self.http}"}
        said = listens | environment
        body = {
            "Image": IMAGE, "Env": [f"{name}={value}" for name, value in said.items()],
            "HostConfig": {"NetworkMode": "host"},
        }  # fmt: skip
        self.id = str(self.ask("POST", "/containers/create", body)["Id"])
        self.start()

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        sent = b"" if body is None else json.dumps(body).encode()
        return request(self.engine, method, f"/v1.40{path}", sent, "application/json", PATIENCE_S)

    def start(self) -> None:
        self.ask("POST", f"/containers/{self.id}/start")

    def stop(self) -> int:
        """Its exit code."""
        self.ask("POST", f"/containers/{self.id}/stop?t=60")
        return int(self.ask("GET", f"/containers/{self.id}/json")["State"]["ExitCode"])

    def run(self, *words: str) -> tuple[int, str]:
        """Exit code and output of a command inside it, of `docker exec`."""
        made = self.ask("POST", f"/containers/{self.id}/exec", {"Cmd": words, "AttachStdout": True, "Tty": True})
        said = str(self.ask("POST", f"/exec/{made['Id']}/start", {"Detach": False, "Tty": True}))
        return int(self.ask("GET", f"/exec/{made['Id']}/json")["ExitCode"]), said

    def connection(self, user: str, vhost: str) -> pika.BlockingConnection:
        """When it serves."""
        url = pika.URLParameters(f"amqp://{user}@127.0.0.1:{self.port}/{quote(vhost, safe='')}")

        def opened() -> pika.BlockingConnection | None:
            try:
                return pika.BlockingConnection(url)
            except (pika.exceptions.AMQPConnectionError, OSError):
                running = self.ask("GET", f"/containers/{self.id}/json")["State"]["Running"]
                assert running, request(self.engine, "GET", f"/v1.40/containers/{self.id}/logs?stdout=1&stderr=1")
                return None

        connection = until(opened, "the node serves clients")
        assert isinstance(connection, pika.BlockingConnection)
        return connection

    def remove(self) -> None:
        self.ask("DELETE", f"/containers/{self.id}?force=1&v=1")


@pytest.fixture
def node(engine: Path) -> Iterator[Container]:
    made = Container(
        engine, RABBITMQ_DEFAULT_USER="bob", RABBITMQ_DEFAULT_PASS="s3cret", RABBITMQ_DEFAULT_VHOST="shop"
    )  # fmt: skip
    try:
        yield made
    finally:
        made.remove()


def test_it_is_a_broker_by_rabbitmqs_variables_and_lasts(node: Container) -> None:
    with node.connection("bob:s3cret", "shop") as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("kept", durable=True)
        channel.basic_publish("", "kept", b"1", pika.BasicProperties(delivery_mode=2), mandatory=True)
    assert node.stop() == 0, "it ends by itself, and in order"
    node.start()
    with node.connection("bob:s3cret", "shop") as connection:
        assert connection.channel().basic_get("kept", auto_ack=True)[2] == b"1"


def test_commands_inside_it_reach_its_node(node: Container) -> None:
    """`docker exec NAME clusterbroker ...`, and the image's check of its health."""
    assert node.run("clusterbroker", "health", "--wait", "60") == (0, "serves clients\r\n")
    code, said = node.run("clusterbroker", "users", "list")
    assert (code, "bob" in said) == (0, True), said
    node.ask("POST", f"/containers/{node.id}/kill?signal=STOP")
    code, said = node.run("clusterbroker", "health", "--timeout", "1")
    assert code != 0, said
    node.ask("POST", f"/containers/{node.id}/kill?signal=CONT")
