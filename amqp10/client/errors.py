"""Exceptions of the client: each says what is wrong, whose fault it is, and whether the same may be tried again.

ClientError             all of them
  ConnectFailed         no address took the connection
  AuthenticationFailed  the peer does not know the user, or offers no mechanism that is wanted
  ConnectionLost        the network or the peer's process went away
  ConnectionClosed      the peer closed the connection, with a condition (2.8.15, 2.8.16)
  SessionEnded          the peer ended the session (2.8.17)
  LinkDetached          the peer refused a link or ended it (2.8.18)
  NotRecoverable        the peer does not offer to keep what a recoverable link needs
  DeliveryInDoubt       the connection went before a delivery was answered: it may be there, or not
  DeliveryLost          the peer does not hold a received delivery any more: its outcome says nothing
  ProtocolError         the peer breaks the standard
  StoreError            the file of unsettled deliveries is not usable
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, Self

from clusterbroker.broker.wire.amqp10 import errors as wire
from clusterbroker.broker.wire.amqp10.performatives import Error

Fault = Literal["client", "peer", "network"]

_OURS: Final = frozenset(
    {
        wire.NOT_FOUND, wire.UNAUTHORIZED, wire.NOT_ALLOWED, wire.INVALID_FIELD, wire.PRECONDITION_FAILED,
        wire.MESSAGE_SIZE, wire.DECODE_ERROR, wire.FRAMING_ERROR, wire.WINDOW_VIOLATION, wire.ERRANT_LINK,
        wire.HANDLE_IN_USE, wire.UNATTACHED_HANDLE, wire.TRANSFER_LIMIT, wire.STOLEN, wire.ILLEGAL_STATE,
        wire.NOT_IMPLEMENTED, wire.RESOURCE_DELETED,
    }
)  # fmt: skip
"""Conditions that a client brings about, itself or by what it asks for."""
_PASSING: Final = frozenset(
    {wire.INTERNAL_ERROR, wire.RESOURCE_LIMIT, wire.RESOURCE_LOCKED, wire.CONNECTION_FORCED, wire.DETACH_FORCED}
)
"""Conditions that may be over a moment later, here or at another node."""


class ClientError(Exception):
    """`condition`: a symbol of the standard, or empty; `fault`: the side that has to change something; `may_retry`:
    whether the same call may succeed later, without a change."""

    fault: Fault = "peer"
    may_retry: bool = False

    def __init__(self, text: str, condition: str = "", info: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"{condition}: {text}" if condition else text)
        self.text = text
        self.condition = condition
        self.info = dict(info or {})


class ConnectFailed(ClientError):
    fault = "network"
    may_retry = True


class AuthenticationFailed(ClientError):
    fault = "client"


class ConnectionLost(ClientError):
    fault = "network"
    may_retry = True


class DeliveryInDoubt(ConnectionLost):
    """Sent again, the message may be there twice."""


class DeliveryLost(ClientError):
    fault = "network"


class NotRecoverable(ClientError):
    fault = "client"


class ProtocolError(ClientError):
    fault = "peer"


class StoreError(ClientError):
    fault = "client"


class ClosedHere(ClientError):
    """The link or connection was closed by this program."""

    fault = "client"


class PeerError(ClientError):
    """An error that the peer has named."""

    def __init__(self, text: str, condition: str = "", info: Mapping[str, Any] | None = None) -> None:
        super().__init__(text, condition, info)
        self.fault = "client" if condition in _OURS else "peer"
        self.may_retry = condition in _PASSING

    @classmethod
    def of(cls, error: Any, otherwise: str) -> Self:
        """`error`: the field of close, end or detach; `otherwise`: the text where there is none."""
        if isinstance(error, Error):
            return cls(error.description or otherwise, error.condition, error.info)
        return cls(otherwise)


class ConnectionClosed(PeerError):
    """Without a condition the peer has only gone, and another connection may be made."""

    def __init__(self, text: str, condition: str = "", info: Mapping[str, Any] | None = None) -> None:
        super().__init__(text, condition, info)
        self.may_retry = self.may_retry or not condition


class SessionEnded(PeerError):
    pass


class LinkDetached(PeerError):
    pass
