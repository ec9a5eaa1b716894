"""Questions that clients do not wait for: each is answered within the turn, and a turn answers so many of them at most.

Twenty clients with 12,000 gets, passive declarations or commits each held the loop for eight seconds; after three a
member is taken for dead.
"""

from __future__ import annotations

import pytest

from broker.amqp import methods as m
from broker.amqp.layout import Method
from broker.node.core import Node
from broker.session.dividing import STEPS_AT_ONCE, WAITED_STEPS
from tests.unit.broker.session.harness import World

CLIENTS = 5
QUESTIONS = 1_000
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
