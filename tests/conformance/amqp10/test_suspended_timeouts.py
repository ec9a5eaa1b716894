"""The consumer timeout reaches what suspended links hold: it returns, counted, and its client hears of it."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.wire.amqp10.performatives import Accepted, Modified, Source, Target

from ..wire import Channel
from .conftest import Connect10
from .recovering import KEPT_S, lasting_receiver, ready, receiver, states, tag_of
from .test_links import fill
from .wire import Delivery, Session

TIMEOUT_MS = 300
FAILED = Modified(delivery_failed=True)


@pytest.fixture
def queue(channel: Channel) -> str:
    arguments = {"x-consumer-timeout": TIMEOUT_MS}
    return str(channel.queue_declare("", durable=True, arguments=arguments).queue)


def gone(session: Session, queue: str, *, lasting: bool) -> list[Delivery]:
    """Of three messages two are with a link whose client is gone."""
    fill(session, queue, 3)
    link = receiver(session, queue, timeout=KEPT_S, lasting=lasting)
    link.grant(2)
    held = link.deliveries(2)
    session.peer.abandon()
    return held


def counts(session: Session, queue: str) -> dict[bytes, Any]:
    """Failed deliveries by body, of all three."""
    link = session.receiver(f"/queues/{queue}", credit=3)
    found = {one.message.body: one.message.header.delivery_count for one in link.deliveries(3)}
    link.detach()
    return found


def test_what_is_held_anywhere_for_too_long_returns(connect10: Connect10, queue: str, channel: Channel) -> None:
    held = gone(connect10(container=queue).session(), queue, lasting=True)
    ready(channel, queue, 3)
    assert counts(connect10().session(), queue) == {b"0": 1, b"1": 1, b"2": 0}
    doubt = {tag_of(held[0]): Accepted(), tag_of(held[1]): None}
    told = lasting_receiver(connect10(container=queue).session(), queue, doubt)
    assert states(told.attach) == dict.fromkeys(map(tag_of, held), FAILED), "not settled as the client has said"
    assert told.attach.incomplete_unsettled
    told.grant(9)
    frames = [told.frames().body for _ in held]
    assert {frame.delivery_tag for frame in frames} == set(doubt)
    assert all(frame.settled and frame.resume and frame.state == FAILED for frame in frames)
    assert told.waiting() == 0, "nothing new before the client's map is complete"
    told.session.peer.abandon()

    lost = lasting_receiver(connect10(container=queue).session(), queue, doubt)
    assert states(lost.attach) == dict.fromkeys(map(tag_of, held), FAILED), "nothing has said that the client heard it"
    lost.session.peer.abandon()

    back = lasting_receiver(connect10(container=queue).session(), queue, {})
    assert not back.attach.incomplete_unsettled
    assert states(back.attach) == {}
    back.grant(9)
    again = back.deliveries(3)
    assert {one.message.body for one in again} == {b"0", b"1", b"2"}
    back.accept(*again)
    back.session.settle_down()
    back.session.peer.abandon()
    doubt = dict.fromkeys(map(tag_of, again), Accepted())
    over = lasting_receiver(connect10(container=queue).session(), queue, doubt)
    assert states(over.attach) == {}, "the same tags, and this time they are settled"


def test_what_its_node_holds_for_too_long_returns(connect_here: Connect10, queue: str, channel: Channel) -> None:
    held = gone(connect_here(container=queue).session(), queue, lasting=False)
    ready(channel, queue, 3)
    session = connect_here(container=queue).session()
    assert counts(session, queue) == {b"0": 1, b"1": 1, b"2": 0}
    link = receiver(session, queue, unsettled={tag_of(held[0]): Accepted()}, timeout=KEPT_S)
    link.detached("amqp:resource-deleted")


def test_an_attached_link_in_its_time_holds_on(connect10: Connect10, channel: Channel) -> None:
    queue = str(channel.queue_declare("", durable=True, arguments={"x-consumer-timeout": 0}).queue)
    held = gone(connect10(container=queue).session(), queue, lasting=True)
    other = connect10().session().receiver(f"/queues/{queue}", credit=9)
    assert other.delivery().message.body == b"2"
    assert other.waiting() == 0
    doubt: dict[bytes, Any] = {tag_of(one): None for one in held}
    back = lasting_receiver(connect10(container=queue).session(), queue, doubt)
    assert states(back.attach) == doubt
    assert isinstance(back.attach.source, Source)
    assert isinstance(back.attach.target, Target)
