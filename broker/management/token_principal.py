"""Who asks with an OAuth 2 token: its tags and vhosts are those of its scopes, whatever users the broker has.

What it does by AMQP it does with the token itself: the node verifies it again, and asks its scopes for each operation.
"""

from __future__ import annotations

from clusterbroker.broker.oauth2.scopes import Grants
from clusterbroker.cluster.authorization import PermissionKind
from clusterbroker.cluster.view import ClusterView

from .rights import KINDS, Principal


class TokenPrincipal(Principal):
    """For one request."""

    __slots__ = ("_grants",)

    def __init__(self, map_: ClusterView, name: str, grants: Grants, token: bytes) -> None:
        super().__init__(map_, name, grants.tags, token)
        self._grants = grants

    def enters(self, vhost: str) -> bool:
        """Whether a scope names the vhost."""
        return self._grants.enters(vhost)

    def allowed(self, vhost: str, kind: PermissionKind, resource: str) -> bool:
        """Whether a scope names it."""
        return self._grants.allowed(vhost, kind, resource)

    def may_some(self, vhost: str) -> list[str]:
        """What some scope is about."""
        return [kind for kind in KINDS if self._grants.some(vhost, kind)]

    def may_route(self, vhost: str, exchange: str, routing_key: str | None) -> bool:
        """Whether a scope allows the key; one has to be said."""
        return routing_key is not None and self._grants.topic_allowed(vhost, "write", exchange, routing_key)
