"""Segments that stay thin are emptied, slice by slice, while the node goes on; those that empty themselves are left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from server_support import Peer, until

from clusterbroker.broker.server.copy_forward import SLICE
from clusterbroker.broker.server.shell import NodeShell
from clusterbroker.broker.wire.amqp091 import methods
from clusterbroker.journal.options import MIB, JournalOptions

BY_HAND = JournalOptions(
    segment_bytes=MIB, checkpoint_bytes=1 << 40, checkpoint_interval_s=1e9, reserve_bytes=0, map_bytes=1 << 32
)
FILLER = b"x" * 100_000


class Node:
    """A node whose checkpoints are taken when the test says so, and what it reads to copy it forward."""

    def __init__(self, shell: NodeShell, peer: Peer) -> None:
        self.shell = shell
        self.peer = peer
        journal = shell.storage.journal
        assert journal is not None
        self.journal = journal
        self.read: list[int] = []
        survivors = journal.survivors

        def observed(segment: int, done: Any) -> None:
            self.read.append(segment)
            survivors(segment, done)

        journal.survivors = observed  # type: ignore[method-assign]

    async def ask(self, method: Any, kind: type) -> Any:
        self.peer.send(1, method)
        said = await self.peer.receive()
        assert isinstance(said, kind), said
        return said

    async def fill(self, queue: str, body: bytes, count: int) -> None:
        self.peer.publish(queue, body, count)
        self.published = getattr(self, "published", 0) + count
        acked = 0
        while acked < self.published:
            said = await self.peer.receive()
            assert isinstance(said, methods.BasicAck), said
            acked = said.delivery_tag

    async def purge(self, queue: str) -> None:
        await self.ask(methods.QueuePurge(queue=queue), methods.QueuePurgeOk)
        await self.rest()

    async def rest(self) -> None:
        node = self.shell.node
        await until(lambda: not node.wants_group and not node.busy and self.journal.idle)

    async def checkpoint(self) -> None:
        """Taken, and what it led to is through."""
        done: list[int] = []
        await self.rest()

        def then() -> None:
            self.shell._checkpointed()
            done.append(1)

        self.shell.storage.checkpoint(self.shell.node, then)
        copying = self.shell._copy_forward
        assert copying is not None
        await until(lambda: done and not copying._segments)
        await self.rest()


async def node_with_queues(start: Any, connect: Any, directory: Path) -> Node:
    shell = await start(data_dir=directory, journal=BY_HAND)
    node = Node(shell, await (await connect(shell)).open())
    for queue in ("kept", "filler"):
        await node.ask(methods.QueueDeclare(queue=queue, durable=True), methods.QueueDeclareOk)
    await node.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    return node


async def test_what_leaves_by_the_next_checkpoint_is_never_read(start: Any, connect: Any, tmp_path: Path) -> None:
    node = await node_with_queues(start, connect, tmp_path)
    await node.fill("kept", b"k", 50)
    await node.fill("filler", FILLER, 40)
    await node.purge("filler")
    await node.checkpoint()
    assert node.journal.sparse_segments() == [1]
    assert node.read == []
    await node.purge("kept")
    await node.checkpoint()
    assert node.read == []
    assert node.journal.sparse_segments() == []


async def test_what_stays_is_copied_forward_in_slices(start: Any, connect: Any, tmp_path: Path) -> None:
    """More small messages than a slice has; some leave while it goes on; a restart finds the others."""
    node = await node_with_queues(start, connect, tmp_path)
    many = 2 * SLICE + 10
    await node.fill("kept", b"k" * 20, many)
    await node.fill("filler", FILLER, 40)
    await node.purge("filler")
    await node.checkpoint()
    assert node.read == []
    for _ in range(5):  # they stay at their old place until their copies are durable
        node.peer.send(1, methods.BasicGet(queue="kept", no_ack=True))
    await node.checkpoint()
    assert node.read == [1]
    for _ in range(5):
        assert isinstance(await node.peer.receive(), methods.BasicGetOk)
    await until(lambda: not node.journal.use.live(1))
    await node.checkpoint()
    first = tmp_path / "journal/segments/00000001.seg"
    await until(lambda: not first.exists())
    assert node.read == [1]
    await node.shell.stop()
    shell = await start(data_dir=tmp_path, journal=BY_HAND)
    node = Node(shell, await (await connect(shell)).open())
    said = await node.ask(methods.QueueDeclare(queue="kept", durable=True), methods.QueueDeclareOk)
    assert said.message_count == many - 5


async def test_a_node_that_stops_meanwhile_loses_nothing(start: Any, connect: Any, tmp_path: Path) -> None:
    node = await node_with_queues(start, connect, tmp_path)
    await node.fill("kept", b"k" * 20, 3 * SLICE)
    await node.fill("filler", FILLER, 40)
    await node.purge("filler")
    await node.checkpoint()
    await node.rest()
    node.shell.storage.checkpoint(node.shell.node, node.shell._checkpointed)
    await until(lambda: node.read == [1])
    await node.shell.stop()
    shell = await start(data_dir=tmp_path, journal=BY_HAND)
    node = Node(shell, await (await connect(shell)).open())
    said = await node.ask(methods.QueueDeclare(queue="kept", durable=True), methods.QueueDeclareOk)
    assert said.message_count == 3 * SLICE
