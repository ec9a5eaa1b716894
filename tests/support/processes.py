"""Processes that tests start: as `subprocess` does, but by a zygote (`zygote.py`).

It forks nodes and commands from one process that has imported them, and ends all that it started when this process has
ended, however that ended. `popen` and `run` take what `subprocess.Popen` and `subprocess.run` take, as far as tests
need it. The command line `[sys.executable, "-m", "broker.cli.main", ...]` is forked where the environment lets it; any
other is executed.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

from tests.support.zygote import REQUEST_BYTES_MAX, STATUS

ROOT: Final = Path(__file__).resolve().parents[2]
COMMAND: Final = [sys.executable, "-m", "clusterbroker.broker.cli.main"]
"""Of `clusterbroker`; its words follow."""
OF_THE_START: Final = ("LD_", "PYTHON", "MALLOC_", "GLIBC_", "LC_", "LANG", "TZ", "OPENSSL_")
"""Variables with such names are read when an interpreter begins: who wants other values is not forked, but executed."""
HARMLESS: Final = ("PYTHONUNBUFFERED", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE")


class Process:
    """What `subprocess.Popen` is to its caller. `stdout` and the like are streams where PIPE was asked for."""

    def __init__(self, words: Sequence[str], pid: int, status: int, streams: Sequence[IO[Any] | None]) -> None:
        self.args = list(words)
        self.pid = pid
        self.returncode: int | None = None
        self.stdin, self.stdout, self.stderr = streams
        self._status = status
        self._lock = threading.Lock()

    def __del__(self) -> None:
        os.close(self._status)

    def poll(self) -> int | None:
        """The exit code (negative: the signal), None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._status, select.POLLIN)
            if not poll.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            with self._lock:
                if self.returncode is None:
                    raw = os.read(self._status, STATUS.size)
                    # without a word the zygote has ended, and its children with it
                    self.returncode = os.waitstatus_to_exitcode(STATUS.unpack(raw)[0]) if raw else -signal.SIGKILL
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Nothing when it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()


class _Zygote:
    """The one of this process; it is started when it is first asked."""

    def __init__(self) -> None:
        self._ours: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._of = 0
        self._heard: dict[str, str] = {}
        self._lock = threading.Lock()

    def _begin(self) -> socket.socket:
        if self._ours is None or self._of != os.getpid():
            self._ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REQUEST_BYTES_MAX)
            self._of = os.getpid()
            self._heard = _of_the_start(os.environ)
            with its:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tests.support.zygote", str(its.fileno())],
                    pass_fds=[its.fileno()], cwd=ROOT, start_new_session=True, stdin=subprocess.DEVNULL,
                    env={key: value for key, value in os.environ.items() if not _is_setting(key)},
                )  # fmt: skip
            atexit.register(self._end, os.getpid())
        return self._ours

    def _end(self, of: int) -> None:
        if self._ours is not None and self._process is not None and of == os.getpid():
            self._ours.close()
            self._process.wait(20)

    def start(self, words: Sequence[str], fds: Sequence[int], env: Mapping[str, str], cwd: str, session: bool) -> int:
        """The id of the process."""
        with self._lock:
            asked = self._begin()
            ours = list(words[: len(COMMAND)]) == COMMAND
            forks = ours and _of_the_start(env) == self._heard
            told = {
                "words": list(words[len(COMMAND) :] if forks else words),
                "forks": forks,
                "env": dict(env),
                "cwd": cwd,
                "session": session,
            }
            socket.send_fds(asked, [json.dumps(told).encode()], fds)
            answer = asked.recv(4096)
            if not answer:
                raise RuntimeError("the parent of all processes has ended: its standard error says why")
            return int(json.loads(answer)["pid"])


def _of_the_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in environment.items() if key.startswith(OF_THE_START) and key not in HARMLESS}


def _is_setting(name: str) -> bool:
    return name.startswith("CLUSTERBROKER_")


_zygote = _Zygote()


def popen(
    words: Sequence[str | os.PathLike[str]], *, stdin: int | IO[Any] | None = None, stdout: int | IO[Any] | None = None,
    stderr: int | IO[Any] | None = None, env: Mapping[str, str] | None = None, cwd: str | Path | None = None,
    text: bool = False, start_new_session: bool = False,
) -> Any:  # fmt: skip
    """As `subprocess.Popen` (a `Process`, which has the same face)."""
    ours: list[IO[Any] | None] = [None, None, None]
    theirs: list[int] = []
    opened: list[int] = []
    status, told = os.pipe2(os.O_CLOEXEC)
    opened.append(told)
    try:
        for number, given in enumerate((stdin, stdout, stderr)):
            if given is None:
                theirs.append(os.open(os.devnull, os.O_RDONLY) if number == 0 else os.dup(number))
                opened.append(theirs[-1])
            elif given == subprocess.DEVNULL:
                theirs.append(os.open(os.devnull, os.O_RDWR))
                opened.append(theirs[-1])
            elif given == subprocess.PIPE:
                reads, writes = os.pipe2(os.O_CLOEXEC)
                own, its = (writes, reads) if number == 0 else (reads, writes)
                ours[number] = _stream(own, "w" if number == 0 else "r", text)
                theirs.append(its)
                opened.append(its)
            elif given == subprocess.STDOUT:
                theirs.append(theirs[1])
            else:
                theirs.append(given if isinstance(given, int) else given.fileno())
        line = [os.fspath(word) for word in words]
        environment = os.environ if env is None else env
        pid = _zygote.start(line, [*theirs, told], environment, os.fspath(cwd or os.getcwd()), start_new_session)
    except BaseException:
        os.close(status)
        raise
    finally:
        for fd in opened:
            os.close(fd)
    return Process(line, pid, status, ours)


def _stream(fd: int, mode: str, text: bool) -> IO[Any]:
    raw = open(fd, mode + "b", -1 if mode == "r" else 0)  # noqa: SIM115 - its reader closes it
    return io.TextIOWrapper(raw, write_through=True) if text else raw


def run(
    words: Sequence[str | os.PathLike[str]], *, capture_output: bool = False, text: bool = False, check: bool = False,
    timeout: float | None = None, env: Mapping[str, str] | None = None, cwd: str | Path | None = None,
    stdin: int | IO[Any] | None = None, input: str | None = None,
) -> subprocess.CompletedProcess[Any]:  # fmt: skip
    """As `subprocess.run`. What it says goes through files: nobody has to read along."""
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as wrong, tempfile.TemporaryFile() as given:
        if input is not None:
            given.write(input.encode())
            given.seek(0)
            stdin = given
        out, err = (said, wrong) if capture_output else (None, None)
        process = popen(words, stdin=stdin, stdout=out, stderr=err, env=env, cwd=cwd)
        try:
            code = process.wait(timeout)
        except BaseException:
            process.kill()
            process.wait()
            raise
        told: list[Any] = [None, None]
        if capture_output:
            for number, file in enumerate((said, wrong)):
                file.seek(0)
                told[number] = file.read().decode(errors="replace") if text else file.read()
    done: subprocess.CompletedProcess[Any] = subprocess.CompletedProcess(list(words), code, *told)
    if check:
        done.check_returncode()
    return done
