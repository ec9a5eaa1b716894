"""Messages of queues that the wiring does not know: kept until it does, forgotten if it knows of their deletion."""

from __future__ import annotations

import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from server_support import Peer, until
from typer.testing import CliRunner

from clusterbroker.broker.cli.journal import app
from clusterbroker.broker.server.shell import NodeShell
from clusterbroker.broker.wire.amqp091 import methods
from clusterbroker.cluster.log_store import LogStore
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.journal.options import MIB, JournalOptions

SMALL = JournalOptions(
    segment_bytes=MIB, checkpoint_bytes=1 << 40, checkpoint_interval_s=1e9, reserve_bytes=0, map_bytes=1 << 32
)
BODY = b"x" * 20_000
COUNT = 30

Start = Callable[..., Awaitable[NodeShell]]
Connect = Callable[..., Awaitable[Peer]]


class Wiring:
    """The log of a node that is down, out of which a declaration is taken, as if the log had gone back."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._taken: list[tuple[bytes, bytes]] = []

    def take(self, queue: str) -> int:
        """Its id."""
        store = LogStore(self._directory)
        try:
            for index, command in store.load().entries:
                if isinstance(command, c.DeclareQueue) and command.name == queue:
                    key = int(index).to_bytes(8, "big")
                    with store._env.begin(write=True) as txn:
                        self._taken.append((key, txn.get(key, db=store._log)))
                        txn.delete(key, db=store._log)
                    return int(index)
        finally:
            store.close()
        raise AssertionError(f"'{queue}' was declared")

    def put_back(self) -> None:
        store = LogStore(self._directory)
        with store._env.begin(write=True) as txn:
            for key, value in self._taken:
                txn.put(key, value, db=store._log)
        store.close()


async def publish(peer: Peer, queue: str, count: int) -> None:
    peer.send(1, methods.QueueDeclare(queue=queue, durable=True))
    assert isinstance(await peer.receive(), methods.QueueDeclareOk)
    peer.send(1, methods.ConfirmSelect())
    assert isinstance(await peer.receive(), methods.ConfirmSelectOk)
    peer.publish(queue, BODY, count)
    acked = 0
    while acked < count:
        said = await peer.receive()
        assert isinstance(said, methods.BasicAck), said
        acked = said.delivery_tag


async def count_of(peer: Peer, queue: str) -> int:
    peer.send(1, methods.QueueDeclare(queue=queue, passive=True))
    said = await peer.receive()
    assert isinstance(said, methods.QueueDeclareOk), said
    return said.message_count


async def checkpointed(shell: NodeShell) -> None:
    """Two more checkpoints are durable."""
    journal = shell.storage.journal
    assert journal is not None
    for _ in range(2):
        done: list[int] = []
        await until(lambda: not journal._checkpoint_runs and journal.idle)
        shell.storage.checkpoint(shell.node, lambda done=done: done.append(1))  # type: ignore[misc]
        await until(lambda done=done: done, 10)  # type: ignore[misc]


@pytest.mark.parametrize("cleanly", [True, False])
async def test_what_the_wiring_does_not_know_is_kept(
    start: Start, connect: Connect, tmp_path: Path, cleanly: bool
) -> None:
    directory = tmp_path / "data"
    options: dict[str, Any] = {"data_dir": directory, "journal": SMALL}
    shell = await start(**options)
    await publish(await (await connect(shell)).open(), "lost", COUNT)
    if cleanly:
        await shell.stop()
    else:  # as kill -9 leaves it: messages in the log's tail, of which the index may know nothing
        await until(lambda: shell.storage.journal is not None and shell.storage.journal.idle)
        shutil.copytree(directory, tmp_path / "killed", ignore=shutil.ignore_patterns("*.sock", "lock*"))
        await shell.stop()
        options["data_dir"] = directory = tmp_path / "killed"
    wiring = Wiring(directory / "wiring")
    queue_id = wiring.take("lost")

    for _ in range(2):  # a second start knows no more
        shell = await start(**options)
        assert list(shell.node.set_aside) == [queue_id]
        (alert,) = shell.node.alerts
        assert (alert.kind, alert.subject) == ("journal.unknown_queue", hex(queue_id))
        assert f"{COUNT} messages" in alert.text
        peer = await (await connect(shell)).open()
        await publish(peer, "other", 200)  # several segments, beside it and behind it
        peer.send(1, methods.QueueDelete(queue="other"))
        assert isinstance(await peer.receive(), methods.QueueDeleteOk)
        journal = shell.storage.journal
        assert journal is not None
        pinned = set(journal._pinned)
        assert pinned
        assert journal.pinned_bytes() >= COUNT * len(BODY)
        await checkpointed(shell)
        assert not pinned & set(journal.sparse_segments()), "nobody copies them forward"
        await shell.stop()
        there = {int(path.stem) for path in (directory / "journal" / "segments").glob("*.seg")}
        assert pinned <= there, "its segments are there"
        assert len(there) < 8, "others went"

    said = CliRunner().invoke(app, ["ls", str(directory), "--json"])
    (line,) = [line for line in json.loads(said.stdout) if line["id"] == hex(queue_id)]
    assert (line["name"], line["ready"], line["deleted"]) == (None, COUNT, False)
    assert "(set aside)" in CliRunner().invoke(app, ["ls", str(directory)]).stdout
    checked = CliRunner().invoke(app, ["check", str(directory)])
    assert checked.exit_code == 0, checked.stdout
    assert "1 queue set aside" in checked.stdout

    wiring.put_back()
    shell = await start(**options)
    assert not shell.node.set_aside
    assert list(shell.node.alerts) == []
    peer = await (await connect(shell)).open()
    assert await count_of(peer, "lost") == COUNT
    peer.send(1, methods.BasicGet(queue="lost", no_ack=True))
    assert isinstance(await peer.receive(), methods.BasicGetOk)


async def test_what_is_set_aside_can_be_dropped(start: Start, connect: Connect, tmp_path: Path) -> None:
    shell = await start(data_dir=tmp_path, journal=SMALL)
    await publish(await (await connect(shell)).open(), "lost", COUNT)
    await publish(await (await connect(shell)).open(), "kept", 5)
    await shell.stop()
    there = CliRunner().invoke(app, ["ls", str(tmp_path), "--json"])
    (kept,) = [line["id"] for line in json.loads(there.stdout) if line["name"] == "kept"]
    lost = hex(Wiring(tmp_path / "wiring").take("lost"))
    for words, said in (([kept, "--confirm-loss"], "is queue 'kept'"), ([lost], "say --confirm-loss")):
        refused = CliRunner().invoke(app, ["forget", str(tmp_path), *words])
        assert refused.exit_code == 2
        assert said in refused.stderr
    dropped = CliRunner().invoke(app, ["forget", str(tmp_path), lost, "--confirm-loss"])
    assert dropped.exit_code == 0, (dropped.stderr, dropped.exception)
    assert (dropped.exit_code, dropped.stdout) == (0, f"forgot {COUNT} messages of queue {lost}\n")
    assert CliRunner().invoke(app, ["check", str(tmp_path)]).exit_code == 0
    shell = await start(data_dir=tmp_path, journal=SMALL)
    assert not shell.node.set_aside
    assert await count_of(await (await connect(shell)).open(), "kept") == 5


async def test_what_the_wiring_has_deleted_is_forgotten(start: Start, connect: Connect, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    shell = await start(data_dir=directory, journal=SMALL)
    peer = await (await connect(shell)).open()
    await publish(peer, "gone", COUNT)
    await until(lambda: shell.storage.journal is not None and shell.storage.journal.idle)
    shutil.copytree(directory / "journal", tmp_path / "journal")
    peer.send(1, methods.QueueDelete(queue="gone"))
    assert isinstance(await peer.receive(), methods.QueueDeleteOk)
    await shell.stop()
    shutil.rmtree(directory / "journal")  # the same start's, as it was before the queue was deleted
    shutil.move(tmp_path / "journal", directory / "journal")
    shell = await start(data_dir=directory, journal=SMALL)
    assert not shell.node.set_aside
    assert list(shell.node.alerts) == []
    await checkpointed(shell)
    assert shell.storage.journal is not None
    assert [queue_id for queue_id, _ in shell.storage.journal.index.metas()] == []


async def test_no_queue_gets_an_id_under_which_messages_are_kept(
    start: Start, connect: Connect, tmp_path: Path
) -> None:
    shell = await start(data_dir=tmp_path, journal=SMALL)
    await publish(await (await connect(shell)).open(), "lost", COUNT)
    await shell.stop()
    queue_id = Wiring(tmp_path / "wiring").take("lost")
    store = LogStore(tmp_path / "wiring")
    with store._env.begin(write=True) as txn:  # and the log has forgotten how many indices it has given
        txn.delete(b"reserved", db=store._meta)
    store.close()
    shell = await start(data_dir=tmp_path, journal=SMALL)
    await publish(await (await connect(shell)).open(), "new", 1)
    (new,) = shell.node.map.lasting_queues()
    assert new.queue_id > queue_id
