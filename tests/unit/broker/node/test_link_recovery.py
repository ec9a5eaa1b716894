"""Recoverable sender links on nodes that are one cluster: each delivery once, whoever has the queue or the link."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from clusterbroker.broker.node.link_recovery import Attachment
from clusterbroker.broker.queues import link_deliveries
from clusterbroker.broker.queues.attributes import LINK_NAME_BYTES
from clusterbroker.broker.queues.link_deliveries import ATTACHES_MAX, NO_ROOM, STALE, AskedTags, Tagged, value_of
from clusterbroker.broker.queues.ticket import Outcome, Ticket
from clusterbroker.cluster.errors import AccessRefused, LimitReached, NotFound
from clusterbroker.cluster.ids import Incarnation, LogIndex, NodeId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.journal.layout import PERSISTENT
from clusterbroker.journal.record import Message, read_records
from tests.unit.broker.node.node_cluster import Cluster, Site


def message(body: bytes) -> Message:
    return Message(b"\0\1q", b"\x10\0\2" + body, 3, PERSISTENT)


class Sender:
    """A recoverable sender link as its node has it."""

    def __init__(self, cluster: Cluster, at: str, *, resumes: bool = False, **fields: Any) -> None:
        self.cluster, self.site = cluster, cluster[at]
        self.answers: list[Any] = []
        self.lost: list[bool] = []
        self.number = 0
        command = c.AttachLink(
            node=NodeId(at), incarnation=Incarnation(self.site.incarnation), resumes=resumes,
            **{
                "vhost": "/", "container": "c", "name": "l", "role": "sender", "terminus": "/queues/q", "user": "guest",
                "timeout_ms": 1000, **fields,
            },
        )  # fmt: skip
        self.site.node.recovery.attach(command, self.lost.append, self.answers.append)
        cluster.turn()

    @property
    def attachment(self) -> Attachment:
        (attachment,) = self.answers
        assert isinstance(attachment, Attachment)
        return attachment

    @property
    def link(self) -> int:
        return self.attachment.link.link

    def publish(self, *tags: bytes, again: tuple[bytes, ...] = (), queue: str = "q", waits: bool = False) -> list[Any]:
        """The outcomes of the delivery, when the cluster is at rest."""
        outcomes: list[Any] = []
        ticket = Ticket(1, 1, lambda done: outcomes.append(done.refused.reason if done.refused else done.outcome))
        tagged = Tagged(self.link, self.attachment.link.attach, self.number, list(tags), frozenset(again))
        self.number += len(tags)
        handle = self.site.node.vhosts["/"].queues[queue]
        handle.publish_tagged(tagged, [message(tag) for tag in tags], ticket, self.site.now_ms)
        ticket.pass_()
        if not waits:
            self.cluster.turn()
        return outcomes

    def known(self, *tags: bytes, everything: bool = False) -> Any:
        answers: list[Any] = []
        asked = AskedTags(self.link, self.attachment.link.attach, tags, everything)
        self.site.node.vhosts["/"].queues["q"].known_tags(asked, answers.append)
        self.cluster.turn()
        (answer,) = answers
        return answer


def owner(cluster: Cluster) -> Site:
    return next(site for site in cluster.running if site.node.queues and owned(site))


def owned(site: Site) -> list[Any]:
    return [queue for queue in site.node.queues.values() if queue.name == "q"]


def stored(cluster: Cluster) -> list[bytes]:
    """The bodies in the queue."""
    (queue,) = owned(owner(cluster))
    found: list[bytes] = []
    queue.copy([(1, queue.ring.next_seq - 1)], 1 << 20, found.append)
    cluster.turn()
    return [message.body for _, message, _, _ in read_records(found[0])]


def names(cluster: Cluster) -> list[bytes]:
    (queue,) = owned(owner(cluster))
    return [tag for link in queue.log.deliveries.links for tag in queue.log.deliveries.all(link, 0)]


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare("q")
    return cluster


def others(cluster: Cluster) -> list[str]:
    return [site.name for site in cluster.running if site is not owner(cluster)]


@pytest.mark.parametrize("where", ["owner", "elsewhere"])
def test_deliveries_are_stored_known_and_forgotten(cluster: Cluster, where: str) -> None:
    sender = Sender(cluster, owner(cluster).name if where == "owner" else others(cluster)[0])
    assert sender.publish(b"1", b"2", b"3") == [Outcome.ACCEPTED]
    assert stored(cluster) == [b"1", b"2", b"3"]
    assert sender.known(b"3", b"4") == [b"3"]
    assert sender.known(everything=True) == [b"1", b"2", b"3"]
    handle = sender.site.node.vhosts["/"].queues["q"]
    handle.forget_tags(sender.link, value_of(1, 2), [b"1", b"3"])
    cluster.turn()
    assert names(cluster) == [b"2"]
    assert sender.publish(b"1") == [Outcome.ACCEPTED], "another delivery of the tag"
    assert stored(cluster) == [b"1", b"2", b"3", b"1"]


@pytest.mark.parametrize("to", ["owner", "elsewhere"])
def test_a_resumed_link_at_another_node_stores_what_is_not_known(cluster: Cluster, to: str) -> None:
    here, there = others(cluster)
    first = Sender(cluster, here)
    first.publish(b"1", b"2")
    second = Sender(cluster, owner(cluster).name if to == "owner" else there, resumes=True)
    assert (second.link, second.attachment.link.attach) == (first.link, 2)
    assert first.lost == [True]
    assert second.known(b"2", b"3") == [b"2"]
    assert second.publish(b"3", b"2", again=(b"2", b"3")) == [Outcome.ACCEPTED]
    assert stored(cluster) == [b"1", b"2", b"3"]


def test_a_late_writer_is_refused(cluster: Cluster) -> None:
    here, there = others(cluster)
    first = Sender(cluster, here)
    first.publish(b"1")
    Sender(cluster, there, resumes=True)
    assert first.publish(b"2") == ["queue is full"], "its owner says no more than that it was refused"
    assert stored(cluster) == [b"1"]
    at_owner = Sender(cluster, owner(cluster).name, resumes=True)
    Sender(cluster, there, resumes=True)
    assert at_owner.known(b"1") == STALE


def test_a_question_is_answered_when_all_before_is_committed(cluster: Cluster) -> None:
    sender = Sender(cluster, others(cluster)[0])
    sender.publish(b"0")
    for site in cluster.running:
        site.disk_waits = True
    outcome = sender.publish(b"1")
    answers: list[Any] = []
    asked = AskedTags(sender.link, 1, (b"1",))
    sender.site.node.vhosts["/"].queues["q"].known_tags(asked, answers.append)
    cluster.wait(5000)
    assert (outcome, answers) == ([], [])
    for site in cluster.running:
        site.disk_waits = False
    cluster.turn()
    assert (outcome, answers) == ([Outcome.ACCEPTED], [[b"1"]])


def test_the_next_owner_knows_what_was_committed(cluster: Cluster) -> None:
    sender = Sender(cluster, others(cluster)[0])
    sender.publish(b"1", b"2")
    cluster.kill(owner(cluster).name)
    cluster.wait(1000)
    resumed = Sender(cluster, others(cluster)[0], resumes=True)
    assert resumed.known(b"1", b"2", b"3") == [b"1", b"2"]
    assert resumed.publish(b"1", b"3", again=(b"1", b"3")) == [Outcome.ACCEPTED]
    assert stored(cluster) == [b"1", b"2", b"3"]


def test_a_full_restart_knows_what_was_committed(cluster: Cluster) -> None:
    first = Sender(cluster, others(cluster)[0])
    first.publish(b"1", b"2")
    for name in "abc":
        cluster.kill(name, failed=False)
    for name in "abc":
        cluster.restart(name)
    cluster.wait(1000)
    link = cluster["a"].map.link(LogIndex(first.link))
    assert link is not None
    assert link.suspended
    resumed = Sender(cluster, "a", resumes=True)
    assert resumed.known(b"1", b"2", b"3") == [b"1", b"2"]


def test_what_the_client_does_not_name_is_forgotten(cluster: Cluster) -> None:
    first = Sender(cluster, others(cluster)[0])
    first.publish(b"1", b"2", b"3")
    second = Sender(cluster, others(cluster)[1], resumes=True)
    second.publish(b"4")
    second.site.node.recovery.keep(second.attachment.link, [b"2"])
    cluster.turn()
    assert names(cluster) == [b"2", b"4"]


@pytest.mark.parametrize("end", ["forget", "expire", "fresh"])
def test_what_is_over_is_forgotten_by_every_owner(cluster: Cluster, end: str) -> None:
    sender = Sender(cluster, others(cluster)[0])
    sender.publish(b"1")
    recovery = sender.site.node.recovery
    if end == "fresh":
        Sender(cluster, others(cluster)[1])
    elif end == "forget":
        recovery.forget(sender.attachment)
    else:
        recovery.suspend(sender.attachment)
        cluster.turn()
        cluster.order(c.ExpireLink(link=LogIndex(sender.link), attach=1))
    cluster.turn()
    assert names(cluster) == []
    cluster.kill(owner(cluster).name)
    cluster.wait(1000)
    assert names(cluster) == [], "and by the next one"


def test_an_owner_that_was_away_forgets_what_is_over_when_it_takes_over(cluster: Cluster) -> None:
    sender = Sender(cluster, others(cluster)[0])
    sender.publish(b"1")
    for name in "abc":
        cluster.kill(name, failed=False)
    cluster.order(c.ForgetLink(link=LogIndex(sender.link), attach=1))
    for name in "abc":
        cluster.restart(name)
    cluster.wait(1000)
    assert stored(cluster) == [b"1"]
    assert names(cluster) == []


def test_without_room_for_names_deliveries_are_refused(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_deliveries, "LINK_NAMES_BYTES_MAX", 2 * LINK_NAME_BYTES + 4)
    sender = Sender(cluster, owner(cluster).name)
    (queue,) = owned(owner(cluster))
    assert queue.refuses_tagged(Tagged(sender.link, 1, 0, [b"1", b"2", b"3"])) == NO_ROOM
    assert sender.publish(b"1", b"2", b"3") == ["queue is full"]
    assert sender.publish(b"1", b"2") == [Outcome.ACCEPTED]
    assert stored(cluster) == [b"1", b"2"]


def test_very_many_names_reach_a_copy_that_comes_back_and_the_next_owner(cluster: Cluster) -> None:
    first = owner(cluster).name
    away, stays = others(cluster)
    cluster.kill(away)
    sender = Sender(cluster, stays)
    tags = [b"%d" % number for number in range(20_000)]
    for at in range(0, len(tags), 2_000):
        assert sender.publish(*tags[at : at + 2_000]) == [Outcome.ACCEPTED]
    cluster.restart(away)
    cluster.wait(3_000)
    cluster.kill(first)
    cluster.kill(stays)
    assert owner(cluster).name == away
    assert names(cluster) == tags


def test_a_full_queue_takes_all_of_a_frame_or_nothing(cluster: Cluster) -> None:
    cluster.order(
        c.PutPolicy(vhost="/", name="p", pattern="q", definition={"max-length": 2, "overflow": "reject-publish"})
    )
    sender = Sender(cluster, others(cluster)[0])
    assert sender.publish(b"1", b"2", b"3") == ["queue is full"]
    assert sender.publish(b"1", b"2") == [Outcome.ACCEPTED]
    resumed = Sender(cluster, others(cluster)[1], resumes=True)
    assert resumed.publish(b"1", b"2", again=(b"1", b"2")) == [Outcome.ACCEPTED], "they are there, though it is full"
    assert resumed.publish(b"2", b"4", again=(b"2", b"4")) == ["queue is full"]
    assert stored(cluster) == [b"1", b"2"]


def test_refused_attaches_are_told(cluster: Cluster) -> None:
    assert isinstance(Sender(cluster, "a", resumes=True).answers[0].error, NotFound)
    Sender(cluster, "a")
    assert isinstance(Sender(cluster, "b", user="stranger").answers[0].error, AccessRefused)


def test_whoever_has_a_link_hears_of_its_end(cluster: Cluster) -> None:
    sender = Sender(cluster, "a")
    cluster.order(c.ForgetLink(link=LogIndex(sender.link), attach=1))
    cluster.turn()
    assert sender.lost == [False]
    sender.site.node.recovery.suspend(sender.attachment)
    cluster.turn()
    assert sender.lost == [False]


def test_a_node_that_hears_of_a_first_link_is_not_due_at_once() -> None:
    """Nothing is done in vain: the review of suspended links comes after a while (seed 1 of the simulated cluster)."""
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare("q")
    link = Sender(cluster, "a").attachment.link
    node, queue = next((site.node, q) for site in cluster.running for q in site.node.queues.values() if q.name == "q")
    assert node.recovery.next_ms is None
    node.recovery.since(queue, link.link, link.attach)
    assert node.recovery.next_ms is not None
    assert node.recovery.next_ms > node.now_ms


@pytest.mark.parametrize("where", ["owner", "elsewhere"])
def test_a_link_that_was_attached_as_often_as_its_numbers_last_is_refused(cluster: Cluster, where: str) -> None:
    """Two programs that take a link from each other attach it for ever, and other nodes read no higher number."""
    at = owner(cluster).name if where == "owner" else others(cluster)[0]
    known = Sender(cluster, at).attachment.link
    for site in cluster.running:
        links: Any = site.node.map.link
        links.__self__._put(replace(known, attach=ATTACHES_MAX))
    again = Sender(cluster, at, resumes=True)
    assert isinstance(again.answers[0].error, LimitReached)
    other = Sender(cluster, at, name="other")
    assert other.publish(b"1") == [Outcome.ACCEPTED]
    cluster.order(c.SuspendLink(link=known.link, attach=ATTACHES_MAX))
    cluster.order(c.ExpireLink(link=known.link, attach=ATTACHES_MAX))
    cluster.turn()
    begun = Sender(cluster, at)
    assert begun.attachment.link.attach == 1
    assert begun.publish(b"2") == [Outcome.ACCEPTED]
    assert stored(cluster) == [b"1", b"2"]
