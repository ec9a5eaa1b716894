"""A UDP socket for heartbeats, over asyncio-dgram (waits).

The use of the library avoids its traps: `bind` only; addresses are resolved before; one reader. An error belongs to
some earlier datagram, for any peer, so the datagram that met it is sent once more and nothing else suffers. The queue
of datagrams is bounded, the oldest is dropped first.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, cast

import asyncio_dgram

WAITING_MAX: Final = 4096
RECEIVE_BYTES: Final = 1 << 20

Where = tuple[str, int]
"""A resolved address: IP and port."""


class Datagrams:
    """Sends without waiting; hands over what comes."""

    def __init__(self, stream: asyncio_dgram.aio.DatagramServer, received: Callable[[bytes, Where], None]) -> None:
        self._stream = stream
        self._received = received
        self._waiting: deque[tuple[bytes, Where]] = deque(maxlen=WAITING_MAX)
        self._ready = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._read()), loop.create_task(self._write())]
        self.errors = 0
        """Errors of the socket."""

    @classmethod
    async def open(cls, host: str, port: int, received: Callable[[bytes, Where], None]) -> Datagrams:
        """Raises OSError with the address in its text. An empty host is all addresses of IPv4."""
        try:
            where = await resolve(host or "0.0.0.0", port)  # noqa: S104 - the operator asked for all
            stream = await asyncio_dgram.bind(where)
        except OSError as error:
            why = error.strerror or "the port is in use, or the address is not of this machine"
            raise OSError(
                error.errno or errno.EADDRINUSE, f"cannot listen for beats on {host or '*'}:{port} (UDP): {why}"
            ) from error
        with suppress(OSError, AttributeError):
            stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        return cls(stream, received)

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._stream.sockname[1]
        return port

    @property
    def family(self) -> int:
        """Of its addresses: it reaches no others."""
        return socket.AF_INET6 if ":" in self._stream.sockname[0] else socket.AF_INET

    def send(self, data: bytes, where: Where) -> None:
        """Soon; it may be lost, as datagrams may."""
        self._waiting.append((data, where))
        self._ready.set()

    async def close(self) -> None:
        """Ends at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._stream.close()

    async def _write(self) -> None:
        while True:
            await self._ready.wait()
            self._ready.clear()
            while self._waiting:
                data, where = self._waiting.popleft()
                for _ in range(2):
                    try:
                        await self._stream.send(data, where)
                        break
                    except (OSError, ValueError):  # uvloop raises ValueError for an address of another family
                        self.errors += 1
                    except asyncio_dgram.TransportClosed:
                        return

    async def _read(self) -> None:
        while True:
            try:
                data, where = await self._stream.recv()
            except OSError:
                self.errors += 1
                continue
            except asyncio_dgram.TransportClosed:
                return
            self._received(data, cast(Where, where))


async def resolve(host: str, port: int, family: int = socket.AF_INET) -> Where:
    """The first address of the host, those of `family` before others. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    found.sort(key=lambda entry: entry[0] != family)
    address = found[0][4]
    return str(address[0]), int(address[1])
