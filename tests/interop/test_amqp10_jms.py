"""Qpid JMS, a client of AMQP 1.0 for Java: programs in jms/ with their own assertions.

Client.java has queues, Topics.java subscriptions and temporary destinations. Not asked for: transacted sessions.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.node import NodeProcess

from .amqp10_queues import Queues
from .toolchains import CACHE, HERE, built, called, require, tool

COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"


def programs() -> Path:
    """Where the compiled programs are."""
    maven, javac = tool("mvn"), tool("javac")

    def build(place: Path) -> None:
        fetch = [maven, "-q", "-B", COPY, "-DoutputDirectory=lib", f"-Dmaven.repo.local={CACHE / 'maven'}"]
        require(called(fetch, place, 240), "Maven cannot fetch qpid-jms-client")
        code, said = called([javac, "-cp", "lib/*", "-d", ".", "Client.java", "Topics.java"], place, 110)
        assert code == 0, said

    return built("jms", (HERE / "jms").iterdir(), build)


def java(name: str) -> list[str]:
    return [tool("java"), "-XX:TieredStopAtLevel=1", "-cp", "lib/*:.", name]


@pytest.mark.long
def test_qpid_jms(node: NodeProcess, queues: Queues) -> None:
    queues.exercise(java("Client"), programs(), node.url)


@pytest.mark.long
def test_qpid_jms_topics(node: NodeProcess) -> None:
    code, said = called(java("Topics"), programs(), 100, AMQP_URL=node.url)
    assert code == 0, said
    print(said)
