"""How a command reaches a node: on this machine through its data directory, or anywhere by URL (waits).

    --data-dir DIR   its sockets, for who may read the directory; no password. Most commands need a node with --http
    --url URL        its management API, as a user, or with a token of OAuth 2

The command line comes before the environment, and there CLUSTERBROKER_URL before CLUSTERBROKER_DATA_DIR: a machine that
runs a node has the latter for it. The password comes from a file, the environment, the URL, or is asked for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

import typer

from clusterbroker.broker.cli.exit_codes import UNREACHABLE, USAGE, Failed
from clusterbroker.broker.cli.operator_door import LISTS, ROUTES, performed, requested, unasked
from clusterbroker.broker.server.control.private_socket import connected

if TYPE_CHECKING:
    from clusterbroker.broker.cli.api import Api

DATA_DIR: Final = Path("clusterbroker-data")
ENV_URL: Final = "CLUSTERBROKER_URL"
ENV_DATA_DIR: Final = "CLUSTERBROKER_DATA_DIR"
ENV_USER: Final = "CLUSTERBROKER_USER"
ENV_TOKEN: Final = "CLUSTERBROKER_TOKEN"  # noqa: S105 - a name
ENV_PASSWORD: Final = "CLUSTERBROKER_PASSWORD"  # noqa: S105 - a name
HTTP_SOCKET: Final = "http.sock"
KNOCK_S: Final = 5.0
SECRET_BYTES_MAX: Final = 64 << 10


class Address:
    """A URL without its user and password, and these."""

    __slots__ = ("password", "url", "user")

    def __init__(self, given: str) -> None:
        """Failed (USAGE) for what is no http URL."""
        try:
            parts = urlsplit(given)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise Failed(f"--url: {error}", USAGE) from None
        if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
            # the URL itself is not shown: it may have a password
            amqp = ": the management API's, not that of AMQP clients" if parts.scheme in ("amqp", "amqps") else ""
            raise Failed(f"--url is http://HOST:PORT or https://HOST:PORT{amqp}", USAGE)
        self.user = unquote(parts.username) if parts.username else None
        self.password = unquote(parts.password) if parts.password is not None else None
        shown = f"[{host}]" if ":" in host else host
        where = shown if port is None else f"{shown}:{port}"
        self.url = urlunsplit((parts.scheme, where, parts.path.rstrip("/"), "", ""))


class Target:
    """The node that a command is about; `close` in the end."""

    def __init__(
        self,
        data_dir: Path | None = None,
        url: str | None = None,
        user: str | None = None,
        password_file: Path | None = None,
        token_file: Path | None = None,
        ca_file: Path | None = None,
        as_user: str | None = None,
        environment: Mapping[str, str] = os.environ,
        *,
        timeout_s: float | None = None,
        may_ask: bool = True,
    ) -> None:
        """`may_ask`: the user, for a password. Failed (USAGE) for both ways at once, or options of the other one."""
        if data_dir is not None and url is not None:
            raise Failed("say --data-dir or --url, not both", USAGE)
        self._environment = environment
        if data_dir is None:
            url = url or environment.get(ENV_URL)
        self.directory: Path | None = None
        """Of the node on this machine; None: it is reached by URL."""
        self._address: Address | None = None
        if url is None:
            self.directory = data_dir or Path(environment.get(ENV_DATA_DIR) or DATA_DIR)
            others = {"user": user, "password-file": password_file, "token-file": token_file, "ca-file": ca_file}
            for name, value in others.items():
                if value is not None:
                    raise Failed(f"--{name} goes with --url; on the node's machine nobody signs in (see --as)", USAGE)
        else:
            self._address = Address(url)
            if as_user is not None:
                raise Failed("--as is for the node's own machine; with --url say --user", USAGE)
        if token_file is not None and (user is not None or password_file is not None):
            raise Failed("a token says by itself whose it is: leave --user and --password-file out", USAGE)
        self._user, self._password_file, self._token_file = user, password_file, token_file
        self._ca_file, self._as_user = ca_file, as_user
        self._timeout_s = timeout_s
        self._may_ask = may_ask
        self.narrowed: dict[str, str] = {}
        """What a long list needs of each document, as a query; empty: all of it."""
        self._warned: set[str] = set()

    @cached_property
    def api(self) -> Api:
        """The management API of the node. Failed."""
        from clusterbroker.broker.cli.api import ANSWER_S, Api

        timeout_s = self._timeout_s or ANSWER_S
        if self._address is None:
            assert self.directory is not None, "one of the two ways"
            self._need_http(self.directory)
            return Api.over_socket(self.directory, HTTP_SOCKET, self._as_user, self._warn, timeout_s)
        signed_in = self._credentials(self._address)
        return Api.over_url(self._address.url, signed_in, self._ca_file, self._warn, timeout_s)

    @property
    def _here(self) -> Path | None:
        """The directory whose control socket is the way: of the node on this machine, and as nobody in particular."""
        return self.directory if self._as_user is None else None

    def change(self, operation: str, patience_s: float = 30.0, /, **arguments: Any) -> dict[str, Any]:
        """An operation of `operator_door.ROUTES`: of the node on this machine, or to its wiring log when it does not
        run, or by the management API. `patience_s`: of the node here. Failed."""
        if (here := self._here) is not None and ROUTES[operation].socket:
            return performed(here, operation, patience_s=patience_s, **arguments)
        return requested(self.api, operation, arguments)

    def rows(self, operation: str) -> list[dict[str, Any]]:
        """A short list of `operator_door.LISTS`: of the management API, or what the control socket tells. Failed."""
        here, field = self._here, LISTS[operation]
        if here is None or os.path.exists(here / HTTP_SOCKET):  # not Path's: in a foreign directory that raises
            try:
                return self.api.documents(f"/api/{field}")
            except Failed as failed:
                if here is None or failed.code != UNREACHABLE:
                    raise
        rows: list[dict[str, Any]] = performed(here, operation)[field]
        return rows

    @property
    def is_critical(self) -> bool:
        """A queue needs the node for confirms. Failed."""
        if (here := self._here) is not None:
            return bool(performed(here, "copies")["critical"])
        return not self.api.check("/api/health/checks/node-is-quorum-critical")[0]

    def close(self) -> None:
        """May be called again."""
        if "api" in self.__dict__:
            self.api.close()

    def _need_http(self, directory: Path) -> None:
        try:
            connected(directory, HTTP_SOCKET, KNOCK_S).close()
            return
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            pass  # nothing listens there
        except OSError as error:
            raise unasked(directory, error) from None
        from clusterbroker.broker.server.control.client import ask

        try:
            told = ask(directory, "status", timeout_s=KNOCK_S)
        except (OSError, ValueError) as error:
            raise Failed(f"the node in {directory} cannot be asked: {error}", UNREACHABLE) from None
        if told is None:
            raise Failed(f"no node runs in {directory}", UNREACHABLE)
        if awaited := told.get("waits_for"):
            raise Failed(
                f"the node in {directory} starts: it waits {', '.join(map(str, awaited))}; until then it has no "
                "management API (clusterbroker status tells more)",
                UNREACHABLE,
            )
        raise Failed(
            f"the node in {directory} has no management API: start it with --http HOST:PORT, or name one by --url",
            UNREACHABLE,
        )

    def _credentials(self, address: Address) -> tuple[str, str] | str:
        """User and password, or a token. Failed (USAGE)."""
        environment = self._environment
        if self._token_file is not None:
            return secret_in(self._token_file, "--token-file")
        if self._user is None and self._password_file is None and address.user is None and environment.get(ENV_TOKEN):
            return environment[ENV_TOKEN]
        user = self._user or address.user or environment.get(ENV_USER)
        if not user:
            raise Failed(f"as whom? Say --user NAME, or set {ENV_USER}", USAGE)
        if self._password_file is not None:
            return user, secret_in(self._password_file, "--password-file")
        if address.password is not None and user == address.user:
            return user, address.password
        if environment.get(ENV_PASSWORD) is not None:
            return user, environment[ENV_PASSWORD]
        if self._may_ask and sys.stdin.isatty():
            return user, str(typer.prompt(f"Password of {user}", hide_input=True, err=True))
        raise Failed(f"the password of '{user}' is missing: use --password-file, or set {ENV_PASSWORD}", USAGE)

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            typer.echo(f"clusterbroker: {text}", err=True)


def secret_in(path: Path, option: str) -> str:
    """The first line of a file; `-`: of standard input. Failed (USAGE)."""
    try:
        if str(path) == "-":
            line = sys.stdin.readline(SECRET_BYTES_MAX)
        else:
            with path.open(encoding="utf-8") as file:
                line = file.readline(SECRET_BYTES_MAX)
    except (OSError, UnicodeDecodeError) as error:
        raise Failed(f"{option} {path}: {getattr(error, 'strerror', None) or 'not text'}", USAGE) from None
    secret = line.rstrip("\r\n")
    if not secret:
        raise Failed(f"{option} {path}: its first line is empty", USAGE)
    return secret
