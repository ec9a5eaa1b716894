"""A process beside a node: its start, its supervision, its end (waits).

A process that ends by itself is logged and followed by another one, after 0.5 s and twice as long each time, 30 s at
most; a life of a minute begins that count anew.

The process lives as long as the node's process, across incarnations of the node. `pause` and `begin` hand the watch
from one event loop to the next. A socket pair, the lifeline, ties the two processes: each end reads end-of-file when
the other process is over, however that came about, on any system.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
from collections.abc import Sequence
from typing import Final

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
STEADY_S: Final = 60.0
END_S: Final = 3.0
"""So long a process may take to end, once it is asked to or has closed its lifeline; then it is killed."""
LOOK_S: Final = 0.01


class Companion:
    """`begin`; `pause` before the loop ends, `begin` on the next one; `end`. What is told is the subclass's."""

    def __init__(self, command: Sequence[str]) -> None:
        self.restarts = 0
        self._command = tuple(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._pause_s = FIRST_PAUSE_S
        self._begun_s = 0.0

    # -- of its subclass ------------------------------------------------------------------------------------------

    def _arguments(self) -> tuple[list[str], list[int]]:
        """Words behind the command, and descriptors that the process inherits."""
        raise NotImplementedError

    def _tell_end(self, why: str, again_in_s: float) -> None:
        """It ended by itself, or could not be started."""
        raise NotImplementedError

    def _attached(self) -> None:
        """It was started: the node's end of the lifeline is there."""

    def _readable(self) -> None:
        """The lifeline has something to read: of a process that tells nothing, its end."""
        self._ends()

    # -- its life ---------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int | None:
        """None: it does not run."""
        return None if self._process is None else self._process.pid

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watches over it on this loop, and starts it if it does not run."""
        assert self._loop is None, "watched on one loop at a time"
        self._loop = loop
        if self._lifeline is None:
            self._start()
        else:
            loop.add_reader(self._lifeline.fileno(), self._readable)

    def pause(self) -> None:
        """The loop is about to end; the process goes on."""
        loop, self._loop = self._loop, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if loop is not None and self._lifeline is not None:
            loop.remove_reader(self._lifeline.fileno())

    async def end(self) -> None:
        """Asks it to end, and kills it when that takes too long. May be called again."""
        self.pause()
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over(), END_S)
            self._process.kill()
            self._forget()

    async def _over(self) -> None:
        assert self._process is not None, "it was asked to end"
        while self._process.poll() is None:  # noqa: ASYNC110 - no event of its end exists on all systems
            await asyncio.sleep(LOOK_S)

    def _start(self) -> None:
        self._timer = None
        assert self._loop is not None, "started while it is watched"
        own, its = socket.socketpair()
        words, descriptors = self._arguments()
        self._begun_s = self._loop.time()
        try:
            process = subprocess.Popen(  # noqa: S603
                [*self._command, "--lifeline", str(its.fileno()), *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(its.fileno(), *descriptors),
                start_new_session=True,  # signals of a terminal are for the node
            )
        except OSError as error:
            own.close()
            self._again(f"it cannot be started: {error}")
            return
        finally:
            its.close()
        self._process, self._lifeline = process, own
        self._loop.add_reader(own.fileno(), self._readable)
        self._attached()

    def _ends(self) -> None:
        """The lifeline is closed at its other end: the process is over, or about to be."""
        assert self._loop is not None, "read while it is watched"
        assert self._lifeline is not None, "its end was read"
        self._loop.remove_reader(self._lifeline.fileno())
        self._reap(self._loop.time() + END_S)

    def _reap(self, end_s: float) -> None:
        self._timer = None
        assert self._loop is not None, "reaped while it is watched"
        assert self._process is not None, "it has not been waited for"
        if self._process.poll() is None:
            if self._loop.time() >= end_s:
                self._process.kill()
            self._timer = self._loop.call_later(LOOK_S, self._reap, end_s)
            return
        code = self._forget()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        if self._loop.time() - self._begun_s >= STEADY_S:
            self._pause_s = FIRST_PAUSE_S
        self._again(f"it ended by itself: {how}")

    def _again(self, why: str) -> None:
        assert self._loop is not None, "started again while it is watched"
        self.restarts += 1
        self._tell_end(why, self._pause_s)
        self._timer = self._loop.call_later(self._pause_s, self._start)
        self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)

    def _forget(self) -> int:
        """The exit code of a process that is over, or was killed just now."""
        process, self._process = self._process, None
        assert process is not None, "there was one"
        code = process.wait()
        if self._lifeline is not None:
            self._lifeline.close()
            self._lifeline = None
        return code
