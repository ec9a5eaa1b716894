"""Users and permissions: three regular expressions over resource names, per vhost.

Rules of RabbitMQ (amqp-rules.md 5.3, Permissions): a user without a permission in a vhost has no rights there; an
empty pattern matches no name but the empty one; the default exchange is checked as `amq.default`. Topic permissions
are patterns over routing keys, with `{username}`, `{vhost}` and `{client_id}` filled in; a topic exchange without one
for the user allows every key. Filled-in values come from clients and are escaped: a client id of `.*` matches the two
characters, not everything (CVE-2026-44838). Tags have no effect here: an administrator needs permissions too.

Patterns are compiled once per process and text (patterns.py), so equal permissions of many users share one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal

from .arguments import same
from .entities import Permission, TopicPermission, User
from .errors import NotFound, PreconditionFailed
from .patterns import PatternError, compiled, matches

PermissionKind = Literal["configure", "write", "read"]
TopicPermissionKind = Literal["write", "read"]
DEFAULT_EXCHANGE_RESOURCE: Final = "amq.default"
_VARIABLE: Final = re.compile(r"\{(username|vhost|client_id)\}")


def principal(name: str, by_token: bool) -> str:
    """Who somebody is where accounts and users of tokens stand in one list: equal names make them not the same."""
    return f"{name} (by token)" if by_token else name


def check_pattern(pattern: str, kind: str) -> None:
    """Raise 406 unless the pattern can be used."""
    try:
        compiled(_whole(pattern))
    except PatternError as error:
        raise PreconditionFailed(f"invalid {kind} pattern: {error}") from error


def _whole(pattern: str) -> str:
    return pattern or "^$"


def expanded(pattern: str, *, username: str, vhost: str, client_id: str | None) -> str:
    """The pattern with its variables filled in, escaped; a variable without a value stays as it is."""
    values = {"username": username, "vhost": vhost, "client_id": client_id}

    def fill(match: re.Match[str]) -> str:
        value = values[match[1]]
        return match[0] if value is None else re.escape(value)

    return _VARIABLE.sub(fill, pattern)


class Accounts:
    """Users, permissions and topic permissions of the cluster."""

    __slots__ = ("_permissions", "_topics", "_users", "had_users")

    def __init__(self) -> None:
        self.had_users = False
        """Whether there is, or was, a user."""
        self._users: dict[str, User] = {}
        self._permissions: dict[tuple[str, str], Permission] = {}
        self._topics: dict[tuple[str, str], dict[str, TopicPermission]] = {}

    def user(self, name: str) -> User | None:
        """The user of this name."""
        return self._users.get(name)

    def users(self) -> tuple[User, ...]:
        """All users, oldest first."""
        return tuple(self._users.values())

    def permission(self, user: str, vhost: str) -> Permission | None:
        """What the user may do in the vhost; None: it may not even enter."""
        return self._permissions.get((user, vhost))

    def permissions(self) -> tuple[Permission, ...]:
        """All permissions, oldest first."""
        return tuple(self._permissions.values())

    def topic_permissions(self) -> tuple[TopicPermission, ...]:
        """All topic permissions, in order of (user, vhost), then oldest first."""
        return tuple(entry for key in sorted(self._topics) for entry in self._topics[key].values())

    def put_user(self, user: User) -> bool:
        """Add or replace; whether that changed anything."""
        if same(self._users.get(user.name), user):
            return False
        self._users[user.name] = user
        self.had_users = True
        return True

    def delete_user(self, name: str) -> list[str] | None:
        """Remove a user and all its permissions: the vhosts where it had some; None when there is no such user."""
        if self._users.pop(name, None) is None:
            return None
        vhosts = sorted({vhost for user, vhost in (*self._permissions, *self._topics) if user == name})
        for vhost in vhosts:
            self._forget(name, vhost)
        return vhosts

    def delete_vhost(self, vhost: str) -> list[str]:
        """Remove all permissions in a vhost: the users that had some."""
        users = sorted({user for user, where in (*self._permissions, *self._topics) if where == vhost})
        for user in users:
            self._forget(user, vhost)
        return users

    def set_permission(self, permission: Permission) -> bool:
        """Add or replace; whether that changed anything. Raises 404 or 406."""
        for kind in ("configure", "write", "read"):
            check_pattern(getattr(permission, kind), kind)
        self._require_user(permission.user)
        key = (permission.user, permission.vhost)
        if same(self._permissions.get(key), permission):
            return False
        self._permissions[key] = permission
        return True

    def clear_permission(self, user: str, vhost: str) -> bool:
        """Remove; whether it was there."""
        return self._permissions.pop((user, vhost), None) is not None

    def set_topic_permission(self, permission: TopicPermission) -> bool:
        """Add or replace; whether that changed anything. Raises 404 or 406."""
        for kind in ("write", "read"):
            example = expanded(getattr(permission, kind), username="u", vhost="v", client_id="c")
            check_pattern(example, f"topic {kind}")
        self._require_user(permission.user)
        held = self._topics.get((permission.user, permission.vhost), {})
        if same(held.get(permission.exchange), permission):
            return False
        self._topics[(permission.user, permission.vhost)] = {**held, permission.exchange: permission}
        return True

    def clear_topic_permission(self, user: str, vhost: str, exchange: str | None) -> bool:
        """Remove one or, without an exchange, all; whether there was any."""
        held = self._topics.get((user, vhost), {})
        left = {} if exchange is None else {name: held[name] for name in held if name != exchange}
        if len(left) == len(held):
            return False
        if left:
            self._topics[(user, vhost)] = left
        else:
            del self._topics[(user, vhost)]
        return True

    def copy_permissions(self, user: str, vhost: str, to: Accounts) -> None:
        """Let another one know what a user, whom it has, may do in a vhost."""
        key = (user, vhost)
        if key in self._permissions:
            to._permissions[key] = self._permissions[key]
        if key in self._topics:
            to._topics[key] = self._topics[key]

    def allowed(self, user: str, vhost: str, kind: PermissionKind, resource: str) -> bool:
        """Whether the user may configure, write or read the exchange or queue of this name."""
        permission = self._permissions.get((user, vhost))
        if permission is None:
            return False
        pattern: str = getattr(permission, kind)
        return matches(_whole(pattern), resource or DEFAULT_EXCHANGE_RESOURCE)

    def topic_allowed(
        self,
        user: str,
        vhost: str,
        kind: TopicPermissionKind,
        exchange: str,
        routing_key: str,
        *,
        client_id: str | None = None,
    ) -> bool:
        """Whether the user may publish with (write) or bind (read) this routing key on a topic exchange."""
        held = self._topics.get((user, vhost))
        permission = held.get(exchange) if held is not None else None
        if permission is None:
            return True
        text: str = getattr(permission, kind)
        filled = expanded(text, username=user, vhost=vhost, client_id=client_id)
        # a pattern that grew beyond the cap by what was filled in matches nothing
        return matches(_whole(filled), routing_key)

    def restore(
        self,
        users: Iterable[User],
        permissions: Iterable[Permission],
        topic_permissions: Iterable[TopicPermission],
    ) -> None:
        """Hold what a snapshot held, unchecked: it was checked when it was set."""
        self._users = {user.name: user for user in users}
        self._permissions = {(entry.user, entry.vhost): entry for entry in permissions}
        self._topics = {}
        for entry in topic_permissions:
            self._topics.setdefault((entry.user, entry.vhost), {})[entry.exchange] = entry

    def _require_user(self, name: str) -> None:
        if name not in self._users:
            raise NotFound(f"user '{name}' not found")

    def _forget(self, user: str, vhost: str) -> None:
        self._permissions.pop((user, vhost), None)
        self._topics.pop((user, vhost), None)
