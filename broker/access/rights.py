"""The rights of a connection's user.

    an account    its present permissions in the cluster map
    a token       its scopes (`broker.oauth2.scopes.Grants`), until it expires or another one takes its place
    a worker      those of its launch (`broker.access.worker_rights`), until that is revoked or gone

A token's user is the authority's: an account of the same name is another one, but its limits hold for both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from clusterbroker.cluster.wiring.authorization import PermissionKind, TopicPermissionKind

if TYPE_CHECKING:
    from clusterbroker.cluster.wiring.view import ClusterView


class Rights(Protocol):
    @property
    def tags(self) -> tuple[str, ...]:
        """`impersonator`: it may publish in the name of others."""

    @property
    def gone(self) -> str:
        """Why its connection ends; empty: it may go on."""

    def enters(self, vhost: str) -> bool:
        """Whether it may open a connection to the vhost."""

    def allowed(self, vhost: str, kind: PermissionKind, resource: str) -> bool:
        """Whether it may configure, write or read the exchange or queue of this name; the default exchange is ""."""

    def topic_allowed(self, vhost: str, kind: TopicPermissionKind, exchange: str, routing_key: str) -> bool:
        """Whether it may use the routing key at this topic exchange."""

    def topic_limited(self, vhost: str, exchange: str) -> bool:
        """Whether it may use some routing keys of this topic exchange only."""

    @property
    def may_publish(self) -> Callable[[str, str], bool] | None:
        """Whether a message with this routing key may be published to an exchange that may be written to, asked each
        time; None: any may."""

    @property
    def unheard(self) -> Callable[[str], bool] | None:
        """Whether what is published to the default exchange with this key goes nowhere; None: nothing does."""

    @property
    def took(self) -> Callable[[Any, int, Any], None] | None:
        """Called with each delivery that is handed out: ledger of the session, tag, message. None: not wanted."""


class AccountRights:
    """Of a user of the broker. A deleted one has none, until its connection is closed."""

    __slots__ = ("_map", "_user")
    may_publish = took = unheard = None

    def __init__(self, map_: ClusterView, user: str) -> None:
        self._map = map_
        self._user = user

    @property
    def tags(self) -> tuple[str, ...]:
        known = self._map.user(self._user)
        return () if known is None else known.tags

    @property
    def gone(self) -> str:
        return "" if self._map.user(self._user) is not None else f"user '{self._user}' is deleted"

    def enters(self, vhost: str) -> bool:
        return self._map.permission(self._user, vhost) is not None

    def allowed(self, vhost: str, kind: PermissionKind, resource: str) -> bool:
        return self._map.allowed(self._user, vhost, kind, resource)

    def topic_allowed(self, vhost: str, kind: TopicPermissionKind, exchange: str, routing_key: str) -> bool:
        return self._map.topic_allowed(self._user, vhost, kind, exchange, routing_key)

    def topic_limited(self, vhost: str, exchange: str) -> bool:
        return self._map.topic_limited(self._user, vhost, exchange)
