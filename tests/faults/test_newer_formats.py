"""A node finds what a newer release has written, of each kind: it says so in one line, and changes nothing.

Each test writes a number that this release does not know, starts a real node, and puts the old bytes back: then the
node starts, and has what it had. What is said between nodes is in `test_cluster_hostile` and in the links' unit tests.
"""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pika
import pytest

from clusterbroker.broker.server.directory import FORMAT as IDENTITY_FORMAT
from clusterbroker.broker.server.member.addresses import FORMAT as MEMBERS_FORMAT
from clusterbroker.cluster import log_store
from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.log_store import LogStore
from clusterbroker.cluster.raft import snapshots
from clusterbroker.cluster.raft.disk import FileDisk
from clusterbroker.cluster.raft.fold import Envelope, seal
from clusterbroker.cluster.raft.journal import Journal
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring import snapshot
from clusterbroker.journal.index import FORMAT_VERSION, Index
from tests.faults.fleet import Fleet
from tests.faults.node import NodeProcess

COMMAND = c.AddVhost(name="from the future")


def kept(node: NodeProcess) -> bytes:
    connection = pika.BlockingConnection(pika.URLParameters(node.url))
    body: bytes = connection.channel().basic_get("q")[2]
    connection.close()
    return body


@pytest.fixture
def stopped(make_node: Callable[..., NodeProcess]) -> NodeProcess:
    """A node that was alone, ended in order, with a message in it."""
    node = make_node().start()
    connection = pika.BlockingConnection(pika.URLParameters(node.url))
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", "q", b"kept", pika.BasicProperties(delivery_mode=2))
    connection.close()
    assert node.stop() == 0
    return node


def newer_journal(data: Path) -> None:
    index = Index(data / "journal")
    with index._env.begin(write=True) as txn:
        index._put(txn, index._journal, b"format", msgspec.msgpack.encode({"version": FORMAT_VERSION + 1}))
    index.close()


def newer_wiring(data: Path) -> None:
    store = LogStore(data / "wiring")
    with store._env.begin(write=True) as txn:
        store._put(txn, b"format", struct.pack("<I", log_store.FORMAT + 1))
    store.close()


def newer_command(data: Path) -> None:
    store = LogStore(data / "wiring")
    command = bytes((c.VERSION + 1,)) + c.encode(COMMAND)[1:]
    store.append([(LogIndex(store.load().next_index), command)])
    store.close()


def unknown_command(data: Path) -> None:
    store = LogStore(data / "wiring")
    command = bytes((c.VERSION,)) + msgspec.msgpack.encode(["of_tomorrow", 5, "a field"])
    store.append([(LogIndex(store.load().next_index), command)])
    store.close()


def newer_snapshot(data: Path) -> None:
    store = LogStore(data / "wiring")
    stored = store.load()
    store.write_snapshot(LogIndex(stored.next_index), [bytes((snapshot.VERSION + 1,)) + b"\x92\x00\x90"])
    store.close()


@pytest.mark.parametrize(
    ("write", "line"),
    [
        (newer_journal, "has format 4; this version reads format 3"),
        (
            newer_wiring,
            "written in format 2 by a newer release, this one knows formats up to 1: start that release again",
        ),
        (newer_command, "was written by a newer release, this one cannot read it (command version 2 is not 1): start"),
        (unknown_command, "was written by a newer release, this one cannot read it (not a metadata command: "),
        (
            newer_snapshot,
            "was written by a newer release, this one cannot read it (snapshot version 2 is not 1): start",
        ),
    ],
)
def test_a_node_that_is_alone(stopped: NodeProcess, write: Callable[[Path], None], line: str, tmp_path: Path) -> None:
    data = stopped.data_dir
    shutil.copytree(data, tmp_path / "before")
    write(data)
    stopped.launch()
    assert stopped.wait() == 1
    said = stopped.log.strip().splitlines()[-1]
    assert said.startswith("clusterbroker: "), said
    assert line in said
    assert str(data) in said
    assert "backup" not in said, "that is the advice for what is damaged"
    shutil.rmtree(data)
    (tmp_path / "before").rename(data)
    assert kept(stopped.start()) == b"kept"


@pytest.mark.parametrize(("name", "known"), [("identity", IDENTITY_FORMAT), ("members", MEMBERS_FORMAT)])
async def test_a_member_whose_directory_is_of_a_newer_release(fleet: Fleet, name: str, known: int) -> None:
    await found(fleet)
    file = fleet.node("a").data_dir / name
    before = file.read_text()
    file.write_text(json.dumps(json.loads(before) | {"format": known + 1}))
    fleet.launch("a", "--cluster", fleet.at("a"))
    said = await fleet.refused("a")
    assert said == f"clusterbroker: {file}: written by a newer clusterbroker: start the node with that one"
    file.write_text(before)
    await again(fleet)


def newer_raft_journal(before: bytes) -> bytes:
    """The same batches, as a release with another version of the file would have begun them."""
    magic, length, offset = struct.unpack_from("<IIQ", before)
    head = struct.pack("<IIQ", magic + 1, length, offset)
    body = before[20 : 20 + length]
    return head + struct.pack("<I", zlib.crc32(body, zlib.crc32(head))) + body


def newer_raft_snapshot(before: bytes) -> bytes:
    magic = struct.pack("<I", struct.unpack_from("<I", before)[0] + 1)
    return magic + struct.pack("<I", zlib.crc32(before[8:], zlib.crc32(magic))) + before[8:]


def newer_raft_identity(before: bytes) -> bytes:
    body = msgspec.msgpack.encode([*msgspec.msgpack.decode(before[4:])[:5], 2, "a field of tomorrow"])
    return struct.pack("<I", zlib.crc32(body)) + body


def to_the_first_release(data: Path) -> None:
    """As the first release wrote who a member is."""
    file = data / "raft" / "identity"
    body = msgspec.msgpack.encode(msgspec.msgpack.decode(file.read_bytes()[4:])[:5])
    file.write_bytes(struct.pack("<I", zlib.crc32(body)) + body)
    now = json.loads((data / "identity").read_text())
    before = {name: now[name] for name in ("name", "disk_id", "cluster_id")}
    (data / "identity").write_text(json.dumps({"format": 1, **before}))
    (data / "starts").write_text(str(now["starts"]))
    index = Index(data / "journal")
    with index._env.begin(write=True) as txn:
        txn.delete(b"stamp", db=index._journal)
    index.close()


@pytest.mark.parametrize(
    ("name", "newer"),
    [
        ("journal", newer_raft_journal),
        pytest.param("snapshot", newer_raft_snapshot, marks=pytest.mark.matrix),
        pytest.param("identity", newer_raft_identity, marks=pytest.mark.matrix),
    ],
)
async def test_a_member_with_a_raft_file_of_a_newer_release(
    fleet: Fleet, name: str, newer: Callable[[bytes], bytes]
) -> None:
    await found(fleet)
    file = fleet.node("a").data_dir / "raft" / name
    before = file.read_bytes()
    file.write_bytes(newer(before))
    fleet.launch("a", "--cluster", fleet.at("a"))
    said = await fleet.refused("a")
    assert said == (
        f"clusterbroker: {file}: it has format 2; this release reads format 1: it comes from a newer release; "
        "start that one"
    )
    assert file.read_bytes() == newer(before), "nothing was changed"
    file.write_bytes(before)
    if name == "identity":
        to_the_first_release(fleet.node("a").data_dir)
    await again(fleet)


async def test_a_member_whose_log_has_a_command_of_a_newer_release(fleet: Fleet) -> None:
    await found(fleet)
    data = fleet.node("a").data_dir
    shutil.copytree(data, fleet.directory / "before")
    disk = FileDisk(data / "raft")
    journal = Journal(disk)
    newer = Envelope("b/elsewhere", 1, 1, bytes((c.VERSION + 1,)) + c.encode(COMMAND)[1:])
    journal.add(seal(newer), journal[-1][1] + 1, journal.getCurrentTerm())
    journal.sync()
    disk.close()
    fleet.launch("a", "--cluster", fleet.at("a"))
    said = await fleet.refused("a")
    assert "cannot be read (command version 2 is not 1): it comes from a newer release; upgrade this node" in said
    shutil.rmtree(data)
    (fleet.directory / "before").rename(data)
    await again(fleet)


async def test_a_member_whose_snapshot_is_of_a_newer_release(fleet: Fleet) -> None:
    await found(fleet)
    raft = fleet.node("a").data_dir / "raft"
    before = (raft / snapshots.FILE).read_bytes()
    stored = snapshots.decode(before)
    chunks = tuple(bytes((snapshot.VERSION + 1,)) + chunk[1:] for chunk in stored.chunks)
    (raft / snapshots.FILE).write_bytes(snapshots.encode(msgspec.structs.replace(stored, chunks=chunks)))
    fleet.launch("a", "--cluster", fleet.at("a"))
    said = await fleet.refused("a")
    assert "cannot be read (snapshot version 2 is not 1): it comes from a newer release; upgrade this node" in said
    (raft / snapshots.FILE).write_bytes(before)
    await again(fleet)


async def found(fleet: Fleet) -> None:
    """A cluster of one, ended in order."""
    fleet.launch("a", "--cluster", fleet.at("a"), "--found")
    await fleet.ready("a")
    assert await fleet.stop("a") == 0


async def again(fleet: Fleet) -> None:
    """It starts as if nothing had been."""
    fleet.launch("a", "--cluster", fleet.at("a"))
    await fleet.ready("a")
    assert await fleet.stop("a") == 0
