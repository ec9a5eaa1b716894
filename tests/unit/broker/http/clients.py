"""An application over a replica whose operations are carried out at once, and a client inside the same loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import httpx
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from clusterbroker.broker.http.app import create_app
from clusterbroker.broker.http.middleware.audit import PEER
from clusterbroker.broker.http.operations import OrderError
from clusterbroker.broker.management.pool_definitions import PoolDraft, bindings_of
from clusterbroker.broker.server.audit import Audit
from clusterbroker.broker.server.management import PROXIES
from clusterbroker.broker.stats.as_user import AsUser, Outcome
from clusterbroker.cluster.errors import Unavailable, WiringError
from clusterbroker.cluster.passwords import COST_CHEAP
from clusterbroker.cluster.wiring.commands import AnyCommand, Defining
from clusterbroker.cluster.wiring.map import Applied
from tests.unit.broker.management.set_up import NOW_MS, Place

if TYPE_CHECKING:
    from clusterbroker.broker.oauth2.tokens import Tokens


class OperationsAtOnce:
    """The node's part: folds each command into the replica's own map."""

    def __init__(self, place: Place, carry_out: bool) -> None:
        self._place = place
        self._carry_out = carry_out
        self.ordered: list[AnyCommand] = []
        self.closed: list[tuple[str, str]] = []
        self.done: list[tuple[str, dict[str, Any]]] = []
        self.told: dict[str, Any] = {"moved": 1, "left": 0}
        """What the node tells of an operation of its own."""

    async def order(self, command: AnyCommand) -> OrderError | None:
        self.ordered.append(command)
        if not self._carry_out:
            return None
        (applied,) = self._place.apply(command)
        return _error(applied)

    async def carry_out(self, what: str, arguments: dict[str, Any]) -> dict[str, Any] | OrderError:
        self.done.append((what, arguments))
        return self.told

    async def as_user(self, asked: AsUser) -> Outcome | OrderError:
        return OrderError(Unavailable.kind, "there is no AMQP connection to the node")

    async def close_connection(self, connection_id: str, reason: str) -> OrderError | None:
        self.closed.append((connection_id, reason))
        return None

    async def import_all(self, commands: Sequence[Defining], pools: Sequence[PoolDraft] = ()) -> OrderError | None:
        for command in (*commands, *(one.declare for one in pools), *bindings_of(pools)):
            error = await self.order(command)
            if error is not None:
                return error
        return None


def _error(applied: Applied) -> OrderError | None:
    if applied.error is None:
        return None
    assert isinstance(applied.error, WiringError)
    return OrderError(applied.error.kind, applied.error.text)


class Client:
    """Asks as a user; `guest` unless told."""

    def __init__(
        self,
        place: Place,
        address: str = "127.0.0.1",
        carry_out: bool = True,
        tokens: Tokens | None = None,
        audit: Audit | None = None,
        host: str = "localhost",
        proxies: tuple[str, ...] | None = (),
    ) -> None:
        self.place = place
        self.now_ms = NOW_MS
        self.operations = OperationsAtOnce(place, carry_out)
        self.tokens = tokens
        app = create_app(
            place.replica,
            self.operations,
            now_ms=lambda: self.now_ms,
            password_cost=COST_CHEAP,
            tokens=tokens,
            audit=audit,
            knows_proxies=proxies is not None,
        )
        believing = ProxyHeadersMiddleware(app, list(PROXIES if proxies is None else proxies))

        async def served(scope: Any, receive: Any, send: Any) -> None:
            """As `TcpServer` does it."""
            scope["state"] = {PEER: scope["client"][0]}
            await believing(scope, receive, send)

        transport = httpx.ASGITransport(app=served, client=(address, 1234), raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url=f"http://{host}")

    async def ask(
        self, method: str, path: str, user: str = "guest", body: str | None = None, password: str | None = None
    ) -> httpx.Response:
        given = password or ("guest" if user == "guest" else "secret-pass")
        headers = {"content-type": "application/json"} if body is not None or method == "POST" else {}
        return await self.http.request(method, path, auth=(user, given), content=body, headers=headers)

    async def get(self, path: str, user: str = "guest") -> httpx.Response:
        return await self.ask("GET", path, user)
