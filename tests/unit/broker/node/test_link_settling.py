"""Outcomes that are on their way while their link is suspended, resumed elsewhere or ended (`remote.settling`)."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.queues.handle import UNANSWERED_MS
from clusterbroker.broker.remote import asking
from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.node.link_clients import Awaited, Client, Receiver
from tests.unit.broker.node.node_cluster import Cluster
from tests.unit.broker.node.test_link_holding import others, owned, owner, publish, ring


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare("q")
    return cluster


def holding(cluster: Cluster, at: str, *bodies: bytes) -> Receiver:
    receiver = Receiver(cluster, at)
    receiver.consume()
    publish(cluster, *bodies)
    assert receiver.bodies() == list(bodies)
    return receiver


def fail_over(cluster: Cluster) -> None:
    cluster.kill(owner(cluster).name)
    cluster.wait(500)
    cluster.relink()
    cluster.wait(500)
    assert owned(owner(cluster))


def rest(cluster: Cluster) -> list[bytes]:
    """What anybody may have of the queue."""
    return Client(cluster, owner(cluster).name).everything()


@pytest.mark.parametrize("outcome", ["ack", "reject"])
@pytest.mark.parametrize("publishes", [b"", b"out"])
def test_what_the_lost_owner_did_not_hear_the_next_one_carries_out(
    cluster: Cluster, outcome: str, publishes: bytes
) -> None:
    """Settled before the link was detached: its node says so to the next owner, without the consumer."""
    receiver = holding(cluster, others(cluster)[0], b"1", b"2")
    cluster.unlink(receiver.site.name, owner(cluster).name)
    awaited = Awaited(receiver, b"1", outcome, publishes)
    receiver.leave()
    assert awaited.answers == []
    fail_over(cluster)
    assert awaited.answers == ["done"]
    assert ring(cluster).links() == {receiver.link.link: 1}
    assert rest(cluster) == ([publishes] if publishes else [])


@pytest.mark.parametrize("publishes", [b"", b"out"])
def test_a_commit_that_comes_behind_the_cancel_counts(cluster: Cluster, publishes: bytes) -> None:
    receiver = holding(cluster, others(cluster)[0], b"1", b"2")
    outbox = receiver.handle.outbox
    outbox.shut = True  # an alarm: publishes wait, the rest goes by
    awaited = Awaited(receiver, b"1", publishes=publishes)
    receiver.leave()
    outbox.shut = False
    receiver.handle.ring.mark()
    cluster.turn()
    assert awaited.answers == ["done"]
    assert ring(cluster).links() == {receiver.link.link: 1}


@pytest.mark.parametrize("publishes", [b"", b"out"])
@pytest.mark.parametrize("end", ["expired", "resumed", "fresh", "ended"])
def test_what_is_not_the_links_any_more_is_not_answered_as_done(cluster: Cluster, end: str, publishes: bytes) -> None:
    here, there = others(cluster)
    receiver = holding(cluster, here, b"1", b"2")
    cluster.unlink(here, owner(cluster).name)
    awaited = Awaited(receiver, b"1", publishes=publishes)
    receiver.leave()
    number = LogIndex(receiver.link.link)
    other: Any = None
    if end == "resumed":
        other = Receiver(cluster, there, resumes=True)
    elif end == "fresh":
        other = Receiver(cluster, there)
    else:
        cluster.order((c.ExpireLink if end == "expired" else c.ForgetLink)(link=number, attach=1))
        cluster.turn()
    cluster.relink()
    cluster.turn()
    assert awaited.answers == ["refused" if publishes else "void"]
    if end == "resumed":
        assert other.seqs() == [1, 2], "its client says what becomes of them"
    else:
        assert rest(cluster) == [b"1", b"2"]


@pytest.mark.parametrize("publishes", [b"", b"out"])
def test_an_answer_that_is_lost_is_given_again(cluster: Cluster, publishes: bytes) -> None:
    here, there = others(cluster)
    receiver = holding(cluster, here, b"1", b"2")
    for site in cluster.running:
        site.disk_waits = True
    awaited = [Awaited(receiver, b"1", publishes=publishes)]
    cluster.wait(100)
    cluster.unlink(here, owner(cluster).name)
    for site in cluster.running:
        site.disk_waits = False
    cluster.wait(100)
    assert awaited[0].answers == []
    cluster.relink()
    cluster.wait(100)
    assert awaited[0].answers == ["done"]
    receiver.leave()
    assert Receiver(cluster, there, resumes=True).seqs() == ([2, 3] if publishes else [2]), "it is the next one as well"


@pytest.mark.parametrize("is_void", [False, True])
def test_a_commit_is_answered_when_its_link_is_here_again(cluster: Cluster, is_void: bool) -> None:
    """Its client has the delivery once more, by the later attach, and may settle it, whatever became of the commit."""
    here = others(cluster)[0]
    first = holding(cluster, here, b"1", b"2")
    outbox = first.handle.outbox
    outbox.shut = True
    awaited = Awaited(first, b"1", publishes=b"out")
    first.leave()
    second = Receiver(cluster, here, resumes=True)
    assert second.seqs() == [1, 2]
    if is_void:
        second.handle.requeue(1, False)
        cluster.turn()
    outbox.shut = False
    second.handle.ring.mark()
    cluster.turn()
    assert awaited.answers == ["refused" if is_void else "done"]
    if not is_void:
        second.settle(1)
    second.settle(2)
    assert rest(cluster) == ([b"1"] if is_void else [b"out"])


@pytest.mark.parametrize("is_seeded", [False, True])
def test_the_next_attach_hears_first_what_was_void(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, is_seeded: bool
) -> None:
    """The wiring told of the link's next attach, at the same node, before the settlement came, and an older settlement
    waits for its commit. What the link holds is told behind that, or (a seeded bug) the ring of its node forgets what
    the client has."""
    if is_seeded:
        monkeypatch.setattr(asking.Asking, "_knows_outcomes", lambda *_: True)
    cluster.kill("a")
    cluster.wait(500)
    cluster.restart("a")
    cluster.wait(2000)
    first = holding(cluster, "a", b"1", b"2")
    there = owner(cluster)
    assert there.name != "a", "frames of its node come behind what that orders"
    there.disk_waits = True
    first.ack(b"1")
    cluster._working = True
    assert not first.ledger.ack([first.hands.pop(b"2") * 2])
    first.part()
    second = Receiver(cluster, "a", resumes=True)
    cluster._working = False
    cluster.turn()
    answers: list[Any] = []
    second.handle.held_by(second.link, answers.append)
    cluster.wait(200)
    assert answers == []
    there.disk_waits = False
    cluster.wait(200)
    ((held,),) = answers
    assert held.seqs
    for seq in held.seqs:
        if is_seeded:
            with pytest.raises(KeyError):
                second.settle(seq)
            return
        second.settle(seq)
    assert rest(cluster) == []


@pytest.mark.parametrize("when", ["asked", "refused"])
@pytest.mark.parametrize("leaves", ["link", "commit"])
def test_what_an_attach_leaves_to_a_later_one_that_gets_nothing_is_nobodys(
    cluster: Cluster, when: str, leaves: str
) -> None:
    """The later attach is at the same node, and before it hears what it holds the link is attached elsewhere (seed
    41481 of `scripts/simulate links --role apart`)."""
    here, there = others(cluster)
    receiver = holding(cluster, here, b"1")
    outbox = receiver.handle.outbox
    cluster.unlink(here, owner(cluster).name)
    if leaves == "commit":
        outbox.shut = when == "refused"  # an alarm: publishes wait, the rest goes by
        Awaited(receiver, b"1", publishes=b"out")
    ((_, _, seq),) = receiver.ledger.drain() or [(0, 0, 1)]
    later = Receiver(cluster, here, resumes=True)
    answers: list[Any] = []
    later.handle.held_by(later.link, answers.append)
    Receiver(cluster, there, resumes=True)
    if (leaves, when) == ("link", "asked"):
        receiver.handle.leave_to_link([seq], receiver.link)
    cluster.relink()
    cluster.wait(500)
    assert isinstance(answers[0], str), "the owner refuses it"
    if (leaves, when) == ("link", "refused"):
        receiver.handle.leave_to_link([seq], receiver.link)
    outbox.shut = False
    receiver.handle.ring.mark()
    cluster.wait(500)
    assert receiver.handle.outstanding() == []
    assert leaves == "commit" or ring(cluster).links() == {receiver.link.link: 1}, "the link has it"


def test_what_an_attach_leaves_to_one_that_is_not_answered_comes_when_the_link_begins_anew(cluster: Cluster) -> None:
    here = others(cluster)[0]
    receiver = holding(cluster, here, b"1")
    cluster.unlink(here, owner(cluster).name)
    ((_, _, seq),) = receiver.ledger.drain()
    later = Receiver(cluster, here, resumes=True)
    later.handle.held_by(later.link, later.leave_to_link)
    receiver.handle.unsubscribe(receiver.subscription, receiver.site.now_ms)
    receiver.handle.leave_to_link([seq], receiver.link)
    fresh = Receiver(cluster, here)
    fresh.consume()
    cluster.relink()
    cluster.wait(500)
    assert fresh.bodies() == [b"1"]
    assert fresh.handle.outstanding() == [(seq, seq)]


def test_what_an_attach_leaves_to_one_whose_question_is_given_up_is_nobodys(cluster: Cluster) -> None:
    """The owner is cut off for longer than anybody waits for its word on what the link holds."""
    here, _ = others(cluster)
    at = owner(cluster).name
    receiver = holding(cluster, here, b"1")
    ((_, _, seq),) = receiver.ledger.drain()
    answers: list[Any] = []
    later = Receiver(cluster, here, resumes=True)
    for other in others(cluster):
        cluster.unlink(at, other)
    later.handle.held_by(later.link, answers.append)
    receiver.handle.leave_to_link([seq], receiver.link)
    assert receiver.handle.outstanding() == [(seq, seq)], "the later one may have it"
    cluster.wait(UNANSWERED_MS + 2000, 500)
    cluster.relink()
    cluster.wait(4000)
    assert answers == []
    assert receiver.handle.outstanding() == []
    assert ring(cluster).links() == {receiver.link.link: 1}, "the link has it"
