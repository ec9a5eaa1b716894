"""Links that are suspended and resumed (rules R): in one session, and over another connection to the same node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from clusterbroker.broker.wire.amqp10.performatives import (
    Accepted,
    Attach,
    Detach,
    Disposition,
    Error,
    Flow,
    Received,
    Rejected,
    Released,
    Source,
    Target,
    Transfer,
    composed,
)
from tests.support.amqp10 import message, read

from ..marks import rule
from ..target import PASSWORD
from ..target import Target as World
from ..wire import Channel, eventually
from .conftest import Connect10
from .test_links import fill
from .wire import Delivery, Link, Peer, Receiver, Sender, Session

KEPT_S = 60
RECOVERY = "clusterbroker:link-recovery"


@pytest.fixture
def connect_here(target: World) -> Iterator[Connect10]:
    """Opens connections to one node."""
    opened: list[Peer] = []
    address = target.address

    def open_one(**options: object) -> Peer:
        peer = Peer(address, **options)  # type: ignore[arg-type]
        opened.append(peer)
        return peer

    yield open_one
    for peer in opened:
        peer.abandon()


def states(attach: Attach) -> dict[Any, Any]:
    """The unsettled map of an attach."""
    assert attach.unsettled is not None, "the node resumes nothing"
    return {tag: composed(state) for tag, state in attach.unsettled.items()}


def suspend(link: Link) -> None:
    assert not link.detach(closed=False).closed


def sender(session: Session, queue: str, **fields: Any) -> Sender:
    """One whose state survives its connection."""
    return session.sender(f"/queues/{queue}", target=Target(address=f"/queues/{queue}", timeout=KEPT_S), **fields)


class ResumingReceiver(Receiver):
    """A receiver's link that attaches with a map."""

    def __init__(
        self, session: Session, queue: str, name: str, unsettled: dict[bytes, Any] | None, *, timeout: int = 0,
        incomplete: bool = False, second: bool = False, waits: bool = True, policy: str = "session-end",
        lasting: bool = False, **fields: Any,
    ) -> None:  # fmt: skip
        self.session, self.name, self.handle, self.count = session, name, session.handle(), 0
        source = Source(
            address=f"/queues/{queue}", timeout=timeout, expiry_policy=policy, durable=2 * lasting, **fields
        )
        session.say(
            Attach(
                name=name, handle=self.handle, role=True, rcv_settle_mode=int(second), source=source, target=Target(),
                unsettled=unsettled, incomplete_unsettled=incomplete,
                desired_capabilities=(RECOVERY,) if lasting else (),
            )
        )  # fmt: skip
        if waits:
            self.attach = session.wait(Attach, lambda known: known.name == name)
            self.count = int(self.attach.initial_delivery_count or 0)


def receiver(session: Session, queue: str, name: str = "r", unsettled: Any = None, **fields: Any) -> ResumingReceiver:
    return ResumingReceiver(session, queue, name, unsettled, **fields)


def tag_of(delivery: Delivery) -> bytes:
    assert delivery.transfer.delivery_tag is not None
    return delivery.transfer.delivery_tag


def ready(channel: Channel, queue: str, count: int) -> None:
    eventually(lambda: channel.message_count(queue) == count)


# -- a sender, in its session


@rule("R157", "R162")
def test_what_was_accepted_is_answered_accepted(session: Session, queue: str, channel: Channel) -> None:
    link = session.sender(f"/queues/{queue}", name="s", second=True)
    link.outcome(link.post(b"1", tag=b"one"))
    suspend(link)
    again = session.sender(f"/queues/{queue}", name="s", second=True, unsettled={b"one": None})
    assert states(again.attach) == {b"one": Accepted()}
    number = again.transfer(b"", delivery_tag=b"one", resume=True, settled=True)
    assert again.send(b"2") == Accepted()
    assert number < session.next_id
    ready(channel, queue, 2)


@rule("R157", "R163")
def test_what_was_not_received_is_absent_and_sent_again(session: Session, queue: str) -> None:
    link = session.sender(f"/queues/{queue}", name="s")
    suspend(link)
    lost = {b"lost": None, b"too": Received(section_number=0, section_offset=0)}
    again = session.sender(f"/queues/{queue}", name="s", unsettled=lost)
    assert states(again.attach) == {}
    one = again.transfer(message(b"1"), delivery_tag=b"lost", resume=True)
    two = again.transfer(message(b"2"), delivery_tag=b"too")
    assert (again.outcome(one), again.outcome(two)) == (Accepted(), Accepted())
    assert session.receiver(f"/queues/{queue}", credit=9).bodies(2) == [b"1", b"2"]


@rule("R166")
def test_a_senders_outcome_is_answered_with_the_same(session: Session, queue: str) -> None:
    link = session.sender(f"/queues/{queue}", name="s", second=True)
    link.outcome(link.post(b"1", tag=b"one"))
    suspend(link)
    again = session.sender(f"/queues/{queue}", name="s", second=True, unsettled={b"one": Accepted(), b"x": Released()})
    assert states(again.attach) == {b"one": Accepted(), b"x": Released()}


@rule("R157")
def test_what_was_refused_is_absent(session: Session, channel: Channel, name: object) -> None:
    queue = name("q")  # type: ignore[operator]
    channel.queue_declare(queue, durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    link = session.sender(f"/queues/{queue}", name="s", second=True)
    assert link.outcome(link.post(b"1", tag=b"one")) == Accepted()
    assert isinstance(link.outcome(link.post(b"2", tag=b"two")), Rejected)
    suspend(link)
    again = session.sender(f"/queues/{queue}", name="s", second=True, unsettled={b"one": None, b"two": None})
    assert states(again.attach) == {b"one": Accepted()}


@rule("R158")
@pytest.mark.parametrize("back", [0, 5])
def test_a_delivery_goes_on_where_it_was_cut(session: Session, queue: str, back: int) -> None:
    """The client may begin before what the node has."""
    payload = message(bytes(range(200)), application={"key": "value"})
    link = session.sender(f"/queues/{queue}", name="s")
    link.transfer(payload[:120], delivery_tag=b"long", more=True)
    suspend(link)
    again = session.sender(f"/queues/{queue}", name="s", unsettled={b"long": None})
    place = states(again.attach)[b"long"]
    assert place.section_number == 1, "the application properties are whole"
    assert place.section_offset == 120 - payload.index(b"\0\x53\x75")
    begins = Received(section_number=1, section_offset=place.section_offset - back)
    number = again.transfer(payload[120 - back : 150], delivery_tag=b"long", resume=True, state=begins, more=True)
    session.next_id = number
    again.transfer(payload[150:], delivery_id=number, delivery_tag=None)
    session.next_id = number + 1
    assert again.outcome(number) == Accepted()
    assert session.receiver(f"/queues/{queue}", credit=1).delivery().message.raw == payload


@rule("R158")
def test_a_delivery_that_was_cut_begins_anew(session: Session, queue: str) -> None:
    payload = message(b"whole")
    link = session.sender(f"/queues/{queue}", name="s")
    link.transfer(payload[:4], delivery_tag=b"cut", more=True)
    suspend(link)
    again = session.sender(f"/queues/{queue}", name="s", unsettled={b"cut": None})
    assert again.outcome(again.transfer(payload, delivery_tag=b"cut", resume=True)) == Accepted()
    assert session.receiver(f"/queues/{queue}", credit=1).delivery().message.raw == payload


@rule("R158")
def test_a_delivery_cannot_go_on_behind_what_came(session: Session, queue: str) -> None:
    payload = message(b"whole")
    link = session.sender(f"/queues/{queue}", name="s")
    link.transfer(payload[:4], delivery_tag=b"cut", more=True)
    suspend(link)
    again = session.sender(f"/queues/{queue}", name="s", unsettled={b"cut": None})
    with again.detaches("amqp:invalid-field", "behind"):
        place = Received(section_number=0, section_offset=7)
        again.transfer(payload[7:], delivery_tag=b"cut", resume=True, state=place)


@rule("R157")
@pytest.mark.parametrize("frames", [1, 3])
def test_a_resumed_delivery_that_nobody_knows_is_passed_over(session: Session, queue: str, frames: int) -> None:
    link = session.sender(f"/queues/{queue}", name="s")
    payload, number = message(b"unknown"), session.next_id
    for part in range(frames):
        cut = payload[part * 5 : (part + 1) * 5] if part < frames - 1 else payload[part * 5 :]
        link.transfer(cut, delivery_id=number, delivery_tag=b"u", resume=True, more=part < frames - 1)
        session.next_id = number + 1
    assert link.send(b"known") == Accepted()
    assert session.receiver(f"/queues/{queue}", credit=2).delivery().message.body == b"known"
    session.say(session.flow(link.handle, delivery_count=2, link_credit=0, echo=True))
    assert session.wait(Flow, lambda known: known.handle == link.handle and not known.echo).delivery_count in {1, 2}


@rule("R159")
def test_a_sender_with_an_incomplete_map_sends_nothing_new(session: Session, queue: str) -> None:
    link = session.sender(f"/queues/{queue}", name="s", second=True)
    for tag in (b"a", b"b"):
        link.outcome(link.post(tag, tag=tag))
    suspend(link)
    part = {b"a": None, b"lost": None}
    again = session.sender(f"/queues/{queue}", name="s", second=True, unsettled=part, incomplete_unsettled=True)
    assert states(again.attach) == {b"a": Accepted(), b"b": Accepted()}
    assert again.outcome(again.transfer(message(b"again"), delivery_tag=b"lost", resume=True)) == Accepted()
    suspend(again)
    rest = session.sender(f"/queues/{queue}", name="s", second=True, unsettled={b"b": None})
    assert states(rest.attach) == {b"b": Accepted()}
    suspend(rest)
    last = session.sender(f"/queues/{queue}", name="s", second=True, unsettled={b"b": None}, incomplete_unsettled=True)
    with last.detaches("amqp:illegal-state"):
        last.post(b"new", tag=b"new")


@rule("R159")
def test_a_map_that_does_not_fit_a_frame_is_incomplete(connect10: Connect10, queue: str) -> None:
    session = connect10(max_frame_size=512).session()
    link = session.sender(f"/queues/{queue}", name="s", second=True)
    tags = [b"a-rather-long-tag-%010d" % number for number in range(40)]
    for tag in tags:
        link.outcome(link.post(b"x", tag=tag))
    suspend(link)
    left = list(tags)
    while left:
        again = session.sender(f"/queues/{queue}", name="s", second=True, unsettled=dict.fromkeys(left))
        told = states(again.attach)
        assert all(state == Accepted() for state in told.values())
        assert told
        assert again.attach.incomplete_unsettled is (len(told) < len(left))
        left = [tag for tag in left if tag not in told]
        suspend(again)


# -- a receiver, in its session


@rule("R157", "R167")
def test_what_the_client_has_not_seen_is_sent_first_and_in_order(session: Session, queue: str) -> None:
    fill(session, queue, 6)
    link = receiver(session, queue)
    link.grant(4)
    held = link.deliveries(4)
    suspend(link)
    again = receiver(session, queue, unsettled={tag_of(held[0]): None})
    assert states(again.attach) == dict.fromkeys(map(tag_of, held))
    again.grant(9)
    found = again.deliveries(6)
    assert [one.message.body for one in found[:3]] == [b"1", b"2", b"3"]
    assert [tag_of(one) for one in found[:3]] == [tag_of(one) for one in held[1:]]
    assert not any(one.transfer.resume or one.message.header.first_acquirer for one in found[:3])
    assert [one.message.header.delivery_count for one in found] == [0] * 6
    assert (found[3].transfer.resume, tag_of(found[3]), found[3].message.body) == (True, tag_of(held[0]), b"0")
    assert [one.message.body for one in found[4:]] == [b"4", b"5"]
    again.accept(*found)
    again.detach()


@rule("R158")
def test_a_receiver_goes_on_where_its_delivery_was_cut(session: Session, queue: str) -> None:
    sent = session.sender(f"/queues/{queue}")
    assert sent.send(bytes(range(250))) == Accepted()
    link = receiver(session, queue)
    link.grant(1)
    first = link.frames()
    whole, tag = first.payload, first.body.delivery_tag
    suspend(link)
    start = whole.index(b"\0\x53\x75")
    again = receiver(session, queue, unsettled={tag: Received(section_number=2, section_offset=10)})
    again.grant(1)
    resumed = again.frames()
    assert resumed.body.resume
    assert resumed.body.state == Received(section_number=2, section_offset=10)
    assert resumed.payload == whole[start + 10 :]
    again.accept(Delivery(resumed.body, None))  # type: ignore[arg-type]


@rule("R166")
def test_a_receivers_outcome_is_carried_out(session: Session, queue: str, channel: Channel) -> None:
    fill(session, queue, 3)
    link = receiver(session, queue)
    link.grant(3)
    held = link.deliveries(3)
    suspend(link)
    outcomes = {tag_of(held[0]): Accepted(), tag_of(held[1]): Released(), tag_of(held[2]): Rejected()}
    again = receiver(session, queue, unsettled=outcomes)
    again.grant(3)
    found = {frame.body.delivery_tag: frame for frame in (again.frames() for _ in range(3))}
    for tag, outcome in outcomes.items():
        body = found[tag].body
        assert (body.resume, body.settled, type(body.state), found[tag].payload) == (True, True, type(outcome), b"")
    again.detach()
    ready(channel, queue, 1)


@rule("R157")
def test_what_the_client_alone_has_is_settled(session: Session, queue: str, channel: Channel) -> None:
    fill(session, queue, 1)
    link = receiver(session, queue, second=True)
    link.grant(1)
    delivery = link.delivery()
    link.accept(delivery, settled=False)
    session.wait_settled(delivery.id)
    suspend(link)
    again = receiver(session, queue, second=True, unsettled={tag_of(delivery): Accepted()})
    assert states(again.attach) == {}
    again.detach()
    ready(channel, queue, 0)


@rule("R159")
def test_a_receiver_with_an_incomplete_map_gets_nothing_new(session: Session, queue: str) -> None:
    fill(session, queue, 5)
    link = receiver(session, queue)
    link.grant(3)
    held = link.deliveries(3)
    suspend(link)
    again = receiver(session, queue, unsettled={tag_of(held[0]): None}, incomplete=True)
    again.grant(9)
    assert tag_of(again.delivery()) == tag_of(held[0])
    assert again.waiting() == 0
    suspend(again)
    rest = receiver(session, queue, unsettled={tag_of(one): None for one in held})
    rest.grant(9)
    assert sorted(one.message.body for one in rest.deliveries(5)) == [b"0", b"1", b"2", b"3", b"4"]


@rule("R168")
def test_without_a_map_what_was_held_returns(session: Session, queue: str) -> None:
    fill(session, queue, 3)
    link = receiver(session, queue)
    link.grant(2)
    link.deliveries(2)
    suspend(link)
    again = receiver(session, queue)
    assert again.attach.unsettled is None
    again.grant(9)
    found = again.deliveries(3)
    assert [one.message.body for one in found] == [b"0", b"1", b"2"]
    assert [one.message.header.delivery_count for one in found] == [0, 0, 0]
    assert [one.message.header.first_acquirer for one in found] == [False, False, True]


def test_what_a_suspended_link_holds_is_nobody_elses(session: Session, queue: str) -> None:
    fill(session, queue, 3)
    link = receiver(session, queue)
    link.grant(2)
    link.deliveries(2)
    suspend(link)
    other = session.receiver(f"/queues/{queue}", credit=9)
    assert other.delivery().message.body == b"2"
    assert other.waiting() == 0


# -- terms


@rule("R176")
@pytest.mark.parametrize("role", ["sender", "receiver"])
def test_a_closed_link_is_forgotten(session: Session, queue: str, channel: Channel, role: str) -> None:
    fill(session, queue, 1)
    if role == "sender":
        link: Link = session.sender(f"/queues/{queue}", name="s", second=True)
        link.outcome(link.post(b"1", tag=b"one"))  # type: ignore[attr-defined]
        link.detach()
        again = session.sender(f"/queues/{queue}", name="s", unsettled={b"one": None}, waits=False)
        again.detached("amqp:resource-deleted")
        return
    held = receiver(session, queue)
    held.grant(1)
    tag = tag_of(held.delivery())
    held.detach()
    ready(channel, queue, 1)
    receiver(session, queue, unsettled={tag: None}).detached("amqp:resource-deleted")


def test_link_detach_keeps_nothing(session: Session, queue: str, channel: Channel) -> None:
    fill(session, queue, 1)
    link = receiver(session, queue, policy="link-detach")
    link.grant(1)
    tag = tag_of(link.delivery())
    suspend(link)
    ready(channel, queue, 1)
    receiver(session, queue, unsettled={tag: None}).detached("amqp:resource-deleted")


def test_the_session_ends_what_is_no_longer_kept(peer: Peer, queue: str, channel: Channel) -> None:
    session, other = peer.session(), peer.session()
    fill(session, queue, 1)
    link = receiver(session, queue)
    link.grant(1)
    tag = tag_of(link.delivery())
    suspend(link)
    session.end()
    ready(channel, queue, 1)
    receiver(other, queue, unsettled={tag: None}).detached("amqp:resource-deleted")


def test_connection_close_keeps_it_for_another_session(peer: Peer, queue: str) -> None:
    session, other = peer.session(), peer.session()
    fill(session, queue, 1)
    link = receiver(session, queue, policy="connection-close")
    link.grant(1)
    tag = tag_of(link.delivery())
    session.end()
    again = receiver(other, queue, unsettled={tag: None}, policy="connection-close")
    again.grant(1)
    assert tag_of(again.delivery()) == tag


def test_the_answer_says_what_is_in_force(session: Session, queue: str) -> None:
    source = receiver(session, queue, policy="connection-close", timeout=7).attach.source
    assert isinstance(source, Source)
    assert (source.expiry_policy, source.timeout) == ("connection-close", 7)
    target = sender(session, queue).attach.target
    assert isinstance(target, Target)
    assert (target.expiry_policy, target.timeout) == ("session-end", KEPT_S)
    receiver(session, queue, "other", policy="sometimes").detached("amqp:invalid-field")


# -- the connection is lost, and the client comes to the same node


@rule("R160", "R162")
def test_a_sender_comes_back_over_a_new_connection(connect_here: Connect10, queue: str, channel: Channel) -> None:
    first = connect_here(container="c")
    link = sender(first.session(), queue, name="s")
    assert link.outcome(link.post(b"1", tag=b"told")) == Accepted()
    link.transfer(message(b"2")[:3], delivery_tag=b"cut", more=True)
    link.session.settle_down()
    first.abandon()
    session = connect_here(container="c").session()
    again = sender(session, queue, name="s", unsettled={b"told": None, b"cut": None, b"lost": None})
    told = states(again.attach)
    assert told[b"told"] == Accepted()
    assert isinstance(told[b"cut"], Received)
    assert b"lost" not in told
    assert again.outcome(again.transfer(message(b"2"), delivery_tag=b"cut", resume=True)) == Accepted()
    assert again.outcome(again.transfer(message(b"3"), delivery_tag=b"lost", resume=True)) == Accepted()
    ready(channel, queue, 3)


@rule("R160", "R165")
def test_a_receiver_comes_back_over_a_new_connection(connect_here: Connect10, queue: str) -> None:
    first = connect_here(container="c")
    fill(first.session(), queue, 4)
    link = receiver(first.session(), queue, unsettled={}, timeout=KEPT_S)
    link.grant(3)
    held = link.deliveries(3)
    first.abandon()
    peer = connect_here(container="c")
    other = peer.session().receiver(f"/queues/{queue}", credit=9)
    assert other.delivery().message.body == b"3"
    assert other.waiting() == 0, "nobody else gets what the link holds"
    again = receiver(
        peer.session(), queue, unsettled={tag_of(held[0]): Accepted(), tag_of(held[1]): None}, timeout=KEPT_S
    )
    again.grant(9)
    found = [again.frames() for _ in range(3)]
    assert [frame.body.delivery_tag for frame in found] == [tag_of(held[2]), tag_of(held[1]), tag_of(held[0])]
    assert [frame.body.settled for frame in found] == [False, False, True]


@rule("R163")
def test_what_comes_again_is_stored_once(connect_here: Connect10, queue: str, channel: Channel) -> None:
    """Whatever of it had come before the connection was lost."""
    first = connect_here(container="c")
    link = sender(first.session(), queue, name="s")
    tags = [b"t%03d" % number for number in range(200)]
    for tag in tags:
        link.post(tag, tag=tag)
    first.abandon()
    again = sender(connect_here(container="c").session(), queue, name="s", unsettled=dict.fromkeys(tags))
    told = states(again.attach)
    for tag in tags:
        if tag not in told:
            assert again.outcome(again.transfer(message(tag), delivery_tag=tag, resume=True)) == Accepted()
    ready(channel, queue, len(tags))
    bodies = again.session.receiver(f"/queues/{queue}", credit=300).bodies(len(tags))
    assert sorted(bodies) == tags


@rule("R164")
def test_an_exchange_brings_it_to_each_queue_once(connect_here: Connect10, channel: Channel, name: object) -> None:
    exchange, queues = name("x"), [name("q") for _ in range(3)]  # type: ignore[operator]
    channel.exchange_declare(exchange, "fanout")
    for queue in queues:
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, exchange, "")
    place = f"/exchanges/{exchange}"
    first = connect_here(container="c")
    link = first.session().sender(place, name="s", target=Target(address=place, timeout=KEPT_S))
    tags = [b"t%03d" % number for number in range(50)]
    for tag in tags:
        link.post(tag, tag=tag)
    first.abandon()
    session = connect_here(container="c").session()
    again = session.sender(place, name="s", target=Target(address=place, timeout=KEPT_S), unsettled=dict.fromkeys(tags))
    told = states(again.attach)
    for tag in tags:
        if tag not in told:
            assert again.outcome(again.transfer(message(tag), delivery_tag=tag, resume=True)) == Accepted()
    for queue in queues:
        ready(channel, queue, len(tags))


@rule("R169")
def test_expiry_returns_all_and_refuses_a_map(connect_here: Connect10, queue: str, channel: Channel) -> None:
    first = connect_here(container="c")
    fill(first.session(), queue, 2)
    link = receiver(first.session(), queue, timeout=1)
    link.grant(2)
    tag = tag_of(link.deliveries(2)[0])
    first.abandon()
    ready(channel, queue, 2)
    session = connect_here(container="c").session()
    receiver(session, queue, unsettled={tag: None}, timeout=1).detached("amqp:resource-deleted")
    again = receiver(session, queue)
    again.grant(2)
    found = again.deliveries(2)
    assert [one.message.header.delivery_count for one in found] == [0, 0], "the client has not failed at them"
    assert not any(one.message.header.first_acquirer for one in found)


@rule("R169")
def test_a_map_for_a_link_that_nobody_knows(session: Session, queue: str) -> None:
    link = session.sender(f"/queues/{queue}", unsettled={b"t": None}, waits=False)
    link.detached("amqp:resource-deleted")
    receiver(session, queue, unsettled={b"t": None}).detached("amqp:resource-deleted")
    assert session.sender(f"/queues/{queue}", unsettled={}).send(b"x") == Accepted()


@rule("A59")
def test_a_name_is_stolen_over_connections(connect_here: Connect10, queue: str) -> None:
    one, two = connect_here(container="c"), connect_here(container="c")
    fill(one.session(), queue, 2)
    older = receiver(one.session(), queue, timeout=KEPT_S)
    older.grant(1)
    held = older.delivery()
    newer = receiver(two.session(), queue, unsettled={tag_of(held): None}, timeout=KEPT_S)
    older.detached("amqp:link:stolen")
    newer.grant(2)
    assert [one.message.body for one in newer.deliveries(2)] == [b"0", b"1"]


def test_a_link_of_another_user_is_refused(provisioned: object, connect_here: Connect10, queue: str) -> None:
    one = connect_here(container="c")
    fill(one.session(), queue, 1)
    link = receiver(one.session(), queue, timeout=KEPT_S)
    link.grant(1)
    tag = tag_of(link.delivery())
    one.abandon()
    stranger = connect_here(user="conf-all", password=PASSWORD, container="c").session()
    receiver(stranger, queue, unsettled={tag: None}, timeout=KEPT_S).detached("amqp:unauthorized-access")


@rule("R173")
def test_a_tag_that_is_used_again_is_a_new_delivery(connect_here: Connect10, queue: str, channel: Channel) -> None:
    session = connect_here(container="c").session()
    link = sender(session, queue, name="s")
    for number in range(5):
        assert link.outcome(link.post(b"%d" % number, tag=b"same")) == Accepted()
    ready(channel, queue, 5)
    suspend(link)
    again = sender(session, queue, name="s", unsettled={})
    for number in range(5):
        assert again.outcome(again.post(b"%d" % number, tag=b"same")) == Accepted()
    ready(channel, queue, 10)


@rule("R174")
def test_the_answer_to_an_echo_forgets(connect_here: Connect10, queue: str) -> None:
    first = connect_here(container="c")
    session = first.session()
    link = sender(session, queue, name="s")
    assert link.outcome(link.post(b"1", tag=b"proven")) == Accepted()
    asked = session.wait(Flow, lambda known: known.handle == link.handle and known.echo)
    total = asked.delivery_count + asked.link_credit
    session.say(session.flow(link.handle, delivery_count=1, link_credit=total - 1))
    session.settle_down()
    assert link.outcome(link.post(b"2", tag=b"doubt")) == Accepted()
    session.wait(Flow, lambda known: known.handle == link.handle and known.echo)
    first.abandon()
    again = sender(connect_here(container="c").session(), queue, name="s", unsettled={b"proven": None, b"doubt": None})
    assert states(again.attach) == {b"doubt": Accepted()}


@rule("R174")
def test_an_older_flow_proves_nothing(connect_here: Connect10, queue: str) -> None:
    first = connect_here(container="c")
    session = first.session()
    link = sender(session, queue, name="s")
    assert link.outcome(link.post(b"1", tag=b"doubt")) == Accepted()
    session.wait(Flow, lambda known: known.handle == link.handle and known.echo)
    session.say(session.flow(link.handle, delivery_count=1, link_credit=999))
    session.settle_down()
    first.abandon()
    again = sender(connect_here(container="c").session(), queue, name="s", unsettled={b"doubt": None})
    assert states(again.attach) == {b"doubt": Accepted()}


@rule("R175")
def test_bounds_hold_credit_back(connect_here: Connect10, queue: str) -> None:
    session = connect_here(container="c").session()
    link = sender(session, queue, name="s", second=True)
    credit, sent, first = int(link.granted.link_credit or 0), 0, session.next_id
    while credit:
        for _ in range(credit):
            link.post(b"x")
            sent += 1
        link.disposition(session.next_id - 1)
        session.say(session.flow(link.handle, delivery_count=sent, link_credit=0, echo=True))
        told = session.wait(Flow, lambda known, sent=sent: known.handle == link.handle and known.delivery_count == sent)
        credit = int(told.link_credit or 0)
    assert sent == 4096
    session.say(Disposition(role=False, first=first, last=first + 2999, settled=True))
    assert session.wait(Flow, lambda known: known.handle == link.handle and bool(known.link_credit)).link_credit == 1000


def test_a_map_that_is_none(session: Session, queue: str) -> None:
    for bad in ({"text": None}, {b"t" * 33: None}, {b"t": 7}, {b"t": Error(condition="x")}):
        link = session.sender(f"/queues/{queue}", unsettled=bad, waits=False)
        link.detached("amqp:invalid-field")


def test_a_detached_delivery_is_cut_on_the_wire(connect_here: Connect10, queue: str) -> None:
    """What waits for the session's window does not come for a link that is not there."""
    peer = connect_here(max_frame_size=512)
    filler = peer.session()
    assert filler.sender(f"/queues/{queue}").send(b"x" * 200) == Accepted()
    session = peer.session(incoming_window=0)
    link = receiver(session, queue)
    link.grant(1)
    session.settle_down()
    suspend(link)
    session.incoming_window = 100
    session.say(session.flow())
    session.settle_down()
    assert not [known for known in peer.inbox if isinstance(known.body, (Transfer, Detach))]


# -- state in the queues' logs


def lasting(session: Session, address: str, name: str = "s", **fields: Any) -> Sender:
    """One whose state survives its node."""
    target = Target(address=address, durable=2, timeout=KEPT_S)
    return session.sender(address, name=name, target=target, desired_capabilities=(RECOVERY,), **fields)


@rule("R161", "R162", "R163")
@pytest.mark.parametrize("second", [False, True])
def test_a_sender_comes_back_at_any_node(connect10: Connect10, queue: str, channel: Channel, second: bool) -> None:
    place = f"/queues/{queue}"
    first = connect10(container="c")
    link = lasting(first.session(), place, second=second)
    assert link.attach.offered_capabilities == (RECOVERY,)
    assert isinstance(link.attach.target, Target)
    assert link.attach.target.durable == 2
    assert link.outcome(link.post(b"1", tag=b"told")) == Accepted()
    tags = [b"t%03d" % number for number in range(200)]
    for tag in tags:
        link.post(tag, tag=tag)
    first.abandon()
    doubt = dict.fromkeys((b"told", *tags, b"lost"))
    again = lasting(connect10(container="c").session(), place, second=second, unsettled=doubt)
    told = states(again.attach)
    assert told.get(b"told") == Accepted()
    assert b"lost" not in told
    for tag in (*tags, b"lost"):
        if tag not in told:
            assert again.outcome(again.transfer(message(tag), delivery_tag=tag, resume=True)) == Accepted()
    ready(channel, queue, 202)


@rule("R164")
def test_an_exchange_of_a_sender_that_comes_back_at_any_node(
    connect10: Connect10, channel: Channel, name: object
) -> None:
    exchange, queues = name("x"), [name("q") for _ in range(3)]  # type: ignore[operator]
    channel.exchange_declare(exchange, "fanout")
    for queue in queues:
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, exchange, "")
    place = f"/exchanges/{exchange}"
    first = connect10(container="c")
    link = lasting(first.session(), place)
    tags = [b"t%03d" % number for number in range(50)]
    for tag in tags:
        link.post(tag, tag=tag)
    link.disposition(10)
    first.abandon()
    again = lasting(connect10(container="c").session(), place, unsettled=dict.fromkeys(tags))
    assert states(again.attach) == {}, "for an exchange nobody is asked"
    for tag in tags:
        assert again.outcome(again.transfer(message(tag), delivery_tag=tag, resume=True)) == Accepted()
    for queue in queues:
        ready(channel, queue, len(tags))


@rule("R170")
def test_a_name_is_stolen_over_nodes(connect10: Connect10, queue: str, channel: Channel) -> None:
    place = f"/queues/{queue}"
    older = lasting(connect10(container="c").session(), place)
    assert older.outcome(older.post(b"1", tag=b"told")) == Accepted()
    newer = lasting(connect10(container="c").session(), place, unsettled={b"told": None})
    assert states(newer.attach) == {b"told": Accepted()}
    older.detached("amqp:link:stolen")
    assert newer.send(b"2") == Accepted()
    ready(channel, queue, 2)


@rule("R173", "R176")
def test_tags_are_used_again_at_any_node(connect10: Connect10, queue: str, channel: Channel) -> None:
    place = f"/queues/{queue}"
    link = lasting(connect10(container="c").session(), place, second=True)
    for _ in range(3):
        number = link.post(b"x", tag=b"same")
        assert link.outcome(number) == Accepted()
        link.session.say(Disposition(role=False, first=number, settled=True))
    suspend(link)
    again = lasting(connect10(container="c").session(), place, second=True, unsettled={})
    assert again.outcome(again.post(b"y", tag=b"same")) == Accepted()
    ready(channel, queue, 4)
    again.detach()
    eventually(lambda: refusal(connect10, place) == "amqp:resource-deleted")


def refusal(connect10: Connect10, place: str) -> str:
    """Why a link with a map is refused; empty: it is not, and suspended again."""
    peer = connect10(container="c")
    session = peer.session()
    target = Target(address=place, durable=2, timeout=1)
    link = session.sender(
        place, name="s", target=target, desired_capabilities=(RECOVERY,), unsettled={b"same": None}, waits=False
    )
    if link.attach.target is not None:
        peer.abandon()
        return ""
    detach = session.wait(Detach)
    assert isinstance(detach.error, Error)
    return str(detach.error.condition)


@rule("R169")
def test_a_lasting_link_expires(connect10: Connect10, queue: str) -> None:
    place = f"/queues/{queue}"
    first = connect10(container="c")
    target = Target(address=place, durable=2, timeout=1)
    link = first.session().sender(place, name="s", target=target, desired_capabilities=(RECOVERY,))
    assert link.outcome(link.post(b"1", tag=b"same")) == Accepted()
    first.abandon()
    eventually(lambda: refusal(connect10, place) == "amqp:resource-deleted", 40, pause_s=4)


def test_a_lasting_link_of_another_user(provisioned: object, connect10: Connect10, queue: str) -> None:
    place = f"/queues/{queue}"
    link = lasting(connect10(container="c").session(), place)
    suspend(link)
    stranger = connect10(container="c", user="conf-all", password=PASSWORD).session()
    lasting(stranger, place, waits=False).detached("amqp:unauthorized-access")


def lasting_receiver(session: Session, queue: str, unsettled: Any = None, **fields: Any) -> ResumingReceiver:
    """One that holds what it gets over the death of its node."""
    return receiver(session, queue, unsettled=unsettled, timeout=KEPT_S, lasting=True, **fields)


def test_the_node_offers_links_that_last(peer: Peer) -> None:
    assert RECOVERY in peer.opened.offered_capabilities


@rule("R161", "R165", "R167")
def test_a_receiver_comes_back_at_any_node(connect10: Connect10, queue: str, channel: Channel) -> None:
    first = connect10(container="c")
    fill(first.session(), queue, 5)
    link = lasting_receiver(first.session(), queue, {})
    assert link.attach.offered_capabilities == (RECOVERY,)
    link.grant(4)
    held = link.deliveries(4)
    link.accept(held[3])
    link.session.settle_down()
    first.abandon()
    other = connect10().session().receiver(f"/queues/{queue}", credit=9)
    assert other.delivery().message.body == b"4"
    assert other.waiting() == 0, "nobody else gets what the link holds"
    doubt = {tag_of(held[0]): Accepted(), tag_of(held[1]): None, tag_of(held[3]): Accepted()}
    again = lasting_receiver(connect10(container="c").session(), queue, doubt)
    assert set(states(again.attach)) == set(map(tag_of, held[:3])), "what was accepted is settled"
    again.grant(9)
    found = [again.frames() for _ in range(3)]
    assert [frame.body.delivery_tag for frame in found] == [tag_of(held[2]), tag_of(held[1]), tag_of(held[0])]
    assert [frame.body.settled for frame in found] == [False, False, True]
    assert [read(frame.payload).body for frame in found[:2]] == [b"2", b"1"]
    again.dispose(found[0].body.delivery_id, found[1].body.delivery_id, state=Accepted())
    fill(again.session, queue, 1)
    assert again.delivery().message.body == b"0", "and it goes on"
    again.detach()
    other.detach()
    ready(channel, queue, 2)


@rule("R168", "R176")
def test_a_receiver_that_resumes_nothing_at_any_node(connect10: Connect10, queue: str, channel: Channel) -> None:
    first = connect10(container="c")
    fill(first.session(), queue, 3)
    link = lasting_receiver(first.session(), queue)
    link.grant(2)
    link.deliveries(2)
    first.abandon()
    again = lasting_receiver(connect10(container="c").session(), queue)
    assert again.attach.unsettled is None
    again.grant(9)
    assert sorted(again.bodies(3)) == [b"0", b"1", b"2"]
    again.detach()
    ready(channel, queue, 3)


@rule("R166")
def test_a_receivers_outcome_is_carried_out_at_any_node(connect10: Connect10, queue: str, channel: Channel) -> None:
    first = connect10(container="c")
    fill(first.session(), queue, 3)
    link = lasting_receiver(first.session(), queue)
    link.grant(3)
    held = link.deliveries(3)
    first.abandon()
    outcomes = {tag_of(held[0]): Accepted(), tag_of(held[1]): Released(), tag_of(held[2]): Rejected()}
    again = lasting_receiver(connect10(container="c").session(), queue, outcomes)
    again.detach()
    ready(channel, queue, 1)


@rule("R170")
def test_a_receiver_is_stolen_over_nodes(connect10: Connect10, queue: str) -> None:
    one = connect10(container="c").session()
    fill(one, queue, 2)
    older = lasting_receiver(one, queue)
    older.grant(1)
    held = older.delivery()
    newer = lasting_receiver(connect10(container="c").session(), queue, {tag_of(held): None})
    older.detached("amqp:link:stolen")
    newer.grant(2)
    assert sorted(newer.bodies(2)) == [b"0", b"1"]


@rule("R169")
def test_what_a_lasting_receiver_held_returns(connect10: Connect10, queue: str, channel: Channel) -> None:
    first = connect10(container="c")
    fill(first.session(), queue, 2)
    link = receiver(first.session(), queue, timeout=1, lasting=True)
    link.grant(2)
    tag = tag_of(link.deliveries(2)[0])
    first.abandon()
    ready(channel, queue, 2)
    session = connect10(container="c").session()
    receiver(session, queue, unsettled={tag: None}, timeout=1, lasting=True).detached("amqp:resource-deleted")
