"""Questions that clients do not wait for: each is answered within the turn, and a turn answers so many of them at most.

Twenty clients with 12,000 gets, passive declarations or commits each held the loop for eight seconds; after three a
member is taken for dead.
"""

from __future__ import annotations

import pytest

from clusterbroker.broker.fronts.amqp091.connection import Connection
from clusterbroker.broker.fronts.amqp091.dividing import WAITED_STEPS
from clusterbroker.broker.node.core import Node
from clusterbroker.broker.routing.labour import METHODS_AT_ONCE, STEPS_AT_ONCE
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp091.layout import Method
from tests.unit.broker.fronts.amqp091.harness import World

CLIENTS = 5
QUESTIONS = METHODS_AT_ONCE // CLIENTS - 1
AT_ONCE = STEPS_AT_ONCE // WAITED_STEPS


@pytest.mark.parametrize("question", [m.BasicGet(queue="q", no_ack=True), m.TxCommit()])
def test_a_turn_answers_only_so_many(question: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    asker = world.client()
    asker.declare("q")
    asker.publish("", "q", *[b"x"] * QUESTIONS * CLIENTS)
    clients = [world.client() for _ in range(CLIENTS)]
    if isinstance(question, m.TxCommit):
        for one in clients:
            one.ask(m.TxSelect())
    for one in clients:
        one._out.method(1, m.encode(question))
        one.connection.receive(one._out.take() * QUESTIONS, world.now_ms)
    turn, answers = Node.turn, []

    def waiting() -> int:
        return sum(len(one.connection.channels[1].parked or ()) for one in clients)

    def counted(node: Node, now_ms: int, goes_on: bool = False) -> None:
        before = waiting()
        turn(node, now_ms, goes_on)
        answers.append(before - waiting())

    monkeypatch.setattr(Node, "turn", counted)
    world.turn()
    assert max(answers) <= AT_ONCE + CLIENTS, "a turn is short"
    assert sum(answers) == (QUESTIONS - 1) * CLIENTS
    assert [len(one.hear()) for one in clients] == [QUESTIONS] * CLIENTS


def test_what_all_clients_say_between_two_turns_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty reads of 200 ms each came between two turns: a client need not even wait for an answer."""
    world = World()
    clients = [world.client() for _ in range(CLIENTS)]
    world.turn()
    handle, turn, handled = Connection.handle, Node.turn, [0]

    def counted(connection: Connection, event: object) -> None:
        handled[-1] += 1
        handle(connection, event)

    def turned(node: Node, now_ms: int, goes_on: bool = False) -> None:
        handled.append(0)
        turn(node, now_ms, goes_on)

    monkeypatch.setattr(Connection, "handle", counted)
    monkeypatch.setattr(Node, "turn", turned)
    for one in clients:
        one._out.method(1, m.encode(m.BasicQos()))
        one.connection.receive(one._out.take() * METHODS_AT_ONCE, world.now_ms)
    world.turn()
    assert max(handled) <= METHODS_AT_ONCE + 2 * CLIENTS
    assert [len(one.hear()) for one in clients] == [METHODS_AT_ONCE] * CLIENTS
