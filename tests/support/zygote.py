"""`python -m tests.support.zygote FD`: the parent of all processes that one pytest starts (`processes.py` asks it).

A process that has imported the node once forks real processes of `clusterbroker` on request: a node's start costs a
third of what it would with the imports. Each has a process id, session, environment, descriptors and exit status of its
own, and dies of a signal as any. What cannot be forked (another program, other libraries) is executed.

Nothing outlives the run. FD is one end of a socket pair, whose other end only pytest holds: when pytest ends, however
it ends, the zygote kills its descendants. It adopts those whose own parent has ended (PR_SET_CHILD_SUBREAPER), and its
children die with it (PR_SET_PDEATHSIG).

A request is a JSON object with descriptors (stdin, stdout, stderr, status); the answer is `{"pid": n}`.
When the process ends, its wait status (4 bytes) is written to `status`.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any, Final, NoReturn

REQUEST_BYTES_MAX: Final = 1 << 20
STATUS: Final = struct.Struct("i")
PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
IMPORTED: Final = (
    "asyncio", "uvloop", "rich.table", "clusterbroker.broker.cli.main", "clusterbroker.broker.cli.start",
    "clusterbroker.broker.cli.target", "clusterbroker.broker.config", "clusterbroker.broker.server.shell",
    "clusterbroker.broker.server.member.cluster_shell", "clusterbroker.broker.server.management",
)  # fmt: skip
"""What nodes and commands import at their start."""

_libc = ctypes.CDLL(None, use_errno=True)


def control(option: int, value: int) -> None:
    """prctl(2). Raises OSError."""
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


class Zygote:
    def __init__(self, asked: socket.socket) -> None:
        self._asked = asked
        self._status_of: dict[int, int] = {}
        """The descriptor that waits for the status of a process, by its id."""
        self._woken, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> list[str] | None:
        """In the zygote: until pytest has ended. In a process that it has forked: the words of its command."""
        poll = select.poll()
        poll.register(self._asked, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == self._woken:
                    with contextlib.suppress(BlockingIOError):
                        os.read(fd, 4096)
                    self._reap()
                    continue
                try:
                    raw, fds, _, _ = socket.recv_fds(self._asked, REQUEST_BYTES_MAX, 4)
                except ConnectionError:
                    raw = b""
                if not raw:
                    return None
                words = self._start(json.loads(raw), fds)
                if words is not None:
                    return words

    def _start(self, request: dict[str, Any], fds: list[int]) -> list[str] | None:
        status = fds.pop()
        own = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                _become(request, fds, own)
                if not request["forks"]:
                    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
                    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
                    os.execvpe(request["words"][0], request["words"], os.environ)
            except BaseException as error:
                print(f"cannot start {request['words'][0]}: {error}", file=sys.stderr, flush=True)
                os._exit(127)
            return list(request["words"])
        for fd in fds:
            os.close(fd)
        self._status_of[pid] = status
        self._asked.sendall(json.dumps({"pid": pid}).encode())
        return None

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            fd = self._status_of.pop(pid, -1)
            if fd >= 0:
                with contextlib.suppress(BrokenPipeError):
                    os.write(fd, STATUS.pack(status))
                os.close(fd)

    def end(self) -> None:
        """Kills all descendants: who loses its parent becomes a child, and is next."""
        children = Path(f"/proc/self/task/{os.getpid()}/children")
        while pids := [int(pid) for pid in children.read_text().split()]:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._reap()
            time.sleep(0.005)


def _become(request: dict[str, Any], fds: list[int], parent: int) -> None:
    """Another process, in a child that has just been forked."""
    control(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(127)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if request["session"]:
        os.setsid()
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
    os.closerange(3, 1 << 20)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    if "PYTHONUNBUFFERED" in os.environ:
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]


def main() -> NoReturn:
    asked = socket.socket(fileno=int(sys.argv[1]))
    asked.set_inheritable(False)
    control(PR_SET_CHILD_SUBREAPER, 1)
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    zygote = Zygote(asked)
    words = zygote.serve()
    if words is None:
        zygote.end()
        sys.exit(0)
    asked.detach()
    sys.argv = ["clusterbroker", *words]
    from clusterbroker.broker.cli.main import main as command

    command()
    sys.exit(0)


if __name__ == "__main__":
    main()
