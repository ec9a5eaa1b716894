"""What the management process asks its node to do as a user: whose rights hold, and what is left behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from server_support import until

from clusterbroker.broker.server import counting
from clusterbroker.broker.server.control.as_user import carried_out
from clusterbroker.broker.stats.as_user import AsUser, Get, Method, Outcome, Publish, Request
from clusterbroker.broker.stats.rows import ConnectionRow
from clusterbroker.broker.wire.amqp091 import methods
from clusterbroker.broker.wire.amqp091 import properties as p
from clusterbroker.cluster.wiring import commands as c

NOTHING = p.encode(p.Properties())


def declare(name: str) -> Method:
    return Method(methods.encode(methods.QueueDeclare(queue=name)))


async def done(shell: Any, *requests: Any, user: str = "guest", vhost: str = "/", token: bytes = b"") -> Outcome:
    found: tuple[Request, ...] = requests
    outcome = await carried_out(shell, AsUser(user, vhost, token, found))  # type: ignore[arg-type]
    await until(lambda: not shell.clients)
    assert not shell.node.clients, "nothing is left of it"
    return outcome


async def test_the_rights_are_the_users(start: Any) -> None:
    shell = await start()
    await shell.propose(c.PutUser(name="bob", password_hash="", hash_algorithm="scrypt"))
    await shell.propose(c.SetPermission(user="bob", vhost="/", configure="^mine$", write="", read=""))
    assert await done(shell, declare("mine"), user="bob") == Outcome()
    refused = await done(shell, declare("other"), user="bob")
    assert (refused.code, "access to queue 'other'" in refused.text) == (403, True)
    assert shell.node.map.queue("/", "other") is None


@pytest.mark.parametrize("user", ["nobody", ""])
async def test_a_user_that_is_none_is_refused(start: Any, user: str) -> None:
    shell = await start()
    assert (await done(shell, declare("q"), user=user)).code == 403
    assert (await done(shell, declare("q"), vhost="none")).code == 530


async def test_a_token_is_asked_itself(start: Any) -> None:
    """Nobody's token is taken here, so it is a password, and a wrong one."""
    shell = await start()
    assert (await done(shell, declare("q"), token=b"no token")).code == 403


async def test_messages_come_back_as_they_went(start: Any) -> None:
    shell = await start()
    long = bytes(range(256)) * 4096
    published = await done(shell, declare("q"), Publish("", "q", NOTHING, b"first"), Publish("", "q", NOTHING, long))
    assert (published.code, published.routed) == (0, True)
    assert not (await done(shell, Publish("", "none", NOTHING, b""))).routed
    kept = await done(shell, Get("q", 10, "ack_requeue_true"))
    assert [(one.payload, one.redelivered, one.left) for one in kept.got] == [(b"first", False, 1), (long, False, 0)]
    taken = await done(shell, Get("q", 1, "ack_requeue_false"))
    assert [(one.payload, one.redelivered, one.routing_key) for one in taken.got] == [(b"first", True, "q")]
    assert shell.node.vhosts["/"].queues["q"].ready == 1


async def test_a_message_that_a_queue_does_not_take(start: Any) -> None:
    shell = await start()
    full = {"x-max-length": 0, "x-overflow": "reject-publish"}
    declared = Method(methods.encode(methods.QueueDeclare(queue="full", arguments=full)))
    assert (await done(shell, declared, Publish("", "full", NOTHING, b"x"))).nacked


async def test_an_alarm_is_waited_for(start: Any) -> None:
    shell = await start()
    shell.alarms.set("memory", "a drill", True)
    publishing = asyncio.create_task(done(shell, Publish("", "q", NOTHING, bytes(1 << 20))))
    await until(lambda: any(one.backpressure.publishes for one in shell.node.clients.values()))
    told = [row for row in counting.rows(shell, 0, 0) if isinstance(row, ConnectionRow)]
    assert not told, "it is no connection of a client"
    shell.alarms.set("memory", "a drill", False)
    assert not (await publishing).routed


async def test_a_node_that_takes_no_client(start: Any) -> None:
    shell = await start()
    shell.accepting = False
    with pytest.raises(EOFError):
        await carried_out(shell, AsUser("guest", "/", b"", (declare("q"),)))
