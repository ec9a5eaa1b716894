"""Leases in a cluster: over any node, whoever owns the queue, and while owners change."""

from __future__ import annotations

import pytest

from clusterbroker.broker.queues.attributes import LEASE, LEASE_ACKNOWLEDGED, LEASE_RUN
from clusterbroker.broker.wire.amqp091 import methods as m
from tests.unit.broker.fronts.amqp091.harness import bodies
from tests.unit.broker.fronts.amqp091.leasing_reader import Reader
from tests.unit.broker.fronts.amqp091.memory_journal import MemoryJournal
from tests.unit.broker.node.node_cluster import Cluster
from tests.unit.broker.node.places import confirming, declared, drained, hand_over, owner_of, three


def rows(*numbers: int) -> list[tuple[int, bytes]]:
    return [(n, b"%d" % n) for n in numbers]


def reader_at(cluster: Cluster, node: str, run: str = "r1", name: str = "n") -> Reader:
    return Reader(cluster[node].client(), run, name, lambda: cluster.wait(200))


def filled(cluster: Cluster, count: int = 10, **arguments: object) -> None:
    """Queue q at node a, with messages 1, 2, ..."""
    declared(cluster, "q", "a", **arguments)
    confirming(cluster, "b").publish("", "q", *[b"%d" % n for n in range(1, count + 1)])


def test_a_reader_of_any_node_takes_reads_and_settles() -> None:
    cluster = three()
    filled(cluster)
    far, near, third = (reader_at(cluster, node) for node in ("c", "a", "b"))
    taken = far.take(rows=6)
    assert (taken["outcome"], taken["start"], taken["end"], taken["rows"]) == ("leased", 1, 7, 6)
    assert far.read(1, 7) == near.read(1, 7, prefetch=2) == third.read(1, 7, prefetch=1) == rows(*range(1, 7))
    assert near.word("settle", upto=4)["acknowledged"] == 4
    assert third.take(4, rows=20)["end"] == 11
    assert far.read(4, 11) == rows(*range(4, 11))


@pytest.mark.parametrize("node", ["a", "b"])
def test_nobody_else_gets_anything_at_any_node(node: str) -> None:
    cluster = three()
    filled(cluster)
    reader = reader_at(cluster, "c")
    reader.take(rows=3)
    client = cluster[node].client(channels=2)
    text = "ACCESS_REFUSED - queue 'q' in vhost '/' is leased by 'n'"
    heard = client.say(m.BasicConsume(queue="q"))
    assert (heard[-1].reply_code, heard[-1].reply_text) == (403, text)
    heard = client.say(m.BasicGet(queue="q"), channel=2)
    assert (heard[-1].reply_code, heard[-1].reply_text) == (403, text)
    assert reader_at(cluster, node, name="other").take()["reason"] == "queue 'q' in vhost '/' is leased by 'n'"
    reader.word("release")
    assert len(drained(cluster, "q", node)) == 10


def test_a_queue_with_a_consumer_of_another_node_is_not_leased() -> None:
    cluster = three()
    filled(cluster)
    client = cluster["b"].client()
    client.consume("q")
    reader = reader_at(cluster, "c")
    assert "consumers" in reader.take()["reason"]
    client.say(m.BasicCancel("ctag"))
    assert "10 unacknowledged" in reader.take()["reason"]
    client.say(m.BasicAck(4, True))
    client.leave()
    cluster.wait(100)
    assert reader.take()["start"] == 5


@pytest.mark.parametrize("how", ["killed", "moved"])
def test_the_next_owner_has_the_lease(how: str) -> None:
    cluster = three()
    filled(cluster)
    reader = reader_at(cluster, "c")
    taken = reader.take(rows=6)
    reader.word("settle", upto=3)
    if how == "killed":
        cluster.kill("a")
        cluster.wait(3000)
    else:
        hand_over(cluster, "q", "b")
    assert owner_of(cluster, "q") != "a"
    assert reader.read(3, 7) == rows(3, 4, 5, 6)
    heard = cluster["b"].client().say(m.BasicConsume(queue="q"))
    assert heard[-1].reply_code == 403
    again = reader.take(3, rows=6)
    assert (again["life"], again["start"], again["end"], again["rows"]) == (taken["life"], 3, 9, 6)
    later = reader_at(cluster, "b", "r2")
    assert later.take(9)["end"] == 11
    assert reader.word("settle", upto=9)["code"] == 409
    assert later.word("settle", upto=11)["acknowledged"] == 11
    assert drained(cluster, "q", "b") == []


def replaced(cluster: Cluster) -> None:
    """Run r2 has the lease, to which r1 was before."""
    filled(cluster)
    reader_at(cluster, "c").take(rows=6)
    assert reader_at(cluster, "c", "r2").take(rows=6)["end"] == 7


def only_the_second_run_goes_on(cluster: Cluster, node: str, upto: int) -> None:
    for said in (
        reader_at(cluster, node).word("settle", upto=7),
        reader_at(cluster, node).take(),
        reader_at(cluster, node).word("release"),
    ):
        assert said["code"] == 409, said
        assert said["reason"] == "lease 'n' of queue 'q' in vhost '/' was taken over by run 'r2'"
    assert reader_at(cluster, node, "r2").word("settle", upto=upto)["acknowledged"] == upto


@pytest.mark.parametrize("how", ["killed", "moved", "all restarted"])
def test_a_run_that_was_replaced_is_refused_by_the_next_owner_too(how: str) -> None:
    cluster = three()
    replaced(cluster)
    if how == "killed":
        cluster.kill("a")
    elif how == "moved":
        hand_over(cluster, "q", "b")
    else:
        for name in "abc":
            cluster.kill(name, failed=False)
        for name in "abc":
            cluster.restart(name)
    cluster.wait(3000)
    assert how == "all restarted" or owner_of(cluster, "q") != "a"
    only_the_second_run_goes_on(cluster, "c", 3)
    reader_at(cluster, "c", "r2").word("release")
    queue_id = cluster.queue("q").queue_id
    for site in cluster.running:
        assert site.node.role is not None
        queue = site.node.queues.get(queue_id)
        known = site.node.role.copying.replicas[queue_id] if queue is None else queue.ring
        kinds = (LEASE, LEASE_ACKNOWLEDGED, LEASE_RUN)
        assert not any(kind.names(known.attributes) for kind in kinds), "the lease and its runs are gone"


def test_a_copy_that_was_synced_from_scratch_knows_the_runs() -> None:
    cluster = three()
    replaced(cluster)
    for site in cluster.sites.values():  # the records of the lease are in no log any more, but in the index
        site.checkpoint()
    for name in "bc":
        cluster.kill(name)
        cluster[name].journal = MemoryJournal()
        cluster.restart(name)
        cluster.wait(3000)
    cluster.kill("a")
    cluster.wait(3000)
    only_the_second_run_goes_on(cluster, "c", 4)


def test_the_next_owner_knows_what_was_settled_though_nothing_is_left_of_it() -> None:
    """Without that, a reader would take messages that are gone for gaps, and miss them."""
    cluster = three()
    filled(cluster)
    reader = reader_at(cluster, "c")
    reader.take(rows=6)
    reader.word("settle", upto=5)
    cluster.kill("a")
    cluster.wait(3000)
    assert reader.refused(x_stream_offset=1, x_stream_end=7)[1].endswith("is gone, the lease begins at 5")
    assert reader.take(1)["acknowledged"] == 5


def test_words_that_come_while_the_owner_dies_are_carried_out_by_the_next() -> None:
    cluster = three()
    filled(cluster)
    reader = reader_at(cluster, "c")
    reader.take(rows=6)
    cluster.kill("a")
    assert reader.word("settle", upto=5)["acknowledged"] == 5, "asked again"
    cluster.wait(2000)
    assert reader.read(5, 7) == rows(5, 6)


def test_a_reader_goes_on_over_a_failover() -> None:
    cluster = three()
    filled(cluster, 40)
    reader = reader_at(cluster, "c")
    reader.take()
    client = cluster["c"].client()
    client.ask(m.BasicQos(0, 10, False))
    heard = client.consume("q", arguments={"x-lease": "n", "x-stream-offset": 1, "x-stream-end": 41})
    assert len(bodies(heard)) == 10
    cluster.kill("a")
    found = bodies(heard)
    for _ in range(100):
        heard = client.say(m.BasicAck(0, True))
        found += bodies(heard)
        if any(isinstance(said, m.BasicCancel) for said in heard):
            break
        cluster.wait(100)
    assert found == [b"%d" % n for n in range(1, 41)], "each once"


def test_a_released_lease_is_over_for_the_next_owner_too() -> None:
    cluster = three()
    filled(cluster)
    reader = reader_at(cluster, "c")
    reader.take(rows=6)
    reader.word("release")
    cluster.kill("a")
    cluster.wait(3000)
    assert reader.word("settle", upto=3)["code"] == 404
    assert len(drained(cluster, "q", "b")) == 10


def test_a_lease_ends_with_time_at_the_next_owner() -> None:
    cluster = three()
    filled(cluster)
    reader = reader_at(cluster, "c")
    reader.take(rows=6, ttl_ms=20_000)
    cluster.kill("a")
    cluster.wait(3000)
    reader.take(1, rows=6, ttl_ms=20_000)
    cluster.wait(10_000)
    assert reader.read(1, 7) == rows(*range(1, 7))
    cluster.wait(25_000)
    assert len(drained(cluster, "q", "b")) == 10


def test_a_queue_without_an_owner_answers_503_after_a_while() -> None:
    cluster = three()
    filled(cluster)
    reader = reader_at(cluster, "c")
    reader.take(rows=6)
    cluster.kill("b")
    cluster.kill("a")
    assert reader.word("settle", upto=3) == {
        "outcome": "refused",
        "code": 503,
        "reason": "unavailable, may be repeated",
    }


def test_a_transient_queue_of_another_node_is_leased_too() -> None:
    cluster = three()
    client = cluster["a"].client()
    client.ask(m.QueueDeclare(queue="t", durable=False, arguments={}))
    client.publish("", "t", b"1", b"2", b"3", transient=True)
    reader = reader_at(cluster, "b")
    taken = reader.take(queue="t", rows=2)
    assert taken["end"] == 3
    assert reader.read(1, 3, queue="t") == rows(1, 2)
    assert reader.word("settle", queue="t", upto=3)["acknowledged"] == 3


def test_a_lease_is_ended_over_any_node() -> None:
    cluster = three()
    filled(cluster)
    reader = reader_at(cluster, "b")
    assert reader.take(rows=2)["rows"] == 2
    cluster["c"].client().publish("amq.lease", "end", b'{"queue": "q"}')
    cluster.wait(200)
    assert reader.word("settle", upto=2)["code"] == 404
    assert cluster["a"].node.queues[cluster.queue("q").queue_id].ready == 10
    assert not cluster.bad_frames
