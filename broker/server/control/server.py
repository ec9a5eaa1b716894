"""`control.sock` in a node's data directory: the one door for commands and for the management process (waits).

The socket is for the directory's owner only, who is asked for no password. A command makes calls (`calls`). The
management process also follows the wiring: a snapshot of the map, a chunk each turn of the loop and only while the
socket takes them, then what is applied, once a turn. A client that does not read must not fill the node's memory: with
more than UNREAD_BYTES_MAX unread it is cut, and begins anew when it is back.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.server.control import protocol as m
from clusterbroker.broker.server.control.calls import Calls
from clusterbroker.broker.server.control.private_socket import bound
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring import snapshot

if TYPE_CHECKING:
    from clusterbroker.broker.server.control.service import Service
    from clusterbroker.broker.server.peer_census import PeerCensus
    from clusterbroker.broker.server.ports import ServerPort
    from clusterbroker.cluster.wiring.map import Applied

UNREAD_BYTES_MAX: Final = 32 << 20
WRITE_HIGH_BYTES: Final = 1 << 20
CALLS_MAX: Final = 64
"""Of one command at once."""
FOLLOWING_MAX: Final = 4
"""A management process that is ending, one that begins, and some to spare."""


class ControlSocket:
    """Open for commands from `open`, for the management process from `begin`, until `close`."""

    def __init__(self, shell: ServerPort, directory: Path) -> None:
        self._shell = shell
        self._directory = directory
        self.calls = Calls(shell)
        self.service: Service | None = None
        """For the management process; None: there is none, or the node is not ready."""
        self.lines: dict[ControlLine, None] = {}
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Raises OSError."""
        made = partial(ControlLine, self._shell, self)
        self._server = await self._shell.loop.create_unix_server(made, sock=bound(self._directory, m.NAME))

    def begin(self, peers: PeerCensus | None) -> None:
        """The node is ready for the management process; `peers`: of a member."""
        from clusterbroker.broker.server.control.service import Service  # a node without that process needs none of it

        self.service = Service(self._shell, self.calls, peers)
        self._shell.storage.wiring.listen(self._applied)

    def _applied(self, applied: Applied) -> None:
        following = [line for line in self.lines if line.following]
        if following:
            command = c.encode(applied.command)
            for line in following:
                line.follow(applied.index, command)

    @property
    def logins(self) -> m.Logins | None:
        """Attempts to sign in at the management process; None: there is none."""
        return None if self.service is None else self.service.logins

    def lease_changed(self) -> None:
        """The management process hears of it at once."""
        if self.service is not None:
            self._tell(m.Leased(self.service.leased))

    def alarms_changed(self) -> None:
        """The management process asks for rows at once."""
        if self.service is not None:
            self._tell(m.AlarmsChanged())

    def reload(self) -> None:
        """The management process reads its certificates anew."""
        self._tell(m.Reload())

    def _tell(self, message: m.ControlMessage) -> None:
        for line in tuple(self.lines):
            if line.management:
                line.send(message)

    async def close(self) -> None:
        """Commands hear that the node ends, the management process is cut. May be called again."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            (self._directory / m.NAME).unlink(missing_ok=True)
        if self.service is not None:
            self.service.close()
        calls = [call for line in self.lines for call in line.calls]
        for call in calls:
            call.cancel()
        if calls:
            await asyncio.wait(calls)
        for line in tuple(self.lines):
            line.end()
        await asyncio.to_thread(self.calls.close)


class ControlLine(asyncio.Protocol):
    """One command, or one management process."""

    def __init__(self, shell: ServerPort, owner: ControlSocket) -> None:
        self._shell = shell
        self._owner = owner
        self._frames = m.Frames(m.AnyAsked)
        self._transport: Any = None
        self._uid = ""
        self._greeted = False
        self.management = False
        """It is the management process."""
        self.calls: set[asyncio.Task[None]] = set()
        """Of a command, not answered yet."""
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
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        self._uid = _uid(transport.get_extra_info("socket"))
        self._owner.lines[self] = None
        self.send(m.Hello(m.VERSION, self._shell.options.node.name))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._owner.lines.pop(self, None)
        self._tail = 0
        self._chunks = None
        self._pending.clear()

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._frames.feed(data):
                if self._transport.is_closing():
                    return
                self._asked(message)
        except ValueError as error:
            self.cut(str(error))
        except Exception as error:
            self._shell.log.crashed(m.NAME, error)
            self.cut("")

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._pump()

    def cut(self, why: str) -> None:
        """Ends the line; `why` is for the log."""
        if why:
            self._shell.log.emit("warning", "management.cut", why=why)
        self._transport.abort()

    def end(self) -> None:
        """The node ends: what a command was answered still reaches it."""
        if self.management:
            self._transport.abort()
        else:
            self._transport.close()

    # -- questions --------------------------------------------------------------------------------------------

    def _asked(self, message: m.ControlMessage) -> None:
        if isinstance(message, m.Hello):
            if message.version != m.VERSION:
                raise ValueError(f"the client speaks version {message.version}, this node {m.VERSION}")
            self._greeted = True
            if message.management:
                self._welcome()
        elif not self._greeted:
            raise ValueError("the client has not said hello")
        elif self.management:
            self._asked_by_process(message)
        elif isinstance(message, m.Call) and len(self.calls) < CALLS_MAX:
            call = self._shell.loop.create_task(self._call(message))
            self.calls.add(call)
            call.add_done_callback(self.calls.discard)
        else:
            raise ValueError(f"{type(message).__name__} is not for commands, or too many calls are open")

    async def _call(self, call: m.Call) -> None:
        self.send(await self._owner.calls.answer(call, self._uid))

    def _welcome(self) -> None:
        service = self._owner.service
        if service is None or self._shell.ended.done():
            self.cut("")
            return
        self.management = True
        self.send(m.Leased(service.leased))

    def _asked_by_process(self, message: m.ControlMessage) -> None:
        service = self._owner.service
        assert service is not None, "the process was welcome"
        match message:
            case m.Tail() if sum(line.following for line in self._owner.lines) < FOLLOWING_MAX:
                self._follow_from(message)
            case m.AskRows():
                service.rows(message, self.send)
            case m.Order():
                service.order(message, self.send)
            case m.Call():
                service.call(message, self.send)
            case m.AsUser():
                service.as_user(message, self.send)
            case m.Logins():
                service.logins = message
            case _:
                raise ValueError(f"{type(message).__name__} is no question, or too many processes follow")

    def send(self, message: m.ControlMessage) -> None:
        """Puts a message on its way, or cuts a client that does not read."""
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


def _uid(opened: Any) -> str:
    """The user whose process opened the socket, as the system says."""
    if opened is None or not hasattr(socket, "SO_PEERCRED"):
        return ""
    _, uid, _ = struct.unpack("3i", opened.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return f"uid {uid}"
