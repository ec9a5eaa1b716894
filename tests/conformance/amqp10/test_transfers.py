"""Transfers and dispositions (rules X, D)."""

from __future__ import annotations

import pytest

from clusterbroker.broker.wire.amqp10.performatives import (
    Accepted,
    Disposition,
    Error,
    Flow,
    Modified,
    Properties,
    Rejected,
    Released,
)
from clusterbroker.broker.wire.amqp10.types import Symbol
from tests.support.amqp10 import message, read

from ..marks import rule
from ..wire import Channel, eventually
from .conftest import Connect10
from .test_links import fill
from .wire import Session


@rule("X81", "X96")
def test_unsettled_transfers_are_accepted_and_settled(session: Session, queue: str) -> None:
    sender = session.sender(f"/queues/{queue}")
    for number in range(3):
        told = sender.disposition(sender.post(b"%d" % number))
        assert (told.role, told.settled, told.state) == (True, True, Accepted())
        assert told.first <= number


@rule("X82")
def test_settled_transfers_are_not_answered(session: Session, queue: str, channel: Channel) -> None:
    sender = session.sender(f"/queues/{queue}", settle=1)
    sender.post(b"x", settled=True)
    eventually(lambda: channel.message_count(queue) == 1)
    session.settle_down()
    assert not [known for known in session.peer.inbox if isinstance(known.body, Disposition)]


@rule("X83")
@pytest.mark.parametrize(("mode", "settled"), [(1, False), (0, True)])
def test_a_transfer_against_the_links_mode(session: Session, queue: str, mode: int, settled: bool) -> None:
    sender = session.sender(f"/queues/{queue}", settle=mode)
    with sender.detaches("amqp:invalid-field"):
        sender.post(b"x", settled=settled)


@rule("X84")
def test_mode_second_of_a_sender(session: Session, queue: str) -> None:
    sender = session.sender(f"/queues/{queue}", second=True)
    number = sender.post(b"x", tag=b"own")
    told = sender.disposition(number)
    assert (told.settled, told.state) == (False, Accepted())
    session.say(Disposition(role=False, first=number, settled=True))
    session.settle_down()
    assert sender.disposition(sender.post(b"y", tag=b"own")).state == Accepted(), "the tag is free again"


@rule("X85")
def test_no_route_is_released(session: Session, channel: Channel, name: object) -> None:
    exchange = name("x")  # type: ignore[operator]
    channel.exchange_declare(exchange, "direct")
    sender = session.sender(f"/exchanges/{exchange}/nobody")
    assert sender.send(b"x") == Released()


@rule("X86")
def test_overflow_is_rejected(session: Session, channel: Channel, name: object) -> None:
    queue = name("q")  # type: ignore[operator]
    channel.queue_declare(queue, durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    sender = session.sender(f"/queues/{queue}")
    assert sender.send(b"1") == Accepted()
    outcome = sender.send(b"2")
    assert isinstance(outcome, Rejected)
    assert isinstance(outcome.error, Error)
    assert outcome.error.condition == "amqp:resource-limit-exceeded"
    assert (outcome.error.info or {})["queue"] == queue


@rule("X87", "X90")
def test_a_delivery_of_many_frames(session: Session, queue: str) -> None:
    sender, receiver = session.sender(f"/queues/{queue}"), session.receiver(f"/queues/{queue}", credit=1)
    payload = message(bytes(range(256)) * 10, application={"key": "value"})
    number = sender.transfer(payload[:1], more=True)
    session.next_id -= 1
    for octet in payload[1:600]:
        sender.transfer(bytes((octet,)), delivery_id=None, delivery_tag=None, more=True)
        session.next_id -= 1
    sender.transfer(payload[600:], delivery_id=number, more=True)
    session.next_id -= 1
    sender.transfer(b"", delivery_id=None, delivery_tag=None)
    assert sender.outcome(number) == Accepted()
    assert receiver.delivery().message.raw == read(payload).raw


@rule("X88")
def test_deliveries_of_two_links_interleave(session: Session, queue: str) -> None:
    one, two = session.sender(f"/queues/{queue}"), session.sender(f"/queues/{queue}")
    first, second = message(b"first"), message(b"second")
    a = one.transfer(first[:3], more=True)
    b = two.transfer(second[:5], more=True)
    one.transfer(first[3:], delivery_id=a, delivery_tag=None)
    two.transfer(second[5:], delivery_id=b, delivery_tag=None)
    session.next_id = b + 1
    assert (one.outcome(a), two.outcome(b)) == (Accepted(), Accepted())
    assert session.receiver(f"/queues/{queue}", credit=2).bodies(2) == [b"first", b"second"]


@rule("X89")
def test_an_aborted_delivery_is_nothing(session: Session, queue: str, channel: Channel) -> None:
    sender = session.sender(f"/queues/{queue}")
    number = sender.transfer(message(b"lost")[:4], more=True)
    session.next_id -= 1
    sender.transfer(b"", delivery_id=number, aborted=True)
    assert sender.send(b"kept") == Accepted()
    assert channel.message_count(queue) == 1
    session.say(session.flow(sender.handle, delivery_count=2, link_credit=0, echo=True))
    assert session.wait(Flow, lambda known: known.handle == sender.handle).delivery_count == 2


@rule("X91", "X92")
@pytest.mark.parametrize(
    "fields",
    [{"delivery_id": None}, {"delivery_tag": None}, {"delivery_tag": b"t" * 33}],
)
def test_a_first_transfer_that_lacks_something(session: Session, queue: str, fields: dict[str, object]) -> None:
    sender = session.sender(f"/queues/{queue}")
    with sender.detaches("amqp:invalid-field"):
        sender.transfer(message(b"x"), **{"delivery_tag": b"t", **fields})


@rule("X92")
def test_a_tag_may_be_empty(session: Session, queue: str) -> None:
    """2.8.7: up to 32 bytes. Qpid JMS gives none to deliveries that it sends settled."""
    sender = session.sender(f"/queues/{queue}")
    for body in (b"1", b"2"):
        sender.transfer(message(body), delivery_tag=b"", settled=True)
    assert sender.outcome(sender.transfer(message(b"3"), delivery_tag=b"")) == Accepted()
    assert session.receiver(f"/queues/{queue}", credit=3).bodies(3) == [b"1", b"2", b"3"]


@rule("X91")
@pytest.mark.parametrize("fields", [{"delivery_id": 9}, {"delivery_id": 0, "delivery_tag": b"other"}])
def test_a_transfer_that_contradicts_its_delivery(session: Session, queue: str, fields: dict[str, object]) -> None:
    sender = session.sender(f"/queues/{queue}")
    sender.transfer(message(b"x")[:3], more=True)
    with sender.detaches("amqp:invalid-field"):
        sender.transfer(message(b"x")[3:], **{"delivery_tag": None, **fields})


@rule("X93")
def test_a_tag_is_one_deliverys_until_it_is_settled(session: Session, queue: str) -> None:
    sender = session.sender(f"/queues/{queue}")
    assert [sender.send(b"x", tag=b"same") for _ in range(3)] == [Accepted()] * 3
    other = session.sender(f"/queues/{queue}", second=True)
    other.outcome(other.post(b"x", tag=b"same"))
    with other.detaches("amqp:invalid-field", "delivery-tag"):
        other.post(b"y", tag=b"same")


@rule("X94")
def test_another_message_format(session: Session, queue: str) -> None:
    sender = session.sender(f"/queues/{queue}")
    with sender.detaches("amqp:not-implemented"):
        sender.transfer(message(b"x"), message_format=7)


@rule("X97")
def test_somebody_elses_user_id(session: Session, queue: str) -> None:
    sender = session.sender(f"/queues/{queue}")
    outcome = sender.send(b"x", properties=Properties(user_id=b"somebody"))
    assert isinstance(outcome, Rejected)
    assert isinstance(outcome.error, Error)
    assert outcome.error.condition == "amqp:unauthorized-access"
    assert sender.send(b"x", properties=Properties(user_id=b"guest")) == Accepted()


def test_what_is_no_message_ends_its_link_alone(session: Session, queue: str) -> None:
    other = session.sender(f"/queues/{queue}")
    for payload in (
        b"\0\x53\x75",
        b"\0\x53\x75\xa0\x05ab",
        message(b"x") + message(b"y", application={}),
        b"junk",
    ):
        sender = session.sender(f"/queues/{queue}")
        with sender.detaches("amqp:decode-error"):
            sender.transfer(payload)
    assert other.send(b"x") == Accepted()


def test_a_message_that_is_too_large(session: Session, queue: str) -> None:
    sender = session.sender(f"/queues/{queue}")
    most = int(sender.attach.max_message_size or 0)
    frame_max = int(session.peer.opened.max_frame_size)
    part = bytes(frame_max - 100)
    number = session.next_id
    with sender.detaches("amqp:link:message-size-exceeded"):
        for _ in range(most // len(part) + 2):
            sender.transfer(part, delivery_id=number, more=True)
            session.next_id = number
            session.settle_down()
        sender.transfer(b"", delivery_id=number)


# -- dispositions


def ready(channel: Channel, queue: str, count: int) -> None:
    eventually(lambda: channel.message_count(queue) == count)


@rule("D98")
def test_accepted_removes(session: Session, queue: str, channel: Channel) -> None:
    fill(session, queue, 3)
    receiver = session.receiver(f"/queues/{queue}", credit=3)
    receiver.accept(*receiver.deliveries(3))
    receiver.detach()
    ready(channel, queue, 0)


@rule("D99", "M116")
def test_released_returns_to_its_place(session: Session, queue: str) -> None:
    fill(session, queue, 2)
    receiver = session.receiver(f"/queues/{queue}", credit=1)
    first = receiver.delivery()
    assert first.message.header.first_acquirer
    assert first.message.header.delivery_count == 0
    receiver.dispose(first.id, state=Released())
    receiver.grant(1)
    again = receiver.delivery()
    assert again.message.body == b"0"
    assert (again.message.header.first_acquirer, again.message.header.delivery_count) == (False, 0)


@pytest.fixture
def dying(channel: Channel, name: object) -> tuple[str, str]:
    """A queue, and the one of its dead letters."""
    queue, dead = name("q"), name("dead")  # type: ignore[operator]
    channel.queue_declare(dead, durable=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    channel.queue_declare(queue, durable=True, arguments=arguments)
    return queue, dead


@rule("D100")
def test_rejected_goes_to_the_dead_letter_exchange(session: Session, channel: Channel, dying: tuple[str, str]) -> None:
    queue, dead = dying
    fill(session, queue, 2)
    receiver = session.receiver(f"/queues/{queue}", credit=2)
    first, second = receiver.deliveries(2)
    error = Error(condition="example:bad", description="no", info={Symbol("line"): 7})
    receiver.dispose(first.id, state=Rejected(error=error))
    letter = session.receiver(f"/queues/{dead}", credit=1).delivery().message
    assert letter.body == b"0"
    assert letter.annotations["x-opt-deaths"][0]["reason"] == "rejected"
    assert letter.annotations["x-opt-deaths"][0]["queue"] == queue
    assert letter.annotations["x-opt-rejected-condition"] == "example:bad"
    assert type(letter.annotations["x-opt-rejected-condition"]) is Symbol
    assert letter.annotations["x-opt-rejected-description"] == "no"
    assert letter.annotations["x-opt-rejected-info"] == {"line": 7}
    receiver.dispose(second.id, state=Rejected())
    channel.consume(dead, no_ack=True)
    headers = channel.delivery().headers
    assert "x-opt-rejected-condition" not in headers, "it was rejected without an error"


@rule("D100")
def test_the_error_of_a_rejection_is_read_over_0_9_1(
    session: Session, channel: Channel, name: object, dying: tuple[str, str]
) -> None:
    """The later error stands, and nothing of the one before; what is long is cut."""
    queue, dead = dying
    dies_first = name("first")  # type: ignore[operator]
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}
    channel.queue_declare(dies_first, durable=True, arguments=arguments)
    fill(session, dies_first, 1)
    errors = [
        Error(condition="example:first", description="before", info={Symbol("only"): "here"}),
        Error(condition="example:long", description="d" * 5000, info={Symbol("big"): "i" * 5000, Symbol("n"): 1}),
    ]
    for place, error in zip((dies_first, queue), errors, strict=True):
        receiver = session.receiver(f"/queues/{place}", credit=1)
        receiver.dispose(receiver.delivery().id, state=Rejected(error=error))
    channel.consume(dead, no_ack=True)
    headers = channel.delivery().headers
    assert headers["x-opt-rejected-condition"] == "example:long"
    assert headers["x-opt-rejected-description"] == "d" * 512
    assert headers["x-opt-rejected-info"] == {"n": 1}
    assert headers["x-death"][0]["queue"] == queue


@rule("D101")
def test_modified_counts_a_failed_delivery(session: Session, queue: str) -> None:
    fill(session, queue, 1)
    receiver = session.receiver(f"/queues/{queue}", credit=3)
    receiver.dispose(receiver.delivery().id, state=Modified(delivery_failed=True))
    again = receiver.delivery()
    assert (again.message.header.first_acquirer, again.message.header.delivery_count) == (False, 1)
    receiver.dispose(again.id, state=Modified())
    assert receiver.delivery().message.header.delivery_count == 1


@rule("D104", "D106")
def test_ranges_over_links_and_gaps(session: Session, queue: str, channel: Channel) -> None:
    fill(session, queue, 4)
    one, two = session.receiver(f"/queues/{queue}", credit=2), session.receiver(f"/queues/{queue}", credit=2)
    deliveries = one.deliveries(2) + two.deliveries(2)
    one.accept(deliveries[1])
    one.dispose(0, 1000, Accepted())
    one.dispose(2**31, 2**31 + 5, Accepted())
    session.settle_down()
    session.end()
    ready(channel, queue, 0)


@rule("D105")
def test_settled_without_a_state_has_the_default_outcome(session: Session, queue: str, channel: Channel) -> None:
    fill(session, queue, 2)
    receiver = session.receiver(f"/queues/{queue}", credit=1, default_outcome=Accepted())
    receiver.dispose(receiver.delivery().id)
    receiver.detach()
    ready(channel, queue, 1)


@rule("D107")
def test_mode_second_of_a_receiver(session: Session, queue: str, channel: Channel) -> None:
    fill(session, queue, 2)
    receiver = session.receiver(f"/queues/{queue}", credit=2, second=True)
    deliveries = receiver.deliveries(2)
    receiver.accept(*deliveries, settled=False)
    for each in deliveries:
        told = session.wait_settled(each.id)
        assert (told.role, told.settled, told.state) == (False, True, Accepted())
        if told.last is not None and told.last >= deliveries[-1].id:
            break
    receiver.detach()
    ready(channel, queue, 0)


@rule("D108")
def test_a_delivery_limit(session: Session, channel: Channel, name: object) -> None:
    queue = name("q")  # type: ignore[operator]
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 1})
    fill(session, queue, 1)
    receiver = session.receiver(f"/queues/{queue}", credit=5)
    for _ in range(2):
        receiver.dispose(receiver.delivery().id, state=Modified(delivery_failed=True))
    receiver.detach()
    ready(channel, queue, 0)


@rule("D109")
def test_a_lost_connection_counts(connect10: Connect10, queue: str) -> None:
    peer = connect10()
    session = peer.session()
    fill(session, queue, 1)
    session.receiver(f"/queues/{queue}", credit=1).delivery()
    peer.abandon()
    again = connect10().session().receiver(f"/queues/{queue}", credit=1).delivery().message
    assert (again.header.first_acquirer, again.header.delivery_count) == (False, 1)


@rule("D110")
def test_an_outcome_that_is_not_in_force(session: Session, queue: str) -> None:
    fill(session, queue, 1)
    receiver = session.receiver(f"/queues/{queue}", credit=1, outcomes=("amqp:accepted:list",))
    assert getattr(receiver.attach.source, "outcomes", ()) == ("amqp:accepted:list",)
    with receiver.detaches("amqp:invalid-field", "rejected"):
        receiver.dispose(receiver.delivery().id, state=Rejected())
    assert session.receiver(f"/queues/{queue}", credit=1).delivery().message.body == b"0"


def test_an_unsettled_acceptance_is_settled_at_once(session: Session, queue: str) -> None:
    fill(session, queue, 1)
    receiver = session.receiver(f"/queues/{queue}", credit=1)
    delivery = receiver.delivery()
    receiver.accept(delivery, settled=False)
    assert session.wait_settled(delivery.id).settled


def test_settled_receivers(session: Session, queue: str, channel: Channel) -> None:
    fill(session, queue, 2)
    receiver = session.receiver(f"/queues/{queue}", settle=1, credit=2)
    deliveries = receiver.deliveries(2)
    assert all(each.transfer.settled for each in deliveries)
    receiver.detach()
    ready(channel, queue, 0)
