"""Operations over HTTP, told to the audit: who, from where, what, on what, and how it ended.

An operation is any request but a GET, and the export of definitions, which holds hashes. Publishing is none: that is
what clients do. The endpoints leave in the scope of a request what only they know: who signed in, what was ordered, and
why it was refused. Of a command only the fields below are told; what a parameter holds may be anybody's password.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import unquote

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clusterbroker.broker.management.accounts import limits_of
from clusterbroker.broker.server.audit import Audit
from clusterbroker.cluster.wiring.commands import AnyCommand
from clusterbroker.cluster.wiring.entities import UserLimits, VhostLimits

PRINCIPAL: Final = "clusterbroker.principal"
"""Name of who signed in."""
COMMANDS: Final = "clusterbroker.commands"
"""What was planned for the wiring."""
FACTS: Final = "clusterbroker.facts"
"""What else is known of it, by name."""
REFUSED: Final = "clusterbroker.refused"
"""The reason."""
PEER: Final = "clusterbroker.peer"
"""In the scope's state: the address that the socket comes from, whoever its client is said to be."""
_QUIET: Final = ("GET", "HEAD", "OPTIONS")
_NO_OPERATIONS: Final = ("/api/exchanges/{vhost}/{name}/publish",)
_EXPORTS: Final = ("/api/definitions", "/api/definitions/{vhost}")
_SINGLE_MAX: Final = 20
_TOLD: Final = (
    "name", "user", "vhost", "exchange", "component", "tags", "limits", "configure", "write", "read", "pattern",
    "definition", "apply_to", "priority", *VhostLimits.__struct_fields__[1:], "tracing", "only",
)  # fmt: skip


class AuditMiddleware:
    """ASGI middleware, inside of whatever changes the path."""

    def __init__(self, app: ASGIApp, audit: Audit) -> None:
        self._app = app
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/api/"):
            await self._app(scope, receive, send)
            return
        status = 500  # of whatever ends without an answer

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, answer)
        finally:
            self._told(scope, status)

    def _told(self, scope: Scope, status: int) -> None:
        path = getattr(scope.get("route"), "path", None)
        if path is None or status == 405 or path in _NO_OPERATIONS:
            return
        if scope["method"] in _QUIET and path not in _EXPORTS:
            return
        client, peer = scope.get("client"), scope.get("state", {}).get(PEER)
        facts: dict[str, Any] = {
            "user": scope.get(PRINCIPAL, ""),
            "from": client[0] if client and client[0] else "http.sock",
            **({"through": peer} if peer and client and peer != client[0] else {}),
            "via": "http",
            "what": f"{scope['method']} {path}",
            "on": {name: unquote(str(value), errors="replace") for name, value in scope.get("path_params", {}).items()},
            "status": status,
        }
        if scope.get(COMMANDS):
            facts["ordered"] = told(scope[COMMANDS])
        facts |= scope.get(FACTS, {})
        if status < 400:
            self._audit.done(**facts)
        else:
            self._audit.refused(**facts, why=str(scope.get(REFUSED, "")))


def told(commands: Sequence[AnyCommand]) -> Any:
    """What of commands may be told: a few one by one, many by how many of each kind."""
    if len(commands) > _SINGLE_MAX:
        return dict(Counter(type(command).__name__ for command in commands))
    return [_one(command) for command in commands]


def _one(command: AnyCommand) -> dict[str, Any]:
    fields = {field: getattr(command, field) for field in _TOLD if getattr(command, field, None) is not None}
    only = fields.pop("only", ())
    if only:  # a command of a part says nothing of the rest
        fields = {name: value for name, value in fields.items() if name in ("name", "vhost", "limits", *only)}
        fields["only"] = only
    if isinstance(fields.get("limits"), UserLimits):
        fields["limits"] = limits_of(fields["limits"])
    return {"command": type(command).__name__, **msgspec.to_builtins(fields, enc_hook=str)}
