"""Connections of this node that are the sole ones of their containers (`cluster.wiring.containers`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from clusterbroker.cluster.errors import Unavailable
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.levels import SOLE_CONNECTIONS

if TYPE_CHECKING:
    from clusterbroker.broker.node.ends import Ends
    from clusterbroker.broker.node.ports import NodeCore
    from clusterbroker.cluster.wiring.changes import ContainerLost
    from clusterbroker.cluster.wiring.map import Applied


class SoleConnections:
    """Of one node. A connection is known by its id, from the moment at which it asks."""

    def __init__(self, node: NodeCore, ends: Ends) -> None:
        self._node = node
        self._ends = ends
        self._here: dict[str, tuple[c.ReleaseContainer, Callable[[], None]]] = {}

    @property
    def possible(self) -> bool:
        """Whether every member knows them."""
        return self._node.map.level >= SOLE_CONNECTIONS

    def hold(self, command: c.HoldContainer, lost: Callable[[], None], then: Callable[[Applied], None]) -> None:
        """Orders it. `lost`: another connection has taken its place."""
        release = c.ReleaseContainer(
            vhost=command.vhost, container=command.container, user=command.user, connection=command.connection
        )
        self._here[command.connection] = release, lost

        def applied(answer: Applied) -> None:
            if not answer.ok and not isinstance(answer.error, Unavailable):
                self._here.pop(command.connection, None)
            then(answer)

        self._node.propose(command, applied)

    def release(self, connection: str, then: Callable[[], None]) -> None:
        """The connection has ended, if it is one; `then()` when another one may be its container's."""
        held = self._here.pop(connection, None)
        if held is None:
            then()
        else:
            self._ends.order(held[0], then)

    def lost(self, change: ContainerLost) -> None:
        """Another connection took its place, or its vhost, user or node is gone."""
        held = self._here.pop(change.sole.connection, None)
        if held is not None:
            self._node.setting_aside.link(held[1])
