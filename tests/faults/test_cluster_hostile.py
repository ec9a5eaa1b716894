"""A peer with the join secret, in the place of a member that is down, says what no node says to real processes."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker.trial.nodes import LocalCluster
from broker.version import VERSION
from cluster.link.certificates import node_credentials
from cluster.link.frames import FRAME_BYTES_MAX, HEADER
from cluster.link.hello import CONTROL, DATA, Identity
from cluster.link.mesh import Mesh
from cluster.link.secret import find_secret
from tests.faults.test_cluster_damage import consume, publish

pytestmark = [pytest.mark.timeout(120)]
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


async def test_garbage_of_a_member(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path)
    try:
        await cluster.begin()
        await asyncio.to_thread(publish, cluster, "a", "q", 0, 50)
        await cluster.kill("c")
        said = json.loads((cluster.data_dir("c") / "identity").read_text())
        secret = find_secret(tmp_path / "secret")
        impostor = Impostor()
        identity = Identity("c", said["cluster_id"], 9, said["disk_id"], "no process", VERSION)
        mesh = Mesh(identity, node_credentials(secret, "c", tmp_path), impostor)
        mesh.dial_all = True
        chance = random.Random(5)
        mesh.set_peers({name: f"127.0.0.1:{cluster.nodes[name].cluster_port}" for name in "ab"})
        async with asyncio.timeout(60):
            for _ in range(60):
                while (peer := chance.choice("ab"), DATA) not in impostor.linked:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                for _ in range(5):
                    mesh.send(peer, DATA, garbage(chance, DATA))
                await asyncio.sleep(0.005)
        await mesh.close()
        assert len(impostor.ended) > 20
        assert {cluster.pid(name) is not None for name in "ab"} == {True}, "no node has ended"
        told = "".join(cluster.nodes[name].log.read_text() for name in "ab")
        assert "cluster.bad_frame" in told
        assert "node.failed" not in told
        assert "node.restarts" not in told
        await asyncio.to_thread(publish, cluster, "b", "q", 50, 50)
        await cluster.start("c")
        assert await asyncio.to_thread(consume, cluster, "c", "q", 100) == list(range(100))
    finally:
        await cluster.end()
