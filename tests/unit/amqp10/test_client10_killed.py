"""A client that is killed with its deliveries unsettled: its next life goes on from its file."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from clusterbroker import Broker
from clusterbroker.amqp10.client import (
    Accepted,
    Backoff,
    ClientConnection,
    FileStore,
    LinkDetached,
    Message,
    NotRecoverable,
    connect,
)
from clusterbroker.amqp10.client.management import Management
from clusterbroker.amqp10.client.store import LinkId

PROGRAM = Path(__file__).with_name("killed_client.py")
MESSAGES = 1000
KILLS = 4
QUICK = Backoff(first=0.001, longest=0.02)


@pytest.fixture
async def connection(clusterbroker: Broker) -> AsyncIterator[ClientConnection]:
    """Skips where the node does not keep links."""
    async with await connect(clusterbroker.url) as opened:
        async with await Management.open(opened) as management:
            await management.declare_queue("q")
        try:
            await (await opened.sender("/queues/q", name="probe", recoverable="node")).close()
        except NotRecoverable as error:
            pytest.skip(str(error))
        yield opened


async def numbers(connection: ClientConnection) -> list[int]:
    receiver = await connection.receiver("/queues/q", credit=0)
    await receiver.drain(2 * MESSAGES)
    found = []
    while (delivery := await receiver.receive(0)) is not None:
        found.append(int(delivery.body[:6]))
        await delivery.accept()
    return found


@pytest.mark.processes
async def test_a_sender_that_is_killed_loses_and_doubles_nothing(
    clusterbroker: Broker, connection: ClientConnection, tmp_path: Path
) -> None:
    chance = random.Random(1)
    words = [sys.executable, str(PROGRAM), clusterbroker.url, str(tmp_path / "s"), str(tmp_path / "p"), str(MESSAGES)]
    kills = 0
    while True:
        program = await asyncio.create_subprocess_exec(*words, stderr=subprocess.PIPE)
        there = (tmp_path / "p").stat().st_size if kills else 0
        wanted = there + chance.randrange(300, 900)
        ended = asyncio.create_task(program.communicate())
        while not ended.done():
            await asyncio.sleep(0.002)
            if kills < KILLS and (tmp_path / "p").exists() and (tmp_path / "p").stat().st_size > wanted:
                program.send_signal(signal.SIGKILL)
                kills += 1
                break
        _, said = await ended
        if program.returncode != -signal.SIGKILL:
            assert program.returncode == 0, said.decode()
            break
    assert kills == KILLS
    assert sorted(int(line) for line in (tmp_path / "p").read_text().split()) == list(range(MESSAGES))
    assert await numbers(connection) == list(range(MESSAGES))


async def test_an_outcome_that_was_given_is_not_asked_for_again(
    clusterbroker: Broker, connection: ClientConnection, tmp_path: Path
) -> None:
    sender = await connection.sender("/queues/q")
    for number in range(3):
        await sender.send(Message(body=b"%06d" % number))
    first = await connect(clusterbroker.url, container_id="c", store=FileStore(tmp_path / "s"), reconnect=False)
    receiver = await first.receiver("/queues/q", name="in", recoverable="node")
    deliveries = [await receiver.receive(5) for _ in range(3)]
    assert deliveries[0] is not None
    deliveries[0].dispose(Accepted())
    work = first.store.take()
    assert work is not None
    work()  # on disk, and killed before the broker hears of it
    assert first._life is not None
    first._life.cancel()
    await asyncio.gather(first._life, return_exceptions=True)
    first.store.close()
    async with await connect(clusterbroker.url, container_id="c", store=FileStore(tmp_path / "s")) as second:
        receiver = await second.receiver("/queues/q", name="in", recoverable="node")
        found = [await receiver.receive(5) for _ in range(2)]
        assert [each and each.body for each in found] == [b"000001", b"000002"]
        for each in found:
            assert each is not None
            await each.accept()
        assert not receiver.receiving.unsettled
        await receiver.close()
    assert await numbers(connection) == []


async def test_a_link_that_the_broker_has_forgotten_is_refused(
    clusterbroker: Broker, connection: ClientConnection, tmp_path: Path
) -> None:
    """In doubt is in doubt: the client does not send it again on its own."""
    store = FileStore(tmp_path / "s")
    store.open(LinkId("c", "never", False))
    store.put(LinkId("c", "never", False), b"t", None, Message(body=b"m").encoded())
    async with await connect(clusterbroker.url, container_id="c", store=store) as second:
        with pytest.raises(LinkDetached, match="amqp:resource-deleted") as refused:
            await second.sender("/queues/q", name="never", recoverable="node")
        assert not refused.value.may_retry
    assert FileStore(tmp_path / "s").load(LinkId("c", "never", False)) is not None
