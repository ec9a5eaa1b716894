"""A look for a header's name without decoding: the specification of `broker/content/headers.pyx`."""

from __future__ import annotations

from clusterbroker.journal.layout import HAS_HEADERS
from tests.model.record import Message


def may_have_header(message: Message, name: bytes) -> bool:
    """Whether a header of this name may be there. Errs on the careful side: a value with the same bytes is taken for
    it, and of a format but AMQP 0-9-1's nothing is known here."""
    return bool(message.format or (message.flags & HAS_HEADERS and name in message.header))
