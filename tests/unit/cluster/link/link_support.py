"""Meshes in one process, and what they were told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec

from clusterbroker.cluster.link.certificates import Credentials, node_credentials
from clusterbroker.cluster.link.frames import decoder, encode
from clusterbroker.cluster.link.hello import Hello, Identity
from clusterbroker.cluster.link.mesh import Mesh, MeshOptions
from clusterbroker.cluster.link.secret import Secret

SECRET = Secret(b"a join secret of forty bytes, or about so")
OTHER_SECRET = Secret(b"another secret, that is no less long than it")


class Say(msgspec.Struct, array_like=True, tag=1):
    text: str


SAYS = decoder(Say)


def say(text: str, index: int = 0, payload: bytes = b"") -> bytes:
    return encode(Say(text), index, [payload])


class Told:
    """Remembers all that a mesh tells; `until` waits for it."""

    def __init__(self) -> None:
        self.linked: dict[tuple[str, str], int] = {}
        self.events: list[tuple[Any, ...]] = []
        self.frames: list[tuple[str, str, int, str, bytes]] = []
        self.refused: list[tuple[str, str]] = []
        self.cluster: str | None = None
        self.cluster_level = 1
        self.admitted: Callable[[Hello], str | None] = lambda hello: f"{hello.name} is not a member"
        self._changed = asyncio.Event()

    def _note(self, *event: Any) -> None:
        self.events.append(event)
        self._changed.set()

    def on_linked(self, peer: str, channel: str, session: int) -> None:
        assert (peer, channel) not in self.linked, "one link per peer and channel"
        assert session > max(self.linked.values(), default=0), "sessions grow"
        self.linked[peer, channel] = session
        self._note("linked", peer, channel)

    def on_unlinked(self, peer: str, channel: str, session: int, why: str) -> None:
        assert self.linked.pop((peer, channel)) == session, "each link ends once"
        self._note("unlinked", peer, channel, why)

    def on_frame(self, peer: str, channel: str, index: int, head: memoryview, payload: memoryview) -> None:
        assert (peer, channel) in self.linked, "frames come over links that stand"
        self.frames.append((peer, channel, index, SAYS.decode(head).text, bytes(payload)))
        self._changed.set()

    def on_writable(self, peer: str, channel: str) -> None:
        self._note("writable", peer, channel)

    def on_cluster(self, cluster: str) -> None:
        self.cluster = cluster

    def on_refused(self, who: str, line: str, untold: int) -> None:
        self.refused.append((who, line))
        self._changed.set()

    def admits(self, hello: Hello) -> str | None:
        return self.admitted(hello)

    def level(self) -> int:
        return self.cluster_level

    async def until(self, condition: Callable[[], object], timeout_s: float = 10) -> None:
        """Asked again at every event, and each 20 ms for what is no event."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._changed.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), 0.02)


class Node:
    """A mesh that listens on a free port."""

    def __init__(self, name: str, secret: Secret = SECRET, **identity: Any) -> None:
        self.name = name
        said = {"cluster": "c1", "incarnation": 1, "disk_id": f"disk-{name}", "process": f"p-{name}"}
        said |= {"software": "0.1", "level": 2}
        self.told = Told()
        self.credentials: Credentials = node_credentials(secret, identity.pop("certified", name))
        options = MeshOptions(write_high_bytes=identity.pop("write_high_bytes", 1 << 20))
        self.mesh = Mesh(Identity(name=name, **{**said, **identity}), self.credentials, self.told, options)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.mesh.port}"


@asynccontextmanager
async def nodes(*members: Node, meet: bool = True) -> AsyncIterator[None]:
    """They listen, and know each other."""
    try:
        for node in members:
            await node.mesh.listen("127.0.0.1", 0)
        if meet:
            for node in members:
                node.mesh.set_peers({other.name: other.address for other in members})
        yield
    finally:
        for node in members:
            await node.mesh.close()


async def linked(*members: Node) -> None:
    """Until each has both links with each other."""
    for node in members:
        wanted = {(other.name, channel) for other in members if other is not node for channel in ("control", "data")}
        await node.told.until(lambda node=node, wanted=wanted: set(node.told.linked) >= wanted)  # type: ignore[misc]
