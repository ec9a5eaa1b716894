"""The door for the operator on this machine: the same application on `http.sock` in the data directory, mode 0600.

The node has made the socket (`broker.server.management`). Nobody signs in there, and `broker.management.principals`
says why. Whether a request came this way is known by which server took it, never by what it says; no browser can be
made to open such a socket.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final
from urllib.parse import unquote

import uvicorn
from starlette.requests import Request

from clusterbroker.broker.management.principals import Principal, principal
from clusterbroker.cluster.wiring.view import ClusterView

AS_USER: Final = "x-clusterbroker-as"
"""The user whose rights a request wants to have, percent-encoded."""
_MARK: Final = "clusterbroker.local"
Scope = dict[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]


class LocalServer(uvicorn.Server):
    """`serve` until `should_exit`. Signals are for the server beside it, which ends this one."""

    def __init__(self, app: App) -> None:
        async def marked(scope: Scope, receive: Any, send: Any) -> None:
            await app({**scope, _MARK: True}, receive, send)

        config = uvicorn.Config(
            marked,
            proxy_headers=False,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=1,
        )
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None."""
        yield


def principal_of(request: Request, map_: ClusterView) -> Principal | None:
    """Who asks, when it came through the socket; None: it did not."""
    if _MARK not in request.scope:
        return None
    name = request.headers.get(AS_USER)
    return principal(map_, None if name is None else unquote(name))
