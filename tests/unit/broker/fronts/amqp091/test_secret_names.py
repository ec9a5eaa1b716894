"""Names whose knowledge is a right: reply keys and queues that the broker names. Nothing that a client is told helps to
compute another one."""

from __future__ import annotations

import re
from dataclasses import replace

from clusterbroker.broker.node.core import Node
from clusterbroker.broker.node.options import NodeOptions
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.wiring.map import ClusterMap
from tests.unit.broker.fronts.amqp091.harness import Client, World

SECRET = re.compile(r"(.+)-1-([0-9a-f]{32})", re.ASCII)
"""Node, start, 128 bits."""


def key_of(client: Client) -> str:
    """The reply key of the client's channel, as it stands in its requests."""
    client.say(m.BasicConsume(queue="amq.rabbitmq.reply-to", no_ack=True))
    client.publish("", "requests", b"?", reply_to="amq.rabbitmq.reply-to")
    key: str = client.ask(m.BasicGet(queue="requests", no_ack=True)).properties.reply_to
    return key


def test_the_secret_part_is_chance_and_the_rest_says_where() -> None:
    world = World(name="n-1")
    client = world.client()
    client.declare("requests")
    keys = [key_of(client), key_of(world.client())]
    names = [client.ask(m.QueueDeclare(exclusive=True)).queue for _ in range(2)]
    secrets = set()
    for name, prefix in [(key, "amq.rabbitmq.reply-to.") for key in keys] + [(name, "amq.gen-") for name in names]:
        found = SECRET.fullmatch(name.removeprefix(prefix))
        assert found is not None, name
        assert found[1] == "n-1", "what routes replies between nodes stays readable"
        secrets.add(found[2])
    assert len(secrets) == 4


def test_chance_comes_from_outside() -> None:
    """A node of the same seed gives the same names: a simulated run can be repeated. The shell gives the system's."""
    asked: list[int] = []

    def entropy(count: int) -> bytes:
        asked.append(count)
        return bytes(range(count))

    options = replace(NodeOptions(), name=str(NodeId("n")), incarnation=255)
    node = Node(options, ClusterMap(), entropy=entropy)
    assert node.secret_name() == "n-ff-000102030405060708090a0b0c0d0e0f"
    assert asked == [16]
