"""A link comes to a node that still has something to say of messages which another link has held there before: an
acknowledgement, or a transaction. It counts only while nobody else holds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from clusterbroker.broker.queues.handle import CommitPart, Decided
from clusterbroker.broker.queues.link_held import LinkAttach
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.remote.ingest import Ingest
from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.journal.record import read_records
from tests.unit.broker.node.link_clients import Awaited, Receiver, message
from tests.unit.broker.node.node_cluster import Cluster
from tests.unit.broker.node.test_link_holding import others, owned, owner, publish, ring


class Shop:
    """A message that a link at `here` has had, and of which that node has still to say something."""

    def __init__(self, **arguments: Any) -> None:
        self.cluster = cluster = Cluster("a", "b", "c")
        cluster["a"].client().declare("dead")
        cluster["a"].client().declare("q", **arguments)
        self.here, self.there = others(cluster)
        self.owner = owner(cluster)
        self.first = Receiver(cluster, self.here, name="first", deaf=False)
        self.first.consume()
        publish(cluster, b"1")
        assert self.first.bodies() == [b"1"]
        self.handle: Any = self.first.handle

    @property
    def queue(self) -> Any:
        return owned(self.owner)[0]

    def bodies(self) -> list[bytes]:
        """What is in the queue."""
        seqs = [seq for seq, *_ in self.queue.ring.living(1, self.queue.ring.next_seq, 100)]
        found: list[bytes] = []
        self.queue.copy([(seq, seq) for seq in seqs], 1 << 20, found.append)
        self.cluster.turn()
        return [message.body for records in found for _, message, *_ in read_records(records)]

    def cut(self) -> None:
        self.cluster.unlink(self.here, self.owner.name)

    def settles(self) -> Awaited:
        return Awaited(self.first, b"1", publishes=b"out")

    def ends(self, receiver: Receiver) -> None:
        """The link is no more, and the owner knows it."""
        receiver.leave()
        known: Any = self.cluster.running[0].map.link(LogIndex(receiver.link.link))
        self.cluster.order(c.ForgetLink(link=LogIndex(receiver.link.link), attach=known.attach))
        self.cluster.wait(300)

    def second(self) -> Receiver:
        """It has the message elsewhere, and leaves."""
        second = Receiver(self.cluster, self.there, name="second", deaf=False)
        second.consume()
        assert [body for body, _ in second.read()] == [b"1"]
        second.leave()
        return second

    def comes(self) -> list[Any]:
        """The second link is here; what it hears that it holds."""
        receiver = Receiver(self.cluster, self.here, resumes=True, name="second", deaf=False)
        answers: list[Any] = []
        self.handle.held_by(receiver.link, answers.append)
        self.cluster.turn()
        return answers

    def check(self, late: Awaited, answers: list[Any]) -> None:
        """The second link has it, and hears so; the first one's outcome has come to nothing."""
        self.cluster.wait(1000)
        assert late.answers in ([], ["refused"])
        assert list(ring(self.cluster).links().values()) == [1]
        assert [seq for one in answers[-1] for seq in one.seqs]


def test_behind_an_alarm() -> None:
    """Nothing is published then, and questions are asked all the same."""
    shop = Shop()
    queues = shop.cluster[shop.here].node.role.remote_queues
    queues.alarmed(shop.owner.name, True)
    late = shop.settles()
    shop.ends(shop.first)
    shop.second()
    answers = shop.comes()
    shop.cluster.wait(300)
    queues.alarmed(shop.owner.name, False)
    shop.check(late, answers)


class New:
    """What a link settles and its node cannot tell yet; it ends, and another one is attached there for the first time
    and has the message."""

    def __init__(self, shop: Shop, settles: Callable[[], Awaited]) -> None:
        self._shop, self._queues = shop, shop.cluster[shop.here].node.role.remote_queues
        self._queues.alarmed(shop.owner.name, True)
        self.late = settles()
        again = Receiver(shop.cluster, shop.here, resumes=True, name="first", deaf=False)
        again.held()
        again.ledger.add(again.resumed_by(), self.late.seq, again.site.now_ms)
        shop.ends(again)
        self.receiver = Receiver(shop.cluster, shop.here, name="second", deaf=False)
        assert self.receiver.consume() == ""

    def calm(self) -> None:
        self._queues.alarmed(self._shop.owner.name, False)
        self._shop.cluster.wait(1000)

    def check(self) -> None:
        """The message is the second one's, and its client settles it."""
        assert self.late.answers == ["refused"]
        assert list(ring(self._shop.cluster).links().values()) == [1]
        self.receiver.ack(b"1")
        self._shop.cluster.wait(1000)
        assert self._shop.bodies() == []


def test_a_transaction_does_not_take_what_a_new_link_has_come_to_hold() -> None:
    shop = Shop()
    new = New(shop, shop.settles)
    assert new.receiver.bodies() == [b"1"]
    new.calm()
    new.check()


def test_nor_what_is_on_its_way_to_a_new_link() -> None:
    shop = Shop()
    new = New(shop, shop.settles)
    new.calm()
    assert new.receiver.bodies() == [b"1"]
    new.check()


def test_nor_what_its_own_link_has_been_handed_anew() -> None:
    shop = Shop()
    queues = shop.cluster[shop.here].node.role.remote_queues
    queues.alarmed(shop.owner.name, True)
    late = shop.settles()
    again = Receiver(shop.cluster, shop.here, resumes=True, name="first", deaf=False)
    again.held()
    again.ledger.add(again.resumed_by(), late.seq, again.site.now_ms)
    again.leave()
    anew = Receiver(shop.cluster, shop.here, name="first", deaf=False)
    assert anew.consume() == ""
    assert anew.bodies() == [b"1"]
    queues.alarmed(shop.owner.name, False)
    shop.cluster.wait(1000)
    assert late.answers == ["refused"]
    assert ring(shop.cluster).links() == {anew.link.link: 1}
    anew.ack(b"1")
    shop.cluster.wait(1000)
    assert shop.bodies() == []


@pytest.mark.parametrize("outcome", ["ack", "reject"])
@pytest.mark.parametrize("is_whole", [False, True])
def test_an_outcome_of_a_part_names_the_link(outcome: str, is_whole: bool) -> None:
    """Without messages a part is settlements: they count for what that link holds at the node, and nobody else."""
    shop = Shop()
    part = CommitPart()
    part.judged = is_whole
    ((_, _, seq),) = shop.first.ledger.collect(shop.first.hands.pop(b"1"), False) or []
    part.settles.append(Decided(seq, outcome, LinkAttach(shop.first.link.link + 1, 1)))
    answers: list[bool] = []
    ticket = Ticket(1, 1, lambda done: answers.append(bool(done.rejected)))
    shop.handle.commit(part, ticket, shop.first.site.now_ms)
    ticket.pass_()
    shop.cluster.wait(1000)
    assert answers == [True]
    assert part.void == {seq}
    assert ring(shop.cluster).links() == {shop.first.link.link: 1}


@pytest.mark.parametrize("why", ["stumbled", "suspect"])
def test_while_its_queue_is_set_aside(why: str) -> None:
    shop = Shop(**({"x_max_length": 10, "x_overflow": "reject-publish"} if why == "stumbled" else {}))
    shop.cut()
    late = shop.settles()
    shop.ends(shop.first)
    shop.second()
    for site in shop.cluster.running:
        site.story.forgives = True
    queue, role = shop.queue, shop.owner.node.role

    def fails(*_: Any) -> None:
        raise RuntimeError("seeded")

    if why == "suspect":
        role.owned_queues._work(role.owned_queues.queues[queue.entity.queue_id], fails)
    else:
        shop.owner.node.setting_aside.stumbled(queue, RuntimeError("seeded"))
    shop.cluster.wait(300)
    answers = shop.comes()
    shop.cluster.relink()
    shop.cluster.wait(300)
    shop.cluster.order(c.PauseQueue(vhost="/", name="q", paused=False, why="", staging=False))
    shop.cluster.wait(300)
    if queue.broken:
        shop.owner.node.setting_aside.resumed(queue)
    shop.check(late, answers)


def test_while_a_transaction_before_waits_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop(x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    other = Receiver(shop.cluster, shop.here, name="other", deaf=False)
    other.consume()
    publish(shop.cluster, b"2", b"3")
    who, body = (other, other.read()[0][0])
    shop.first.read()
    shop.cut()
    before = Awaited(who, body, "reject", publishes=b"before")
    late = shop.settles()
    shop.ends(shop.first)
    second = Receiver(shop.cluster, shop.there, name="second", deaf=False)
    second.consume()
    assert b"1" in [body for body, _ in second.read()]
    second.leave()
    waits: list[Callable[[], None]] = []
    brings = Ingest._brings

    def reads(self: Ingest, attachment: Any, commit: Any) -> bool:
        if waits == [] and self._owned.queue is shop.queue and commit.settlements:
            self._owned.pass_over(attachment)
            waits.append(self._owned.hear_again)  # type: ignore[attr-defined]
            return True
        return bool(waits) or brings(self, attachment, commit)

    monkeypatch.setattr(Ingest, "_brings", reads)
    answers = shop.comes()
    shop.cluster.relink()
    shop.cluster.wait(200)
    monkeypatch.setattr(Ingest, "_brings", brings)
    waits[0]()
    shop.cluster.wait(1000)
    assert before.answers == ["done"]
    assert late.answers in ([], ["refused"])
    assert answers[-1]
    assert sum(ring(shop.cluster).links().values()) >= 1


def test_an_answer_to_a_former_attach_says_nothing_of_this_one() -> None:
    shop = Shop()
    second = Receiver(shop.cluster, shop.there, name="second", deaf=False)
    second.consume()
    second.leave()
    shop.cut()
    shop.comes()
    shop.handle.publish([message(b"fill")], None, 0)  # the transaction behind it is not the one that may go alone
    late = shop.settles()
    shop.ends(shop.first)
    again = Receiver(shop.cluster, shop.there, resumes=True, name="second", deaf=False)
    again.held()
    again.consume()
    assert b"1" in [body for body, _ in again.read()]
    again.leave()
    answers = shop.comes()
    box = shop.handle.outbox
    shop.owner.disk_waits = True
    box.in_flight_bytes += 1 << 30  # other queues fill the window
    shop.cluster.relink()
    shop.cluster.turn()
    shop.cut()
    shop.owner.disk_waits = False
    shop.handle.outbox.in_flight_bytes = box.in_flight_bytes = 0
    shop.cluster.relink()
    shop.check(late, answers)


def test_links_whose_questions_were_given_up_are_forgotten_when_nothing_is_left_to_say() -> None:
    shop = Shop()
    links = {f"k{number}": Receiver(shop.cluster, shop.there, name=f"k{number}", deaf=False) for number in range(40)}
    for link in links.values():
        link.leave()
    shop.cut()
    shop.first.ack(b"1")
    for name in links:
        receiver = Receiver(shop.cluster, shop.here, resumes=True, name=name, deaf=False)
        shop.handle.held_by(receiver.link, lambda _: None)
        receiver.leave()
    for other in (shop.owner.name, shop.there):
        shop.cluster.cuts |= {(shop.here, other), (other, shop.here)}
        shop.cluster.unlink(shop.here, other)
    shop.cluster.wait(70_000, 1000)
    shop.cluster.cuts.clear()
    shop.cluster.relink()
    for link in links.values():
        shop.ends(link)
    shop.cluster.wait(2000)
    shop.first.leave()
    shop.cluster.wait(2000)
    shop.handle.silent_links()
    assert len(shop.handle._links.came_back) + len(shop.handle._links.attaches) <= 1


def test_what_came_while_a_queue_was_set_aside_is_taken_when_it_goes_on() -> None:
    """Of a queue that may refuse, which judges what comes."""
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare("q", x_max_length=10, x_overflow="reject-publish")
    here, there = others(cluster)
    for site in cluster.running:
        site.story.forgives = True
    queue = owned(owner(cluster))[0]
    owner(cluster).node.setting_aside.stumbled(queue, RuntimeError("seeded"))
    cluster.wait(300)
    done: list[bytes] = []

    def publishes(at: str, body: bytes) -> None:
        ticket = Ticket(1, 1, lambda ticket: None if ticket.rejected else done.append(body))
        cluster[at].node.vhosts["/"].queues["q"].publish([message(body)], ticket, cluster[at].now_ms)
        ticket.pass_()

    publishes(here, b"during")
    cluster.wait(300)
    assert done == []
    cluster.order(c.PauseQueue(vhost="/", name="q", paused=False, why="", staging=False))
    cluster.wait(1000)
    publishes(here, b"after")
    publishes(there, b"from there")
    cluster.wait(1000)
    assert sorted(done) == [b"after", b"during", b"from there"]
