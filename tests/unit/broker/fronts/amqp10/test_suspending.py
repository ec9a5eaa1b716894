"""Links whose client is away, and what needs a clock, a crowd or another node to be seen."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.fronts.amqp10 import suspended
from clusterbroker.broker.fronts.amqp10.suspended import NOTED_MIN
from clusterbroker.broker.node import links
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp10.performatives import (
    Accepted,
    Attach,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Released,
    Source,
    Target,
    Transfer,
    composed,
)
from clusterbroker.cluster.wiring import commands as c
from tests.support.amqp10 import HEADER, Frame, frame, message, read
from tests.unit.broker.fronts.amqp091.harness import World
from tests.unit.broker.fronts.amqp10.harness import BEGIN, Peer, bodies, world_with
from tests.unit.broker.node.node_cluster import Cluster

KEPT_S = 60


def enter(world: Any, container: str = "c", **properties: Any) -> Peer:
    peer = Peer(world)
    peer.login()
    peer.raw(HEADER + frame(0, Open(container_id=container, **properties)) + frame(0, BEGIN))
    return peer


class Held:
    """A receiver's link, with what it was sent."""

    def __init__(self, peer: Peer, unsettled: dict[bytes, Any] | None = None, **source: Any) -> None:
        self.peer, self.number = peer, peer.handle()
        terms = {"timeout": KEPT_S, **source}
        attach = Attach(
            name="r", handle=self.number, role=True, source=Source(address="/queues/q", **terms), target=Target(),
            unsettled=unsettled,
        )  # fmt: skip
        self.heard = peer.say(attach)
        attaches = [one for one in bodies(self.heard, Attach) if one.name == "r"]
        self.attach = attaches[0] if attaches else None
        self.count = int(self.attach.initial_delivery_count or 0) if self.attach is not None else 0

    @property
    def states(self) -> dict[Any, Any]:
        assert self.attach is not None
        return {tag: composed(state) for tag, state in (self.attach.unsettled or {}).items()}

    def take(self, credit: int) -> list[Frame]:
        heard = self.peer.say(self.peer.flow(self.number, delivery_count=self.count, link_credit=credit))
        heard += self.peer.raw(b"") + self.peer.raw(b"")
        found = [each for each in heard if isinstance(each.body, Transfer)]
        self.count += len([each for each in found if not each.body.more])
        return found


def fill(world: Any, count: int, queue: str = "q") -> None:
    client = world.client()
    for number in range(count):
        client.publish("", queue, b"%d" % number)


def tags(frames: list[Frame]) -> list[bytes]:
    return [each.body.delivery_tag for each in frames]


def refused(heard: list[Frame]) -> str:
    (detach,) = bodies(heard, Detach)
    return str(detach.error.condition)


def ring(world: Any) -> Any:
    return world.node.vhosts["/"].queues["q"].ring


def test_time_ends_a_suspended_link_although_nothing_happens() -> None:
    world = world_with("q")
    fill(world, 3)
    peer = enter(world)
    assert len(Held(peer, timeout=5).take(2)) == 2
    peer.leave()
    assert (ring(world).unacked, len(world.node.links)) == (2, 1)
    assert world.node.next_wake_ms is not None, "nobody else wakes the node"
    for _ in range(4):
        world.now_ms += 1000
        world.turn()
    assert ring(world).unacked == 2
    world.now_ms += 1000
    world.turn()
    assert (ring(world).unacked, ring(world).ready, len(world.node.links)) == (0, 3, 0)
    assert [row[3] for row in ring(world).living(1, 9, 9)] == [0, 0, 0], "nobody has failed at them"
    assert not world.node.vhosts["/"].queues["q"].subscriptions


def test_the_clock_stands_while_the_client_is_here() -> None:
    world = world_with("q")
    fill(world, 1)
    peer = enter(world)
    link = Held(peer, timeout=2)
    (tag,) = tags(link.take(1))
    peer.leave()
    world.now_ms += 1000
    again = Held(enter(world), {tag: None}, timeout=2)
    world.now_ms += 5000
    world.turn()
    assert tags(again.take(1)) == [tag]
    assert len(world.node.links) == 0


def test_a_consumer_timeout_ends_a_suspended_link() -> None:
    world = World()
    client = world.client()
    client.declare("q", x_consumer_timeout=60_000)
    fill(world, 1)
    peer = enter(world)
    (tag,) = tags(Held(peer, timeout=3600).take(1))
    peer.leave()
    for _ in range(62):
        world.now_ms += 1000
        world.turn()
    assert (ring(world).unacked, ring(world).ready, len(world.node.links)) == (0, 1, 0)
    assert refused(Held(enter(world), {tag: None}).heard) == "amqp:resource-deleted"


def test_a_queue_that_is_deleted_ends_a_suspended_link() -> None:
    world = world_with("q")
    fill(world, 1)
    peer = enter(world)
    (tag,) = tags(Held(peer).take(1))
    peer.leave()
    world.client().ask(m.QueueDelete(queue="q"))
    assert len(world.node.links) == 0
    world.client().declare("q")
    fill(world, 1)
    assert refused(Held(enter(world), {tag: None}).heard) == "amqp:resource-deleted"


def test_a_user_that_is_deleted_leaves_nothing() -> None:
    world = world_with("q")
    fill(world, 1)
    peer = enter(world)
    Held(peer).take(1)
    peer.leave()
    world.command(c.DeleteUser(name="guest"))
    world.now_ms += 1000
    world.turn()
    assert (ring(world).unacked, len(world.node.links)) == (0, 0)


def test_there_are_only_so_many_suspended_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "SUSPENDED_MAX", 0)
    world = world_with("q")
    fill(world, 1)
    peer = enter(world)
    Held(peer).take(1)
    peer.leave()
    world.turn()
    assert (ring(world).unacked, len(world.node.links)) == (0, 0)


def test_a_suspended_link_holds_only_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspended, "HELD_MAX", 2)
    world = world_with("q")
    fill(world, 5)
    peer = enter(world)
    first = tags(Held(peer).take(5))
    peer.leave()
    world.turn()
    assert (ring(world).unacked, ring(world).ready) == (2, 3)
    assert list(Held(enter(world), {}).states) == first[:2]


@pytest.mark.parametrize(("most", "kept"), [(100, True), (10, False)])
def test_a_part_of_a_delivery_is_kept_if_it_is_short(monkeypatch: pytest.MonkeyPatch, most: int, kept: bool) -> None:
    monkeypatch.setattr("clusterbroker.broker.fronts.amqp10.links.PART_BYTES_MAX", most)
    world = world_with("q")
    peer = enter(world)
    target = Target(address="/queues/q", timeout=KEPT_S)
    peer.say(Attach(name="s", handle=0, role=False, target=target, initial_delivery_count=0))
    peer.say(Transfer(handle=0, delivery_id=0, delivery_tag=b"t", more=True), payload=message(bytes(40)))
    peer.leave()
    assert world.node.links.bytes_kept == (len(message(bytes(40))) if kept else 0)
    attach = Attach(name="s", handle=0, role=False, target=target, initial_delivery_count=0, unsettled={b"t": None})
    (answer,) = bodies(enter(world).say(attach), Attach)
    assert (b"t" in answer.unsettled) is kept
    assert world.node.links.bytes_kept == 0


def test_an_attach_waits_until_its_deliveries_are_decided() -> None:
    world = world_with("q")
    target = Target(address="/queues/q", timeout=KEPT_S)
    peer = enter(world)
    peer.say(Attach(name="s", handle=0, role=False, target=target, initial_delivery_count=0))
    world.disk_waits = True
    durable = message(b"x")
    peer.say(Transfer(handle=0, delivery_id=0, delivery_tag=b"t"), payload=b"\0\x53\x70\xc0\x02\x01\x41" + durable)
    peer.leave()
    attach = Attach(name="s", handle=0, role=False, target=target, initial_delivery_count=0, unsettled={b"t": None})
    again = enter(world)
    assert bodies(again.say(attach), Attach) == []
    world.disk_waits = False
    world.commit()
    world.turn()
    (answer,) = bodies(again.raw(b""), Attach)
    assert {tag: composed(state) for tag, state in answer.unsettled.items()} == {b"t": Accepted()}


def test_an_attach_does_not_wait_for_ever() -> None:
    world = world_with("q")
    target = Target(address="/queues/q", timeout=KEPT_S)
    peer = enter(world)
    peer.say(Attach(name="s", handle=0, role=False, target=target, initial_delivery_count=0))
    world.disk_waits = True
    payload = b"\0\x53\x70\xc0\x02\x01\x41" + message(b"x")
    peer.say(Transfer(handle=0, delivery_id=0, delivery_tag=b"t"), payload=payload)
    peer.leave()
    attach = Attach(name="s", handle=0, role=False, target=target, initial_delivery_count=0, unsettled={b"t": None})
    again = enter(world)
    again.say(attach)
    for _ in range(44):
        world.now_ms += 500
        again.core.tick(world.now_ms)
    heard = again.raw(b"")
    assert refused(heard) == "amqp:resource-limit-exceeded"
    assert len(world.node.links) == 1, "another attach may find it"
    world.disk_waits = False
    world.commit()
    world.turn()
    (answer,) = bodies(enter(world).say(attach), Attach)
    assert {tag: composed(state) for tag, state in answer.unsettled.items()} == {b"t": Accepted()}


def test_what_is_not_sent_again_yet_is_suspended_with_the_rest() -> None:
    world = world_with("q")
    fill(world, 4)
    peer = enter(world)
    held = tags(Held(peer).take(4))
    peer.leave()
    second = enter(world)
    assert tags(Held(second, {}).take(2)) == held[:2]
    second.leave()
    assert ring(world).unacked == 4
    third = enter(world)
    link = Held(third, {held[0]: None})
    assert set(link.states) == set(held)
    assert tags(link.take(9)) == [*held[1:], held[0]]


def test_a_link_that_ends_amid_its_resumption_returns_all() -> None:
    world = world_with("q")
    fill(world, 4)
    peer = enter(world)
    Held(peer).take(4)
    peer.leave()
    again = enter(world)
    link = Held(again, {})
    link.take(1)
    again.say(Detach(handle=link.number, closed=True))
    assert (ring(world).unacked, ring(world).ready) == (0, 4)


def test_an_outcome_that_is_not_in_force_is_the_default_one() -> None:
    world = world_with("q")
    fill(world, 1)
    peer = enter(world)
    outcomes = ("amqp:accepted:list",)
    (tag,) = tags(Held(peer, outcomes=outcomes).take(1))
    peer.leave()
    link = Held(enter(world), {tag: Released()}, outcomes=outcomes, default_outcome=Accepted())
    (settled,) = link.take(1)
    assert (settled.body.settled, settled.body.state) == (True, Accepted())
    assert ring(world).unacked == 0


# -- in a cluster: the queue is another node's


def cluster() -> Cluster:
    found = Cluster("a", "b", "c")
    found["b"].client().declare("q")
    return found


def test_a_receiver_of_a_queue_elsewhere() -> None:
    """It is read again from its owner, and given to nobody else meanwhile, not by the next owner either."""
    both = cluster()
    fill(both["b"], 3)
    peer = enter(both["a"])
    held = tags(Held(peer).take(2))
    assert len(held) == 2
    peer.leave()
    both.turn()
    other = both["c"].client()
    assert [one.body for one in other.consume("q")] == [b"2"]
    again = Held(enter(both["a"]), {held[0]: None})
    assert set(again.states) == set(held)
    found = again.take(9)
    assert tags(found)[:2] == [held[1], held[0]]
    assert [read(each.payload).body for each in found[:2]] == [b"1", b"0"]
    assert [each.body.resume for each in found[:2]] == [False, True]


def test_the_owner_dies_and_the_next_one_reads_its_disk() -> None:
    both = cluster()
    fill(both["b"], 3)
    owner = str(both["a"].map.queue("/", "q").owner)
    here, there = (name for name in ("a", "b", "c") if name != owner)
    peer = enter(both[here])
    held = tags(Held(peer).take(2))
    peer.leave()
    both.kill(owner)
    both.wait(1000)
    assert [one.body for one in both[there].client().consume("q")] == [b"2"]
    found = Held(enter(both[here]), {held[1]: None}).take(9)
    assert tags(found) == held
    assert [read(each.payload).body for each in found] == [b"0", b"1"]
    entity = both[here].map.queue("/", "q")
    assert both[str(entity.owner)].node.queues[entity.queue_id].ring.message(1) is None, "it was on its disk only"


def test_flow_of_an_echo_is_told_from_others() -> None:
    world = world_with("q")
    peer = enter(world)
    target = Target(address="/queues/q", timeout=KEPT_S)
    heard = peer.say(Attach(name="s", handle=0, role=False, target=target, initial_delivery_count=0))
    (flow,) = bodies(heard, Flow)
    world.now_ms += 200
    heard = peer.say(Transfer(handle=0, delivery_id=0, delivery_tag=b"t"), payload=message(b"x"))
    (told,) = bodies(heard, Disposition)
    (asks,) = bodies(heard, Flow)
    assert [type(each.body) for each in heard] == [Disposition, Flow], "it goes out behind the outcome"
    assert told.settled
    assert asks.echo
    assert asks.delivery_count + asks.link_credit > flow.delivery_count + flow.link_credit


def test_a_session_notes_few_links_that_are_not_suspended_any_more() -> None:
    """Names that are suspended and ended, one after another, cost no memory."""
    world = world_with("q")
    peer = enter(world)
    source, target = Source(address="/queues/q", expiry_policy="connection-close"), Target()
    for number in range(200):
        name = f"r{number}"
        for is_closed in (False, True):
            peer.say(Attach(name=name, handle=0, role=True, source=source, target=target))
            peer.say(Detach(handle=0, closed=is_closed))
        assert len(world.node.links) == 0
    connection = peer.core
    (session,) = connection.sessions.values()
    assert 0 < len(session.table.suspended) <= NOTED_MIN
    peer.say(End())
    assert len(connection.suspended) <= NOTED_MIN
