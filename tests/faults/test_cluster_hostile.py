"""A peer with the join secret, in the place of a member that is down, says what no node says to real processes."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clusterbroker.broker.remote.messages import Attach
from clusterbroker.broker.trial.nodes import LocalCluster
from clusterbroker.broker.version import VERSION
from clusterbroker.cluster.link.certificates import node_credentials
from clusterbroker.cluster.link.frames import FRAME_BYTES_MAX, HEADER, encode
from clusterbroker.cluster.link.hello import CONTROL, DATA, Identity
from clusterbroker.cluster.link.mesh import Mesh
from clusterbroker.cluster.link.secret import find_secret
from clusterbroker.cluster.wiring.levels import FIRST, LEVEL
from clusterbroker.replication.messages import Append, AppendAck
from tests.faults.fleet import until
from tests.faults.test_cluster_damage import consume, publish

NUMBERS = (0, 1, 2, 3, 7, 18, 100, 2**31, 2**32, 2**62, 2**63, 2**64 - 1, -1, -(2**63))


class Impostor:
    """The links of a member, and nothing behind them."""

    def __init__(self) -> None:
        self.linked: dict[tuple[str, str], int] = {}
        self.ended: list[str] = []

    def on_linked(self, peer: str, channel: str, session: int) -> None:
        self.linked[peer, channel] = session

    def on_unlinked(self, peer: str, channel: str, session: int, why: str) -> None:
        self.linked.pop((peer, channel), None)
        self.ended.append(f"{peer} {channel}: {why}")

    def on_frame(self, *_: Any) -> None:
        pass

    def on_writable(self, *_: Any) -> None:
        pass

    def on_cluster(self, _: str) -> None:
        pass

    def on_refused(self, who: str, line: str, _: int) -> None:
        self.ended.append(f"{who}: {line}")

    def admits(self, _: Any) -> str | None:
        return "nobody"

    def level(self) -> int:
        return FIRST


def garbage(chance: random.Random, channel: str) -> bytes:
    """One frame, or what is none."""
    kind = chance.randrange(8)
    if kind == 0:
        return chance.randbytes(chance.randrange(1, 200))
    if kind == 1:
        return HEADER.pack(FRAME_BYTES_MAX + 1, 5, 0) + bytes(100)
    tags = (60, 73) if channel == CONTROL else (1, 50)
    if kind == 2:
        head = chance.randbytes(20)
    else:
        values = (chance.choice(NUMBERS), [], "x", b"y", [[1, 2]], True)
        fields = [chance.choice(values) for _ in range(chance.randrange(9))]
        head = msgspec.msgpack.encode([chance.randint(*tags), *fields])
    payload = chance.randbytes(chance.choice((0, 0, 40, 400)))
    index = chance.choice((0, 0, 0, 2**40))
    return HEADER.pack(HEADER.size + len(head) + len(payload), len(head), index) + head + payload


@asynccontextmanager
async def impostor_of_c(directory: Path) -> AsyncIterator[tuple[LocalCluster, Impostor, Callable[[], Mesh]]]:
    """Three nodes with 50 messages in q, of which c is down; and what links with a and b in its name."""
    cluster = LocalCluster(directory)
    meshes: list[Mesh] = []
    try:
        await cluster.begin()
        await asyncio.to_thread(publish, cluster, "a", "q", 0, 50)
        await cluster.kill("c")
        said = json.loads((cluster.data_dir("c") / "identity").read_text())
        secret = find_secret(directory / "secret")
        impostor = Impostor()
        identity = Identity("c", said["cluster_id"], 9, said["disk_id"], "no process", VERSION, LEVEL)

        def mesh() -> Mesh:
            meshes.append(Mesh(identity, node_credentials(secret, "c", directory), impostor))
            meshes[-1].dial_all = True
            meshes[-1].set_peers({name: f"127.0.0.1:{cluster.nodes[name].cluster_port}" for name in "ab"})
            return meshes[-1]

        yield cluster, impostor, mesh
    finally:
        for one in meshes:
            await one.close()
        await cluster.end()


async def unharmed(cluster: LocalCluster) -> None:
    """a and b are the processes that they were, and c is welcome."""
    assert {cluster.pid(name) is not None for name in "ab"} == {True}, "no node has ended"
    told = "".join(cluster.nodes[name].log.read_text() for name in "ab")
    assert "node.failed" not in told
    assert "node.restarts" not in told
    await asyncio.to_thread(publish, cluster, "b", "q", 50, 50)
    await cluster.start("c")
    assert await asyncio.to_thread(consume, cluster, "c", "q", 100) == list(range(100))


async def test_garbage_of_a_member(tmp_path: Path) -> None:
    async with impostor_of_c(tmp_path) as (cluster, impostor, link):
        mesh = link()
        chance = random.Random(5)
        async with asyncio.timeout(60):
            for _ in range(60):
                while (peer := chance.choice("ab"), DATA) not in impostor.linked:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                for _ in range(5):
                    mesh.send(peer, DATA, garbage(chance, DATA))
                await asyncio.sleep(0.005)
        await mesh.close()
        assert len(impostor.ended) > 20
        assert "cluster.bad_frame" in "".join(cluster.nodes[name].log.read_text() for name in "ab")
        await unharmed(cluster)


def lines(cluster: LocalCluster, name: str, event: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in cluster.nodes[name].log.read_text().splitlines() if line.startswith("{")]
    return [line for line in found if line["event"] == event]


async def told_of(
    cluster: LocalCluster, impostor: Impostor, mesh: Mesh, name: str, frame: bytes
) -> list[dict[str, Any]]:
    """The lines in which the node tells of this frame.

    A link takes what it holds along when it ends, and this one ends for other reasons as well: the node whose place
    the impostor has taken is found dead. So what was not told is said again on the next link. And who ended a link
    knows it before the other side does: the next frame waits until the impostor has heard.
    """

    def told() -> list[dict[str, Any]]:
        return lines(cluster, name, "cluster.bad_frame")[before:]

    def over() -> bool:
        return impostor.linked.get((name, DATA)) != session

    before = len(lines(cluster, name, "cluster.bad_frame"))
    while True:
        session = await until(lambda: impostor.linked.get((name, DATA)), f"linked with {name}")
        mesh.send(name, DATA, frame)
        await until(lambda: told() or over(), f"{name} tells of it")
        if told():
            await until(over, f"{name} has ended the link")
            return told()


async def test_each_lie_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An acknowledgement of what was never sent, records that are none, a frame that is cut off, another protocol."""
    async with impostor_of_c(tmp_path) as (cluster, impostor, link):
        mesh = link()
        mine = encode(Append(7, ((1, 1, 8),)), 0, (b"no record",))
        for frame, said in (
            (encode(AppendAck(2**40)), f"AppendAck: group {2**40} was acknowledged, but 0 was the last one sent"),
            (mine, "Append: the parts of an Append are 8 bytes, its payload is 9"),
        ):
            for name in "ab":
                told = await told_of(cluster, impostor, mesh, name, frame)
                assert [(line["peer"], line["why"]) for line in told] == [("c", said)]
        for name in "ab":
            await until(lambda name=name: (name, DATA) in impostor.linked, f"linked with {name}")
            mesh.send(name, DATA, mine[:-1])
        await mesh.close()
        monkeypatch.setattr("clusterbroker.cluster.link.hello.PROTOCOL", 2)
        mesh = link()
        said = f"c speaks link protocol 2 (clusterbroker {VERSION})"
        for name in "ab":
            await until(lambda name=name: said in str(lines(cluster, name, "cluster.refused")), f"{name} refuses it")
        await mesh.close()
        monkeypatch.undo()
        await unharmed(cluster)


REPEATED = (encode(Attach(9, 0, ())), encode(Append(7, ())), encode(Append(7, ())), encode(AppendAck(0)))


async def test_frames_that_come_twice_change_nothing(tmp_path: Path) -> None:
    async with impostor_of_c(tmp_path) as (cluster, impostor, link):
        mesh = link()
        for frame in REPEATED:
            for name in "ab":
                await until(lambda name=name: (name, DATA) in impostor.linked, f"linked with {name}")
                for _ in range(2):
                    mesh.send(name, DATA, frame)
        await mesh.close()
        await unharmed(cluster)
