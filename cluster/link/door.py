"""Accepting strangers: sockets whose TLS, or hello, is still to come are bounded; floods displace themselves (waits).

At most `greeting_max` connections are greeted at once, and fewer where the owner has no room for them (`room`): one
more ends the oldest of the address with the most of them, if that has had `patience_s`. Connections from other
addresses thus get in. Where none has had its time yet, newcomers wait in the kernel's queue: many good clients at
once, after a restart, must not end each other. Where admitted connections take all the room, the newcomer is turned
away. Running out of descriptors pauses accepting; it never ends the listener.
"""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

PAUSE_S: Final = 0.2
BACKLOG: Final = 128
DISPLACED_AT_ONCE: Final = 8


class Door(ABC):
    """Listening sockets and the connections that are greeted. Belongs to one loop."""

    def __init__(
        self,
        sockets: list[socket.socket],
        greeting_max: int,
        refused: Callable[[str, str], None],
        room: Callable[[], int] | None = None,
        patience_s: float = 0.0,
    ) -> None:
        """`refused(host, why)` is called for each that is not let in; `room()`: so many may be greeted by now."""
        self._loop = asyncio.get_running_loop()
        self._sockets = sockets
        self._greeting_max = greeting_max
        self._refused = refused
        self._room = room
        self._patience_s = patience_s
        self._greeting: dict[asyncio.Task[None], tuple[str, socket.socket, float]] = {}
        """Oldest first: host, socket, since when."""
        self._pauses: list[asyncio.TimerHandle] = []
        self.displaced = 0
        """Connections ended because too many were greeted."""

    def begin(self) -> None:
        """Accepts from now on: the sockets listen."""
        for listening in self._sockets:
            self._loop.add_reader(listening, self._accept, listening)

    @abstractmethod
    async def _greet(self, connection: socket.socket, host: str, where: str) -> None:
        """Until it is let in or over; cancelled when it is displaced."""

    @property
    def greeting(self) -> int:
        """Connections that are greeted."""
        return len(self._greeting)

    def close(self) -> None:
        """Accepts no more, ends those that are greeted."""
        for pause in self._pauses:
            pause.cancel()
        for listening in self._sockets:
            if listening.fileno() >= 0:
                self._loop.remove_reader(listening)
                listening.close()
        for task in list(self._greeting):
            self._end(task)

    def _accept(self, listening: socket.socket) -> None:
        displaced = self.displaced
        for _ in range(BACKLOG):
            if self.displaced - displaced >= DISPLACED_AT_ONCE:
                return  # each is looked for among all; the loop calls again
            if self._patience_s and self._full and self._loop.time() - self._next_to_go()[1] < self._patience_s:
                self._pause(listening)
                return
            try:
                connection, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # EMFILE, ENFILE, ENOMEM: those that wait stay in the kernel's queue until there is room again
                self._refused("", f"cannot accept connections ({error.strerror}): raise the limit of open files")
                self._pause(listening)
                return
            connection.setblocking(False)
            if not self._make_room():
                self._refused(address[0], "there are as many connections as there may be")
                connection.close()
                continue
            task = self._loop.create_task(self._greet(connection, address[0], f"{address[0]}:{address[1]}"))
            self._greeting[task] = address[0], connection, self._loop.time()
            task.add_done_callback(self._greeted)

    def _pause(self, listening: socket.socket) -> None:
        self._loop.remove_reader(listening)
        self._pauses = [pause for pause in self._pauses if not pause.cancelled() and pause.when() > self._loop.time()]
        self._pauses.append(self._loop.call_later(PAUSE_S, self._resume, listening))

    def _resume(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            self._loop.add_reader(listening, self._accept, listening)

    def _make_room(self) -> bool:
        """Whether there is room for one more, perhaps in the place of another."""
        if self._full:
            self.displaced += 1
            self._end(self._next_to_go()[0])
            return True
        return bool(self._greeting) or self._most > 0

    @property
    def _most(self) -> int:
        return self._greeting_max if self._room is None else min(self._greeting_max, self._room())

    @property
    def _full(self) -> bool:
        """Whether one more takes the place of one that is there."""
        return bool(self._greeting) and len(self._greeting) >= self._most

    def _next_to_go(self) -> tuple[asyncio.Task[None], float]:
        """The oldest of the address that has most, and since when it is greeted."""
        busiest = Counter(host for host, _, _ in self._greeting.values()).most_common(1)[0][0]
        return next((task, since_s) for task, (host, _, since_s) in self._greeting.items() if host == busiest)

    def _end(self, task: asyncio.Task[None]) -> None:
        _, connection, _ = self._greeting.pop(task)
        # the transport that owns it by now sees the end of the stream and closes it
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        task.cancel()

    def _greeted(self, task: asyncio.Task[None]) -> None:
        self._greeting.pop(task, None)


async def listening_sockets(host: str, port: int, begin: bool = True) -> list[socket.socket]:
    """As `bound_sockets`, without waiting for a resolver; they listen, unless not to `begin` yet."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets = bound_sockets(found, port)
    for one in sockets if begin else ():
        one.listen(BACKLOG)
    return sockets


def bound_sockets(found: Sequence[Any], port: int) -> list[socket.socket]:
    """One socket per address that `getaddrinfo` found; all have the same port. Raises OSError."""
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
            listening.setblocking(False)
    except OSError:
        for listening in sockets:
            listening.close()
        raise
    return sockets
