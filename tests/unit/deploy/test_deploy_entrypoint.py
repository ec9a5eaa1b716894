"""The image's entry point: the variables of RabbitMQ's image make a node's first user and vhost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pika
import pytest

from clusterbroker.broker.version import VERSION
from tests.support.processes import ROOT

ENTRYPOINT = ROOT / "deploy" / "container" / "entrypoint"


def variables(tmp_path: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CLUSTERBROKER_")}
    path = f"{Path(sys.executable).parent}:{kept.get('PATH', '')}"
    return {**kept, "PATH": path, "CLUSTERBROKER_DATA_DIR": str(tmp_path / "data"), **more}


@contextmanager
def node(environment: dict[str, str]) -> Iterator[int]:
    """The port of a node that the entry point has become; it ends by SIGTERM, with 0."""
    words = [str(ENTRYPOINT), "start", "--amqp", "127.0.0.1:0"]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as run:
        assert run.stdout is not None
        port = 0
        try:
            for line in run.stdout:
                if line.startswith("amqp "):
                    port = int(line.rpartition(":")[2])
                if line == "ready\n":
                    break
            assert port, "the node became ready"
            yield port
        finally:
            run.send_signal(signal.SIGTERM)
            assert run.wait(60) == 0


def signs_in(port: int, user: str, password: str, vhost: str) -> bool:
    credentials = pika.PlainCredentials(user, password)
    try:
        pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, vhost, credentials)).close()
    except (pika.exceptions.AMQPConnectionError, pika.exceptions.ConnectionClosedByBroker):
        return False
    return True


@pytest.mark.processes
def test_names_of_rabbitmqs_image_are_read(tmp_path: Path) -> None:
    named = {"RABBITMQ_DEFAULT_USER": "app", "RABBITMQ_DEFAULT_PASS": "a $secret '\"", "RABBITMQ_DEFAULT_VHOST": "a/b"}
    with node(variables(tmp_path, **named)) as port:
        assert signs_in(port, "app", "a $secret '\"", "a/b")
        assert not signs_in(port, "app", "a $secret '\"", "/")
        assert not signs_in(port, "guest", "guest", "/")


@pytest.mark.processes
def test_our_names_come_first_and_a_file_has_the_password(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("of the file\n")
    secret.chmod(0o600)
    environment = variables(
        tmp_path,
        RABBITMQ_DEFAULT_USER="theirs",
        CLUSTERBROKER_DEFAULT_USER="ours",
        RABBITMQ_DEFAULT_PASS_FILE=str(secret),
    )
    with node(environment) as port:
        assert signs_in(port, "ours", "of the file", "/")
        assert not signs_in(port, "theirs", "of the file", "/")


def test_its_words_are_those_of_the_command(tmp_path: Path) -> None:
    said = subprocess.run(
        [str(ENTRYPOINT), "version"], env=variables(tmp_path), capture_output=True, text=True, check=True
    ).stdout
    assert said.strip() == VERSION
