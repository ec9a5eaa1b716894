"""What a connection's user may do, and where that is written.

    an account    its permissions in the cluster map, as they are at the moment that they are asked
    a token       its scopes (`broker.oauth2.scopes.Grants`), until another token takes its place or it is over

Both answer the same questions, so nothing that is asked on a channel knows which of them it asks. A token's user is the
authority's: an account of the same name has nothing to do with it, but for the limits that an operator set for the
name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from clusterbroker.cluster.wiring.authorization import PermissionKind, TopicPermissionKind

if TYPE_CHECKING:
    from clusterbroker.cluster.wiring.view import ClusterView


class Rights(Protocol):
    """All that is asked."""

    @property
    def tags(self) -> tuple[str, ...]:
        """`impersonator` matters here: it may publish in the name of others."""

    def enters(self, vhost: str) -> bool:
        """Whether it may open a connection to the vhost."""

    def allowed(self, vhost: str, kind: PermissionKind, resource: str) -> bool:
        """Whether it may configure, write or read the exchange or queue of this name; the default exchange is ""."""

    def topic_allowed(self, vhost: str, kind: TopicPermissionKind, exchange: str, routing_key: str) -> bool:
        """Whether it may use the routing key at this topic exchange."""


class AccountRights:
    """Those of a user of the broker. One that is deleted may do nothing, until its connection is closed."""

    __slots__ = ("_map", "_user")

    def __init__(self, map_: ClusterView, user: str) -> None:
        self._map = map_
        self._user = user

    @property
    def tags(self) -> tuple[str, ...]:
        """Its tags."""
        known = self._map.user(self._user)
        return () if known is None else known.tags

    def enters(self, vhost: str) -> bool:
        """Whether it has a permission there, be it for nothing."""
        return self._map.permission(self._user, vhost) is not None

    def allowed(self, vhost: str, kind: PermissionKind, resource: str) -> bool:
        """Whether the permission's pattern matches."""
        return self._map.allowed(self._user, vhost, kind, resource)

    def topic_allowed(self, vhost: str, kind: TopicPermissionKind, exchange: str, routing_key: str) -> bool:
        """Whether the topic permission's pattern matches, if there is one."""
        return self._map.topic_allowed(self._user, vhost, kind, exchange, routing_key)
