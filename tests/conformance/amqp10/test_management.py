"""Management over a pair of links, and tokens (rules G, S25 to S27)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from clusterbroker.broker.wire.amqp10.performatives import Accepted, Header, Properties, Released, Transfer
from clusterbroker.broker.wire.amqp10.types import Milliseconds, Symbol, Uuid
from clusterbroker.broker.wire.numbers import Int32, UInt64
from tests.support.amqp10 import message
from tests.unit.broker.oauth2 import authority as tokens

from ..marks import rule
from .conftest import Connect10
from .management import MANAGEMENT, PAIRED, Pair, request, value
from .wire import Peer, Session

Name = Callable[[str], str]


@pytest.fixture
def pair(session: Session) -> Pair:
    return Pair(session)


def at(name: str) -> str:
    return f"/queues/{quote(name, safe='')}"


# -- the pair


@rule("G134")
def test_a_request_needs_both_halves(session: Session) -> None:
    sender = session.sender(MANAGEMENT, name="half", settle=1, properties=PAIRED)
    with sender.detaches("amqp:precondition-failed", "no receiver 'half'"):
        sender.transfer(request("GET", "/queues/q"), settled=True)
    session.receiver(MANAGEMENT, name="half", settle=1, properties=PAIRED).grant(1)
    whole = session.sender(MANAGEMENT, name="half", settle=1, properties=PAIRED)
    whole.transfer(request("GET", "/nothing"), settled=True)
    assert session.peer.find(lambda known: isinstance(known.body, Transfer))


@rule("G134")
def test_the_halves_come_in_any_order_and_are_of_one_session(peer: Peer) -> None:
    session, other = peer.session(), peer.session()
    session.receiver(MANAGEMENT, name="there", settle=1, properties=PAIRED).grant(1)
    sender = other.sender(MANAGEMENT, name="there", settle=1, properties=PAIRED)
    with sender.detaches("amqp:precondition-failed"):
        sender.transfer(request("GET", "/queues/q"), settled=True)


@rule("G134")
@pytest.mark.parametrize("properties", [None, {"paired": False}, {"paired": "true"}])
def test_both_halves_say_that_they_are_paired(session: Session, properties: dict[str, Any] | None) -> None:
    sender = session.sender(MANAGEMENT, properties=properties, waits=False)
    sender.detached("amqp:invalid-field", "'paired'")
    receiver = session.receiver(MANAGEMENT, properties=properties)
    receiver.detached("amqp:invalid-field", "'paired'")


@rule("G134")
def test_a_pair_says_what_it_is(pair: Pair) -> None:
    for attach in (pair.sender.attach, pair.receiver.attach):
        assert attach.properties == PAIRED
        assert attach.name == pair.name
    assert pair.sender.attach.target.address == pair.receiver.attach.source.address == MANAGEMENT
    assert pair.receiver.attach.snd_settle_mode == 1
    assert pair.sender.granted.link_credit == 8


def test_eight_requests_wait_at_most_and_their_responses_come_in_order(session: Session) -> None:
    pair = Pair(session, credit=0)
    for number in range(8):
        pair.post("GET", f"/queues/none-{number}", message_id=UInt64(number))
    session.settle_down()
    assert pair.receiver.waiting() == 0, "responses wait for credit"
    pair.receiver.grant(8)
    assert [pair.response().properties.correlation_id for _ in range(8)] == list(range(8))
    pair.receiver.grant(1)
    assert pair.status("GET", "/queues/none") == 404


def test_a_ninth_request_ends_the_link(session: Session) -> None:
    pair = Pair(session, credit=0)
    with pair.sender.detaches("amqp:link:transfer-limit-exceeded"):
        for _ in range(9):
            pair.post("GET", "/queues/none")


def test_responses_wait_for_the_sessions_window(connect10: Connect10) -> None:
    session = connect10().session(incoming_window=1)
    pair = Pair(session)
    for _ in range(8):
        pair.post("GET", "/queues/none")
    session.settle_down()
    assert pair.answer().status == 404
    session.say(session.flow(window=100, echo=True))
    assert [pair.answer().status for _ in range(7)] == [404] * 7
    assert pair.status("GET", "/queues/none") == 404


def test_requests_build_on_those_before(pair: Pair, name: Name) -> None:
    exchange, queue = name("x"), name("q")
    pair.post("PUT", f"/exchanges/{exchange}", {"type": "fanout"})
    pair.post("PUT", at(queue), {})
    pair.post("POST", "/bindings", {"source": exchange, "destination_queue": queue, "binding_key": "", "arguments": {}})
    pair.post("DELETE", at(queue))
    pair.post("GET", at(queue))
    assert [pair.answer().status for _ in range(5)] == [204, 201, 204, 200, 404]


def test_an_unsettled_request_is_accepted(session: Session, name: Name) -> None:
    pair = Pair(session, settle=0)
    number = pair.post("PUT", at(name("q")), {})
    assert pair.sender.outcome(number) == Accepted()
    assert pair.answer().status == 201


@pytest.mark.parametrize("number", ["text", UInt64(7), Uuid(bytes(16)), b"\0\1", None])
def test_a_response_has_the_requests_message_id(pair: Pair, number: Any) -> None:
    pair.post("GET", "/queues/none", message_id=number)
    found = pair.response().properties.correlation_id
    assert (found, type(found)) == (number, type(number))


def test_drain_gives_up_the_credit_of_responses(pair: Pair) -> None:
    pair.receiver.grant(5, drain=True)
    flow = pair.receiver.flow()
    assert (flow.delivery_count, flow.link_credit, flow.drain) == (5, 0, True)
    pair.post("GET", "/queues/none")
    assert pair.receiver.waiting() == 0
    pair.receiver.count = 5
    pair.receiver.grant(1)
    assert pair.answer().status == 404


def test_a_response_larger_than_the_receiver_takes(session: Session, queue: str) -> None:
    sender = session.sender(MANAGEMENT, name="small", settle=1, properties=PAIRED)
    receiver = session.receiver(MANAGEMENT, name="small", settle=1, properties=PAIRED, max_message_size=100)
    receiver.grant(1)
    with receiver.detaches("amqp:link:message-size-exceeded"):
        sender.transfer(request("GET", at(queue)), settled=True)


def test_a_request_of_too_many_bytes_ends_the_link(pair: Pair) -> None:
    assert pair.sender.attach.max_message_size == 128 << 10
    with pair.sender.detaches("amqp:link:message-size-exceeded"):
        payload = request("PUT", "/queues/q", {"arguments": {"x": "y" * (128 << 10)}})
        pair.sender.transfer(payload[:1000], settled=True, more=True)
        pair.sender.transfer(payload[1000:], settled=True, delivery_id=None, delivery_tag=None)


def test_a_request_in_several_frames(connect10: Connect10, name: Name) -> None:
    pair = Pair(connect10(max_frame_size=512).session())
    payload = request("PUT", at(name("q")), {"arguments": {"x-note": "y" * 2000}})
    pair.sender.transfer(payload[:1000], settled=True, more=True)
    pair.sender.transfer(payload[1000:], settled=True, delivery_id=None, delivery_tag=None)
    answer = pair.answer()
    assert (answer.status, answer.body["arguments"]) == (201, {"x-note": "y" * 2000})


# -- queues


@rule("G135")
def test_a_queue_is_declared_once_again_and_otherwise(pair: Pair, name: Name) -> None:
    queue = name("q ü/%")
    first = pair.ask("PUT", at(queue), {"arguments": {"x-max-length": Int32(7)}})
    assert first.status == 201
    assert {key: first.body[key] for key in first.body if key not in ("leader", "replicas")} == {
        "name": queue, "vhost": "/", "durable": True, "exclusive": False, "auto_delete": False, "type": "classic",
        "arguments": {"x-max-length": 7}, "message_count": 0, "consumer_count": 0,
    }  # fmt: skip
    assert first.body["leader"] in first.body["replicas"]
    assert pair.ask("PUT", at(queue), {"arguments": {Symbol("x-max-length"): 7}}) == (200, first.body)
    unequal = pair.ask("PUT", at(queue), {"arguments": {"x-max-length": 8}})
    assert unequal.status == 409
    assert unequal.body.startswith(f"inequivalent arg 'x-max-length' for queue '{queue}' in vhost '/': received ")


@rule("G135")
def test_an_exchange_is_declared_once_again_and_otherwise(pair: Pair, name: Name) -> None:
    exchange = f"/exchanges/{name('x')}"
    assert pair.ask("PUT", exchange, {"type": "topic", "internal": False}) == (204, None)
    assert pair.ask("PUT", exchange, {"type": "topic"}) == (204, None)
    assert pair.status("PUT", exchange, {"type": "fanout"}) == 409
    assert pair.ask("DELETE", exchange) == (204, None)
    assert pair.ask("DELETE", exchange) == (204, None), "one that is not there"
    assert pair.ask("PUT", "/exchanges/", {}) == (403, "operation not permitted on the default exchange")
    assert pair.ask("DELETE", "/exchanges/") == (403, "operation not permitted on the default exchange")


def test_null_needs_no_section(pair: Pair, queue: str) -> None:
    """RabbitMQ's client for Python sends it before the properties."""
    bare = Properties(message_id="1", to=at(queue), subject="GET", reply_to="$me").encoded()
    for payload in (bare, Header().encoded() + value(None) + bare):
        pair.sender.transfer(payload, settled=True)
        assert pair.answer().status == 200


@rule("G136")
def test_what_is_not_there(pair: Pair, name: Name) -> None:
    queue = name("q")
    assert pair.ask("GET", at(queue)) == (404, f"no queue '{queue}' in vhost '/'")
    assert pair.status("DELETE", f"{at(queue)}/messages") == 404
    assert pair.ask("DELETE", at(queue)) == (200, {"message_count": 0})
    wanted = {"source": "amq.direct", "destination_queue": queue, "binding_key": "k", "arguments": {}}
    assert pair.ask("POST", "/bindings", wanted) == (404, f"no queue '{queue}' in vhost '/'")


@rule("G136", "G138")
def test_a_queue_and_its_messages(pair: Pair, queue: str) -> None:
    sender = pair.session.sender(at(queue))
    assert [sender.send(b"x") for _ in range(3)] == [Accepted()] * 3
    pair.session.receiver(at(queue))
    found = pair.ask("GET", at(queue))
    assert (found.status, found.body["message_count"], found.body["consumer_count"]) == (200, 3, 1)
    assert pair.ask("DELETE", f"{at(queue)}/messages") == (200, {"message_count": 3})
    assert sender.send(b"y") == Accepted()
    assert pair.ask("DELETE", at(queue)) == (200, {"message_count": 1})


def test_a_stream_is_not_purged(pair: Pair, name: Name) -> None:
    stream = name("s")
    assert pair.ask("PUT", at(stream), {"arguments": {"x-queue-type": "stream"}}).body["type"] == "stream"
    assert pair.ask("DELETE", f"{at(stream)}/messages").status == 400


def test_an_exclusive_queue_is_its_connections(connect10: Connect10, name: Name) -> None:
    owner, other = connect10(), Pair(connect10().session())
    pair, queue = Pair(owner.session()), at(name("q"))
    assert pair.ask("PUT", queue, {"exclusive": True}).body["exclusive"]
    assert pair.status("GET", queue) == 200
    for refused in (("GET", queue), ("DELETE", queue), ("PUT", queue, {"exclusive": True})):
        status, text = other.ask(*refused)
        assert status == 400
        assert "cannot obtain exclusive access to locked queue" in text
    owner.close()
    assert other.status("GET", queue) == 404, "it was gone when its connection's close was answered"


def test_an_exclusive_queue_ends_with_a_lost_connection(connect10: Connect10, name: Name) -> None:
    owner, other = connect10(), Pair(connect10().session())
    queue = at(name("q"))
    assert Pair(owner.session()).status("PUT", queue, {"exclusive": True}) == 201
    owner.abandon()
    end_s = time.monotonic() + 20
    while (status := other.status("GET", queue)) != 404:
        assert (status, time.monotonic() < end_s) == (400, True)


# -- bindings


@rule("G137")
def test_a_binding_comes_and_goes(pair: Pair, queue: str, name: Name) -> None:
    exchange, key = name("x/ü"), "a key;=&%"
    assert pair.status("PUT", f"/exchanges/{quote(exchange, safe='')}", {}) == 204
    wanted = {"source": exchange, "destination_queue": queue, "binding_key": key, "arguments": {}}
    assert pair.ask("POST", "/bindings", wanted) == (204, None)
    assert pair.ask("POST", "/bindings", wanted) == (204, None), "again"
    sender = pair.session.sender(f"/exchanges/{quote(exchange, safe='')}/{quote(key, safe='')}")
    assert sender.send(b"x") == Accepted()
    asked = f"/bindings?src={quote(exchange, safe='')}&dstq={queue}&key={quote(key, safe='')}"
    (known,) = pair.ask("GET", asked).body
    location = f"/bindings/src={quote(exchange, safe='')};dstq={queue};key={quote(key, safe='')};args="
    assert known == {**wanted, "location": location}
    assert pair.ask("DELETE", location) == (204, None)
    assert pair.ask("DELETE", location) == (204, None), "one that is not there"
    assert pair.ask("GET", asked) == (200, [])
    assert sender.send(b"y") == Released()


@rule("G137")
def test_bindings_with_arguments_are_told_apart(pair: Pair, queue: str) -> None:
    ends = {"source": "amq.headers", "destination_queue": queue, "binding_key": ""}
    tables = [{"x-match": "all", "n": 1}, {"n": 2, "at": Milliseconds(5000)}, {}]
    for table in tables:
        assert pair.status("POST", "/bindings", {**ends, "arguments": table}) == 204
    asked = f"/bindings?src=amq.headers&dstq={queue}&key="
    known = {str(each["arguments"]): each["location"] for each in pair.ask("GET", asked).body}
    assert sorted(known) == sorted(str(table) for table in tables)
    assert pair.status("DELETE", known[str(tables[1])]) == 204
    assert [each["arguments"] for each in pair.ask("GET", asked).body] == [tables[0], tables[2]]


@rule("G137")
def test_exchanges_are_bound_to_each_other(pair: Pair, name: Name) -> None:
    exchange = name("x")
    assert pair.status("PUT", f"/exchanges/{exchange}", {"type": "fanout"}) == 204
    wanted = {"source": "amq.topic", "destination_exchange": exchange, "binding_key": "a.#", "arguments": {}}
    assert pair.status("POST", "/bindings", wanted) == 204
    (known,) = pair.ask("GET", f"/bindings?src=amq.topic&dste={exchange}&key=a.%23").body
    assert known["destination_exchange"] == exchange
    assert pair.status("DELETE", known["location"]) == 204
    assert pair.ask("GET", f"/bindings?src=amq.topic&dste={exchange}&key=a.%23").body == []
    refused = (403, "operation not permitted on the default exchange")
    assert pair.ask("POST", "/bindings", {**wanted, "source": ""}) == refused
    assert pair.ask("POST", "/bindings", {**wanted, "destination_exchange": ""}) == refused


# -- rights


@rule("G139")
def test_rights_are_those_of_the_user(connect10_as: Connect10, pair: Pair, name: Name) -> None:
    theirs, ours = name("perm-q"), name("q")
    assert pair.status("PUT", at(theirs), {}) == 201
    assert pair.status("PUT", at(ours), {}) == 201
    reader = Pair(connect10_as("conf-reader").session())
    for asked in (
        ("PUT", at(theirs), {}),
        ("DELETE", at(theirs)),
        ("DELETE", f"{at(ours)}/messages"),
        ("PUT", "/exchanges/perm-x", {}),
        ("DELETE", "/exchanges/perm-x"),
        (
            "POST",
            "/bindings",
            {"source": "amq.direct", "destination_queue": theirs, "binding_key": "", "arguments": {}},
        ),
        ("DELETE", f"/bindings/src=amq.direct;dstq={theirs};key=;args="),
    ):
        status, text = reader.ask(*asked)
        assert status == 403, asked
        assert text.endswith("refused for user 'conf-reader'"), text
    assert reader.ask("DELETE", f"{at(theirs)}/messages") == (200, {"message_count": 0})
    assert pair.ask("PUT", at("amq.mine"), {}) == (
        403, "queue name 'amq.mine' contains reserved prefix 'amq.*'",
    )  # fmt: skip


# -- what is malformed


MALFORMED = [
    ("PUT", "/queues/q", {"unknown": True}, "bad queue property 'unknown'"),
    ("PUT", "/queues/q", {"durable": "yes"}, "bad queue property 'durable'"),
    ("PUT", "/queues/q", {"arguments": {5: "x"}}, "unsupported argument 5"),
    ("PUT", "/queues/q", None, "is a map"),
    ("PUT", "/queues/q", ["durable"], "is a map"),
    ("PUT", "/queues/", {}, "declare queue with empty name not allowed"),
    ("PUT", "/queues/a%0Ab", {}, "line feed"),
    ("PUT", "/queues/%zz", {}, "two hexadecimal digits"),
    ("PUT", "/queues/%ff", {}, "not UTF-8"),
    ("PUT", "/queues/" + "x" * 256, {}, "more than 255 bytes"),
    ("PUT", "/exchanges/x", {"type": 1}, "bad exchange property 'type'"),
    ("GET", "/queues/q", {"a": 1}, "no body but null"),
    ("POST", "/queues/q", {}, "bad method 'POST'"),
    ("POST", "/bindings", {"source": "x"}, "one of destination_queue"),
    ("POST", "/bindings", {"destination_queue": "x", "binding_key": "k"}, "a binding has source"),
    ("POST", "/bindings", {"source": 5}, "bad binding property 'source'"),
    ("GET", "/bindings", None, "a query has src, key"),
    ("GET", "/bindings?src", None, "bad query"),
    ("GET", "/bindings?src=a&key=b", None, "one of dstq and dste"),
    ("GET", "/bindings?src=%ff&dstq=b&key=c", None, "bad query"),
    ("DELETE", "/bindings/src=a;dstq=b", None, "bad binding path segment"),
    ("PUT", "/auth/tokens", {"token": "x"}, "a token is binary"),
    ("GET", "queues/q", None, "does not begin with /"),
    ("GET", "👎", None, "does not begin with /"),
    ("GET", None, None, "properties subject (its method) and to (its path)"),
    (None, "/queues/q", None, "properties subject (its method) and to (its path)"),
]


@rule("G140")
@pytest.mark.parametrize(("method", "path", "body", "text"), MALFORMED)
def test_a_malformed_request(pair: Pair, method: Any, path: Any, body: Any, text: str) -> None:
    pair.post(method, path, body, message_id="of this one")
    found = pair.response()
    assert (found.properties.subject, found.properties.correlation_id) == ("400", "of this one")
    assert text in found.body
    assert pair.status("GET", "/queues/none") == 404, "the link lives"


@rule("G140")
def test_malformed_messages(pair: Pair) -> None:
    properties = Properties(subject="GET", to="/queues/q", reply_to="$me")
    for payload, text in (
        (message(b"data", properties=properties), "an amqp-value"),
        (message(b"data"), "an amqp-value"),
        (request("GET", "/queues/q", reply_to="elsewhere"), "reply-to = $me"),
        (request("GET", "/queues/q", reply_to=None), "reply-to = $me"),
        (b"", "properties subject"),
        (b"junk", "cannot be read"),
        (b"\xa1\x01x", "no message"),
        (Properties(to=5).encoded(), "properties subject"),
        (request("PUT", "/queues/q", {})[:-1], "cannot be read"),
        (b"\0\x53\x73\xc0\x02\x01\x41", "properties subject"),
    ):
        pair.sender.transfer(payload, settled=True)
        found = pair.response()
        assert found.properties.subject == "400"
        assert text in found.body
    assert pair.status("GET", "/nowhere") == 404


# -- tokens


def token(*scopes: str, **claims: Any) -> bytes:
    return tokens.token(scope=" ".join(f"{tokens.ME}.{scope}" for scope in scopes), **claims)


ALL = ("configure:%2F/*", "write:%2F/*", "read:%2F/*")
LATE = 4_000_000_000
"""End of a token that is made when tests are collected: theirs may come many minutes later."""


@pytest.fixture
def by_token(connect10: Connect10) -> Callable[[bytes], Peer]:
    return lambda secret: connect10(user="whoever", password=secret.decode())


@rule("S25", "S26")
def test_another_token_has_its_own_rights(by_token: Callable[[bytes], Peer], name: Name) -> None:
    session = by_token(token(*ALL)).session()
    pair, queue = Pair(session), at(name("q"))
    assert pair.status("PUT", queue, {}) == 201
    sender, receiver = session.sender(queue), session.receiver(queue)
    assert pair.ask("PUT", "/auth/tokens", token("configure:%2F/*", "read:%2F/*")) == (204, None)
    sender.detached("amqp:unauthorized-access", "refused for user 'alice'")
    assert pair.status("DELETE", f"{queue}/messages") == 200
    assert pair.ask("PUT", "/auth/tokens", token(*ALL)) == (204, None)
    assert session.sender(queue).send(b"x") == Accepted()
    receiver.grant(1)
    assert receiver.delivery().message.body == b"x"


@rule("S26")
def test_nothing_that_the_old_token_allowed_is_remembered(by_token: Callable[[bytes], Peer]) -> None:
    session = by_token(token("write:%2F/amq.topic/a.*")).session()
    pair, sender = Pair(session), session.sender("/exchanges/amq.topic/a.1")
    assert sender.send(b"x") == Released()
    assert pair.status("PUT", "/auth/tokens", token("write:%2F/amq.topic/b.*")) == 204
    with sender.detaches("amqp:unauthorized-access", "write access to topic 'a.1'"):
        sender.post(b"x")


@rule("S26")
@pytest.mark.parametrize(
    ("secret", "text"),
    [
        (b"no token", "New secret was refused"),
        (token(*ALL, sub="bob", exp=LATE), "it is another user's"),
        (token("read:other/*", exp=LATE), "access to vhost '/' refused"),
        (token(*ALL, exp=1_000_000), "New secret was refused"),
    ],
)
def test_a_token_that_does_not_take_the_place(by_token: Callable[[bytes], Peer], secret: bytes, text: str) -> None:
    pair = Pair(by_token(token(*ALL)).session())
    status, reason = pair.ask("PUT", "/auth/tokens", secret)
    assert (status, text in reason) == (401, True), reason
    assert pair.status("DELETE", "/queues/none") == 200, "the old token stays"


@rule("S26", "S27")
def test_a_connection_ends_with_its_last_token(by_token: Callable[[bytes], Peer]) -> None:
    """The node lets a token live for 5 s more: the authority's clock may differ."""
    now_s = int(time.time())
    prolonged, over = by_token(token(*ALL, exp=now_s - 2)), by_token(token(*ALL, exp=now_s - 2))
    pair = Pair(prolonged.session())
    assert pair.status("PUT", "/auth/tokens", token(*ALL, exp=now_s + 60)) == 204
    with over.closes("amqp:unauthorized-access", "the token of user 'alice' is over"):
        pass
    assert pair.status("DELETE", "/queues/none") == 200


def test_who_has_a_password_has_no_token_to_renew(pair: Pair) -> None:
    assert pair.ask("PUT", "/auth/tokens", b"anything") == (204, None)
    assert pair.status("DELETE", "/queues/none") == 200
