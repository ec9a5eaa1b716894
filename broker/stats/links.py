"""Links of AMQP 1.0: what the row of a session has of them besides that of a channel, and rows of links whose clients
are away.

    attached                                  a part of its session's row, told by its node
    suspended, kept by its session or node    SuspendedRow, told by that node
    suspended, kept by logs                   the cluster's map says which; RecoverableRow, told by the owners of its
                                              queues, and by the node that leads: since when

Members below feature level 4 cannot read these rows, so they are told from that level on.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal

import msgspec

Level = Literal["none", "session", "node", "log"]
"""What keeps a link's state when its client goes: its session, its node, the logs of its queues."""


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
    level: Level = "none"
    expiry_policy: str = ""
    timeout_s: int = 0
    attached_at_ms: int = 0
    """Of a recoverable one; 0: not told."""


class SessionWindows(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Flow state of a session of AMQP 1.0 (transport, 2.5.6)."""

    handle_max: int = 0
    next_incoming_id: int = 0
    incoming_window: int = 0
    next_outgoing_id: int = 0
    remote_incoming_window: int = 0


_FILTER: Final = re.compile(" filter:[0-9a-f]{32}$")


def address_of(terminus: str) -> str:
    """The address in a recoverable link's terminus, which may end with the digest of a filter
    (`recoverable_receiver.terminus_of`)."""
    return _FILTER.sub("", terminus)


class SuspendedRow(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True, tag="suspended"):
    """A suspended link in the memory of the node that tells."""

    vhost: str
    container: str
    name: str
    receives: bool
    """The client receives."""
    user: str
    """Its principal (`authorization.principal`)."""
    level: Level
    address: str | None = None
    queue_id: int = 0
    """That the client receives from; 0: it is none."""
    unsettled: int = 0
    """Deliveries that are held, or of which the client may ask."""
    since_ms: int = 0
    """Wall clock."""
    expires_ms: int = 0
    """Wall clock; 0: its time does not run."""
    expiry_policy: str = ""
    timeout_s: int = 0

    @property
    def key(self) -> tuple[str | int, ...]:
        return ("suspended", self.vhost, self.container, self.name, int(self.receives), self.user)


class RecoverableRow(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True, tag="recoverable"):
    """What one node knows of a recoverable link, whose identity is in the cluster's map."""

    link: int
    """Its number."""
    queue_id: int = 0
    """Told by the queue's owner; 0: told by the node that leads, of a suspended link."""
    unsettled: int = 0
    """Deliveries that the queue knows of the link."""
    since_ms: int = 0
    """Wall clock; when the node that leads saw it suspended."""
    expires_ms: int = 0
    """Wall clock; 0: never."""
    of_queue_id: int = 0
    """With queue_id 0: the queue that it receives from, or sends to; 0: an exchange, or none that there is."""

    @property
    def key(self) -> tuple[str | int, ...]:
        return ("recoverable", self.link, self.queue_id)
