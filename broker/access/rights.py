"""The rights of a connection's user.

    an account    its present permissions in the cluster map
    a token       its scopes (`broker.oauth2.scopes.Grants`), until it expires or another one takes its place

A token's user is the authority's: an account of the same name is another one, but its limits hold for both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from clusterbroker.cluster.wiring.authorization import PermissionKind, TopicPermissionKind

if TYPE_CHECKING:
    from clusterbroker.cluster.wiring.view import ClusterView


class Rights(Protocol):
    @property
    def tags(self) -> tuple[str, ...]:
        """`impersonator`: it may publish in the name of others."""

    def enters(self, vhost: str) -> bool:
        """Whether it may open a connection to the vhost."""

    def allowed(self, vhost: str, kind: PermissionKind, resource: str) -> bool:
        """Whether it may configure, write or read the exchange or queue of this name; the default exchange is ""."""

    def topic_allowed(self, vhost: str, kind: TopicPermissionKind, exchange: str, routing_key: str) -> bool:
        """Whether it may use the routing key at this topic exchange."""


class AccountRights:
    """Of a user of the broker. A deleted one has none, until its connection is closed."""

    __slots__ = ("_map", "_user")

    def __init__(self, map_: ClusterView, user: str) -> None:
        self._map = map_
        self._user = user

    @property
    def tags(self) -> tuple[str, ...]:
        known = self._map.user(self._user)
        return () if known is None else known.tags

    def enters(self, vhost: str) -> bool:
        return self._map.permission(self._user, vhost) is not None

    def allowed(self, vhost: str, kind: PermissionKind, resource: str) -> bool:
        return self._map.allowed(self._user, vhost, kind, resource)

    def topic_allowed(self, vhost: str, kind: TopicPermissionKind, exchange: str, routing_key: str) -> bool:
        return self._map.topic_allowed(self._user, vhost, kind, exchange, routing_key)
