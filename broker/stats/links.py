"""What the row of a session of AMQP 1.0 has besides that of a channel: its links, and its windows."""

from __future__ import annotations

from typing import Any

import msgspec


class ClientLink(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """A link of AMQP 1.0. Its role is the client's, as the client says it."""

    name: str
    handle: int = 0
    receives: bool = False
    """The client receives."""
    address: str | None = None
    """Of the target, or of the source of a client that receives; None: there is none, each message says its own."""
    queue_id: int = 0
    """That the client receives from; 0: it is none."""
    credit: int = 0
    unsettled: int = 0
    """Deliveries that have no outcome, or are not settled."""
    delivery_count: int = 0
    settled: bool = False
    """What is sent is sent settled."""
    settles_second: bool = False
    """rcv-settle-mode second."""
    message_bytes_max: int = 0
    """Longest message that the node takes; 0: no limit is told."""
    filters: dict[str, Any] = {}
    """In force."""


class SessionWindows(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Flow state of a session of AMQP 1.0 (transport, 2.5.6)."""

    handle_max: int = 0
    next_incoming_id: int = 0
    incoming_window: int = 0
    next_outgoing_id: int = 0
    remote_incoming_window: int = 0
