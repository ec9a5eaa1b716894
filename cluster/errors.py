"""Errors of this floor, each with its party at fault, equality on every node, and retry.

A WiringError is the client's fault, Unavailable nobody's, a LogFailure the disk's.

The broker maps kinds to AMQP reply codes; texts are the ones RabbitMQ's clients know (amqp-rules.md 5.1,
5.3).
"""

from __future__ import annotations

from typing import ClassVar


class ClusterError(Exception):
    """Root of all errors of this floor."""


class _Answer(ClusterError):
    """An error that is the answer to a command: a stable kind and a text for the client."""

    kind: ClassVar[str] = ""
    deterministic: ClassVar[bool] = False
    retriable: ClassVar[bool] = False

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __eq__(self, other: object) -> bool:
        """Equal to a client: kind and text."""
        return type(other) is type(self) and isinstance(other, _Answer) and other.text == self.text

    def __hash__(self) -> int:
        return hash((type(self), self.text))


class WiringError(_Answer):
    """A command that the fold refuses, on every node alike: it may be the recorded result. A retry gives the same."""

    deterministic = True


class NotFound(WiringError):
    """A vhost, exchange, queue or user that the command names does not exist (AMQP 404)."""

    kind = "not_found"


class AccessRefused(WiringError):
    """The rules of the protocol forbid the command: reserved names, the default exchange (AMQP 403)."""

    kind = "access_refused"


class ResourceLocked(WiringError):
    """The queue is exclusive to another connection (AMQP 405)."""

    kind = "resource_locked"


class PreconditionFailed(WiringError):
    """An argument is invalid, or differs from what exists (AMQP 406)."""

    kind = "precondition_failed"


class AlreadyExists(WiringError):
    """The name is taken and the command needs a new one (AMQP 406)."""

    kind = "already_exists"


class InUse(WiringError):
    """Deletion was asked for an unused thing only, and it is used (AMQP 406)."""

    kind = "in_use"


class LimitReached(WiringError):
    """One more would be more than an administrator allowed (AMQP 406)."""

    kind = "limit"


class Contended(WiringError):
    """An import of definitions is in the way: nothing was carried out, and a retry may succeed (AMQP 506)."""

    kind = "unavailable"
    retriable = True


class Unavailable(_Answer):
    """The command could not be ordered now: never recorded, not applied, and may be proposed again."""

    kind = "unavailable"
    retriable = True


class DiskFull(Unavailable):
    """No room for the log: the whole group of commands was rolled back."""


class LogFailure(ClusterError):
    """The stored log cannot be trusted or continued; the node must stop and an operator must look."""


class DamagedLog(LogFailure):
    """A stored value does not match its checksum, its place or its form; nothing is repaired silently."""

    def __init__(self, what: str, remedy: str = "") -> None:
        """`what` and where, without what to do: for whoever knows better what to do about it."""
        super().__init__(f"{what}; {remedy}" if remedy else what)
        self.what = what


class LogWentBack(LogFailure):
    """The others know of later votes and acknowledgements of this node than its log, so it must not vote."""


class FormatTooNew(LogFailure):
    """The directory was written by a newer release whose format this one does not know."""


def newer_format(where: str, version: int, known: int) -> FormatTooNew:
    """Of a file of another format version; `known`: the version that this release reads."""
    return FormatTooNew(
        f"{where}: it has format {version}; this release reads format {known}: it comes from a newer release; start "
        "that one"
    )


class NewerRelease(ValueError):
    """Sound bytes of a version that a decoder does not know; the reader of the file makes a FormatTooNew of it."""


class DiskFailed(LogFailure):
    """A write or sync failed with something else than a full disk."""


def queue_text(vhost: str, name: str) -> str:
    """A queue as RabbitMQ names it in error texts."""
    return f"queue '{name}' in vhost '{vhost}'"


def exchange_text(vhost: str, name: str) -> str:
    """An exchange as RabbitMQ names it in error texts."""
    return f"exchange '{name}' in vhost '{vhost}'"


def no_queue(vhost: str, name: str) -> NotFound:
    """404 `no queue 'q' in vhost '/'`."""
    return NotFound(f"no {queue_text(vhost, name)}")


def no_exchange(vhost: str, name: str) -> NotFound:
    """404 `no exchange 'x' in vhost '/'`."""
    return NotFound(f"no {exchange_text(vhost, name)}")


def no_vhost(name: str) -> NotFound:
    """`vhost 'v' not found`."""
    return NotFound(f"vhost '{name}' not found")


def queue_locked(vhost: str, name: str) -> ResourceLocked:
    """405, for any use of another connection's exclusive queue."""
    return ResourceLocked(
        f"cannot obtain exclusive access to locked {queue_text(vhost, name)}. It could be originally declared on "
        "another connection or the exclusive property value does not match that of the original declaration."
    )
