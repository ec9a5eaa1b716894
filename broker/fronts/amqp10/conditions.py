"""AMQP 1.0's conditions for what access and the wiring refuse."""

from __future__ import annotations

from typing import Final

from clusterbroker.broker.access.errors import Impersonated, Refusal
from clusterbroker.broker.wire.amqp10.errors import (
    CONNECTION_FORCED,
    INTERNAL_ERROR,
    NOT_ALLOWED,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    RESOURCE_LIMIT,
    RESOURCE_LOCKED,
    UNAUTHORIZED,
    Amqp10Error,
    LinkError,
)
from clusterbroker.broker.wire.amqp10.performatives import Error
from clusterbroker.cluster.errors import Unavailable, WiringError

Refused = Refusal | WiringError | Unavailable

CONDITIONS: Final = {
    "not_found": NOT_FOUND,
    "access_refused": UNAUTHORIZED,
    "resource_locked": RESOURCE_LOCKED,
    "precondition_failed": PRECONDITION_FAILED,
    "already_exists": PRECONDITION_FAILED,
    "in_use": PRECONDITION_FAILED,
    "limit": RESOURCE_LIMIT,
    "resource_error": RESOURCE_LIMIT,
    "not_implemented": NOT_IMPLEMENTED,
    "not_allowed": NOT_ALLOWED,
    "moved": CONNECTION_FORCED,
    "internal_error": INTERNAL_ERROR,
    "unavailable": RESOURCE_LIMIT,
}
"""By the kind of a refusal."""


def link_error(refused: Refused) -> LinkError:
    """For a request of a link, or one of its messages."""
    condition = UNAUTHORIZED if isinstance(refused, Impersonated) else CONDITIONS[refused.kind]
    return LinkError(condition, refused.text)


def described(error: Amqp10Error) -> Error:
    """As it goes to the client."""
    return Error(condition=error.condition, description=error.text, info=error.info or None)
