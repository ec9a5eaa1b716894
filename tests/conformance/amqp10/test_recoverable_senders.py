"""Sender links whose deliveries the logs of their queues know (rules R): over connections, nodes and restarts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from clusterbroker.broker.wire.amqp10.performatives import Accepted, Attach, Target, composed
from tests.support.amqp10 import message

from ..channel import Channel
from ..marks import rule
from ..wire import eventually
from .conftest import Connect10
from .wire import Peer, Sender, Session

CAPABILITY = "clusterbroker:link-recovery"
KEPT_S = 60


def recoverable(session: Session, address: str, *, name: str = "l", timeout: int = KEPT_S, **fields: Any) -> Sender:
    target = Target(address=address, durable=2, timeout=timeout)
    return session.sender(address, name=name, target=target, desired_capabilities=(CAPABILITY,), **fields)


def states(attach: Attach) -> dict[Any, Any]:
    """The unsettled map of an attach."""
    assert attach.unsettled is not None, "the node resumes nothing"
    return {tag: composed(state) for tag, state in attach.unsettled.items()}


def ready(channel: Channel, queue: str, count: int) -> None:
    eventually(lambda: channel.message_count(queue) == count)


def bodies(session: Session, queue: str, count: int) -> list[bytes]:
    return session.receiver(f"/queues/{queue}", credit=count).bodies(count)


def both(peer: Peer, connect10: Connect10) -> tuple[Session, Session]:
    """Sessions of one container, on two connections: of a cluster perhaps on two nodes."""
    return peer.session(), connect10(container=peer.container).session()


def test_what_is_in_force_is_offered(session: Session, queue: str) -> None:
    attach = recoverable(session, f"/queues/{queue}").attach
    assert attach.offered_capabilities == (CAPABILITY,)
    assert isinstance(attach.target, Target)
    assert (attach.target.durable, attach.target.expiry_policy, attach.target.timeout) == (2, "link-detach", KEPT_S)


@pytest.mark.parametrize("lacks", ["durable", "timeout", "capability"])
def test_without_one_of_its_conditions_a_link_is_kept_by_its_node(session: Session, queue: str, lacks: str) -> None:
    target = Target(address=f"/queues/{queue}", durable=2, timeout=KEPT_S)
    desired = (CAPABILITY,)
    if lacks == "durable":
        target.durable = 1
    elif lacks == "timeout":
        target.timeout = 0
    else:
        desired = ()
    link = session.sender(f"/queues/{queue}", target=target, desired_capabilities=desired)
    assert not link.attach.offered_capabilities
    assert link.attach.target.durable == 1
    assert link.send(b"1") == Accepted()


@rule("R162", "R163")
@pytest.mark.parametrize("second", [False, True])
def test_what_a_queue_knows_is_answered_accepted_on_another_connection(
    peer: Peer, connect10: Connect10, queue: str, channel: Channel, second: bool
) -> None:
    first, other = both(peer, connect10)
    link = recoverable(first, f"/queues/{queue}", second=second)
    for number in range(3):
        link.outcome(link.post(b"%d" % number, tag=b"%d" % number))
    peer.abandon()
    again = recoverable(other, f"/queues/{queue}", second=second, unsettled={b"1": None, b"2": None, b"3": None})
    assert states(again.attach) == {b"1": Accepted(), b"2": Accepted()}
    one = again.transfer(message(b"3"), delivery_tag=b"3", resume=True)
    assert again.outcome(one) == Accepted()
    again.transfer(b"", delivery_tag=b"1", resume=True, settled=True)
    assert again.send(b"4") == Accepted()
    assert bodies(other, queue, 5) == [b"0", b"1", b"2", b"3", b"4"]
    ready(channel, queue, 0)


@rule("R164")
def test_through_an_exchange_each_queue_has_a_delivery_once(
    peer: Peer, connect10: Connect10, channel: Channel, name: Callable[[str], str]
) -> None:
    exchange, queues = name("x"), [name(f"q{number}") for number in range(3)]
    channel.exchange_declare(exchange, "fanout")
    for queue in queues[:2]:
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, exchange, "")
    first, other = both(peer, connect10)
    link = recoverable(first, f"/exchanges/{exchange}")
    assert link.outcome(link.post(b"1", tag=b"one")) == Accepted()
    channel.queue_declare(queues[2], durable=True)
    channel.queue_bind(queues[2], exchange, "")
    peer.abandon()
    again = recoverable(other, f"/exchanges/{exchange}", unsettled={b"one": None})
    assert states(again.attach) == {}, "each queue judges for itself"
    assert again.outcome(again.transfer(message(b"1"), delivery_tag=b"one")) == Accepted()
    for queue in queues:
        ready(channel, queue, 1)


@rule("R170")
@pytest.mark.parametrize("resumes", [False, True])
def test_a_later_attach_steals_a_link_wherever_it_is(
    peer: Peer, connect10: Connect10, queue: str, channel: Channel, resumes: bool
) -> None:
    first, other = both(peer, connect10)
    link = recoverable(first, f"/queues/{queue}")
    link.outcome(link.post(b"1", tag=b"one"))
    again = recoverable(other, f"/queues/{queue}", unsettled={b"one": None} if resumes else None)
    link.detached("amqp:link:stolen")
    if resumes:
        assert states(again.attach) == {b"one": Accepted()}
    assert again.outcome(again.transfer(message(b"1 again"), delivery_tag=b"one")) == Accepted(), "a new delivery"
    ready(channel, queue, 2)


@rule("R173")
def test_a_tag_that_is_used_again_is_a_new_delivery(peer: Peer, connect10: Connect10, queue: str) -> None:
    first, other = both(peer, connect10)
    link = recoverable(first, f"/queues/{queue}")
    for body in (b"1", b"2"):
        link.outcome(link.post(body, tag=b"same"))
        first.peer.inbox.clear()
    peer.abandon()
    again = recoverable(other, f"/queues/{queue}", unsettled={})
    assert not again.attach.unsettled
    assert again.outcome(again.post(b"3", tag=b"same")) == Accepted()
    assert bodies(other, queue, 3) == [b"1", b"2", b"3"]


@rule("R176")
@pytest.mark.parametrize("end", ["closed", "unknown", "another queue"])
def test_a_map_of_a_link_that_is_not_known_is_refused(
    peer: Peer, connect10: Connect10, queue: str, channel: Channel, name: Callable[[str], str], end: str
) -> None:
    first, other = both(peer, connect10)
    condition = "amqp:resource-deleted"
    if end != "unknown":
        link = recoverable(first, f"/queues/{queue}")
        link.outcome(link.post(b"1", tag=b"one"))
        if end == "closed":
            link.detach(closed=True)
        else:
            queue, condition = name("other"), "amqp:precondition-failed"
            channel.queue_declare(queue, durable=True)
    again = recoverable(other, f"/queues/{queue}", waits=False, unsettled={b"one": None})
    assert again.attach.target is None
    again.detached(condition)


# -- incomplete maps (2.6.13): a name is forgotten when a whole map lacked it


def fan_out(channel: Channel, name: Callable[[str], str]) -> tuple[str, str]:
    """An exchange, and the queue behind it."""
    exchange, queue = name("x"), name("q")
    channel.exchange_declare(exchange, "fanout")
    channel.queue_declare(queue, durable=True)
    channel.queue_bind(queue, exchange, "")
    return f"/exchanges/{exchange}", queue


@rule("R164", "R173")
@pytest.mark.parametrize("new", [False, True], ids=["resumed", "new"])
def test_a_series_of_maps_at_an_exchange_decides_what_each_of_them_names(
    peer: Peer, connect10: Connect10, channel: Channel, name: Callable[[str], str], new: bool
) -> None:
    """Whether a queue behind the exchange has a delivery, only that delivery tells: the node names it, without a
    state, so that the client resumes it before it attaches with the rest."""
    address, queue = fan_out(channel, name)
    first, other = both(peer, connect10)
    link = recoverable(first, address, second=True)
    for tag in (b"A", b"B"):
        assert link.outcome(link.post(tag, tag=tag)) == Accepted()
    peer.abandon()
    part = recoverable(other, address, second=True, unsettled={b"A": None}, incomplete_unsettled=True)
    assert states(part.attach) == {b"A": None}
    number = part.transfer(message(b"A"), delivery_tag=b"A", resume=not new)
    assert part.outcome(number) == Accepted()
    part.detach(closed=False)
    rest = recoverable(other, address, second=True, unsettled={b"A": Accepted(), b"B": None})
    assert states(rest.attach) == {b"A": Accepted()}
    assert rest.outcome(rest.transfer(message(b"B"), delivery_tag=b"B")) == Accepted()
    assert sorted(bodies(other, queue, 2)) == [b"A", b"B"]
    ready(channel, queue, 0)


@rule("R164", "R173")
def test_a_map_that_is_empty_and_incomplete_forgets_nothing(
    peer: Peer, connect10: Connect10, channel: Channel, name: Callable[[str], str]
) -> None:
    address, queue = fan_out(channel, name)
    first, other = both(peer, connect10)
    link = recoverable(first, address)
    assert link.outcome(link.post(b"A", tag=b"A")) == Accepted()
    peer.abandon()
    recoverable(other, address, unsettled={}, incomplete_unsettled=True).detach(closed=False)
    rest = recoverable(other, address, unsettled={b"A": None})
    assert rest.outcome(rest.transfer(message(b"A"), delivery_tag=b"A")) == Accepted()
    assert bodies(other, queue, 1) == [b"A"]
    ready(channel, queue, 0)


@rule("R164", "R173")
def test_a_tag_of_a_series_of_maps_that_comes_as_a_new_delivery_is_known(
    peer: Peer, connect10: Connect10, channel: Channel, name: Callable[[str], str]
) -> None:
    """As of a client that takes what the first map named for something to be sent when the maps are whole."""
    address, queue = fan_out(channel, name)
    first, other = both(peer, connect10)
    link = recoverable(first, address, second=True)
    assert link.outcome(link.post(b"A", tag=b"A")) == Accepted()
    peer.abandon()
    recoverable(other, address, second=True, unsettled={b"A": None}, incomplete_unsettled=True).detach(closed=False)
    rest = recoverable(other, address, second=True, unsettled={b"B": None})
    for tag in (b"A", b"B"):
        assert rest.outcome(rest.transfer(message(tag), delivery_tag=tag)) == Accepted()
    assert bodies(other, queue, 2) == [b"A", b"B"]
    ready(channel, queue, 0)
