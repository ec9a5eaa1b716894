"""Members that cannot reach each other directly: what clients see while a third one relays, and after."""

from __future__ import annotations

from collections import deque
from itertools import permutations

import pytest

from clusterbroker.broker.node.relay import Relay
from clusterbroker.broker.wire.amqp091 import methods as m
from tests.unit.broker.fronts.amqp091.harness import Content, bodies
from tests.unit.broker.node.node_cluster import Cluster

PAIRS = [("a", "b"), ("a", "c"), ("b", "c")]


def cut(cluster: Cluster, one: str, other: str) -> None:
    cluster.cuts.add((min(one, other), max(one, other)))
    cluster.unlink(one, other)
    cluster.turn()


def heal(cluster: Cluster) -> None:
    cluster.cuts.clear()
    cluster.relink()
    cluster.turn()


def relay(cluster: Cluster, name: str) -> Relay:
    role = cluster[name].node.role
    assert role is not None
    return role.relay


def relayed(cluster: Cluster, name: str) -> dict[str, str]:
    return relay(cluster, name).via


def owned_by(cluster: Cluster, owner: str) -> str:
    """A queue that this node owns."""
    name = f"q-{owner}"
    cluster[owner].client().declare(name, x_queue_leader_locator="client-local")
    assert cluster.queue(name).owner == owner
    return name


def test_two_members_without_a_link_have_one_through_the_third() -> None:
    cluster = Cluster("a", "b", "c")
    cut(cluster, "a", "b")
    cluster.wait(450)
    assert relayed(cluster, "a") == relayed(cluster, "b") == {}
    cluster.wait(150)
    assert (relayed(cluster, "a"), relayed(cluster, "b")) == ({"b": "c"}, {"a": "c"})
    heal(cluster)
    cluster.wait(100)
    assert relayed(cluster, "a") == relayed(cluster, "b") == relayed(cluster, "c") == {}


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("owner", ["a", "b", "c"])
def test_every_client_is_served_through_every_cut(pair: tuple[str, str], owner: str) -> None:
    cluster = Cluster("a", "b", "c")
    name = owned_by(cluster, owner)
    writers = {site: cluster[site].client() for site in "abc"}
    readers = {site: cluster[site].client() for site in "abc"}
    for writer in writers.values():
        writer.ask(m.ConfirmSelect())
    for reader in readers.values():
        reader.say(m.BasicQos(prefetch_count=1))
        reader.consume(name, no_ack=False)
    cut(cluster, *pair)
    for site, writer in writers.items():
        writer.publish("", name, *(f"{site}{i}".encode() for i in range(4)))
    heard: list[bytes] = []
    for _ in range(40):
        cluster.wait(200)
        for reader in readers.values():
            news = deque(reader.say())
            while news:
                said = news.popleft()
                if isinstance(said, Content):
                    heard.append(said.body)
                    assert not said.method.redelivered
                    news += reader.say(m.BasicAck(said.method.delivery_tag))
        if len(heard) == 12:
            break
    assert sorted(heard) == sorted(f"{site}{i}".encode() for site in "abc" for i in range(4))
    assert set(cluster.queue(name).in_sync) == {"a", "b", "c"}
    assert cluster[owner].client().ask(m.QueueDeclare(queue=name, passive=True)).message_count == 0
    heal(cluster)
    cluster.wait(3000)
    assert set(cluster.queue(name).in_sync) == {"a", "b", "c"}
    for site, writer in writers.items():
        assert writer.publish("", name, b"after " + site.encode())[-1] == m.BasicAck(5, True)
    assert len(cluster.digests()) == 1


@pytest.mark.parametrize(("gone", "one", "other"), list(permutations("abc")))
def test_a_new_epoch_begins_although_two_members_are_cut(gone: str, one: str, other: str) -> None:
    """The attach barrier waits for every living member, so also for the one across the cut."""
    cluster = Cluster("a", "b", "c", "d")
    name = owned_by(cluster, gone)
    writer, reader = cluster[one].client(), cluster[other].client()
    writer.ask(m.ConfirmSelect())
    writer.publish("", name, *(b"%d" % i for i in range(6)))
    reader.say(m.BasicQos(prefetch_count=2))
    assert bodies(reader.consume(name)) == [b"0", b"1"]
    cut(cluster, one, other)
    cluster.wait(1000)
    cluster.kill(gone)
    cluster.wait(3000)
    assert cluster.queue(name).owner not in (None, gone)
    assert reader.say() == [], "what it holds is not handed out again"
    third = cluster[one].client()
    heard = third.consume(name)
    cluster.wait(1000)
    heard += third.say()
    assert bodies(heard) == [b"2", b"3", b"4", b"5"]
    reader.say(m.BasicAck(2, True))
    third.say(m.BasicAck(4, True))
    cluster.wait(500)
    cluster.restart(gone)
    heal(cluster)
    cluster.wait(3000)
    assert cluster["d"].client().ask(m.QueueDeclare(queue=name, passive=True)).message_count == 0
    wanted = set(cluster.queue(name).replicas)
    assert set(cluster.queue(name).in_sync) == wanted


@pytest.mark.parametrize("pair", PAIRS)
def test_the_relay_dies_and_another_one_takes_its_place(pair: tuple[str, str]) -> None:
    cluster = Cluster("a", "b", "c", "d", "e")
    one, other = pair
    name = owned_by(cluster, one)
    cut(cluster, one, other)
    cluster.wait(700)
    first = relayed(cluster, one)[other]
    writer = cluster[other].client()
    writer.ask(m.ConfirmSelect())
    assert writer.publish("", name, b"1") == [m.BasicAck(1, True)]
    cluster.kill(first)
    cluster.wait(1500)
    second = relayed(cluster, one)[other]
    assert second != first
    assert relayed(cluster, other) == {one: second}
    assert writer.publish("", name, b"2") == [m.BasicAck(2, True)]
    cluster.restart(first)
    cluster.wait(1000)
    assert relayed(cluster, one) == {other: second}, "a relayed link that works stays where it is"
    assert bodies(cluster[other].client().consume(name)) == [b"1", b"2"]


def test_a_ring_of_five_is_one_broker() -> None:
    """Every member reaches its two neighbours only: those two apart have a relay between them."""
    names = "abcde"
    cluster = Cluster(*names)
    queues = {site: owned_by(cluster, site) for site in names}
    for i, one in enumerate(names):
        cut(cluster, one, names[(i + 2) % 5])
    cluster.wait(4000)
    for i, site in enumerate(names):
        assert sorted(relayed(cluster, site)) == sorted((names[(i + 2) % 5], names[(i + 3) % 5]))
    for site in names:
        writer = cluster[site].client()
        writer.ask(m.ConfirmSelect())
        for tag, name in enumerate(queues.values(), 1):
            assert writer.publish("", name, site.encode()) == [m.BasicAck(tag, True)]
    for site, name in queues.items():
        reader = cluster[names[names.index(site) - 2]].client()
        assert sorted(bodies(reader.consume(name, no_ack=True))) == [other.encode() for other in names]
        assert set(cluster.queue(name).in_sync) == set(cluster.queue(name).replicas)
    heal(cluster)
    cluster.wait(1000)
    assert all(not relayed(cluster, site) for site in names)


def test_large_messages_go_through_in_pieces_with_a_bound_on_what_is_under_way() -> None:
    cluster = Cluster("a", "b", "c")
    name = owned_by(cluster, "a")
    cut(cluster, "a", "b")
    cluster.wait(700)
    writer, reader = cluster["b"].client(), cluster["b"].client()
    writer.ask(m.ConfirmSelect())
    bodies_sent = [bytes([i]) * (3 << 20) for i in range(5)]
    for body in bodies_sent:
        writer.publish("", name, body)
    cluster.wait(500)
    assert bodies(reader.consume(name, no_ack=True)) == bodies_sent
    assert relayed(cluster, "b") == {"a": "c"}
    assert relay(cluster, "a").backlog("b") < 1 << 20


def test_a_dead_member_has_no_relayed_link_and_a_new_start_gets_a_new_one() -> None:
    cluster = Cluster("a", "b", "c")
    cut(cluster, "a", "b")
    cluster.wait(700)
    cluster.kill("b")
    assert relayed(cluster, "a") == {}
    cluster.wait(1000)
    assert relayed(cluster, "a") == {}
    cluster.restart("b")
    cluster.wait(1000)
    assert relayed(cluster, "a") == {"b": "c"}
    name = owned_by(cluster, "a")
    assert bodies(cluster["b"].client().publish("", name, b"x")) == []
    assert bodies(cluster["b"].client().consume(name)) == [b"x"]


def test_without_a_third_member_there_is_no_way() -> None:
    cluster = Cluster("a", "b")
    cut(cluster, "a", "b")
    cluster.wait(3000)
    assert relayed(cluster, "a") == relayed(cluster, "b") == {}
