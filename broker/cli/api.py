"""The management API from the command line: HTTP to a node elsewhere, or to `http.sock` of one here (waits).

Names go into paths percent-encoded, whatever they are. What the API refuses comes out as a Failed with its reason; what
keeps a node from answering, as one with the code UNREACHABLE.
"""

from __future__ import annotations

import base64
import contextlib
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

import httpx

from clusterbroker.broker.cli.exit_codes import FAILED, NOT_ALLOWED, UNREACHABLE, USAGE, Failed
from clusterbroker.broker.server.control.private_socket import short_path

AS_USER: Final = "x-clusterbroker-as"
CONNECT_S: Final = 5.0
ANSWER_S: Final = 100.0
"""Longer than a node takes for any operation."""
NOTHING: Final = ".", ".."
NOUNS: Final = {
    "queues": "queue", "exchanges": "exchange", "policies": "policy", "operator-policies": "operator policy",
    "pools": "pool", "producers": "producer", "vhosts": "vhost", "users": "user", "user-limits": "user",
    "nodes": "node", "connections": "connection", "channels": "channel", "global-parameters": "global parameter",
}  # fmt: skip
"""What stands behind the first segment of a path."""
IN_VHOST: Final = {"queues", "exchanges", "policies", "operator-policies", "pools", "producers"}
TAGS: Final = {
    "Not management user": "management",
    "Not monitor user": "monitoring",
    "Not administrator user": "administrator",
}
"""The API refuses in RabbitMQ's words; what is missing is a tag."""
Query = dict[str, str] | None


class Api:
    """Of one node; `close` in the end."""

    def __init__(self, client: httpx.Client, where: str, warn: Callable[[str], None], user: str | None = None) -> None:
        """`where`: the node, for people. `warn`: hears that what the node tells may be old. `user`: who is signed in;
        None: the operator, or whom a token names."""
        self._client = client
        self._user = user
        self._where = where
        self._warn = warn
        self._closing = contextlib.ExitStack()
        self._closing.callback(client.close)

    @classmethod
    def over_socket(
        cls, directory: Path, name: str, as_user: str | None, warn: Callable[[str], None], timeout_s: float = ANSWER_S
    ) -> Api:
        """The node of a data directory, by the socket of this name. Whether it is there shows when it is asked."""
        stack = contextlib.ExitStack()
        try:
            path = stack.enter_context(short_path(directory, name))
        except OSError:
            path = str(directory / name)  # asking it will say what is wrong
        headers = {} if as_user is None else {AS_USER: quote(as_user, safe="")}
        client = httpx.Client(
            transport=httpx.HTTPTransport(uds=path, verify=_trusts_nobody()),
            base_url="http://localhost",
            headers=headers,
            timeout=httpx.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s)),
        )
        api = cls(client, f"the node in {directory}", warn, as_user)
        api._closing.push(stack)
        return api

    @classmethod
    def over_url(
        cls,
        url: str,
        signed_in: tuple[str, str] | str,
        ca_file: Path | None,
        warn: Callable[[str], None],
        timeout_s: float = ANSWER_S,
    ) -> Api:
        """A node elsewhere. `url` names no user. `signed_in`: user and password, or a token of OAuth 2.
        Failed (USAGE) when the CA file or the token cannot be used."""
        try:
            verify = ssl.create_default_context(cafile=ca_file) if url.startswith("https:") else _trusts_nobody()
        except (OSError, ssl.SSLError) as error:
            raise Failed(f"--ca-file {ca_file}: {error}", USAGE) from None
        if isinstance(signed_in, str):
            if not (signed_in.isascii() and signed_in.isprintable()):
                raise Failed("the token is none: it has characters that no token has", USAGE)
            authorization = f"Bearer {signed_in}"
        else:
            authorization = "Basic " + base64.b64encode(":".join(signed_in).encode()).decode()
        client = httpx.Client(
            base_url=url,
            headers={"authorization": authorization},
            verify=verify,
            timeout=httpx.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s)),
            trust_env=False,
        )
        return cls(client, url, warn, None if isinstance(signed_in, str) else signed_in[0])

    def close(self) -> None:
        """May be called again."""
        self._closing.close()

    # -- requests ---------------------------------------------------------------------------------------------

    def get(self, path: str, *names: str, query: Query = None) -> Any:
        """A document. `path` has a {} for each name. Failed."""
        return self._told(self._sent("GET", path, names, query))

    def document(self, path: str, *names: str) -> dict[str, Any]:
        """One thing. Failed, also when it is not there."""
        found: dict[str, Any] = self.get(path, *names)
        return found

    def documents(self, path: str, *names: str, of: str | None = None, query: Query = None) -> list[dict[str, Any]]:
        """A list. `of`: only what belongs to this vhost or user, whose name stands behind the path. Failed."""
        if of is not None:
            path, names = path + "/{}", (*names, of)
        found: list[dict[str, Any]] = self.get(path, *names, query=query)
        return found

    def get_or_none(self, path: str, *names: str, query: Query = None) -> Any:
        """None where there is nothing of these names."""
        answer = self._sent("GET", path, names, query)
        return None if answer.status_code == 404 else self._told(answer)

    def check(self, path: str, *names: str) -> tuple[bool, Any]:
        """A health check: whether it passed, and what it told."""
        answer = self._sent("GET", path, names)
        if answer.status_code == 503:
            told = _document(answer)
            if isinstance(told, dict) and told.get("status") == "failed":
                return False, told
        return True, self._told(answer)

    def put(self, path: str, *names: str, body: Any) -> Any:
        """Makes or changes something. Failed."""
        return self._told(self._sent("PUT", path, names, body=body))

    def post(self, path: str, *names: str, body: Any, query: Query = None) -> Any:
        """Does something. Failed."""
        return self._told(self._sent("POST", path, names, query, body))

    def delete(self, path: str, *names: str, query: Query = None, headers: Query = None) -> Any:
        """Takes something away; what was told of it. Failed."""
        return self._told(self._sent("DELETE", path, names, query, headers=headers))

    def _sent(
        self, method: str, path: str, names: tuple[str, ...], query: Query = None, body: Any = None,
        headers: Query = None,
    ) -> httpx.Response:  # fmt: skip
        asked = path.format(*map(segment, names))
        try:
            answer = self._client.request(method, asked, params=query or {}, json=body, headers=headers)
        except (UnicodeEncodeError, ValueError, RecursionError):
            raise Failed("a name or a value is not valid Unicode", USAGE) from None
        except httpx.TimeoutException:
            raise Failed(
                f"{self._where} has not answered in time; what was asked may still be done", UNREACHABLE
            ) from None
        except httpx.TransportError as error:
            raise Failed(f"{self._where} cannot be reached: {_why(error)}", UNREACHABLE) from None
        stale_s = answer.headers.get("x-clusterbroker-stale")
        if stale_s is not None:
            self._warn(f"this node has been cut off from its cluster for {stale_s} s: it shows what it last knew")
        return answer

    def _told(self, answer: httpx.Response) -> Any:
        if answer.is_success:
            return _document(answer)
        reason, who = _reason(answer), "user" if self._user is None else f"user '{self._user}'"
        if reason == "Login failed":
            reason = f"login failed for {who}: no such user, or another password"
        elif (tag := TAGS.get(reason)) is not None:
            reason = f"{who} lacks the tag '{tag}': clusterbroker users tags {self._user or 'USER'} {tag}"
        raise Failed(reason, _code(answer.status_code))


def segment(name: str) -> str:
    """A name as one segment of a path; dots alone would be understood as a way up."""
    if name in NOTHING:
        return name.replace(".", "%2E")
    return quote(name.encode("utf-8", "surrogateescape"), safe="")


def _document(answer: httpx.Response) -> Any:
    if not answer.content:
        return None
    try:
        return answer.json()
    except ValueError:
        raise Failed(f"{answer.url.host} does not answer as a management API does: look at the URL") from None


def _reason(answer: httpx.Response) -> str:
    told: Any = None
    with contextlib.suppress(Failed):
        told = _document(answer)
    reason = told.get("reason") if isinstance(told, dict) else None
    if reason in (None, "Not Found"):
        return _absent(answer) if answer.status_code == 404 else f"HTTP status {answer.status_code}"
    if isinstance(reason, list):
        reason = ": ".join(map(str, reason))
    return " ".join(str(reason).split())


def _absent(answer: httpx.Response) -> str:
    """What is not there, by the path that was asked for."""
    path = answer.request.url.raw_path.decode("ascii").partition("?")[0]
    kind, *names = [unquote(part) for part in path.partition("/api/")[2].split("/")]
    noun = NOUNS.get(kind)
    if noun is None or not names:
        return f"nothing is found at {path}"
    if kind in IN_VHOST:
        return f"no {noun} '{names[1]}' in vhost '{names[0]}'" if len(names) > 1 else f"no vhost '{names[0]}'"
    return f"no {noun} '{names[0]}'"


def _code(status: int) -> int:
    if status in (401, 403, 429):
        return NOT_ALLOWED
    return UNREACHABLE if status in (502, 503, 504) else FAILED


def _why(error: httpx.TransportError) -> str:
    text = str(error)
    return text.partition("] ")[2] or text or type(error).__name__


def _trusts_nobody() -> ssl.SSLContext:
    """For a client that speaks no TLS: httpx would read all authorities of the system, 60 ms in each command."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
