"""What a session sends behind a discharge comes behind it (`sending_order`), whatever its transaction waits for."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.access.together import Together
from clusterbroker.broker.fronts.amqp10 import sending_order, session
from clusterbroker.broker.fronts.amqp10.resuming import RECOVERY
from clusterbroker.broker.fronts.amqp10.transacting import FETCHED_MS
from clusterbroker.broker.queues.queue import Queue
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
    Rejected,
    Source,
    Target,
    TransactionalState,
    Transfer,
)
from clusterbroker.broker.wire.amqp10.types import encode
from clusterbroker.broker.wire.numbers import UInt64
from tests.support.amqp10 import frame, message, read
from tests.unit.broker.fronts.amqp10.harness import Peer, Sender, bodies
from tests.unit.broker.fronts.amqp10.test_settling import Link, Transaction, settle
from tests.unit.broker.fronts.amqp10.test_suspending import KEPT_S, enter, fill
from tests.unit.broker.fronts.amqp10.test_transactions_together import WHERE, counts, place, post


class Second(Transaction):
    """Another one of the session, over a link of its own."""

    def __init__(self, peer: Peer, name: str = "t2") -> None:
        handle = peer.handle()
        attach = Attach(
            name=name, handle=handle, role=False, source=Source(), target=Coordinator(), initial_delivery_count=0
        )
        self._link = Sender(peer, handle, peer.say(attach))
        declared = self._say(Declare())
        assert isinstance(declared, Declared)
        self.number = declared.txn_id


def numbered(body: bytes, number: int) -> bytes:
    return message(body, annotations={"x-opt-producer": "p", "x-opt-seq": number})


def transfer(peer: Peer, sender: Sender, payload: bytes, settled: bool = False) -> bytes:
    number = peer.next_id
    peer.next_id += 1
    head = Transfer(handle=sender.number, delivery_id=number, delivery_tag=b"x%d" % number, settled=settled)
    return frame(0, head, payload)


def discharge(peer: Peer, transaction: Transaction) -> bytes:
    payload = b"\0" + encode(UInt64(0x77)) + Discharge(txn_id=transaction.number, fail=False).encoded()
    return transfer(peer, transaction._link, payload)


def heard_in_time(world: Any, peer: Peer, data: bytes) -> list[Any]:
    heard = list(peer.raw(data))
    for _ in range(5):
        world.turn()
        heard += peer.raw(b"")
    return heard


def stored(site: Any) -> list[bytes]:
    return [read(one.payload).body for one in Link(enter(site), queue="out").take(5)]


@WHERE
@pytest.mark.parametrize("is_numbered", [False, True])
@pytest.mark.parametrize("is_plain", [False, True])
def test_what_comes_later_is_stored_later(where: str, is_plain: bool, is_numbered: bool) -> None:
    world, site = place(where)
    fill(site, 2)
    peer = enter(site)
    Link(peer).take(2)
    out = peer.sender("s-out", "/queues/out")
    one, two = Transaction(peer), Second(peer)
    settle(peer, 0, one.retiring())
    first, second = (numbered(b"one", 1), numbered(b"two", 2)) if is_numbered else (message(b"one"), message(b"two"))
    out.transfer(first, state=TransactionalState(txn_id=one.number))
    if not is_plain:
        out.transfer(second, state=TransactionalState(txn_id=two.number))
    data = discharge(peer, one) + (transfer(peer, out, second) if is_plain else discharge(peer, two))
    heard = heard_in_time(world, peer, data)
    states = [one.state for one in bodies(heard, Disposition)]
    assert states == [Accepted()] * len(states)
    assert counts(world, "out", "q") == [2, 1]
    assert stored(site) == [b"one", b"two"]


def held(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, Peer, Sender, bytes]:
    """A transaction whose decision does not come: its owner is cut off behind the question."""
    world, site = place("elsewhere")
    fill(site, 2)
    peer = enter(site)
    Link(peer).take(1)
    out = peer.sender("s-out", "/queues/out")
    one = Transaction(peer)
    settle(peer, 0, one.retiring())
    out.transfer(message(b"one"), state=TransactionalState(txn_id=one.number))
    owner = str(world["a"].map.queue("/", "q").owner)
    decide = Together._decide

    def cut_off(self: Together) -> None:
        decide(self)
        world.unlink(site.name, owner)

    monkeypatch.setattr(Together, "_decide", cut_off)
    heard_in_time(world, peer, discharge(peer, one))
    return world, site, peer, out, b""


@pytest.mark.parametrize("end", ["", "session", "client"])
def test_what_was_sent_settled_is_kept_though_its_client_goes(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world, site, peer, out, _ = held(monkeypatch)
    peer.raw(transfer(peer, out, message(b"two"), settled=True))
    world.turn()
    assert counts(world, "out") == [0]
    if end == "session":
        peer.say(End())
    elif end == "client":
        peer.leave()
    world.relink()
    world.wait(2000)
    assert stored(site) == [b"one", b"two"]


def test_very_much_behind_it_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending_order, "WAITING_BYTES_MAX", 20_000)
    monkeypatch.setattr(session, "WINDOW", 8)
    world, site, peer, out, _ = held(monkeypatch)
    (connection,) = [one for one in site.node.clients.values() if getattr(one, "sessions", None)]
    for _ in range(3):
        assert connection.reading
        peer.raw(transfer(peer, out, message(b"x" * 9000)))
    assert not connection.reading
    world.relink()
    world.wait(2000)
    assert connection.reading
    assert counts(world, "out") == [4]


@WHERE
def test_a_repeat_of_a_numbered_one_is_accepted_though_its_queue_is_full(where: str) -> None:
    world, site = place(where)
    client = (world if where == "alone" else world["b"]).client()
    client.declare("limited", x_max_length=1, x_overflow="reject-publish")
    peer = enter(site)
    senders = [peer.sender(name, f"/queues/{name}") for name in ("limited", "out")]
    for _ in range(2):
        transaction = Transaction(peer)
        for sender in senders:
            sender.transfer(numbered(b"x", 1), state=TransactionalState(txn_id=transaction.number))
        assert isinstance(transaction.discharge(), Accepted)
        assert counts(world, "limited", "out") == [1, 1]
        peer.say(Detach(handle=transaction._link.number, closed=True))


@WHERE
def test_a_numbered_one_that_was_refused_is_stored_behind_later_numbers(where: str) -> None:
    """It is stored wherever its repeat is accepted."""
    _, site = place(where)
    peer = enter(site)
    senders = {name: peer.sender(name, f"/queues/{name}") for name in ("full", "out")}

    def sent(number: int, *names: str) -> Any:
        transaction = Second(peer, f"t-{number}-{len(names)}")
        for name in names:
            state = TransactionalState(txn_id=transaction.number)
            senders[name].transfer(numbered(b"%d" % number, number), state=state)
        outcome = transaction.discharge()
        peer.say(Detach(handle=transaction._link.number, closed=True))
        return outcome

    assert isinstance(sent(1, "full", "out"), Rejected)
    assert isinstance(sent(2, "out"), Accepted)
    assert isinstance(sent(1, "out"), Accepted)
    assert sorted(stored(site)) == [b"1", b"2"]


@pytest.mark.parametrize("lost", ["link", "link and client"])
def test_what_has_begun_is_not_given_back(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world, site = place("elsewhere")
    fill(site, 1)
    fill(site, 1, "q2")
    peer = enter(site)
    peer.receiver("r1", "/queues/q", credit=1)
    peer.receiver("r2", "/queues/q2", credit=1)
    world.turn()
    peer.raw(b"")
    transaction = Transaction(peer)
    settle(peer, 0, transaction.retiring())
    settle(peer, 1, transaction.retiring())
    post(peer, transaction, "q")
    post(peer, transaction, "out")
    owner = str(world["a"].map.queue("/", "q").owner)
    decide = Together._decide

    def cut_off(self: Together) -> None:
        decide(self)
        assert self.begun
        world.unlink(site.name, owner)
        if "client" in lost:
            peer.leave()

    monkeypatch.setattr(Together, "_decide", cut_off)
    transaction.discharge()
    world.relink()
    world.wait(3000)
    assert counts(world, "q", "q2", "out") == [1, 0, 1]


@pytest.mark.parametrize("end", ["", "late", "session"])
def test_what_comes_later_waits_for_bodies_too(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world, site = place("alone")
    fill(site, 1)
    brought: list[Any] = []
    monkeypatch.setattr(Queue, "preload", lambda _queue, _seqs, then: brought.append(then))
    peer = enter(site)
    Link(peer).take(1)
    out = peer.sender("s-out", "/queues/out")
    one = Transaction(peer)
    settle(peer, 0, one.retiring(Rejected()))
    out.transfer(message(b"one"), state=TransactionalState(txn_id=one.number))
    peer.raw(discharge(peer, one) + transfer(peer, out, message(b"two"), settled=True))
    assert counts(world, "out", "q") == [0, 1]
    if end == "session":
        peer.say(End())
    elif end == "late":
        world.wait(FETCHED_MS + 1000)
    (then,) = brought
    then()
    world.turn()
    assert stored(site) == ([b"two"] if end else [b"one", b"two"])
    assert counts(world, "q") == [1 if end else 0]


def test_what_waits_of_a_recoverable_link_is_not_here_when_it_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not known to its queue, so its client sends it again: then it must not come twice."""
    world, site, peer, _, _ = held(monkeypatch)
    tag = b"one-of-it"
    target = Target(address="/queues/out", timeout=KEPT_S, durable=2, expiry_policy="never")

    def attached(peer: Peer, **more: Any) -> tuple[int, Attach]:
        handle = peer.handle()
        attach = Attach(
            name="lasting", handle=handle, role=False, rcv_settle_mode=1, source=Source(), target=target,
            initial_delivery_count=0, desired_capabilities=(RECOVERY,), **more,
        )  # fmt: skip
        (answer,) = bodies(peer.say(attach) + peer.raw(b"") + peer.raw(b""), Attach)
        return handle, answer

    def send(peer: Peer, handle: int, **more: Any) -> list[Any]:
        number = peer.next_id
        peer.next_id += 1
        return peer.raw(frame(0, Transfer(handle=handle, delivery_id=number, delivery_tag=tag, **more), message(b"x")))

    handle, _answer = attached(peer)
    assert not bodies(send(peer, handle), Disposition)
    peer.leave()
    world.relink()
    world.wait(2000)
    assert counts(world, "out") == [1], "the transaction's"
    again = enter(site)
    handle, answer = attached(again, unsettled={tag: None})
    assert not answer.unsettled
    heard = send(again, handle) + again.raw(b"") + again.raw(b"")
    assert [one.state for one in bodies(heard, Disposition)] == [Accepted()]
    assert counts(world, "out") == [2]
