"""A disk that goes back in time: whoever is ahead owns the queue, and nothing that was confirmed is cut.

Before, the in-sync member that owned fewest queues became the owner, whatever its disk held, and the others were cut
to it (operator a1)."""

from __future__ import annotations

import pytest

from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import bodies
from tests.unit.broker.fronts.amqp091.memory_journal import MemoryJournal
from tests.unit.broker.node.node_cluster import Cluster, Site

FIRST, ALL = 3, 12
NEAR = {"x_queue_leader_locator": "client-local"}


def filled(stale: str, owner: str, **options: object) -> tuple[Cluster, MemoryJournal]:
    """FIRST messages are confirmed, the disk of `stale` is looked at, then the others up to ALL are confirmed."""
    cluster = Cluster("a", "b", "c")
    for name in "abc":
        if name != stale:  # who owns fewest queues is elected
            cluster[name].client().declare(f"of-{name}", **NEAR)
    client = cluster[owner].client()
    client.declare("q", **NEAR, **options)
    client.ask(m.ConfirmSelect())
    for number in range(FIRST):
        client.publish("", "q", b"%d" % number)
    saved = cluster[stale].journal.as_it_is()
    for number in range(FIRST, ALL):
        assert client.publish("", "q", b"%d" % number), "it is confirmed"
    return cluster, saved


def power_cut(cluster: Cluster, stale: str, saved: MemoryJournal, back: str = "abc") -> None:
    """All end at once; `stale` returns with the disk that it had."""
    for name in "abc":
        cluster.kill(name, failed=False)
    cluster[stale].journal = saved
    cluster[stale].journal.crash(0)
    for name in back:
        cluster.restart(name)
    cluster.wait(4000)


def in_sync(cluster: Cluster) -> tuple[str, ...]:
    return tuple(cluster.queue("q").in_sync)


def alerts(site: Site) -> list[tuple[str, str]]:
    return [(alert.kind, alert.subject) for alert in site.node.alerts]


def told(site: Site, event: str) -> list[str]:
    return [facts["node"] for said, facts in site.events if said == event and facts["queue"] == "q"]


@pytest.mark.parametrize("back", ["abc", "cab", "cba"])
def test_the_copy_that_is_ahead_leads(back: str) -> None:
    cluster, saved = filled("c", "c")
    power_cut(cluster, "c", saved, back)
    assert cluster.queue("q").owner in ("a", "b")
    assert bodies(cluster["b"].client().consume("q")) == [b"%d" % number for number in range(ALL)]
    assert in_sync(cluster) == ("a", "b", "c")
    assert told(cluster["c"], "replica.rolled_back") == ["c"]
    assert alerts(cluster["c"]) == [("replica.rolled_back", "c")]
    assert not alerts(cluster["a"])
    assert not alerts(cluster["b"])


def test_the_disk_of_a_copy_went_back() -> None:
    cluster, saved = filled("c", "a")
    for name in ("x", "y"):
        cluster["c"].client().declare(name, **NEAR)
    power_cut(cluster, "c", saved, "abc")
    owner = str(cluster.queue("q").owner)
    assert owner in ("a", "b")
    assert told(cluster["c"], "replica.rolled_back") == ["c"]
    assert "c" in told(cluster["a"], "replica.rolled_back") + told(cluster["b"], "replica.rolled_back")
    assert in_sync(cluster) == ("a", "b", "c")
    assert alerts(cluster["c"]) == [("replica.rolled_back", "c")]
    assert bodies(cluster["c"].client().consume("q")) == [b"%d" % number for number in range(ALL)]


def test_one_group_less_is_no_proof_but_who_has_it_leads() -> None:
    """The last group may never have been confirmed; nobody says that a disk went back, and nothing is lost."""
    cluster = Cluster("a", "b", "c")
    for name in "ab":
        cluster[name].client().declare(f"of-{name}", **NEAR)
    client = cluster["c"].client()
    client.declare("q", **NEAR)
    client.ask(m.ConfirmSelect())
    client.publish("", "q", b"0")
    saved = cluster["c"].journal.as_it_is()
    assert client.publish("", "q", b"1"), "it is confirmed"
    power_cut(cluster, "c", saved)
    assert bodies(cluster["b"].client().consume("q")) == [b"0", b"1"]
    assert not alerts(cluster["c"])
    assert not told(cluster["c"], "replica.rolled_back")
    assert in_sync(cluster) == ("a", "b", "c")


def test_who_has_one_group_more_leads_also_when_it_is_only_eligible() -> None:
    """Before, the map refused that, as it refused it whenever a third member came or went at that moment; the owner
    took the refusal for leave to cut the group."""
    cluster = Cluster("a", "b", "c")
    client = cluster["c"].client()
    client.declare("q", **NEAR)
    client.ask(m.ConfirmSelect())
    client.publish("", "q", b"0")
    saved = cluster["c"].journal.as_it_is()
    assert client.publish("", "q", b"1"), "it is confirmed"
    for name in "abc":
        cluster.kill(name, failed=False)
    for name in "ab":  # one after the other, before c has finished its first sync
        cluster.order(c.FailNode(node=NodeId(name), incarnation=cluster[name].node.options.incarnation))  # type: ignore[arg-type]
    cluster["c"].journal = saved
    cluster["c"].journal.crash(0)
    for name in "cab":
        cluster.restart(name)
    cluster.wait(4000)
    assert bodies(cluster["b"].client().consume("q")) == [b"0", b"1"]
    assert not alerts(cluster["c"])
    assert in_sync(cluster) == ("a", "b", "c")


def test_acknowledged_messages_do_not_live_again_after_a_disk_went_back() -> None:
    cluster, _ = filled("c", "c")
    saved = cluster["c"].journal.as_it_is()
    client = cluster["a"].client()
    for _ in range(5):
        got = client.ask(m.BasicGet(queue="q"))
        client.say(m.BasicAck(delivery_tag=got.method.delivery_tag))
    power_cut(cluster, "c", saved)
    assert bodies(cluster["b"].client().consume("q")) == [b"%d" % number for number in range(5, ALL)]
    assert alerts(cluster["c"]) == [("replica.rolled_back", "c")]


def began_alone() -> Cluster:
    """The minimum is one: c begins with what it has, for a and b are away. They return, and are kept apart."""
    cluster, saved = filled("c", "c")
    cluster.order(c.PutPolicy(vhost="/", name="p", pattern=".*", definition={"min-in-sync": 1}))
    for name in "ab":
        cluster[name].checkpoint()  # with what is known as committed by then
    for name in "abc":
        cluster.kill(name, failed=False)
    cluster["c"].journal = saved
    cluster["c"].journal.crash(0)
    for name in "ab":
        cluster.order(c.FailNode(node=NodeId(name), incarnation=cluster[name].node.options.incarnation))  # type: ignore[arg-type]
    cluster.restart("c")
    cluster.wait(500)
    assert cluster["c"].client().ask(m.QueueDeclare(queue="q", passive=True)).message_count == FIRST
    for name in "ab":
        cluster.restart(name)
    cluster.wait(3000)
    assert in_sync(cluster) == ("c",)
    assert sorted(told(cluster["c"], "replica.kept_apart")) == ["a", "b"]
    kept = {("replica.kept_apart", f"queue 'q' in vhost '/' at {name}") for name in "ab"}
    assert set(alerts(cluster["c"])) == kept
    return cluster


def test_who_began_alone_cuts_nothing_that_was_confirmed() -> None:
    cluster = began_alone()
    for number in range(4 * ALL):  # its log is as long as theirs, and longer
        assert cluster["c"].client().publish("", "q", b"new %d" % number) is not None
    for name in "ab":
        cluster.kill(name)
        cluster.restart(name)
    cluster.wait(12_000)
    assert in_sync(cluster) == ("c",), "their messages have other seqs' names"
    for name in "ab":
        ring = cluster[name].node.role.copying.replicas[cluster.queue("q").queue_id]  # type: ignore[union-attr]
        assert ring.emitted_end() == ALL + 1


def test_an_operator_chooses_a_copy_that_was_kept_apart() -> None:
    cluster = began_alone()
    cluster.order(c.ForceOwner(queue_id=cluster.queue("q").queue_id, node=NodeId("a")))
    cluster.wait(12_000)
    assert bodies(cluster["b"].client().consume("q")) == [b"%d" % number for number in range(ALL)]
    assert in_sync(cluster) == ("a", "b", "c")
    assert not alerts(cluster["c"])


def test_an_operator_chooses_the_owner_that_there_is() -> None:
    cluster = began_alone()
    cluster.order(c.ForceOwner(queue_id=cluster.queue("q").queue_id, node=NodeId("c")))
    cluster.wait(12_000)
    assert bodies(cluster["b"].client().consume("q")) == [b"%d" % number for number in range(FIRST)]
    assert in_sync(cluster) == ("a", "b", "c")
    assert not alerts(cluster["c"])


def test_an_empty_journal_is_believed_by_nobody() -> None:
    """The directory was there, and nothing in it (correctness C1): 0 of 1,010 were left on all three."""
    cluster, _ = filled("c", "c")
    power_cut(cluster, "c", MemoryJournal())
    assert bodies(cluster["b"].client().consume("q")) == [b"%d" % number for number in range(ALL)]
    assert in_sync(cluster) == ("a", "b", "c")
    assert told(cluster["c"], "replica.rolled_back") == ["c"]
