"""Qpid JMS, a client of AMQP 1.0 for Java: jms/Client.java with its own assertions.

Not asked for, since the broker has them not yet: topics, subscriptions, temporary queues, transacted sessions.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.node import NodeProcess

from .amqp10_queues import Queues
from .toolchains import CACHE, HERE, built, called, require, tool

COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"


@pytest.mark.long
def test_qpid_jms(node: NodeProcess, queues: Queues) -> None:
    maven, javac, java = tool("mvn"), tool("javac"), tool("java")

    def build(place: Path) -> None:
        fetch = [maven, "-q", "-B", COPY, "-DoutputDirectory=lib", f"-Dmaven.repo.local={CACHE / 'maven'}"]
        require(called(fetch, place, 240), "Maven cannot fetch qpid-jms-client")
        code, said = called([javac, "-cp", "lib/*", "-d", ".", "Client.java"], place, 110)
        assert code == 0, said

    place = built("jms", (HERE / "jms").iterdir(), build)
    queues.exercise([java, "-XX:TieredStopAtLevel=1", "-cp", "lib/*:.", "Client"], place, node.url)
