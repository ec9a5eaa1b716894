"""Messages that a consumer cannot be handed: what nobody here can read, and what does not fit a client's frames."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.node.mistakes import ALERT
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp091.codec import OutBuffer
from clusterbroker.broker.wire.amqp10.performatives import Attach
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.journal.layout import PERSISTENT
from clusterbroker.journal.record import Message
from tests.model import codec as model
from tests.unit.broker.fronts.amqp091.harness import World, bodies
from tests.unit.broker.fronts.amqp10.harness import Peer
from tests.unit.broker.node.node_cluster import Cluster
from tests.unit.broker.node.places import declared, drained, owner_of


def of_later_release(cluster: Cluster, queue: str) -> None:
    """A message that no node of this release can read, behind what the queue has."""
    site = cluster[owner_of(cluster, queue)]
    site.queue(queue).publish((Message(b"\x00\x01q", b"\x00\x00later", 2, PERSISTENT, format=7),), None, site.now_ms)
    cluster.turn()


def cluster_with_unreadable(**arguments: Any) -> Cluster:
    """q is owned by a and has b"0", what nobody can read, and b"2"."""
    cluster = Cluster("a", "b", "c")
    declared(cluster, "q", "a", **arguments)
    for site in cluster.sites.values():
        site.story.forgives = True
    client = cluster["b"].client()
    client.publish("", "q", b"0", delivery_mode=2)
    cluster.turn()
    of_later_release(cluster, "q")
    client.publish("", "q", b"2", delivery_mode=2)
    cluster.turn()
    return cluster


def log_of(cluster: Cluster) -> Any:
    """The queue itself, at its owner."""
    return cluster["a"].node.queues[cluster.queue("q").queue_id]


def is_aside(cluster: Cluster) -> None:
    entity = cluster.queue("q")
    assert entity.paused
    assert "format 7" in entity.paused_why
    assert [alert.kind for alert in cluster["a"].node.alerts] == [ALERT], "its owner says so"


@pytest.mark.parametrize("node", ["a", "b"])
@pytest.mark.parametrize("no_ack", [True, False])
def test_a_queue_elsewhere_is_set_aside_too(node: str, no_ack: bool) -> None:
    cluster = cluster_with_unreadable()
    reader = cluster[node].client()
    reader.consume("q", no_ack=no_ack)
    cluster.wait(200)
    is_aside(cluster)
    assert [site.name for site in cluster.running] == ["a", "b", "c"]
    for site in cluster.sites.values():
        assert not [who for who, _, _ in site.story.mistakes if who in cluster.sites], "no link was cut"
    queue = log_of(cluster)
    reader.leave()
    cluster.wait(200)
    assert queue.ring.unacked == 0
    assert queue.ring.message(2).payload == b"\x00\x00later", "it is in its place"


def test_many_that_nobody_can_read_are_one_pause() -> None:
    cluster = cluster_with_unreadable()
    for _ in range(30):
        of_later_release(cluster, "q")
    cluster["b"].client().consume("q", no_ack=True)
    cluster.wait(500)
    is_aside(cluster)
    assert len(cluster["b"].story.mistakes) == 1
    cluster.order(c.PauseQueue(vhost="/", name="q", paused=False))
    cluster.wait(500)
    is_aside(cluster)
    assert len(cluster["b"].story.mistakes) == 2, "resumed, it is tried once more"
    assert log_of(cluster).ready == 32, "all of them are there"


def test_a_receiver_of_amqp_10_elsewhere() -> None:
    cluster = cluster_with_unreadable()
    peer = Peer(cluster["b"]).enter()
    link = peer.receiver("r", "/queues/q", credit=10)
    cluster.wait(200)
    assert any(isinstance(each.body, Attach) for each in link.attached)
    is_aside(cluster)
    assert log_of(cluster).ring.unacked <= 2


# -- what does not fit a client's frames

LARGE = {"x-much": "m" * 10_000}


def small(world: Any) -> Any:
    """A client whose frames have 8,192 bytes."""
    return world.client(frame_max=8192)


def closed(heard: list[Any]) -> m.ChannelClose:
    (close,) = [said for said in heard if isinstance(said, m.ChannelClose)]
    return close


def test_a_header_that_no_frame_of_the_client_holds_ends_its_channel() -> None:
    world = World()
    alice, bob = small(world), world.client()
    alice.declare("q")
    bob.publish("", "q", b"0")
    bob.publish("", "q", b"large", headers=LARGE)
    bob.publish("", "q", b"2")
    heard = alice.consume("q")
    assert bodies(heard) == [b"0"]
    close = closed([*heard, *alice.hear()])
    assert close.reply_code == 506
    assert "frame_max is 8192" in close.reply_text
    assert bodies(bob.consume("q")) == [b"0", b"large", b"2"], "who has larger frames gets all, in order"


def test_and_of_a_get() -> None:
    world = World()
    alice, bob = small(world), world.client()
    alice.declare("q")
    bob.publish("", "q", b"large", headers=LARGE)
    for no_ack in (True, False):
        close = closed(alice.say(m.BasicGet(queue="q", no_ack=no_ack)))
        assert close.reply_code == 506
        alice.say(m.ChannelCloseOk())
        alice.say(m.ChannelOpen())
    assert bodies(bob.consume("q")) == [b"large"]


def test_of_a_stream() -> None:
    world = World()
    alice, bob = small(world), world.client()
    alice.declare("s", durable=True, x_queue_type="stream")
    bob.publish("", "s", b"0")
    bob.publish("", "s", b"large", headers=LARGE)
    world.wait(100)
    alice.say(m.BasicQos(0, 10, False))
    heard = alice.consume("s", arguments={"x-stream-offset": "first"})
    world.wait(100)
    heard += alice.hear()
    assert bodies(heard) == [b"0"]
    assert closed(heard).reply_code == 506


@pytest.mark.parametrize("node", ["a", "b"])
def test_a_delivery_limit_finds_what_fits_nobody(node: str) -> None:
    cluster = Cluster("a", "b", "c")
    declared(cluster, "grave", "a")
    declared(
        cluster, "q", "a", x_queue_type="quorum", x_delivery_limit=2, x_dead_letter_exchange="",
        x_dead_letter_routing_key="grave",
    )  # fmt: skip
    client = cluster["a"].client()
    client.publish("", "q", b"large", headers=LARGE, delivery_mode=2)
    cluster.turn()
    for _ in range(3):
        alice = small(cluster[node])
        heard = alice.consume("q")
        cluster.wait(300)
        assert closed([*heard, *alice.hear()]).reply_code == 506
        alice.leave()
        cluster.wait(100)
    assert log_of(cluster).ready == 0
    assert drained(cluster, "grave") == [b"large"]


@pytest.mark.parametrize("frame_max", [0, 4096, 8192])
def test_what_fits_is_what_the_model_says(frame_max: int) -> None:
    out, known = OutBuffer(frame_max), model.OutBuffer(frame_max)
    fitting = set()
    for length in (2, 4075, 4076, 4077, 8171, 8172, 8173, 100_000):
        message = Message(b"\0\1q", b"\0" * length, length)
        assert out.fits(message) is known.fits(message), length
        if out.fits(message):
            fitting.add(length)
            out.deliver(1, b"\1t", 1, False, message)
            data = out.take()
            at = 7 + int.from_bytes(data[3:7]) + 1
            assert not frame_max or int.from_bytes(data[at + 3 : at + 7]) + 8 <= frame_max
    assert max(fitting) == {0: 100_000, 4096: 4076, 8192: 8172}[frame_max]
