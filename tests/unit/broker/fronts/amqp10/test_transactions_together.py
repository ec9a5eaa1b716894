"""Transactions over several queues: all or nothing (`access.together`)."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.access import together
from clusterbroker.broker.access.together import Together
from clusterbroker.broker.fronts.amqp10.resuming import RECOVERY
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.remote.asking import Asking
from clusterbroker.broker.remote.settling import Settling
from clusterbroker.broker.wire.amqp10.performatives import (
    Accepted,
    Attach,
    Disposition,
    Error,
    Modified,
    Rejected,
    Source,
    Target,
    TransactionalState,
)
from tests.support.amqp10 import message
from tests.unit.broker.fronts.amqp091.harness import World
from tests.unit.broker.fronts.amqp10.harness import Peer, bodies
from tests.unit.broker.fronts.amqp10.test_settling import Link, Transaction, settle, tags
from tests.unit.broker.fronts.amqp10.test_suspending import KEPT_S, enter, fill
from tests.unit.broker.node.node_cluster import Cluster

WHERE = pytest.mark.parametrize("where", ["alone", "owner", "elsewhere"])


def place(where: str) -> tuple[Any, Any]:
    """Everything, and the client's node. Queue `full` has room for one message, and has it."""
    world: Any = World() if where == "alone" else Cluster("a", "b", "c")
    client = (world if where == "alone" else world["b"]).client()
    for name in ("q", "q2", "out"):
        client.declare(name)
    client.declare("full", x_max_length=1, x_overflow="reject-publish")
    site = world
    if where != "alone":
        owner = str(world["a"].map.queue("/", "q").owner)
        site = world[owner if where == "owner" else next(name for name in "abc" if name != owner)]
    fill(site, 1, "full")
    return world, site


def post(peer: Peer, transaction: Transaction, queue: str) -> None:
    state = TransactionalState(txn_id=transaction.number)
    peer.sender(f"s-{queue}", f"/queues/{queue}").transfer(message(b"new"), state=state)


def counts(world: Any, *names: str) -> list[int]:
    sites = [world] if isinstance(world, World) else world.running
    queues = [queue for site in sites for queue in site.node.queues.values()]
    return [sum(one.ring.ready + one.ring.unacked for one in queues if one.name == name) for name in names]


def refused(outcome: Any) -> str:
    assert isinstance(outcome, Rejected)
    assert isinstance(outcome.error, Error)
    assert outcome.error.condition == "amqp:transaction:rollback"
    return outcome.error.description or ""


@WHERE
@pytest.mark.parametrize("is_seeded", [False, True])
def test_a_queue_that_is_full_refuses_the_whole(where: str, is_seeded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if is_seeded:
        monkeypatch.setattr(together, "ASKED_COMMITS", 1 << 30)
        monkeypatch.setattr(LocalQueue, "judge", lambda _queue, _part, _now_ms, then: then("not asked"))
    world, site = place(where)
    fill(site, 2)
    peer = enter(site)
    Link(peer).take(2)
    transaction = Transaction(peer)
    settle(peer, 0, transaction.retiring())
    settle(peer, 1, transaction.retiring(Modified(delivery_failed=True)))
    post(peer, transaction, "out")
    post(peer, transaction, "full")
    outcome = transaction.discharge()
    if is_seeded:
        assert counts(world, "out") == [1] or "not asked" in refused(outcome), "the lines below find it"
        return
    assert "'full'" in refused(outcome)
    assert counts(world, "q", "out", "full") == [2, 0, 1]
    assert settle(peer, 0)[0].settled, "it is held as before"
    assert counts(world, "q") == [1]


@WHERE
def test_all_of_it_happens(where: str) -> None:
    world, site = place(where)
    fill(site, 2)
    fill(site, 1, "q2")
    peer = enter(site)
    Link(peer).take(2)
    peer.receiver("other", "/queues/q2", credit=1)
    world.turn()
    peer.raw(b"")
    transaction = Transaction(peer)
    settle(peer, 0, transaction.retiring())
    settle(peer, 1, transaction.retiring(Modified(delivery_failed=True, message_annotations={"x-opt-why": "late"})))
    settle(peer, 2, transaction.retiring())
    post(peer, transaction, "out")
    assert isinstance(transaction.discharge(), Accepted)
    assert counts(world, "q", "q2", "out") == [1, 0, 1]


def test_a_link_that_goes_on_elsewhere_meanwhile_refuses_the_whole() -> None:
    """Its queue has not answered: the others get nothing."""
    world, site = place("elsewhere")
    fill(site, 1)
    peer = enter(site)
    held = tags(Link(peer).take(1))
    transaction = Transaction(peer)
    settle(peer, 0, transaction.retiring())
    post(peer, transaction, "out")
    owner = str(world["a"].map.queue("/", "q").owner)
    third = next(name for name in "abc" if name not in (owner, site.name))
    world.unlink(site.name, owner)
    assert transaction.discharge() is None
    later = enter(world[third])
    source = Source(address="/queues/q", timeout=KEPT_S, durable=2, expiry_policy="never")
    attach = Attach(
        name="r", handle=later.handle(), role=True, source=source, target=Target(),
        unsettled=dict.fromkeys(held), desired_capabilities=(RECOVERY,),
    )  # fmt: skip
    later.say(attach)
    world.relink()
    world.wait(500)
    assert counts(world, "q", "out") == [1, 0]
    (back,) = bodies(later.raw(b""), Attach)
    assert set(back.unsettled or {}) == set(held)


@pytest.mark.parametrize("end", ["silent", "lost"])
def test_a_queue_that_does_not_answer_leaves_all_as_it_was(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Asking, "_judge", lambda *_: None)
    world, site = place("elsewhere")
    fill(site, 1)
    peer = enter(site)
    link = Link(peer)
    link.take(1)
    transaction = Transaction(peer)
    settle(peer, 0, transaction.retiring())
    post(peer, transaction, "out")
    world["b"].client().declare("limited", x_max_length=1, x_overflow="reject-publish")
    post(peer, transaction, "limited")
    assert transaction.discharge() is None
    if end == "lost":
        peer.leave()
    else:
        world.wait(21_000)
        assert isinstance(bodies(peer.raw(b""), Disposition)[-1].state, Rejected)
    world.wait(1000)
    assert counts(world, "q", "out", "limited") == [1, 0, 0]


@pytest.mark.parametrize("is_seeded", [False, True])
def test_what_decides_is_carried_out_whole(is_seeded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of its two deliveries goes on elsewhere behind the question; the part has no messages."""
    if is_seeded:
        monkeypatch.setattr(Settling, "_not_held", lambda *_: False)
    world, site = place("elsewhere")
    fill(site, 2)
    peer = enter(site)
    held = tags(Link(peer).take(1))
    peer.receiver("r2", "/queues/q", credit=1)
    world.turn()
    peer.raw(b"")
    transaction = Transaction(peer)
    settle(peer, 0, transaction.retiring())
    settle(peer, 1, transaction.retiring())
    post(peer, transaction, "out")
    owner = str(world["a"].map.queue("/", "q").owner)
    third = next(name for name in "abc" if name not in (owner, site.name))
    decide = Together._decide

    def cut_off(self: Together) -> None:
        decide(self)
        world.unlink(site.name, owner)

    monkeypatch.setattr(Together, "_decide", cut_off)
    assert transaction.discharge() is None
    later = enter(world[third])
    source = Source(address="/queues/q", timeout=KEPT_S, durable=2, expiry_policy="never")
    attach = Attach(
        name="r", handle=later.handle(), role=True, source=source, target=Target(),
        unsettled=dict.fromkeys(held), desired_capabilities=(RECOVERY,),
    )  # fmt: skip
    later.say(attach)
    world.relink()
    world.wait(2000)
    outcome = bodies(peer.raw(b""), Disposition)[-1].state
    if is_seeded:
        assert isinstance(outcome, Accepted), "the lines below find it"
        return
    assert "not hold" in refused(outcome)
    assert counts(world, "q", "out") == [2, 0]
