"""Deeds about queues and messages as a user of the management API, against a real node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.amqp import methods as m
from broker.amqp.properties import Properties
from broker.http.amqp_client import AmqpClient, AmqpRefused, AmqpUnavailable
from broker.server.alarms import AlarmOptions
from broker.server.listener import Address
from broker.server.log import NodeLog
from broker.server.options import ServerOptions
from broker.server.shell import NodeShell
from cluster import commands as c
from journal.options import MIB, JournalOptions


@pytest.fixture
async def shell(tmp_path: Path) -> AsyncIterator[NodeShell]:
    options = ServerOptions(
        data_dir=tmp_path,
        desk_dir=tmp_path,
        amqp=(Address("127.0.0.1", 0),),
        journal=JournalOptions(segment_bytes=8 * MIB, reserve_bytes=0, map_bytes=1 << 32),
        alarms=AlarmOptions(memory_fraction=0, disk_free_bytes=0),
        stop_grace_s=0.1,
    )
    made = NodeShell(options, NodeLog(lambda *_: None, "debug"))
    await made.start()
    yield made
    await made.stop()


async def test_publish_and_get(shell: NodeShell, tmp_path: Path) -> None:
    async with AmqpClient.opened(tmp_path, "guest", "/") as client:
        await client.call(m.QueueDeclare(queue="q", durable=True), m.QueueDeclareOk)
        properties = Properties(headers={"a": 1}, delivery_mode=2, correlation_id="x")
        assert await client.publish("", "q", properties, b"first")
        assert await client.publish("", "q", Properties(), b"y" * 1_000_000)
        assert not await client.publish("", "nowhere", Properties(), b"lost")
    async with AmqpClient.opened(tmp_path, "guest", "/") as client:
        first, second = await client.get("q", 5, no_ack=False, bytes_max=1 << 30)
        assert (first.body, first.properties, first.routing_key, first.message_count) == (b"first", properties, "q", 1)
        assert (len(second.body), second.redelivered) == (1_000_000, False)
        await client.settle(second.tag, requeue=True)
    async with AmqpClient.opened(tmp_path, "guest", "/") as client:
        again = await client.get("q", 5, no_ack=True, bytes_max=3)
        assert [(got.body, got.redelivered) for got in again] == [(b"first", True)], "enough bytes"
    async with AmqpClient.opened(tmp_path, "guest", "/") as client:
        (last,) = await client.get("q", 5, no_ack=False, bytes_max=1 << 30)
        await client.settle(last.tag, requeue=None)
    (queue,) = shell.node.queues.values()
    assert (queue.ring.ready, queue.ring.unacked) == (0, 0)


@pytest.mark.parametrize(
    ("user", "vhost", "code", "text"),
    [
        ("nobody", "/", 403, "ACCESS_REFUSED"),
        ("guest", "none", 530, "vhost none not found"),
        ("bob", "/", 530, "access to vhost '/' refused for user 'bob'"),
    ],
)
async def test_who_may_not_come_in(
    shell: NodeShell, tmp_path: Path, user: str, vhost: str, code: int, text: str
) -> None:
    await shell.propose(c.PutUser(name="bob", password_hash="", hash_algorithm="scrypt"))
    with pytest.raises(AmqpRefused) as refused:
        async with AmqpClient.opened(tmp_path, user, vhost):
            raise AssertionError("it is not let in")
    assert refused.value.code == code
    assert text in refused.value.text


async def test_what_is_wrong_is_told_as_to_any_client(shell: NodeShell, tmp_path: Path) -> None:
    with pytest.raises(AmqpRefused, match="404 NOT_FOUND - no exchange 'none' in vhost '/'") as refused:
        async with AmqpClient.opened(tmp_path, "guest", "/") as client:
            await client.publish("none", "q", Properties(), b"x")
    assert refused.value.code == 404
    with pytest.raises(AmqpRefused, match="no queue 'none' in vhost '/'"):
        async with AmqpClient.opened(tmp_path, "guest", "/") as client:
            await client.get("none", 1, no_ack=True, bytes_max=1)
    await shell.propose(c.PutUser(name="bob", password_hash="", hash_algorithm="scrypt"))
    await shell.propose(c.SetPermission(user="bob", vhost="/", configure="", write="", read=""))
    with pytest.raises(AmqpRefused, match="access to queue 'q' in vhost '/' refused for user 'bob'"):
        async with AmqpClient.opened(tmp_path, "bob", "/") as client:
            await client.call(m.QueueDeclare(queue="q"), m.QueueDeclareOk)


async def test_a_node_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(AmqpUnavailable, match="the node is not there"):
        async with AmqpClient.opened(tmp_path, "guest", "/"):
            pass
