"""What receivers hear of a queue with a single active consumer (rule C80)."""

from __future__ import annotations

import pytest

from clusterbroker.broker.wire.amqp10.performatives import Accepted, Flow

from ..marks import rule
from ..wire import Channel
from .conftest import Connect10
from .wire import Receiver, Session

ACTIVE = "rabbitmq:active"


@pytest.fixture
def single(channel: Channel) -> str:
    """A queue with a single active consumer."""
    arguments = {"x-single-active-consumer": True}
    return channel.queue_declare("", exclusive=False, auto_delete=True, arguments=arguments).queue


def activity(receiver: Receiver) -> bool:
    """The next flow that says it."""
    flow = receiver.session.wait(
        Flow, lambda known: known.handle == receiver.handle and ACTIVE in (known.properties or {})
    )
    return bool((flow.properties or {})[ACTIVE])


def silent(receiver: Receiver) -> bool:
    """Whether nothing is said of it, after a round trip."""
    receiver.session.settle_down()
    return not any(
        isinstance(known.body, Flow) and known.body.handle == receiver.handle and known.body.properties
        for known in receiver.session.peer.inbox
    )


@rule("C80")
def test_links_hear_when_they_are_active(connect10: Connect10, single: str) -> None:
    sessions = [connect10().session() for _ in range(3)]
    links = []
    for session in sessions:
        link = session.receiver(f"/queues/{single}")
        assert silent(link), "nothing is said before the first credit"
        link.grant(5)
        assert activity(link) is (not links), "the first one is active"
        links.append(link)
    for link in links:
        link.grant(10)
        assert silent(link), "nothing has changed"
    assert sessions[0].sender(f"/queues/{single}").send(b"x") == Accepted()
    links[0].accept(links[0].delivery())
    links[0].detach()
    assert activity(links[1]) is True
    assert silent(links[2])
    sessions[1].peer.abandon()
    assert activity(links[2]) is True


@rule("C80")
def test_a_link_of_higher_priority_takes_over(connect10: Connect10, single: str) -> None:
    one, two = connect10().session(), connect10().session()
    low = one.receiver(f"/queues/{single}", credit=5)
    assert activity(low) is True
    assert one.sender(f"/queues/{single}").send(b"x") == Accepted()
    delivery = low.delivery()
    high = two.receiver(f"/queues/{single}", credit=5, properties={"rabbitmq:priority": 5})
    assert activity(high) is False, "the other one holds a delivery"
    assert silent(low)
    low.accept(delivery)
    assert activity(low) is False
    assert activity(high) is True


@rule("C80")
def test_beside_consumers_of_0_9_1(session: Session, single: str, channel: Channel) -> None:
    tag = channel.consume(single)
    receiver = session.receiver(f"/queues/{single}", credit=5)
    assert activity(receiver) is False
    channel.basic_cancel(tag)
    assert activity(receiver) is True


@rule("C80")
def test_other_queues_have_nothing_to_say(session: Session, queue: str) -> None:
    receiver = session.receiver(f"/queues/{queue}", credit=5)
    assert silent(receiver)
