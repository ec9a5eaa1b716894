"""The further routing keys of a message: RabbitMQ's CC and BCC headers ("sender-selected distribution").

Both headers hold an array of long strings. A message is routed by its routing key and by all of these;
consumers see CC, but BCC is taken out of the headers before the message is stored.

*Bounded.* A key costs its exchange as much as a routing key does, and every message of a batch may bring other ones. So
each is what a routing key may be, and both headers together hold COPIES_MAX of them: `accepted_keys` asks that of a
publish. Nothing is asked of a message that was accepted once: `copy_keys` passes over what is no key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

COPIES_MAX: Final = 100
KEY_BYTES_MAX: Final = 255
"""AMQP 0-9-1, 4.2.5.3: a routing key is a short string."""


class UnacceptableHeader(ValueError):
    """The publish is refused (406): CC or BCC is not an array (RabbitMQ: unacceptable_type_in_header), or too much."""


def copy_keys(headers: Mapping[str, object] | None, name: str) -> tuple[str, ...]:
    """The keys in the header `name` ("CC" or "BCC") of an accepted message, in its order; none when it is absent.

    Items that are not strings are passed over, as RabbitMQ does; so is what no publish may hold today.
    """
    if not headers or name not in headers:
        return ()
    keys = headers[name]
    if not isinstance(keys, list):
        return ()
    return tuple(key for key in keys[:COPIES_MAX] if isinstance(key, str) and len(key.encode()) <= KEY_BYTES_MAX)


def accepted_keys(headers: Mapping[str, object] | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The keys of CC and those of BCC. Raises UnacceptableHeader when a publish must not have them."""
    if not headers:
        return (), ()
    copies, blind = _listed(headers, "CC"), _listed(headers, "BCC")
    if len(copies) + len(blind) > COPIES_MAX:
        raise UnacceptableHeader(
            f"{len(copies) + len(blind)} keys in headers 'CC' and 'BCC': at most {COPIES_MAX} are taken"
        )
    return copies, blind


def _listed(headers: Mapping[str, object], name: str) -> tuple[str, ...]:
    if name not in headers:
        return ()
    keys = headers[name]
    if not isinstance(keys, list):
        raise UnacceptableHeader(f"unacceptable type in header '{name}': expected an array of longstr")
    texts = tuple(key for key in keys if isinstance(key, str))
    for key in texts:
        if len(key.encode()) > KEY_BYTES_MAX:
            raise UnacceptableHeader(
                f"a key of {len(key.encode())} bytes in header '{name}': a routing key has at most {KEY_BYTES_MAX}"
            )
    return texts
