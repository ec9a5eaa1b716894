"""A mistake of ours in the replication of a queue costs this node's copy of it, one over what is said to a member the
link: the node goes on, and nothing that was confirmed is lost."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.node.hub import Hub
from clusterbroker.broker.node.messages import Occupied, Reach
from clusterbroker.broker.node.relay import Relay
from clusterbroker.broker.remote.outbox import Outbox
from clusterbroker.broker.remote.remote_queue import RemoteQueue
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.replication import copying
from clusterbroker.replication.backup import Backup
from clusterbroker.replication.copying import Copying
from tests.unit.broker.fronts.amqp091.harness import Client
from tests.unit.broker.node.node_cluster import Cluster, Site
from tests.unit.broker.node.places import declared, drained
from tests.unit.broker.node.test_mistakes import mistaken


def cluster_of(**arguments: Any) -> tuple[Cluster, Site, Client]:
    """q and other, owned by a; the client is at b."""
    cluster = Cluster("a", "b", "c")
    declared(cluster, "q", "a", **arguments)
    declared(cluster, "other", "a")
    for site in cluster.sites.values():
        site.story.forgives = True
    client = cluster["b"].client()
    client.ask(m.ConfirmSelect())
    return cluster, cluster["a"], client


def settled(cluster: Cluster) -> None:
    """Links are there again, and copies in sync."""
    for _ in range(4):
        cluster.relink()
        cluster.wait(3000)


def is_whole(cluster: Cluster, client: Client, confirmed: list[Any], bodies: list[bytes]) -> None:
    settled(cluster)
    assert [site.name for site in cluster.running] == ["a", "b", "c"]
    tags = {said.delivery_tag for said in (*confirmed, *client.hear(1)) if isinstance(said, m.BasicAck)}
    assert max(tags) == len(bodies), "all of it is confirmed in the end"
    assert cluster.queue("q").in_sync == ("a", "b", "c"), "the copy was made anew"
    for site in cluster.sites.values():
        assert not site.node.role.copying.distrusted
    assert drained(cluster, "q") == bodies


def stumbled(site: Site) -> list[tuple[str, str]]:
    return [(alert.kind, alert.subject) for alert in site.node.alerts]


def test_at_the_owner_it_costs_the_ownership(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, owner, client = cluster_of()
    confirmed = client.publish("", "q", b"1")
    q = cluster.queue("q").queue_id
    with mistaken(monkeypatch, Copying, "committed", lambda one, queue_id, _: one._name == "a" and queue_id == q):
        confirmed += client.publish("", "q", b"2")
        cluster.wait(100)
    assert cluster.queue("q").owner in ("b", "c")
    assert cluster.queue("other").owner == "a"
    assert stumbled(owner) == [("replica.stumbled", "queue 'q' in vhost '/'")]
    confirmed += client.publish("", "q", b"3")
    is_whole(cluster, client, confirmed, [b"1", b"2", b"3"])


def test_and_so_does_one_while_its_records_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, owner, client = cluster_of()
    confirmed = client.publish("", "q", b"1")
    real, left = copying.place_of, [1]

    def once(*given: Any) -> Any:
        if left:
            left.pop()
            raise ZeroDivisionError
        return real(*given)

    monkeypatch.setattr(copying, "place_of", once)
    confirmed += client.publish("", "q", b"2")
    cluster.wait(100)
    assert cluster.queue("q").owner in ("b", "c")
    assert stumbled(owner) == [("replica.stumbled", "queue 'q' in vhost '/'")]
    is_whole(cluster, client, confirmed, [b"1", b"2"])


class Unfolding:
    """A ring that cannot take what its owner says."""

    def __init__(self, ring: Any) -> None:
        self._ring = ring

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ring, name)

    def fold(self, *_: Any) -> None:
        raise ZeroDivisionError


@pytest.mark.parametrize("dies", [False, True])
def test_at_a_replica_it_costs_the_copy(dies: bool) -> None:
    """The owner is not told that the records are there."""
    cluster, _, client = cluster_of()
    confirmed = client.publish("", "q", b"1")
    site, q = cluster["c"], cluster.queue("q").queue_id
    replicas = site.node.role.copying.replicas
    replicas[q] = Unfolding(replicas[q])
    confirmed += client.publish("", "q", b"2")
    assert stumbled(site) == [("replica.stumbled", "queue 'q' in vhost '/'")]
    assert [(name, peer) for name, peer, _ in cluster.bad_frames] == [("c", "a")]
    if dies:
        cluster.kill("a")
        cluster.wait(3000)
        assert cluster.queue("q").owner == "b" or cluster["b"].map.queue("/", "q").owner == "b"
        cluster.restart("a")
    is_whole(cluster, client, confirmed, [b"1", b"2"])


def test_what_nobody_else_has_ends_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins again from what it has written."""
    cluster, _, client = cluster_of(x_replicas=1)
    with (
        mistaken(monkeypatch, Copying, "committed", lambda one, *_: one._name == "a"),
        pytest.raises(ZeroDivisionError),
    ):
        client.publish("", "q", b"1")
        cluster.wait(100)


def test_a_sync_that_raises_costs_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, _, client = cluster_of()
    confirmed = client.publish("", "q", b"1")
    cluster.kill("c")
    confirmed += client.publish("", "q", b"2")
    with mistaken(monkeypatch, Backup, "_pump", lambda one, _: one._name == "c"):
        cluster.restart("c")
        cluster["c"].story.forgives = True
        cluster.wait(200)
    assert ("c", "a") in {(name, peer) for name, peer, _ in cluster.bad_frames}
    is_whole(cluster, client, confirmed, [b"1", b"2"])


def test_what_a_proxy_has_to_say_costs_the_queue_or_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, _, client = cluster_of()
    confirmed = client.publish("", "q", b"1")
    with mistaken(monkeypatch, RemoteQueue, "speaks", lambda queue: queue.entity.name == "q"):
        cluster.unlink("a", "b")
        cluster.relink()
        cluster.wait(500)
        confirmed += client.publish("", "q", b"2")
        other = cluster["b"].client()
        other.ask(m.ConfirmSelect())
        assert other.publish("", "other", b"x"), "other queues of that owner are served"
        cluster.wait(500)
    cluster.wait(2000)
    calls = [3]

    def some(outbox: Any, _: Any) -> bool:
        calls[0] -= outbox.owner == "a"
        return outbox.owner == "a" and calls[0] >= 0

    with mistaken(monkeypatch, Outbox, "flush", some):
        confirmed += client.publish("", "q", b"3")
        settled(cluster)
    is_whole(cluster, client, confirmed, [b"1", b"2", b"3"])


def test_what_is_due_over_a_member_costs_the_link_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Links of others, and the number of connections that count."""
    cluster, _, client = cluster_of()
    confirmed = client.publish("", "q", b"1")
    for message in (Reach, Occupied):
        cluster.bad_frames.clear()

        def of_this_kind(hub: Hub, peer: str, head: Any, *_: Any, kind: type = message) -> bool:
            return (hub.name, peer, type(head)) == ("b", "c", kind) and not getattr(head, "whole", False)

        with mistaken(monkeypatch, Hub, "send", of_this_kind):
            cluster.order(c.SetVhostLimits(vhost="/", connections_max=100 if message is Occupied else None))
            cluster.wait(3000)
            assert {(name, peer) for name, peer, _ in cluster.bad_frames} == {("b", "c")}
            assert [site.name for site in cluster.running] == ["a", "b", "c"]
        confirmed += client.publish("", "q", b"2" if message is Reach else b"3")
    is_whole(cluster, client, confirmed, [b"1", b"2", b"3"])


def test_a_relayed_link_that_cannot_be_opened_is_tried_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, _, _ = cluster_of()
    times: list[int] = []

    def tried(relay: Relay, peer: str, *_: Any) -> bool:
        if (relay.name, peer) == ("b", "c"):
            times.append(cluster.now_ms)
            return True
        return False

    with mistaken(monkeypatch, Relay, "_open", tried):
        cluster.unlink("b", "c")
        cluster.wait(3000)
        assert [site.name for site in cluster.running] == ["a", "b", "c"]
        assert 2 <= len(times) < 20
    cluster.wait(3000)
    assert "c" in cluster["b"].node.role.relay.via  # type: ignore[union-attr]


def test_a_node_that_stumbles_over_its_own_words_again_and_again_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, owner, _ = cluster_of()
    with (
        mistaken(monkeypatch, Outbox, "flush", lambda outbox, host: outbox.owner == "a" and host.name == "a"),
        pytest.raises(ZeroDivisionError),
    ):
        owner.client().publish("", "q", b"1")
        cluster.wait(3000)
