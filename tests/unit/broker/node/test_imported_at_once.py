"""One command of the wiring that makes many things: a node hears of them one after the other, while its map has all."""

from __future__ import annotations

from itertools import permutations

import pytest

from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import Content, World

TOPIC = c.DeclareExchange(vhost="/", name="trades", type="topic", durable=True)
QUEUE = c.DeclareQueue(vhost="/", name="rest", durable=True)
REST = c.Bind(vhost="/", source="amq.fanout", destination="rest", destination_kind="queue", routing_key="")
POLICIES = (
    c.PutPolicy(vhost="/", name="p", pattern="^trades$", definition={"alternate-exchange": "amq.fanout"}),
    c.PutPolicy(vhost="/", name="q", pattern="^rest$", definition={"max-length": 1}),
)
ORDERS = [(*commands, REST) for commands in permutations((TOPIC, QUEUE, *POLICIES))]


@pytest.mark.parametrize("commands", ORDERS, ids=lambda order: "-".join(command.name for command in order[:-1]))
def test_a_policy_holds_for_what_its_own_command_makes_before_or_after_it(commands: tuple[c.Defining, ...]) -> None:
    world = World()
    done = world.command(c.ImportDefinitions(import_id="i", number=0, commands=commands, apply=len(commands)))
    assert done.ok
    assert done.result is True
    alice = world.client()
    for body in (b"1", b"2"):  # no binding of the exchange takes them, so its alternate exchange does
        alice.publish("trades", "none", body)
    got = alice.ask(m.BasicGet(queue="rest", no_ack=True))
    assert isinstance(got, Content)
    assert got.body == b"2", "the queue keeps one"
    assert isinstance(alice.ask(m.BasicGet(queue="rest", no_ack=True)), m.BasicGetEmpty)
