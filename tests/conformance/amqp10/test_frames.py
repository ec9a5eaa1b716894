"""Frames, SASL, open and close (rules F, S, O), and what decoding refuses (T)."""

from __future__ import annotations

import struct
from urllib.parse import quote

import pytest

from clusterbroker.broker.wire.amqp10.performatives import (
    Attach,
    Begin,
    Close,
    Flow,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Source,
    Target,
)
from clusterbroker.broker.wire.amqp10.types import Described, Symbol, encode, encode_list
from clusterbroker.broker.wire.numbers import UInt64
from tests.support.amqp10 import HEADER, SASL_HEADER, frame

from ..cluster_target import ClusterTarget
from ..marks import rule
from ..target import PASSWORD
from ..target import Target as Broker
from ..wire import Connection
from .conftest import Connect10
from .wire import Peer


@rule("F9")
def test_without_sasl_the_sasl_header_is_the_answer(connect10: Connect10) -> None:
    peer = connect10(stop_before="header")
    peer.raw(HEADER)
    assert peer.wait_header() == SASL_HEADER
    peer.wait_end()


@rule("F10")
@pytest.mark.parametrize("header", [b"AMQP\x00\x02\x00\x00", b"AMQP\x03\x02\x00\x00"])
def test_an_unknown_header_is_answered_with_one_that_is_known(connect10: Connect10, header: bytes) -> None:
    peer = connect10(stop_before="header")
    peer.raw(header)
    assert peer.wait_header()[:4] == b"AMQP"
    peer.wait_end()


@rule("F11")
def test_0_9_1_is_on_the_same_port(target: Broker, peer: Peer) -> None:
    other = Connection(target.address)
    other.channel()
    other.close()
    peer.close()


@rule("F12")
def test_a_header_in_single_bytes_is_understood(connect10: Connect10) -> None:
    peer = connect10(stop_before="header")
    for octet in SASL_HEADER:
        peer.raw(bytes((octet,)))
    assert peer.wait_header() == SASL_HEADER


@rule("F13")
def test_an_extended_header_is_passed_over(peer: Peer) -> None:
    body = Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1).encoded()
    peer.raw(struct.pack(">IBBH", 16 + len(body), 4, 0, 0) + b"extended" + body)
    assert peer.wait(Begin).remote_channel == 0


@rule("F14")
@pytest.mark.parametrize("head", [b"\0\0\0\7\2\0\0\0", b"\0\0\0\x08\1\0\0\0", b"\0\0\0\x0c\4\0\0\0aaaa"])
def test_a_frame_that_cannot_be_is_a_framing_error(peer: Peer, head: bytes) -> None:
    with peer.closes("amqp:connection:framing-error", at_once=True):
        peer.raw(head)


@rule("F15")
def test_a_frame_above_our_maximum_is_a_framing_error(peer: Peer) -> None:
    with peer.closes("amqp:connection:framing-error", at_once=True):
        peer.raw(struct.pack(">IBBH", int(peer.opened.max_frame_size) + 1, 2, 0, 0))


@rule("F16")
def test_an_empty_frame_says_that_its_sender_lives(peer: Peer) -> None:
    for channel in (0, 7, 65535):
        peer.raw(struct.pack(">IBBH", 8, 2, 0, channel))
    peer.session().settle_down()


@rule("F17")
def test_an_unknown_frame_type_is_a_framing_error(peer: Peer) -> None:
    with peer.closes("amqp:connection:framing-error", at_once=True):
        peer.raw(struct.pack(">IBBH", 8, 2, 2, 0))


@rule("F18")
def test_everything_in_one_packet(connect10: Connect10, queue: str) -> None:
    peer = connect10(stop_before="header")
    init = SaslInit(mechanism="PLAIN", initial_response=b"\0guest\0guest")
    attach = Attach(
        name="s",
        handle=0,
        role=False,
        source=Source(),
        target=Target(address=f"/queues/{queue}"),
        initial_delivery_count=0,
    )
    begin = Begin(next_outgoing_id=0, incoming_window=100, outgoing_window=100)
    rest = b"".join(frame(0, each) for each in (Open(container_id="p"), begin, attach))
    peer.raw(SASL_HEADER + frame(0, init, kind=1) + HEADER + rest)
    assert peer.wait_header() == SASL_HEADER
    peer.wait(SaslMechanisms)
    assert peer.wait(SaslOutcome).code == 0
    assert peer.wait_header() == HEADER
    assert [peer.wait(kind) is not None for kind in (Open, Begin, Attach, Flow)] == [True] * 4


@rule("S19")
def test_mechanisms_are_told_once(connect10: Connect10) -> None:
    peer = connect10(stop_before="init")
    assert set(peer.mechanisms.sasl_server_mechanisms) >= {"PLAIN"}
    peer.login()
    assert not [known for known in peer.inbox if isinstance(known.body, SaslMechanisms)]


@rule("S20")
def test_plain(connect10: Connect10) -> None:
    assert connect10(stop_before="init").try_login() == 0


@rule("S21")
def test_a_wrong_password_has_no_reason(connect10: Connect10) -> None:
    peer = connect10(stop_before="init", password="wrong")
    peer.raw(frame(0, SaslInit(mechanism="PLAIN", initial_response=b"\0guest\0wrong"), kind=1))
    outcome = peer.wait(SaslOutcome)
    assert (outcome.code, outcome.additional_data) == (1, None)
    peer.wait_end()


@rule("S22")
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "EXTERNAL"])
def test_a_mechanism_that_is_not_offered(connect10: Connect10, mechanism: str) -> None:
    peer = connect10(stop_before="init")
    assert peer.try_login(mechanism) == 1
    peer.wait_end()


@rule("S24")
def test_nobody_is_anonymous_unless_settings_say_so(connect10: Connect10) -> None:
    peer = connect10(stop_before="init")
    assert "ANONYMOUS" not in peer.mechanisms.sasl_server_mechanisms
    assert peer.try_login("ANONYMOUS", b"anybody") == 1


@rule("S23")
def test_external_takes_the_certificates_identity(target: Broker) -> None:
    address, context = target.inside_tls("client")
    peer = Peer(address, tls=context, stop_before="init")
    assert "EXTERNAL" in peer.mechanisms.sasl_server_mechanisms
    assert peer.try_login("EXTERNAL", b"") == 1, "the certificate names nobody here"
    user = f"users/{quote('CN=client,O=Example' + chr(92) + ', Inc', safe='')}"
    target.api("PUT", user, {"password": PASSWORD, "tags": ""}).raise_for_status()
    try:
        peer = Peer(address, tls=context, stop_before="init")
        peer.login("EXTERNAL", b"")
        with peer.closes("amqp:unauthorized-access"):
            peer.say(Open(container_id="x"))
    finally:
        target.api("DELETE", user).raise_for_status()


@rule("S29")
def test_sasl_after_the_outcome_ends_it(connect10: Connect10) -> None:
    peer = connect10(stop_before="open")
    with peer.closes("amqp:not-allowed"):
        peer.raw(frame(0, SaslInit(mechanism="PLAIN"), kind=1))


@rule("O30", "T8")
def test_a_container_id_is_mandatory(connect10: Connect10) -> None:
    peer = connect10(stop_before="open")
    with peer.closes("amqp:decode-error", "container-id"):
        peer.say(b"\0\x53\x10\x45")


@rule("O31")
def test_the_hostname_chooses_the_vhost(connect10_as: Connect10, connect10: Connect10) -> None:
    connect10(vhost="conf-two-queues").close()
    peer = connect10(stop_before="open")
    with peer.closes("amqp:not-found", "conf-none"):
        peer.say(Open(container_id="x", hostname="vhost:conf-none"))


@rule("O32")
def test_a_vhost_that_the_user_may_not_enter(connect10_as: Connect10) -> None:
    peer = connect10_as("conf-stranger", stop_before="open")
    with peer.closes("amqp:unauthorized-access"):
        peer.say(Open(container_id="x"))


@rule("O33")
def test_frames_have_at_least_512_bytes(connect10: Connect10) -> None:
    peer = connect10(stop_before="open")
    with peer.closes("amqp:connection:framing-error", at_once=True):
        peer.say(Open(container_id="x", max_frame_size=511))


@rule("O34")
def test_no_frame_is_larger_than_its_receiver_takes(connect10: Connect10, queue: str) -> None:
    session = connect10().session()
    session.sender(f"/queues/{queue}").send(bytes(range(256)) * 20)
    peer = connect10(max_frame_size=512)
    receiver = peer.session().receiver(f"/queues/{queue}", credit=1)
    sizes = []
    found = receiver.frames()
    payload = found.payload
    while found.body.more:
        sizes.append(8 + len(found.body.encoded()) + len(found.payload))
        found = receiver.frames()
        payload += found.payload
    assert len(sizes) > 9
    assert max(sizes) <= 512
    assert payload.endswith(bytes(range(256)) * 20)


@rule("O35")
def test_idle_time_outs(connect10: Connect10) -> None:
    peer = connect10(stop_before="open")
    with peer.closes("amqp:not-allowed", "idle-time-out"):
        peer.say(Open(container_id="x", idle_time_out=999))
    peer = connect10(idle_time_out=1000)
    peer.wait_empty_frames(2)


@rule("O37")
def test_close_is_answered_and_deliveries_return(connect10: Connect10, queue: str) -> None:
    peer = connect10()
    session = peer.session()
    session.sender(f"/queues/{queue}").send(b"once")
    session.receiver(f"/queues/{queue}", credit=1).delivery()
    peer.close()
    again = connect10().session().receiver(f"/queues/{queue}", credit=1).delivery()
    assert again.message.body == b"once"


@rule("O38")
def test_a_second_open_is_not_allowed(peer: Peer) -> None:
    with peer.closes("amqp:not-allowed"):
        peer.say(Open(container_id="again"))


@rule("O39")
def test_other_members_are_named(peer: Peer, target: Broker) -> None:
    properties = peer.opened.properties or {}
    assert properties["product"] == "clusterbroker"
    if isinstance(target, ClusterTarget):
        servers = properties["failover-server-list"]
        assert len([server for server in servers if server["scheme"] == "amqp"]) == 2
        assert all(server["network-host"] == "127.0.0.1" and server["port"] > 0 for server in servers)


@rule("T4", "T5", "T6", "T7")
@pytest.mark.parametrize(
    "value",
    [
        b"\xc1\x02\x01\x40",  # a map of one value
        b"\0" * 40 + b"\x40",  # described by what is described ...
        b"\xa1\x01\xff",  # a string that is no UTF-8
        b"\xa3\x01\xff",  # a symbol that is no ASCII
        b"\x3f",
        b"\xc0\x7f\x01\x40",
    ],
)
def test_what_is_no_value_is_a_decode_error(peer: Peer, value: bytes) -> None:
    fields = encode_list([encode("c"), b"\x40", b"\x40", b"\x40", b"\x40", b"\x40", b"\x40", b"\x40", b"\x40", value])
    with peer.closes("amqp:decode-error"):
        peer.say(b"\0\x53\x10" + fields)


@rule("T7")
def test_descriptors_may_be_symbols(peer: Peer) -> None:
    fields = encode_list([b"\x40", b"\x43", b"\x52\x01", b"\x52\x01"])
    peer.say(b"\0" + encode(Symbol("amqp:begin:list")) + fields)
    assert peer.wait(Begin).remote_channel == 0


def test_a_value_behind_the_last_field_is_a_decode_error(peer: Peer) -> None:
    with peer.closes("amqp:decode-error"):
        peer.say(b"\0\x53\x17" + encode_list([b"\x40", b"\x43"]))


def test_an_unknown_performative_is_a_decode_error(peer: Peer) -> None:
    with peer.closes("amqp:decode-error"):
        peer.say(encode(Described(UInt64(0x19), [])))


def test_a_performative_of_a_wrong_state_is_not_allowed(connect10: Connect10) -> None:
    peer = connect10(stop_before="open")
    with peer.closes("amqp:not-allowed"):
        peer.say(Close())
