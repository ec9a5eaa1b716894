"""How a message returns to its queue, beyond a plain requeue."""

from __future__ import annotations

from typing import NamedTuple


class Modification(NamedTuple):
    """How a message returns whose consumer says more than that (AMQP 1.0: modified)."""

    counted: bool
    """The consumer failed at it."""
    link: str = ""
    """The consumer's link (`LocalConsumer.link`), which never gets it again; empty: everybody may."""
    change: bytes = b""
    """Annotations that the message has from now on (`content.changes`)."""
