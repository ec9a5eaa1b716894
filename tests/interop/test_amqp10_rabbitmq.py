"""RabbitMQ's own clients of AMQP 1.0 for Java and Python, which refuse what does not say to be RabbitMQ 4 or newer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.node import NodeProcess

from .toolchains import HERE, built, called, java_program, require, tool

PYTHON = "1.0.1"
LIBRARY = "com.rabbitmq.client:amqp-client"


@pytest.fixture
def posing(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node that calls itself RabbitMQ."""
    node = NodeProcess(tmp_path / "node", {"amqp10.product": "RabbitMQ"})
    yield node.start()
    node.kill()
    assert "Traceback" not in node.log, node.log[-4000:]


@pytest.mark.long
def test_rabbitmqs_java_client(posing: NodeProcess) -> None:
    command, place = java_program("rabbitmq", LIBRARY, "Client")
    code, said = called(command, place, 100, AMQP_URL=posing.url + "%2F")
    assert code == 0, said
    print(said)


@pytest.mark.long
def test_rabbitmqs_python_client(posing: NodeProcess) -> None:
    def build(place: Path) -> None:
        tool("cc")
        require(called([sys.executable, "-m", "venv", "venv"], place), "venv makes no environment")
        pip = [str(place / "venv/bin/python"), "-m", "pip", "install", "-q", f"rabbitmq-amqp-python-client=={PYTHON}"]
        require(called(pip, place, 240), "pip cannot install rabbitmq-amqp-python-client")

    place = built(f"rabbitmq-python-{PYTHON}-{sys.version_info[0]}.{sys.version_info[1]}", (), build)
    command = [str(place / "venv/bin/python"), str(HERE / "rabbitmq/client.py")]
    code, said = called(command, place, 100, AMQP_URL=posing.url)
    assert code == 0, said
    assert "8 checks held" in said


@pytest.mark.long
def test_it_refuses_a_node_that_says_what_it_is(own_node: NodeProcess) -> None:
    command, place = java_program("rabbitmq", LIBRARY, "Client")
    code, said = called(command, place, 100, AMQP_URL=own_node.url + "%2F")
    assert code != 0
    assert "requires RabbitMQ 4.0 or more" in said, said
