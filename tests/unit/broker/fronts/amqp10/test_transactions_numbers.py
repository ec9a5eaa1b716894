"""Numbered messages of a transaction that does not happen: none of them is taken for known behind a later number."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.access import together
from clusterbroker.broker.access.together import Together
from clusterbroker.broker.fronts.amqp10 import transacting
from clusterbroker.broker.fronts.amqp10.resuming import RECOVERY
from clusterbroker.broker.fronts.amqp10.transacting import TIMEOUT_MS
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.remote.remote_queue import RemoteQueue
from clusterbroker.broker.wire.amqp10.performatives import (
    Accepted,
    Attach,
    Disposition,
    End,
    Error,
    Rejected,
    Source,
    Target,
    TransactionalState,
)
from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.levels import LOST_NUMBERS
from tests.unit.broker.fronts.amqp10.harness import Peer, bodies
from tests.unit.broker.fronts.amqp10.test_settling import Link, settle, tags
from tests.unit.broker.fronts.amqp10.test_suspending import KEPT_S, enter, fill
from tests.unit.broker.fronts.amqp10.test_transactions_order import Second, numbered, stored
from tests.unit.broker.fronts.amqp10.test_transactions_together import WHERE, counts, place, refused
from tests.unit.broker.node.node_cluster import Cluster


class Producer:
    """A session of the one producer."""

    def __init__(self, site: Any, *names: str) -> None:
        self.peer: Peer = enter(site)
        names = names or ("out", "full", "q2")
        self._senders = {name: self.peer.sender(f"s-{name}", f"/queues/{name}") for name in names}
        self._transactions = 0

    def posted(self, number: int, *names: str) -> Second:
        """A transaction with a message of this number to each of the queues."""
        self._transactions += 1
        transaction = Second(self.peer, f"t-{self._transactions}")
        for name in names:
            self.send(name, number, state=TransactionalState(txn_id=transaction.number))
        return transaction

    def send(self, name: str, number: int, **fields: Any) -> list[Any]:
        return self._senders[name].transfer(numbered(b"%d" % number, number), **fields)

    def sent(self, number: int) -> list[Any]:
        """Such a message to `out`, outside of transactions: its outcome."""
        heard = self.send("out", number) + self.peer.raw(b"")
        return [one.state for one in bodies(heard, Disposition)]


def accepted_behind(producer: Producer, site: Any) -> None:
    """Number 1 is free behind number 2."""
    assert producer.sent(2) == [Accepted()]
    assert producer.sent(1) == [Accepted()]
    assert producer.sent(1) == [Accepted()]
    assert sorted(stored(site)) == [b"1", b"2"], "it is stored, and once"


@WHERE
@pytest.mark.parametrize("is_seeded", [False, True])
def test_rolled_back(where: str, is_seeded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if is_seeded:
        for kind in (LocalQueue, RemoteQueue):
            monkeypatch.setattr(kind, "refuse_numbers", lambda _queue, _named, then: then())
    world, site = place(where)
    producer = Producer(site)
    assert isinstance(producer.posted(1, "out", "q2").discharge(fail=True), Accepted)
    assert counts(world, "out", "q2") == [0, 0]
    if is_seeded:
        assert [producer.sent(2), producer.sent(1)] == [[Accepted()]] * 2
        assert stored(site) == [b"2"], "the lines below find it"
        return
    accepted_behind(producer, site)


@pytest.mark.parametrize("level", [6, LOST_NUMBERS])
@pytest.mark.parametrize("is_full", [False, True])
def test_other_clients_of_its_queues_do_not_wait(level: int, is_full: bool) -> None:
    """Up to level 6 the queue has to refuse something, and its nodes attach again."""
    world = Cluster("a", "b", "c", level=level)
    for name in ("out", "q2"):
        world["b"].client().declare(name)
    limit = {"x_max_length": 1, "x_overflow": "reject-publish"}
    world["b"].client().declare("full", **limit)
    fill(world["b"], 1, "full")
    owner = str(world["a"].map.queue("/", "out").owner)
    site = world[next(name for name in "abc" if name != owner)]
    producer = Producer(site)
    assert producer.sent(1) == [Accepted()]
    queue = site.node.vhosts["/"].queues["out"]
    before = queue.gen
    names = ("out", "full") if is_full else ("out", "q2")
    outcome = producer.posted(2, *names).discharge(fail=not is_full)
    assert isinstance(outcome, Rejected if is_full else Accepted)
    if level < LOST_NUMBERS and is_full:
        return  # each queue decides for itself
    assert (queue.gen > before) is (level < LOST_NUMBERS)
    assert producer.sent(3) == [Accepted()]
    assert producer.sent(2) == [Accepted()]
    assert sorted(stored(site)) == [b"1", b"2", b"3"]


@WHERE
@pytest.mark.parametrize("end", ["session", "time"])
def test_open_for_too_long_and_abandoned(where: str, end: str) -> None:
    world, site = place(where)
    producer = Producer(site)
    transaction = producer.posted(1, "out")
    if end == "time":
        for _ in range(3):
            if where == "alone":
                world.now_ms += TIMEOUT_MS // 2
                producer.peer.core.tick(world.now_ms)
            else:
                world.wait(TIMEOUT_MS // 2, TIMEOUT_MS // 2)
        assert isinstance(transaction.discharge(), Rejected)
    else:
        producer.peer.leave()
        world.turn()
        producer = Producer(site)
    accepted_behind(producer, site)


def test_a_link_that_goes_on_elsewhere_meanwhile() -> None:
    world, site = place("elsewhere")
    fill(site, 1)
    producer = Producer(site)
    held = tags(Link(producer.peer).take(1))
    transaction = producer.posted(1, "out")
    settle(producer.peer, 0, transaction.retiring())
    owner = str(world["a"].map.queue("/", "q").owner)
    later = enter(world[next(name for name in "abc" if name not in (owner, site.name))])
    source = Source(address="/queues/q", timeout=KEPT_S, durable=2, expiry_policy="never")
    attach = Attach(
        name="r", handle=later.handle(), role=True, source=source, target=Target(),
        unsettled=dict.fromkeys(held), desired_capabilities=(RECOVERY,),
    )  # fmt: skip
    later.say(attach)
    assert isinstance(transaction.discharge(), Rejected)
    accepted_behind(producer, site)


@WHERE
@pytest.mark.parametrize("is_seeded", [False, True])
def test_a_queue_that_is_full_refuses_the_whole(where: str, is_seeded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if is_seeded:
        monkeypatch.setattr(together, "ASKED_BY_NUMBER", 1 << 30)
        monkeypatch.setattr(LocalQueue, "judge", lambda _queue, _part, _now_ms, then: then(""))
    world, site = place(where)
    producer = Producer(site)
    outcome = producer.posted(1, "out", "full").discharge()
    if is_seeded:
        assert counts(world, "out", "full") in ([1, 1], [1, 2]), "the lines below find it"
        return
    assert "'full'" in refused(outcome)
    assert counts(world, "out", "full") == [0, 1]
    accepted_behind(producer, site)


@pytest.mark.parametrize("is_seeded", [False, True])
def test_a_link_that_goes_on_elsewhere_behind_the_question(is_seeded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What settles is the decision, and refused: the other queue gets nothing, and its number is free."""
    if is_seeded:
        monkeypatch.setattr(together, "ASKED_BY_NUMBER", 1 << 30)
    world, site = place("elsewhere")
    fill(site, 1)
    producer = Producer(site)
    held = tags(Link(producer.peer).take(1))
    transaction = producer.posted(1, "out")
    settle(producer.peer, 0, transaction.retiring())
    owner = str(world["a"].map.queue("/", "q").owner)
    decide = Together._decide

    def cut_off(self: Together) -> None:
        decide(self)
        world.unlink(site.name, owner)

    monkeypatch.setattr(Together, "_decide", cut_off)
    assert transaction.discharge() is None
    later = enter(world[next(name for name in "abc" if name not in (owner, site.name))])
    source = Source(address="/queues/q", timeout=KEPT_S, durable=2, expiry_policy="never")
    attach = Attach(
        name="r", handle=later.handle(), role=True, source=source, target=Target(),
        unsettled=dict.fromkeys(held), desired_capabilities=(RECOVERY,),
    )  # fmt: skip
    later.say(attach)
    world.relink()
    world.wait(2000)
    assert "not hold" in refused(bodies(producer.peer.raw(b""), Disposition)[-1].state)
    if is_seeded:
        assert counts(world, "q", "out") == [1, 1], "the lines below find it"
        return
    assert counts(world, "q", "out") == [1, 0]
    accepted_behind(producer, site)


@WHERE
@pytest.mark.parametrize(
    "limit", [{"x_max_length": 2}, {"x_max_length_bytes": 12}], ids=lambda limit: next(iter(limit))
)
def test_what_a_queue_has_needs_no_room_there(where: str, limit: dict[str, int]) -> None:
    """Of a transaction that comes again, perhaps with more, or in another order."""
    world, site = place(where)
    client = (world if where == "alone" else world["b"]).client()
    client.declare("two", x_overflow="reject-publish", **limit)
    producer = Producer(site, "two", "out", "q2")

    def sent(*numbers: int) -> Any:
        transaction = producer.posted(numbers[0], "two", "out")
        for number in numbers[1:]:
            for name in ("two", "out"):
                producer.send(name, number, state=TransactionalState(txn_id=transaction.number))
        return transaction.discharge()

    assert isinstance(sent(1), Accepted)
    assert "'two'" in refused(sent(1, 2, 3))
    assert counts(world, "two", "out") == [1, 1]
    assert isinstance(sent(2, 1), Accepted)
    assert counts(world, "two", "out") == [2, 2]
    assert isinstance(sent(1, 2), Accepted)
    assert "'two'" in refused(sent(1, 3))
    assert counts(world, "two", "out") == [2, 2]
    assert isinstance(producer.posted(3, "out", "q2").discharge(), Accepted)
    assert counts(world, "two", "out", "q2") == [2, 3, 1]


def test_below_level_7_each_queue_decides_for_itself() -> None:
    world = Cluster("a", "b", "c", level=6)
    for name in ("out", "q2", "full"):
        world["b"].client().declare(
            name, **({"x_max_length": 1, "x_overflow": "reject-publish"} if name == "full" else {})
        )
    fill(world["b"], 1, "full")
    owner = str(world["a"].map.queue("/", "full").owner)
    producer = Producer(world[next(name for name in "abc" if name != owner)])
    assert isinstance(producer.posted(1, "out", "full").discharge(), Rejected)
    assert counts(world, "out", "full") == [1, 1]


def test_the_answer_waits_for_queues_that_have_no_owner_and_the_next_owner_knows() -> None:
    world, site = place("elsewhere")
    producer = Producer(site)
    transaction = producer.posted(1, "out")
    owner = str(world["a"].map.queue("/", "out").owner)
    if owner == site.name:
        site = world[next(name for name in "abc" if name != owner)]
        producer.peer.leave()
        producer = Producer(site)
        transaction = producer.posted(1, "out")
    for other in "abc":
        if other != owner:
            world.unlink(owner, other)
    assert transaction.discharge(fail=True) is None
    world.kill(owner)
    world.wait(2000, 500)
    assert [one.state for one in bodies(producer.peer.raw(b""), Disposition)] == [Accepted()]
    accepted_behind(producer, site)


def test_the_answer_waits_until_the_lost_numbers_are_committed() -> None:
    world, site = place("elsewhere")
    owner = str(world["a"].map.queue("/", "out").owner)
    if owner == site.name:
        site = world[next(name for name in "abc" if name != owner)]
    producer = Producer(site)
    transaction = producer.posted(1, "out")
    world[owner].disk_waits = True
    assert transaction.discharge(fail=True) is None
    world[owner].disk_waits = False
    world.turn()
    assert [one.state for one in bodies(producer.peer.raw(b""), Disposition)] == [Accepted()]
    accepted_behind(producer, site)


def test_a_queue_that_has_lost_messages_stores_nothing_of_it() -> None:
    """It does not know what its clients hold, but that nobody holds this."""
    world = Cluster("a", "b", "c")
    client = world["a"].client()
    client.declare("out", x_queue_leader_locator="client-local")
    world.cuts.update({("a", "c"), ("b", "c")})
    for other in "ab":
        world.unlink(other, "c")
    client.publish("", "out", b"lost")
    world.wait(1000, 500)
    for name in "ab":
        world.kill(name)
    world.order(c.ForceOwner(queue_id=world.queue("out").queue_id, node=NodeId("c")))
    world.cuts.clear()
    world.restart("b")
    world.wait(3000, 500)
    assert world.queue("out").gap_epoch
    assert world.queue("out").owner == "c"
    producer = Producer(world["b"], "out")
    assert isinstance(producer.posted(1, "out").discharge(fail=True), Accepted)
    assert counts(world, "out") == [0]
    accepted_behind(producer, world["b"])


KINDS: list[dict[str, Any]] = [
    {"x_message_deduplication": True},
    {"x_queue_type": "stream"},
    {"x_max_length": 1, "x_overflow": "reject-publish-dlx", "x_dead_letter_exchange": ""},
    {"x_max_priority": 3, "x_message_ttl": 60_000},
]


@WHERE
@pytest.mark.parametrize("arguments", KINDS, ids=lambda arguments: next(iter(arguments)))
def test_queues_of_any_kind_take_the_numbers_and_nothing_else(where: str, arguments: dict[str, Any]) -> None:
    world, site = place(where)
    (world if where == "alone" else world["b"]).client().declare("odd", **arguments)
    producer = Producer(site, "odd")
    assert isinstance(producer.posted(1, "odd").discharge(), Accepted)
    transaction = producer.posted(1, "odd")
    producer.send("odd", 2, state=TransactionalState(txn_id=transaction.number))
    assert isinstance(transaction.discharge(fail=True), Accepted)
    assert counts(world, "odd", "out", "full", "q") == [1, 0, 1, 0]
    assert where == "alone" or not world.bad_frames


def test_what_a_failed_transaction_would_not_stage() -> None:
    world, site = place("alone")
    producer = Producer(site)
    transaction = producer.posted(1)
    (session,) = producer.peer.core.sessions.values()
    known = session.transactions.open[transaction.number]
    known.staged.size = 1 << 40
    producer.send("out", 1, state=TransactionalState(txn_id=transaction.number))
    assert isinstance(transaction.discharge(), Rejected)
    assert world.node.queues
    accepted_behind(producer, site)


def test_a_transaction_that_has_failed_takes_so_many_numbers_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would fill the memory: nothing else of such a message is kept."""
    monkeypatch.setattr(transacting, "NUMBERS_MAX", 3)
    _, site = place("alone")
    producer = Producer(site)
    transaction = producer.posted(1, "out")
    (session,) = producer.peer.core.sessions.values()
    (known,) = session.transactions.open.values()
    known.failed = Error(condition="amqp:resource-limit-exceeded")
    state = TransactionalState(txn_id=transaction.number)
    for number in range(2, 5):
        assert bodies(producer.send("out", number, state=state), End) == []
    (ended,) = bodies(producer.send("out", 5, state=state), End)
    assert ended.error.condition == "amqp:resource-limit-exceeded"
    accepted_behind(Producer(site), site)
