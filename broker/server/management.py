"""The management process beside a node: its sockets, its start, its supervision, its end (waits).

The node takes the HTTP addresses itself, so that an address in use is reported before `ready`, and hands the listening
sockets to the process. A process that ends by itself is logged and followed by another one, after 0.5 s and twice as
long each time, 30 s at most; a life of a minute begins that count anew. Clients that connect meanwhile wait in the
sockets' backlog.

The process lives as long as the node's process, across incarnations of the node: a node that is cut off begins again
and waits for a majority, and its operator reads meanwhile what was last known. `pause` and `begin` hand the watch from
one event loop to the next. A socket pair, the lifeline, ties the two processes: each end reads end-of-file when the
other process is over, however that came about, on any system.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from clusterbroker.broker.oauth2.options import OAuth2Options
from clusterbroker.broker.server.audit import AuditOptions
from clusterbroker.broker.server.control.private_socket import bound
from clusterbroker.broker.server.listener import Address, refused
from clusterbroker.broker.server.log import NodeLog
from clusterbroker.broker.server.tls import TlsOptions
from clusterbroker.cluster.link.door import bound_sockets

if TYPE_CHECKING:
    from clusterbroker.broker.server.options import ServerOptions

BACKLOG: Final = 1024
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
STEADY_S: Final = 60.0
RELEASED_S: Final = 3.0
"""So long an address may be in use: the process of a killed node ends soon after it."""
AGAIN_S: Final = 0.05
END_S: Final = 3.0
"""So long a process may take to end, once it is asked to or has closed its lifeline; then it is killed."""
LOOK_S: Final = 0.01
LOCAL: Final = "http.sock"
"""For the operator on this machine, in the data directory."""
PROXIES = ("127.0.0.1", "::1")
"""A proxy on this machine is believed about its clients' addresses: else all of them would come from this machine.
Without a setting any process there may claim them, and its gain is counted against itself (`broker.http.auth`)."""
MODULE: Final = (sys.executable, "-m", "clusterbroker.broker.http.main")


class ManagementProcess:
    """`bind`, then `begin`; `pause` before the loop ends, `begin` on the next one; `end`."""

    def __init__(
        self, node: str, directory: Path, log: NodeLog, words: Sequence[str] = (), command: Sequence[str] = MODULE
    ) -> None:
        """`directory`: that of `control.sock`. `words`: more arguments (`settings`). `command`: for tests."""
        self.addresses: tuple[Address, ...] = ()
        self.tls_addresses: tuple[Address, ...] = ()
        self.restarts = 0
        self._node = node
        self._directory = directory
        self._log = log
        self._command = tuple(command)
        self._words = tuple(words)
        self._listening: list[socket.socket] = []
        self._listening_tls: list[socket.socket] = []
        self._local: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._pause_s = FIRST_PAUSE_S
        self._begun_s = 0.0

    @property
    def pid(self) -> int | None:
        """None: it does not run."""
        return None if self._process is None else self._process.pid

    # -- addresses --------------------------------------------------------------------------------------------

    def bind(self, where: Sequence[Address], tls: Sequence[Address] = ()) -> None:
        """Takes the addresses, and those with TLS; connections wait until the process runs. Raises OSError with the
        address in its text."""
        try:
            for protocol, wanted, taken in (("http", where, self._listening), ("https", tls, self._listening_tls)):
                for place in wanted:
                    try:
                        taken += _released(place)
                    except OSError as error:
                        raise refused(protocol, place, error) from error
        except BaseException:
            self._shut()
            raise
        self.addresses = tuple(Address(*one.getsockname()[:2]) for one in self._listening)
        self.tls_addresses = tuple(Address(*one.getsockname()[:2]) for one in self._listening_tls)

    def _shut(self) -> None:
        for taken in (self._listening, self._listening_tls):
            for one in taken:
                one.close()
            taken.clear()

    # -- its life ---------------------------------------------------------------------------------------------

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watches over it on this loop, and starts it if it does not run."""
        assert self._loop is None, "watched on one loop at a time"
        self._loop = loop
        if self._local is None:  # not earlier: the directory may have been another node's
            self._open_door()
        if self._lifeline is None:
            self._start()
        else:
            loop.add_reader(self._lifeline.fileno(), self._ends)

    def _open_door(self) -> None:
        try:
            self._local = bound(self._directory, LOCAL)
            self._local.listen(BACKLOG)
        except OSError as error:
            self._log.emit("error", "management.no_door", socket=str(self._directory / LOCAL), why=str(error))

    def pause(self) -> None:
        """The loop is about to end; the process goes on."""
        loop, self._loop = self._loop, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if loop is not None and self._lifeline is not None:
            loop.remove_reader(self._lifeline.fileno())

    async def end(self) -> None:
        """Ends it and gives the addresses back. May be called again."""
        self.pause()
        self._shut()
        if self._local is not None:
            self._local.close()
            self._local = None
            (self._directory / LOCAL).unlink(missing_ok=True)
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
        listening = [one.fileno() for one in self._listening]
        listening_tls = [one.fileno() for one in self._listening_tls]
        words = ["--node", self._node, "--directory", str(self._directory), "--lifeline", str(its.fileno())]
        words += [word for fd in listening for word in ("--listen", str(fd))]
        words += [word for fd in listening_tls for word in ("--listen-tls", str(fd))]
        doors = [] if self._local is None else [self._local.fileno()]
        words += [word for fd in doors for word in ("--listen-local", str(fd))]
        self._begun_s = self._loop.time()
        try:
            process = subprocess.Popen(  # noqa: S603
                [*self._command, *words, *self._words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(its.fileno(), *listening, *listening_tls, *doors),
                start_new_session=True,  # signals of a terminal are for the node
            )
        except OSError as error:
            own.close()
            self._again(f"it cannot be started: {error}")
            return
        finally:
            its.close()
        self._process, self._lifeline = process, own
        self._loop.add_reader(own.fileno(), self._ends)

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
        self._log.emit("error", "management.ended", why=why, again_in_s=self._pause_s)
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


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a node for its management process, as JSON on a command line: no secrets, for it is visible."""

    tls: TlsOptions | None = None
    proxies: tuple[str, ...] | None = None
    """None: PROXIES are believed as far as that takes rights away."""
    oauth2: OAuth2Options | None = None
    audit: AuditOptions = AuditOptions()

    def written(self) -> str:
        return msgspec.json.encode(self, enc_hook=str).decode()


def read_settings(text: str) -> Settings:
    """`Settings.written`, read. Raises msgspec.MsgspecError."""
    return msgspec.json.decode(text, type=Settings, dec_hook=_path)


def _path(kind: type, value: Any) -> Any:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise NotImplementedError(f"a {kind.__name__} is not told")


def settings(options: ServerOptions, log_format: str, log_level: str) -> list[str]:
    """The process' arguments by its node's options: loopback users, TLS, tokens, audit, and the form of log lines."""
    given = Settings(tls=options.https_tls, proxies=options.http_proxies, oauth2=options.oauth2, audit=options.audit)
    words = [f"--loopback-user={name}" for name in options.node.loopback_users]
    words += ["--password-cost", str(options.password_cost), "--log-format", log_format, "--log-level", log_level]
    return [*words, "--settings", given.written()]


def _released(where: Address) -> list[socket.socket]:
    """A listening socket for each address that the host has, once it is free. Waits, before there is a loop."""
    end_s = time.monotonic() + RELEASED_S
    while True:
        try:
            found = socket.getaddrinfo(where.host or None, where.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            sockets = bound_sockets(found, where.port)
            for one in sockets:
                one.listen(BACKLOG)
            return sockets
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() >= end_s:
                raise
        time.sleep(AGAIN_S)
