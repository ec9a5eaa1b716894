"""The management process beside a node: its sockets, its start, its end (waits).

The node takes the HTTP addresses itself, so that an address in use is reported before `ready`, and hands the listening
sockets to the process. Clients that connect while it is started again (`companion`) wait in the sockets' backlog. A
node that is cut off begins again and waits for a majority, and its operator reads meanwhile what was last known.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from clusterbroker.broker.oauth2.options import OAuth2Options
from clusterbroker.broker.server.audit import AuditOptions
from clusterbroker.broker.server.companion import Companion
from clusterbroker.broker.server.control.private_socket import bound
from clusterbroker.broker.server.listener import Address, refused
from clusterbroker.broker.server.log import NodeLog
from clusterbroker.broker.server.tls import TlsOptions
from clusterbroker.broker.stats.totals import SAMPLE_S
from clusterbroker.cluster.link.door import bound_sockets

if TYPE_CHECKING:
    from clusterbroker.broker.server.options import ServerOptions

BACKLOG: Final = 1024
RELEASED_S: Final = 3.0
"""So long an address may be in use: the process of a killed node ends soon after it."""
AGAIN_S: Final = 0.05
LOCAL: Final = "http.sock"
"""For the operator on this machine, in the data directory."""
PROXIES = ("127.0.0.1", "::1")
"""A proxy on this machine is believed about its clients' addresses: else all of them would come from this machine.
Without a setting any process there may claim them, and its gain is counted against itself (`broker.http.auth`)."""
MODULE: Final = (sys.executable, "-P", "-m", "clusterbroker.broker.http.main")


class ManagementProcess(Companion):
    """`bind`, then `begin`; `pause` before the loop ends, `begin` on the next one; `end`."""

    def __init__(
        self, node: str, directory: Path, log: NodeLog, words: Sequence[str] = (), command: Sequence[str] = MODULE
    ) -> None:
        """`directory`: that of `control.sock`. `words`: more arguments (`settings`). `command`: for tests."""
        self.addresses: tuple[Address, ...] = ()
        self.tls_addresses: tuple[Address, ...] = ()
        super().__init__(command)
        self._node = node
        self._directory = directory
        self._log = log
        self._words = tuple(words)
        self._listening: list[socket.socket] = []
        self._listening_tls: list[socket.socket] = []
        self._local: socket.socket | None = None

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
        if self._local is None:  # not earlier: the directory may have been another node's
            self._open_door()
        super().begin(loop)

    def _open_door(self) -> None:
        try:
            self._local = bound(self._directory, LOCAL)
            self._local.listen(BACKLOG)
        except OSError as error:
            self._log.emit("error", "management.no_door", socket=str(self._directory / LOCAL), why=str(error))

    async def end(self) -> None:
        """Ends it and gives the addresses back. May be called again."""
        self.pause()
        self._shut()
        if self._local is not None:
            self._local.close()
            self._local = None
            (self._directory / LOCAL).unlink(missing_ok=True)
        await super().end()

    def _arguments(self) -> tuple[list[str], list[int]]:
        listening = [one.fileno() for one in self._listening]
        listening_tls = [one.fileno() for one in self._listening_tls]
        doors = [] if self._local is None else [self._local.fileno()]
        words = ["--node", self._node, "--directory", str(self._directory)]
        words += [word for fd in listening for word in ("--listen", str(fd))]
        words += [word for fd in listening_tls for word in ("--listen-tls", str(fd))]
        words += [word for fd in doors for word in ("--listen-local", str(fd))]
        return [*words, *self._words], [*listening, *listening_tls, *doors]

    def _tell_end(self, why: str, again_in_s: float) -> None:
        self._log.emit("error", "management.ended", why=why, again_in_s=again_in_s)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a node for its management process, as JSON on a command line: no secrets, for it is visible."""

    tls: TlsOptions | None = None
    sample_s: float = SAMPLE_S
    """Between two rounds in which the members are asked for their numbers."""
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
    given = Settings(
        tls=options.https_tls,
        sample_s=options.http_sample_s,
        proxies=options.http_proxies,
        oauth2=options.oauth2,
        audit=options.audit,
    )
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
