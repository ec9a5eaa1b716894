"""The operator on the node's own machine: who may read the data directory, and so came through `http.sock`.

It signs in as nobody: with the data directory it could give itself any password through `control.sock` anyway. It sees
and changes what an administrator may, in all vhosts. What is AMQP (declare, bind, publish, get, purge) is done by
somebody, with permissions: by the user that the operator names, else by one that may do everything in the vhost.
"""

from __future__ import annotations

from typing import Final

from clusterbroker.cluster.authorization import PermissionKind
from clusterbroker.cluster.view import ClusterView

from .errors import Refused, bad_request
from .rights import ADMINISTRATOR, KINDS, Principal

NAME: Final = "(operator)"
"""Where a user's name is shown. Who signs in over TCP is never called so because of this: it is no account."""
EVERYTHING: Final = (".*", "^.*", ".*$", "^.*$")
"""Patterns that every name matches."""


class LocalOperator(Principal):
    """For one request."""

    __slots__ = ()

    def __init__(self, map_: ClusterView) -> None:
        super().__init__(map_, NAME, (ADMINISTRATOR,))

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
