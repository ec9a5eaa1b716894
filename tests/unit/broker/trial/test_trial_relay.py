"""The wires between nodes: what passes, what waits, what is dropped; real sockets on loopback."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from clusterbroker.broker.trial.nodes import free_port
from clusterbroker.broker.trial.relay import LOOPBACK, Wires

SOON_S = 0.15
"""long enough for what is not cut"""


class Node:
    """Echoes what it is sent by TCP, and keeps the datagrams that reach it."""

    def __init__(self) -> None:
        self.port = free_port()
        self.datagrams: asyncio.Queue[bytes] = asyncio.Queue()
        self.server: asyncio.Server
        self.udp: Any

    async def start(self) -> None:
        node = self

        class Keep(asyncio.DatagramProtocol):
            def datagram_received(self, data: bytes, addr: Any) -> None:
                node.datagrams.put_nowait(data)

        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while octets := await reader.read(1000):
                writer.write(octets)
            writer.close()

        self.server = await asyncio.start_server(echo, LOOPBACK, self.port)
        self.udp, _ = await asyncio.get_running_loop().create_datagram_endpoint(Keep, (LOOPBACK, self.port))

    def stop(self) -> None:
        self.server.close()
        self.udp.close()


class World:
    """Two nodes, a and b; we are a."""

    def __init__(self) -> None:
        self.a, self.b = Node(), Node()
        self.wires = Wires({"a": self.a.port, "b": self.b.port})

    def port(self, one: str = "a") -> int:
        return int(self.wires.dial_of(one).rpartition(":")[2])

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(LOOPBACK, self.port())

    def beat(self, data: bytes) -> None:
        self.a.udp.sendto(data, (LOOPBACK, self.port()))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    await made.a.start()
    await made.b.start()
    await made.wires.start()
    yield made
    await made.wires.stop()
    made.a.stop()
    made.b.stop()


async def arrives(reader: asyncio.StreamReader, octets: bytes) -> None:
    assert await asyncio.wait_for(reader.readexactly(len(octets)), 5) == octets


async def nothing(waiting: Any) -> None:
    """Nothing comes for a while; the wait is given up."""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(waiting, SOON_S)


async def test_bytes_and_datagrams_pass(world: World) -> None:
    assert world.wires.dial_of("a") == f"b={LOOPBACK}:{world.port()}"
    reader, writer = await world.connect()
    writer.write(b"hello")
    await arrives(reader, b"hello")
    world.beat(b"beat")
    assert await asyncio.wait_for(world.b.datagrams.get(), 5) == b"beat"
    writer.close()


@pytest.mark.parametrize("pair", [("a", "b"), ("b", "a")])
async def test_a_cut_direction_holds_bytes_until_it_heals(world: World, pair: tuple[str, str]) -> None:
    reader, writer = await world.connect()
    writer.write(b"before")
    await arrives(reader, b"before")
    world.wires.cut([pair])
    writer.write(b"during")
    await nothing(reader.read(10))
    world.wires.heal()
    await arrives(reader, b"during")
    writer.close()


async def test_datagrams_of_a_cut_are_lost_and_the_other_way_is_open(world: World) -> None:
    world.wires.cut([("a", "b")])
    world.beat(b"lost")
    await nothing(world.b.datagrams.get())
    world.b.udp.sendto(b"back", (LOOPBACK, world.port("b")))
    assert await asyncio.wait_for(world.a.datagrams.get(), 5) == b"back"
    world.wires.heal()
    world.beat(b"after")
    assert await asyncio.wait_for(world.b.datagrams.get(), 5) == b"after"


async def test_a_new_connection_gets_no_further_through_a_cut(world: World) -> None:
    world.wires.cut([("b", "a")])
    reader, writer = await world.connect()
    writer.write(b"hello")
    await nothing(reader.read(10))
    world.wires.heal()
    await arrives(reader, b"hello")
    writer.close()


async def test_delay_keeps_order(world: World) -> None:
    reader, writer = await world.connect()
    world.wires.delay([("a", "b")], 0.1)
    began_s = time.monotonic()
    for part in (b"one", b"two", b"three"):
        writer.write(part)
        await asyncio.sleep(0.01)
    await arrives(reader, b"onetwothree")
    assert time.monotonic() - began_s >= 0.1
    world.beat(b"beat")
    assert world.b.datagrams.empty()
    assert await asyncio.wait_for(world.b.datagrams.get(), 5) == b"beat"
    writer.close()


async def test_reset_ends_connections_and_new_ones_work(world: World) -> None:
    reader, writer = await world.connect()
    writer.write(b"hello")
    await arrives(reader, b"hello")
    world.wires.reset([("a", "b")])
    with pytest.raises(ConnectionError):
        while await asyncio.wait_for(reader.read(10), 5) == b"":
            writer.write(b"x")
            await asyncio.sleep(0.01)
    reader, writer = await world.connect()
    writer.write(b"again")
    await arrives(reader, b"again")
    writer.close()


async def test_a_dead_process_refuses_as_it_would_without_us(world: World) -> None:
    reader, _ = await world.connect()
    await world.wires.refuse("b", True)
    with pytest.raises(ConnectionRefusedError):
        await world.connect()
    with pytest.raises(ConnectionError):
        if await asyncio.wait_for(reader.read(10), 5) == b"":
            raise ConnectionResetError
    await world.wires.refuse("b", False)
    reader, writer = await world.connect()
    writer.write(b"up")
    await arrives(reader, b"up")
    writer.close()


async def test_the_targets_refusal_reaches_the_dialler(world: World) -> None:
    world.b.stop()
    reader, _ = await world.connect()
    with pytest.raises(ConnectionError):
        if await asyncio.wait_for(reader.read(10), 5) == b"":
            raise ConnectionResetError
