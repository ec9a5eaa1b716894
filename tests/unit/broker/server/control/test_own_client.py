"""A client within the process: the rules of a client of 0-9-1, without its bytes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from server_support import until

from clusterbroker.broker.access.sign_in import address_of
from clusterbroker.broker.server.control import as_user
from clusterbroker.broker.server.control.as_user import carried_out
from clusterbroker.broker.server.control.own_client import OwnClient
from clusterbroker.broker.stats.as_user import Ask, AsUser, Get, Method, Outcome, Publish
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp091 import properties as p
from clusterbroker.cluster.wiring import commands as c


async def done(shell: Any, *requests: Any, user: str = "guest") -> Outcome:
    asked = tuple(Method(m.encode(one)) if isinstance(one, m.Method) else one for one in requests)
    outcome = await carried_out(shell, AsUser(user, "/", b"", asked))
    assert not shell.node.clients, "nothing is left of it"
    assert not shell.node.occupancy.channels
    return outcome


def message(key: str, body: bytes = b"", exchange: str = "", **about: Any) -> Publish:
    return Publish(exchange, key, p.encode(p.Properties(**about)), body)


async def test_it_has_no_address(start: Any) -> None:
    """Only the operator's own client has none: nobody else may be without."""
    shell = await start()
    client = OwnClient(shell.node)
    assert address_of(client) == ""
    client.leave()


async def test_what_is_declared_is_bound_and_deleted(start: Any) -> None:
    shell = await start()
    bound = {"exchange": "x", "routing_key": "k"}
    made = m.ExchangeDeclare(exchange="x", type="direct"), m.QueueDeclare(queue="q"), m.QueueBind(queue="q", **bound)
    assert await done(shell, *made, message("k", b"1", "x")) == Outcome()
    assert not (await done(shell, m.QueueUnbind(queue="q", **bound), message("k", b"2", "x"))).routed
    used = await done(shell, m.QueueDelete(queue="q", if_empty=True))
    assert (used.code, used.text) == (406, "PRECONDITION_FAILED - queue 'q' in vhost '/' not empty")
    assert await done(shell, m.QueuePurge(queue="q"), m.QueueDelete(queue="q"), m.QueueDelete(queue="q")) == Outcome()
    to = m.ExchangeBind(destination="amq.direct", source="x", routing_key="k")
    away = m.ExchangeUnbind(destination="amq.direct", source="x", routing_key="k")
    assert await done(shell, to, away, m.ExchangeDelete(exchange="x")) == Outcome()
    assert shell.node.map.exchange("/", "x") is None


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        (m.QueueDeclare(queue="q", durable=True), 406, "PRECONDITION_FAILED - inequivalent arg 'durable'"),
        (m.QueuePurge(queue="none"), 404, "NOT_FOUND - no queue 'none' in vhost '/'"),
        (m.QueueBind(queue="q", exchange=""), 403, "ACCESS_REFUSED - operation not permitted on the default exchange"),
        (Get("none", 1, "ack_requeue_true"), 404, "NOT_FOUND - no queue 'none' in vhost '/'"),
        (Get("s", 1, "ack_requeue_true"), 540, "NOT_IMPLEMENTED - basic.get not supported by stream 's'"),
        (message("q", exchange="none"), 404, "NOT_FOUND - no exchange 'none' in vhost '/'"),
        (message("q", user_id="eve"), 406, "PRECONDITION_FAILED - user_id property set to 'eve'"),
        (message("q", expiration="soon"), 406, "PRECONDITION_FAILED - invalid expiration"),
        (message("q", bytes((16 << 20) + 1)), 406, "PRECONDITION_FAILED - message size 16777217 is larger than"),
        (Ask("amq.lease", "end", {"queue": "none"}), 404, "no queue 'none' in vhost '/'"),
    ],
)
async def test_what_is_refused(start: Any, request_: Any, code: int, text: str) -> None:
    shell = await start()
    stream = m.QueueDeclare(queue="s", durable=True, arguments={"x-queue-type": "stream"})
    assert await done(shell, m.QueueDeclare(queue="q"), stream) == Outcome()
    refused = await done(shell, request_, m.QueueDeclare(queue="after"))
    assert (refused.code, refused.text[: len(text)]) == (code, text)
    assert shell.node.map.queue("/", "after") is None, "the first error ends them"


async def test_a_copy_goes_where_a_header_says(start: Any) -> None:
    shell = await start()
    copied = message("q", b"x", headers={"CC": ["copy"]})
    assert await done(shell, m.QueueDeclare(queue="q"), m.QueueDeclare(queue="copy"), copied) == Outcome()
    assert shell.node.vhosts["/"].queues["copy"].ready == 1


async def test_what_is_rejected_is_dropped(start: Any) -> None:
    shell = await start()
    outcome = await done(shell, m.QueueDeclare(queue="q"), message("q"), Get("q", 5, "reject_requeue_false"))
    assert len(outcome.got) == 1
    assert shell.node.vhosts["/"].queues["q"].ready == 0


async def test_what_a_call_got_returns_when_its_time_is_over(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = await start()
    assert await done(shell, m.QueueDeclare(queue="q"), message("q"), message("q")) == Outcome()
    monkeypatch.setattr(as_user, "TIMEOUT_S", 0.2)
    shell.alarms.set("memory", "a drill", True)
    with pytest.raises(TimeoutError):
        await done(shell, Get("q", 1, "ack_requeue_true"), message("q"))
    assert not shell.node.clients
    assert shell.node.vhosts["/"].queues["q"].ready == 2
    shell.alarms.set("memory", "a drill", False)


async def test_an_end_is_told(start: Any) -> None:
    shell = await start()
    await shell.propose(c.PutUser(name="bob", password_hash="", hash_algorithm="scrypt"))
    await shell.propose(c.SetPermission(user="bob", vhost="/", configure=".*", write=".*", read=".*"))
    shell.alarms.set("memory", "a drill", True)
    publishing = asyncio.create_task(carried_out(shell, AsUser("bob", "/", b"", (message("q"),))))
    await until(lambda: any(one.backpressure.publishes for one in shell.node.clients.values()))
    await shell.propose(c.DeleteUser(name="bob"))
    assert await publishing == Outcome(320, "CONNECTION_FORCED - user 'bob' is deleted")
    shell.alarms.set("memory", "a drill", False)


async def test_it_hears_nothing_while_the_node_may_not_speak(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = await start()
    may = [False]
    monkeypatch.setattr(type(shell), "may_speak", property(lambda _: may[0]))
    monkeypatch.setattr(as_user, "TICK_S", 0.01)
    declaring = asyncio.create_task(done(shell, m.QueueDeclare(queue="q")))
    await until(lambda: shell.node.map.queue("/", "q") is not None)
    assert not declaring.done()
    may[0] = True
    assert await declaring == Outcome()
