"""Clients of AMQP 0-9-1 that are not Python: scripts with their own assertions, in node/ and go/."""

from __future__ import annotations

from tests.faults.node import NodeProcess

from .toolchains import HERE, called, go_program, node_modules, tool


def test_node_amqplib(node: NodeProcess) -> None:
    place = node_modules("node", "amqplib")
    script = str(HERE / "node" / "amqplib.mjs")
    code, said = called([tool("node"), script], place, AMQP_URL=node.url, INTEROP_MODULES=str(place))
    assert code == 0, said
    print(said)


def test_go_amqp091(node: NodeProcess) -> None:
    program = go_program("go", "amqp091-go")
    code, said = called([str(program)], program.parent, AMQP_URL=node.url)
    assert code == 0, said
    print(said)
