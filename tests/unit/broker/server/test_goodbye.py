"""A client that is told to go elsewhere hears first what became of what it has published (operator b10)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from server_support import Peer, until

from clusterbroker.broker.server import goodbye
from clusterbroker.broker.wire.amqp091 import methods

COUNT = 500


async def publishing(shell: Any, peer: Peer) -> Any:
    """The connection of a client whose messages were taken, and are not on the disk yet."""
    peer.send(1, methods.QueueDeclare(queue="q", durable=True))
    assert isinstance(await peer.receive(), methods.QueueDeclareOk)
    peer.send(1, methods.ConfirmSelect())
    assert isinstance(await peer.receive(), methods.ConfirmSelectOk)
    peer.publish("q", b"x" * 1000, COUNT)
    (connection,) = shell.node.clients.values()
    async with asyncio.timeout(10):
        while not connection.channels[1].confirms.unconfirmed:  # noqa: ASYNC110 - each turn of the loop counts
            await asyncio.sleep(0)
    return connection


async def said_until_close(peer: Peer) -> tuple[int, methods.ConnectionClose]:
    """How many publishes were confirmed, and how it was told to go."""
    acked = 0
    while not isinstance(said := await peer.receive(), methods.ConnectionClose):
        assert isinstance(said, methods.BasicAck), said
        acked = said.delivery_tag if said.multiple else acked + 1
    peer.send(0, methods.ConnectionCloseOk())
    return acked, said


@pytest.mark.parametrize("stops", [False, True])
async def test_what_was_taken_is_confirmed_before_320(start: Any, connect: Any, tmp_path: Path, stops: bool) -> None:
    shell = await start(data_dir=tmp_path)
    peer = await (await connect(shell)).open()
    await publishing(shell, peer)
    (queue,) = shell.node.queues.values()
    going = asyncio.create_task(shell.stop() if stops else goodbye.turn_clients_away(shell))
    acked, close = await said_until_close(peer)
    await going
    assert close.reply_code == 320
    stored = queue.ring.ready
    assert acked == stored > 0, "what is not confirmed was not taken: it may be sent again without coming twice"


async def test_who_is_owed_nothing_goes_at_once(start: Any, connect: Any, tmp_path: Path) -> None:
    shell = await start(data_dir=tmp_path)
    peer = await (await connect(shell)).open()
    await until(lambda: shell.node.clients)
    going = goodbye.turn_clients_away(shell)
    with pytest.raises(StopIteration):
        going.send(None)
    assert (await said_until_close(peer))[0] == 0


async def test_a_queue_that_confirms_nothing_is_not_waited_for_long(
    start: Any, connect: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(goodbye, "PATIENCE_S", 0.05)
    shell = await start(data_dir=tmp_path)
    peer = await (await connect(shell)).open()
    connection = await publishing(shell, peer)
    confirms = connection.channels[1].confirms
    confirms.ticket(1)  # of a publish whose queue lacks copies
    await goodbye.turn_clients_away(shell)
    assert not connection.reading or connection.state.name == "CLOSING"
    assert (await said_until_close(peer))[1].reply_code == 320
