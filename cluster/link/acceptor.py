"""The cluster's port: accepts, does the TLS handshake, bounds what strangers may hold (waits).

Nobody who has not finished TLS and the hello is parsed or remembered for longer than the limits of time. At most
GREETING_MAX connections are in that state (each costs some 0.3 MB of buffers); one more ends the oldest of the address
that has most of them. So a flood displaces itself, and a node that comes from elsewhere gets in. Running out of
descriptors pauses accepting; it never ends the listener.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from .link import Link, lost_line

GREETING_MAX: Final = 32
TLS_TIMEOUT_S: Final = 5.0
PAUSE_S: Final = 0.2
BACKLOG: Final = 128


class Acceptor:
    """A listening socket and the connections that have not said who they are."""

    def __init__(
        self,
        sockets: list[socket.socket],
        tls: ssl.SSLContext,
        make: Callable[[str], Link],
        refused: Callable[[str, str], None],
    ) -> None:
        """`make(address)` gives the protocol of a connection; `refused(host, why)` is told of those without TLS."""
        self._loop = asyncio.get_running_loop()
        self._sockets = sockets
        self._tls = tls
        self._make = make
        self._refused = refused
        self._greeting: dict[asyncio.Task[None], tuple[str, socket.socket]] = {}
        """Those that are not linked yet, oldest first: host and socket."""
        self._pauses: list[asyncio.TimerHandle] = []
        self.displaced = 0
        """Connections ended because too many had not said who they are."""
        for listening in sockets:
            self._loop.add_reader(listening, self._accept, listening)

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        tls: ssl.SSLContext,
        make: Callable[[str], Link],
        refused: Callable[[str, str], None],
    ) -> Acceptor:
        """Raises OSError with the address in its text when it cannot be had."""
        try:
            return cls(await listening_sockets(host, port), tls, make, refused)
        except OSError as error:
            raise OSError(
                error.errno, f"cannot listen for the cluster on {host or '*'}:{port}: {error.strerror or error}"
            ) from error

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._sockets[0].getsockname()[1]
        return port

    @property
    def greeting(self) -> int:
        """Connections that have not said who they are."""
        return len(self._greeting)

    def close(self) -> None:
        """Accepts no more, ends those who have not said who they are."""
        for pause in self._pauses:
            pause.cancel()
        for listening in self._sockets:
            if listening.fileno() >= 0:
                self._loop.remove_reader(listening)
                listening.close()
        for task in list(self._greeting):
            self._end(task)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(BACKLOG):
            try:
                connection, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # EMFILE, ENFILE, ENOMEM: those who wait stay in the kernel's queue until there is room again
                self._refused("", f"cannot accept connections ({error.strerror}): raise the limit of open files")
                self._loop.remove_reader(listening)
                self._pauses = [
                    pause for pause in self._pauses if not pause.cancelled() and pause.when() > self._loop.time()
                ]
                self._pauses.append(self._loop.call_later(PAUSE_S, self._resume, listening))
                return
            connection.setblocking(False)
            self._make_room()
            task = self._loop.create_task(self._greet(connection, address[0], f"{address[0]}:{address[1]}"))
            self._greeting[task] = address[0], connection
            task.add_done_callback(self._greeted)

    def _resume(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            self._loop.add_reader(listening, self._accept, listening)

    def _make_room(self) -> None:
        if len(self._greeting) < GREETING_MAX:
            return
        most = Counter(host for host, _ in self._greeting.values()).most_common(1)[0][0]
        self.displaced += 1
        self._end(next(task for task, (host, _) in self._greeting.items() if host == most))

    def _end(self, task: asyncio.Task[None]) -> None:
        _, connection = self._greeting.pop(task)
        # the transport that owns it by now sees the end of the stream and closes it
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        task.cancel()

    def _greeted(self, task: asyncio.Task[None]) -> None:
        self._greeting.pop(task, None)

    async def _greet(self, connection: socket.socket, host: str, where: str) -> None:
        """Until it is linked or over."""
        link = self._make(where)
        try:
            await self._loop.connect_accepted_socket(
                lambda: link, connection, ssl=self._tls, ssl_handshake_timeout=TLS_TIMEOUT_S
            )
            await link.settled.wait()
        except asyncio.CancelledError:
            link.end("too many connections that did not say who they are")
            raise
        except (ConnectionResetError, BrokenPipeError):
            pass  # gone before it said anything: a probe, most often
        except ConnectionAbortedError:
            self._refused(host, f"no TLS handshake within {TLS_TIMEOUT_S:g} s")
        except (ssl.SSLError, OSError) as error:
            self._refused(host, lost_line(error))
        finally:
            if link.transport is None:
                connection.close()


async def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """One socket per address of the host; an empty host is all addresses."""
    found = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            listening = socket.socket(family, socket.SOCK_STREAM)
            sockets.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            # a port that the system chose for the first address serves the others as well
            listening.bind((address[0], sockets[0].getsockname()[1] if len(sockets) > 1 else port, *address[2:]))
            listening.listen(BACKLOG)
            listening.setblocking(False)
    except OSError:
        for listening in sockets:
            listening.close()
        raise
    return sockets
