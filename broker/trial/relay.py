"""The wires between nodes, in our hands: a relay for each directed pair, for TCP and UDP at the same port number.

Node `a` is told (CLUSTERBROKER_CLUSTER_DIAL) to reach `b` at the relay of (a, b), which passes on to b's real port.
So a network can be cut without any privilege:

    cut      bytes of a direction wait (TCP delivers them after the heal, as after a lost packet), its datagrams are
             dropped, new connections are accepted by the relay's kernel and get no further, as with a lost SYN
    delay    bytes and datagrams of a direction come later
    reset    the pair's connections end at once
    refuse   the target's process is gone, so its port must refuse as a dead process's does: relays to it do not listen
    block    datagrams alone are dropped, as by a firewall that knows no UDP

A TCP connection carries both directions between dialler and target; a cut of one direction stops one of its halves.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from typing import Any, Final

LOOPBACK: Final = "127.0.0.1"
RECEIVE_BYTES: Final = 1 << 16
Pair = tuple[str, str]


class Direction:
    """What happens to everything from one node to another one."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.datagrams = True
        self.delay_s = 0.0


class Wires:
    """All relays of a cluster: `start`, `dial_of` for each node's environment, then faults."""

    def __init__(self, ports: dict[str, int]) -> None:
        self.ports = ports
        """node -> its real cluster port"""
        names = sorted(ports)
        self.directions = {(one, other): Direction() for one in names for other in names if one != other}
        self._relays = {pair: _Relay(self, pair) for pair in self.directions}

    async def start(self) -> None:
        """Binds all relays."""
        for relay in self._relays.values():
            await relay.start()

    async def stop(self) -> None:
        """Ends all relays and their connections."""
        for relay in self._relays.values():
            await relay.stop()

    def dial_of(self, node: str) -> str:
        """CLUSTERBROKER_CLUSTER_DIAL of a node: where it finds each of the others."""
        return ",".join(
            f"{other}={LOOPBACK}:{relay.port}" for (one, other), relay in self._relays.items() if one == node
        )

    def cut(self, pairs: list[Pair]) -> None:
        """Nothing passes in these directions until `heal`."""
        for pair in pairs:
            self.directions[pair].open.clear()

    def block(self, pairs: list[Pair]) -> None:
        """No datagram passes in these directions until `heal`."""
        for pair in pairs:
            self.directions[pair].datagrams = False

    def delay(self, pairs: list[Pair], delay_s: float) -> None:
        """Everything in these directions comes later by so much."""
        for pair in pairs:
            self.directions[pair].delay_s = delay_s

    def reset(self, pairs: list[Pair]) -> None:
        """Ends the connections of these pairs."""
        for pair in pairs:
            self._relays[pair].reset()

    def heal(self) -> None:
        """No cuts, no delays."""
        for direction in self.directions.values():
            direction.open.set()
            direction.datagrams = True
            direction.delay_s = 0.0

    async def refuse(self, node: str, refused: bool, both_ways: bool = False) -> None:
        """Whether the node's port refuses connections, because its process is gone; with `both_ways` those that it
        dials itself are refused as well: what carries its TCP is gone, and it lives."""
        for (one, other), relay in self._relays.items():
            if other == node or (both_ways and one == node):
                await (relay.unlisten() if refused else relay.listen())


class _Relay:
    """One dialler's way to one target."""

    def __init__(self, wires: Wires, pair: Pair) -> None:
        self.port = 0
        self._there = wires.directions[pair]
        self._back = wires.directions[pair[1], pair[0]]
        self._target = (LOOPBACK, wires.ports[pair[1]])
        self._taken = tuple(wires.ports.values())
        self._server: asyncio.Server | None = None
        self._udp: _Datagrams | None = None
        self._writers: dict[asyncio.StreamWriter, None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        while True:  # a port number that is free for both
            with socket.socket() as probe:
                probe.bind((LOOPBACK, 0))
                self.port = probe.getsockname()[1]
            if self.port in self._taken:  # a node that is not started yet: the relay would dial itself
                continue
            try:
                _, self._udp = await loop.create_datagram_endpoint(
                    lambda: _Datagrams(self._target, self._there), local_addr=(LOOPBACK, self.port)
                )
                await self.listen()
                return
            except OSError:
                continue

    async def listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, LOOPBACK, self.port)

    async def unlisten(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
            self.reset()

    async def stop(self) -> None:
        await self.unlisten()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._udp is not None and self._udp.transport is not None:
            self._udp.transport.close()

    def reset(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "streams are served by tasks"
        self._tasks[task] = None
        self._writers[writer] = None
        onward: asyncio.StreamWriter | None = None
        try:
            await self._there.open.wait()
            await self._back.open.wait()
            answers, onward = await asyncio.open_connection(*self._target)
            self._writers[onward] = None
            halves = (
                asyncio.create_task(_pass_on(reader, onward, self._there)),
                asyncio.create_task(_pass_on(answers, writer, self._back)),
            )
            try:
                await asyncio.wait(halves, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for half in halves:
                    half.cancel()
                await asyncio.gather(*halves, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.pop(task, None)
            for one in (writer, onward):
                if one is not None:
                    self._writers.pop(one, None)
                    one.transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction) -> None:
    """One half of a connection. What is delayed waits in order, and the reading goes on meanwhile."""
    waiting: deque[tuple[float, bytes]] = deque()
    more = asyncio.Event()

    async def write() -> None:
        while True:
            while not waiting:
                more.clear()
                await more.wait()
            due_s, octets = waiting.popleft()
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            await direction.open.wait()
            writer.write(octets)
            await writer.drain()

    writing = asyncio.create_task(write())
    try:
        while not writing.done():
            octets = await reader.read(RECEIVE_BYTES)
            if not octets:
                return
            waiting.append((time.monotonic() + direction.delay_s, octets))
            more.set()
    except OSError:
        pass
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


class _Datagrams(asyncio.DatagramProtocol):
    """One direction's datagrams; a receiver knows the sender by what is inside, not by the address."""

    def __init__(self, target: tuple[str, int], direction: Direction) -> None:
        self.transport: asyncio.DatagramTransport | None = None
        self._target = target
        self._direction = direction

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:  # noqa: ARG002
        if not self._direction.open.is_set() or not self._direction.datagrams or self.transport is None:
            return
        if self._direction.delay_s:
            asyncio.get_running_loop().call_later(self._direction.delay_s, self._send, data)
        else:
            self._send(data)

    def _send(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.sendto(data, self._target)

    def error_received(self, exc: Exception) -> None:
        """The target does not listen: what was sent is lost, as datagrams may be."""
