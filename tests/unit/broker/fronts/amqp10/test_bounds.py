"""What bounds a connection of AMQP 1.0: small frames, links, counts."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.broker.wire.amqp10.fitting import fitted
from clusterbroker.broker.wire.amqp10.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Modified,
    Open,
    Rejected,
    Source,
    Target,
    Transfer,
    decode,
)
from clusterbroker.broker.wire.amqp10.types import Described, Symbol
from tests.support.amqp10 import frame, message
from tests.unit.broker.fronts.amqp091.harness import World
from tests.unit.broker.fronts.amqp10.harness import BEGIN, Peer, bodies, world_with

LONG = "é" * 110
"""A name of a queue whose texts do not fit a small frame."""


class SmallPeer(Peer):
    """A client whose frames have 512 bytes; a longer one is an error of the test."""

    def flush(self) -> None:
        data, self.largest = bytes(self.core.out.take()), getattr(self, "largest", 0)
        at = data.startswith(b"AMQP") * 8
        while at < len(data):
            (size,) = struct.unpack_from(">I", data, at)
            self.largest = max(self.largest, size)
            at += 8 if data[at : at + 4] == b"AMQP" else size
        self.heard += self.reader.feed(data)
        super().flush()


def small(world: World) -> SmallPeer:
    peer = SmallPeer(world)
    peer.enter(max_frame_size=512)
    return peer


def test_what_is_told_fits_small_frames() -> None:
    world = world_with("q")
    world.client().declare(LONG, x_max_length=0, x_overflow="reject-publish")
    peer = small(world)
    heard = peer.sender("s", f"/queues/{LONG}").send(b"x")
    (disposition,) = bodies(heard, Disposition)
    assert disposition.state.error.condition == "amqp:resource-limit-exceeded"
    heard = peer.sender("n", "/queues/" + "n" * 300).attached
    (detach,) = bodies(heard, Detach)
    assert detach.error.condition == "amqp:invalid-field"
    heard = peer.receiver("r", "/queues/" + "n" * 255).attached
    assert bodies(heard, Detach)[0].error.condition == "amqp:not-found"
    assert 0 < peer.largest <= 512


def test_an_attach_whose_answer_does_not_fit_is_refused() -> None:
    world = world_with("q")
    peer = small(world)
    filters = {Symbol("mine"): Described(Symbol("f"), "v" * 600)}
    for attach in (
        Attach(name="t", handle=5, role=False, initial_delivery_count=0, source=Source(address="s" * 500),
               target=Target(address="/queues/q")),
        Attach(name="r", handle=6, role=True, source=Source(address="/queues/q"), target=Target(address="t" * 500)),
    ):  # fmt: skip
        heard = peer.say(attach)
        (refused,) = bodies(heard, Attach)
        assert refused.handle == attach.handle
        (detach,) = bodies(heard, Detach)
        assert detach.error.condition == "amqp:frame-size-too-small"
        peer.say(Detach(handle=attach.handle, closed=True))
    assert world.node.links.handles == 0
    link = peer.receiver("f", "/queues/q", filter=filters)
    assert bodies(link.attached, Attach), "a filter that is not in force is in no answer"
    peer.sender("s", "/queues/q").send(b"x")
    link.grant(1)
    assert link.bodies() == [b"x"], "the session lives"
    assert peer.largest <= 512


def test_an_outcome_that_does_not_fit_is_told_without_its_fields() -> None:
    world = world_with("q")
    peer = small(world)
    peer.sender("s", "/queues/q").send(b"x")
    link = peer.receiver("r", "/queues/q", credit=1)
    link.take()
    state = Modified(message_annotations={Symbol("x-a"): "v" * 800})
    (told,) = bodies(peer.say(Disposition(role=True, first=0, settled=False, state=state)), Disposition)
    assert told.settled
    assert told.state == Modified()


TEXTS = st.text(max_size=2000)
ERRORS = st.builds(
    Error, condition=st.just(Symbol("amqp:not-found")), description=st.none() | TEXTS,
    info=st.none() | st.dictionaries(st.sampled_from([Symbol("queue"), Symbol("reason")]), TEXTS),
)  # fmt: skip


@given(ERRORS, st.integers(512, 1000))
def test_any_error_fits(error: Error, most: int) -> None:
    for told in (
        Detach(handle=1, closed=True, error=error), End(error=error), Close(error=error),
        Disposition(role=True, first=1, settled=True, state=Rejected(error=error)),
    ):  # fmt: skip
        data = fitted(3, told, most)
        assert len(data) <= most
        read: Any = decode(data[8:])[0]
        known = read.state.error if isinstance(read, Disposition) else read.error
        assert known.condition == error.condition
        if len(frame(3, told)) <= most:
            assert data == frame(3, told)


def test_an_open_fits() -> None:
    properties = {Symbol("product"): "clusterbroker", Symbol("failover-server-list"): ["x" * 300] * 3}
    data = fitted(0, Open(container_id="c", properties=properties), 512)
    assert len(data) <= 512
    read: Any = decode(data[8:])[0]
    assert read.properties == {Symbol("product"): "clusterbroker"}


# -- links


def test_links_of_a_node_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_with("q")
    one, other = Peer(world).enter(), Peer(world).enter()
    monkeypatch.setattr("clusterbroker.broker.node.links.LINKS_MAX", 3)
    one.sender("a", "/queues/q")
    one.receiver("b", "/queues/q")
    assert bodies(other.receiver("c", "/queues/q").attached, Detach) == []
    (detach,) = bodies(other.sender("d", "/queues/q").attached, Detach)
    assert detach.error.condition == "amqp:resource-limit-exceeded"
    (detach,) = bodies(one.sender("a", "/queues/q").attached, Detach)
    assert detach.error.condition == "amqp:link:stolen", "a name again takes the place of its link"
    one.leave()
    assert world.node.links.handles == 1
    other.say(BEGIN, channel=1)
    assert bodies(other.sender("d", "/queues/q").attached, Detach) == []
    other.say(End())
    assert world.node.links.handles == 0


def test_a_name_is_one_links_over_all_sessions() -> None:
    world = world_with("q")
    peer = Peer(world).enter()
    first = peer.receiver("r", "/queues/q")
    peer.say(Begin(next_outgoing_id=0, incoming_window=10, outgoing_window=10), channel=1)
    attach = Attach(name="r", handle=0, role=True, source=Source(address="/queues/q"), target=Target())
    heard = peer.say(attach, channel=1)
    (detach,) = [each for each in heard if isinstance(each.body, Detach)]
    assert (detach.channel, detach.body.handle) == (0, first.number)
    assert detach.body.error.condition == "amqp:link:stolen"
    sender = peer.sender("r", "/queues/q")
    assert not bodies(sender.attached, Detach), "the other direction is another link's"
    attached = world.node.links.attached(peer.core.sessions[1].identity("r", True))
    assert attached is peer.core.sessions[1].links[0]


# -- counts of a sender


@pytest.mark.parametrize("counted", [0, 1])
def test_a_senders_flow_amid_a_delivery_of_many_frames_counts_it_once(counted: int) -> None:
    """Whether the sender has counted it by then is its own affair."""
    world = world_with("q")
    peer = Peer(world).enter()
    sender = peer.sender("s", "/queues/q")
    payload = message(b"x" * 100)
    for number in range(3):
        first = Transfer(handle=sender.number, delivery_id=number, delivery_tag=b"%d" % number, more=True)
        peer.say(first, payload=payload[:50])
        peer.say(peer.flow(sender.number, delivery_count=number + counted, link_credit=0))
        heard = peer.say(Transfer(handle=sender.number, more=False), payload=payload[50:])
        assert bodies(heard, Disposition)[0].state == Accepted()
    (flow,) = bodies(peer.say(peer.flow(sender.number, delivery_count=3, link_credit=0, echo=True)), Flow)
    assert (flow.delivery_count, flow.link_credit) == (3, 997)
    assert [link.credit for link in peer.core.sessions[0].links.values()] == [997]


def test_aborted_deliveries_count_once() -> None:
    world = world_with("q")
    peer = Peer(world).enter()
    sender = peer.sender("s", "/queues/q")
    whole = {"handle": sender.number, "delivery_id": 0, "delivery_tag": b"0"}
    peer.say(Transfer(**whole, more=True), payload=b"abc")
    peer.say(Transfer(handle=sender.number, aborted=True))
    peer.say(Transfer(handle=sender.number, delivery_id=1, delivery_tag=b"1", aborted=True))
    (flow,) = bodies(peer.say(peer.flow(sender.number, delivery_count=2, link_credit=0, echo=True)), Flow)
    assert (flow.delivery_count, flow.link_credit) == (2, 998)


@pytest.mark.parametrize("receives", [False, True])
def test_an_answer_that_does_not_fit_leaves_a_suspended_link_where_it_is(receives: bool) -> None:
    world = world_with("q")
    peer = small(world)
    source = Source(address="/queues/q" if receives else None, expiry_policy=Symbol("connection-close"), timeout=60)
    target = Target(address=None if receives else "/queues/q", expiry_policy=Symbol("connection-close"), timeout=60)

    def attach(**more: Any) -> list[Any]:
        fields = {"source": source, "target": target, "initial_delivery_count": None if receives else 0}
        return peer.say(Attach(name="l", handle=5, role=receives, **(fields | more)))

    assert not bodies(attach(), Detach)
    peer.say(Detach(handle=5, closed=False))
    assert len(world.node.links) == 1
    other = {"target": Target(address="t" * 480)} if receives else {"source": Source(address="s" * 480)}
    (detach,) = bodies(attach(unsettled={}, **other), Detach)
    assert detach.error.condition == "amqp:frame-size-too-small"
    peer.say(Detach(handle=5, closed=True))
    assert (len(world.node.links), world.node.links.handles) == (1, 0)
    assert not bodies(attach(unsettled={}), Detach), "it goes on"
    assert (len(world.node.links), world.node.links.handles) == (0, 1)
    assert peer.largest <= 512
