"""Users of the API, and what each sees: by its tags, and the vhosts that it may enter.

    none            may not sign in
    management      what is in the vhosts that it has a permission in; of connections, channels, consumers its own
    policymaker     also parameters of these vhosts
    monitoring      also nodes, all vhosts' names and totals, connections and channels of everybody
    administrator   also users, permissions, definitions, feature flags, vhosts one by one

Each tag but `policymaker` has the rights of those above it; `administrator` has all. What is inside a vhost is shown to
those who may enter it only, whatever their tags: an administrator may give itself the permission.

    Principal        a user of the broker
    TokenPrincipal   an OAuth 2 token: tags and vhosts are those of its scopes, whatever users the broker has. By AMQP
                     the token itself acts: the node verifies it again, and asks its scopes for each operation
    LocalOperator    the operator on the node's own machine, who may read the data directory, and so came through
                     `http.sock`. It could give itself any password anyway, so it sees and changes what an administrator
                     may, in all vhosts. By AMQP it acts as a user that it names, or that may do everything in the vhost
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from clusterbroker.broker.oauth2.scopes import Grants
from clusterbroker.broker.stats.rows import ConnectionRow
from clusterbroker.cluster.wiring.authorization import PermissionKind
from clusterbroker.cluster.wiring.authorization import principal as told_as
from clusterbroker.cluster.wiring.entities import User
from clusterbroker.cluster.wiring.view import ClusterView

from .errors import Refused, bad_request, not_authorised, object_not_found

MANAGEMENT: Final = "management"
POLICYMAKER: Final = "policymaker"
MONITORING: Final = "monitoring"
ADMINISTRATOR: Final = "administrator"
KINDS: Final[tuple[PermissionKind, ...]] = ("configure", "write", "read")
_NOTHING: Final = ("", "^$")
"""Patterns that no name matches."""

_REFUSALS: Final = {
    MANAGEMENT: "Not management user",
    POLICYMAKER: "User not authorised to access object",
    MONITORING: "Not monitor user",
    ADMINISTRATOR: "Not administrator user",
}
_GRANTED: Final = {
    MANAGEMENT: (MANAGEMENT, POLICYMAKER, MONITORING, ADMINISTRATOR),
    POLICYMAKER: (POLICYMAKER, ADMINISTRATOR),
    MONITORING: (MONITORING, ADMINISTRATOR),
    ADMINISTRATOR: (ADMINISTRATOR,),
}


class Principal:
    """A signed-in user, for one request."""

    __slots__ = ("_map", "name", "tags", "token")

    def __init__(self, map_: ClusterView, name: str, tags: tuple[str, ...], token: bytes = b"") -> None:
        self._map = map_
        self.name = name
        self.tags = tags
        self.token = token
        """With which it signed in: its rights are this token's, over AMQP too. Empty: it is a user of the broker."""

    @classmethod
    def of(cls, map_: ClusterView, user: User) -> Principal:
        """The principal behind an account."""
        return cls(map_, user.name, user.tags)

    @property
    def account(self) -> str:
        """The user of the broker that it is; empty: it is none."""
        return "" if self.token else self.name

    def has(self, right: str) -> bool:
        """Whether a tag gives this right."""
        return any(tag in _GRANTED[right] for tag in self.tags)

    def require(self, right: str) -> None:
        """Refused (401) without it."""
        if not self.has(MANAGEMENT):
            raise not_authorised(_REFUSALS[MANAGEMENT])
        if not self.has(right):
            raise not_authorised(_REFUSALS[right])

    def enters(self, vhost: str) -> bool:
        """Whether the user has a permission in the vhost."""
        return self._map.permission(self.name, vhost) is not None

    def allowed(self, vhost: str, kind: PermissionKind, resource: str) -> bool:
        """Whether it may configure, write or read the exchange or queue of this name; the default exchange is ""."""
        return self._map.allowed(self.name, vhost, kind, resource)

    def may(self, vhost: str, resource: str) -> list[str]:
        """All that it may do with it: what a page offers. The node checks each operation again."""
        return [kind for kind in KINDS if self.allowed(vhost, kind, resource)]

    def may_some(self, vhost: str) -> list[str]:
        """What it may do in the vhost with things of some name at least."""
        permission = self._map.permission(self.name, vhost)
        return [kind for kind in KINDS if permission is not None and getattr(permission, kind) not in _NOTHING]

    def enter(self, vhost: str) -> None:
        """Refused: 404 when there is no such vhost, 401 when it is closed to the user."""
        if self._map.vhost(vhost) is None:
            raise object_not_found()
        if not self.enters(vhost):
            raise not_authorised("User not authorised to access virtual host")

    def check(self, vhost: str, kind: PermissionKind, sort: Literal["queue", "exchange"], name: str) -> None:
        """Refused (401) as AMQP would."""
        if not self.allowed(vhost, kind, name):
            shown = name or "amq.default"
            raise not_authorised(f"{kind} access to {sort} '{shown}' in vhost '{vhost}' refused for user '{self.name}'")

    def may_route(self, vhost: str, exchange: str, routing_key: str | None) -> bool:
        """Whether it may publish with this key to a topic exchange; None: with any."""
        if routing_key is not None:
            return self._map.topic_allowed(self.name, vhost, "write", exchange, routing_key)
        return not self._map.topic_limited(self.name, vhost, exchange)

    def amqp_user(self, _vhost: str) -> str:
        """As whom it speaks AMQP in a vhost."""
        return self.name

    def open_vhosts(self) -> list[str]:
        """Names of those that it may enter, sorted."""
        return sorted(vhost.name for vhost in self._map.vhosts() if self.enters(vhost.name))

    def sees_all_vhosts(self) -> bool:
        """Whether no vhost is closed to it."""
        return all(self.enters(vhost.name) for vhost in self._map.vhosts())

    @property
    def audit_name(self) -> str:
        """Who it is to an audit."""
        return told_as(self.name, bool(self.token))

    def is_own(self, row: ConnectionRow) -> bool:
        """Whether it is a connection of this user: an account's, or one of a token's user. That both have the same name
        makes them not the same."""
        return row.user == self.name and row.by_token == bool(self.token)

    def is_principal(self, name: str) -> bool:
        """Whether a link of AMQP 1.0 is this user's, whose user has this name (`authorization.principal`)."""
        return name == told_as(self.name, bool(self.token))

    def own(self) -> Callable[[ConnectionRow], bool]:
        """Of which connections, their channels and consumers it hears."""
        return (lambda _row: True) if self.has(MONITORING) else self.is_own


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


OPERATOR: Final = "(operator)"
"""Where a user's name is shown. Who signs in over TCP is never called so because of this: it is no account."""
EVERYTHING: Final = (".*", "^.*", ".*$", "^.*$")
"""Patterns that every name matches."""


class LocalOperator(Principal):
    """For one request."""

    __slots__ = ()

    def __init__(self, map_: ClusterView) -> None:
        super().__init__(map_, OPERATOR, (ADMINISTRATOR,))

    @property
    def account(self) -> str:
        """None, also if a user is called as it is shown."""
        return ""

    def enters(self, vhost: str) -> bool:
        """Every one that there is."""
        return self._map.vhost(vhost) is not None

    def allowed(self, vhost: str, kind: PermissionKind, resource: str) -> bool:  # noqa: ARG002
        """Everything: it acts as a user with all permissions."""
        return True

    def may_some(self, vhost: str) -> list[str]:
        """All of it."""
        return list(KINDS) if self.enters(vhost) else []

    def may_route(self, vhost: str, exchange: str, routing_key: str | None) -> bool:  # noqa: ARG002
        """With any key."""
        return True

    def amqp_user(self, vhost: str) -> str:
        """An administrator with all permissions in the vhost, else any user with these; the first one by name.
        Refused (400) when there is none."""
        found = [
            permission.user
            for permission in self._map.permissions()
            if permission.vhost == vhost
            and all(pattern in EVERYTHING for pattern in (permission.configure, permission.write, permission.read))
        ]
        if not found:
            raise bad_request(
                f"no user may do everything in vhost '{vhost}': give one the permissions "
                "(clusterbroker permissions set USER VHOST '.*' '.*' '.*'), or name one that may do this (--as USER)"
            )
        return min(found, key=lambda name: (not self._administers(name), name))

    def _administers(self, name: str) -> bool:
        user = self._map.user(name)
        return user is not None and ADMINISTRATOR in user.tags


def principal(map_: ClusterView, name: str | None) -> Principal:
    """The operator, or the user that it wants to be for this request. Refused (400) when there is no such user."""
    if name is None:
        return LocalOperator(map_)
    user = map_.user(name)
    if user is None:
        raise Refused(400, "bad_request", f"there is no user '{name}' to act as")
    return Principal.of(map_, user)
