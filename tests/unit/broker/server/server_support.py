"""What the tests of the shells share: a client that speaks frames, a log that remembers, options for tests."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from clusterbroker.broker.server.alarms import AlarmOptions
from clusterbroker.broker.server.listener import Address
from clusterbroker.broker.server.options import ServerOptions
from clusterbroker.broker.wire.amqp091 import methods
from clusterbroker.broker.wire.amqp091.layout import Method
from clusterbroker.journal.options import MIB, JournalOptions

HEADER = b"AMQP\x00\x00\x09\x01"


class Lines:
    """A log that remembers."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def __call__(self, level: str, event: str, facts: dict[str, Any]) -> None:
        self.lines.append((level, event, facts))

    def events(self) -> list[str]:
        return [event for _, event, _ in self.lines]


class Peer:
    """The client's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, channel: int, method: Method) -> None:
        payload = methods.encode(method)
        self.writer.write(struct.pack(">BHI", 1, channel, len(payload)) + payload + b"\xce")

    async def frame(self) -> tuple[int, int, bytes]:
        kind, channel, size = struct.unpack(">BHI", await self.reader.readexactly(7))
        payload = await self.reader.readexactly(size + 1)
        return kind, channel, payload[:-1]

    async def receive(self, timeout_s: float = 60.0) -> Method:
        """The next method; heartbeats are passed over."""
        while True:
            kind, _, payload = await asyncio.wait_for(self.frame(), timeout_s)
            if kind == 1:
                return methods.decode(payload)

    async def open(self, user: str = "guest", password: str = "guest", vhost: str = "/") -> Peer:
        self.writer.write(HEADER)
        await self.receive()
        capabilities = {"authentication_failure_close": True, "connection.blocked": True}
        response = f"\0{user}\0{password}".encode()
        self.send(0, methods.ConnectionStartOk({"capabilities": capabilities}, "PLAIN", response, "en_US"))
        tune = await self.receive()
        assert isinstance(tune, methods.ConnectionTune), tune
        self.send(0, methods.ConnectionTuneOk(tune.channel_max, tune.frame_max, 0))
        self.send(0, methods.ConnectionOpen(vhost))
        assert isinstance(await self.receive(), methods.ConnectionOpenOk)
        self.send(1, methods.ChannelOpen())
        assert isinstance(await self.receive(), methods.ChannelOpenOk)
        return self

    async def ended(self, timeout_s: float = 10.0) -> bytes:
        """What still came until the node closed."""
        return await asyncio.wait_for(self.reader.read(), timeout_s)

    def publish(self, queue: str, body: bytes, count: int = 1) -> None:
        """Persistent messages to the default exchange."""
        name = queue.encode()
        method = b"\x00\x3c\x00\x28\x00\x00\x00" + bytes((len(name),)) + name + b"\x00"
        header = struct.pack(">HHQHB", 60, 0, len(body), 0x1000, 2)
        one = b"".join(
            struct.pack(">BHI", kind, 1, len(part)) + part + b"\xce"
            for kind, part in ((1, method), (2, header), (3, body))
            if kind != 3 or part
        )
        self.writer.write(one * count)


def options(**changes: Any) -> ServerOptions:
    base = ServerOptions(
        amqp=(Address("127.0.0.1", 0),),
        journal=JournalOptions(segment_bytes=MIB, reserve_bytes=0, map_bytes=1 << 32),
        alarms=AlarmOptions(memory_fraction=0, disk_free_bytes=0),
        password_cost=4,
        stop_grace_s=0.1,
    )
    return replace(base, **changes)


async def until(reached: Callable[[], Any], timeout_s: float = 60.0) -> None:
    """Waits for a condition."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + timeout_s
    while not reached():
        assert loop.time() < end_s, "it did not happen in time"
        await asyncio.sleep(0.005)
