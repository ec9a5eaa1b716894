"""Recoverable receiver links on nodes that are one cluster: what they hold, whoever has the queue or the link."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from clusterbroker.broker.queues.attributes import EXCLUDED
from clusterbroker.broker.queues.link_deliveries import STALE
from clusterbroker.broker.queues.link_held import HeldMessages
from clusterbroker.cluster.ids import Incarnation, LogIndex, NodeId
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.node.link_clients import Choosy, Client, Receiver, message
from tests.unit.broker.node.node_cluster import Cluster, Site


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare("q")
    return cluster


def owner(cluster: Cluster) -> Site:
    return next(site for site in cluster.running if owned(site))


def owned(site: Site) -> list[Any]:
    return [queue for queue in site.node.queues.values() if queue.name == "q"]


def others(cluster: Cluster) -> list[str]:
    return [site.name for site in cluster.running if site is not owner(cluster)]


def ring(cluster: Cluster) -> Any:
    (queue,) = owned(owner(cluster))
    return queue.ring


def publish(cluster: Cluster, *bodies: bytes, ttl_ms: int = -1) -> None:
    site = owner(cluster)
    site.node.vhosts["/"].queues["q"].publish([message(body, ttl_ms) for body in bodies], None, site.now_ms)
    cluster.turn()


def names(cluster: Cluster) -> list[bytes]:
    return sorted({name[:1] for name in ring(cluster).attributes if name[:1] in (b"k", b"v")})


WHERE = pytest.mark.parametrize("where", ["owner", "elsewhere"])


def place(cluster: Cluster, where: str) -> str:
    return owner(cluster).name if where == "owner" else others(cluster)[0]


@WHERE
@pytest.mark.parametrize("backlog", [False, True])
def test_what_is_delivered_is_settled_once(cluster: Cluster, where: str, backlog: bool) -> None:
    receiver = Receiver(cluster, place(cluster, where))
    if backlog:
        publish(cluster, b"1", b"2", b"3")
    assert receiver.consume() == ""
    if not backlog:
        publish(cluster, b"1", b"2", b"3")
    assert receiver.read() == [(b"1", False), (b"2", False), (b"3", False)]
    assert ring(cluster).links() == {receiver.link.link: 3}
    receiver.ack(b"2")
    assert receiver.held() == [HeldMessages(1, 1, 0), HeldMessages(3, 3, 0)]
    receiver.ack(b"1", b"3")
    publish(cluster, b"4")
    assert (ring(cluster).links(), receiver.bodies()) == ({receiver.link.link: 1}, [b"4"])


@pytest.mark.parametrize("backlog", [False, True])
def test_no_delivery_is_sent_before_its_group_is_committed(cluster: Cluster, backlog: bool) -> None:
    receiver = Receiver(cluster, others(cluster)[0])
    if backlog:
        publish(cluster, b"1")
    else:
        receiver.consume()
    for site in cluster.running:
        site.disk_waits = True
    if backlog:
        receiver.answers.clear()
        receiver.consume()
    else:
        publish(cluster, b"1")
    cluster.wait(500)
    assert receiver.read() == []
    assert ring(cluster).links() == {receiver.link.link: 1}, "it is assigned"
    for site in cluster.running:
        site.disk_waits = False
    assert receiver.bodies() == [b"1"]


@WHERE
def test_a_message_that_comes_is_written_and_assigned_in_one_group(cluster: Cluster, where: str) -> None:
    receiver = Receiver(cluster, place(cluster, where))
    receiver.consume()
    publish(cluster, b"0")
    receiver.ack(*receiver.bodies())
    for site in cluster.running:
        site.disk_waits = True
    groups = ring(cluster).groups
    publish(cluster, b"1")
    assert ring(cluster).groups == groups + 1
    assert not ring(cluster).needs_write, "and nothing is left for another one"
    for site in cluster.running:
        site.disk_waits = False
    assert receiver.bodies() == [b"1"]


@WHERE
@pytest.mark.parametrize("to", ["owner", "elsewhere"])
def test_a_resumed_link_has_what_it_held(cluster: Cluster, where: str, to: str) -> None:
    first = Receiver(cluster, place(cluster, where))
    first.consume(prefetch=3)
    publish(cluster, b"1", b"2", b"3", b"4")
    first.read()
    first.ack(b"2")
    assert first.bodies() == [b"4"]
    first.leave()
    other = Client(cluster, others(cluster)[1])
    other.consume()
    publish(cluster, b"5")
    assert other.bodies() == [b"5"], "what the link holds nobody else is handed"
    second = Receiver(cluster, owner(cluster).name if to == "owner" else others(cluster)[1], resumes=True)
    assert second.link == (first.link.link, 2)
    assert second.held() == [HeldMessages(1, 1, 0), HeldMessages(3, 4, 0)]
    read: list[bytes] = []
    second.handle.reread([1, 3], lambda found, _: read.extend(m.body for m in found.values()))
    cluster.turn()
    assert read == [b"1", b"3"]
    second.settle(1)
    second.handle.requeue(3, False)
    assert other.read() == [(b"3", True)], "what it gives back is anybody's"
    assert second.held() == [HeldMessages(4, 4, 0)]


def test_an_older_attach_says_nothing_any_more(cluster: Cluster) -> None:
    here, there = others(cluster)
    first = Receiver(cluster, here)
    first.consume()
    publish(cluster, b"1", b"2")
    first.read()
    second = Receiver(cluster, there, resumes=True)
    assert first.lost == [True]
    assert second.seqs() == [1, 2]
    first.ack(b"1")
    first.give_back(b"2")
    publish(cluster, b"3")
    assert second.seqs() == [1, 2], "a late settlement is nobody's"
    assert (first.read(), first.held()) == ([], STALE)
    assert first.consume() == STALE
    assert second.consume() == ""
    assert second.bodies() == [b"3"]


@pytest.mark.parametrize("end", ["fresh", "forget", "expire"])
def test_what_a_link_held_returns_at_its_end(cluster: Cluster, end: str) -> None:
    here, there = others(cluster)
    first = Receiver(cluster, here)
    first.consume()
    publish(cluster, b"1", b"2")
    first.read()
    other = Client(cluster, there)
    first.leave()
    other.consume()
    assert other.read() == []
    if end == "fresh":
        assert Receiver(cluster, there).held() == []
    elif end == "forget":
        cluster.order(c.ForgetLink(link=LogIndex(first.link.link), attach=1))
    else:
        cluster.order(c.ExpireLink(link=LogIndex(first.link.link), attach=1))
    assert other.read() == [(b"1", True), (b"2", True)], "flagged"
    assert ring(cluster).delivery_count(1) == 0, "and uncounted"
    assert (ring(cluster).links(), b"k" in names(cluster)) == ({}, False)


def test_what_is_given_back_waits_for_the_log(cluster: Cluster) -> None:
    here, there = others(cluster)
    first = Receiver(cluster, here)
    first.consume(prefetch=1)
    publish(cluster, b"1")
    first.read()
    other = Client(cluster, there)
    other.consume()
    for site in cluster.running:
        site.disk_waits = True
    assert first.subscription is not None
    first.handle.unsubscribe(first.subscription, 0)
    first.give_back(b"1", counted=True)
    cluster.wait(500)
    assert other.read() == []
    for site in cluster.running:
        site.disk_waits = False
    assert other.read() == [(b"1", True)]
    assert ring(cluster).delivery_count(1) == 1


@WHERE
def test_the_next_owner_has_what_links_hold(cluster: Cluster, where: str) -> None:
    survivor = others(cluster)[0]
    first = Receiver(cluster, place(cluster, where))
    first.consume(prefetch=2)
    publish(cluster, b"1", b"2", b"3")
    first.read()
    first.ack(b"1")
    first.read()
    first.leave()
    cluster.kill(owner(cluster).name)
    cluster.wait(1000)
    other = Client(cluster, survivor)
    other.consume()
    publish(cluster, b"4")
    assert other.bodies() == [b"4"]
    second = Receiver(cluster, survivor, resumes=True)
    assert second.held() == [HeldMessages(2, 3, 0)]


def test_a_client_goes_on_over_a_failover(cluster: Cluster) -> None:
    receiver = Receiver(cluster, others(cluster)[0])
    receiver.consume(prefetch=10)
    publish(cluster, b"1", b"2")
    assert receiver.bodies() == [b"1", b"2"]
    cluster.kill(owner(cluster).name)
    cluster.wait(1000)
    receiver.ack(b"1")
    publish(cluster, b"3")
    assert receiver.bodies() == [b"3"]
    receiver.ack(b"2", b"3")
    publish(cluster, b"4")
    assert receiver.bodies() == [b"4"]
    assert ring(cluster).links() == {receiver.link.link: 1}


def test_what_was_committed_and_did_not_arrive_is_sent_again(cluster: Cluster) -> None:
    receiver = Receiver(cluster, others(cluster)[0])
    receiver.consume()
    publish(cluster, b"0")
    receiver.ack(*receiver.bodies())
    for site in cluster.running:
        site.disk_waits = True
    publish(cluster, b"1", b"2")
    cluster.unlink(owner(cluster).name, receiver.site.name)
    for site in cluster.running:
        site.disk_waits = False
    cluster.wait(300)
    assert receiver.read() == []
    cluster.relink()
    cluster.wait(300)
    assert receiver.bodies() == [b"1", b"2"]
    receiver.ack(b"1", b"2")
    publish(cluster, b"3")
    assert receiver.bodies() == [b"3"]


def test_a_full_restart_knows_what_was_held(cluster: Cluster) -> None:
    first = Receiver(cluster, others(cluster)[0])
    first.consume(prefetch=70)
    publish(cluster, *(b"%d" % n for n in range(100)))
    bodies = first.bodies()
    first.ack(*bodies[:5])
    for name in "abc":
        cluster.kill(name, failed=False)
    for name in "abc":
        cluster.restart(name)
    cluster.wait(1000)
    second = Receiver(cluster, "a", resumes=True)
    assert second.seqs() == list(range(6, 76))
    assert ring(cluster).ready == 25


def test_an_owner_that_was_away_returns_what_is_over_when_it_takes_over(cluster: Cluster) -> None:
    first = Receiver(cluster, others(cluster)[0])
    first.consume()
    publish(cluster, b"1")
    first.read()
    for name in "abc":
        cluster.kill(name, failed=False)
    cluster.order(c.ForgetLink(link=LogIndex(first.link.link), attach=1))
    for name in "abc":
        cluster.restart(name)
    cluster.wait(1000)
    assert (ring(cluster).ready, ring(cluster).links(), names(cluster)) == (1, {}, [])


def test_an_owner_that_was_away_hears_that_a_link_began_anew(cluster: Cluster) -> None:
    first = Receiver(cluster, others(cluster)[0])
    first.consume()
    publish(cluster, b"1")
    first.read()
    command = c.AttachLink(
        node=NodeId("b"), incarnation=Incarnation(1), resumes=False, vhost="/", container="c", name="l",
        role="receiver", terminus="/queues/q", user="guest", timeout_ms=1000,
    )  # fmt: skip
    for name in "abc":
        cluster.kill(name, failed=False)
    cluster.order(command)
    for name in "abc":
        cluster.restart(name)
    cluster.wait(1000)
    assert (ring(cluster).ready, ring(cluster).links()) == (1, {})


def test_neither_purge_nor_time_takes_what_is_held(cluster: Cluster) -> None:
    first = Receiver(cluster, others(cluster)[0])
    first.consume(prefetch=2)
    publish(cluster, b"1", b"2", b"3", ttl_ms=1000)
    first.read()
    first.leave()
    cluster.wait(2000)
    purged: list[int] = []
    first.handle.purge(purged.append)
    cluster.turn()
    assert purged == [0], "the third has expired"
    assert Receiver(cluster, others(cluster)[1], resumes=True).seqs() == [1, 2]


@pytest.mark.parametrize("fails_over", [False, True])
def test_a_suspended_link_stays_the_single_active_consumer(fails_over: bool) -> None:
    cluster = Cluster("a", "b", "c", "d")
    cluster["a"].client().declare("q", x_single_active_consumer=True)
    here, there = others(cluster)[:2]
    first = Receiver(cluster, here)
    first.consume()
    other = Client(cluster, there)
    other.consume()
    publish(cluster, b"1")
    assert (first.bodies(), other.bodies()) == ([b"1"], [])
    first.leave()
    if fails_over:
        cluster.kill(owner(cluster).name)
        cluster.wait(1000)
    publish(cluster, b"2")
    assert other.bodies() == []
    second = Receiver(cluster, here, resumes=True)
    assert second.seqs() == [1]
    second.consume()
    assert (second.bodies(), other.bodies()) == ([b"2"], [])
    second.leave()
    cluster.order(c.ExpireLink(link=LogIndex(first.link.link), attach=2))
    assert other.read() == [(b"1", True), (b"2", True)]


def test_a_rejected_message_and_counted_returns_reach_the_delivery_limit(cluster: Cluster) -> None:
    cluster.order(c.PutPolicy(vhost="/", name="p", pattern="q", definition={"delivery-limit": 1}))
    first = Receiver(cluster, others(cluster)[0])
    first.consume()
    publish(cluster, b"1", b"2")
    first.read()
    first.reject(b"1")
    first.give_back(b"2", counted=True)
    assert first.read() == [(b"2", True)]
    assert first.held() == [HeldMessages(2, 2, 1)]
    first.give_back(b"2", counted=True)
    assert first.read() == []
    assert (ring(cluster).ready, ring(cluster).links()) == (0, {})


@WHERE
def test_an_exclusion_is_in_the_group_of_its_return(cluster: Cluster, where: str) -> None:
    receiver = Receiver(cluster, place(cluster, where))
    receiver.kind = partial(Choosy, "c\0l", None)
    receiver.consume()
    publish(cluster, b"m0")
    assert receiver.bodies() == [b"m0"]
    for site in cluster.running:
        site.disk_waits = True
    receiver.exclude(b"m0", "c\0l")
    known = ring(cluster)
    assert known.ready == 0, "it has not returned: no log says so"
    assert EXCLUDED.names(known.attributes), "and whichever does says what is excluded"
    for site in cluster.running:
        site.disk_waits = False
    cluster.wait(500)
    assert known.ready == 1
    assert receiver.bodies() == []
