"""Outcomes of a receiver's deliveries whose link, session or queue's owner goes meanwhile (`remote.settling`)."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.fronts.amqp10 import changing, recoverable_receiver, returning, session
from clusterbroker.broker.fronts.amqp10.resuming import RECOVERY
from clusterbroker.broker.queues.attributes import LINK_WITHDRAWN
from clusterbroker.broker.remote.owned_queue import OwnedQueue
from clusterbroker.broker.wire.amqp10.performatives import (
    Accepted,
    Attach,
    Coordinator,
    Declare,
    Declared,
    Detach,
    Discharge,
    Disposition,
    End,
    Error,
    Flow,
    Modified,
    Rejected,
    Released,
    Source,
    Target,
    TransactionalState,
    Transfer,
    composed,
)
from clusterbroker.broker.wire.amqp10.types import encode
from clusterbroker.broker.wire.numbers import UInt64
from tests.support.amqp10 import Frame, message, read
from tests.unit.broker.fronts.amqp091.harness import World
from tests.unit.broker.fronts.amqp10.harness import Peer, Sender, bodies, world_with
from tests.unit.broker.fronts.amqp10.test_suspending import KEPT_S, enter, fill, tags
from tests.unit.broker.node.node_cluster import Cluster


@pytest.fixture
def cluster() -> Cluster:
    found = Cluster("a", "b", "c")
    found["b"].client().declare("q")
    return found


def places(cluster: Cluster) -> tuple[str, list[str]]:
    owner = str(cluster["a"].map.queue("/", "q").owner)
    return owner, [name for name in ("a", "b", "c") if name != owner]


class Link:
    """A receiver's link of a client; `lasting`: its queue's log says what it holds."""

    def __init__(
        self,
        peer: Peer,
        unsettled: dict[bytes, Any] | None = None,
        *,
        lasting: bool = True,
        second: bool = True,
        queue: str = "q",
        incomplete: bool = False,
    ) -> None:
        self.peer, self.number = peer, peer.handle()
        source = Source(address=f"/queues/{queue}", timeout=KEPT_S, durable=2 if lasting else 0, expiry_policy="never")
        attach = Attach(
            name="r", handle=self.number, role=True, rcv_settle_mode=int(second), source=source, target=Target(),
            unsettled=unsettled, incomplete_unsettled=incomplete,
            desired_capabilities=(RECOVERY,) if lasting else (),
        )  # fmt: skip
        self.heard = peer.say(attach)
        self.heard += peer.raw(b"")
        (self.attach,) = [one for one in bodies(self.heard, Attach) if one.name == "r"]

    @property
    def states(self) -> dict[Any, Any]:
        return {tag: composed(state) for tag, state in (self.attach.unsettled or {}).items()}

    def take(self, credit: int) -> list[Frame]:
        heard = self.peer.say(self.peer.flow(self.number, delivery_count=0, link_credit=credit))
        heard += self.peer.raw(b"") + self.peer.raw(b"")
        return [each for each in heard if hasattr(each.body, "delivery_tag")]

    def detach(self, closed: bool = False) -> list[Detach]:
        return bodies(self.peer.say(Detach(handle=self.number, closed=closed)), Detach)


def settle(peer: Peer, number: int, state: Any = None, settled: bool = False) -> list[Disposition]:
    state = Accepted() if state is None else state
    return bodies(peer.say(Disposition(role=True, first=number, settled=settled, state=state)), Disposition)


def told(peer: Peer) -> list[tuple[int, Any]]:
    """What the client has heard: delivery, and how it is settled here."""
    return [(int(one.first), one.state) for one in bodies(peer.raw(b""), Disposition) if one.settled]


class Transaction:
    """One that is declared."""

    def __init__(self, peer: Peer) -> None:
        handle = peer.handle()
        attach = Attach(
            name="t", handle=handle, role=False, source=Source(), target=Coordinator(), initial_delivery_count=0
        )
        self._link = Sender(peer, handle, peer.say(attach))
        declared = self._say(Declare())
        assert isinstance(declared, Declared)
        self.number = declared.txn_id

    def _say(self, request: Any) -> Any:
        payload = b"\0" + encode(UInt64(0x77)) + request.encoded()
        heard = self._link.send(payload=payload) + self._link.peer.raw(b"")
        states = [one.state for one in bodies(heard, Disposition)]
        return states[0] if states else None

    def retiring(self, outcome: Any = None) -> TransactionalState:
        return TransactionalState(txn_id=self.number, outcome=Accepted() if outcome is None else outcome)

    def discharge(self, fail: bool = False) -> Any:
        return self._say(Discharge(txn_id=self.number, fail=fail))


# -- rcv-settle-mode second


def test_an_outcome_is_told_when_the_next_owner_has_carried_it_out(cluster: Cluster) -> None:
    owner, (here, there) = places(cluster)
    fill(cluster[owner], 2)
    peer = enter(cluster[here])
    link = Link(peer)
    held = link.take(2)
    cluster.unlink(here, owner)
    assert settle(peer, 0) == []
    assert link.detach() == [Detach(handle=link.number)]
    cluster.kill(owner)
    cluster.wait(1000)
    assert told(peer) == [(0, Accepted())]
    back = Link(enter(cluster[there]), {tags(held)[1]: None})
    assert back.states == {tags(held)[1]: None}, "what was settled comes never again"
    assert tags(back.take(9)) == tags(held)[1:]


def test_what_a_later_attach_decides_is_not_told(cluster: Cluster) -> None:
    owner, (here, there) = places(cluster)
    fill(cluster[owner], 1)
    peer = enter(cluster[here])
    link = Link(peer)
    (held,) = tags(link.take(1))
    cluster.unlink(here, owner)
    settle(peer, 0)
    link.detach()
    later = enter(cluster[there])
    later.say(
        Attach(
            name="r",
            handle=later.handle(),
            role=True,
            rcv_settle_mode=1,
            target=Target(),
            unsettled={held: None},
            source=Source(address="/queues/q", timeout=KEPT_S, durable=2, expiry_policy="never"),
            desired_capabilities=(RECOVERY,),
        )
    )
    cluster.relink()
    cluster.wait(200)
    (attach,) = bodies(later.raw(b""), Attach)
    assert list(attach.unsettled or {}) == [held]
    assert told(peer) == [], "its client would believe that it is settled, and it comes again"


@pytest.mark.parametrize("second", [False, True])
def test_a_link_that_is_closed_has_said_all_before(cluster: Cluster, second: bool) -> None:
    """Its end, which the wiring tells, does not overtake what its client has settled."""
    owner, (here, there) = places(cluster)
    fill(cluster[owner], 2)
    peer = enter(cluster[here])
    link = Link(peer, second=second)
    link.take(2)
    cluster.unlink(here, owner)
    settle(peer, 0, settled=not second)
    assert link.detach(closed=True) == []
    cluster.relink()
    cluster.wait(200)
    heard = peer.raw(b"")
    assert bodies(heard, Detach) == [Detach(handle=link.number, closed=True)]
    assert [one.body for one in cluster[there].client().consume("q")] == [b"1"]


@pytest.mark.parametrize("where", ["alone", "owner", "elsewhere"])
def test_a_rejection_is_told_when_it_is_committed(where: str) -> None:
    world: Any = world_with("letters") if where == "alone" else Cluster("a", "b", "c")
    site = world if where == "alone" else world["b"]
    client = site.client()
    client.declare("letters")
    client.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="letters")
    if where != "alone":
        owner, others = places(world)
        site = world[owner if where == "owner" else others[0]]
    fill(site, 1)
    peer = enter(site)
    Link(peer).take(1)
    sites = [site] if where == "alone" else world.running
    for one in sites:
        one.disk_waits = True
    error = Error(condition="amqp:decode-error", description="no number")
    assert settle(peer, 0, Rejected(error=error)) == []
    assert told(peer) == []
    for one in sites:
        one.disk_waits = False
    ((number, state),) = told(peer)
    assert (number, type(state)) == (0, Rejected)
    assert _letter(site) == ("amqp:decode-error", "no number")


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("where", ["alone", "owner", "elsewhere"])
@pytest.mark.parametrize("is_seeded", [False, True])
def test_a_return_is_told_when_it_is_committed(
    where: str, lasting: bool, is_seeded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else count and annotations are lost with node and owner, though the client was told."""
    if is_seeded:
        monkeypatch.setattr(
            session, "return_together", lambda _node, entries, _outcome, then, may_come_again: then(entries)
        )
    world: Any = World() if where == "alone" else Cluster("a", "b", "c")
    site = world if where == "alone" else world["b"]
    site.client().declare("q")
    if where != "alone":
        owner, others = places(world)
        site = world[owner if where == "owner" else others[0]]
    fill(site, 1)
    peer = enter(site)
    Link(peer, lasting=lasting).take(1)
    sites = [site] if where == "alone" else world.running
    for one in sites:
        one.disk_waits = True
    annotations = {"x-opt-why": "late"}
    state = Modified(delivery_failed=True, undeliverable_here=True, message_annotations=annotations)
    assert bool(settle(peer, 0, state)) == is_seeded
    if is_seeded:
        return
    assert told(peer) == []
    for one in sites:
        one.disk_waits = False
    (site if where == "alone" else world).turn()
    assert [number for number, _ in told(peer)] == [0]
    peer.leave()
    reader = enter(site, "reader").receiver("reader", "/queues/q", credit=1)
    (site if where == "alone" else world).turn()
    if not lasting:
        ((_, again),) = reader.take()
        assert (again.header.delivery_count, again.annotations["x-opt-why"]) == (1, "late")


@pytest.mark.parametrize("state", [Released(), Modified(delivery_failed=True)], ids=["released", "modified"])
def test_a_tag_is_free_before_its_message_comes_again(state: Any) -> None:
    """2.6.12: a delivery-tag is of one unsettled delivery of its link, and here it is the message's."""
    world = World()
    world.client().declare("q")
    fill(world, 1)
    peer = enter(world)
    assert len(Link(peer).take(2)) == 1
    heard = peer.say(Disposition(role=True, first=0, settled=False, state=state)) + peer.raw(b"")
    assert [type(frame.body) for frame in heard if isinstance(frame.body, Disposition | Transfer)] == [
        Disposition, Transfer,
    ]  # fmt: skip


def _letter(site: Any) -> tuple[Any, Any]:
    reader = enter(site, "reader").receiver("letters", "/queues/letters", credit=1)
    reader.peer.world.turn()
    ((_, letter),) = reader.take()
    annotations = letter.annotations
    return annotations.get("x-opt-rejected-condition"), annotations.get("x-opt-rejected-description")


# -- transactions


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("end", ["lost", "ended", "rolled back", "rolled back later"])
def test_what_was_retired_in_vain_stays_with_its_link(cluster: Cluster, lasting: bool, settled: bool, end: str) -> None:
    owner, (here, there) = places(cluster)
    fill(cluster[owner], 2)
    peer = enter(cluster[here])
    link = Link(peer, lasting=lasting)
    held = tags(link.take(2))
    transaction = Transaction(peer)
    settle(peer, 0, transaction.retiring(), settled)
    if end == "lost":
        peer.leave()
    elif end == "ended":
        peer.say(End())
    else:
        link.detach()
        if end == "rolled back":
            transaction.discharge(fail=True)
        else:
            cluster.wait(61_000)
    cluster.turn()
    other = cluster[there].client()
    assert [one.body for one in other.consume("q")] == [], "nobody else has it before the link's end"
    back = Link(enter(cluster[here]), {held[0]: None, held[1]: None}, lasting=lasting)
    assert set(back.states) == set(held)
    assert {read(each.payload).body for each in back.take(9)} == {b"0", b"1"}


@pytest.mark.parametrize("where", ["here", "there"])
def test_a_link_that_goes_on_elsewhere_has_no_part_in_a_transaction(cluster: Cluster, where: str) -> None:
    owner, (here, there) = places(cluster)
    fill(cluster[owner], 2)
    peer = enter(cluster[here])
    link = Link(peer)
    held = tags(link.take(2))
    transaction = Transaction(peer)
    settle(peer, 0, transaction.retiring())
    link.detach()
    back = Link(enter(cluster[here if where == "here" else there]), {held[0]: None, held[1]: None})
    assert set(back.states) == set(held)
    refused = transaction.discharge()
    assert isinstance(refused, Rejected)
    assert isinstance(refused.error, Error)
    assert refused.error.condition == "amqp:transaction:rollback"
    assert tags(back.take(2)) == held
    assert settle(back.peer, 0) == [Disposition(role=False, first=0, last=0, settled=True, state=Accepted())]
    assert settle(back.peer, 1, Modified(delivery_failed=True))[0].settled
    assert [one.body for one in cluster[there].client().consume("q")] == [b"1"]


@pytest.mark.parametrize("where", ["alone", "owner", "elsewhere"])
@pytest.mark.parametrize("posts", [False, True])
def test_the_error_of_what_a_transaction_rejects_is_kept(where: str, posts: bool) -> None:
    world: Any = world_with("letters") if where == "alone" else Cluster("a", "b", "c")
    site = world if where == "alone" else world["b"]
    client = site.client()
    client.declare("letters")
    client.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="letters")
    if where != "alone":
        owner, others = places(world)
        site = world[owner if where == "owner" else others[0]]
    fill(site, 2)
    peer = enter(site)
    held = tags(Link(peer).take(2))
    assert len(held) == 2
    transaction = Transaction(peer)
    error = Error(condition="amqp:not-allowed", description="twice")
    settle(peer, 0, transaction.retiring(Rejected(error=error)))
    settle(peer, 1, transaction.retiring())
    if posts:
        state = TransactionalState(txn_id=transaction.number)
        peer.sender("s", "/queues/q").transfer(message(b"new"), state=state)
    assert isinstance(transaction.discharge(), Accepted)
    assert _letter(site) == ("amqp:not-allowed", "twice")


# -- what was withdrawn


def test_what_was_withdrawn_is_forgotten_before_the_link_gets_anything(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one of these is handed to it again under its tag, and an owner that dies then knows it as both."""
    cluster["a"].client().declare("w", x_consumer_timeout=5000)
    owner = str(cluster["a"].map.queue("/", "w").owner)
    here = next(name for name in "abc" if name != owner)
    fill(cluster[owner], 2, "w")
    peer = enter(cluster[here])
    held = tags(Link(peer, queue="w").take(2))
    peer.leave()
    cluster.wait(7000)
    peer = enter(cluster[here])
    told = Link(peer, dict.fromkeys(held), queue="w")
    assert told.states == dict.fromkeys(held, Modified(delivery_failed=True))
    known: list[int] = []
    subscribe = OwnedQueue.consume

    def consume(owned: OwnedQueue, attachment: Any, message: Any) -> None:
        if message.head.holding:
            known.append(len(LINK_WITHDRAWN.of(owned.queue.ring.attributes)))
        subscribe(owned, attachment, message)

    monkeypatch.setattr(OwnedQueue, "consume", consume)
    told.detach()
    again = Link(peer, {}, queue="w")
    assert known == [0]
    assert tags(again.take(9)) == held
    peer.leave()
    assert Link(enter(cluster[here]), dict.fromkeys(held), queue="w").states == dict.fromkeys(held), (
        "they are its again"
    )


@pytest.mark.parametrize("incomplete", [False, True])
def test_what_was_withdrawn_as_its_client_wants_is_settled(cluster: Cluster, incomplete: bool) -> None:
    """It has returned, counted. Another link may have it, so what else the client wants is not carried out."""
    cluster["a"].client().declare("w", x_consumer_timeout=5000)
    owner = str(cluster["a"].map.queue("/", "w").owner)
    here = next(name for name in "abc" if name != owner)
    fill(cluster[owner], 3, "w")
    peer = enter(cluster[here])
    held = tags(Link(peer, queue="w").take(3))
    peer.leave()
    cluster.wait(7000, 500)
    failed, not_here = Modified(delivery_failed=True), Modified(delivery_failed=True, undeliverable_here=True)
    peer = enter(cluster[here])
    told = Link(peer, dict(zip(held, (failed, not_here, Accepted()), strict=True)), queue="w", incomplete=incomplete)
    assert told.states == dict.fromkeys(held[1:], failed), "they are not carried out"
    told.detach()
    peer.leave()
    peer = enter(cluster[here])
    again = Link(peer, {held[0]: failed}, queue="w", incomplete=incomplete)
    assert again.states == {}
    if incomplete:
        again.detach()
        again = Link(peer, {}, queue="w")
    deliveries = again.take(9)
    assert tags(deliveries) == held, "they are ready, and its again"
    counts = [read(one.payload).header.delivery_count for one in deliveries]
    assert counts == [1, 1, 1]


# -- credit that is said, or reviewed, before an attach is answered


@pytest.mark.parametrize("resumes", [False, True])
@pytest.mark.parametrize("drain", [False, True])
@pytest.mark.parametrize("lasting", [False, True])
def test_credit_that_comes_before_the_answer_counts_from_then_on(
    cluster: Cluster, lasting: bool, drain: bool, resumes: bool
) -> None:
    owner, (here, _) = places(cluster)
    fill(cluster[owner], 3)
    held: list[bytes] = []
    if resumes:
        before = enter(cluster[here])
        held = tags(Link(before, lasting=lasting).take(1))
        before.leave()
        cluster.turn()
    peer = enter(cluster[here])
    cluster.unlink(here, owner)
    source = Source(address="/queues/q", timeout=KEPT_S, durable=2 if lasting else 0, expiry_policy="never")
    attach = Attach(
        name="r", handle=0, role=True, source=source, target=Target(), unsettled=dict.fromkeys(held) or None,
        desired_capabilities=(RECOVERY,) if lasting else (),
    )  # fmt: skip
    heard = peer.say(attach, peer.flow(0, link_credit=2, drain=drain))
    assert not bodies(heard, Transfer), "nothing is sent on a link that is not there"
    cluster.relink()
    cluster.wait(1000)
    heard += peer.raw(b"")
    kinds = [type(each.body) for each in heard]
    assert kinds.index(Attach) < kinds.index(Transfer)
    sent = [(one.delivery_tag, one.resume) for one in bodies(heard, Transfer)]
    assert len(sent) == 2, "what the client has said of its credit, and no more"
    assert [tag for tag, is_resumed in sent if is_resumed] == held
    assert sent[0][1] == resumes, "what it has in doubt comes first"


@pytest.mark.parametrize("ends", ["before", "after"])
def test_an_alarm_that_ends_while_an_attach_waits_leaves_its_credit(cluster: Cluster, ends: str) -> None:
    """The review finds a link that is not attached yet, or has just been."""
    owner, (here, _) = places(cluster)
    site = cluster[here]
    peer = enter(site)
    site.node.set_alarm("memory", True)
    site.wiring_waits = True
    attach = Attach(
        name="s", handle=0, role=False, source=Source(), initial_delivery_count=0, desired_capabilities=(RECOVERY,),
        target=Target(address="/queues/q", timeout=KEPT_S, durable=2, expiry_policy="never"),
    )  # fmt: skip
    heard = peer.say(attach)
    if ends == "before":
        site.node.set_alarm("memory", False)
        cluster.turn()
    heard += peer.raw(b"")
    assert not bodies(heard, Flow)
    site.wiring_waits = False
    cluster.turn()
    heard += peer.raw(b"")
    if ends == "after":
        assert not [one for one in bodies(heard, Flow) if one.link_credit]
        site.node.set_alarm("memory", False)
        cluster.turn()
        heard += peer.raw(b"")
    kinds = [type(each.body) for each in heard]
    assert kinds.index(Attach) < kinds.index(Flow)
    assert bodies(heard, Flow)[-1].link_credit > 0
    assert owner


# -- held for too long


@pytest.mark.parametrize("where", ["alone", "owner", "elsewhere"])
@pytest.mark.parametrize("state", [None, Accepted(), Modified(delivery_failed=True, undeliverable_here=True)])
def test_a_timeout_of_an_attached_link_is_told_to_its_client(where: str, state: Any) -> None:
    """Else a client with an outcome on its way would take the delivery for settled: what only it knows was settled."""
    world: Any = World() if where == "alone" else Cluster("a", "b", "c")
    (world if where == "alone" else world["b"]).client().declare("q", x_consumer_timeout=5000)
    site = world
    if where != "alone":
        owner, others = places(world)
        site = world[owner if where == "owner" else others[0]]
    fill(site, 3)
    peer = enter(site)
    link = Link(peer)
    held = tags(link.take(2))
    heard: list[Frame] = []
    for _ in range(16):
        if where == "alone":
            site.now_ms += 500
            site.node.now_ms = site.now_ms
            peer.core.tick(site.now_ms)
        else:
            world.wait(500)
        heard += peer.raw(b"")
    ((closed, error),) = [(one.closed, one.error.condition) for one in bodies(heard, Detach)]
    assert (closed, error) == (True, "amqp:resource-limit-exceeded")
    other = enter(site, "other").receiver("other", "/queues/q", credit=9)
    (site if where == "alone" else world).turn()
    found = [(one.body, one.header.delivery_count) for _, one in other.take()]
    assert found == [(b"0", 1), (b"1", 1), (b"2", 0)]
    back = Link(enter(site), dict.fromkeys(held, state))
    assert back.states == dict.fromkeys(held, Modified(delivery_failed=True))
    assert back.attach.incomplete_unsettled
    assert [(each.body.settled, each.body.state) for each in back.take(9)] == 2 * [
        (True, Modified(delivery_failed=True))
    ]
    back.detach()
    assert Link(back.peer, {}).states == {}


# -- what the client decides as it comes back


def disks_wait_for_outcomes(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """From when a map's outcomes are to be carried out."""
    carry_out = changing.settle_first

    def settle_first(*asked: Any) -> None:
        for each in cluster.running:
            each.disk_waits = True
        carry_out(*asked)

    for module in (recoverable_receiver, returning):
        monkeypatch.setattr(module, "settle_first", settle_first)


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("where", ["owner", "elsewhere"])
@pytest.mark.parametrize("state", [Accepted(), Rejected(), Modified(delivery_failed=True)])
def test_an_outcome_in_a_map_is_told_when_it_is_committed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, lasting: bool, where: str, state: Any
) -> None:
    """In rcv-settle-mode second: told before, it might come again though its client has forgotten it."""
    owner, others = places(cluster)
    site = cluster[owner if where == "owner" else others[0]]
    fill(site, 2)
    before = enter(site)
    held = tags(Link(before, lasting=lasting).take(2))
    before.leave()
    cluster.turn()
    peer = enter(site)
    if lasting:
        cluster.turn()
    disks_wait_for_outcomes(cluster, monkeypatch)
    source = Source(address="/queues/q", timeout=KEPT_S, durable=2 if lasting else 0, expiry_policy="never")
    attach = Attach(
        name="r", handle=0, role=True, rcv_settle_mode=1, source=source, target=Target(),
        unsettled={held[0]: state, held[1]: None}, desired_capabilities=(RECOVERY,) if lasting else (),
    )  # fmt: skip
    heard = peer.say(attach, peer.flow(0, link_credit=9))
    cluster.wait(500)
    heard += peer.raw(b"")
    assert not bodies(heard, Transfer)
    assert not bodies(heard, Attach)
    for each in cluster.running:
        each.disk_waits = False
    cluster.wait(500)
    heard += peer.raw(b"")
    assert [type(each.body) for each in heard].index(Attach) < [type(each.body) for each in heard].index(Transfer)
    sent = {}
    for one in bodies(heard, Transfer):
        sent.setdefault(one.delivery_tag, (one.resume, bool(one.settled), one.state))
    assert sent[held[0]] == (True, True, state)
    assert sent[held[1]][:2] == (True, False)


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("end", ["detached", "lost"])
def test_a_client_that_goes_before_its_map_is_answered(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, lasting: bool, end: str
) -> None:
    owner, (here, there) = places(cluster)
    fill(cluster[owner], 2)
    before = enter(cluster[here])
    held = tags(Link(before, lasting=lasting).take(2))
    before.leave()
    cluster.turn()
    peer = enter(cluster[here])
    disks_wait_for_outcomes(cluster, monkeypatch)
    source = Source(address="/queues/q", timeout=KEPT_S, durable=2 if lasting else 0, expiry_policy="never")
    attach = Attach(
        name="r", handle=0, role=True, rcv_settle_mode=1, source=source, target=Target(),
        unsettled={held[0]: Accepted(), held[1]: None}, desired_capabilities=(RECOVERY,) if lasting else (),
    )  # fmt: skip
    peer.say(attach)
    if end == "detached":
        peer.say(Detach(handle=0))
    else:
        peer.leave()
    cluster.wait(200)
    for each in cluster.running:
        each.disk_waits = False
    cluster.wait(500)
    assert cluster[there].client().consume("q") == []
    back = Link(enter(cluster[here]), {held[0]: Accepted(), held[1]: None}, lasting=lasting)
    assert back.states in ({held[1]: None}, dict.fromkeys(held))
    found = {each.body.delivery_tag: bool(each.body.settled) for each in back.take(9)}
    assert found.pop(held[0], True) is True
    assert found == {held[1]: False}


def test_an_attach_that_waits_for_an_outcome_for_too_long_leaves_all_with_its_link(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, (here, there) = places(cluster)
    fill(cluster[owner], 2)
    before = enter(cluster[here])
    held = tags(Link(before).take(2))
    before.leave()
    cluster.turn()
    peer = enter(cluster[here])
    disks_wait_for_outcomes(cluster, monkeypatch)
    source = Source(address="/queues/q", timeout=KEPT_S, durable=2, expiry_policy="never")
    attach = Attach(
        name="r", handle=0, role=True, rcv_settle_mode=1, source=source, target=Target(),
        unsettled={held[0]: Accepted(), held[1]: None}, desired_capabilities=(RECOVERY,),
    )  # fmt: skip
    heard = peer.say(attach)
    for _ in range(45):
        cluster.wait(500, 500)
        heard += peer.raw(b"")
    assert [one.closed for one in bodies(heard, Detach)] == [True]
    for each in cluster.running:
        each.disk_waits = False
    cluster.wait(500)
    assert cluster[there].client().consume("q") == [], "nobody else has it before the link's end"
    assert Link(enter(cluster[here]), {held[1]: None}).states == {held[1]: None}


@pytest.mark.parametrize("where", ["owner", "elsewhere"])
def test_a_single_active_consumer_that_times_out_is_not_waited_for(cluster: Cluster, where: str) -> None:
    cluster["a"].client().declare("w", x_consumer_timeout=5000, x_single_active_consumer=True)
    owner = str(cluster["a"].map.queue("/", "w").owner)
    here = owner if where == "owner" else next(name for name in "abc" if name != owner)
    fill(cluster[owner], 2, "w")
    peer = enter(cluster[here])
    assert len(Link(peer, queue="w").take(1)) == 1
    other = enter(cluster[here], "other").receiver("other", "/queues/w", credit=9)
    for _ in range(16):
        cluster.wait(500)
        peer.raw(b"")
    assert other.bodies() == [b"0", b"1"]
