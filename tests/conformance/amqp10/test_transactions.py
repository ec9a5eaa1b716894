"""Transactions (rules Y)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clusterbroker.broker.wire.amqp10.performatives import (
    Accepted,
    Composite,
    Coordinator,
    Declare,
    Declared,
    Discharge,
    Disposition,
    Error,
    Rejected,
    Released,
    TransactionalState,
)
from clusterbroker.broker.wire.amqp10.types import encode
from clusterbroker.broker.wire.numbers import UInt64
from tests.support.amqp10 import message

from ..marks import rule
from ..wire import Channel, eventually
from .conftest import Connect10
from .recovering import told_of
from .test_links import fill
from .wire import Receiver, Sender, Session

Name = Callable[[str], str]


def value(composite: Composite) -> bytes:
    """A message whose body is this value."""
    return b"\0" + encode(UInt64(0x77)) + composite.encoded()


class Coordinating:
    """A link to the coordinator."""

    def __init__(self, session: Session) -> None:
        self.link = session.sender(None, target=Coordinator(capabilities=("amqp:local-transactions",)))
        assert isinstance(self.link.attach.target, Coordinator)

    def declare(self) -> bytes:
        outcome = self.link.send(payload=value(Declare()))
        assert isinstance(outcome, Declared)
        return outcome.txn_id

    def discharge(self, txn_id: bytes, fail: bool = False) -> Composite:
        return self.link.send(payload=value(Discharge(txn_id=txn_id, fail=fail)))


def post(sender: Sender, txn_id: bytes, body: bytes) -> Composite:
    number = sender.transfer(message(body), state=TransactionalState(txn_id=txn_id))
    state = sender.outcome(number)
    assert isinstance(state, TransactionalState)
    assert state.txn_id == txn_id
    assert isinstance(state.outcome, Composite)
    return state.outcome


def retire(receiver: Receiver, txn_id: bytes, number: int, settled: bool = False) -> None:
    receiver.dispose(number, state=TransactionalState(txn_id=txn_id, outcome=Accepted()), settled=settled)
    if not settled:
        answer = receiver.session.wait(Disposition, lambda known: not known.role and known.first == number)
        assert isinstance(answer.state, TransactionalState)


def refused(outcome: Composite, condition: str) -> None:
    assert isinstance(outcome, Rejected)
    assert isinstance(outcome.error, Error)
    assert outcome.error.condition == condition


@rule("Y149")
def test_declare_gives_an_id(session: Session) -> None:
    coordinator = Coordinating(session)
    one, two = coordinator.declare(), coordinator.declare()
    assert one != two
    assert coordinator.discharge(one) == coordinator.discharge(two) == Accepted()


@rule("Y150", "Y154", "Y156")
def test_what_is_posted_is_there_with_the_commit_or_never(session: Session, channel: Channel, name: Name) -> None:
    queues = [name("q"), name("q")]
    for queue in queues:
        channel.queue_declare(queue, durable=True)
    coordinator = Coordinating(session)
    senders = [session.sender(f"/queues/{queue}") for queue in queues]
    kept, lost = coordinator.declare(), coordinator.declare()
    for sender in senders:
        assert post(sender, kept, b"kept") == post(sender, lost, b"lost") == Accepted()
    assert [channel.message_count(queue) for queue in queues] == [0, 0]
    assert coordinator.discharge(lost, fail=True) == Accepted()
    assert coordinator.discharge(kept) == Accepted()
    assert [channel.message_count(queue) for queue in queues] == [1, 1]
    assert session.receiver(f"/queues/{queues[0]}", credit=1).bodies(1) == [b"kept"]


@rule("Y150", "X82")
@pytest.mark.parametrize("stated", [(True, True, True), (True, False, False), (False, False, True)])
@pytest.mark.parametrize("settled", [1, 2])
def test_a_posting_is_settled_if_a_later_one_of_its_frames_says_so(
    session: Session, queue: str, stated: tuple[bool, ...], settled: int
) -> None:
    coordinator, sender, payload = Coordinating(session), session.sender(f"/queues/{queue}"), message(b"in three parts")
    txn_id = coordinator.declare()
    number = session.next_id
    for part, begin in enumerate(range(0, len(payload), len(payload) // 3 + 1)):
        sender.transfer(
            payload[begin : begin + len(payload) // 3 + 1], delivery_id=None if part else number,
            delivery_tag=None if part else b"t", more=part < 2, settled=True if part == settled else None,
            state=TransactionalState(txn_id=txn_id) if stated[part] else None,
        )  # fmt: skip
    session.next_id = number + 1
    assert coordinator.discharge(txn_id) == Accepted()
    assert session.receiver(f"/queues/{queue}", credit=1).bodies(1) == [b"in three parts"]
    assert not told_of(session, number)


def test_a_posting_without_a_route(session: Session, channel: Channel, name: Name) -> None:
    exchange = name("x")
    channel.exchange_declare(exchange, "direct")
    coordinator = Coordinating(session)
    txn_id = coordinator.declare()
    assert post(session.sender(f"/exchanges/{exchange}/nobody"), txn_id, b"x") == Released()
    assert coordinator.discharge(txn_id) == Accepted()


@rule("Y151")
def test_what_is_retired_is_held_again_after_a_rollback(session: Session, queue: str, channel: Channel) -> None:
    fill(session, queue, 2)
    coordinator = Coordinating(session)
    receiver = session.receiver(f"/queues/{queue}", credit=2)
    first, second = receiver.deliveries(2)
    txn_id = coordinator.declare()
    retire(receiver, txn_id, first.id)
    retire(receiver, txn_id, second.id, settled=True)
    assert coordinator.discharge(txn_id, fail=True) == Accepted()
    receiver.grant(2)
    again = receiver.delivery()
    assert again.message.body == b"1"
    assert (again.message.header.delivery_count, again.message.header.first_acquirer) == (1, False)
    txn_id = coordinator.declare()
    retire(receiver, txn_id, first.id)
    retire(receiver, txn_id, again.id, settled=True)
    assert coordinator.discharge(txn_id) == Accepted()
    receiver.detach()
    eventually(lambda: channel.message_count(queue) == 0)


@rule("Y152")
def test_an_unknown_id(session: Session, queue: str) -> None:
    coordinator = Coordinating(session)
    refused(coordinator.discharge(b"unknown"), "amqp:transaction:unknown-id")
    sender = session.sender(f"/queues/{queue}")
    with sender.detaches("amqp:transaction:unknown-id"):
        sender.transfer(message(b"x"), state=TransactionalState(txn_id=b"unknown"))
    with session.ends("amqp:transaction:unknown-id"):
        session.say(Disposition(role=True, first=0, state=TransactionalState(txn_id=b"unknown")))


@rule("Y153")
def test_the_end_of_the_session_rolls_back(connect10: Connect10, queue: str, channel: Channel) -> None:
    peer = connect10()
    session = peer.session()
    fill(session, queue, 1)
    coordinator = Coordinating(session)
    txn_id = coordinator.declare()
    receiver = session.receiver(f"/queues/{queue}", credit=1)
    retire(receiver, txn_id, receiver.delivery().id)
    post(session.sender(f"/queues/{queue}"), txn_id, b"never")
    session.end()
    eventually(lambda: channel.message_count(queue) == 1)
    assert channel.basic_get(queue).body == b"0"


@rule("Y155")
def test_a_transaction_that_is_too_large(session: Session, queue: str) -> None:
    coordinator = Coordinating(session)
    txn_id = coordinator.declare()
    sender = session.sender(f"/queues/{queue}")
    body = bytes(120_000)
    outcomes = [
        sender.outcome(sender.transfer(message(body), state=TransactionalState(txn_id=txn_id))) for _ in range(300)
    ]
    refused(outcomes[-1], "amqp:resource-limit-exceeded")
    refused(coordinator.discharge(txn_id), "amqp:resource-limit-exceeded")


@rule("Y155")
def test_a_queue_that_refuses_its_part(session: Session, channel: Channel, name: Name) -> None:
    queue = name("q")
    channel.queue_declare(queue, durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    coordinator = Coordinating(session)
    txn_id = coordinator.declare()
    sender = session.sender(f"/queues/{queue}")
    for number in range(2):
        post(sender, txn_id, b"%d" % number)
    refused(coordinator.discharge(txn_id), "amqp:transaction:rollback")
    assert channel.message_count(queue) == 0


def test_many_open_transactions(session: Session) -> None:
    coordinator = Coordinating(session)
    for _ in range(16):
        coordinator.declare()
    refused(coordinator.link.send(payload=value(Declare())), "amqp:resource-limit-exceeded")
    refused(coordinator.link.send(b"no request"), "amqp:decode-error")
