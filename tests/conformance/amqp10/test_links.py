"""Sessions, attaches and credit (rules B, A, C)."""

from __future__ import annotations

import pytest

from clusterbroker.broker.wire.amqp10.performatives import (
    Accepted,
    Attach,
    Begin,
    Detach,
    End,
    Flow,
    Released,
    Source,
    Target,
    Transfer,
)
from clusterbroker.broker.wire.amqp10.types import Described, Symbol
from tests.support.amqp10 import frame, message

from ..marks import rule
from ..target import Target as Broker
from ..wire import Channel
from .conftest import Connect10
from .wire import Peer, Session


def fill(session: Session, queue: str, count: int) -> None:
    sender = session.sender(f"/queues/{queue}")
    numbers = [sender.post(b"%d" % number) for number in range(count)]
    assert all(sender.outcome(number) == Accepted() for number in numbers)
    sender.detach()


# -- sessions


@rule("B42")
def test_begin_is_answered_with_its_channel(peer: Peer) -> None:
    peer.say(Begin(next_outgoing_id=3, incoming_window=10, outgoing_window=10), channel=5)
    (begun,) = [peer.find(lambda known: isinstance(known.body, Begin)).body]
    assert begun.remote_channel == 5
    assert begun.next_outgoing_id == 0


@rule("B43")
def test_a_channel_above_the_maximum_is_a_framing_error(peer: Peer) -> None:
    with peer.closes("amqp:connection:framing-error", at_once=True):
        peer.say(
            Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1), channel=int(peer.opened.channel_max) + 1
        )


@rule("B44")
def test_begin_on_a_mapped_channel_is_a_framing_error(peer: Peer) -> None:
    peer.session()
    with peer.closes("amqp:connection:framing-error", at_once=True):
        peer.say(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1))


@rule("B46")
def test_transfers_stop_at_the_clients_window(connect10: Connect10, queue: str) -> None:
    peer = connect10()
    fill(peer.session(), queue, 5)
    session = peer.session(incoming_window=2)
    receiver = session.receiver(f"/queues/{queue}", credit=5)
    assert receiver.bodies(2) == [b"0", b"1"]
    session.say(session.flow(next_incoming_id=2, window=0, echo=True))
    session.wait(Flow, lambda known: known.handle is None)
    assert not [known for known in peer.inbox if isinstance(known.body, Transfer)]
    session.say(session.flow(window=10))
    assert receiver.bodies(3) == [b"2", b"3", b"4"]


@rule("B47", "B51")
def test_numbers_wrap(connect10: Connect10, queue: str) -> None:
    session = connect10().session(next_outgoing_id=2**32 - 2)
    sender = session.sender(f"/queues/{queue}", initial_delivery_count=2**32 - 1)
    assert [sender.send(b"%d" % number) for number in range(4)] == [Accepted()] * 4
    session.say(session.flow(echo=True))
    assert session.wait(Flow, lambda known: known.handle is None).next_incoming_id == 2


@rule("B48", "D109")
def test_end_returns_deliveries(peer: Peer, queue: str) -> None:
    session, other = peer.session(), peer.session()
    fill(session, queue, 1)
    session.receiver(f"/queues/{queue}", credit=1).delivery()
    session.end()
    again = other.receiver(f"/queues/{queue}", credit=1).delivery()
    assert not again.message.header.first_acquirer


@rule("B49", "B50")
def test_a_flow_without_handle_is_the_sessions(session: Session) -> None:
    session.say(session.flow(echo=True))
    answer = session.wait(Flow)
    assert answer.handle is None
    assert answer.incoming_window > 0


# -- attach


@rule("A52", "A57", "A58", "A64")
def test_attach_is_answered(session: Session, queue: str) -> None:
    sender = session.sender(f"/queues/{queue}", name="own", settle=0)
    told = sender.attach
    assert (told.name, told.role, told.snd_settle_mode, told.rcv_settle_mode) == ("own", True, 0, 0)
    assert told.max_message_size > 0
    assert isinstance(told.target, Target)
    receiver = session.receiver(f"/queues/{queue}", name="other", second=True, settle=1)
    told = receiver.attach
    assert (told.role, told.snd_settle_mode, told.rcv_settle_mode, told.initial_delivery_count) == (False, 1, 1, 0)
    assert isinstance(told.source, Source)
    assert told.source.address == f"/queues/{queue}"
    assert set(told.source.outcomes) >= {"amqp:accepted:list", "amqp:rejected:list", "amqp:released:list"}
    assert session.receiver(f"/queues/{queue}", settle=2).attach.snd_settle_mode == 0, "mixed is unsettled"


@rule("A53")
def test_a_handle_in_use(session: Session, queue: str) -> None:
    sender = session.sender(f"/queues/{queue}")
    session.handles = sender.handle
    with session.ends("amqp:session:handle-in-use"):
        session.say(
            Attach(
                name="x", handle=0, role=False, source=Source(), target=Target(address=queue), initial_delivery_count=0
            )
        )


@rule("A54")
def test_a_handle_above_the_maximum(session: Session, queue: str) -> None:
    with session.peer.closes("amqp:connection:framing-error", at_once=True):
        above = int(session.begun.handle_max) + 1
        target = Target(address=queue)
        session.say(
            Attach(name="x", handle=above, role=False, source=Source(), target=target, initial_delivery_count=0)
        )


@rule("A55")
def test_an_unknown_node(session: Session) -> None:
    sender = session.sender("/queues/conf-no-such-queue", waits=False)
    assert sender.attach.target is None
    sender.detached("amqp:not-found", "conf-no-such-queue")
    receiver = session.receiver("/queues/conf-no-such-queue")
    assert receiver.attach.source is None
    receiver.detached("amqp:not-found", "conf-no-such-queue")
    session.sender("/exchanges/conf-no-such-exchange/key", waits=False).detached("amqp:not-found")


@rule("A56")
def test_who_may_not_learns_nothing(connect10_as: Connect10, queue: str) -> None:
    session = connect10_as("conf-declarer").session()
    for name in (queue, "conf-no-such-queue"):
        session.receiver(f"/queues/{name}").detached("amqp:unauthorized-access")
        session.sender(f"/queues/{name}", waits=False).detached("amqp:unauthorized-access")


@rule("A59", "A60")
def test_the_same_name_steals(peer: Peer, queue: str) -> None:
    one, two = peer.session(), peer.session()
    first = one.sender(f"/queues/{queue}", name="link")
    two.receiver(f"/queues/{queue}", name="link")
    assert first.send(b"x") == Accepted(), "the other direction is another link"
    second = two.sender(f"/queues/{queue}", name="link")
    first.detached("amqp:link:stolen")
    assert second.send(b"x") == Accepted()


@rule("A61")
def test_detach_is_answered_as_it_was_said(session: Session, queue: str) -> None:
    for closed in (False, True):
        assert session.sender(f"/queues/{queue}").detach(closed).closed is closed
        assert session.receiver(f"/queues/{queue}").detach(closed).closed is closed


@rule("A62")
def test_an_unknown_handle(peer: Peer) -> None:
    session = peer.session()
    with session.ends("amqp:session:unattached-handle"):
        session.say(Detach(handle=9))
    session = peer.session()
    with session.ends("amqp:session:unattached-handle"):
        session.say(Transfer(handle=9, delivery_id=0, delivery_tag=b"t"), message(b""))
    session = peer.session()
    with session.ends("amqp:session:unattached-handle"):
        session.say(session.flow(9))


@rule("A63", "E147")
def test_filters_that_are_not_known_are_not_in_force(session: Session, queue: str) -> None:
    asked = {Symbol("other"): Described(Symbol("example:no-such-filter"), "x")}
    receiver = session.receiver(f"/queues/{queue}", filter=asked)
    assert isinstance(receiver.attach.source, Source)
    assert receiver.attach.source.filter is None


@rule("A65")
def test_a_deleted_queue_ends_its_links(session: Session, queue: str, channel: Channel) -> None:
    receiver = session.receiver(f"/queues/{queue}", credit=1)
    with receiver.detaches("amqp:resource-deleted", queue):
        channel.queue_delete(queue)


@rule("A66")
def test_an_exclusive_queue_of_another_connection(session: Session, channel: Channel) -> None:
    name = channel.queue_declare("", exclusive=True).queue
    session.receiver(f"/queues/{name}").detached("amqp:resource-locked")


def test_a_target_that_is_none(session: Session) -> None:
    session.sender(None, target=None, waits=False).detached("amqp:invalid-field")


# -- credit


@rule("C67", "C68")
def test_as_many_deliveries_as_credit(session: Session, queue: str) -> None:
    fill(session, queue, 5)
    receiver = session.receiver(f"/queues/{queue}")
    assert receiver.waiting() == 0
    receiver.grant(2)
    assert receiver.bodies(2) == [b"0", b"1"]
    assert receiver.waiting() == 0
    receiver.grant(1)
    assert receiver.bodies(1) == [b"2"]


@rule("C69")
def test_credit_may_be_taken_back(session: Session, queue: str) -> None:
    receiver = session.receiver(f"/queues/{queue}", credit=10)
    receiver.grant(0)
    session.settle_down()
    fill(session, queue, 3)
    assert receiver.waiting() == 0
    receiver.grant(1)
    assert receiver.bodies(1) == [b"0"]


@rule("C70", "C72")
def test_drain_sends_what_is_ready_and_gives_up_the_rest(session: Session, queue: str) -> None:
    fill(session, queue, 3)
    receiver = session.receiver(f"/queues/{queue}")
    receiver.grant(10, drain=True)
    assert receiver.bodies(3) == [b"0", b"1", b"2"]
    flow = receiver.flow()
    assert (flow.link_credit, flow.drain, flow.delivery_count) == (0, True, 10)
    fill(session, queue, 1)
    assert receiver.waiting() == 0


@rule("C71")
def test_drain_of_an_empty_queue(session: Session, queue: str) -> None:
    receiver = session.receiver(f"/queues/{queue}")
    receiver.grant(7, drain=True)
    flow = receiver.flow()
    assert (flow.delivery_count, flow.link_credit, flow.drain) == (7, 0, True)
    receiver.count = 7
    fill(session, queue, 2)
    receiver.grant(1)
    assert receiver.bodies(1) == [b"0"]


@rule("C73")
def test_an_echo_is_answered(session: Session, queue: str) -> None:
    receiver = session.receiver(f"/queues/{queue}")
    receiver.grant(3, echo=True)
    flow = receiver.flow()
    assert (flow.link_credit, flow.delivery_count, flow.available) == (3, 0, 0)


@rule("C75")
def test_senders_have_credit_and_get_more(session: Session, queue: str) -> None:
    sender = session.sender(f"/queues/{queue}")
    credit = int(sender.granted.link_credit or 0)
    assert credit >= 100
    for number in range(credit):
        sender.post(b"%d" % number, settled=True)
    flow = session.wait(Flow, lambda known: known.handle == sender.handle)
    assert flow.link_credit
    assert flow.delivery_count


@rule("C76")
def test_a_transfer_without_credit(session: Session, queue: str) -> None:
    sender = session.sender(f"/queues/{queue}")
    credit = int(sender.granted.link_credit or 0)
    burst = b"".join(
        frame(
            session.channel,
            Transfer(handle=sender.handle, delivery_id=number, delivery_tag=b"%d" % number),
            message(b""),
        )
        for number in range(credit + 1)
    )
    with sender.detaches("amqp:link:transfer-limit-exceeded"):
        session.peer.raw(burst)


@rule("C77")
def test_alarms_hold_senders_and_nobody_else(session: Session, queue: str, target: Broker) -> None:
    fill(session, queue, 1)
    sender = session.sender(f"/queues/{queue}")
    receiver = session.receiver(f"/queues/{queue}", credit=1)
    delivery = receiver.delivery()
    target.set_alarm("disk", True)
    try:
        late = session.sender(f"/queues/{queue}", waits=False)
        receiver.accept(delivery, settled=False)
        session.wait_settled(delivery.id)
        assert not [
            known for known in session.peer.inbox if isinstance(known.body, Flow) and known.body.handle == late.handle
        ]
    finally:
        target.set_alarm("disk", False)
    assert session.wait(Flow, lambda known: known.handle == late.handle).link_credit
    assert sender.send(b"x") == Accepted()


@rule("C79")
def test_links_and_consumers_of_0_9_1_take_turns(session: Session, queue: str, channel: Channel) -> None:
    receiver = session.receiver(f"/queues/{queue}", credit=100)
    session.settle_down()
    channel.consume(queue)
    fill(session, queue, 10)
    there = receiver.bodies(5)
    here = [channel.delivery().body for _ in range(5)]
    assert sorted(there + here) == [b"%d" % number for number in range(10)]


def test_priorities_of_links(session: Session, queue: str) -> None:
    low = session.receiver(f"/queues/{queue}", credit=10)
    high = session.receiver(f"/queues/{queue}", credit=2, properties={Symbol("rabbitmq:priority"): 5})
    session.settle_down()
    fill(session, queue, 3)
    assert high.bodies(2) == [b"0", b"1"]
    assert low.bodies(1) == [b"2"]
    with pytest.raises(AssertionError):
        session.receiver(f"/queues/{queue}", properties={Symbol("rabbitmq:priority"): "high"}).delivery()


def test_many_sessions_and_links(peer: Peer, queue: str) -> None:
    sessions = [peer.session() for _ in range(20)]
    for session in sessions:
        sender = session.sender(f"/queues/{queue}")
        assert sender.send(b"x") == Accepted()
    for session in sessions:
        session.say(End())


def test_released_without_a_state(session: Session, queue: str) -> None:
    fill(session, queue, 1)
    receiver = session.receiver(f"/queues/{queue}", credit=2, default_outcome=Released())
    receiver.dispose(receiver.delivery().id)
    assert receiver.delivery().message.body == b"0"
