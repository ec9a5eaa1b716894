"""Clients of AMQP 1.0: programs with their own assertions, in proton/, rhea/ and goamqp/; Java's: test_amqp10_jms."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.faults.node import NodeProcess

from .amqp10_queues import Queues
from .toolchains import HERE, built, called, go_program, node_modules, require, tool

PROTON = "0.40.0"


def test_python_qpid_proton(node: NodeProcess, queues: Queues) -> None:
    def build(place: Path) -> None:
        tool("cc")
        require(called([sys.executable, "-m", "venv", "venv"], place), "venv makes no environment")
        pip = [str(place / "venv/bin/python"), "-m", "pip", "install", "-q", f"python-qpid-proton=={PROTON}"]
        require(called(pip, place, 240), "pip cannot build python-qpid-proton")

    place = built(f"proton-{PROTON}-python-{sys.version_info[0]}.{sys.version_info[1]}", (), build)
    queues.exercise([str(place / "venv/bin/python"), str(HERE / "proton/client.py")], place, node.url)


def test_node_rhea(node: NodeProcess, queues: Queues) -> None:
    place = node_modules("rhea", "rhea")
    command = [tool("node"), str(HERE / "rhea/client.mjs")]
    queues.exercise(command, place, node.url, INTEROP_MODULES=str(place))


def test_go_amqp(node: NodeProcess, queues: Queues) -> None:
    program = go_program("goamqp", "go-amqp")
    queues.exercise([str(program)], program.parent, node.url)
