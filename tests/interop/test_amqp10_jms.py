"""Qpid JMS, a client of AMQP 1.0 for Java: programs in jms/ with their own assertions.

Client.java has queues, Topics.java subscriptions and temporary destinations. Not asked for: transacted sessions.
"""

from __future__ import annotations

import pytest

from tests.faults.node import NodeProcess

from .amqp10_queues import Queues
from .toolchains import called, java_program


@pytest.mark.long
def test_qpid_jms(node: NodeProcess, queues: Queues) -> None:
    queues.exercise(*java_program("jms", "qpid-jms-client", "Client"), node.url)


@pytest.mark.long
def test_qpid_jms_topics(node: NodeProcess) -> None:
    command, place = java_program("jms", "qpid-jms-client", "Topics")
    code, said = called(command, place, 100, AMQP_URL=node.url)
    assert code == 0, said
    print(said)
