"""The connection as its channels, its handshake and its portions (`dividing`) see it."""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

from clusterbroker.broker.access.authorization import Authorization
from clusterbroker.broker.fronts.amqp091.state import State
from clusterbroker.broker.node.clients import ClientCore
from clusterbroker.broker.node.core import Node
from clusterbroker.broker.node.vhost import VirtualHost
from clusterbroker.broker.wire.amqp091.codec import FrameDecoder, OutBuffer, Published
from clusterbroker.broker.wire.amqp091.errors import AmqpError
from clusterbroker.broker.wire.amqp091.layout import Method


class ConnectionCore(ClientCore, Protocol):
    """`connection.Connection`, which explains its attributes."""

    access: Authorization
    capabilities: dict[str, Any]
    channel_max: int
    channels: dict[int, Any]
    client_properties: dict[str, Any]
    decoder: FrameDecoder
    divided: Published | None
    exclusive_queues: bool
    heartbeat_s: int
    looks: bool
    loopback: bool
    mechanism: str
    node: Node
    opened_at_ms: int
    out: OutBuffer
    parked_bytes: int
    peer_identity: str | None
    rest: deque[Any] | None
    state: State
    until: int

    @property
    def proved(self) -> bool: ...

    @property
    def vhost(self) -> VirtualHost | None: ...

    def handle(self, event: Any) -> None: ...

    def take_up(self, event: Any) -> None: ...

    def send(self, channel: int, method: Method) -> None: ...

    def fail(self, error: AmqpError, channel: int = 0) -> None: ...

    def channel_gone(self, channel: Any) -> None: ...

    def authenticated(self, access: Authorization) -> None: ...

    def refused(self, text: str) -> None: ...

    def rights_renewed(self) -> None: ...
