"""The foreman process beside a node: its start, its end, and the frames between them (waits).

It is there only if the config file has sections `[pools.NAME]`. The node hands it the file's name and reads nothing of
it. What it tells goes to `heard` as events of `broker.node.foreman_link`. The process outlives a node's process by the
grace of its workers: a lock on its directory keeps the next node's foreman waiting until then.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from clusterbroker.broker.foreman.frames import LaunchRow
from clusterbroker.broker.node.foreman_link import Event, ForemanLink
from clusterbroker.broker.server.companion import END_S, Companion
from clusterbroker.broker.server.log import NodeLog

MODULE: Final = (sys.executable, "-P", "-m", "clusterbroker.broker.foreman.main")
READ_BYTES: Final = 1 << 16
UNREAD_BYTES_MAX: Final = 64 << 20
"""Told, and not read by the foreman: it hangs."""


class ForemanProcess(Companion):
    """`begin`; then `wants` and `lease` as the map and the lease change; `end`."""

    def __init__(
        self,
        node: str,
        directory: Path,
        config: Path,
        log: NodeLog,
        words: Sequence[str] = (),
        command: Sequence[str] = MODULE,
    ) -> None:
        """`directory`: for records of workers, in the node's data directory. `words`: more arguments. `command`: for
        tests."""
        super().__init__(command)
        self.link = ForemanLink()
        self.cluster = ""
        """Label of all workers: set before it begins."""
        self.heard: Callable[[Event], None] = _unheard
        """Gets what the foreman tells."""
        self._log = log
        self._words = [
            "--node", node, "--directory", str(directory), "--config", str(config), *words,
        ]  # fmt: skip
        self._unsent = bytearray()

    # -- what the node tells ------------------------------------------------------------------------------------------

    def wants(self, launches: Iterable[LaunchRow], index: int, elsewhere: Mapping[str, bool] | None = None) -> None:
        """All launches of this place that have no Gone, as the map has them at `index`; those of other places, if the
        foreman sees them."""
        self._send(self.link.wants(launches, index, elsewhere))

    def lease(self, held: bool, caught_up: bool) -> None:
        """With each change."""
        self._send(self.link.lease(held, caught_up))

    def busy(self, replicas: Mapping[str, bool]) -> None:
        """With each change."""
        self._send(self.link.busy(replicas))

    def _send(self, data: bytes) -> None:
        if not data or self._lifeline is None:
            return
        if len(self._unsent) + len(data) > UNREAD_BYTES_MAX:
            assert self._process is not None, "it has a lifeline"
            self._process.kill()  # the next one is told what is of then
            return
        self._unsent += data
        self._writable()

    def _writable(self) -> None:
        if self._lifeline is None or self._loop is None:
            return
        try:
            sent = self._lifeline.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # it is over: that is read
        del self._unsent[:sent]
        if self._unsent:
            self._loop.add_writer(self._lifeline.fileno(), self._writable)
        else:
            self._loop.remove_writer(self._lifeline.fileno())

    # -- its life -----------------------------------------------------------------------------------------------------

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watches over it on this loop, and starts it if it does not run."""
        super().begin(loop)
        if self._unsent:
            self._writable()

    def pause(self) -> None:
        """The loop is about to end; the process goes on, and hears nothing."""
        if self._loop is not None and self._lifeline is not None:
            self._loop.remove_writer(self._lifeline.fileno())
        super().pause()

    async def end(self) -> None:
        """Closes the lifeline. Workers that end with their node have their grace: the process is not killed."""
        self._let_go()
        if self._process is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over(), END_S)
            if self._process.poll() is None:
                self._log.emit("info", "foreman.winds_up", pid=self._process.pid)
                self._process.returncode = 0  # it ends by itself, and is not waited for
            self._process = None

    async def end_workers(self, within_s: float) -> None:
        """Closes the lifeline, and returns when the workers are over, and the process. A process that has died, or is
        killed as it was not over after `within_s`, is followed by another one for this, which has as long again:
        workers that were left end as well."""
        if not await self._wound_up(within_s):
            self.pause()
            self.begin(asyncio.get_running_loop())
            await self._wound_up(within_s)

    async def _wound_up(self, within_s: float) -> bool:
        """Closes the lifeline. Whether the process has ended the workers, and itself."""
        if self._process is None:
            self._let_go()
            return False
        self._let_go()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._over(), within_s)
        if self._process.poll() is None:
            self._log.emit("error", "foreman.killed", pid=self._process.pid, after_s=within_s)
            self._process.kill()
        return self._forget() == 0

    def _let_go(self) -> None:
        self.pause()
        self.link.detached()
        if self._lifeline is not None:
            with contextlib.suppress(OSError):  # a process that was forked off this one has it open as well
                self._lifeline.shutdown(socket.SHUT_RDWR)
            self._lifeline.close()
            self._lifeline = None

    def _arguments(self) -> tuple[list[str], list[int]]:
        assert self.cluster, "its workers bear the cluster's label"
        return ["--cluster", self.cluster, *self._words], []

    def _attached(self) -> None:
        assert self._lifeline is not None, "it was started"
        self._lifeline.setblocking(False)
        self._unsent.clear()
        self._send(self.link.attached())

    def _readable(self) -> None:
        assert self._lifeline is not None, "it is read"
        try:
            data = self._lifeline.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        try:
            for event in self.link.heard(data) if data else ():
                self.heard(event)
        except ValueError as error:
            self._log.emit("error", "foreman.unreadable", why=str(error))
            assert self._process is not None, "it has a lifeline"
            self._process.kill()
            data = b""
        if not data:
            assert self._loop is not None, "read while it is watched"
            self._loop.remove_writer(self._lifeline.fileno())
            self.link.detached()
            self._ends()

    def _tell_end(self, why: str, again_in_s: float) -> None:
        self._log.emit("error", "foreman.ended", why=why, again_in_s=again_in_s)


def _unheard(event: Event) -> None:
    """Until somebody listens."""
