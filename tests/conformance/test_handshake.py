"""Protocol header, login, tuning and opening a virtual host (5.1, 5.2)."""

from __future__ import annotations

import pytest

from .conftest import Connect
from .encoding import FRAME_METHOD, METHODS, PROTOCOL_HEADER, encode_method
from .marks import differs_from_rabbitmq_3_10, rule
from .wire import ANY, raw_reply

SASL_HEADER = b"AMQP\x03\x01\x00\x00"


@rule("5.1/header-later-0-9")
@pytest.mark.parametrize("header", [b"AMQP\x00\x00\x09\x02", b"AMQP\x00\x00\x0a\x00"])
def test_a_later_0_9_header_is_answered_with_ours(connect: Connect, header: bytes) -> None:
    connection = connect(stop_before="header")
    connection.send_bytes(header)
    assert raw_reply(connection, 100) == PROTOCOL_HEADER


@rule("5.1/header-other")
@differs_from_rabbitmq_3_10("answers every unknown header with AMQP 0 0 9 1")
@pytest.mark.parametrize("header", [b"AMQP\x01\x01\x08\x00", b"AMQP\x00\x00\x08\x00", b"XXXXXXXX"])
def test_another_header_is_answered_with_the_sasl_header(connect: Connect, header: bytes) -> None:
    connection = connect(stop_before="header")
    connection.send_bytes(header)
    assert raw_reply(connection, 100) == SASL_HEADER


@rule("5.1/header-accepted")
@pytest.mark.parametrize("header", [PROTOCOL_HEADER, b"AMQP\x01\x01\x00\x09"])
def test_the_0_9_1_and_the_old_0_9_header_are_accepted(connect: Connect, header: bytes) -> None:
    connection = connect(stop_before="header")
    connection.send_bytes(header)
    start = connection.reply("connection.start")
    assert (start.version_major, start.version_minor) == (0, 9)


@rule("5.1/header-tls-http")
@pytest.mark.parametrize(
    "hello", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"]
)
def test_a_tls_or_http_hello_ends_the_connection(connect: Connect, hello: bytes) -> None:
    connection = connect(stop_before="header")
    connection.send_bytes(hello)
    answer = raw_reply(connection, 100)
    assert connection.ended
    assert answer in (b"", SASL_HEADER, PROTOCOL_HEADER)


@rule("5.2/capabilities")
def test_the_server_names_its_capabilities(connect: Connect) -> None:
    start = connect(stop_before="start-ok").start
    capabilities = start.server_properties["capabilities"]
    for capability in (
        "publisher_confirms",
        "exchange_exchange_bindings",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "consumer_priorities",
        "authentication_failure_close",
        "per_consumer_qos",
        "direct_reply_to",
    ):
        assert capabilities[capability] is True, capability
    assert {"PLAIN", "AMQPLAIN"} <= set(start.mechanisms.split())
    assert "en_US" in start.locales.split()


@rule("5.2/tune-defaults")
def test_the_tune_defaults(connect: Connect) -> None:
    tune = connect(stop_before="tune-ok").tune
    assert (tune.channel_max, tune.frame_max, tune.heartbeat) == (2047, 131072, 60)


def test_amqplain_logs_in(connect: Connect) -> None:
    connection = connect(stop_before="start-ok")
    login = b"\x05LOGINS\x00\x00\x00\x05guest\x08PASSWORDS\x00\x00\x00\x05guest"
    connection.start_ok(mechanism="AMQPLAIN", response=login)
    connection.tune = connection.reply("connection.tune")
    connection.tune_ok()
    connection.open()


@rule("5.1/503-mechanism")
def test_an_unknown_mechanism_is_503(connect: Connect) -> None:
    """RabbitMQ raises 503 but, as for all faults before login other than a refused one, ends the socket in silence."""
    connection = connect(stop_before="start-ok")
    connection.start_ok(mechanism="NOSUCH")
    close = connection.drops()
    assert close is None or close.reply_code == 503


@rule("5.1/403-login-said")
@pytest.mark.parametrize("user", ["guest", "no-such-user"])
def test_a_refused_login_is_said_to_capable_clients(connect: Connect, user: str) -> None:
    connection = connect(user=user, password="wrong", stop_before="start-ok")
    text = "Login was refused using authentication mechanism PLAIN. For details see the broker logfile."
    with connection.closes(403, text, None, timeout_s=10):
        connection.start_ok()


@rule("5.1/403-login-silent")
def test_a_refused_login_just_ends_the_socket_for_other_clients(connect: Connect) -> None:
    connection = connect(password="wrong", stop_before="start-ok")
    connection.start_ok(capabilities={})
    assert connection.drops(timeout_s=10) is None


SILENT_TUNING = "ends the socket without a connection.close while tuning"


@rule("5.2/tune-zero", "5.1/530-tune")
@differs_from_rabbitmq_3_10(SILENT_TUNING, hangs=True)
@pytest.mark.parametrize("field", ["channel_max", "frame_max"])
def test_a_tune_value_of_zero_is_refused(connect: Connect, field: str) -> None:
    connection = connect(stop_before="tune-ok")
    with connection.closes(530, f"{field} = 0", ANY):
        connection.tune_ok(**{field: 0})


@rule("5.2/tune-higher", "5.1/530-tune")
@differs_from_rabbitmq_3_10(SILENT_TUNING, hangs=True)
@pytest.mark.parametrize(("field", "value"), [("channel_max", 2048), ("frame_max", 131073)])
def test_a_higher_tune_value_is_refused(connect: Connect, field: str, value: int) -> None:
    connection = connect(stop_before="tune-ok")
    text = f"negotiated {field} = {value} is higher than the maximum allowed value ({value - 1})"
    with connection.closes(530, text, ANY):
        connection.tune_ok(**{field: value})


@rule("5.2/tune-frame-min", "5.1/530-tune")
@differs_from_rabbitmq_3_10("its minimum is 4096")
def test_a_frame_max_below_8192_is_refused(connect: Connect) -> None:
    connection = connect(stop_before="tune-ok")
    text = "negotiated frame_max = 4096 is lower than the minimum allowed value (8192)"
    with connection.closes(530, text, ANY, timeout_s=2):
        connection.tune_ok(frame_max=4096)
        connection.open()


@rule("5.2/tune-frame-min")
def test_a_frame_max_of_8192_is_kept_by_the_server(connect: Connect) -> None:
    connection = connect(frame_max=8192)
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).queue
    body = bytes(range(256)) * 120
    channel.basic_publish("", queue, body)
    channel.basic_consume(queue, no_ack=True)
    assert channel.delivery().body == body, "wire.py asserts that no frame exceeds frame_max"


def start_ok_of(payload_size: int) -> bytes:
    """A start-ok whose method payload has exactly this size."""
    bare = len(encode_method("connection.start-ok", client_properties={"pad": ""}))
    return encode_method(
        "connection.start-ok",
        client_properties={"pad": "x" * (payload_size - bare - len("PLAIN") - len("\0guest\0guest") - len("en_US"))},
        mechanism="PLAIN",
        response="\0guest\0guest",
        locale="en_US",
    )


@rule("5.2/pre-auth-frame-limit")
@differs_from_rabbitmq_3_10("its limit before login is 4096")
def test_a_frame_of_8192_passes_before_login(connect: Connect) -> None:
    connection = connect(stop_before="start-ok")
    connection.send_frame(FRAME_METHOD, 0, start_ok_of(8192 - 8))
    connection.reply("connection.tune")


@rule("5.2/pre-auth-frame-limit")
def test_a_larger_frame_before_login_is_refused(connect: Connect) -> None:
    connection = connect(stop_before="start-ok")
    connection.send_frame(FRAME_METHOD, 0, start_ok_of(8192 + 100))
    close = connection.drops(timeout_s=8)
    assert close is None or close.reply_code == 501


@rule("5.1/530-vhost-missing")
def test_a_missing_vhost_is_530(connect: Connect) -> None:
    connection = connect(stop_before="open")
    with connection.closes(530, "vhost nosuch not found", "connection.open"):
        connection.open("nosuch")


@rule("5.1/530-vhost-forbidden")
def test_a_vhost_without_permission_is_530(connect_as: Connect) -> None:
    connection = connect_as("conf-stranger", stop_before="open")
    with connection.closes(530, "access to vhost '/' refused for user 'conf-stranger'", "connection.open"):
        connection.open("/")


@rule("5.1/530-vhost-limit")
def test_a_full_vhost_is_530(connect: Connect, provisioned: object) -> None:
    connection = connect(stop_before="open")
    with connection.closes(530, "access to vhost 'conf-closed' refused for user 'guest'", "connection.open"):
        connection.open("conf-closed")


@rule("5.1/530-channel-max")
def test_a_channel_beyond_channel_max_is_530(connect: Connect) -> None:
    """What counts is how many are open, not the highest number (rabbit_reader: create_channel)."""
    connection = connect(channel_max=5)
    for _ in range(5):
        connection.channel()
    with connection.closes(530, "number of channels opened (5) has reached the negotiated channel_max (5)", ANY):
        connection.channel(6)


@rule("5.1/530-update-secret")
def test_update_secret_where_the_login_does_not_support_it(connect: Connect) -> None:
    """RabbitMQ's internal user database accepts a new secret without effect; refusal needs a token backend."""
    connection = connect()
    connection.send("connection.update-secret", new_secret="guest", reason="rotation")
    connection.reply("connection.update-secret-ok")
    connection.is_usable()


@rule("5.2/access-request")
def test_access_request_returns_ticket_1(connect: Connect) -> None:
    channel = connect().channel()
    assert channel.access_request("/data", active=True, write=True, read=True).ticket == 1


def test_close_is_answered_and_the_socket_ends(connect: Connect) -> None:
    connection = connect()
    connection.close()
    assert METHODS["connection.close-ok"][:2] == (10, 51)
