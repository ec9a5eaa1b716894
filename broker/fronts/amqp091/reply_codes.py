"""The reply codes of 0-9-1 for what access and the wiring refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from clusterbroker.broker.access.errors import Refusal
from clusterbroker.broker.wire.amqp091.errors import (
    AmqpError,
    access_refused,
    connection_forced,
    internal_error,
    not_allowed,
    not_found,
    not_implemented,
    precondition_failed,
    resource_error,
    resource_locked,
)
from clusterbroker.cluster.errors import Unavailable, WiringError

Refused = Refusal | WiringError | Unavailable


def amqp_error(error: Refused) -> AmqpError:
    """For a request that was refused, or a command that could not be stored."""
    return _BY_KIND[error.kind](error.text)


_BY_KIND: Final[dict[str, Callable[[str], AmqpError]]] = {
    "not_found": not_found,
    "access_refused": access_refused,
    "resource_locked": resource_locked,
    "precondition_failed": precondition_failed,
    "already_exists": precondition_failed,
    "in_use": precondition_failed,
    "limit": precondition_failed,
    "resource_error": resource_error,
    "not_implemented": not_implemented,
    "not_allowed": not_allowed,
    "moved": connection_forced,
    "internal_error": internal_error,
    "unavailable": resource_error,
}
