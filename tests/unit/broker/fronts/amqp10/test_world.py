"""What a connection of AMQP 1.0 does that needs a clock, a crowd or a node in trouble, and no socket."""

from __future__ import annotations

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
    Header,
    Open,
    SaslInit,
    SaslOutcome,
    Transfer,
)
from clusterbroker.cluster.wiring import commands as c
from tests.support.amqp10 import frame, message
from tests.unit.broker.fronts.amqp091.harness import World
from tests.unit.broker.fronts.amqp10.harness import BEGIN, Peer, bodies, world_with
from tests.unit.broker.node.node_cluster import Cluster


def test_a_message_goes_through() -> None:
    world = world_with("q")
    peer = Peer(world).enter()
    sender = peer.sender("s", "/queues/q")
    assert [type(each) for each in bodies(sender.attached, Attach) + bodies(sender.attached, Flow)] == [Attach, Flow]
    (told,) = bodies(sender.send(b"hello"), Disposition)
    assert told == Disposition(role=True, first=0, last=0, settled=True, state=Accepted())
    receiver = peer.receiver("r", "/queues/q", credit=5)
    ((transfer, got),) = receiver.take()
    assert (got.body, transfer.delivery_id, transfer.settled) == (b"hello", 0, False)
    peer.say(Disposition(role=True, first=0, settled=True, state=Accepted()))
    assert world.node.vhosts["/"].queues["q"].ring.unacked == 0


def test_time_to_live_never_grows() -> None:
    """3.2.1: a turn delivers with the time of its beginning, and may read messages after that."""
    world = world_with("q")
    peer = Peer(world).enter()
    peer.sender("s", "/queues/q").send(b"hello", header=Header(ttl=60_000))
    world.now_ms -= 5
    ((_, got),) = peer.receiver("r", "/queues/q", credit=1).take()
    assert got.header.ttl == 60_000


def test_too_many_transfers_end_the_session_and_no_other() -> None:
    """B45: in one read, so no window was opened meanwhile."""
    world = world_with("q")
    peer = Peer(world).enter()
    peer.say(BEGIN, channel=1)
    sender = peer.sender("s", "/queues/q")
    part = frame(0, Transfer(handle=sender.number, delivery_id=0, delivery_tag=b"t", more=True))
    heard = peer.raw(part * 2049)
    (end,) = bodies(heard, End)
    assert isinstance(end, End)
    assert isinstance(end.error, Error)
    assert end.error.condition == "amqp:session:window-violation"
    assert bodies(peer.say(peer.flow(echo=True), channel=1), Flow)


def test_silence_ends_the_connection() -> None:
    """O36"""
    world = World(heartbeat_s=10)
    peer = Peer(world).enter()
    world.wait(19_000)
    assert not bodies(peer.raw(b""), Close)
    world.wait(2_000)
    (close,) = bodies(peer.raw(b""), Close)
    assert isinstance(close, Close)
    assert isinstance(close.error, Error)
    assert close.error.condition == "amqp:resource-limit-exceeded"


def test_a_client_that_wants_to_hear_hears() -> None:
    """O35"""
    world = World()
    peer = Peer(world)
    peer.login()
    peer.raw(b"AMQP\0\1\0\0" + frame(0, Open(container_id="x", idle_time_out=4000)))
    world.wait(2_000)
    peer.raw(b"")
    assert peer.reader.empty_frames == 1


def test_who_never_opens_is_cut() -> None:
    world = World(handshake_timeout_s=5.0)
    peer = Peer(world)
    peer.login()
    world.wait(6_000)
    peer.raw(b"")
    assert peer.ended == "abort"


def test_the_anonymous_are_whom_the_settings_name() -> None:
    world = World(anonymous_user="guest")
    peer = Peer(world)
    heard = peer.raw(b"AMQP\0\1\0\0" + frame(0, Open(container_id="x")) + frame(0, BEGIN))
    assert [type(each.body) for each in heard] == [bytes, Open, Begin]
    assert world.node.clients[peer.core.id].user == "guest"


def test_who_may_come_from_this_machine_only() -> None:
    """S28"""
    world = World()
    peer = Peer(world, loopback=False)
    init = SaslInit(mechanism="PLAIN", initial_response=b"\0guest\0guest")
    heard = peer.raw(b"AMQP\3\1\0\0" + frame(0, init, kind=1))
    assert heard[-1].body == SaslOutcome(code=1)
    assert peer.ended == "flush"


def test_counts_wrap() -> None:
    """C74: a link that has seen 2^32 deliveries."""
    world = world_with("q")
    peer = Peer(world).enter()
    receiver = peer.receiver("r", "/queues/q")
    link = peer.core.sessions[0].links[receiver.number]
    link.drained = 2**32 - 1
    receiver.count = 2**32 - 1
    receiver.grant(2)
    sender = peer.sender("s", "/queues/q")
    for number in range(3):
        sender.send(b"%d" % number)
    assert receiver.bodies() == [b"0", b"1"]
    assert link.delivery_count == 1
    receiver.count = 1
    receiver.grant(1)
    assert receiver.bodies() == [b"2"]


def test_ids_wrap() -> None:
    world = world_with("q")
    peer = Peer(world).enter()
    peer.next_id = 2**32 - 1
    peer.say(peer.flow())
    sender = peer.sender("s", "/queues/q")
    burst = b"".join(
        frame(0, Transfer(handle=sender.number, delivery_id=number % 2**32, delivery_tag=b"%d" % number), message(b"x"))
        for number in range(2**32 - 2, 2**32 + 2)
    )
    told = bodies(peer.raw(burst), Disposition)
    covered = [one for each in told for one in ids(each)]  # type: ignore[arg-type]
    assert sorted(covered) == [0, 1, 2**32 - 2, 2**32 - 1]


def ids(disposition: Disposition) -> list[int]:
    last = disposition.first if disposition.last is None else disposition.last
    return [(disposition.first + place) % 2**32 for place in range((last - disposition.first) % 2**32 + 1)]


def test_a_slow_socket_stops_deliveries_and_loses_none() -> None:
    world = world_with("q")
    peer = Peer(world).enter()
    sender = peer.sender("s", "/queues/q")
    receiver = peer.receiver("r", "/queues/q")
    peer.core.paused(True, world.now_ms)
    for number in range(5):
        world.client().publish("", "q", b"%d" % number)
    receiver.grant(10)
    peer.core.paused(False, world.now_ms)
    assert receiver.bodies() == [b"0", b"1", b"2", b"3", b"4"]
    assert sender.number == 0


def test_the_window_cuts_a_delivery() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    client.publish("", "q", bytes(5000))
    client.publish("", "q", b"next")
    peer = Peer(world)
    peer.login()
    peer.raw(b"AMQP\0\1\0\0" + frame(0, Open(container_id="x", max_frame_size=1024)))
    peer.say(Begin(next_outgoing_id=0, incoming_window=3, outgoing_window=10))
    receiver = peer.receiver("r", "/queues/q")
    receiver.grant(5, incoming_window=3)
    assert len(receiver.heard) == 3
    assert receiver.heard[-1].body.more
    peer.say(peer.flow(next_incoming_id=3, incoming_window=2))
    assert len(receiver.heard) == 5
    peer.say(peer.flow(next_incoming_id=5, incoming_window=50))
    assert receiver.bodies() == [bytes(5000), b"next"]


def test_rights_that_end_end_links() -> None:
    world = world_with("q")
    peer = Peer(world).enter("eve")
    peer.receiver("r", "/queues/q")
    peer.sender("s", "/queues/q")
    world.wiring.propose(c.SetPermission(user="eve", vhost="/", configure=".*", write="", read=""))
    detached = bodies(peer.raw(b""), Detach)
    assert [each.error.condition for each in detached] == ["amqp:unauthorized-access"] * 2  # type: ignore[attr-defined]


def test_over_the_end_of_a_queues_owner() -> None:
    """C78, K178: no attach is lost, credit stands, and what is unsettled comes again from the next owner or is kept."""
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare("q")
    owner = cluster.queue("q").owner
    one, other = (name for name in "abc" if name != owner)
    sender = Peer(cluster[one]).enter().sender("s", "/queues/q")
    peer = Peer(cluster[other]).enter()
    receiver = peer.receiver("r", "/queues/q", credit=10)
    assert bodies(sender.send(b"before"), Disposition)
    assert receiver.bodies() == [b"before"]
    cluster.kill(owner)
    assert bodies(sender.send(b"after"), Disposition)
    assert receiver.bodies() == [b"after"]
    peer.say(Disposition(role=True, first=0, last=1, settled=True, state=Accepted()))
    peer.raw(b"")
    assert peer.receiver("again", "/queues/q", credit=5).bodies() == []
