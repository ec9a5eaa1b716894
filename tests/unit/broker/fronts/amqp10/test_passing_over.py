"""Filters, exclusions, annotations and browsers where a test over sockets cannot look: owners that end, crashes,
members of an older release, messages on disk, bounds."""

from __future__ import annotations

import random
from typing import Any

import pytest

from clusterbroker.broker.content.selector.filters import Filter
from clusterbroker.broker.queues import selecting
from clusterbroker.broker.queues.attributes import EXCLUDED
from clusterbroker.broker.remote import consumer_link
from clusterbroker.broker.wire.amqp10.performatives import Attach, Detach, Disposition, Header, Modified, Released
from clusterbroker.broker.wire.amqp10.types import Described, Symbol
from clusterbroker.journal.record import Message
from tests.unit.broker.fronts.amqp091.harness import World
from tests.unit.broker.fronts.amqp10.harness import Peer, Receiver, bodies, world_with
from tests.unit.broker.node.node_cluster import Cluster

JMS = Symbol("apache.org:selector-filter:string")
ANNOTATION = {Symbol("x-opt-why"): "bad"}


def selector(text: str) -> dict[Any, Any]:
    return {Symbol("f"): Described(JMS, text)}


def modify(peer: Peer, number: int, **fields: Any) -> None:
    peer.say(Disposition(role=True, first=number, settled=True, state=Modified(**fields)))


def filled(world: World, count: int, queue: str = "q", **parts: Any) -> None:
    sender = Peer(world).enter().sender("filling", f"/queues/{queue}")
    for n in range(count):
        sender.send(b"%d" % n, application={"n": n}, **parts)


def clustered() -> tuple[Cluster, str, str]:
    """With a queue "q"; its owner, and another member."""
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare("q", durable=True)
    owner = cluster.queue("q").owner
    return cluster, owner, next(name for name in "abc" if name != owner)


def test_an_annotation_outlives_its_owner() -> None:
    cluster, owner, other = clustered()
    filled(cluster[other], 1)
    peer = Peer(cluster[other]).enter()
    receiver = peer.receiver("r", "/queues/q", credit=1)
    assert receiver.bodies() == [b"0"]
    modify(peer, 0, delivery_failed=True, message_annotations=ANNOTATION)
    cluster.kill(owner)
    receiver.grant(1)
    ((_, got),) = receiver.take()
    assert (got.annotations["x-opt-why"], got.header.delivery_count, got.body) == ("bad", 1, b"0")


def test_an_annotation_outlives_a_crash() -> None:
    world = World()
    world.client().declare("q", durable=True)
    filled(world, 1, header=Header(durable=True))
    peer = Peer(world).enter()
    receiver = peer.receiver("r", "/queues/q", credit=1)
    assert receiver.bodies() == [b"0"]
    modify(peer, 0, message_annotations=ANNOTATION)
    world.crash()
    ((_, got),) = Peer(world).enter().receiver("r", "/queues/q", credit=1).take()
    assert (got.annotations["x-opt-why"], got.body) == ("bad", b"0")


def test_a_message_on_disk_is_annotated() -> None:
    """It left memory when it was handed out, and is read for that."""
    world = World()
    world.client().declare("q", durable=True)
    filled(world, 1, header=Header(durable=True))
    queue = world.queue("q")
    queue.ring.resident_bytes_max = 0
    peer = Peer(world).enter()
    receiver = peer.receiver("r", "/queues/q", credit=1)
    assert receiver.bodies() == [b"0"]
    assert queue.ring.message(1) is None
    modify(peer, 0, message_annotations=ANNOTATION)
    world.turn()
    receiver.grant(1)
    ((_, got),) = receiver.take()
    assert (got.annotations["x-opt-why"], got.body) == ("bad", b"0")


def test_annotations_that_are_too_long_are_left_out() -> None:
    world = world_with("q")
    filled(world, 1)
    peer = Peer(world).enter()
    receiver = peer.receiver("r", "/queues/q", credit=1)
    receiver.take()
    modify(peer, 0, delivery_failed=True, message_annotations={Symbol("x-opt-a"): "x" * 5000})
    receiver.grant(1)
    ((_, got),) = receiver.take()
    assert "x-opt-a" not in got.annotations
    assert got.header.delivery_count == 1


def test_a_message_does_not_grow_without_bound() -> None:
    world = world_with("q")
    filled(world, 1)
    peer = Peer(world).enter()
    receiver = peer.receiver("r", "/queues/q")
    for number in range(40):
        receiver.grant(1)
        receiver.take()
        modify(peer, number, message_annotations={Symbol(f"x-opt-{number}"): "x" * 4000})
    message = world.queue("q").ring.message(1)
    assert isinstance(message, Message)
    assert 50_000 < len(message.header) <= 64 << 10


def test_of_very_many_exclusions_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selecting, "EXCLUDED_MAX", 4)
    monkeypatch.setattr(selecting, "FORGOTTEN_AT_ONCE", 2)
    world = world_with("q")
    filled(world, 5)
    peer = Peer(world).enter()
    receiver = peer.receiver("r", "/queues/q", credit=5)
    assert len(receiver.take()) == 5
    for number in range(5):
        modify(peer, number, undeliverable_here=True)
    receiver.grant(10)
    assert receiver.bodies() == [b"0", b"1"], "these come once more"
    assert world.queue("q").ring.ready == 3


@pytest.mark.parametrize("seed", range(10))
def test_the_log_knows_what_links_have_excluded(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Random exclusions, messages that leave, and owners that begin with what the log says."""
    monkeypatch.setattr(selecting, "FORGOTTEN_AT_ONCE", 3)
    rng, world = random.Random(seed), world_with("q")
    filled(world, 80)
    queue = world.queue("q")
    ring, dispatch, lasting = queue.ring, queue.dispatch, set()
    for _ in range(150):
        here = [seq for seq, *_ in ring.living(1, ring.next_seq, 100)]
        if rng.random() < 0.6 and here:
            seq, link, lasts = rng.choice(here), rng.choice(("c\0one", "c\0two")), rng.random() < 0.7
            dispatch.exclude((seq,), link, lasting=lasts)
            if lasts:
                lasting.add((seq, selecting._digest(link)))
        elif rng.random() < 0.9 and here:
            ring.settle(rng.choice(here))
        elif dispatch.selecting is not None:
            dispatch.selecting = None
            dispatch.restore()
        said = {
            (selecting.BUCKET * bucket + at, link)
            for (link, bucket), bits in EXCLUDED.of(ring.attributes)
            for at in range(selecting.BUCKET)
            if bits >> at & 1
        }
        known = set() if dispatch.selecting is None else set(dispatch.selecting._excluded)
        assert said <= known
        assert {pair for pair in lasting if ring.living(pair[0], pair[0], 1)} <= said
        assert said <= lasting, "what is not lasting is no affair of the log"


def test_what_has_left_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selecting, "EXCLUDED_MAX", 4)
    world = world_with("q")
    filled(world, 5)
    peer = Peer(world).enter()
    receiver = peer.receiver("r", "/queues/q", credit=5)
    receiver.take()
    for number in range(4):
        modify(peer, number, undeliverable_here=True)
    other = Peer(world).enter().receiver("other", "/queues/q", settle=1, credit=2)
    assert other.bodies() == [b"0", b"1"]
    modify(peer, 4, undeliverable_here=True)
    receiver.grant(10)
    assert receiver.bodies() == []
    assert world.queue("q").ring.ready == 3


def test_a_link_without_exclusions_takes_the_head_again() -> None:
    """When what it did not want has gone, and that was found out, it is a consumer as others."""
    world = world_with("q")
    queue = world.queue("q")
    filled(world, 1)
    peer = Peer(world).enter()
    receiver = peer.receiver("r", "/queues/q", credit=1)
    receiver.take()
    assert not queue.subscriptions.selects
    modify(peer, 0, undeliverable_here=True)
    assert queue.subscriptions.selects
    queue.purge(lambda _: None)
    queue.dispatch.selecting._forget()
    assert queue.subscriptions.credits
    assert not queue.subscriptions.selects


def test_a_deep_queue_on_disk_is_judged_and_stays_there() -> None:
    world = World()
    world.client().declare("q", durable=True)
    ring = world.queue("q").ring
    ring.resident_bytes_max = 2000
    filled(world, 1500, header=Header(durable=True))
    assert ring.resident < 200
    receiver = Peer(world).enter().receiver("r", "/queues/q", credit=10, filter=selector("n = 3 OR n = 1490"))
    assert receiver.bodies() == [b"3", b"1490"]
    assert ring.ready == 1498
    assert ring.resident < 600, "what was judged and not taken has left memory"
    browser = (
        Peer(world)
        .enter()
        .receiver("b", "/queues/q", credit=10, distribution_mode="copy", filter=selector("n > 1480 AND n < 1485"))
    )
    for _ in range(10):
        world.turn()
    assert browser.bodies() == [b"1481", b"1482", b"1483", b"1484"]
    assert (ring.ready, ring.unacked) == (1498, 2)


def test_a_filter_needs_members_that_judge() -> None:
    """Below feature level 3 it is refused, and so is browsing; links without are as ever."""
    cluster = Cluster("a", "b", level=2)
    cluster["a"].client().declare("q")
    peer = Peer(cluster["a"]).enter()
    for name, more in (("f", {"filter": selector("n = 1")}), ("b", {"distribution_mode": "copy"})):
        refused = peer.receiver(name, "/queues/q", **more)
        (detach,) = bodies(refused.attached, Detach)
        assert detach.error.condition == "amqp:not-implemented"
        assert "feature level 3" in detach.error.description
        peer.say(Detach(handle=refused.number, closed=True))
    attached = peer.receiver("plain", "/queues/q")
    assert bodies(attached.attached, Attach)
    assert not bodies(attached.attached, Detach)


def test_no_local_needs_members_that_know_of_it() -> None:
    """Below feature level 3 it is absent from the answer."""
    asked = {Symbol("no-local"): Described(Symbol("apache.org:no-local-filter:list"), [])}
    for level, in_force in ((2, False), (3, True)):
        peer = Peer(Cluster("a", "b", level=level)["a"]).enter()
        receiver = peer.receiver("r", "topic", capabilities=("topic",), filter=asked)
        (attach,) = bodies(receiver.attached, Attach)
        assert bool(attach.source.filter) is in_force


def test_consumers_that_pass_over_and_others_take_turns() -> None:
    world = world_with("q")
    links: list[Receiver] = []
    for name, more in (("one", {}), ("two", {"filter": selector("n >= 0")}), ("three", {"filter": selector("n < 99")})):
        links.append(Peer(world).enter().receiver(name, "/queues/q", credit=100, **more))
    filled(world, 30)
    assert [len(link.take()) for link in links] == [10, 10, 10]


def test_a_released_message_is_looked_at_by_all_that_passed_it() -> None:
    world = world_with("q")
    filled(world, 4)
    peer = Peer(world).enter()
    first = peer.receiver("first", "/queues/q", credit=1)
    assert first.bodies() == [b"0"]
    even = Peer(world).enter().receiver("even", "/queues/q", credit=10, filter=selector("n = 0 OR n = 2"))
    assert even.bodies() == [b"2"]
    peer.say(Disposition(role=True, first=0, settled=True, state=Released()))
    assert even.bodies() == [b"0"] or first.bodies() == [b"0"]


def test_filters_of_a_queue_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """They travel to its owner in one frame."""
    monkeypatch.setattr(consumer_link, "FILTER_BYTES_MAX", 200)
    cluster, _, other = clustered()
    peer = Peer(cluster[other]).enter()
    assert not bodies(peer.receiver("one", "/queues/q", filter=selector("n = 1")).attached, Detach)
    refused = peer.receiver("two", "/queues/q", filter=selector("n = 1" + " OR n = 2" * 20))
    (detach,) = bodies(refused.attached, Detach)
    assert "too many filters" in detach.error.description
    assert not bodies(peer.receiver("three", "/queues/q").attached, Detach)


def test_a_long_name_is_the_same_link_when_it_comes_again() -> None:
    cluster, owner, other = clustered()
    filled(cluster[owner], 1)
    name = "long" * 60
    peer = Peer(cluster[other]).enter()
    receiver = peer.receiver(name, "/queues/q", credit=1)
    assert receiver.bodies() == [b"0"]
    modify(peer, 0, undeliverable_here=True)
    again = Peer(cluster[owner]).enter().receiver(name, "/queues/q", credit=1)
    assert again.bodies() == []
    assert Peer(cluster[owner]).enter().receiver("x" + name, "/queues/q", credit=1).bodies() == [b"0"]


def test_a_browser_goes_on_at_the_next_owner() -> None:
    cluster, owner, other = clustered()
    filled(cluster[other], 3)
    browser = Peer(cluster[other]).enter().receiver("b", "/queues/q", credit=100, distribution_mode="copy")
    cluster.turn()
    assert browser.bodies() == [b"0", b"1", b"2"]
    cluster.kill(owner)
    filled(cluster[other], 2)
    cluster.turn()
    assert browser.bodies() == [b"0", b"1"], "what came later, and nothing twice"
    assert cluster.queue("q").owner != owner


def test_a_browser_with_nothing_to_see_waits_and_asks_again() -> None:
    """Its questions are answered with nothing meanwhile; while its owner is cut off one is given up."""
    cluster, owner, other = clustered()
    peer = Peer(cluster[other]).enter()
    browser = peer.receiver("b", "/queues/q", credit=100, distribution_mode="copy")

    def wait() -> None:
        for _ in range(15):
            cluster.wait(5_000, step_ms=1_000)
            peer.raw(b"\0\0\0\x08\x02\0\0\0")  # it lives

    wait()
    cluster.unlink(owner, other)
    wait()
    assert peer.ended is None
    cluster.relink()
    cluster.turn()
    filled(cluster[owner], 1)
    cluster.turn()
    assert browser.bodies() == [b"0"]


def test_a_filter_is_in_force_at_the_next_owner() -> None:
    cluster, owner, other = clustered()
    link = Peer(cluster[other]).enter().receiver("r", "/queues/q", credit=100, filter=selector("n = 1"))
    cluster.kill(owner)
    filled(cluster[other], 3)
    cluster.turn()
    assert link.bodies() == [b"1"]


def short_of_memory(monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """So often a filter that is made from now on has no memory to judge by."""
    made, left = Filter.__init__, [times]

    def make(known: Filter, holds: Any, wire: bytes, digest: bytes = b"") -> None:
        def first(_: Any) -> bool:
            if left[0]:
                left[0] -= 1
                raise MemoryError
            return True

        made(known, (first, *holds), wire, digest)

    monkeypatch.setattr(Filter, "__init__", make)
    return left


SELECTS_ITSELF = {"x_subscription": "topic", "x_selector": "n >= 1"}


@pytest.mark.parametrize("kind", ["consumer", "browser", "subscription", "stream"])
def test_no_memory_is_no_answer(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """What could not be judged is judged later: nothing is passed over, or deleted, for that (decision 057)."""
    left = short_of_memory(monkeypatch, 5)
    world = World()
    more: dict[str, Any] = {"x_queue_type": "stream"} if kind == "stream" else {}
    world.client().declare(
        "q", **({"x_subscription": "topic", "x_selector": "n >= 1"} if kind == "subscription" else more)
    )
    filled(world, 4)
    wanted = {} if kind == "subscription" else {"filter": selector("n >= 1")}
    if kind == "stream":
        wanted["filter"][Symbol("rabbitmq:stream-offset-spec")] = Described(
            Symbol("rabbitmq:stream-offset-spec"), "first"
        )
    if kind == "browser":
        wanted["distribution_mode"] = Symbol("copy")
    link = Peer(world).enter().receiver("r", "/queues/q", credit=9, **wanted)
    found: list[bytes] = []
    for _ in range(20):
        found += link.bodies()
        world.now_ms += 100
        world.turn()
    assert (found, left) == ([b"1", b"2", b"3"], [0])
