"""Who sees what: a user's tags, and the vhosts that it may enter.

    none            may not sign in
    management      what is in the vhosts that it has a permission in; of connections, channels, consumers its own
    policymaker     also parameters of these vhosts
    monitoring      also nodes, all vhosts' names and totals, connections and channels of everybody
    administrator   also users, permissions, definitions, feature flags, vhosts one by one

Each tag but `policymaker` has the rights of those above it; `administrator` has all. What is inside a vhost is shown to
those who may enter it only, whatever their tags: an administrator may give itself the permission.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cluster.entities import User
from cluster.view import ClusterView

from .errors import not_authorised, object_not_found

MANAGEMENT: Final = "management"
POLICYMAKER: Final = "policymaker"
MONITORING: Final = "monitoring"
ADMINISTRATOR: Final = "administrator"

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


class Seer:
    """A signed-in user, for one request."""

    __slots__ = ("_map", "name", "tags")

    def __init__(self, map_: ClusterView, name: str, tags: tuple[str, ...]) -> None:
        self._map = map_
        self.name = name
        self.tags = tags

    @classmethod
    def of(cls, map_: ClusterView, user: User) -> Seer:
        """The seer behind an account."""
        return cls(map_, user.name, user.tags)

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

    def enter(self, vhost: str) -> None:
        """Refused: 404 when there is no such vhost, 401 when it is closed to the user."""
        if self._map.vhost(vhost) is None:
            raise object_not_found()
        if not self.enters(vhost):
            raise not_authorised("User not authorised to access virtual host")

    def amqp_user(self, _vhost: str) -> str:
        """As whom it speaks AMQP in a vhost."""
        return self.name

    def open_vhosts(self) -> list[str]:
        """Names of those that it may enter, sorted."""
        return sorted(vhost.name for vhost in self._map.vhosts() if self.enters(vhost.name))

    def sees_all_vhosts(self) -> bool:
        """Whether no vhost is closed to it."""
        return all(self.enters(vhost.name) for vhost in self._map.vhosts())

    def own(self) -> Callable[[str], bool]:
        """Of whose connections, channels and consumers it hears."""
        return (lambda _user: True) if self.has(MONITORING) else (lambda user: user == self.name)
