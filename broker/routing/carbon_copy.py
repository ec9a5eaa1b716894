"""The further routing keys of a message: RabbitMQ's CC and BCC headers ("sender-selected distribution").

Both headers hold an array of long strings. A message is routed by its routing key and by all of these;
consumers see CC, but BCC is taken out of the headers before the message is stored.
"""

from __future__ import annotations

from collections.abc import Mapping


class UnacceptableHeader(ValueError):
    """CC or BCC is not an array: the publish is refused (406, RabbitMQ: unacceptable_type_in_header)."""


def copy_keys(headers: Mapping[str, object] | None, name: str) -> tuple[str, ...]:
    """The keys in the header `name` ("CC" or "BCC"), in its order; none when it is absent.

    Items that are not strings are passed over, as RabbitMQ does. Raises UnacceptableHeader when the header is
    not an array.
    """
    if not headers or name not in headers:
        return ()
    keys = headers[name]
    if not isinstance(keys, list):
        raise UnacceptableHeader(f"unacceptable type in header '{name}': expected an array of longstr")
    return tuple(key for key in keys if isinstance(key, str))
