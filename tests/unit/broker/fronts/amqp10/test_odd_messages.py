"""Messages of AMQP 1.0 that other rooms of the broker once read wrongly."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.content.formats import BASIC, SECTIONS, format_of, translate
from clusterbroker.broker.wire.amqp091.fields import STORED_LIMITS
from clusterbroker.broker.wire.amqp10.performatives import (
    Accepted,
    Coordinator,
    Declare,
    Declared,
    Disposition,
    Properties,
    Rejected,
)
from clusterbroker.broker.wire.amqp10.types import Described, Symbol, encode
from clusterbroker.broker.wire.numbers import UInt64
from tests.support.amqp10 import message
from tests.unit.broker.fronts.amqp091.harness import World
from tests.unit.broker.fronts.amqp10.harness import Peer, bodies, world_with


def outcome(heard: Any) -> Any:
    (disposition,) = bodies(heard, Disposition)
    return disposition.state


def test_a_message_with_very_many_properties_dies() -> None:
    """As many as the decoder takes: its letter has more, and is taken."""
    world = World()
    client = world.client()
    client.declare("grave")
    client.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="grave")
    peer = Peer(world).enter()
    much = {f"p{number}": number for number in range(1010)}
    raw = message(b"x", application=much)
    assert outcome(peer.sender("s", "/queues/q").transfer(raw)) == Accepted()
    link = peer.receiver("r", "/queues/q", credit=1)
    ((transfer, _),) = link.take()
    peer.say(Disposition(role=True, first=int(transfer.delivery_id or 0), settled=True, state=Rejected()))
    world.wait(100)
    assert not world.node.map.queue("/", "q").paused
    ((_, letter),) = peer.receiver("g", "/queues/grave", credit=1).take()
    assert letter.application == much
    assert Symbol("x-opt-deaths") in letter.annotations


def test_the_brokers_own_budget_is_a_bound_too() -> None:
    from clusterbroker.broker.wire.amqp10.sections import make_message

    payload = encode(Described(UInt64(0x72), {Symbol("x-a"): [None] * 5000}))
    assert make_message(b"\0\1q", payload, 0) is None
    assert make_message(b"\0\1q", payload, 0, own=True) is not None
    payload = encode(Described(UInt64(0x72), {Symbol("x-a"): [None] * (1 << 20)}))
    assert make_message(b"\0\1q", payload, 0, own=True) is None


@pytest.mark.parametrize("value", ["about x-exchange", Symbol("x-exchange"), ["x-routing-key"], {"x-exchange": "e"}])
def test_the_brokers_annotations_named_in_a_value_cost_nothing(value: Any) -> None:
    world = world_with("q")
    peer = Peer(world).enter()
    sections = encode(Described(UInt64(0x73), [b"\x01", None, None])) + encode(Described(UInt64(0x75), b"x"))
    written = b"\x00\x53\x73\xd0\x00\x00\x00\x0a\x00\x00\x00\x01\xb0\x00\x00\x00\x01i" + encode(
        Described(UInt64(0x75), b"x")
    )
    for bare in (sections, written):
        annotations = encode(Described(UInt64(0x72), {Symbol("x-about"): value}))
        peer.sender(f"s{len(bare)}", "/queues/q").transfer(annotations + bare)
    link = peer.receiver("r", "/queues/q", credit=2)
    found = [known for _, known in link.take()]
    assert [known.raw for known in found] == [sections, written], "the bare message, byte by byte"
    assert [known.annotations[Symbol("x-about")] for known in found] == [value, value]
    assert found[0].annotations[Symbol("x-exchange")] == ""


def test_an_annotation_of_the_brokers_own_is_its_own() -> None:
    world = world_with("q")
    peer = Peer(world).enter()
    peer.sender("s", "/queues/q").send(b"x", annotations={"x-exchange": "lie", "x-mine": 1})
    ((_, known),) = peer.receiver("r", "/queues/q", credit=1).take()
    assert known.annotations == {Symbol("x-exchange"): "", Symbol("x-routing-key"): "q", Symbol("x-mine"): 1}


@pytest.mark.parametrize("name", ["CC", "BCC", "x-producer", "x-seq", "x-death"])
@pytest.mark.parametrize("annotated", [False, True])
def test_a_property_with_the_name_of_a_header_that_routing_reads_is_a_property(name: str, annotated: bool) -> None:
    world = world_with("q", "other")
    peer = Peer(world).enter()
    annotations = {"x-cc": ["other"]} if annotated else None
    properties = Properties(user_id=b"guest")  # it is looked into
    heard = peer.sender("s", "/queues/q").send(
        b"x", application={name: "nothing"}, annotations=annotations, properties=properties
    )
    assert outcome(heard) == Accepted()
    assert world.queue("other").ready == annotated
    ((_, known),) = peer.receiver("r", "/queues/q", credit=1).take()
    assert known.application == {name: "nothing"}, "who reads AMQP 1.0 has it as it was sent"
    stored = world.client()
    peer.sender("t", "/queues/q").send(b"x", application={name: "nothing", "mine": 1})
    world.turn()
    (content,) = stored.consume("q")
    assert content.properties.headers == {"mine": 1}


def test_a_reserved_property_survives_a_death() -> None:
    world = World()
    client = world.client()
    client.declare("grave")
    client.declare("q", x_message_ttl=10, x_dead_letter_exchange="", x_dead_letter_routing_key="grave")
    peer = Peer(world).enter()
    peer.sender("s", "/queues/q").send(b"x", application={"CC": "mine"}, annotations={"x-cc": ["grave"]})
    world.wait(100)
    found = [known.application for _, known in peer.receiver("g", "/queues/grave", credit=9).take()]
    assert found == [{"CC": "mine"}, {"CC": "mine"}]


def test_translations_of_reserved_names_are_empty() -> None:
    from clusterbroker.broker.wire.amqp10.sections import make_message

    taken = make_message(b"\0\1q", message(b"x", application={"BCC": "a", "n": 1}), 0)
    assert taken is not None
    basic = translate(taken, BASIC)
    assert format_of(BASIC).properties(basic.header, STORED_LIMITS).headers == {"n": 1}
    assert translate(basic, SECTIONS).format == SECTIONS


@pytest.mark.parametrize("descriptor", [UInt64(0x77), Symbol("amqp:amqp-value:*")])
def test_a_coordinator_knows_its_section_by_symbol(descriptor: Any) -> None:
    world = world_with("q")
    peer = Peer(world).enter()
    sender = peer.sender("c", None)
    link = peer.handle()
    from clusterbroker.broker.wire.amqp10.performatives import Attach, Source

    peer.say(
        Attach(name="tx", handle=link, role=False, source=Source(), target=Coordinator(), initial_delivery_count=0)
    )
    sender.number = link
    declare = Declare().encoded()
    named = b"\0\xa3" + bytes((len("amqp:declare:list"),)) + b"amqp:declare:list\x45"
    for request in (declare, named):
        code = b"\0\x53\x77" if isinstance(descriptor, UInt64) else b"\0\xa3\x11amqp:amqp-value:*"
        assert isinstance(outcome(sender.transfer(code + request)), Declared)
