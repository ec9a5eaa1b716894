"""Dynamic nodes: queues and topics that an attach makes (rules P131, P132)."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.wire.amqp10.performatives import (
    Accepted,
    Attach,
    Composite,
    DeleteOnClose,
    DeleteOnNoLinks,
    DeleteOnNoLinksOrMessages,
    DeleteOnNoMessages,
    Released,
    Source,
    Target,
    composed,
)
from clusterbroker.broker.wire.amqp10.types import Symbol

from ..marks import rule
from ..wire import eventually
from .conftest import Connect10
from .wire import Link, Peer, Receiver, Sender, Session

POLICY = Symbol("lifetime-policy")


def made_source(session: Session, policy: Composite | None = None, **fields: Any) -> tuple[Receiver, str]:
    """A receiver that makes its queue, and the address that it is told."""
    asked = {} if policy is None else {"dynamic_node_properties": {POLICY: policy}}
    receiver = session.receiver(None, dynamic=True, **asked, **fields)
    source = receiver.attach.source
    assert isinstance(source, Source), receiver.attach
    assert source.dynamic
    assert composed((source.dynamic_node_properties or {})[POLICY]) == (policy or DeleteOnClose())
    assert isinstance(source.address, str)
    return receiver, source.address


def made_target(session: Session, policy: Composite | None = None, *capabilities: str) -> tuple[Sender, str]:
    """A sender that makes its queue, or its topic, and the address that it is told."""
    asked = {} if policy is None else {"dynamic_node_properties": {POLICY: policy}}
    sender = session.sender(None, target=Target(dynamic=True, capabilities=capabilities, **asked))
    target = sender.attach.target
    assert isinstance(target, Target), sender.attach
    assert target.dynamic
    assert composed((target.dynamic_node_properties or {})[POLICY]) == (policy or DeleteOnClose())
    assert isinstance(target.address, str)
    return sender, target.address


def is_there(session: Session, address: str) -> bool:
    """Whether a sender may attach to it."""
    sender = session.sender(address, waits=False)
    if sender.attach.target is None:
        sender.detached("amqp:not-found")
        return False
    sender.detach()
    return True


@rule("P131")
def test_a_source_that_the_node_makes(connect10: Connect10) -> None:
    session, other = connect10().session(), connect10().session()
    receiver, address = made_source(session)
    assert address.startswith("/queues/amq.gen-")
    sender = other.sender(address)
    assert sender.send(b"from another connection") == Accepted()
    receiver.grant(1)
    assert receiver.bodies(1) == [b"from another connection"]
    other.receiver(address).detached("amqp:resource-locked")
    receiver.detach()
    assert not is_there(session, address), "it is gone when its detach is answered"
    eventually(lambda: not is_there(other, address))
    assert sender.send(b"late") == Released()


@rule("P131")
def test_a_target_that_the_node_makes(session: Session) -> None:
    sender, address = made_target(session)
    assert sender.send(b"x") == Accepted()
    receiver = session.receiver(address, credit=1)
    assert receiver.bodies(1) == [b"x"]
    with receiver.detaches("amqp:resource-deleted"):
        sender.detach()


@rule("P131")
@pytest.mark.parametrize("over", ["session", "connection", "socket"])
def test_it_ends_with_its_session_and_connection(connect10: Connect10, over: str) -> None:
    peer, other = connect10(), connect10().session()
    session = peer.session()
    _, address = made_source(session)
    assert is_there(other, address)
    {"session": session.end, "connection": peer.close, "socket": peer.abandon}[over]()
    eventually(lambda: not is_there(other, address))


@rule("P131")
def test_credit_that_comes_before_the_answer_counts(session: Session) -> None:
    receiver = session.receiver(None, dynamic=True, waits=False)
    receiver.grant(2)
    receiver.attach = session.wait(Attach, lambda known: known.name == receiver.name)
    assert isinstance(receiver.attach.source, Source)
    sender = session.sender(receiver.attach.source.address)
    assert [sender.send(b"%d" % number) for number in range(3)] == [Accepted()] * 3
    assert receiver.bodies(2) == [b"0", b"1"]
    assert receiver.waiting() == 0


@rule("P131")
def test_what_a_dynamic_terminus_may_not_say(session: Session) -> None:
    session.receiver("/queues/own-name", dynamic=True).detached("amqp:invalid-field", "has no address")
    target = Target(address="/queues/own-name", dynamic=True)
    session.sender(None, target=target, waits=False).detached("amqp:invalid-field", "has no address")


@rule("P131")
def test_rights(connect10_as: Connect10) -> None:
    session = connect10_as("conf-reader").session()
    session.receiver(None, dynamic=True).detached("amqp:unauthorized-access")
    session.sender(None, target=Target(dynamic=True), waits=False).detached("amqp:unauthorized-access")


@rule("P131")
def test_distribution_modes_are_answered(session: Session) -> None:
    asked = {POLICY: DeleteOnClose(), Symbol("supported-dist-modes"): Symbol("move")}
    receiver = session.receiver(None, dynamic=True, dynamic_node_properties=asked)
    assert isinstance(receiver.attach.source, Source)
    known = (receiver.attach.source.dynamic_node_properties or {})[Symbol("supported-dist-modes")]
    assert list(known) == ["move", "copy"]


@rule("P132")
def test_a_policy_that_there_is_not(session: Session) -> None:
    for told in (Accepted(), Symbol("for-ever")):
        receiver = session.receiver(None, dynamic=True, dynamic_node_properties={POLICY: told})
        assert isinstance(receiver.attach.source, Source)
        known = (receiver.attach.source.dynamic_node_properties or {})[POLICY]
        assert composed(known) == DeleteOnClose(), "what is in force is told"


@rule("P132")
def test_delete_on_no_links(connect10: Connect10) -> None:
    peer = connect10()
    session, same_node = peer.session(), peer.session()
    creator, address = made_target(session, DeleteOnNoLinks())
    sender, receiver = same_node.sender(address), session.receiver(address)
    assert creator.send(b"x") == Accepted()
    creator.detach()
    sender.detach()
    assert is_there(session, address), "a receiver is left"
    receiver.detach()
    assert not is_there(session, address), "messages do not keep it"


@rule("P132")
def test_delete_on_no_messages(session: Session) -> None:
    creator, address = made_target(session, DeleteOnNoMessages())
    assert [creator.send(b"%d" % number) for number in range(2)] == [Accepted()] * 2
    creator.detach()
    assert is_there(session, address), "it has messages"
    receiver = session.receiver(address, credit=2)
    first, second = receiver.deliveries(2)
    receiver.accept(first)
    receiver.dispose(second.id, state=Released())
    receiver.detach()
    assert is_there(session, address), "one came back"
    receiver = session.receiver(address, credit=1)
    with receiver.detaches("amqp:resource-deleted"):
        receiver.accept(receiver.delivery())
    assert not is_there(session, address)
    creator, address = made_target(session, DeleteOnNoMessages())
    receiver = session.receiver(address)
    with receiver.detaches("amqp:resource-deleted"):
        creator.detach()


@rule("P132")
def test_delete_on_no_links_or_messages(session: Session) -> None:
    creator, address = made_target(session, DeleteOnNoLinksOrMessages())
    assert creator.send(b"x") == Accepted()
    creator.detach()
    assert is_there(session, address), "it has a message"
    receiver = session.receiver(address, credit=1)
    receiver.accept(receiver.delivery())
    session.settle_down()
    assert is_there(session, address), "it has a link"
    receiver.detach()
    assert not is_there(session, address)


@rule("P132")
def test_delete_on_close_asks_for_nothing_else(session: Session) -> None:
    creator, address = made_target(session, DeleteOnClose())
    assert creator.send(b"x") == Accepted()
    receiver: Link = session.receiver(address)
    with receiver.detaches("amqp:resource-deleted"):
        creator.detach()
    assert not is_there(session, address)


@rule("P132")
def test_queues_that_were_made_leave_nothing_behind(peer: Peer, session: Session) -> None:
    links = [made_target(session) for _ in range(20)]
    for sender, _ in links:
        sender.detach()
    assert not any(is_there(session, address) for _, address in links)
    peer.close()
