"""The connection as its sessions, its login and its rows see it, and a session as its links see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from clusterbroker.broker.access.authorization import Authorization
from clusterbroker.broker.access.publisher import Publisher
from clusterbroker.broker.fronts.amqp10.addresses import Target
from clusterbroker.broker.fronts.amqp10.delivery import SessionLedger
from clusterbroker.broker.fronts.amqp10.outcomes import Outcomes
from clusterbroker.broker.node.backpressure import Backpressure
from clusterbroker.broker.node.clients import ClientCore
from clusterbroker.broker.node.core import Node
from clusterbroker.broker.node.counts import ChannelCounts
from clusterbroker.broker.node.links import Identity
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.routing.router import Route
from clusterbroker.broker.wire.amqp091.codec import OutBuffer
from clusterbroker.broker.wire.amqp10.codec import FrameDecoder
from clusterbroker.broker.wire.amqp10.errors import Amqp10Error, LinkError
from clusterbroker.broker.wire.amqp10.performatives import Attach, Composite, Flow
from clusterbroker.journal.record import Message

NOTHING: Final[dict[str, Any]] = {}
"""Of a connection that has no such things: there may be very many. It stays empty."""


class ConnectionCore(ClientCore, Protocol):
    """`connection.Connection`, which explains its attributes."""

    access: Authorization
    container_id: str
    decoder: FrameDecoder
    dynamic_nodes: dict[str, Any]
    exclusive_queues: bool
    loopback: bool
    mechanism: str
    node: Node
    opened_at_ms: int
    out: OutBuffer
    peer_channel_max: int
    peer_identity: str | None
    properties: dict[str, Any]
    sessions: dict[int, Any]
    suspended: dict[Identity, Any]

    @property
    def heartbeat_s(self) -> int: ...

    @property
    def holds_publishers(self) -> bool: ...

    def send(self, channel: int, performative: Composite) -> None: ...

    def channel_gone(self, channel: Any) -> None: ...

    def in_turns(self, step: Callable[[], bool]) -> None: ...


class SessionCore(Protocol):
    """`session.Session`, which explains its attributes."""

    access: Authorization
    closing: bool
    connection: ConnectionCore
    consumers: dict[str, Any]
    counts: ChannelCounts
    deadlines: list[Callable[[int], bool]]
    ledger: SessionLedger
    links: dict[int, Any]
    number: int
    outcomes: Outcomes
    publisher: Publisher
    reply_key: str
    table: Any
    transactions: Any

    @property
    def backpressure(self) -> Backpressure: ...

    @property
    def holds_publishers(self) -> bool: ...

    @property
    def is_transactional(self) -> bool: ...

    def send(self, performative: Composite) -> None: ...

    def want_send(self) -> None: ...

    def eased(self) -> None: ...

    def flow(
        self,
        handle: int | None = None,
        delivery_count: int | None = None,
        link_credit: int | None = None,
        *,
        drain: bool = False,
        echo: bool = False,
    ) -> Flow: ...

    def identity(self, name: str, role: bool) -> Identity: ...

    def flush_confirms(self) -> None: ...

    def carry_out(self, entries: Sequence[Any], outcome: Composite) -> None: ...

    def cut(self, link: Any, error: Amqp10Error) -> None: ...

    def refuse(self, attach: Attach, error: LinkError) -> None: ...

    def review_rights(self) -> None: ...

    def route(self, place: Target, address: bytes) -> Route[QueueHandle]: ...

    def place_of(self, message: Message) -> Target: ...


class LinkState(NamedTuple):
    """A link as operators are told of it."""

    address: str | None
    """None: each message says its own, or the link is not attached yet."""
    credit: int = 0
    unsettled: int = 0
    delivery_count: int = 0


Detached = Callable[[Amqp10Error | None], None]
"""Answers a detach; with an error for what was asked for with it and could not be done."""


class Terminus(Protocol):
    """A node whose life depends on its links."""

    def left(self, link: Any) -> None:
        """A link to it is over, for whatever reason."""

    def detached(self, closed: bool, then: Detached) -> None:
        """The client has detached a link (`closed`: for ever); `then` answers."""
