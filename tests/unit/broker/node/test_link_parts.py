"""Parts of transactions, and outcomes that clients wait for, that their node tells late: they count for whom they were
said, and their answers touch nobody else."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.queues.handle import CommitPart, Decided
from clusterbroker.broker.queues.link_deliveries import IN_TRANSACTION
from clusterbroker.broker.queues.link_held import NO_LINK
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.remote import remote_queues
from clusterbroker.broker.remote.messages import Published
from clusterbroker.broker.remote.remote_queue import RemoteQueue
from clusterbroker.cluster.ids import LogIndex, NodeId
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.node.link_clients import Awaited, Client, Receiver
from tests.unit.broker.node.node_cluster import Cluster
from tests.unit.broker.node.test_link_comes import Shop
from tests.unit.broker.node.test_link_holding import others, owned, owner, publish, ring
from tests.unit.broker.node.test_link_outcomes_from_disk import CHANGE, fail_over, letters


def forget(cluster: Cluster, receiver: Receiver) -> None:
    known: Any = cluster.running[0].map.link(LogIndex(receiver.link.link))
    cluster.order(c.ForgetLink(link=LogIndex(receiver.link.link), attach=known.attach))
    cluster.turn()


def answer(client: Client, part: CommitPart) -> list[str]:
    """What becomes of a part."""
    answers: list[str] = []
    ticket = Ticket(1, 1, lambda done: answers.append("refused" if done.rejected else "done"))
    client.handle.commit(part, ticket, client.site.now_ms)
    ticket.pass_()
    client.cluster.turn()
    return answers


def with_a_gap() -> Cluster:
    """A queue that has lost what was committed, long ago."""
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare("q")
    cluster.cuts.update({("a", "c"), ("b", "c"), ("c", "a"), ("c", "b")})
    for other in "ab":
        cluster.unlink(other, "c")
    cluster.wait(1000)
    publish(cluster, b"0")
    cluster.wait(500)
    cluster.kill("a")
    cluster.kill("b")
    cluster.wait(3000)
    cluster.order(c.ForceOwner(queue_id=cluster.queue("q").queue_id, node=NodeId("c")))
    cluster.cuts.clear()
    for other in "ab":
        cluster.restart(other)
    cluster.wait(5000)
    cluster.kill("c")
    cluster.wait(1000)
    cluster.restart("c")
    cluster.wait(3000)
    assert cluster.queue("q").gap_epoch
    return cluster


@pytest.mark.parametrize("how", ["resumed", "ended"])
def test_of_a_queue_that_once_had_a_gap_a_part_counts_for_its_holder_alone(how: str) -> None:
    cluster = with_a_gap()
    here, there = others(cluster)
    receiver = Receiver(cluster, here, deaf=False)
    receiver.consume()
    publish(cluster, b"1")
    assert receiver.bodies() == [b"1"]
    cluster.unlink(here, owner(cluster).name)
    late = Awaited(receiver, b"1", publishes=b"out")
    receiver.leave()
    other = None
    if how == "resumed":
        other = Receiver(cluster, there, resumes=True, deaf=False)
    else:
        forget(cluster, receiver)
    cluster.relink()
    cluster.wait(500)
    assert late.answers == ["refused"]
    if other is not None:
        assert len(other.seqs()) == 1
    else:
        assert Client(cluster, owner(cluster).name).everything() == [b"1"]


@pytest.mark.parametrize("resumes", [True, False])
def test_a_new_owner_takes_no_outcome_of_a_link_that_went_on_elsewhere(resumes: bool) -> None:
    cluster = Cluster(*"abcde")
    cluster["a"].client().declare("q")
    leads = owner(cluster)
    here, there = [name for name in "abcde" if name not in cluster.queue("q").replicas]
    first = Receiver(cluster, here, deaf=False)
    first.consume()
    publish(cluster, b"1")
    assert first.bodies() == [b"1"]
    cluster.cuts |= {(here, leads.name), (leads.name, here)}
    cluster.unlink(here, leads.name)
    late = Awaited(first, b"1")
    again = Receiver(cluster, there, resumes=resumes, deaf=False)
    if resumes:
        (seq,) = again.seqs()
        again.handle.requeue(seq, True)
    else:
        again.consume()
        again.read()
        again.give_back(b"1", counted=True)
        again.part()
    cluster.turn()
    cluster.kill(leads.name)
    cluster.wait(300)
    cluster.cuts.clear()
    cluster.relink()
    cluster.wait(1000)
    assert late.answers == ["void"]
    assert Client(cluster, owner(cluster).name).everything() == [b"1"]


class Delayed:
    """A reject whose message is read from the disk holds up all answers; another one behind it is void, and its message
    has come to somebody else at the same node."""

    def __init__(self, is_link: bool) -> None:
        self.cluster = cluster = Cluster("a", "b", "c")
        alice = cluster["a"].client()
        alice.declare("dead")
        alice.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        here = others(cluster)[0]
        zero, one = (Receiver(cluster, here, name=name, deaf=False) for name in ("zero", "one"))
        for receiver, body in ((zero, b"1"), (one, b"2")):
            receiver.consume(prefetch=1)
            publish(cluster, body)
            assert receiver.bodies() == [body]
        dead = owner(cluster).name
        fail_over(cluster)
        cluster.restart(dead)
        cluster.wait(2000)
        self.owner: Any = owner(cluster)
        assert self.owner.name != here
        assert ring(cluster).message(1) is None
        self.owner.reads_wait = True
        ((_, _, seq),) = zero.ledger.collect(zero.hands.pop(b"1"), False) or []
        zero.handle.reject(seq, CHANGE)
        cluster.turn()
        zero.leave()
        self._reads = list(self.owner.loads)
        self.owner.loads.clear()
        self.owner.reads_wait = False
        cluster.unlink(here, self.owner.name)
        self.void = Awaited(one, b"2", "reject")
        one.part()
        forget(cluster, one)
        self.other = Receiver(cluster, here, name="two", deaf=False) if is_link else Client(cluster, here)
        self.link = self.other.link if isinstance(self.other, Receiver) else NO_LINK
        self.other.consume()
        cluster.relink()
        cluster.wait(500)
        assert self.other.bodies() == [b"2"]

    def go_on(self) -> None:
        self.owner.loads.extend(self._reads)
        self.cluster.wait(1000)


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("is_link", [False, True])
def test_what_is_void_of_one_part_is_not_of_another(is_link: bool, is_whole: bool) -> None:
    delayed = Delayed(is_link)
    part = CommitPart()
    part.judged = is_whole
    ((_, _, seq),) = delayed.other.ledger.collect(delayed.other.hands.pop(b"2"), False) or []
    part.settles.append(Decided(seq, "ack", delayed.link))
    answers = answer(delayed.other, part)
    delayed.go_on()
    assert (delayed.void.answers, answers) == (["void"], ["done"])
    assert part.void == set()
    assert letters(delayed.cluster) == [1]
    assert ring(delayed.cluster).living(1, 9, 9) == []


@pytest.mark.parametrize("is_link", [False, True])
def test_what_is_void_and_came_again_is_void_for_the_next_owner(is_link: bool) -> None:
    delayed = Delayed(is_link)
    fail_over(delayed.cluster)
    delayed.cluster.wait(1000)
    assert delayed.void.answers == ["void"]
    assert len(ring(delayed.cluster).living(2, 2, 9)) == 1
    delayed.other.ack(b"2")
    delayed.cluster.wait(1000)
    assert ring(delayed.cluster).living(1, 9, 9) == []


@pytest.mark.parametrize("is_link", [False, True])
@pytest.mark.parametrize("how", ["ends", "anew", "nothing"])
def test_what_a_later_attach_gives_back_is_no_business_of_a_part_before(how: str, is_link: bool) -> None:
    shop = Shop()
    cluster = shop.cluster
    queues = cluster[shop.here].node.role.remote_queues
    queues.alarmed(shop.owner.name, True)
    late = shop.settles()
    shop.first.leave()
    again = Receiver(cluster, shop.here, resumes=True, name="first", deaf=False)
    assert again.seqs() == [late.seq]
    again.handle.requeue(late.seq, False)
    cluster.turn()
    if how == "ends":
        shop.ends(again)
    else:
        again.leave()
    if how == "anew":
        Receiver(cluster, shop.there, name="first", deaf=False)
    new = Receiver(cluster, shop.here, name="second", deaf=False) if is_link else Client(cluster, shop.here)
    assert new.consume() == ""
    cluster.wait(300)
    assert new.bodies() == [b"1"]
    other = Client(cluster, shop.there)
    other.consume(priority=9)
    queues.alarmed(shop.owner.name, False)
    cluster.wait(1000)
    assert late.answers == ["refused"]
    assert (new.bodies(), other.bodies()) == ([], [])
    new.ack(b"1")
    cluster.wait(1000)
    assert shop.bodies() == []


@pytest.mark.parametrize("is_link", [False, True])
def test_what_an_open_transaction_had_comes_to_its_next_holder_when_it_is_over(is_link: bool) -> None:
    cluster = Cluster(*"abc")
    cluster["a"].client().declare("q")
    here = others(cluster)[0]
    first = Receiver(cluster, here, name="first", deaf=False)
    first.consume()
    publish(cluster, b"1")
    assert first.bodies() == [b"1"]
    ((_, _, seq),) = first.ledger.collect(first.hands.pop(b"1"), False) or []  # it has retired it
    second = Receiver(cluster, here, name="second", deaf=False) if is_link else Client(cluster, here)
    second.consume()
    forget(cluster, first)
    cluster.wait(1000)
    assert second.bodies() == []
    first.handle.leave_to_link([seq], first.link)  # and it is rolled back
    cluster.wait(1000)
    assert second.bodies() == [b"1"]


def test_a_part_counts_while_the_next_owner_has_not_answered_its_links_consumer() -> None:
    cluster = Cluster(*"abcde")
    cluster["a"].client().declare("q")
    leads, replicas = owner(cluster), list(cluster.queue("q").replicas)
    here, slow = [name for name in "abcde" if name not in replicas]
    first = Receiver(cluster, here, name="first", deaf=False)
    first.consume()
    publish(cluster, b"1")
    assert first.bodies() == [b"1"]
    cluster[here].node.role.remote_queues.alarmed(leads.name, True)
    late = Awaited(first, b"1", publishes=b"out")
    first.leave()
    again = Receiver(cluster, here, resumes=True, name="first", deaf=False)
    assert again.seqs() == [late.seq]
    cluster.unlink(here, leads.name)
    assert again.consume() == "unanswered"
    for name in replicas:  # one attaches late
        cluster.cuts |= {(name, slow), (slow, name)}
        cluster.unlink(name, slow)
    cluster.kill(leads.name)
    cluster.wait(300)
    cluster.relink()
    cluster.wait(500)
    cluster.cuts.clear()
    cluster.relink()
    cluster.wait(2000)
    assert [site for site in cluster.running if owned(site)]
    assert (late.answers, again.answers) == (["done"], [""])


def retired(first: Receiver) -> int:
    """By an open transaction: no session has it to give back."""
    ((_, _, seq),) = first.ledger.collect(first.hands.pop(b"1"), False) or []
    return seq


@pytest.mark.parametrize("is_passed", [False, True])
def test_what_is_refused_in_one_answer_with_what_is_not_stays_refused(
    is_passed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the first of them has the node attach again, and there is room by then."""
    cluster = Cluster(*"abc")
    cluster["a"].client().declare("q", x_max_length=4, x_overflow="reject-publish")
    here = others(cluster)[0]
    first, zero = (Receiver(cluster, here, name=name, deaf=False) for name in ("first", "zero"))
    first.consume(prefetch=2)
    publish(cluster, b"1", b"2")
    assert sorted(first.bodies()) == [b"1", b"2"]
    zero.consume(prefetch=1)
    publish(cluster, b"z")
    assert zero.bodies() == [b"z"]
    second = None
    if is_passed:
        zero.ledger.collect(zero.hands.pop(b"z"), False)
        second = Receiver(cluster, here, name="second", deaf=False)
        second.consume()
        forget(cluster, zero)
        cluster.wait(500)
        assert first.handle.ring.passed_over == 1
    for receiver in (first, zero, second):
        if receiver is not None and receiver.subscription is not None:
            receiver.handle.unsubscribe(receiver.subscription, receiver.site.now_ms)
    cluster.wait(300)
    publish(cluster, b"3")
    publish(cluster, b"4")
    publish(cluster, b"5")
    cluster[here].node.role.remote_queues.alarmed(owner(cluster).name, True)
    taken, refused = (Awaited(first, body, publishes=b"out" + body) for body in (b"1", b"2"))
    cluster.wait(300)
    hears = RemoteQueue.on_published

    def on_published(queue: RemoteQueue, message: Published) -> None:
        hears(queue, message)
        if message.refused:
            ring(cluster).purge()  # there is room when it would come again

    monkeypatch.setitem(remote_queues._HANDLERS, Published, lambda _, queue, told: on_published(queue, told))
    cluster[here].node.role.remote_queues.alarmed(owner(cluster).name, False)
    cluster.wait(3000)
    assert (taken.answers, refused.answers) == (["done"], ["refused"])
    assert next(seq for seq, *_ in ring(cluster).living(1, 20, 20)) == refused.seq
    assert ring(cluster).ready == 0, "it has put nothing"


@pytest.mark.parametrize("is_cut_off", [False, True])
def test_also_when_the_node_has_attached_between(is_cut_off: bool) -> None:
    """As `test_what_an_open_transaction_had_comes_to_its_next_holder_when_it_is_over`."""
    cluster = Cluster(*"abc")
    cluster["a"].client().declare("q")
    here = others(cluster)[0]
    first = Receiver(cluster, here, name="first", deaf=False)
    first.consume()
    publish(cluster, b"1")
    assert first.bodies() == [b"1"]
    seq = retired(first)
    second = Receiver(cluster, here, name="second", deaf=False)
    second.consume()
    forget(cluster, first)
    cluster.wait(1000)
    if is_cut_off:
        cluster.unlink(here, owner(cluster).name)
        cluster.relink()
        cluster.wait(1000)
    assert second.bodies() == []
    first.handle.leave_to_link([seq], first.link)
    cluster.wait(5000)
    assert second.bodies() == [b"1"]


@pytest.mark.parametrize("is_link", [False, True])
def test_what_is_void_comes_to_its_holder_at_the_same_node(is_link: bool) -> None:
    """The first one's session hears late that its link has ended."""
    cluster = Cluster(*"abc")
    cluster["a"].client().declare("q")
    here = others(cluster)[0]
    first = Receiver(cluster, here, name="first", deaf=True)
    first.consume()
    publish(cluster, b"1")
    assert first.bodies() == [b"1"]
    second = Receiver(cluster, here, name="second", deaf=False) if is_link else Client(cluster, here)
    second.consume()
    forget(cluster, first)
    cluster.wait(200)
    late = Awaited(first, b"1")
    first.part()
    cluster.wait(1000)
    assert late.answers == ["void"]
    assert second.bodies() == [b"1"]


def test_a_link_waits_for_a_transaction_that_has_its_message_at_this_node() -> None:
    cluster = Cluster(*"abc")
    cluster["a"].client().declare("q")
    here, there = others(cluster)
    first = Receiver(cluster, here, name="first", deaf=False)
    first.consume()
    publish(cluster, b"1")
    assert first.bodies() == [b"1"]
    seq = retired(first)
    forget(cluster, first)
    second = Receiver(cluster, there, name="second", deaf=False)
    second.consume()
    publish(cluster, b"2")
    assert second.bodies() == [b"1", b"2"]
    second.leave()
    for _ in range(2):
        refused = Receiver(cluster, here, resumes=True, name="second", deaf=False)
        assert refused.held() == IN_TRANSACTION
        refused.leave()
        cluster.wait(300)
    first.handle.leave_to_link([seq], first.link)
    cluster.wait(1000)
    again = Receiver(cluster, here, resumes=True, name="second", deaf=False)
    assert again.seqs() == [1, 2]
    assert again.consume() == ""
    for held in again.seqs():
        again.settle(held)
    cluster.wait(1000)
    assert ring(cluster).living(1, 9, 9) == []


def test_also_one_that_was_at_this_node_before() -> None:
    cluster = Cluster(*"abc")
    cluster["a"].client().declare("q")
    here, there = others(cluster)
    first = Receiver(cluster, here, name="first", deaf=False)
    first.consume(prefetch=1)
    publish(cluster, b"1")
    assert first.bodies() == [b"1"]
    retired(first)
    second = Receiver(cluster, here, name="second", deaf=False)
    second.consume()
    second.leave()
    forget(cluster, first)
    second = Receiver(cluster, there, resumes=True, name="second", deaf=False)
    assert second.held() == []
    second.consume()
    cluster.wait(300)
    assert second.bodies() == [b"1"]
    second.leave()
    assert Receiver(cluster, here, resumes=True, name="second", deaf=False).held() == IN_TRANSACTION


@pytest.mark.parametrize("is_cut_off", [False, True])
def test_links_that_close_and_transactions_have_no_node_attach_again(is_cut_off: bool) -> None:
    """Unless a delivery was passed over."""
    cluster = Cluster(*"abc")
    cluster["a"].client().declare("q")
    here = others(cluster)[0]
    holder = Receiver(cluster, here, name="holder", deaf=False)
    holder.consume(prefetch=1)
    publish(cluster, b"held")
    assert holder.bodies() == [b"held"]
    links = [Receiver(cluster, here, name=f"l{number}", deaf=False) for number in range(5)]
    for link in links:
        link.consume(prefetch=1)
    if is_cut_off:
        cluster.unlink(here, owner(cluster).name)
        cluster.relink()
        cluster.wait(1000)
    publish(cluster, *(b"%d" % number for number in range(5)))
    bodies = [link.bodies() for link in links]
    before = holder.handle.gen
    for link, (body,) in zip(links[:3], bodies[:3], strict=True):
        done = Awaited(link, body, publishes=b"out")
        cluster.wait(100)
        assert done.answers == ["done"]
    for link in links:
        link.leave()
        cluster.wait(100)
    assert holder.handle.gen == before
