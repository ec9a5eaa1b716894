"""A TCP relay that can lose the connections through it, at once or after so many bytes of either direction."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Self


class Cutter:
    """`async with Cutter(port) as cutter`: listens at `cutter.port`, relays to `port` of 127.0.0.1.

    `limits`: of the connections to come, one after another, after how many bytes from the client, or how many from the
    node, it is lost; what came before has been passed on. What is lost is lost in both directions at one moment. Later
    connections stay.
    """

    def __init__(self, port: int) -> None:
        self.target = port
        self.port = 0
        self.cuts = 0
        self.connections = 0
        self.limits: deque[tuple[int, int]] = deque()
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Loses all connections."""
        self.cuts += bool(self._open)
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there, out = await asyncio.open_connection("127.0.0.1", self.target)
        self._open |= {writer, out}
        up, down = self.limits.popleft() if self.limits else (-1, -1)
        for source, sink, limit in ((reader, out, up), (there, writer, down)):
            task = asyncio.create_task(self._relay(source, sink, limit, (writer, out)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _relay(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        limit: int,
        both: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
    ) -> None:
        try:
            while data := await reader.read(4096):
                if 0 <= limit <= len(data):
                    writer.write(data[:limit])
                    self.cuts += 1
                    break
                limit -= len(data) if limit >= 0 else 0
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            for end in both:
                self._open.discard(end)
                end.close() if limit < 0 else end.transport.abort()
