"""Damage that a start finds and that names its queue: the node serves everything else, and what can be read of it."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest
from server_support import Peer, until
from typer.testing import CliRunner

from clusterbroker.broker.cli.journal import app
from clusterbroker.broker.server.shell import NodeShell
from clusterbroker.broker.wire.amqp091 import methods
from clusterbroker.journal.errors import DamagedJournal
from clusterbroker.journal.options import MIB, JournalOptions
from clusterbroker.journal.record import scan_group

OPTIONS = JournalOptions(
    segment_bytes=MIB // 4, checkpoint_bytes=1 << 40, checkpoint_interval_s=1e9, reserve_bytes=0, map_bytes=1 << 32
)
COUNT = 300

Start = Callable[..., Awaitable[NodeShell]]
Connect = Callable[..., Awaitable[Peer]]


def body(queue: str, number: int) -> bytes:
    return f"{queue} {number:06d} ".encode() * 20


async def publish(peer: Peer, queue: str, count: int, **arguments: Any) -> None:
    peer.send(1, methods.QueueDeclare(queue=queue, durable=True, arguments=arguments))
    assert isinstance(await peer.receive(), methods.QueueDeclareOk)
    peer.send(1, methods.ConfirmSelect())
    assert isinstance(await peer.receive(), methods.ConfirmSelectOk)
    for number in range(1, count + 1):
        peer.publish(queue, body(queue, number), 1)
    acked = 0
    while acked < count:
        said = await peer.receive()
        assert isinstance(said, methods.BasicAck), said
        acked = said.delivery_tag
    peer.send(1, methods.ChannelClose(reply_code=200))
    assert isinstance(await peer.receive(), methods.ChannelCloseOk)
    peer.send(1, methods.ChannelOpen())
    assert isinstance(await peer.receive(), methods.ChannelOpenOk)


async def taken(peer: Peer, queue: str, count: int) -> list[tuple[int, bool]]:
    """(number, redelivered) of what the queue hands out; acknowledged."""
    found = []
    for _ in range(count):
        peer.send(1, methods.BasicGet(queue=queue, no_ack=True))
        said = await peer.receive()
        if isinstance(said, methods.BasicGetEmpty):
            break
        assert isinstance(said, methods.BasicGetOk), said
        content = await content_of(peer)
        found.append((int(content.split()[1]), said.redelivered))
    return found


async def content_of(peer: Peer) -> bytes:
    kind, _, header = await peer.frame()
    assert kind == 2, "a content's header"
    size, data = int.from_bytes(header[4:12], "big"), b""
    while len(data) < size:
        data += (await peer.frame())[2]
    return data


async def numbers(peer: Peer, queue: str, count: int = COUNT + 1) -> list[int]:
    return [number for number, _ in await taken(peer, queue, count)]


async def killed(shell: NodeShell, copy: Path) -> None:
    """What kill -9 leaves, in another place."""
    await until(lambda: shell.storage.journal is not None and shell.storage.journal.idle)
    directory = shell.options.data_dir
    assert directory is not None
    shutil.copytree(directory, copy, ignore=shutil.ignore_patterns("*.sock", "lock*"))


def index_values(
    directory: Path, queue_id: int, change: Callable[[bytes], bytes | None], base: bytes = b"queues"
) -> int:
    """Changes the index behind the journal's back; how many values of the queue there are."""
    env = lmdb.open(str(directory / "journal" / "index"), map_size=1 << 32, max_dbs=8, lib_version=0)
    there = env.open_db(base)
    first = queue_id.to_bytes(8, "big")
    count = 0
    with env.begin(write=True) as txn:
        for key, value in list(txn.cursor(there).iternext()):
            if bytes(key).startswith(first):
                count += 1
                changed = change(bytes(value))
                if changed is None:
                    txn.delete(key, db=there)
                else:
                    txn.put(key, changed, db=there)
    env.close()
    return count


def queue_id(shell: NodeShell, name: str) -> int:
    queue = shell.node.map.queue("/", name)
    assert queue is not None
    return int(queue.queue_id)


def alerts(shell: NodeShell) -> list[tuple[str, str]]:
    return [(alert.kind, alert.subject) for alert in shell.node.alerts]


def flipped(value: bytes) -> bytes:
    return value[:-1] + bytes((value[-1] ^ 16,))


@pytest.mark.parametrize("how", ["value", "gone", "sum"])
async def test_a_queue_of_which_the_index_is_wrong_is_read_from_the_log(
    start: Start, connect: Connect, tmp_path: Path, how: str
) -> None:
    options: dict[str, Any] = {"data_dir": tmp_path / "data", "journal": OPTIONS}
    shell = await start(**options)
    peer = await (await connect(shell)).open()
    await publish(peer, "hurt", COUNT)
    await publish(peer, "whole", 10)
    assert await numbers(peer, "hurt", 20) == list(range(1, 21))
    hurt = queue_id(shell, "hurt")
    await shell.stop()
    base, change = (b"sums", flipped) if how == "sum" else (b"queues", flipped if how == "value" else lambda _: None)
    assert index_values(tmp_path / "data", hurt, change, base) > 0

    shell = await start(**options)
    assert alerts(shell) == [("queue.read_from_log", "queue 'hurt' in vhost '/'")]
    peer = await (await connect(shell)).open()
    assert await numbers(peer, "whole") == list(range(1, 11))
    found = await taken(peer, "hurt", 10)
    assert found == [(number, True) for number in range(21, 31)]
    await publish(peer, "hurt", 1)
    await shell.stop()

    shell = await start(**options)
    assert alerts(shell) == [], "the index has it again"
    peer = await (await connect(shell)).open()
    assert await numbers(peer, "hurt") == [*range(31, COUNT + 1), 1]


async def test_what_was_copied_forward_is_found_behind_younger_messages(
    start: Start, connect: Connect, tmp_path: Path
) -> None:
    """Segments that went have neither the first place of a message nor its acknowledgement."""
    small = JournalOptions(
        segment_bytes=64 << 10, checkpoint_bytes=1 << 40, checkpoint_interval_s=1e9, reserve_bytes=0, map_bytes=1 << 32
    )
    options: dict[str, Any] = {"data_dir": tmp_path / "data", "journal": small}
    shell = await start(**options)
    peer = await (await connect(shell)).open()
    await publish(peer, "hurt", COUNT)
    await publish(peer, "passing", COUNT)
    assert len(await numbers(peer, "passing")) == COUNT
    journal = shell.storage.journal
    assert journal is not None
    before = len(list((tmp_path / "data" / "journal" / "segments").glob("*.seg")))
    for _ in range(6):
        done: list[int] = []
        await until(lambda: not journal._checkpoint_runs and journal.idle)
        shell.storage.checkpoint(shell.node, lambda done=done: done.append(1))  # type: ignore[misc]
        await until(lambda done=done: done, 10)  # type: ignore[misc]
        shell.run_turn()
    assert len(list((tmp_path / "data" / "journal" / "segments").glob("*.seg"))) < before
    hurt = queue_id(shell, "hurt")
    await shell.stop()
    index_values(tmp_path / "data", hurt, flipped)
    shell = await start(**options)
    peer = await (await connect(shell)).open()
    assert await numbers(peer, "hurt") == list(range(1, COUNT + 1))
    assert await numbers(peer, "passing") == []


async def test_a_record_of_the_tail_costs_its_message(start: Start, connect: Connect, tmp_path: Path) -> None:
    """As kill -9 leaves it: the start reads the log."""
    shell = await start(data_dir=tmp_path / "data", journal=OPTIONS)
    peer = await (await connect(shell)).open()
    await publish(peer, "hurt", 20)
    await publish(peer, "whole", 10)
    await killed(shell, tmp_path / "killed")
    segment = tmp_path / "killed" / "journal" / "segments" / "00000001.seg"
    data = bytearray(segment.read_bytes())
    at = data.index(body("hurt", 7))
    data[at + 30] ^= 16
    segment.write_bytes(data)

    options: dict[str, Any] = {"data_dir": tmp_path / "killed", "journal": OPTIONS}
    shell = await start(**options)
    assert alerts(shell) == [("message.damaged", "queue 'hurt' in vhost '/'")]
    (alert,) = shell.node.alerts
    assert alert.text.startswith("1 messages")
    assert "seq 7 " in alert.text
    peer = await (await connect(shell)).open()
    assert await numbers(peer, "whole", 9) == list(range(1, 10))
    assert await numbers(peer, "hurt", 3) == [1, 2, 3]
    await shell.stop()

    shell = await start(**options)  # a checkpoint knows the message: it is met when it is read
    peer = await (await connect(shell)).open()
    assert await numbers(peer, "whole") == [10]
    assert await numbers(peer, "hurt") == [4, 5, 6, *range(8, 21)]
    assert alerts(shell) == [("message.damaged", "queue 'hurt' in vhost '/'")]


async def test_a_record_whose_head_names_another_queue_costs_the_right_one(
    start: Start, connect: Connect, tmp_path: Path
) -> None:
    """One bit of the queue's id. The other queue held a message back that it never had, and this one had one less,
    confirmed, without a word."""
    shell = await start(data_dir=tmp_path / "data", journal=OPTIONS)
    peer = await (await connect(shell)).open()
    names = [f"q{number}" for number in range(4)]
    for name in names:
        await publish(peer, name, 20)
    ids = {name: queue_id(shell, name) for name in names}
    hurt, other = next((a, b) for a in names for b in names if (ids[a] ^ ids[b]).bit_count() in (1, 2))
    await killed(shell, tmp_path / "killed")
    segment = tmp_path / "killed" / "journal" / "segments" / "00000001.seg"
    data = bytearray(segment.read_bytes())
    at = data.rindex(ids[hurt].to_bytes(8, "little") + (7).to_bytes(8, "little"), 0, data.index(body(hurt, 7)))
    data[at : at + 8] = ids[other].to_bytes(8, "little")
    segment.write_bytes(data)

    shell = await start(data_dir=tmp_path / "killed", journal=OPTIONS)
    assert alerts(shell) == [("message.damaged", f"queue '{hurt}' in vhost '/'")]
    peer = await (await connect(shell)).open()
    assert await numbers(peer, other) == list(range(1, 21))
    assert await numbers(peer, hurt) == [*range(1, 7), *range(8, 21)]


async def test_a_segment_that_is_gone_costs_the_messages_in_it(start: Start, connect: Connect, tmp_path: Path) -> None:
    options: dict[str, Any] = {"data_dir": tmp_path / "data", "journal": OPTIONS}
    shell = await start(**options)
    peer = await (await connect(shell)).open()
    await publish(peer, "hurt", COUNT)
    await publish(peer, "filler", 3 * COUNT)  # so that "whole" begins in the next segment
    await publish(peer, "whole", 10)
    await shell.stop()
    segments = sorted((tmp_path / "data" / "journal" / "segments").glob("*.seg"))
    first = segments[0]
    assert body("hurt", COUNT) in first.read_bytes()
    assert body("whole", 1) not in first.read_bytes()
    first.unlink()
    shell = await start(**options)
    assert ("message.damaged", "queue 'hurt' in vhost '/'") in alerts(shell)
    peer = await (await connect(shell)).open()
    assert await numbers(peer, "whole") == list(range(1, 11))
    assert await numbers(peer, "hurt") == []


async def read_stream(peer: Peer, count: int) -> list[int]:
    """The numbers of its messages from the first on; the offsets ascend."""
    peer.send(1, methods.BasicQos(prefetch_count=count + 1))
    assert isinstance(await peer.receive(), methods.BasicQosOk)
    peer.send(1, methods.BasicConsume(queue="stream", consumer_tag="all", arguments={"x-stream-offset": "first"}))
    assert isinstance(await peer.receive(), methods.BasicConsumeOk)
    found = []
    while len(found) < count:
        assert isinstance(await peer.receive(), methods.BasicDeliver)
        found.append(int((await content_of(peer)).split()[1]))
    peer.send(1, methods.BasicCancel(consumer_tag="all"))
    assert isinstance(await peer.receive(), methods.BasicCancelOk), "there is no more"
    return found


@pytest.mark.long
@pytest.mark.parametrize("copied", [False, True], ids=["", "copied"])
@pytest.mark.parametrize("how", ["value", "gone", "sum"])
async def test_a_stream_of_which_the_index_is_wrong_is_read_from_its_files(
    start: Start, connect: Connect, tmp_path: Path, how: str, copied: bool
) -> None:
    """On a node that is alone it ended each start, and with it every other queue. `copied`: a checkpoint had copied the
    log's tail to the files, and a kill came before the index said so."""
    options: dict[str, Any] = {"data_dir": tmp_path / "data", "journal": OPTIONS}
    words = {"x-queue-type": "stream"}
    shell = await start(**options)
    peer = await (await connect(shell)).open()
    await publish(peer, "stream", 50, **words)
    await publish(peer, "whole", 10)
    hurt = queue_id(shell, "stream")
    await shell.stop()
    shell = await start(**options)
    peer = await (await connect(shell)).open()
    await publish(peer, "stream", 30, **words)
    await killed(shell, tmp_path / "killed")
    await shell.stop()
    if copied:
        shutil.copytree(tmp_path / "data/journal/streams", tmp_path / "killed/journal/streams", dirs_exist_ok=True)
    base, change = (b"sums", flipped) if how == "sum" else (b"queues", flipped if how == "value" else lambda _: None)
    assert index_values(tmp_path / "killed", hurt, change, base) > 0
    said = CliRunner().invoke(app, ["check", str(tmp_path / "killed")])
    assert (said.exit_code, "A start serves everything else" in said.output) == (1, True), said.output

    options["data_dir"] = tmp_path / "killed"
    everything = [*range(1, 51), *range(1, 31)]
    shell = await start(**options)
    assert alerts(shell) == [("queue.read_from_log", "queue 'stream' in vhost '/'")]
    peer = await (await connect(shell)).open()
    assert await numbers(peer, "whole") == list(range(1, 11))
    (stream,) = (queue for queue in shell.node.queues.values() if queue.name == "stream")
    assert stream.ready == 80, "no message stands in the log and in a file"
    assert await read_stream(peer, 80) == everything
    await publish(peer, "stream", 5, **words)
    assert stream.ring.next_seq == 86, "no seq means two messages, and none is passed over"
    await shell.stop()

    shell = await start(**options)
    assert alerts(shell) == [], "the index has it again"
    peer = await (await connect(shell)).open()
    assert await read_stream(peer, 85) == [*everything, *range(1, 6)]


@pytest.mark.parametrize("name", ["queue", "stream"])
async def test_what_was_read_from_the_log_keeps_its_seqs_also_without_messages(
    start: Start, connect: Connect, tmp_path: Path, name: str
) -> None:
    """The checkpoint that forgot the wrong values wrote none in their place, and each number was given again."""
    options: dict[str, Any] = {"data_dir": tmp_path / "data", "journal": OPTIONS}
    shell = await start(**options)
    peer = await (await connect(shell)).open()
    await publish(peer, name, 20, **({"x-queue-type": "stream"} if name == "stream" else {}))
    hurt = queue_id(shell, name)
    if name == "queue":
        assert len(await numbers(peer, name)) == 20
    await shell.stop()
    assert index_values(tmp_path / "data", hurt, flipped) > 0
    for _ in range(3):
        shell = await start(**options)
        (queue,) = (queue for queue in shell.node.queues.values() if queue.name == name)
        assert queue.ring.next_seq >= 21
        await shell.stop()


@pytest.mark.parametrize("part", ["length", "header", "checkpoint", "segments"])
async def test_what_is_no_queues_is_the_nodes(start: Start, connect: Connect, tmp_path: Path, part: str) -> None:
    shell = await start(data_dir=tmp_path / "data", journal=OPTIONS)
    peer = await (await connect(shell)).open()
    await publish(peer, "q", 20)
    if part in ("length", "header"):
        await killed(shell, tmp_path / "killed")
    await shell.stop()
    directory = tmp_path / "killed" if part in ("length", "header") else tmp_path / "data"
    segment = directory / "journal" / "segments" / "00000001.seg"
    if part == "segments":
        segment.unlink()
    elif part == "checkpoint":
        env = lmdb.open(str(directory / "journal" / "index"), map_size=1 << 32, max_dbs=8, lib_version=0)
        with env.begin(write=True) as txn:
            there = env.open_db(b"journal", txn=txn)
            txn.put(b"ckpt", flipped(txn.get(b"ckpt", db=there)), db=there)
        env.close()
    else:
        data, at, records = bytearray(segment.read_bytes()), 0, []
        while not any(record.seq == 7 for record in records):
            group = at
            _, length, records = scan_group(data, at)
            at += length
        (record,) = [record for record in records if record.seq == 7]
        data[group + 16 if part == "header" else record.offset] ^= 64
        segment.write_bytes(data)
    with pytest.raises(DamagedJournal):
        await start(data_dir=directory, journal=OPTIONS)
