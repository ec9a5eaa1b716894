"""Messages between the two protocols, and addresses (rules M, P)."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from clusterbroker.broker.wire.amqp10.performatives import Accepted, Error, Header, Properties, Rejected, Released
from clusterbroker.broker.wire.amqp10.types import Described, Milliseconds, Symbol, Uuid, encode
from clusterbroker.broker.wire.numbers import UInt64
from tests.support.amqp10 import message, read

from ..marks import rule
from ..wire import Channel
from .wire import Session

Name = Callable[[str], str]
FOOTER = encode(Described(UInt64(0x78), {Symbol("x-end"): 1}))


def through(session: Session, queue: str, payload: bytes) -> bytes:
    """What a receiver gets of a message."""
    sender = session.sender(f"/queues/{queue}")
    number = sender.transfer(payload)
    assert sender.outcome(number) == Accepted()
    receiver = session.receiver(f"/queues/{queue}", credit=1)
    found = receiver.frames()
    receiver.dispose(int(found.body.delivery_id), state=Accepted())
    receiver.detach()
    return found.payload


@rule("M111", "M112", "T1", "T3")
def test_the_bare_message_and_its_footer_stay(session: Session, queue: str) -> None:
    wide = b"\0\x80" + (0x73).to_bytes(8, "big") + b"\xd0\0\0\0\x09\0\0\0\x01\xb1\0\0\0\0"
    body = b"\0\x53\x75\xb0\0\0\0\x02hi" + b"\0\x53\x75\xa0\x01!"
    application = encode(Described(UInt64(0x74), {"k": [1, "x", None, {"deep": 1.5}]}))
    assert read(through(session, queue, wide + application + body + FOOTER)).raw == wide + application + body + FOOTER


@rule("M111")
def test_a_message_without_a_body_stays_so(session: Session, queue: str, channel: Channel) -> None:
    """As proton sends one whose body is None."""
    bare = Properties(subject="empty").encoded()
    assert read(through(session, queue, Header().encoded() + bare)).raw == bare
    assert session.sender(f"/queues/{queue}").send(payload=bare) == Accepted()
    assert channel.basic_get(queue, no_ack=True).body == b""


@rule("M113")
def test_delivery_annotations_are_not_passed_on(session: Session, queue: str) -> None:
    annotations = encode(Described(UInt64(0x71), {Symbol("x-secret"): "for one hop"}))
    got = through(session, queue, Header(durable=True).encoded() + annotations + message(b"x"))
    assert b"x-secret" not in got
    assert read(got).header.durable


@rule("M114")
def test_a_message_without_a_header(session: Session, queue: str) -> None:
    header = read(through(session, queue, message(b"x"))).header
    assert (header.durable, header.priority, header.ttl) == (False, 4, None)


@rule("M115")
def test_ttl(session: Session, queue: str) -> None:
    assert read(through(session, queue, message(b"x", header=Header(ttl=60_000)))).header.ttl in range(1, 60_001)
    sender = session.sender(f"/queues/{queue}")
    assert sender.send(b"soon over", header=Header(ttl=1)) == Accepted()
    time.sleep(0.005)  # what is asked for is that time passes
    assert sender.send(b"lasting") == Accepted()
    assert session.receiver(f"/queues/{queue}", credit=1).bodies(1) == [b"lasting"]


@rule("M117", "M124")
@pytest.mark.parametrize(
    "sections",
    [
        encode(Described(UInt64(0x77), {"a": [1, 2]})),
        encode(Described(UInt64(0x76), [1])) + encode(Described(UInt64(0x76), ["two"])),
    ],
)
def test_values_and_sequences(session: Session, queue: str, channel: Channel, sections: bytes) -> None:
    assert read(through(session, queue, message(sections=sections))).raw == sections
    session.sender(f"/queues/{queue}").send(sections=sections)
    got = channel.basic_get(queue)
    assert got.properties["type"] == "amqp-1.0"
    assert got.body == sections
    channel.basic_publish("", queue, got.body, type="amqp-1.0")
    assert session.receiver(f"/queues/{queue}", credit=1).delivery().message.raw == sections


@rule("M118")
@pytest.mark.parametrize(
    "payload",
    [
        Header().encoded() * 2 + message(b"x"),
        Properties().encoded() + Header().encoded() + message(b"x"),
        message(b"x") + Properties().encoded(),
        message(b"x") + encode(Described(UInt64(0x77), 1)),
    ],
)
def test_sections_twice_or_out_of_order(session: Session, queue: str, payload: bytes) -> None:
    sender = session.sender(f"/queues/{queue}")
    with sender.detaches("amqp:decode-error"):
        sender.transfer(payload)


@rule("M117")
@pytest.mark.parametrize(
    "payload", [Header(durable=True).encoded() + Properties(subject="only").encoded(), FOOTER, b""]
)
def test_a_message_without_a_body(session: Session, queue: str, channel: Channel, payload: bytes) -> None:
    """Proton sends such, for a body that is None."""
    assert read(through(session, queue, payload)).raw == payload.removeprefix(Header(durable=True).encoded())
    sender = session.sender(f"/queues/{queue}")
    assert sender.outcome(sender.transfer(payload)) == Accepted()
    got = channel.basic_get(queue)
    assert (got.body, got.properties.get("type")) == (b"", None)


PROPERTIES = Properties(
    message_id="m-1",
    user_id=b"guest",
    to="/queues/somewhere",
    subject="news",
    reply_to="/queues/answers",
    correlation_id="c-1",
    content_type="text/plain",
    content_encoding="utf-8",
    absolute_expiry_time=2_000_000_000_123,
    creation_time=1_700_000_000_456,
    group_id="group",
    group_sequence=7,
    reply_to_group_id="other",
)


@rule("M119")
def test_to_0_9_1_and_back(session: Session, channel: Channel, queue: str) -> None:
    application = {"text": "ü", "number": 5, "wide": 2**40, "flag": True, "real": 1.5, "bytes": b"\0\1", "none": None}
    sender = session.sender(f"/queues/{queue}")
    header = Header(durable=True, priority=7, ttl=50_000)
    assert sender.send(b"body", header=header, properties=PROPERTIES, application=application) == Accepted()
    got = channel.basic_get(queue)
    assert got.body == b"body"
    properties = got.properties
    assert (properties["delivery_mode"], properties["priority"], properties["expiration"]) == (2, 7, "50000")
    assert (properties["message_id"], properties["correlation_id"], properties["reply_to"]) == ("m-1", "c-1", "answers")
    assert (properties["content_type"], properties["content_encoding"]) == ("text/plain", "utf-8")
    assert (properties["timestamp"], properties["app_id"], properties["user_id"]) == (1_700_000_000, "group", "guest")
    headers = properties["headers"]
    assert (headers["text"], headers["number"], headers["flag"], headers["bytes"]) == ("ü", 5, True, b"\0\1")
    assert headers["x-opt-subject"] == "news"
    channel.basic_publish("", queue, got.body, **properties)
    back = session.receiver(f"/queues/{queue}", credit=1).delivery().message
    assert back.body == b"body"
    assert back.properties == PROPERTIES
    assert back.application == application
    assert (back.header.durable, back.header.priority) == (True, 7)


@rule("M120")
@pytest.mark.parametrize("number", [Uuid(bytes(15) + b"\5"), UInt64(2**63 + 1), b"\0\xff", "text"])
def test_message_ids_of_all_types(session: Session, channel: Channel, queue: str, number: object) -> None:
    sender = session.sender(f"/queues/{queue}")
    known = Properties(message_id=number, correlation_id=number)
    assert sender.send(b"x", properties=known) == Accepted()
    got = channel.basic_get(queue)
    channel.basic_publish("", queue, got.body, **got.properties)
    back = session.receiver(f"/queues/{queue}", credit=1).delivery().message.properties
    assert (back.message_id, back.correlation_id) == (number, number)
    assert type(back.message_id) is type(number)


@rule("M119")
def test_from_0_9_1(session: Session, channel: Channel, queue: str) -> None:
    channel.basic_publish(
        "", queue, b"body", delivery_mode=2, headers={"k": "v", "n": 3, "x-own": "a", "list": [1]}, timestamp=5,
        message_id="m", content_type="text/plain", type="kind", app_id="app",
    )  # fmt: skip
    got = session.receiver(f"/queues/{queue}", credit=1).delivery().message
    assert got.body == b"body"
    assert got.header.durable
    assert (got.properties.message_id, got.properties.content_type, got.properties.group_id) == (
        "m",
        "text/plain",
        "app",
    )
    assert got.properties.creation_time == Milliseconds(5000)
    assert got.application == {"k": "v", "n": 3}
    assert got.annotations["x-own"] == "a"
    assert got.annotations["x-basic-type"] == "kind"
    assert (got.annotations["x-exchange"], got.annotations["x-routing-key"]) == ("", queue)


@rule("M121")
def test_x_cc(session: Session, queue: str, channel: Channel, name: Name) -> None:
    other = name("q")
    channel.queue_declare(other, durable=True)
    sender = session.sender(f"/queues/{queue}")
    assert sender.send(b"x", annotations={"x-cc": [other]}) == Accepted()
    assert session.receiver(f"/queues/{other}", credit=1).bodies(1) == [b"x"]
    assert session.receiver(f"/queues/{queue}", credit=1).bodies(1) == [b"x"]


@rule("M122")
def test_a_headers_exchange_sees_application_properties(
    session: Session, queue: str, channel: Channel, name: Name
) -> None:
    exchange = name("x")
    channel.exchange_declare(exchange, "headers")
    channel.queue_bind(queue, exchange, "", arguments={"x-match": "all", "color": "red"})
    sender = session.sender(f"/exchanges/{exchange}")
    assert sender.send(b"no", application={"color": "blue"}) == Released()
    assert sender.send(b"yes", application={"color": "red"}) == Accepted()
    assert session.receiver(f"/queues/{queue}", credit=1).bodies(1) == [b"yes"]


@rule("M123")
def test_deaths_over_both_protocols(session: Session, channel: Channel, name: Name) -> None:
    queue, dead = name("q"), name("dead")
    channel.queue_declare(dead, durable=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead, "x-message-ttl": 1}
    channel.queue_declare(queue, durable=True, arguments=arguments)
    session.sender(f"/queues/{queue}").send(b"of 1.0", properties=Properties(subject="s"))
    letter = session.receiver(f"/queues/{dead}", credit=1).delivery()
    assert letter.message.annotations["x-opt-deaths"][0]["reason"] == "expired"
    assert letter.message.properties.subject == "s"
    channel.basic_publish("", queue, b"of 0-9-1")
    receiver = session.receiver(f"/queues/{dead}", credit=1)
    assert receiver.delivery().message.annotations["x-opt-deaths"][0]["queue"] == queue


# -- addresses


@rule("P125")
def test_addresses_v2(session: Session, channel: Channel, name: Name) -> None:
    queue, exchange = name("q /%ü"), name("x /%")
    channel.queue_declare(queue, durable=True)
    channel.exchange_declare(exchange, "topic")
    channel.queue_bind(queue, exchange, "a/b.ü")
    channel.queue_bind(queue, exchange, "")
    quoted = "".join(f"%{octet:02X}" for octet in queue.encode())
    quoted_exchange = "".join(f"%{octet:02x}" for octet in exchange.encode())
    for address in (f"/queues/{quoted}", f"/exchanges/{quoted_exchange}/a%2Fb.%C3%BC", f"/exchanges/{quoted_exchange}"):
        assert session.sender(address).send(address.encode()) == Accepted(), address
    assert len(session.receiver(f"/queues/{quoted}", credit=3).bodies(3)) == 3


@rule("P126")
@pytest.mark.parametrize(
    "address", ["/queues/%", "/queues/%4", "/queues/%zz", "/queues/a/b", "/queues/", "/other/q", "/queues/%ff"]
)
def test_a_bad_address(session: Session, address: str) -> None:
    session.sender(address, waits=False).detached("amqp:invalid-field")
    session.receiver(address).detached("amqp:invalid-field")


@rule("P127")
def test_an_anonymous_target(session: Session, queue: str) -> None:
    assert "ANONYMOUS-RELAY" in session.peer.opened.offered_capabilities
    sender = session.sender(None)
    assert sender.send(b"x", properties=Properties(to=f"/queues/{queue}")) == Accepted()
    for properties, condition in (
        (None, "amqp:precondition-failed"),
        (Properties(to="/queues/conf-none"), "amqp:not-found"),
        (Properties(to="/queues/%"), "amqp:invalid-field"),
    ):
        outcome = sender.send(b"x", properties=properties)
        assert isinstance(outcome, Rejected)
        assert isinstance(outcome.error, Error)
        assert outcome.error.condition == condition
    assert session.receiver(f"/queues/{queue}", credit=1).bodies(1) == [b"x"]


@rule("P128")
def test_an_anonymous_target_and_a_settled_message_to_nowhere(session: Session) -> None:
    sender = session.sender(None)
    with sender.detaches("amqp:not-found"):
        sender.post(b"x", settled=True, properties=Properties(to="/queues/conf-none"))


@rule("P129", "P130")
def test_plain_names(session: Session, queue: str, channel: Channel, name: Name) -> None:
    exchange = name("x")
    channel.exchange_declare(exchange, "fanout")
    channel.queue_bind(queue, exchange, "")
    assert session.sender(queue).send(b"1") == Accepted()
    assert session.sender(exchange).send(b"2") == Accepted()
    assert session.sender(f"{exchange}::{queue}").send(b"3") == Accepted()
    assert session.receiver(f"anything::{queue}", credit=1).bodies(1) == [b"1"]
    assert session.receiver(queue, credit=2).bodies(2) == [b"2", b"3"]


@rule("E146")
def test_stream_offsets(session: Session, channel: Channel, name: Name) -> None:
    stream = name("stream")
    channel.queue_declare(stream, durable=True, arguments={"x-queue-type": "stream"})
    sender = session.sender(f"/queues/{stream}")
    assert [sender.send(b"%d" % number) for number in range(5)] == [Accepted()] * 5

    def reads(offset: object, count: int) -> list[bytes]:
        spec = {Symbol("rabbitmq:stream-offset-spec"): Described(Symbol("rabbitmq:stream-offset-spec"), offset)}
        receiver = session.receiver(f"/queues/{stream}", credit=10, filter=spec)
        assert getattr(receiver.attach.source, "filter", None) is not None
        found = receiver.deliveries(count)
        assert [each.message.annotations["x-stream-offset"] for each in found] == list(range(5 - count, 5))
        receiver.detach()
        return [each.message.body for each in found]

    assert reads("first", 5) == [b"0", b"1", b"2", b"3", b"4"]
    assert reads(UInt64(3), 2) == [b"3", b"4"]
    assert reads(Milliseconds(0), 5)[0] == b"0"
    receiver = session.receiver(f"/queues/{stream}", credit=1)
    assert sender.send(b"new") == Accepted()
    assert receiver.bodies(1) == [b"new"]
