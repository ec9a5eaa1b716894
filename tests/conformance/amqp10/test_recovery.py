"""Links that are suspended and resumed in one session, and for how long (rules R)."""

from __future__ import annotations

import pytest

from clusterbroker.broker.wire.amqp10.performatives import (
    Accepted,
    Flow,
    Received,
    Rejected,
    Released,
    Source,
    Target,
)
from tests.support.amqp10 import message

from ..marks import rule
from ..wire import Channel
from .conftest import Connect10
from .recovering import (
    KEPT_S,
    ready,
    receiver,
    sender,
    states,
    suspend,
    tag_of,
    told_of,
)
from .test_links import fill
from .wire import Delivery, Link, Peer, Session

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


@rule("R158")
@pytest.mark.parametrize("says", [(True, None), (None, True), (True, True)])
def test_a_resumed_delivery_is_settled_if_one_of_its_frames_says_so(
    session: Session, queue: str, says: tuple[bool | None, bool | None]
) -> None:
    payload = message(b"whole")
    link = session.sender(f"/queues/{queue}", name="s")
    link.transfer(payload[:4], delivery_tag=b"cut", more=True)
    suspend(link)
    again = session.sender(f"/queues/{queue}", name="s", unsettled={b"cut": None})
    number = again.transfer(payload[:4], delivery_tag=b"cut", resume=True, more=True, settled=says[0])
    again.transfer(payload[4:], delivery_id=None, delivery_tag=None, settled=says[1])
    session.next_id = number + 1
    assert again.send(b"later") == Accepted()
    assert session.receiver(f"/queues/{queue}", credit=2).bodies(2) == [b"whole", b"later"]
    assert not told_of(session, number)


@rule("R157")
@pytest.mark.parametrize("says", [(True, None), (None, True)])
def test_what_is_known_is_settled_by_any_frame_of_the_resumed_delivery(
    session: Session, queue: str, says: tuple[bool | None, bool | None]
) -> None:
    link = session.sender(f"/queues/{queue}", name="s", second=True)
    link.outcome(link.post(b"1", tag=b"one"))
    suspend(link)
    again = session.sender(f"/queues/{queue}", name="s", second=True, unsettled={b"one": None})
    number = again.transfer(b"", delivery_tag=b"one", resume=True, more=True, settled=says[0])
    again.transfer(b"", delivery_id=None, delivery_tag=None, settled=says[1])
    session.next_id = number + 1
    assert again.send(b"2", tag=b"one") == Accepted(), "the tag is free"
    assert not told_of(session, number)


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
