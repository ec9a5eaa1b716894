"""The connection's core: bytes and time in, events and bytes out; the peer's side is written here frame by frame."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.amqp10.client.core import Closed, Connection, Event, Opened, Options, Sasl
from clusterbroker.amqp10.client.errors import (
    AuthenticationFailed,
    ConnectionClosed,
    ConnectionLost,
    LinkDetached,
    ProtocolError,
)
from clusterbroker.amqp10.client.links import (
    Attached,
    Decided,
    Delivered,
    Detached,
    Drained,
    ReceiverLink,
    SenderLink,
    Terms,
)
from clusterbroker.amqp10.client.session import WINDOW, Begun, Ended, Session
from clusterbroker.broker.wire.amqp10.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Composite,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Source,
    Target,
    Transfer,
)
from tests.support.amqp10 import HEADER, SASL_HEADER, Frame, Reader, frame


class Talk:
    """A core and the frames that it says."""

    def __init__(self, **options: Any) -> None:
        self.now = 0.0
        self.core = Connection(Options("c", **options))
        self.core.start(self.now)
        self.reader = Reader()
        self.session: Session

    def said(self) -> list[Frame]:
        return self.reader.feed(self.core.take_bytes())

    def bodies(self) -> list[Any]:
        return [each.body for each in self.said()]

    def hear(self, *bodies: Composite | bytes, payload: bytes = b"", kind: int = 0) -> list[Event]:
        data = b"".join(body if isinstance(body, bytes) else frame(0, body, payload, kind) for body in bodies)
        return self.core.receive(data, self.now)

    def begin(self, frame_max: int = 512, window: int = 100) -> Session:
        self.hear(HEADER, Open("peer", max_frame_size=frame_max))
        self.session = self.core.session()
        self.hear(Begin(remote_channel=0, next_outgoing_id=7, incoming_window=window, outgoing_window=9))
        self.said()
        return self.session

    def attach(self, link: SenderLink | ReceiverLink) -> Attach:
        self.session.attach(link)
        asked: Attach = self.bodies()[-1]
        self.hear(
            Attach(asked.name, 0, not asked.role, source=asked.source, target=asked.target,
                   initial_delivery_count=5 if asked.role else None)
        )  # fmt: skip
        return asked


def terms(**fields: Any) -> Terms:
    return Terms("n", Source(address="q"), Target(address="q"), **fields)


def credit(count: int, handle: int = 0, window: int = 100, **fields: Any) -> Flow:
    return Flow(
        next_incoming_id=0, incoming_window=window, next_outgoing_id=7, outgoing_window=9, handle=handle,
        delivery_count=0, link_credit=count, **fields,
    )  # fmt: skip


def test_sasl_comes_first_then_open() -> None:
    talk = Talk(sasl=Sasl.plain("u", "p"), hostname="vhost:v")
    assert talk.bodies() == [SASL_HEADER]
    talk.hear(SASL_HEADER)
    talk.hear(SaslMechanisms(("EXTERNAL", "PLAIN")), kind=1)
    assert talk.bodies() == [SaslInit("PLAIN", b"\0u\0p", "vhost:v")]
    talk.hear(SaslOutcome(0), kind=1)
    assert talk.bodies() == [HEADER]
    talk.hear(HEADER)
    (opened,) = talk.bodies()
    assert (opened.container_id, opened.hostname, opened.idle_time_out) == ("c", "vhost:v", 30_000)
    assert talk.hear(Open("peer")) == [Opened(Open("peer"))]


@pytest.mark.parametrize(
    "heard, error, text",
    [
        ((SASL_HEADER, frame(0, SaslMechanisms(("EXTERNAL",)), kind=1)), AuthenticationFailed, "offers EXTERNAL"),
        (
            (SASL_HEADER, frame(0, SaslMechanisms(("PLAIN",)), kind=1), frame(0, SaslOutcome(1), kind=1)),
            AuthenticationFailed,
            "SASL code 1",
        ),
        ((b"AMQP\x00\x00\x09\x01",), ProtocolError, "not version 1.0"),
        ((SASL_HEADER, frame(0, SaslOutcome(0), kind=1)), ProtocolError, "no place"),
        ((b"HTTP/1.1 400 Bad",), ProtocolError, "not one of AMQP 1.0"),
    ],
)
def test_a_handshake_that_fails_says_why(heard: tuple[bytes, ...], error: type[Exception], text: str) -> None:
    talk = Talk(sasl=Sasl.plain("u", "p"))
    (closed,) = talk.hear(*heard)
    assert isinstance(closed, Closed)
    assert isinstance(closed.error, error)
    assert text in str(closed.error)
    assert talk.core.is_over


def test_heartbeats_follow_the_peers_time_out() -> None:
    talk = Talk(idle_time_out=10.0)
    talk.hear(HEADER, Open("peer", idle_time_out=4000))
    talk.said()
    assert talk.core.deadline == 2.0
    talk.core.tick(1.9)
    assert talk.core.take_bytes() == b""
    talk.core.tick(2.0)
    assert talk.core.take_bytes() == b"\0\0\0\x08\x02\0\0\0"
    assert talk.core.deadline == 4.0
    talk.now = 3.0
    talk.hear(b"\0\0\0\x08\x02\0\0\0")
    assert talk.core.tick(12.9) == []
    (closed,) = talk.core.tick(13.0)
    assert isinstance(closed, Closed)
    assert isinstance(closed.error, ConnectionLost)
    assert "silent for 10 s" in str(closed.error)


def test_a_close_is_answered_and_says_its_reason() -> None:
    talk = Talk()
    talk.begin()
    (closed,) = talk.hear(Close(Error("amqp:connection:forced", "going down")))
    assert isinstance(closed, Closed)
    assert isinstance(closed.error, ConnectionClosed)
    assert closed.error.may_retry
    assert closed.error.fault == "peer"
    assert talk.bodies() == [Close()]
    talk = Talk()
    talk.begin()
    (closed,) = talk.hear(Close(Error("amqp:not-allowed", "never again")))
    assert isinstance(closed, Closed)
    assert closed.error is not None
    assert not closed.error.may_retry
    talk = Talk()
    talk.begin()
    (closed,) = talk.hear(Close())
    assert isinstance(closed, Closed)
    assert closed.error is not None
    assert closed.error.may_retry
    talk = Talk()
    talk.begin()
    talk.core.close()
    assert talk.bodies() == [Close()]
    assert talk.hear(Close()) == [Closed(None)]


def test_bytes_may_come_one_by_one() -> None:
    talk = Talk()
    events: list[Event] = []
    for byte in HEADER + frame(0, Open("peer")):
        events += talk.hear(bytes((byte,)))
    assert events == [Opened(Open("peer"))]


def test_a_frame_above_our_maximum_ends_the_connection() -> None:
    talk = Talk(frame_max=512)
    talk.begin()
    (closed,) = talk.hear(b"\0\0\x02\x01\x02\0\0\0")
    assert isinstance(closed, Closed)
    (said,) = talk.bodies()
    assert said.error.condition == "amqp:connection:framing-error"


def test_a_message_goes_in_frames_that_the_peer_takes_within_credit_and_window() -> None:
    talk = Talk()
    talk.begin(frame_max=512, window=3)
    link = SenderLink(terms())
    talk.attach(link)
    delivery = link.send(bytes(range(256)) * 6, b"t1")
    link.send(b"second", b"t2")
    talk.session.pump()
    assert talk.said() == [], "no credit"
    talk.hear(credit(1, window=3))
    first = talk.said()
    assert [each.body.more for each in first] == [True, True, True], "the window is used up"
    talk.hear(credit(2, window=103))
    frames = first + talk.said()
    parts = [each for each in frames if each.body.delivery_tag != b"t2"]
    assert b"".join(each.payload for each in parts[:-1]) + parts[-1].payload == bytes(range(256)) * 6
    assert all(len(frame(0, each.body, each.payload)) <= 512 for each in frames)
    assert frames[-1].body.delivery_tag == b"t2"
    assert (link.credit, link.delivery_count) == (0, 2)
    assert talk.hear(Disposition(True, 0, 1, settled=True, state=Accepted()))[0] == Decided(link, delivery, True)
    assert not link.unsettled


def test_outcomes_of_neighbours_go_in_one_frame() -> None:
    talk = Talk()
    talk.begin()
    link = ReceiverLink(terms())
    talk.attach(link)
    talk.session.grant(link, 10)
    (flow,) = talk.bodies()
    assert (flow.link_credit, flow.delivery_count, flow.next_incoming_id) == (10, 5, 7)
    deliveries = []
    for number in range(4):
        (event,) = talk.hear(Transfer(0, number, b"%d" % number, 0), payload=b"x")
        assert isinstance(event, Delivered)
        deliveries.append(event.delivery)
    for delivery in deliveries:
        assert link.dispose(delivery, Accepted(), True)
        talk.session.dispose(link, delivery, Accepted(), True)
    assert talk.bodies() == [Disposition(True, 0, 3, settled=True, state=Accepted())]
    assert link.credit == 6


def test_a_delivery_in_parts_is_one_and_an_aborted_one_is_none() -> None:
    talk = Talk()
    talk.begin()
    link = ReceiverLink(terms())
    talk.attach(link)
    assert talk.hear(Transfer(0, 0, b"a", 0, more=True), payload=b"one ") == []
    assert talk.hear(Transfer(0, more=True), payload=b"two ") == []
    (event,) = talk.hear(Transfer(0), payload=b"three")
    assert isinstance(event, Delivered)
    assert event.delivery.payload == b"one two three"
    talk.hear(Transfer(0, 1, b"b", 0, more=True), payload=b"never")
    assert talk.hear(Transfer(0, aborted=True)) == []
    assert list(link.unsettled) == [b"a"]


def test_the_peer_may_go_on_when_half_of_the_window_is_used() -> None:
    talk = Talk()
    talk.begin()
    link = ReceiverLink(terms())
    talk.attach(link)
    for number in range(WINDOW // 2):
        assert talk.said() == []
        talk.hear(Transfer(0, number, b"%d" % number, 0, settled=True), payload=b"x")
    (flow,) = talk.bodies()
    assert (flow.handle, flow.incoming_window, flow.next_incoming_id) == (None, WINDOW, 7 + WINDOW // 2)


def test_a_drain_ends_with_the_peers_flow() -> None:
    talk = Talk()
    talk.begin()
    link = ReceiverLink(terms())
    talk.attach(link)
    talk.session.grant(link, 3, drain=True)
    talk.hear(Transfer(0, 0, b"a", 0), payload=b"x")
    flow = Flow(
        next_incoming_id=0, incoming_window=9, next_outgoing_id=8, outgoing_window=9, handle=0, delivery_count=8,
        link_credit=0, drain=True,
    )  # fmt: skip
    assert talk.hear(flow) == [Drained(link)]
    assert (link.credit, link.delivery_count) == (0, 8)


def test_a_sender_that_is_drained_gives_up_its_credit() -> None:
    talk = Talk()
    talk.begin()
    link = SenderLink(terms())
    talk.attach(link)
    talk.hear(credit(4, drain=True))
    (flow,) = talk.bodies()
    assert (flow.delivery_count, flow.link_credit, flow.drain) == (4, 0, True)


def test_a_refused_link_says_why_and_the_session_lives() -> None:
    talk = Talk()
    talk.begin()
    link = SenderLink(terms())
    talk.session.attach(link)
    assert talk.hear(Attach("n", 0, True, source=Source(), target=None)) == []
    (event,) = talk.hear(Detach(0, True, Error("amqp:not-found", "no queue")))
    assert isinstance(event, Detached)
    assert isinstance(event.error, LinkDetached)
    assert event.error.condition == "amqp:not-found"
    assert talk.bodies()[-1] == Detach(0, True)
    assert not talk.session.links


def test_the_end_of_a_session_is_answered() -> None:
    talk = Talk()
    talk.begin()
    (event,) = talk.hear(End(Error("amqp:session:window-violation", "too much")))
    assert isinstance(event, Ended)
    assert event.error is not None
    assert event.error.condition == "amqp:session:window-violation"
    assert talk.bodies() == [End()]


def test_a_link_of_the_peers_own_is_refused() -> None:
    talk = Talk()
    talk.begin()
    talk.hear(Attach("theirs", 4, False, initial_delivery_count=0))
    attach, detach = talk.bodies()
    assert (attach.name, attach.role, detach.closed) == ("theirs", True, True)


def test_an_attach_after_a_loss_says_what_is_in_doubt() -> None:
    talk = Talk()
    talk.begin()
    link = SenderLink(terms(recoverable=True, rcv_settle_mode=1))
    assert talk.attach(link).unsettled is None
    talk.hear(credit(2))
    for tag in (b"1", b"2", b"3"):
        link.send(b"m" + tag, tag)
    talk.session.pump()
    talk.said()
    talk.core.lost("cut")
    talk.core = Connection(Options("c"))
    talk.core.start(0.0)
    talk.reader = Reader()
    talk.begin()
    talk.session.attach(link)
    (asked,) = talk.bodies()
    assert asked.unsettled == {b"1": None, b"2": None}, "what was never sent is in no doubt"
    attached, *events = talk.hear(
        Attach("n", 0, True, source=Source(), target=Target(), unsettled={b"1": Accepted()}), credit(9)
    )
    assert isinstance(attached, Attached)
    assert [event.delivery.tag for event in events if isinstance(event, Decided)] == [b"1"]
    frames = talk.said()
    assert [(f.body.delivery_tag, f.body.resume, f.body.settled, f.payload) for f in frames] == [
        (b"1", True, True, b""),
        (b"2", False, False, b"m2"),
        (b"3", False, False, b"m3"),
    ]


def test_begun_is_told_once() -> None:
    talk = Talk()
    talk.hear(HEADER, Open("peer"))
    session = talk.core.session()
    assert talk.hear(Begin(remote_channel=0, next_outgoing_id=0, incoming_window=1, outgoing_window=1)) == [
        Begun(session)
    ]
