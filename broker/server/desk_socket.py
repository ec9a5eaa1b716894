"""`management.sock` and `amqp.sock` in a node's data directory, for its management process (waits).

The process follows the wiring: a snapshot of the map, a chunk each turn of the loop and only while the socket takes
them, then what is applied, once a turn. A process that does not read must not fill the node's memory: when more waits
for it than UNREAD_BYTES_MAX it is cut, and begins anew when it is back.

`amqp.sock` speaks AMQP. Who can open it may read the data directory anyway; EXTERNAL with a user's name as response is
that user there, with its permissions and no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.server.client import Client
from clusterbroker.broker.server.desk import Desk
from clusterbroker.broker.server.private_socket import bound
from clusterbroker.broker.stats import desk_messages as m
from clusterbroker.cluster import commands as c
from clusterbroker.cluster import snapshot

if TYPE_CHECKING:
    from clusterbroker.broker.server.shell import NodeShell
    from clusterbroker.cluster.state import Applied

NAME: Final = "management.sock"
AMQP_NAME: Final = "amqp.sock"
UNREAD_BYTES_MAX: Final = 32 << 20
WRITE_HIGH_BYTES: Final = 1 << 20
LINES_MAX: Final = 4
"""A process that is ending, one that begins, and some to spare."""


class OwnClient(Client):
    """A client that came through `amqp.sock`."""

    trusted = True


class DeskSocket:
    """Both doors, open from `open` to `close`."""

    def __init__(self, shell: NodeShell, directory: Path) -> None:
        self._shell = shell
        self._directory = directory
        self.desk = Desk(shell)
        self.lines: dict[DeskLine, None] = {}
        self._servers: list[asyncio.Server] = []

    async def open(self) -> None:
        """Raises OSError."""
        loop = asyncio.get_running_loop()
        doors: tuple[tuple[str, Callable[[], asyncio.BaseProtocol]], ...] = (
            (NAME, partial(DeskLine, self._shell, self)),
            (AMQP_NAME, partial(OwnClient, self._shell)),
        )
        for name, protocol in doors:
            self._servers.append(await loop.create_unix_server(protocol, sock=bound(self._directory, name)))
        self._shell.storage.wiring.listen(self._applied)

    def _applied(self, applied: Applied) -> None:
        following = [line for line in self.lines if line.following]
        if following:
            command = c.encode(applied.command)
            for line in following:
                line.follow(applied.index, command)

    def lease_changed(self) -> None:
        """Whoever is here hears of it at once."""
        for line in tuple(self.lines):
            line.send(m.Leased(self.desk.leased))

    def reload(self) -> None:
        """The management process reads its certificates anew."""
        for line in tuple(self.lines):
            line.send(m.Reload())

    async def close(self) -> None:
        """Both doors are shut, and whoever was in is cut. May be called again."""
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        self.desk.close()
        for line in tuple(self.lines):
            line.cut("")
        if servers:
            for name in (NAME, AMQP_NAME):
                (self._directory / name).unlink(missing_ok=True)


class DeskLine(asyncio.Protocol):
    """One management process."""

    def __init__(self, shell: NodeShell, owner: DeskSocket) -> None:
        self._shell = shell
        self._owner = owner
        self._frames = m.Frames(m.AnyAsked)
        self._transport: Any = None
        self._greeted = False
        self._paused = False
        self._tail = 0  # the number of its question; 0: it does not follow
        self._index = 0  # of the last command that it heard of, or will
        self._snapshot_index = 0
        self._chunks: Iterator[bytes] | None = None
        self._pending: list[tuple[int, bytes]] = []
        self._pending_bytes = 0
        self._due = False

    @property
    def following(self) -> bool:
        """It wants to hear what is applied."""
        return self._tail > 0

    # -- from the socket --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        if len(self._owner.lines) >= LINES_MAX or self._shell.ended.done():
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        self._owner.lines[self] = None
        self.send(self._owner.desk.hello())
        self.send(m.Leased(self._owner.desk.leased))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._owner.lines.pop(self, None)
        self._tail = 0
        self._chunks = None
        self._pending.clear()

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._frames.feed(data):
                self._asked(message)
        except ValueError as error:
            self.cut(str(error))
        except Exception as error:
            self._shell.log.crashed(NAME, error)
            self.cut("")

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._pump()

    def cut(self, why: str) -> None:
        """Ends the line; `why` is for the log."""
        if why:
            self._shell.log.say("warning", "management.cut", why=why)
        if self._transport is not None:
            self._transport.abort()

    # -- questions --------------------------------------------------------------------------------------------

    def _asked(self, message: m.DeskMessage) -> None:
        desk = self._owner.desk
        if isinstance(message, m.Hello):
            if message.version != m.VERSION:
                raise ValueError(f"the process speaks version {message.version}, this node {m.VERSION}")
            self._greeted = True
            return
        if not self._greeted:
            raise ValueError("the process has not said hello")
        match message:
            case m.Tail():
                self._follow_from(message)
            case m.AskRows():
                desk.rows(message, self.send)
            case m.Order():
                desk.order(message, self.send)
            case m.Do():
                desk.do(message, self.send)
            case m.Logins():
                desk.logins = message
            case _:
                raise ValueError(f"{type(message).__name__} is no question")

    def send(self, message: m.DeskMessage) -> None:
        """Puts a message on its way, or cuts who does not read."""
        transport = self._transport
        if transport.is_closing():
            return
        if transport.get_write_buffer_size() > UNREAD_BYTES_MAX:
            self.cut(f"the management process has left {UNREAD_BYTES_MAX >> 20} MiB unread: it begins anew")
            return
        transport.write(m.encode(message))

    # -- the tail ---------------------------------------------------------------------------------------------

    def _follow_from(self, asked: m.Tail) -> None:
        view = self._shell.node.map
        self._tail = asked.number
        self._pending.clear()
        self._pending_bytes = 0
        self._index = self._snapshot_index = view.applied
        if asked.index == view.applied:
            self._chunks = None
            self.send(m.Following(asked.number))
        else:
            self._chunks = snapshot.encode(view.snapshot())
        self._pump()

    def follow(self, index: int, command: bytes) -> None:
        """Was applied just now, perhaps before the snapshot was made."""
        if index <= self._index:
            return
        self._index = index
        self._pending.append((index, command))
        self._pending_bytes += len(command)
        if self._pending_bytes > UNREAD_BYTES_MAX:
            self.cut(f"the management process is {UNREAD_BYTES_MAX >> 20} MiB of wiring behind: it begins anew")
        elif not self._due:
            self._due = True
            self._shell.loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._due = False
        if self._paused or not self._tail:
            return
        if self._chunks is not None:
            chunk = next(self._chunks, b"")
            self.send(m.Snapshot(self._tail, self._snapshot_index, chunk))
            if not chunk:
                self._chunks = None
            self._due = True
            self._shell.loop.call_soon(self._pump)
        elif self._pending:
            pending, self._pending = self._pending, []
            self._pending_bytes = 0
            self.send(m.Followed(self._tail, tuple(pending)))
