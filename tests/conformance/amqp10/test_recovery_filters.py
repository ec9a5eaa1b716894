"""Links with filters that are suspended: they come back to the same messages, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.wire.amqp10.performatives import Attach, Source, Target

from ..marks import rule
from .recovering import RECOVERY, states, suspend, tag_of
from .test_filters import JMS, filters, in_force, numbered
from .wire import Receiver, Session

RED, BLUE = "color = 'red'", "color = 'blue'"


def again(session: Session, queue: str, name: str, selector: str | None, unsettled: dict[bytes, Any]) -> int:
    """Attaches anew with a map; its handle."""
    handle = session.handle()
    filtered = {} if selector is None else {"filter": filters((JMS, selector))}
    session.say(
        Attach(
            name=name, handle=handle, role=True, source=Source(address=f"/queues/{queue}", **filtered),
            target=Target(), unsettled=unsettled,
        )
    )  # fmt: skip
    return handle


def held(session: Session, queue: str) -> tuple[Receiver, bytes]:
    """A suspended receiver of red messages, and the tag of what it holds."""
    numbered(session, queue, 4)
    link = session.receiver(f"/queues/{queue}", credit=1, filter=filters((JMS, RED)))
    delivery = link.delivery()
    assert delivery.message.body == b"0"
    suspend(link)
    return link, tag_of(delivery)


@rule("R157", "E143")
def test_a_link_comes_back_with_its_filter(session: Session, queue: str) -> None:
    link, tag = held(session, queue)
    handle = again(session, queue, link.name, RED, {tag: None})
    attach = session.wait(Attach, lambda known: known.name == link.name)
    assert set(states(attach)) == {tag}
    assert getattr(attach.source, "filter", None), "the filter is in force still"
    link.handle, link.count = handle, int(attach.initial_delivery_count or 0)
    link.grant(10)
    assert {one.message.body for one in link.deliveries(2)} == {b"0", b"2"}


@pytest.mark.parametrize("selector", [BLUE, None])
@rule("R169")
def test_another_filter_resumes_nothing(session: Session, queue: str, selector: str | None) -> None:
    """Or what was said to be in force would not be."""
    link, tag = held(session, queue)
    link.handle = again(session, queue, link.name, selector, {tag: None})
    link.detached("amqp:resource-deleted")
    assert len(session.receiver(f"/queues/{queue}", credit=4).deliveries(4)) == 4


@rule("R165")
def test_a_link_with_a_filter_is_not_said_to_last(session: Session, queue: str) -> None:
    numbered(session, queue, 2)
    link = session.receiver(
        f"/queues/{queue}", credit=5, filter=filters((JMS, RED)), durable=2, timeout=60, desired=(RECOVERY,)
    )
    assert RECOVERY not in link.attach.offered_capabilities
    assert in_force(link)
    assert link.delivery().message.body == b"0"
    assert link.waiting() == 0, "a filter that is in force is kept to"
