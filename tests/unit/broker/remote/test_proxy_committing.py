"""Transactions on a queue elsewhere: what the owner hears, and when they are over."""

from __future__ import annotations

from typing import Any

from clusterbroker.broker.queues.handle import CommitPart, Decided
from clusterbroker.broker.remote.messages import (
    SETTLE_ACK,
    SETTLE_REQUEUE,
    Commit,
    NamedPublish,
    Publish,
    Published,
    Settle,
    Settled,
)
from clusterbroker.journal.record import read_records
from tests.unit.broker.remote.pair import Channel, Pair, Receipt, entity, message


def part(*settles: tuple[int, str]) -> CommitPart:
    made = CommitPart()
    made.settles.extend(Decided(*one) for one in settles)
    return made


def moving(pair: Pair, receipt: Receipt) -> tuple[Channel, Any]:
    """A transaction that takes messages 1 to 3 and puts two; the Commit that its owner hears of it."""
    channel = Channel()
    _, number = pair.consume(channel)
    pair.deliver(number, 1, 2, 3, 4)
    channel.ledger.collect(3, True)
    made = part((1, "ack"), (2, "requeue"), (3, "ack"))
    made.publishes.append(([message(b"x")], None))
    made.publishes.append(([message(b"y")], (b"press", 9)))
    pair.queue.commit(made, receipt, 0)
    receipt.pass_()
    pair.turn()
    frames = pair.all()
    assert not any(isinstance(head, Publish | NamedPublish) for _, head, _ in frames)
    (settle,) = [head for _, head, _ in frames if isinstance(head, Settle)]
    assert [(one.outcome, one.ranges) for one in settle.settlements] == [(SETTLE_REQUEUE, ((2, 2),))], "at once"
    ((commit, data),) = [(head, data) for _, head, data in frames if isinstance(head, Commit)]
    assert [m.body for _, m, _, _ in read_records(data)] == [b"x", b"y"]
    return channel, commit


def test_a_transaction_that_publishes_is_one_frame() -> None:
    pair, receipt = Pair(), Receipt()
    _, commit = moving(pair, receipt)
    assert (commit.first, commit.count, commit.named) == (1, 2, ((2, b"press", 9),))
    assert commit.settlements == ((SETTLE_ACK, ((1, 1), (3, 3))),)
    assert pair.queue.outstanding() == [(1, 1), (3, 4)], "until the owner has answered"
    pair.deliver(1, 2, redelivered=True)
    pair.say(Published(7, pair.gen, 2))
    assert (receipt.answered, pair.queue.outstanding()) == ("ack", [(2, 2), (4, 4)]), "what came again is held"
    assert pair.remote_queues.unacknowledged_bytes == 0


def test_a_transaction_is_told_to_the_next_owner_with_all_it_settles() -> None:
    pair, receipt = Pair(), Receipt()
    _, commit = moving(pair, receipt)
    pair.remote_queues.owner_changed(entity(owner="other", epoch=2))
    pair.turn()
    attach = pair.attach(peer="other")
    assert attach.outstanding == ((1, 1), (3, 4))
    assert [(one.outcome, one.ranges) for one in attach.settlements] == [(SETTLE_REQUEUE, ((2, 2),))]
    (again,) = pair.heard(Commit)
    assert (again.first, again.settlements, again.named) == (commit.first, commit.settlements, commit.named)
    pair.remote_queues.owner_changed(entity(owner="owner", epoch=3))
    pair.turn()
    pair.attach(accepted=2)
    assert pair.heard(Commit) == [], "that owner has it"
    pair.say(Published(7, pair.gen, 2))
    assert receipt.answered == "ack"


def test_what_a_refused_transaction_settled_returns() -> None:
    pair, receipt = Pair(), Receipt()
    moving(pair, receipt)
    pair.say(Published(7, pair.gen, 2, ((1, 2),)))
    assert receipt.answered == "nack"
    (settle,) = pair.heard(Settle)
    assert [(one.outcome, one.ranges) for one in settle.settlements] == [(SETTLE_REQUEUE, ((1, 1), (3, 3)))]
    assert pair.queue.outstanding() == [(4, 4)]


def test_a_transaction_waits_for_its_settlements() -> None:
    pair = Pair()
    channel = Channel()
    _, number = pair.consume(channel)
    pair.deliver(number, 1, 2)
    channel.ledger.collect(0, True)
    receipt = Receipt()
    pair.queue.commit(part((1, "ack"), (2, "reject")), receipt, 0)
    receipt.pass_()
    pair.turn()
    (settle,) = pair.heard(Settle)
    assert [one.id for one in settle.settlements] == [1, 2]
    pair.say(Settled(7, pair.gen, 1))
    assert receipt.answered == ""
    pair.remote_queues.owner_changed(entity(owner="other", epoch=2))
    pair.turn()
    assert [one.id for one in pair.attach(peer="other").settlements] == [2]
    pair.say(Settled(7, pair.gen, 2), peer="other")
    assert receipt.answered == "ack"


def test_a_transaction_without_anything_open_does_not_wait() -> None:
    pair = Pair()
    receipt = Receipt()
    pair.queue.commit(part(), receipt, 0)
    receipt.pass_()
    assert receipt.answered == "ack"
