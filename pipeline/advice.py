"""What to change when a broker says no, or none answers: the broker knows its side, and this the options. Pure."""

from __future__ import annotations

import re
from typing import Final

_REFUSED: Final = (
    (r"Login was refused", "look at the options username, password and passwordFile"),
    (r"vhost .* not found", "look at the option vhost"),
    (r"access to .* refused for user", "an administrator may give it the right; else take another `username`"),
    (r"no exchange ", "declare it, or look at the options exchange and deadLetterExchange, and the column exchange"),
    (r"no queue ", "declare it, or look at the options stream, queue and vhost"),
    (
        r"message size .* is larger than",
        "set maxMessageBytes to what the broker takes, and such a row is a bad row (onRowError)",
    ),
    (r"in header 'B?CC'|invalid header 'x-", "leave it out of the column headers, whose values are texts"),
    (r"is no stream", "read it with the options queue and consumerName, or name a stream"),
    (r"is read by offsets, and not leased", "read it with the option stream in the place of queue"),
    (r"is leased by", "read it with that consumerName, or wait until its lease has ended"),
    (r"a lease needs it alone", "stop its other consumers first"),
    (r"was taken over by run", "another query runs with this consumerName: give each its own queue, and its own name"),
    (r"unknown exchange type 'x-staging'", "this broker has no transactions: set deliveryGuarantee to at-least-once"),
)
_LOST: Final = (
    (r"WRONG_VERSION_NUMBER", "does this port speak TLS? See the option tls"),
    (r"CERTIFICATE_VERIFY_FAILED", "see the option tls.caFile, and the host's name in endpoints"),
    (r"Name or service not known|Connection refused|timed out|No route", "do the nodes run, and are endpoints right?"),
)


def of_refusal(text: str) -> str:
    """To be put behind what the broker said: empty when there is nothing to add."""
    return _first(_REFUSED, text)


def of_loss(text: str) -> str:
    return _first(_LOST, text)


def _first(known: tuple[tuple[str, str], ...], text: str) -> str:
    return next((f": {hint}" for pattern, hint in known if re.search(pattern, text)), "")
