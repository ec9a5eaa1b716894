"""Users and permissions: three regular expressions over resource names, per vhost.

Rules of RabbitMQ (amqp-rules.md 5.3, Permissions): a user without a permission in a vhost has no rights there; an
empty pattern matches no name but the empty one; the default exchange is checked as `amq.default`. Topic permissions
are patterns over routing keys, with `{username}`, `{vhost}` and `{client_id}` filled in; a topic exchange without one
for the user allows every key. Filled-in values come from clients and are escaped: a client id of `.*` matches the two
characters, not everything (CVE-2026-44838). An administrator needs permissions too; its tag counts for names of bridges
alone (`queue_rules.is_guarded`), which other users need a pattern for that says so.

Patterns are compiled once per process and text (patterns.py), so equal permissions of many users share one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, Literal

from msgspec.structs import replace

from clusterbroker.cluster.errors import NotFound, PreconditionFailed

from . import commands as c
from .arguments import same
from .changes import Change, PermissionChanged, UserChanged
from .entities import Deserted, Permission, TopicPermission, User, UserLimits, in_part
from .patterns import PatternError, compiled, matches
from .queue_rules import GUARDED_WORD, check_length, is_guarded
from .snapshot import Snapshot

PermissionKind = Literal["configure", "write", "read"]
TopicPermissionKind = Literal["write", "read"]
DEFAULT_EXCHANGE_RESOURCE: Final = "amq.default"
_VARIABLE: Final = re.compile(r"\{(username|vhost|client_id)\}")


def principal(name: str, by_token: bool) -> str:
    """The name in a list with both accounts and users of tokens, which are not the same if their names are equal."""
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

    __slots__ = ("_check_vhost", "_permissions", "_topics", "_users", "had_users")

    def __init__(self, check_vhost: Callable[[str], object]) -> None:
        """No users. `check_vhost`: raises NotFound for a vhost that does not exist."""
        self._check_vhost = check_vhost
        self.had_users = False
        """Whether there is, or was, a user."""
        self._users: dict[str, User] = {}
        self._permissions: dict[tuple[str, str], Permission] = {}
        self._topics: dict[tuple[str, str], dict[str, TopicPermission]] = {}

    # ---- questions ----

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

    def allowed(self, user: str, vhost: str, kind: PermissionKind, resource: str) -> bool:
        """Whether the user may configure, write or read the exchange or queue of this name."""
        permission = self._permissions.get((user, vhost))
        if permission is None:
            return False
        pattern: str = getattr(permission, kind)
        if is_guarded(resource) and GUARDED_WORD not in pattern:
            known = self._users.get(user)
            if known is None or "administrator" not in known.tags:
                return False
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

    def topic_limited(self, user: str, vhost: str, exchange: str) -> bool:
        """Whether the user may use some routing keys of a topic exchange only."""
        return exchange in self._topics.get((user, vhost), ())

    # ---- commands ----

    def put_user(self, command: c.PutUser, changes: list[Change]) -> None:
        """Fold PutUser."""
        if not command.name:
            raise PreconditionFailed("user name is empty")
        check_length("user", command.name)
        tags, limits = command.tags, command.limits
        present = self._users.get(command.name)
        if limits is None:
            limits = UserLimits() if present is None else present.limits
        if command.only_if_hash is not None:
            if present is None or present.password_hash != command.only_if_hash:
                raise PreconditionFailed(f"user '{command.name}' was changed or deleted meanwhile: it stays as it is")
            tags, limits = present.tags, present.limits
        user = User(command.name, command.password_hash, command.hash_algorithm, tags, limits)
        if command.only:
            user = in_part(self._require(command.name), user, command.only)
        self._put(user, changes)

    def set_user_limits(self, command: c.SetUserLimits, changes: list[Change]) -> None:
        """Fold SetUserLimits."""
        user = self._require(command.name)
        self._put(replace(user, limits=in_part(user.limits, command.limits, command.only)), changes)

    def delete_user(self, command: c.DeleteUser, changes: list[Change]) -> bool:
        """Fold DeleteUser."""
        name = command.name
        if self._users.pop(name, None) is None:
            return False
        for vhost in sorted({vhost for user, vhost in (*self._permissions, *self._topics) if user == name}):
            self._forget(name, vhost, changes)
        changes.append(UserChanged(name, deleted=True))
        return True

    def set_permission(self, command: c.SetPermission, changes: list[Change]) -> None:
        """Fold SetPermission."""
        self._check_vhost(command.vhost)
        permission = Permission(command.user, command.vhost, command.configure, command.write, command.read)
        for kind in ("configure", "write", "read"):
            check_pattern(getattr(permission, kind), kind)
        self._require(command.user)
        key = (command.user, command.vhost)
        if not same(self._permissions.get(key), permission):
            self._permissions[key] = permission
            changes.append(PermissionChanged(*key))

    def clear_permission(self, command: c.ClearPermission, changes: list[Change]) -> bool:
        """Fold ClearPermission."""
        if self._permissions.pop((command.user, command.vhost), None) is None:
            return False
        changes.append(PermissionChanged(command.user, command.vhost))
        return True

    def set_topic_permission(self, command: c.SetTopicPermission, changes: list[Change]) -> None:
        """Fold SetTopicPermission."""
        self._check_vhost(command.vhost)
        permission = TopicPermission(command.user, command.vhost, command.exchange, command.write, command.read)
        for kind in ("write", "read"):
            example = expanded(getattr(permission, kind), username="u", vhost="v", client_id="c")
            check_pattern(example, f"topic {kind}")
        self._require(command.user)
        key = (command.user, command.vhost)
        held = self._topics.get(key, {})
        if not same(held.get(command.exchange), permission):
            self._topics[key] = {**held, command.exchange: permission}
            changes.append(PermissionChanged(*key))

    def clear_topic_permission(self, command: c.ClearTopicPermission, changes: list[Change]) -> bool:
        """Fold ClearTopicPermission: of one exchange or, without an exchange, of all."""
        key = (command.user, command.vhost)
        held = self._topics.get(key, {})
        left = {} if command.exchange is None else {name: held[name] for name in held if name != command.exchange}
        if len(left) == len(held):
            return False
        if left:
            self._topics[key] = left
        else:
            del self._topics[key]
        changes.append(PermissionChanged(*key))
        return True

    def delete_vhost(self, vhost: str, changes: list[Change]) -> None:
        """A vhost has ended, and all permissions in it."""
        for user in sorted({user for user, where in (*self._permissions, *self._topics) if where == vhost}):
            self._forget(user, vhost, changes)

    def _require(self, name: str) -> User:
        user = self._users.get(name)
        if user is None:
            raise NotFound(f"user '{name}' not found")
        return user

    def _put(self, user: User, changes: list[Change]) -> None:
        if not same(self._users.get(user.name), user):
            self._users[user.name] = user
            self.had_users = True
            changes.append(UserChanged(user.name))

    def _forget(self, user: str, vhost: str, changes: list[Change]) -> None:
        self._permissions.pop((user, vhost), None)
        self._topics.pop((user, vhost), None)
        changes.append(PermissionChanged(user, vhost))

    # ---- copies and snapshots ----

    def copy_user(self, name: str, to: Accounts) -> None:
        """Let another map know this user, if it is there."""
        if name in self._users:
            to._users[name] = self._users[name]

    def copy_permissions(self, user: str, vhost: str, to: Accounts) -> None:
        """Let another map, which knows the user, know what the user may do in a vhost."""
        key = (user, vhost)
        if key in self._permissions:
            to._permissions[key] = self._permissions[key]
        if key in self._topics:
            to._topics[key] = self._topics[key]

    def save(self, snapshot: Snapshot) -> None:
        """Write this part of the map into a snapshot."""
        snapshot.users = list(self._users.values())
        snapshot.permissions = list(self._permissions.values())
        snapshot.topic_permissions = list(self.topic_permissions())
        snapshot.deserted = [Deserted()] if self.had_users and not self._users else []

    def restore(self, snapshot: Snapshot) -> None:
        """Read this part of the map from a snapshot, unchecked: it was checked when it was set."""
        self._users = {user.name: user for user in snapshot.users}
        self._permissions = {(entry.user, entry.vhost): entry for entry in snapshot.permissions}
        self._topics = {}
        for entry in snapshot.topic_permissions:
            self._topics.setdefault((entry.user, entry.vhost), {})[entry.exchange] = entry
        self.had_users = bool(snapshot.users or snapshot.deserted)
