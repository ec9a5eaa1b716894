"""What a queue delivers is no larger than its receiver takes (2.7.3)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from clusterbroker.broker.wire.amqp10.performatives import Accepted, Detach

from ..marks import rule
from .conftest import Connect10
from .recovering import lasting_receiver, suspend
from .wire import Receiver, Session

TOO_LARGE = "amqp:link:message-size-exceeded"
SMALL, LARGE = b"x" * 40, b"x" * 1000
Attach = Callable[..., Receiver]


def plain(session: Session, queue: str, **fields: Any) -> Receiver:
    return session.receiver(f"/queues/{queue}", **fields)


@rule("A58")
@pytest.mark.parametrize("attach", [plain, lasting_receiver])
def test_a_larger_one_ends_the_link_and_is_for_others(connect10: Connect10, queue: str, attach: Attach) -> None:
    session = connect10(container=queue).session()
    sender = session.sender(f"/queues/{queue}")
    assert [sender.send(body) for body in (SMALL, LARGE, SMALL)] == [Accepted()] * 3
    link = attach(session, queue, max_message_size=500)
    link.grant(1)
    small = link.delivery()
    assert small.message.body == SMALL
    link.accept(small)
    session.settle_down()
    link.count = 1
    link.grant(1)
    link.detached(TOO_LARGE, "and the link takes 500")
    other = connect10().session().receiver(f"/queues/{queue}", credit=10)
    found = other.deliveries(2)
    assert [one.message.body for one in found] == [LARGE, SMALL], "in their order"
    assert found[0].message.header.delivery_count == 1
    for one in found:
        other.accept(one)


@rule("A58")
def test_one_that_just_fits_comes(session: Session, queue: str) -> None:
    sender = session.sender(f"/queues/{queue}")
    assert sender.send(LARGE) == Accepted()
    size = 0
    for _ in range(2):  # a count that is not 0 takes a byte more
        short = session.receiver(f"/queues/{queue}", max_message_size=max(100, size - 1))
        short.grant(1)
        detach = session.wait(Detach, lambda known, handle=short.handle: known.handle == handle)
        assert (detach.error.condition, detach.closed) == (TOO_LARGE, True)
        size = int(re.search(r"it has (\d+) bytes", detach.error.description)[1])
        session.say(Detach(handle=short.handle, closed=True))
    exact = session.receiver(f"/queues/{queue}", max_message_size=size)
    exact.grant(1)
    assert exact.delivery().message.body == LARGE


@rule("A58")
def test_what_a_link_holds_is_measured_when_it_comes_again(connect10: Connect10, queue: str) -> None:
    session = connect10(container=queue).session()
    assert session.sender(f"/queues/{queue}").send(LARGE) == Accepted()
    link = lasting_receiver(session, queue)
    link.grant(1)
    assert link.delivery().message.body == LARGE
    suspend(link)
    again = lasting_receiver(connect10(container=queue).session(), queue, {}, max_message_size=500)
    again.grant(1)
    again.detached(TOO_LARGE)
    other = connect10().session().receiver(f"/queues/{queue}", credit=1)
    assert other.delivery().message.body == LARGE
