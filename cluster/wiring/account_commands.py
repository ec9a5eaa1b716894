"""Commands about users and permissions (cluster/wiring/authorization.py)."""

from __future__ import annotations

from .command import Command
from .entities import UserLimits


class PutUser(Command, frozen=True, kw_only=True, tag="put_user"):
    """Make or replace a user."""

    name: str
    password_hash: str = ""
    hash_algorithm: str = ""
    tags: tuple[str, ...] = ()
    limits: UserLimits | None = UserLimits()
    """None: as they were; of a new user none."""
    only_if_hash: str | None = None
    """Refused unless the user is there and has this hash: whoever replaces a hash of the same password must not bring
    back a password or a user that somebody else changed or deleted meanwhile. Tags and limits then stay as they are:
    those of the command are not looked at. None: whatever is there."""
    only: tuple[str, ...] = ()
    """See cluster/wiring/command.py."""

    def __repr__(self) -> str:
        """Without the hash: it must never reach a log."""
        return f"PutUser(name={self.name!r}, hash_algorithm={self.hash_algorithm!r}, tags={self.tags!r})"


class SetUserLimits(Command, frozen=True, kw_only=True, tag="set_user_limits"):
    """Set limits of a user that is there (else 404), and nothing else of it."""

    name: str
    limits: UserLimits
    only: tuple[str, ...] = ()
    """See cluster/wiring/command.py."""


class DeleteUser(Command, frozen=True, kw_only=True, tag="delete_user"):
    """Delete a user and its permissions; a missing one is a success."""

    name: str


class SetPermission(Command, frozen=True, kw_only=True, tag="set_permission"):
    """What a user may do in a vhost: three regular expressions over names."""

    user: str
    vhost: str
    configure: str
    write: str
    read: str


class ClearPermission(Command, frozen=True, kw_only=True, tag="clear_permission"):
    """The user may no longer enter the vhost."""

    user: str
    vhost: str


class SetTopicPermission(Command, frozen=True, kw_only=True, tag="set_topic_permission"):
    """Which routing keys a user may use on a topic exchange; {username}, {vhost}, {client_id} are filled in."""

    user: str
    vhost: str
    exchange: str
    write: str
    read: str


class ClearTopicPermission(Command, frozen=True, kw_only=True, tag="clear_topic_permission"):
    """Remove a topic permission, or with no exchange all of the user's in the vhost."""

    user: str
    vhost: str
    exchange: str | None = None
