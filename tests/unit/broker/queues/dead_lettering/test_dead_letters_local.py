"""Dead letters of a queue without copies, some of whose content is on the disk only."""

from __future__ import annotations

from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import Client, World, bodies


def dying(world: World, **arguments: object) -> Client:
    client = world.client()
    client.declare("dead")
    client.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead", **arguments)
    return client


def test_what_is_on_the_disk_only_is_not_overtaken() -> None:
    world = World()
    dying(world, x_max_length=3).publish("", "q", b"1", b"2", b"3")
    world.crash()
    client = world.client()
    world.reads_wait = True
    client.publish("", "q", b"4", b"5", b"6", b"7", b"8")
    world.loads.reverse()  # whatever the order in which they are read
    world.reads_wait = False
    world.turn()
    assert bodies(client.consume("dead")) == [b"1", b"2", b"3", b"4", b"5"]
    world.crash()
    assert bodies(world.client().consume("q")) == [b"6", b"7", b"8"]


def test_what_waits_for_the_disk_is_in_its_queue_after_a_crash() -> None:
    world = World()
    dying(world, x_max_length=3).publish("", "q", b"1", b"2", b"3")
    world.crash()
    world.reads_wait = True
    world.client().publish("", "q", b"4", b"5", b"6", b"7")
    world.reads_wait = False
    world.crash()
    client = world.client()
    world.wait(1000)
    assert bodies(client.consume("dead")) == [b"1", b"2", b"3", b"4"]
    assert bodies(client.consume("q", "other")) == [b"5", b"6", b"7"]


def test_what_a_transaction_rejects_waits_for_no_other() -> None:
    """Its letter stands in the group of the commit, or a crash would find half of the transaction."""
    world = World()
    dying(world).publish("", "q", b"1", b"2")
    world.queue("q").ring.resident_bytes_max = 0  # what is handed out and stands on the disk leaves the memory
    plain, transactional = world.client(), world.client()
    transactional.ask(m.TxSelect())
    for client in (plain, transactional):
        client.ask(m.BasicQos(0, 1, False))
        client.consume("q")
    world.reads_wait = True
    plain.say(m.BasicReject(1, False))
    transactional.say(m.BasicReject(1, False), m.TxCommit())
    (_, _), (load, messages) = world.loads
    world.loads.pop()
    world.node.loaded(load, messages)
    world.turn()
    assert transactional.hear() == [m.TxCommitOk()]
    world.crash()
    world.reads_wait = False
    world.turn()
    assert bodies(world.client().consume("dead")) == [b"2"]
    assert bodies(world.client().consume("q")) == [b"1"]


def test_what_is_too_much_and_waits_holds_back_publishers_until_it_has_died() -> None:
    """In memory or on disk."""
    world = World(unwritten_bytes_max=1 << 20)
    client = world.client()
    client.declare("grave")
    client.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="grave")
    ring = world.queue("q").ring
    for on_disk in (False, True):
        if on_disk:
            ring.resident_bytes_max = 0
        client.publish("", "q", *(b"x" * 1000,) * 100)
        world.node.effort.left = 0
        world.command(c.PutPolicy(vhost="/", name="p", pattern="^q$", definition={"max-length": 0}, apply_to="queues"))
        world.command(c.DeletePolicy(vhost="/", name="p"))
        assert world.node.effort.owed == 0
        assert world.queue("grave").ring.ready == 100 * (1 + on_disk)
    world.node.effort.owed = 2 << 20
    world.turn()
    assert world.node.throttled
    world.node.effort.owed = 0
    world.turn()
    assert not world.node.throttled
