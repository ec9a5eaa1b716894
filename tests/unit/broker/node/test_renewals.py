"""A change of policies reaches many queues and exchanges in slices; each has in the end what the map says."""

from __future__ import annotations

from typing import Any

from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.ids import Incarnation, NodeId
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import Content, World, bodies
from tests.unit.broker.node.node_cluster import Cluster


def policy(name: str, pattern: str, priority: int = 0, **definition: Any) -> c.PutPolicy:
    named = {key.replace("_", "-"): value for key, value in definition.items()}
    return c.PutPolicy(vhost="/", name=name, pattern=pattern, definition=named, priority=priority)


def limits(world: World) -> list[int | None]:
    return [face.settings.max_length for face in world.node.vhosts["/"].queues.values()]


def test_few_queues_look_with_the_command() -> None:
    world = World()
    world.client().declare("q")
    world.wiring.propose(policy("p", "", max_length=3))
    assert limits(world) == [3]
    assert not world.node.postponed.renewals


def test_of_many_some_look_in_each_turn() -> None:
    world = World()
    client = world.client()
    renewals = world.node.postponed.renewals
    renewals.at_once, renewals.slice = 0, 2
    for number in range(9):
        client.declare(f"q{number}")
    world.turn()
    world.wiring.propose(policy("p", "", max_length=3))
    assert limits(world) == [None] * 9
    assert not world.node.at_rest
    assert world.node.busy
    world.node.turn(world.now_ms)
    assert limits(world) == [3] * 2 + [None] * 7
    # others come and go meanwhile, and who was to look is not put off by the next policy
    world.wiring.propose(c.DeclareQueue(vhost="/", name="new", durable=True))
    gone = world.node.map.queue("/", "q8")
    assert gone is not None
    world.wiring.propose(c.DeleteQueue(vhost="/", name="q8", queue_id=gone.queue_id))
    world.wiring.propose(policy("q", "", 1, max_length=7))
    world.node.turn(world.now_ms)
    assert limits(world) == [3, 3, 7, 7, None, None, None, None, 3]
    world.turn()
    assert limits(world) == [7] * 9
    assert not renewals
    assert world.node.at_rest


def test_a_vhost_that_ends_meanwhile() -> None:
    world = World()
    renewals = world.node.postponed.renewals
    renewals.at_once, renewals.slice = 0, 1
    world.command(c.AddVhost(name="v"))
    world.command(c.DeclareQueue(vhost="v", name="q", durable=True))
    world.wiring.propose(c.PutPolicy(vhost="v", name="p", pattern="", definition={"max-length": 1}))
    world.wiring.propose(c.DeleteVhost(name="v"))
    world.turn()
    assert not renewals


def test_exchanges_hear_of_their_alternate() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    client.say(m.ExchangeDeclare(exchange="main", type="fanout"))
    renewals = world.node.postponed.renewals
    renewals.at_once, renewals.slice = 0, 1
    world.command(policy("p", "^main$", alternate_exchange="amq.fanout"))
    client.say(m.QueueBind(queue="q", exchange="amq.fanout"))
    client.publish("main", "k", b"lost elsewhere")
    got = client.ask(m.BasicGet(queue="q", no_ack=True))
    assert isinstance(got, Content)
    assert got.body == b"lost elsewhere"


def test_a_queue_is_taken_over_between_a_policy_and_its_look() -> None:
    """What is owed of it is carried out first, and then it has the minimum that holds."""
    cluster = Cluster("a", "b", "c")
    client = cluster["a"].client()
    for number in range(6):
        client.declare(f"q{number}")
        client.publish("", f"q{number}", b"before")
    cluster.wait(500)
    for site in cluster.running:
        assert site.node.role is not None
        site.node.role.arrears.at_once, site.node.role.arrears.slice = 0, 1
        renewals = site.node.postponed.renewals
        renewals.at_once, renewals.slice = 0, 1
    dead = cluster["c"]
    incarnation = Incarnation(dead.incarnation)
    dead.crash()
    for other in ("a", "b"):
        cluster.unlink("c", other)
    cluster.order(c.FailNode(node=NodeId("c"), incarnation=incarnation))
    cluster.order(policy("p", "", max_length=3, min_in_sync=1))
    cluster.wait(1000)
    for site in cluster.running:
        assert not site.node.postponed.renewals
        for face in site.node.vhosts["/"].queues.values():
            assert face.settings.max_length == 3
        for queue in site.node.queues.values():
            assert queue.settings.max_length == 3
            assert queue.entity == site.map.queue("/", queue.name)
    for number in range(6):
        client.publish("", f"q{number}", b"after")
        assert bodies(cluster["b"].client().consume(f"q{number}")) == [b"before", b"after"]
