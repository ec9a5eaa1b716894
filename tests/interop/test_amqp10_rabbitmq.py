"""RabbitMQ's own client of AMQP 1.0 for Java, which refuses what says to be older than RabbitMQ 4.0."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.node import NodeProcess

from .toolchains import called, java_program

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
def test_it_refuses_a_node_that_says_what_it_is(own_node: NodeProcess) -> None:
    command, place = java_program("rabbitmq", LIBRARY, "Client")
    code, said = called(command, place, 100, AMQP_URL=own_node.url + "%2F")
    assert code != 0
    assert "requires RabbitMQ 4.0 or more" in said, said
