"""One client's socket: bytes between asyncio and the connection's core (waits).

All clients of a node read into one buffer: a read is decoded before the next one begins, so an idle connection owns
none. The decoder's rest (part of a frame) is copied to the front of the buffer just before a read.

A connection that ends with a method (connection.close, close-ok) lingers: the node closes its half of the stream and
discards further input, until the client has closed its half or the time is over. Closing at once would make the kernel
answer unread bytes with a reset, and the client would lose the method.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import ipaddress
import socket
import struct
import sys
import termios
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from clusterbroker.broker.node.clients import SocketCore
    from clusterbroker.broker.server.clock import Clock
    from clusterbroker.broker.server.log import Held

WRITE_HIGH_BYTES = 1 << 20
LINGER_S = 3.0
_NO_LINGER = struct.pack("ii", 1, 0)


class ReceiveBuffer:
    """The memory that all sockets of a node read into."""

    __slots__ = ("size", "view")

    def __init__(self, size: int) -> None:
        self.size = size
        self.view = memoryview(bytearray(size))


class ClientOwner(Protocol):
    """The node of a client."""

    buffer: ReceiveBuffer
    clock: Clock
    held: Held

    def admit(self, client: Client, transport: asyncio.BaseTransport) -> SocketCore | None: ...
    def received(self, size: int) -> None: ...
    def lost(self, client: Client, connection: SocketCore) -> None: ...
    def lingers(self, client: Client, time_s: float) -> None: ...
    def schedule(self) -> None: ...


class Client(asyncio.BufferedProtocol):
    """The protocol of one socket."""

    __slots__ = (
        "_ended", "_kept", "_reading", "_transport", "connection", "received_bytes", "received_reads", "sent_bytes",
        "sent_writes", "shell",
    )  # fmt: skip

    def __init__(self, shell: ClientOwner) -> None:
        self.shell = shell
        self.connection: SocketCore | None = None
        self._transport: Any = None
        self._kept = 0
        self._reading = True
        self._ended = False
        self.received_bytes = self.received_reads = self.sent_bytes = self.sent_writes = 0

    # -- from the socket --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.connection = self.shell.admit(self, transport)
        if self.connection is None:
            self._ended = True
            self._transport.abort()
        else:
            self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        view = self.shell.buffer.view
        if self._ended or self.connection is None:
            self._kept = 0
            return view
        rest = self.connection.undecoded
        kept = self._kept = len(rest)
        if kept:
            view[:kept] = rest
            return view[kept:]
        return view

    def buffer_updated(self, nbytes: int) -> None:
        connection = self.connection
        if self._ended or connection is None:
            return
        shell = self.shell
        self.received_bytes += nbytes
        self.received_reads += 1
        now_ms = shell.clock.now_ms()
        try:
            connection.receive(shell.buffer.view[: self._kept + nbytes], now_ms)
        except Exception as error:
            self.crashed(error)
        shell.held.read(shell.clock.now_ms() - now_ms, connection)
        shell.received(nbytes)

    def pause_writing(self) -> None:
        if self.connection is not None:
            self.connection.paused(True, self.shell.clock.now_ms())

    def resume_writing(self) -> None:
        if self.connection is not None:
            self.connection.paused(False, self.shell.clock.now_ms())
            self.shell.schedule()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        connection, self.connection = self.connection, None
        self._ended = True
        if connection is not None:
            self.shell.lost(self, connection)

    # -- to the socket ----------------------------------------------------------------------------------------

    def flush(self, connection: SocketCore, now_ms: int) -> None:
        """Carries out the core's wishes: bytes sent, reading or not, the end."""
        transport = self._transport
        out = connection.out
        if out.size and (not out.paused or connection.ending is not None):
            full = out.size >= out.size_max
            data = out.take()
            if not self._ended and not transport.is_closing():
                transport.write(data)
                self.sent_bytes += len(data)
                self.sent_writes += 1
                connection.sent(now_ms)
            if full and not out.paused:
                connection.mark_consumers()
        if self._ended or transport.is_closing():
            return
        if connection.ending is not None:
            self._end(connection.ending)
        elif connection.reading is not self._reading:
            self._reading = connection.reading
            if self._reading:
                transport.resume_reading()
            else:
                transport.pause_reading()

    def _end(self, how: str) -> None:
        self._ended = True
        transport = self._transport
        if how == "abort":
            transport.abort()
            return
        if not self._reading:
            transport.resume_reading()
        self.shell.lingers(self, LINGER_S)
        if transport.can_write_eof():
            transport.write_eof()
        else:
            transport.close()

    # -- for operators ----------------------------------------------------------------------------------------

    @property
    def own_address(self) -> tuple[str, int]:
        """This node's end."""
        name = self._transport.get_extra_info("sockname")
        return (str(name[0]), int(name[1])) if isinstance(name, tuple) and len(name) >= 2 else ("", 0)

    @property
    def cipher(self) -> tuple[str, str, int] | None:
        """(name, protocol, bits); None without TLS."""
        found: tuple[str, str, int] | None = self._transport.get_extra_info("cipher")
        return found

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait for the socket."""
        return int(self._transport.get_write_buffer_size())

    @property
    def untaken_bytes(self) -> int:
        """Bytes that wait for the socket, or in the kernel for an acknowledgement by the client's machine."""
        connection = self._transport.get_extra_info("socket")
        return self.unsent_bytes + (_unacknowledged_bytes(connection) if connection is not None else 0)

    def abort(self) -> None:
        """Nothing more in either direction; `connection_lost` follows."""
        self._ended = True
        if self._transport is not None:
            self._transport.abort()

    def cut_off(self) -> None:
        """As `abort`, without the bytes that the kernel still holds for the client."""
        if self._transport is not None and (connection := self._transport.get_extra_info("socket")) is not None:
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.abort()

    def crashed(self, error: Exception) -> None:
        """An error of the node's own costs this client its connection (541), and no other."""
        if self.connection is not None:
            self.connection.crashed(error)


def cut_off_slow(clients: Iterable[Client]) -> None:
    """The lease is over: clients with unread bytes are cut off, for these may be delivered elsewhere by now."""
    for client in [client for client in clients if client.untaken_bytes]:
        client.cut_off()


def _unacknowledged_bytes(connection: socket.socket) -> int:
    """0 where the kernel does not know."""
    held = bytearray(4)
    try:
        fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, held)
    except (OSError, ValueError):  # closed, or a kernel that does not say
        return 0
    return int.from_bytes(held, sys.byteorder)


def peer_name(transport: asyncio.BaseTransport) -> tuple[str, bool]:
    """(address and port of the other side, whether it is this machine)."""
    name = transport.get_extra_info("peername")
    if not isinstance(name, tuple) or len(name) < 2:
        return "unknown", False
    host = str(name[0])
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None)
        loopback = (mapped or address).is_loopback
    except ValueError:
        loopback = False
    return (f"[{host}]:{name[1]}" if ":" in host else f"{host}:{name[1]}"), loopback
