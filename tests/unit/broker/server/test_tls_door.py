"""Clients that come by TLS and never finish it: they count, displace each other, and keep nobody out."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from server_support import until

from clusterbroker.broker.server.tls_door import TlsDoor
from clusterbroker.cluster.link import door
from clusterbroker.cluster.link.door import listening_sockets
from tests.authority import Authority


class Greeter(asyncio.Protocol):
    """Says hello to who has done the handshake."""

    def __init__(self, served: list[asyncio.BaseTransport]) -> None:
        self.served = served

    def connection_made(self, transport: Any) -> None:
        self.served.append(transport)
        transport.write(b"hello")


class Served:
    """A door with so much room."""

    def __init__(self, most: int, authority: Authority) -> None:
        self.most = most
        self.made: list[asyncio.BaseTransport] = []
        self.turned_away: list[str] = []
        self.authority = authority
        self.held: list[socket.socket] = []

    async def open(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.authority["node"])
        sockets = await listening_sockets("127.0.0.1", 0)
        self.door = TlsDoor(
            sockets, context, lambda: Greeter(self.made), lambda: self.most - len(self.made),
            lambda host, why: self.turned_away.append(why), handshake_s=30,
        )  # fmt: skip
        self.door.begin()
        self.port: int = sockets[0].getsockname()[1]

    def half_open(self, count: int) -> None:
        """Sockets that begin a handshake and say no more."""
        for _ in range(count):
            one = socket.create_connection(("127.0.0.1", self.port))
            one.sendall(b"\x16\x03\x01\x02\x00\x01")
            self.held.append(one)

    async def client(self) -> bytes:
        """What a good client is told."""
        context = ssl.create_default_context(cafile=self.authority["root"])
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context, server_hostname="localhost")
        said = await reader.read(5)
        writer.close()
        return said

    def close(self) -> None:
        self.door.close()
        for transport in self.made:
            transport.abort()  # type: ignore[attr-defined]
        for one in self.held:
            one.close()


@pytest.fixture
async def open_door(tmp_path: Path) -> AsyncIterator[Callable[[int], Any]]:
    opened: list[Served] = []
    authority = Authority(tmp_path)

    async def begin(most: int) -> Served:
        opened.append(Served(most, authority))
        await opened[-1].open()
        return opened[-1]

    yield begin
    for one in opened:
        one.close()


async def test_half_open_ones_are_no_more_than_connections_may_be(
    open_door: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterbroker.broker.server.tls_door.PATIENCE_S", 0.0)
    served = await open_door(20)
    served.half_open(100)
    await until(lambda: served.door.displaced >= 80)
    assert served.door.greeting <= 20
    assert await served.client() == b"hello", "it takes the place of one of them"
    assert served.door.greeting <= 20


async def test_young_ones_are_not_displaced(open_door: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes meanwhile waits in the kernel's queue, and is served when there is room again."""
    monkeypatch.setattr("clusterbroker.broker.server.tls_door.PATIENCE_S", 1000.0)
    monkeypatch.setattr(door, "PAUSE_S", 0.01)
    served = await open_door(5)
    served.half_open(5)
    await until(lambda: served.door.greeting == 5)
    waits = asyncio.ensure_future(served.client())
    await until(lambda: served.door._pauses)
    assert (served.door.displaced, served.door.greeting) == (0, 5)
    served.held.pop().close()
    assert await waits == b"hello"


async def test_where_connections_have_taken_the_room_newcomers_are_turned_away(
    open_door: Callable[[int], Any],
) -> None:
    served = await open_door(1)
    assert await served.client() == b"hello"
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await served.client()
    assert served.turned_away == ["there are as many connections as there may be"]


async def test_those_who_are_not_through_end_with_the_door(open_door: Callable[[int], Any]) -> None:
    served = await open_door(5)
    served.half_open(3)
    await until(lambda: served.door.greeting == 3)
    served.door.close()
    assert served.door.greeting == 0
    reader, writer = await asyncio.open_connection(sock=served.held.pop())
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)
    writer.close()
