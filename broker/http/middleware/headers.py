"""What every request comes through: the path as it was sent, HEAD as GET, and headers that all answers have.

ASGI servers decode the path before the routes see it, so `/api/queues/%2F/a%2Fb` would be `/api/queues///a/b`. Here
the routes get the path with its escapes, and each parameter is decoded when it is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .bodies import ANSWERED

_ALWAYS: Final = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"vary", b"accept, accept-encoding, origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
)


class HeadersMiddleware:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, stale_s: Callable[[], int | None]) -> None:
        """`stale_s`: for how many seconds the node has been cut off; None: it is not."""
        self._app = app
        self._stale_s = stale_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        raw = scope.get("raw_path") or scope["path"].encode()
        path = raw.decode("ascii", "replace")
        if len(path) > 1:
            path = path.rstrip("/") or "/"
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        head = scope["method"] == "HEAD"

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                there = {name for name, _ in headers}
                headers += [pair for pair in _ALWAYS if pair[0] not in there]
                stale_s = self._stale_s()
                if stale_s is not None:
                    headers.append((b"x-clusterbroker-stale", str(stale_s).encode()))
                message = {**message, "headers": headers}
            elif head and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        inner = {**scope, "path": path, "method": method}
        try:
            await self._app(inner, receive, answer)
        finally:
            if ANSWERED in inner:
                inner[ANSWERED]()
