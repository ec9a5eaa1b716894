"""Recoverable receiver links: drained, with messages that are modified, on a queue with a single active consumer."""

from __future__ import annotations

from clusterbroker.broker.wire.amqp10.performatives import Flow, Modified
from clusterbroker.broker.wire.amqp10.types import Symbol

from ..wire import Channel
from .conftest import Connect10
from .recovering import lasting_receiver, ready, suspend, tag_of
from .test_activity import activity
from .test_links import fill
from .wire import Receiver, Session


def drained(link: Receiver) -> int:
    """The link's count when it has no more credit."""
    flow = link.session.wait(Flow, lambda known: known.handle == link.handle and bool(known.drain))
    assert flow.link_credit == 0
    return int(flow.delivery_count or 0)


def test_drain_waits_for_what_is_on_its_way(session: Session, queue: str) -> None:
    fill(session, queue, 5)
    link = lasting_receiver(session, queue)
    link.grant(10, drain=True)
    assert drained(link) == 10
    assert link.bodies(5) == [b"0", b"1", b"2", b"3", b"4"]
    link.count = 10
    link.grant(7, drain=True)
    assert drained(link) == 17
    assert link.waiting() == 0
    link.count = 17
    fill(session, queue, 40)
    link.grant(50, drain=True)
    assert drained(link) == 67
    assert link.waiting() == 40, "all came before, and nothing comes beyond the credit that was given up"


def test_undeliverable_here_holds_for_the_link_that_comes_again(
    connect10: Connect10, queue: str, channel: Channel
) -> None:
    first = connect10(container=queue)
    fill(first.session(), queue, 3)
    link = lasting_receiver(first.session(), queue)
    link.grant(2)
    one, two = link.deliveries(2)
    noted = {Symbol("x-opt-why"): "later"}
    link.dispose(one.id, state=Modified(delivery_failed=True, undeliverable_here=True, message_annotations=noted))
    link.grant(9)
    assert link.delivery().message.body == b"2", "the first one passes it by"
    link.grant(9, drain=True)
    assert drained(link) == 12
    suspend(link)
    stranger = connect10().session().receiver(f"/queues/{queue}", credit=1)
    again = stranger.delivery()
    assert (again.message.body, again.message.header.delivery_count) == (b"0", 1)
    assert again.message.annotations[Symbol("x-opt-why")] == "later"
    stranger.detach()
    back = lasting_receiver(connect10(container=queue).session(), queue, {tag_of(two): None})
    back.grant(9)
    assert sorted(back.bodies(2)) == [b"1", b"2"]
    assert back.waiting() == 0, "it is never that link's again"
    ready(channel, queue, 1)


def test_a_suspended_link_stays_the_single_active_consumer(connect10: Connect10, channel: Channel) -> None:
    queue = channel.queue_declare("", durable=True, arguments={"x-single-active-consumer": True}).queue
    first = connect10(container=queue)
    fill(first.session(), queue, 2)
    link, waiting = lasting_receiver(first.session(), queue), connect10().session().receiver(f"/queues/{queue}")
    link.grant(1)
    assert activity(link) is True
    held = link.delivery()
    waiting.grant(5)
    assert activity(waiting) is False
    suspend(link)
    assert waiting.waiting() == 0
    back = lasting_receiver(connect10(container=queue).session(), queue, {tag_of(held): None})
    back.grant(5)
    assert activity(back) is True
    assert back.bodies(2) == [b"0", b"1"]
    back.detach()
    assert activity(waiting) is True
    assert sorted(waiting.bodies(2)) == [b"0", b"1"]
    channel.queue_delete(queue)
