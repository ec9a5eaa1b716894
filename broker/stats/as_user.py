"""What the management process asks its node to do as a user, and is answered: values only.

Made by `broker.management.amqp_operations`, carried out by `broker.server.control.as_user` with the rights of the user,
or of its token.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

AckMode = Literal["ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false"]
GET_BYTES_MAX: Final = 64 << 20
"""A get ends with the message that reaches it."""


class Request(msgspec.Struct, frozen=True, array_like=True):
    """Root of these."""


class Method(Request, frozen=True, tag="method"):
    """One method, to be answered by another one. `payload`: as AMQP encodes it."""

    payload: bytes


class Publish(Request, frozen=True, tag="publish"):
    """One message; answered with whether it was routed. `properties`: as AMQP encodes them."""

    exchange: str
    routing_key: str
    properties: bytes
    payload: bytes


class Ask(Request, frozen=True, tag="ask"):
    """A question to an exchange that is the broker itself."""

    exchange: str
    routing_key: str
    body: dict[str, Any]


class Get(Request, frozen=True, tag="get"):
    """At most so many messages, and what becomes of them."""

    queue: str
    count: int
    ack_mode: AckMode


AnyRequest = Method | Publish | Ask | Get


class AsUser(msgspec.Struct, frozen=True, array_like=True):
    """Requests in their order, the first error ends them. `token`: with which the user signed in; empty: an account."""

    user: str
    vhost: str
    token: bytes
    requests: tuple[AnyRequest, ...]


class Got(msgspec.Struct, frozen=True, array_like=True):
    """One message of a get."""

    exchange: str
    routing_key: str
    redelivered: bool
    left: int
    """Messages behind it."""
    properties: bytes
    payload: bytes


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """Of all requests; `code` and `text` are AMQP's, 0: there was no error."""

    code: int = 0
    text: str = ""
    routed: bool = True
    nacked: bool = False
    """A message was refused: a queue is full, or could not take it."""
    got: tuple[Got, ...] = ()
