"""What may be declared over HTTP: no more than a client could say over AMQP.

AMQP takes line breaks out of the names of queues and exchanges, so one declared with them would be another one than
was asked for. Nobody means a control character in a name, and it confuses whoever reads a log or a list: what is new
has none. What a client did name so over AMQP keeps its name, and may be named in a path, exported and imported.

Arguments go through the codec that clients' arguments go through: integers of 64 bits with a sign, keys of at most 255
bytes, 64 levels, 10,000 values.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any, Final

from clusterbroker.broker.wire.amqp091.errors import AmqpError
from clusterbroker.broker.wire.amqp091.fields import pull_table, push_table

from .errors import Refused, bad_request

NAME_BYTES_MAX: Final = 255
_LINE_BREAKS: Final = "\r\n"


def check_new_name(name: str) -> None:
    """Refused (400) unless something new may be called so."""
    control = next((char for char in name if unicodedata.category(char) == "Cc"), None)
    if control is not None:
        raise _refused(name, f"has the control character U+{ord(control):04X}")
    _check_length(name)


def check_imported_name(name: str) -> None:
    """Refused (400) when it is empty, so that no request can name it, or when AMQP cannot say it."""
    if not name:
        raise bad_request("the name is empty")
    if any(char in name for char in _LINE_BREAKS):
        raise _refused(name, "has a line break")
    _check_length(name)


def _check_length(name: str) -> None:
    if len(name.encode()) > NAME_BYTES_MAX:
        raise _refused(name, f"is longer than {NAME_BYTES_MAX} bytes")


def _refused(name: str, why: str) -> Refused:
    return bad_request(f"name {name[:80]!r} {why}: choose another one")


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Refused (400) when AMQP has no way to say them."""
    try:
        pull_table(push_table(arguments), 0)
    except (ValueError, TypeError) as error:
        raise bad_request(f"arguments: {str(error)[:200]}") from None
    except AmqpError as error:
        raise bad_request(f"arguments: {error.text[:200]}") from None
