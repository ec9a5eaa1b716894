"""What the HTTP shell asks of the node: the port behind which the control socket is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from clusterbroker.broker.management.pool_definitions import PoolDraft
from clusterbroker.broker.stats.as_user import AsUser, Outcome
from clusterbroker.cluster.wiring.commands import AnyCommand, Defining


class OrderError(NamedTuple):
    """A command was refused, or could not be ordered."""

    kind: str
    """Of `cluster.errors`: "not_found", "unavailable", ..."""
    text: str


class NodeOperations(Protocol):
    """Commands for the wiring log, as an operator.

    `order` and `import_all` come back when the replica has folded what was done, so that who reads after it wrote finds
    what it wrote.
    """

    async def order(self, command: AnyCommand) -> OrderError | None:
        """One command."""

    async def import_all(self, commands: Sequence[Defining], pools: Sequence[PoolDraft] = ()) -> OrderError | None:
        """All of them, or none and the first contradiction; then the pools."""

    async def carry_out(self, operation: str, arguments: dict[str, Any]) -> dict[str, Any] | OrderError:
        """An operation of the node itself: what it tells of it."""

    async def as_user(self, asked: AsUser) -> Outcome | OrderError:
        """Requests of a user: what comes of them."""

    async def close_connection(self, connection_id: str, reason: str) -> OrderError | None:
        """Ends a client's connection, at whatever node it is."""
