"""What strangers and confused nodes send to the cluster's port: it ends, it is bounded, it harms no other link."""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import psutil
import pytest
from link_support import SECRET, Node, linked, nodes, say

from clusterbroker.cluster.link import acceptor, link, mesh
from clusterbroker.cluster.link.certificates import node_credentials
from clusterbroker.cluster.link.frames import HEADER, FrameReader, encode
from clusterbroker.cluster.link.hello import LINK_INDEX, Hello, Refused, Welcome, decoder


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of time that a test can wait for."""
    monkeypatch.setattr(acceptor, "TLS_TIMEOUT_S", 0.4)
    monkeypatch.setattr(link, "HELLO_TIMEOUT_S", 0.4)


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[Node, Node]]:
    """Two nodes that are linked before and are linked, by the same sessions, after."""
    b, c = Node("b"), Node("c")
    async with nodes(b, c):
        await linked(b, c)
        before = dict(b.told.linked)
        b.mesh.set_peers({"c": c.address, "a": "127.0.0.1:1"})
        yield b, c
        assert {key: b.told.linked.get(key) for key in before} == before
        assert b.mesh.send("c", "data", say("still here"))
        await c.told.until(lambda: c.told.frames)


async def all_of(reader: asyncio.StreamReader, timeout_s: float = 10) -> bytes:
    """What comes until the other side hangs up."""
    async with asyncio.timeout(timeout_s):
        try:
            return await reader.read(-1)
        except ConnectionResetError:
            return b""


class Confused:
    """A member's TLS, and whatever bytes the test wants."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._frames = FrameReader()
        self.heard: list[Any] = []

    @classmethod
    async def dial(cls, node: Node, name: str = "a") -> Confused:
        tls = node_credentials(SECRET, name).client
        return cls(*await asyncio.open_connection("127.0.0.1", node.mesh.port, ssl=tls))

    async def next(self) -> Any:
        async with asyncio.timeout(60):
            while not self.heard:
                data = await self.reader.read(65536)
                assert data, "the other side hung up"
                heads = [bytes(head) for _, head, _ in self._frames.feed(data)]
                self.heard += [decoder(Hello, Welcome, Refused).decode(head) for head in heads]
        return self.heard.pop(0)

    async def meet(self) -> None:
        """Until the other side has it as a peer."""
        self.writer.write(hello())
        assert isinstance(await self.next(), Hello)
        assert isinstance(await self.next(), Welcome)
        self.writer.write(encode(Welcome(), LINK_INDEX))


PLAIN = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "amqp": b"AMQP\x00\x00\x09\x01",
    "zeros": b"\x00" * 1000,
    "garbage": bytes(range(256)) * 300,
    "long record": b"\x16\x03\x01\xff\xff",
}


@pytest.mark.parametrize("data", PLAIN.values(), ids=PLAIN)
async def test_plain_bytes_end_at_once_and_are_refused_once(data: bytes, brief: None) -> None:
    async with pair() as (b, _):
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", b.mesh.port)
            writer.write(data)
            assert b"clusterbroker" not in await all_of(reader)
            writer.close()
        await b.told.until(lambda: b.mesh._acceptor.greeting == 0)  # type: ignore[union-attr]
        assert len(b.told.refused) == 1
        assert b.told.refused[0][0] == "127.0.0.1"
        assert (
            "the cluster's port is for nodes only" in b.told.refused[0][1] or "no TLS handshake" in b.told.refused[0][1]
        )


@pytest.mark.parametrize(("words", "objects"), [(b"", False), (b"HTTP/1.1 400 Bad Request\r\n\r\n", True)])
async def test_a_peer_that_stands_still_in_its_handshake_objects_to_nothing(
    monkeypatch: pytest.MonkeyPatch, words: bytes, objects: bool
) -> None:
    """Its process may have no time for it. What speaks no TLS objects: a node that meets nothing else ends by that."""
    monkeypatch.setattr(mesh, "TLS_TIMEOUT_S", 0.3)

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(words)
        await all_of(reader)
        writer.close()

    server = await asyncio.start_server(answers, "127.0.0.1", 0)
    a = Node("a")
    async with nodes(a, meet=False):
        a.mesh.set_peers({"b": f"127.0.0.1:{server.sockets[0].getsockname()[1]}"})
        await a.told.until(lambda: a.told.refused)
        assert (a.mesh.objection("b") is not None) is objects
    server.close()


async def test_who_never_finishes_tls_or_never_says_hello_is_ended(brief: None) -> None:
    async with pair() as (b, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", b.mesh.port)
        outgoing = ssl.MemoryBIO()
        half = node_credentials(SECRET, "a").client.wrap_bio(ssl.MemoryBIO(), outgoing)
        with pytest.raises(ssl.SSLWantReadError):
            half.do_handshake()
        writer.write(outgoing.read()[:50])
        await all_of(reader)
        writer.close()
        assert b.told.refused == [("127.0.0.1", "no TLS handshake within 0.4 s")]

        silent = await Confused.dial(b)
        await all_of(silent.reader)
        silent.writer.close()
        assert b.told.refused[1:] == [("a", "no hello within 0.4 s")]


def hello(**changes: Any) -> bytes:
    """The first frame of a member, changed."""
    good = Hello(1, "c1", "a", 1, "disk-a", "p-a", "data", 1, "0.1")
    return encode(msgspec.structs.replace(good, **changes), LINK_INDEX)


BAD_HELLOS = {
    "old version": (hello(protocol=0, software="0.0.9"), "a speaks link protocol 0 (clusterbroker 0.0.9), b speaks 1"),
    "other cluster": (hello(cluster="c2"), "a is of cluster c2, b of cluster c1"),
    "other name": (hello(name="c"), "c shows the certificate of a"),
    "frame too early": (say("x", 3), "it sent a frame before it was welcome"),
    "hello too long": (hello(cluster="c" * 5000), "at most 4096 taken"),
    "declared length": (HEADER.pack(2**32 - 1, 10, LINK_INDEX), "it sent a frame of 4294967295 bytes"),
    "head longer": (HEADER.pack(30, 15, LINK_INDEX), "it sent a frame of 30 bytes with a head of 15"),
    "not msgpack": (HEADER.pack(18, 2, LINK_INDEX) + b"\xc1\xc1", "it sent what no handshake has"),
    "nested": (HEADER.pack(2016, 2000, LINK_INDEX) + b"\x91" * 2000, "it sent what no handshake has"),
}


@pytest.mark.parametrize("case", BAD_HELLOS)
async def test_a_bad_hello_is_refused_in_one_line(case: str) -> None:
    data, line = BAD_HELLOS[case]
    async with pair() as (b, _):
        confused = await Confused.dial(b)
        confused.writer.write(data)
        await all_of(confused.reader)
        confused.writer.close()
        ((who, said),) = b.told.refused
        assert who == "a"
        assert line in said
        assert ("linked", "a", "data") not in b.told.events


async def test_the_refused_side_is_told_why() -> None:
    async with pair() as (b, _):
        confused = await Confused.dial(b)
        confused.writer.write(hello(cluster="c2"))
        assert "give all founders the same --peers" in (await confused.next()).line
        confused.writer.close()


async def test_a_repeated_hello_ends_the_connection_before_and_after_it_stands() -> None:
    async with pair() as (b, _):
        confused = await Confused.dial(b)
        confused.writer.write(hello() * 2)
        await all_of(confused.reader)
        confused.writer.close()
        assert b.told.refused == [("a", "it said Hello at the wrong time")]

        confused = await Confused.dial(b)
        await confused.meet()
        await b.told.until(lambda: ("a", "data") in b.told.linked)
        confused.writer.write(say("good") + hello() + say("never read"))
        await all_of(confused.reader)
        confused.writer.close()
        assert b.told.events[-1] == ("unlinked", "a", "data", "it said Hello again, on a link that stands")
        assert [frame[3] for frame in b.told.frames] == ["good"]


async def test_a_torn_frame_is_never_told() -> None:
    async with pair() as (b, _):
        confused = await Confused.dial(b)
        await confused.meet()
        confused.writer.write(say("whole") + say("torn", 0, bytes(1000))[:-1])
        await b.told.until(lambda: b.told.frames)
        confused.writer.close()
        await b.told.until(lambda: b.told.events[-1][0] == "unlinked")
        assert [frame[3] for frame in b.told.frames] == ["whole"]


async def test_a_frame_that_is_too_long_ends_its_link_before_it_is_kept() -> None:
    async with pair() as (b, _):
        confused = await Confused.dial(b)
        await confused.meet()
        confused.writer.write(HEADER.pack((64 << 20) + 1, 1, 0))
        await b.told.until(lambda: b.told.events[-1][0] == "unlinked")
        assert "it sent a frame of 67108865 bytes" in b.told.events[-1][3]
        confused.writer.close()


async def test_two_hundred_idle_connections_cost_little_and_keep_no_node_out() -> None:
    async with pair() as (b, _):
        before = psutil.Process().memory_info().rss
        idle = [await asyncio.open_connection("127.0.0.1", b.mesh.port) for _ in range(200)]
        held = b.mesh._acceptor
        assert held is not None
        await b.told.until(lambda: held.displaced >= 200 - acceptor.GREETING_MAX)
        assert held.greeting <= acceptor.GREETING_MAX
        assert psutil.Process().memory_info().rss - before < 40 << 20
        a = Node("a")
        await a.mesh.listen("127.0.0.1", 0)
        a.mesh.set_peers({"b": b.address})
        await linked(a, b)
        await a.mesh.close()
        assert len(b.told.refused) <= 1, "once per minute"
        for _, writer in idle:
            writer.close()


async def test_running_out_of_descriptors_ends_no_listener() -> None:
    async with pair() as (b, _):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        waiting = socket.socket()
        waiting.setblocking(False)
        resource.setrlimit(resource.RLIMIT_NOFILE, (waiting.fileno() + 1, hard))
        try:
            await asyncio.get_running_loop().sock_connect(waiting, ("127.0.0.1", b.mesh.port))
            await b.told.until(lambda: b.told.refused)
            assert b.told.refused == [
                ("", "cannot accept connections (Too many open files): raise the limit of open files")
            ]
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            waiting.close()
        a = Node("a")
        await a.mesh.listen("127.0.0.1", 0)
        a.mesh.set_peers({"b": b.address})
        await linked(a, b)
        await a.mesh.close()
