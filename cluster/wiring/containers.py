"""Containers of clients that have one connection in the whole cluster (AMQP Enforcing Connection Uniqueness 1.0).

    none --HoldContainer--> held --ReleaseContainer, end of its node's process, vhost or user--> none
    held --HoldContainer--> refused, or held by the newer connection, as the older one had asked (`gives_way`)

Only connections that ask are known (detection policy weak). Containers of two users are two containers, so no user
keeps another out.
"""

from __future__ import annotations

from typing import Final

from clusterbroker.cluster.errors import LimitReached, PreconditionFailed, ResourceLocked
from clusterbroker.cluster.ids import NodeId

from . import commands as c
from .changes import Change, ContainerHeld, ContainerLost
from .entities import SoleConnection
from .members import Members
from .snapshot import Snapshot
from .vhosts import Vhosts

CONTAINERS_MAX: Final = 10_000
"""Of a vhost."""
NAME_BYTES_MAX: Final = 1024
"""Of a container-id."""

_Key = tuple[str, str]  # user, container


class Containers:
    """The part of the map that has sole connections, with the commands about them."""

    __slots__ = ("_by_node", "_by_vhost", "_members", "_vhosts")

    def __init__(self, members: Members, vhosts: Vhosts) -> None:
        """None."""
        self._members = members
        self._vhosts = vhosts
        self._by_vhost: dict[str, dict[_Key, SoleConnection]] = {}
        self._by_node: dict[NodeId, dict[str, SoleConnection]] = {}

    def all(self) -> tuple[SoleConnection, ...]:
        """By vhost, oldest first."""
        return tuple(sole for of in self._by_vhost.values() for sole in of.values())

    def hold(self, command: c.HoldContainer, changes: list[Change]) -> SoleConnection:
        """Fold HoldContainer."""
        self._vhosts.require(command.vhost)
        if not len(command.container.encode("utf-8", "surrogatepass")) <= NAME_BYTES_MAX:
            raise PreconditionFailed(f"a container-id with a sole connection has at most {NAME_BYTES_MAX} bytes")
        if self._members and not self._members.is_current(command.node, command.incarnation):
            raise PreconditionFailed(f"node '{command.node}' has failed since, or begun anew: connect again")
        known = self._find(command)
        if known is not None and not known.gives_way:
            raise ResourceLocked(
                f"container '{command.container}' of user '{command.user}' has a connection in vhost '{command.vhost}'"
            )
        if known is None and len(self._by_vhost.get(command.vhost, ())) >= CONTAINERS_MAX:
            raise LimitReached(f"vhost '{command.vhost}' has {CONTAINERS_MAX} containers with a sole connection")
        if known is not None:
            self._remove(known, changes)
        sole = SoleConnection(
            command.vhost, command.container, command.user, command.connection, command.node, command.gives_way
        )
        self._put(sole)
        changes.append(ContainerHeld(sole))
        return sole

    def release(self, command: c.ReleaseContainer, changes: list[Change]) -> bool:
        """Fold ReleaseContainer."""
        known = self._find(command)
        if known is None or known.connection != command.connection:
            return False
        self._remove(known, changes)
        return True

    def end_of_node(self, node: NodeId, changes: list[Change]) -> None:
        """The node's process is over."""
        for sole in tuple(self._by_node.get(node, {}).values()):
            self._remove(sole, changes)

    def end_of_all(self, changes: list[Change]) -> None:
        """Also those of a node that has another name from now on."""
        for node in tuple(self._by_node):
            self.end_of_node(node, changes)

    def end_of_vhost(self, vhost: str, changes: list[Change]) -> None:
        """The vhost is deleted."""
        for sole in tuple(self._by_vhost.get(vhost, {}).values()):
            self._remove(sole, changes)

    def end_of_user(self, user: str, changes: list[Change]) -> None:
        """The user is deleted."""
        for sole in self.all():
            if sole.user == user:
                self._remove(sole, changes)

    def _find(self, command: c.HoldContainer | c.ReleaseContainer) -> SoleConnection | None:
        return self._by_vhost.get(command.vhost, {}).get((command.user, command.container))

    def _put(self, sole: SoleConnection) -> None:
        self._by_vhost.setdefault(sole.vhost, {})[sole.user, sole.container] = sole
        self._by_node.setdefault(sole.node, {})[sole.connection] = sole

    def _remove(self, sole: SoleConnection, changes: list[Change]) -> None:
        of_vhost, of_node = self._by_vhost[sole.vhost], self._by_node[sole.node]
        del of_vhost[sole.user, sole.container], of_node[sole.connection]
        if not of_vhost:
            del self._by_vhost[sole.vhost]
        if not of_node:
            del self._by_node[sole.node]
        changes.append(ContainerLost(sole))

    def save(self, snapshot: Snapshot) -> None:
        """Write this part of the map into a snapshot."""
        snapshot.containers = list(self.all())

    def restore(self, snapshot: Snapshot) -> None:
        """Read this part of the map from a snapshot. KeyError, AssertionError: the snapshot contradicts itself."""
        for sole in snapshot.containers:
            self._vhosts.by_name[sole.vhost]
            assert (sole.user, sole.container) not in self._by_vhost.get(sole.vhost, {}), "one connection"
            self._put(sole)
