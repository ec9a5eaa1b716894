"""Queues of subscriptions with selectors where a test over sockets cannot look: what is written, crashes, owners that
end, messages on disk, bounds."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.content.selector.filters import Filter
from clusterbroker.broker.content.selector.subject import Subject
from clusterbroker.broker.queues import sweeping
from clusterbroker.broker.queues.attributes import SWEPT
from clusterbroker.broker.queues.sweeping import Sweeping
from clusterbroker.broker.wire.amqp10.performatives import Header
from tests.unit.broker.fronts.amqp091.harness import World
from tests.unit.broker.fronts.amqp10.harness import Peer
from tests.unit.broker.fronts.amqp10.test_passing_over import filled, selector
from tests.unit.broker.node.node_cluster import Cluster

ODD = {"x_subscription": "topic", "x_selector": "n % 2 = 1"}
DURABLE = Header(durable=True)


def subscribed(**options: Any) -> World:
    """With the queue "q" of odd messages."""
    world = World(**options)
    world.client().declare("q", **ODD)
    return world


def test_what_is_not_kept_is_never_written() -> None:
    world = subscribed()
    ring = world.queue("q").ring
    filled(world, 40, header=DURABLE)
    assert (ring.ready, ring.published, ring.disk_writes) == (20, 40, 20)
    world.crash()
    assert world.queue("q").ring.ready == 20


def test_no_copy_hears_of_what_is_not_kept() -> None:
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare("q", **ODD)
    owner = cluster.queue("q").owner
    other = next(name for name in "abc" if name != owner)
    filled(cluster[other], 10)
    ring = cluster[owner].node.queues[cluster.queue("q").queue_id].ring
    assert (ring.ready, ring.published, ring.disk_writes) == (5, 10, 5)
    cluster.kill(owner)
    filled(cluster[other], 4)
    cluster.turn()
    link = Peer(cluster[other]).enter().receiver("r", "/queues/q", credit=100)
    cluster.turn()
    assert link.bodies() == [b"1", b"3", b"5", b"7", b"9", b"1", b"3"]


def test_a_node_that_starts_judges_what_came_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "NOTED", 10)
    world = subscribed()
    filled(world, 100, header=DURABLE)
    world.crash()
    ring = world.queue("q").ring
    assert ring.attributes[SWEPT] >= 90
    world.turn()
    assert (ring.ready, ring.disk_reads) == (50, ring.disk_reads)
    assert ring.disk_reads < 20, "what was judged stays on the disk"


def test_what_was_kept_before_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """By an older release, and more than one turn judges: all of it is on the disk."""
    monkeypatch.setattr(sweeping, "WORK_MAX", 100)
    world = subscribed()
    queue = world.queue("q")
    queue.dispatch.sweeping = None
    filled(world, 60, header=DURABLE)
    assert queue.ring.ready == 60
    world.crash()
    for _ in range(40):
        world.turn()
    ring = world.queue("q").ring
    assert ring.ready == 30
    assert Peer(world).enter().receiver("r", "/queues/q", credit=3).bodies() == [b"1", b"3", b"5"]


def test_a_turn_judges_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a consumer judges by itself what waits."""
    monkeypatch.setattr(sweeping, "LOOK_MAX", 1)
    world = subscribed()
    turns = []
    turn = Sweeping.turn

    def counting(known: Sweeping) -> tuple[int, bool]:
        before = known.upto
        answer = turn(known)
        turns.append(known.upto - before)
        return answer

    monkeypatch.setattr(Sweeping, "turn", counting)
    client = world.client()
    client.raw(b"".join(client.content("", "q", b"%d" % n, headers={"n": n}) for n in range(6)))
    world.turn()
    link = Peer(world).enter().receiver("r", "/queues/q", credit=9, filter=selector("n % 2 = 1"))
    assert link.bodies() == [b"1", b"3", b"5"]
    assert world.queue("q").ring.ready == 0
    assert max(turns) <= 2, "one is judged, and where the next one is"


def test_a_consumer_with_the_queues_selector_does_not_judge_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    takes = Filter.takes

    def counting(known: Filter, subject: Subject) -> bool:
        asked.append(subject)
        return takes(known, subject)

    monkeypatch.setattr(Filter, "takes", counting)
    world = subscribed()
    same = Peer(world).enter().receiver("same", "/queues/q", credit=9, filter=selector("n % 2 = 1"))
    filled(world, 10)
    assert (len(same.bodies()), len(asked)) == (5, 10)
    other = Peer(world).enter().receiver("other", "/queues/q", credit=9, filter=selector("n = 1"))
    filled(world, 2)
    assert len(asked) > 12, "another one's is its own affair"
    assert len(same.bodies()) + len(other.bodies()) == 1


def test_a_queue_with_priorities_is_swept() -> None:
    world = World()
    world.client().declare("q", x_max_priority=3, **ODD)
    sender = Peer(world).enter().sender("s", "/queues/q")
    for n in range(12):
        sender.send(b"%d" % n, application={"n": n}, header=Header(priority=n % 4))
    assert world.queue("q").ring.ready == 6
    link = Peer(world).enter().receiver("r", "/queues/q", credit=9, filter=selector("n % 2 = 1"))
    assert link.bodies() == [b"3", b"7", b"11", b"1", b"5", b"9"]


def test_selecting_consumers_have_messages_by_priority() -> None:
    world = World()
    world.client().declare("q", x_max_priority=9)
    sender = Peer(world).enter().sender("s", "/queues/q")

    def send(*numbers: int) -> None:
        for n in numbers:
            sender.send(b"%d" % n, application={"n": n}, header=Header(priority=n // 10))

    send(10, 50, 11, 90, 51, 52)
    peer = Peer(world).enter()
    even = peer.receiver("even", "/queues/q", credit=3, filter=selector("n % 2 = 0"))
    assert even.bodies() == [b"90", b"50", b"52"]
    send(12, 91, 92, 14)
    even.grant(2)
    assert even.bodies() == [b"92", b"10"], "what came later goes first by its priority"
    even.grant(9)
    assert even.bodies() == [b"12", b"14"]
    plain = Peer(world).enter().receiver("plain", "/queues/q", credit=9)
    assert plain.bodies() == [b"91", b"51", b"11"]


def published(client: Any, count: int, number: int) -> None:
    """So many messages of this number, in one read."""
    client.raw(b"".join(client.content("", "q", b"n=%d" % number, headers={"n": number}) for _ in range(count)))


@pytest.mark.parametrize("at_once", [100, 300, 2000])
def test_what_is_not_kept_drives_nothing_out(at_once: int) -> None:
    world = World()
    client = world.client()
    client.declare("q", **ODD, x_max_length=100)
    published(client, 100, 1)
    world.turn()
    published(client, at_once, 2)
    world.turn()
    assert world.queue("q").ring.ready == 100


def test_numbers_that_are_given_again_are_judged_again() -> None:
    """All that was judged last came to no log: it begins anew, with the mark of how far it was judged."""
    world = subscribed()
    client = world.client()
    for _ in range(6):
        published(client, 1000, 2)
        world.turn()
    assert world.queue("q").ring.attributes.get(SWEPT)
    world.crash()
    world.turn()
    client = world.client()
    published(client, 5, 2)
    published(client, 2, 3)
    world.turn()
    link = Peer(world).enter().receiver("r", "/queues/q", credit=100, filter=selector("n % 2 = 1"))
    assert link.bodies() == [b"n=3"] * 2
