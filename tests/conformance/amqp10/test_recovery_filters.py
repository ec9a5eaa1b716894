"""Links with filters that are suspended: they come back to the same messages, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.wire.amqp10.performatives import Accepted, Attach, Flow, Source, Target
from clusterbroker.broker.wire.amqp10.types import Described, Symbol
from tests.support.amqp10 import read

from ..marks import rule
from ..wire import Channel
from .conftest import Connect10
from .recovering import RECOVERY, lasting_receiver, ready, receiver, states, suspend, tag_of
from .test_filters import JMS, SQL, filters, in_force, numbered
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


@rule("R157")
def test_a_filter_that_is_not_known_changes_nothing(session: Session, queue: str) -> None:
    numbered(session, queue, 1)
    unknown = filters((JMS, RED)) | {Symbol("x"): Described(Symbol("nobody:knows"), "it")}
    link = session.receiver(f"/queues/{queue}", credit=1, filter=unknown, name="r")
    tag = tag_of(link.delivery())
    suspend(link)
    assert set(states(receiver(session, queue, unsettled={tag: None}, filter=unknown).attach)) == {tag}


def selecting(session: Session, queue: str, unsettled: Any = None, selector: str = RED, **fields: Any) -> Any:
    """A recoverable link with a filter."""
    return lasting_receiver(session, queue, unsettled, filter=filters((JMS, selector)), **fields)


@rule("R161", "R165", "E143")
def test_a_link_with_a_filter_comes_back_at_any_node(connect10: Connect10, queue: str, channel: Channel) -> None:
    first = connect10(container=queue)
    numbered(first.session(), queue, 8)
    link = selecting(first.session(), queue)
    assert link.attach.offered_capabilities == (RECOVERY,)
    assert in_force(link)
    link.grant(3)
    held = link.deliveries(3)
    assert [each.message.body for each in held] == [b"0", b"2", b"4"]
    link.accept(held[2])
    link.session.settle_down()
    first.abandon()
    other = connect10().session().receiver(f"/queues/{queue}", credit=9)
    assert other.bodies(5) == [b"1", b"3", b"5", b"6", b"7"]
    assert other.waiting() == 0, "nobody else gets what the link holds"
    session = connect10(container=queue).session()
    again = selecting(session, queue, {tag_of(held[0]): Accepted(), tag_of(held[1]): None})
    assert set(states(again.attach)) == set(map(tag_of, held[:2]))
    other.detach()
    again.grant(9)
    found = [again.frames() for _ in range(3)]
    assert [read(one.payload).body for one in found if one.payload] == [b"2", b"6"]
    again.grant(9, drain=True)
    flow = session.wait(Flow, lambda known: known.handle == again.handle and bool(known.drain))
    assert flow.link_credit == 0, "what is passed over is not waited for"
    again.count = int(flow.delivery_count or 0)
    numbered(session, queue, 4)
    again.grant(9)
    assert sorted(again.bodies(2)) == [b"0", b"2"], "what comes later, too"
    ready(channel, queue, 6)


@rule("R161", "R169")
def test_another_filter_is_another_link(connect10: Connect10, queue: str) -> None:
    """A map for another one resumes nothing; without a map what the link held returns."""
    session = connect10(container=queue).session()
    numbered(session, queue, 4)
    link = selecting(session, queue)
    link.grant(2)
    first, second = link.deliveries(2)
    suspend(link)
    for selector in (BLUE, "color = 'red' OR n > 9"):
        other = selecting(session, queue, {tag_of(first): None, tag_of(second): None}, selector)
        other.detached("amqp:precondition-failed", "filter")
    plain = lasting_receiver(session, queue, {tag_of(first): None})
    plain.detached("amqp:precondition-failed", "filter")
    again = selecting(session, queue, {tag_of(first): None, tag_of(second): None})
    assert set(states(again.attach)) == {tag_of(first), tag_of(second)}, "what was refused has changed nothing"
    suspend(again)
    link = selecting(session, queue, None, BLUE)
    link.grant(9)
    assert link.bodies(2) == [b"1", b"3"]
    assert connect10().session().receiver(f"/queues/{queue}", credit=9).bodies(2) == [b"0", b"2"]


@rule("R161")
def test_the_order_of_a_links_filters_means_nothing(session: Session, queue: str) -> None:
    numbered(session, queue, 1)
    both = filters((JMS, RED), (SQL, "a.n = 0"))
    link = lasting_receiver(session, queue, filter=both)
    link.grant(1)
    tag = tag_of(link.delivery())
    suspend(link)
    again = lasting_receiver(session, queue, {tag: None}, filter=dict(reversed(both.items())))
    assert set(states(again.attach)) == {tag}
