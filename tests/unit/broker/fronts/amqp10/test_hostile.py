"""What hostile or careless clients of AMQP 1.0 say, each once found to do harm."""

from __future__ import annotations

from clusterbroker.broker.wire.amqp10.performatives import (
    Accepted,
    Attach,
    Coordinator,
    Declare,
    Declared,
    Detach,
    Discharge,
    Disposition,
    End,
    Flow,
    Open,
    Source,
    TransactionalState,
    Transfer,
)
from clusterbroker.broker.wire.amqp10.types import Described, encode
from clusterbroker.broker.wire.numbers import UInt64
from tests.support.amqp10 import frame, message
from tests.unit.broker.fronts.amqp091.harness import World
from tests.unit.broker.fronts.amqp10.harness import BEGIN, Peer, bodies, world_with


def ready(world: World, queue: str = "q") -> int:
    count: int = world.node.vhosts["/"].queues[queue].ring.ready
    return count


def test_a_disposition_of_an_id_that_was_never_sent_settles_nothing() -> None:
    world = world_with("q")
    peer = Peer(world).enter()
    sender = peer.sender("s", "/queues/q")
    for number in range(3):
        sender.send(b"%d" % number)
    receiver = peer.receiver("r", "/queues/q", credit=3)
    assert receiver.bodies() == [b"0", b"1", b"2"]
    peer.say(Disposition(role=True, first=50, settled=True, state=Accepted()))
    assert world.node.vhosts["/"].queues["q"].ring.unacked == 3
    peer.say(Disposition(role=True, first=1, last=60, settled=True, state=Accepted()))
    assert world.node.vhosts["/"].queues["q"].ring.unacked == 1


def test_a_state_that_is_no_outcome_ends_the_session_and_loses_nothing() -> None:
    world = world_with("q")
    peer = Peer(world).enter()
    peer.sender("s", "/queues/q").send(b"kept")
    for state in ("text", Described(UInt64(0x99), [])):
        peer.say(BEGIN, channel=1)
        receiver = peer.handle()
        attach = Attach(name="r", handle=receiver, role=True, source=Source(address="/queues/q"))
        peer.say(attach, channel=1)
        heard = peer.say(peer.flow(receiver, link_credit=1), channel=1)
        assert len(bodies(heard, Transfer)) == 1
        heard = peer.say(Disposition(role=True, first=0, settled=True, state=state), channel=1)
        (end,) = bodies(heard, End)
        assert end.error.condition == "amqp:invalid-field"  # type: ignore[attr-defined]
        peer.say(End(), channel=1)
        assert ready(world) == 1, "it has returned to its queue"


def test_frames_of_a_link_that_was_detached_count_in_the_window() -> None:
    world = world_with("q")
    peer = Peer(world).enter()
    sender = peer.sender("s", "/queues/q")
    bad = frame(0, Transfer(handle=sender.number, delivery_id=0, delivery_tag=b"b"), b"no message")
    good = b"".join(
        frame(0, Transfer(handle=sender.number, delivery_id=number, delivery_tag=b"%d" % number), message(b"x"))
        for number in range(1, 400)
    )
    assert bodies(peer.raw(bad + good), Detach)
    (flow,) = bodies(peer.say(peer.flow(echo=True)), Flow)
    assert flow.incoming_window == 2048 - 400  # type: ignore[attr-defined]


def test_a_posting_of_many_frames_is_its_transactions() -> None:
    """Only its first frame has the state; others come with it in one read, or later."""
    world = world_with("q")
    peer = Peer(world).enter()
    handle = peer.handle()
    attach = Attach(
        name="c", handle=handle, role=False, source=Source(), target=Coordinator(), initial_delivery_count=0
    )
    peer.say(attach)

    def ask(request: Declare | Discharge) -> object:
        number, peer.next_id = peer.next_id, peer.next_id + 1
        body = b"\0" + encode(UInt64(0x77)) + request.encoded()
        transfer = Transfer(handle=handle, delivery_id=number, delivery_tag=b"c%d" % number)
        (told,) = bodies(peer.say(transfer, payload=body), Disposition)
        return told.state  # type: ignore[attr-defined]

    declared = ask(Declare())
    assert isinstance(declared, Declared)
    sender = peer.sender("s", "/queues/q")
    whole = message(b"0123456789")
    for at_once in (True, False):
        number, peer.next_id = peer.next_id, peer.next_id + 1
        state = TransactionalState(txn_id=declared.txn_id)
        first = Transfer(handle=sender.number, delivery_id=number, delivery_tag=b"t%d" % number, more=True, state=state)
        between = Transfer(handle=sender.number, delivery_id=number, delivery_tag=b"t%d" % number, more=True)
        last = Transfer(handle=sender.number)
        parts = [frame(0, first, whole[:4]), frame(0, between, whole[4:7]), frame(0, last, whole[7:])]
        if at_once:
            peer.raw(b"".join(parts))
        else:
            for part in parts:
                peer.raw(part)
        assert ready(world) == 0, "not before the commit"
    sender.send(b"outside")
    assert ready(world) == 1
    assert ask(Discharge(txn_id=declared.txn_id)) == Accepted()
    receiver = peer.receiver("r", "/queues/q", credit=5)
    assert receiver.bodies() == [b"outside", b"0123456789", b"0123456789"]


def test_a_drain_behind_a_window_comes_to_its_end() -> None:
    world = world_with("q")
    world.client().publish("", "q", bytes(5000))
    peer = Peer(world)
    peer.login()
    peer.raw(b"AMQP\0\1\0\0" + frame(0, Open(container_id="x", max_frame_size=1024)))
    peer.say(BEGIN)
    receiver = peer.receiver("r", "/queues/q")
    receiver.grant(5, incoming_window=2, drain=True)
    heard = peer.say(peer.flow(next_incoming_id=2, incoming_window=50))
    (flow,) = [each for each in bodies(heard, Flow) if each.handle == receiver.number]  # type: ignore[attr-defined]
    assert (flow.link_credit, flow.delivery_count) == (0, 5)  # type: ignore[attr-defined]
    assert receiver.bodies() == [bytes(5000)]


def test_an_alarm_takes_back_credit_and_a_new_connection_gets_none() -> None:
    world = world_with("q")
    peer = Peer(world).enter()
    peer.sender("s", "/queues/q").send(b"x")
    world.node.set_alarm("disk", True)
    assert [flow.link_credit for flow in bodies(peer.raw(b""), Flow)] == [0]  # type: ignore[attr-defined]
    newcomer = Peer(world).enter()
    assert not bodies(newcomer.sender("n", "/queues/q").attached, Flow)
    world.node.set_alarm("disk", False)
    assert [flow.link_credit for flow in bodies(peer.raw(b""), Flow)] == [1000]  # type: ignore[attr-defined]
    assert [flow.link_credit for flow in bodies(newcomer.raw(b""), Flow)] == [1000]  # type: ignore[attr-defined]


def test_a_drain_of_a_consumer_that_waits_for_another_gives_up_its_credit() -> None:
    world = World()
    world.client().declare("q", arguments={"x-single-active-consumer": True})
    peer = Peer(world).enter()
    peer.receiver("active", "/queues/q")
    world.client().publish("", "q", b"x")
    passive = peer.receiver("passive", "/queues/q")
    heard = passive.grant(3, drain=True)
    (flow,) = [each for each in bodies(heard, Flow) if each.handle == passive.number]  # type: ignore[attr-defined]
    assert (flow.link_credit, flow.delivery_count) == (0, 3)  # type: ignore[attr-defined]
    assert not world.node.busy
