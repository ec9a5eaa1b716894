"""Why a request is not answered, in RabbitMQ's words: a status and `{"error", "reason"}`."""

from __future__ import annotations

from typing import Any

from clusterbroker.cluster.errors import AccessRefused, NotFound, Unavailable


class Refused(Exception):
    """The answer is an error."""

    def __init__(self, status: int, error: str, reason: Any) -> None:
        super().__init__(f"{status} {error}: {reason}")
        self.status = status
        self.error = error
        self.reason = reason


def object_not_found() -> Refused:
    """What the path names does not exist."""
    return Refused(404, "Object Not Found", "Not Found")


def not_authorised(reason: str) -> Refused:
    """Signed in, and without the right to this."""
    return Refused(401, "not_authorised", reason)


def bad_request(reason: Any) -> Refused:
    """The body or the query cannot be used."""
    return Refused(400, "bad_request", reason)


def of_order(kind: str, text: str) -> Refused:
    """What the wiring answered to a command: a kind of `cluster.errors`, and its text. The client may repeat a 503."""
    match kind:
        case Unavailable.kind:
            return Refused(503, "unavailable", text)
        case NotFound.kind:
            return Refused(404, "not_found", text)
        case AccessRefused.kind:
            return not_authorised(text)
        case _:
            return bad_request(text)
