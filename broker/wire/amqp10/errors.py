"""What may go wrong between a client of AMQP 1.0 and this node (specification 2.8.15 to 2.8.18, 3.4, 4.5).

An error has a condition, a symbol, and ends what it is about:

    ConnectionFault10   close     the byte stream, or the order of performatives
    SessionError        end       windows and handles
    LinkError           detach    one link: its terminus, its credit, its messages

A delivery that is refused is no error: its outcome is `rejected`, with the same conditions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

INTERNAL_ERROR: Final = "amqp:internal-error"
NOT_FOUND: Final = "amqp:not-found"
UNAUTHORIZED: Final = "amqp:unauthorized-access"
DECODE_ERROR: Final = "amqp:decode-error"
RESOURCE_LIMIT: Final = "amqp:resource-limit-exceeded"
NOT_ALLOWED: Final = "amqp:not-allowed"
INVALID_FIELD: Final = "amqp:invalid-field"
NOT_IMPLEMENTED: Final = "amqp:not-implemented"
RESOURCE_LOCKED: Final = "amqp:resource-locked"
PRECONDITION_FAILED: Final = "amqp:precondition-failed"
RESOURCE_DELETED: Final = "amqp:resource-deleted"
FRAME_SIZE: Final = "amqp:frame-size-too-small"
ILLEGAL_STATE: Final = "amqp:illegal-state"
CONNECTION_FORCED: Final = "amqp:connection:forced"
FRAMING_ERROR: Final = "amqp:connection:framing-error"
CONNECTION_REDIRECT: Final = "amqp:connection:redirect"
WINDOW_VIOLATION: Final = "amqp:session:window-violation"
ERRANT_LINK: Final = "amqp:session:errant-link"
HANDLE_IN_USE: Final = "amqp:session:handle-in-use"
UNATTACHED_HANDLE: Final = "amqp:session:unattached-handle"
DETACH_FORCED: Final = "amqp:link:detach-forced"
TRANSFER_LIMIT: Final = "amqp:link:transfer-limit-exceeded"
MESSAGE_SIZE: Final = "amqp:link:message-size-exceeded"
STOLEN: Final = "amqp:link:stolen"
UNKNOWN_ID: Final = "amqp:transaction:unknown-id"
ROLLBACK: Final = "amqp:transaction:rollback"
TIMEOUT: Final = "amqp:transaction:timeout"

TEXT_MAX: Final = 1024
"""Characters of a description: an error must fit the smallest frame that a peer may demand (2.7.1), or it is cut."""


class Amqp10Error(Exception):
    """A condition, a description for people, and perhaps more about it."""

    def __init__(self, condition: str, text: str, info: Mapping[str, Any] | None = None) -> None:
        super().__init__(condition, text)
        self.condition = condition
        self.text = text[:TEXT_MAX]
        self.info = dict(info or {})

    @property
    def line(self) -> tuple[str, int | str, str]:
        """As the node's log has it (`broker.node.log.Fault`)."""
        level = {INTERNAL_ERROR: "error", CONNECTION_FORCED: "info"}.get(self.condition, "warning")
        return level, self.condition, self.text

    def __str__(self) -> str:
        return f"{self.condition}: {self.text}"


class ConnectionFault10(Amqp10Error):
    """The connection ends."""


class SessionError(Amqp10Error):
    """One session ends; the connection lives."""


class LinkError(Amqp10Error):
    """One link is detached; its session lives."""


def framing_error(text: str) -> ConnectionFault10:
    """The byte stream can no longer be read."""
    return ConnectionFault10(FRAMING_ERROR, text)


def decode_error(text: str) -> ConnectionFault10:
    """A frame is whole, but what it says is not."""
    return ConnectionFault10(DECODE_ERROR, text)


def not_allowed(text: str) -> ConnectionFault10:
    """A performative that may not come now."""
    return ConnectionFault10(NOT_ALLOWED, text)
