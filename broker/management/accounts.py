"""Documents of users, permissions and topic permissions. Hashes are shown to administrators only, as RabbitMQ does:
an export of definitions must be able to bring the users back."""

from __future__ import annotations

from collections.abc import Iterable

from clusterbroker.cluster.wiring.entities import Permission, TopicPermission, User, UserLimits

from .bodies import USER_LIMITS
from .errors import object_not_found
from .reading import Document, Reading, same


def whoami(reading: Reading) -> Document:
    """Who signed in."""
    return {"name": reading.principal.name, "tags": list(reading.principal.tags)}


def limits_of(limits: UserLimits) -> Document:
    """Limits under their names in RabbitMQ."""
    return {name: value for name, field in USER_LIMITS.items() if (value := getattr(limits, field)) is not None}


def user_document(user: User) -> Document:
    """One user."""
    return {
        "hashing_algorithm": user.hash_algorithm,
        "limits": limits_of(user.limits),
        "name": user.name,
        "password_hash": user.password_hash,
        "tags": list(user.tags),
    }


def users(reading: Reading, *, lonely: bool = False) -> list[Document]:
    """All users, or those that may enter no vhost."""
    entering = {permission.user for permission in reading.map.permissions()} if lonely else set()
    found = [user for user in reading.map.users() if user.name not in entering]
    return [user_document(user) for user in sorted(found, key=lambda user: user.name)]


def user_named(reading: Reading, name: str) -> User:
    """Refused (404) without one."""
    user = reading.map.user(name)
    if user is None:
        raise object_not_found()
    return user


def user_limits(reading: Reading, user: str | None = None) -> list[Document]:
    """Of all users that have some, or of one."""
    wanted: Iterable[User] = reading.map.users() if user is None else (user_named(reading, user),)
    found = sorted((one.name, limits_of(one.limits)) for one in wanted if limits_of(one.limits))
    return [{"user": name, "value": limits} for name, limits in found]


def permission_document(permission: Permission | TopicPermission) -> Document:
    """One permission, also of a topic exchange."""
    return same(permission, *permission.__struct_fields__)


def permissions(reading: Reading, *, vhost: str | None = None, user: str | None = None) -> list[Document]:
    """Of a vhost, of a user, or all. Refused (404) when what is named does not exist."""
    _there(reading, vhost, user)
    found = [
        permission
        for permission in reading.map.permissions()
        if vhost in (None, permission.vhost) and user in (None, permission.user)
    ]
    return [permission_document(found_) for found_ in sorted(found, key=lambda entry: (entry.vhost, entry.user))]


def permission_of(reading: Reading, vhost: str, user: str) -> Document:
    """Refused (404) without one."""
    permission = reading.map.permission(user, vhost)
    if permission is None:
        raise object_not_found()
    return permission_document(permission)


def topic_permissions(reading: Reading, *, vhost: str | None = None, user: str | None = None) -> list[Document]:
    """Of a vhost, of a user, of both, or all. Refused (404) when what is named does not exist."""
    _there(reading, vhost, user)
    found = [
        permission
        for permission in reading.map.topic_permissions()
        if vhost in (None, permission.vhost) and user in (None, permission.user)
    ]
    found.sort(key=lambda entry: (entry.vhost, entry.user, entry.exchange))
    return [permission_document(entry) for entry in found]


def _there(reading: Reading, vhost: str | None, user: str | None) -> None:
    if vhost is not None and reading.map.vhost(vhost) is None:
        raise object_not_found()
    if user is not None:
        user_named(reading, user)
