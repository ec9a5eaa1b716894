"""Exchanges that are the broker itself: who may ask, what is answered where, and in which order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from clusterbroker.broker.access.services import OPEN_MAX, Request, Service
from clusterbroker.broker.access.virtual_exchanges import VIRTUAL_EXCHANGES
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import Client, Content, World


class Desk:
    """A service that answers when the test wants."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def ask(self, request: Request) -> None:
        request.only("name", "count")
        assert request.text("name", 8)
        assert request.integer("count", 0, 9, 3) >= 0
        self.requests.append(request)


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    VIRTUAL_EXCHANGES["amq.desk"] = Service(True, {"ask": made.ask})
    yield made
    del VIRTUAL_EXCHANGES["amq.desk"]


def request(client: Client, body: Any = None, key: str = "ask", **properties: Any) -> list[Any]:
    raw = body if isinstance(body, bytes) else json.dumps({"name": "n"} if body is None else body).encode()
    return client.publish("amq.desk", key, raw, **properties)


def test_an_answer_comes_to_the_channel_that_waits_before_its_ack(desk: Desk) -> None:
    world = World()
    client = world.client()
    client.say(m.ConfirmSelect(), m.BasicConsume(queue="amq.rabbitmq.reply-to", no_ack=True))
    assert request(client, reply_to="amq.rabbitmq.reply-to", correlation_id="7") == []
    desk.requests[0].answer({"outcome": "done"})
    world.turn()
    answer, ack = client.hear(1)
    assert isinstance(answer, Content)
    assert json.loads(answer.body) == {"outcome": "done"}
    assert (answer.properties.correlation_id, answer.properties.content_type) == ("7", "application/json")
    assert ack == m.BasicAck(1, True)


def test_an_answer_in_a_queue_is_safe_before_the_nack(desk: Desk) -> None:
    world = World()
    client = world.client()
    client.declare("answers", durable=True)
    client.say(m.ConfirmSelect())
    world.disk_waits = True
    request(client, reply_to="answers")
    desk.requests[0].refuse(409, "no")
    world.turn()
    assert client.hear(1) == [], "the answer is not durable yet"
    world.commit()
    assert client.hear(1) == [m.BasicNack(1, False, False)]
    world.disk_waits = False
    (got,) = client.consume("answers")
    assert json.loads(got.body) == {"outcome": "refused", "code": 409, "reason": "no"}


def test_nobody_has_to_wait_for_the_answer(desk: Desk) -> None:
    world = World()
    client = world.client()
    request(client)
    request(client, reply_to="no such queue")
    client.say(m.ChannelClose(0, "", 0, 0))
    for asked in desk.requests:
        asked.answer({})
    world.turn()
    assert client.ended is None


@pytest.mark.parametrize(
    "body, why",
    [
        (b"", "expected a JSON object"),
        (b"[1]", "expected a JSON object"),
        (b"[" * 5000, "expected a JSON object"),
        (b"\xff", "expected a JSON object"),
        (b" " * (1 << 20) + b"{}", "1048578 bytes, at most 1048576 are read"),
        ({"name": "n", "nmae": 1}, "unknown field 'nmae', known are name, count"),
        ({"name": ""}, "'name' must be a text of 1 to 8 bytes"),
        ({"name": 1}, "'name' must be a text of 1 to 8 bytes"),
        ({"name": "too long for it"}, "'name' must be a text of 1 to 8 bytes"),
        (b'{"name": "\\ud800"}', "'name' is no UTF-8"),
        ({"name": "n", "count": 10}, "'count' must be an integer of 0 to 9"),
        ({"name": "n", "count": True}, "'count' must be an integer of 0 to 9"),
    ],
)
def test_a_body_that_nobody_understands_closes_the_channel(desk: Desk, body: Any, why: str) -> None:
    (close,) = request(World().client(), body)
    assert (close.reply_code, close.reply_text) == (
        406, f"PRECONDITION_FAILED - invalid body of amq.desk 'ask': {why}",
    )  # fmt: skip
    assert desk.requests == []


def test_a_key_that_is_not_known_has_no_queue(desk: Desk) -> None:
    client = World().client()
    client.say(m.ConfirmSelect())
    assert request(client, key="other") == [m.BasicAck(1, True)]
    returned, ack = request(client, key="other", mandatory=True)
    assert returned.method.reply_code == 312
    assert ack == m.BasicAck(2, True)


def test_who_may_not_write_may_not_ask(desk: Desk) -> None:
    world = World()
    world.command(c.SetPermission(user="eve", vhost="/", configure=".*", write="^$", read=".*"))
    (close,) = request(world.client("eve"))
    assert (close.reply_code, "write access to exchange 'amq.desk'" in close.reply_text) == (403, True)
    world.command(c.SetPermission(user="eve", vhost="/", configure=".*", write="desk$", read=".*"))
    assert request(world.client("eve")) == []
    (close,) = request(world.client("eve"), reply_to="q")
    assert (close.reply_code, "'amq.default'" in close.reply_text) == (403, True), "an answer is a publish of its own"


def test_it_is_no_exchange_that_could_be_declared_bound_or_deleted(desk: Desk) -> None:
    world = World()
    codes = []
    for method in (
        m.ExchangeDeclare(exchange="amq.desk", type="direct"),
        m.ExchangeBind(destination="amq.desk", source="amq.topic"),
        m.ExchangeDelete(exchange="amq.desk"),
    ):
        (close,) = world.client().say(method)
        codes.append(close.reply_code)
    assert codes == [403, 404, 403]


def test_transactions_cannot_ask(desk: Desk) -> None:
    client = World().client()
    client.say(m.TxSelect())
    (close,) = request(client)
    assert close.reply_code == 406


def test_requests_without_answers_are_limited(desk: Desk) -> None:
    world = World()
    client = world.client()
    body = json.dumps({"name": "n"}).encode()
    client.raw(b"".join(client.content("amq.desk", "ask", body) for _ in range(OPEN_MAX)))
    world.turn()
    assert len(desk.requests) == OPEN_MAX
    desk.requests[0].answer({})
    assert request(client) == []
    (close,) = request(client)
    assert close.reply_code == 406
