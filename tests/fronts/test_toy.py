"""A second protocol beside 0-9-1 on the same queues: in one node, a cluster, behind a listener, in the simulation.

Nothing below `broker/fronts/` knows of it.
"""

from __future__ import annotations

import asyncio

import pytest

from clusterbroker.broker.management import reads
from clusterbroker.broker.server import counting
from clusterbroker.broker.server.log import NodeLog
from clusterbroker.broker.server.shell import NodeShell
from clusterbroker.broker.stats.rows import ConnectionRow
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.entities import UserLimits
from tests.fronts.toy import Toy
from tests.fronts.toy_actors import settle
from tests.fronts.toy_client import FRONTS, ToyClient
from tests.simulation.run import run
from tests.unit.broker.fronts.amqp091.harness import HEADER, World, bodies
from tests.unit.broker.management.set_up import Place, everything, user
from tests.unit.broker.node.node_cluster import Cluster
from tests.unit.broker.server.server_support import Lines, options, until


def test_both_protocols_meet_in_a_queue() -> None:
    world = World()
    rabbit, toy = world.client(), ToyClient(world).enter()
    rabbit.declare("q")
    assert toy.say("PUB 1 q from toy", "PUB 2 nowhere lost") == ["NO 2", "OK 1"]
    assert bodies(rabbit.consume("q")) == [b"from toy"]
    rabbit.say(m.BasicAck(1), m.BasicCancel("ctag"))
    assert toy.say("SUB q 1") == ["ON q"]
    rabbit.publish("", "q", b"one")
    rabbit.publish("", "q", b"two")
    assert toy.say() == ["MSG 1 0 one"], "its limit is 1"
    assert toy.say("ACK 1") == ["MSG 2 0 two"]
    toy.leave()
    (got,) = rabbit.consume("q", "again")
    assert (got.body, got.method.redelivered) == (b"two", True)


def test_a_confirm_waits_for_the_disk() -> None:
    world = World()
    world.client().declare("q")
    toy = ToyClient(world).enter()
    world.disk_waits = True
    assert toy.say("PUB 1 q x") == []
    world.commit()
    assert toy.say() == ["OK 1"]


def test_a_publish_is_accepted_rejected_or_released() -> None:
    cluster = Cluster("a", "b", "c")
    rabbit = cluster["a"].client()
    rabbit.declare("q", x_max_length=1, x_overflow="reject-publish")
    owner = cluster.queue("q").owner
    for name in sorted("abc", key=lambda name: name == owner):
        toy = ToyClient(cluster[name]).enter()
        said = toy.say("PUB 1 q a", "PUB 2 q b", "PUB 3 nowhere c") + toy.say()
        assert sorted(said) == ["FULL 2 q", "NO 3", "OK 1"], "the second finds it full"
        assert rabbit.ask(m.QueuePurge(queue="q")).message_count == 1


def test_rights_limits_and_exclusive_owners_hold() -> None:
    world = World()
    rabbit = world.client()
    rabbit.declare("q", x_max_length=1, x_overflow="reject-publish")
    rabbit.ask(m.QueueDeclare(queue="mine", exclusive=True))
    assert ToyClient(world).say("TOY guest wrong /") == ["ERR access_refused login"]
    assert ToyClient(world).enter().say("PUB 1 q a", "PUB 2 q b") == ["FULL 2 q", "OK 1"]
    assert ToyClient(world).enter().say("SUB none 1") == ["ERR not_found no queue 'none' in vhost '/'"]
    assert ToyClient(world).enter().say("SUB mine 1")[0].startswith("ERR resource_locked cannot obtain exclusive")
    reader = ToyClient(world).enter("eve", "eve")
    assert reader.say("SUB q 1") == ["ON q", "MSG 1 0 a"]
    world.command(c.SetPermission(user="eve", vhost="/", configure="", write="", read=""))
    assert reader.say() == ["ERR closed rights changed"]
    assert reader.ended == "flush"
    refused = ToyClient(world).enter("eve", "eve").say("PUB 1 q c")
    assert refused == ["ERR access_refused write access to exchange 'amq.default' in vhost '/' refused for user 'eve'"]


def test_limits_on_coming_in_hold() -> None:
    world = World(loopback_users=("eve",))
    limits = UserLimits(connections_max=1)
    world.command(c.PutUser(name="guest", password_hash="guest", hash_algorithm="scrypt", limits=limits))
    first = ToyClient(world).enter()
    refused = ToyClient(world).say("TOY guest guest /")
    assert refused == ["ERR not_allowed Connection refused for user 'guest': user connection limit (1) is reached"]
    first.leave()
    assert ToyClient(world).enter().core.user == "guest"
    assert ToyClient(world).say("TOY eve eve /none") == ["ERR not_allowed vhost /none not found"]
    assert [why for _, _, why in world.story.refusals] == []
    assert ToyClient(world).say("TOY eve wrong /") == ["ERR access_refused login"]
    assert world.story.refusals == [("eve", "TOY", "invalid credentials")]


def test_alarms_hold_up_who_publishes_and_nobody_else() -> None:
    world = World()
    world.client().declare("q")
    publisher, reader = ToyClient(world).enter(), ToyClient(world).enter()
    assert publisher.say("PUB 1 q a") == ["OK 1"]
    world.node.set_alarm("disk", True)
    assert publisher.say("PUB 2 q b") == []
    assert reader.say("SUB q 5") == ["ON q", "MSG 1 0 a"]
    world.node.set_alarm("disk", False)
    assert publisher.say() == ["OK 2"]


def test_through_any_node_of_a_cluster_and_over_its_end() -> None:
    cluster = Cluster("a", "b", "c")
    rabbit = cluster["a"].client()
    rabbit.declare("q")
    owner = cluster.queue("q").owner
    one, other = (name for name in "abc" if name != owner)
    publisher, reader = ToyClient(cluster[one]).enter(), ToyClient(cluster[other]).enter()
    assert publisher.say("PUB 1 q x") == ["OK 1"]
    assert reader.say("SUB q 10") == ["ON q", "MSG 1 0 x"]
    cluster.kill(owner)
    assert publisher.say("PUB 2 q y") == ["OK 2"]
    assert reader.say() == ["MSG 2 0 y"]
    assert reader.say("ACK 1", "ACK 2") == []
    assert cluster[one].client().ask(m.QueueDeclare(queue="q", passive=True)).message_count == 0


async def test_one_listener_serves_both() -> None:
    shell = NodeShell(options(), NodeLog(Lines(), "debug"))
    shell.fronts = FRONTS
    await shell.start()
    try:
        port = shell.listeners[0].addresses[0].port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        _, silent = await asyncio.open_connection("127.0.0.1", port)
        for octet in b"TOY guest guest /\n":
            writer.write(bytes((octet,)))
            await asyncio.sleep(0)
        assert await reader.readline() == b"READY\n"
        rabbit_reader, rabbit = await asyncio.open_connection("127.0.0.1", port)
        rabbit.write(HEADER)
        assert (await rabbit_reader.readexactly(12))[7:11] == b"\x00\x0a\x00\x0a", "connection.start"
        await until(lambda: len(shell.clients) == 3)
        assert sorted(type(core).__name__ for core in shell.clients) == ["Connection", "Opening", "Toy"]
        assert [type(core) for core in shell.node.clients.values() if core.is_open] == [Toy]
        writer.write(b"PUB 1 none x\n")
        assert await reader.readline() == b"NO 1\n"
    finally:
        await shell.stop()
    assert await reader.readline() == b"ERR closed broker forced connection closure with reason 'shutdown'\n"
    for each in (writer, silent, rabbit):
        each.close()


async def test_operators_see_it_among_connections() -> None:
    shell = NodeShell(options(), NodeLog(Lines(), "debug"))
    shell.fronts = FRONTS
    await shell.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", shell.listeners[0].addresses[0].port)
        writer.write(b"TOY guest wrong")
        await until(lambda: any(isinstance(core, Toy) for core in shell.clients))
        assert not connections(shell), "before it has signed in"
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", shell.listeners[0].addresses[0].port)
        own = "{}:{}".format(*writer.get_extra_info("sockname"))
        for said, answer in ((b"TOY guest guest /\n", b"READY\n"), (b"PUB 1 none x\n", b"NO 1\n")):
            writer.write(said)
            assert await reader.readline() == answer
        place = Place()
        place.must(c.AddVhost(name="/"), user("guest", "administrator"), everything("guest"))
        place.tell(*counting.rows(shell, 0, 0.0))
        (listed,) = (read for read in reads.READS if read.path == "/api/connections")
        _, (told,) = reads.run(listed, place.reading(), {})
        assert told["name"].startswith(f"{own} -> 127.0.0.1:")
        assert (told["protocol"], told["user"], told["vhost"], told["state"]) == ("TOY", "guest", "/", "running")
        assert (told["recv_oct"], told["recv_cnt"], told["send_oct"], told["send_cnt"]) == (31, 2, 11, 2)
        shell.node.set_alarm("minority", True)
        assert [row.state for row in connections(shell)] == ["flow"]
    finally:
        await shell.stop()
    writer.close()


def connections(shell: NodeShell) -> list[ConnectionRow]:
    return [row for row in counting.rows(shell, 0, 0.0) if isinstance(row, ConnectionRow)]


async def test_bytes_of_no_protocol_are_answered_as_before() -> None:
    shell = NodeShell(options(), NodeLog(Lines(), "debug"))
    shell.fronts = FRONTS
    await shell.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", shell.listeners[0].addresses[0].port)
        writer.write(b"HELO mail.example\r\n")
        assert await reader.read() == b"AMQP\x03\x01\x00\x00"
        writer.close()
    finally:
        await shell.stop()


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_over_faults_of_all_kinds(seed: int) -> None:
    """Nothing confirmed is lost, nothing settled comes again: the checkers of all clients judge these as well."""
    clients: list[object] = []
    run(seed, seconds=10, raft=False, tamper=lambda world: clients.extend(settle(world)))
    publishers, consumers = clients
    assert sum(one.confirmed for one in publishers) > 0  # type: ignore[attr-defined]
    assert sum(one.settled for one in consumers) > 0  # type: ignore[attr-defined]
