"""The node, and its part in a cluster, as those see them that need little of them.

`core.Node` and `member.MemberRole` say what the attributes mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from clusterbroker.broker.node.alerts import Alerts
from clusterbroker.broker.node.clients import ClientCore
from clusterbroker.broker.node.effects import Load, StreamLoad
from clusterbroker.broker.node.log import Log
from clusterbroker.broker.node.options import NodeOptions
from clusterbroker.broker.node.vhost import VirtualHost
from clusterbroker.broker.queues.effort import Effort
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.remote.owned_queues import OwnedQueues
from clusterbroker.broker.routing.labour import Labour
from clusterbroker.broker.transactions.moving import Moving
from clusterbroker.cluster.wiring.changes import Change
from clusterbroker.cluster.wiring.commands import AnyCommand, Bind
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from clusterbroker.cluster.wiring.map import Applied
from clusterbroker.cluster.wiring.pool_names import PoolNames
from clusterbroker.cluster.wiring.view import ClusterView
from clusterbroker.journal.layout import Location
from clusterbroker.journal.record import Message
from clusterbroker.replication.copying import Copying


class ArrearsCore(Protocol):
    """What is carried out later."""

    def settle(self, queue_id: int) -> object: ...


class MemberCore(Protocol):
    """The node's part in a cluster."""

    copying: Copying[LocalQueue, Ring]
    owned_queues: OwnedQueues

    @property
    def arrears(self) -> ArrearsCore: ...

    def minimum_changed(self, entity: QueueEntity) -> None: ...

    def owns(self, entity: QueueEntity) -> bool: ...


class HistoriesCore(Protocol):
    """Recent messages of exchanges."""

    def after(self, command: Bind, done: Callable[[Applied], None]) -> Callable[[Applied], None]: ...


class AsideCore(Protocol):
    """Who pays for mistakes."""

    def link(self, what: Callable[[], None]) -> None: ...

    def work(self, queue: QueueHandle, what: Callable[..., object], *given: Any) -> None: ...


class PoolsCore(Protocol):
    """Worker pools."""

    def answer(self, queue: LocalQueue, request: Message, number: int, ticket: Ticket) -> None: ...

    def delayed_by(self, entity: QueueEntity) -> PoolNames | None: ...

    def moved(self, queue: LocalQueue, message: Message) -> tuple[Message, Sequence[QueueHandle]] | None: ...


class NodeCore(Protocol):
    """The node."""

    alarms: dict[str, None]
    alarms_elsewhere: dict[str, tuple[str, ...]]
    alerts: Alerts
    clients: dict[str, ClientCore]
    congested: Mapping[Any, None]
    effort: Effort
    labour: Labour
    loads: list[Load | StreamLoad]
    log: Log
    map: ClusterView
    moving: Moving
    now_ms: int
    options: NodeOptions
    proposals: list[tuple[AnyCommand, Callable[[Applied], None]]]
    queues: dict[int, LocalQueue]
    stopwatch: Callable[[], int]
    throttled: bool
    touched: dict[Ring, None]
    unwritten_bytes: int
    urgent: bool
    vhosts: dict[str, VirtualHost]
    writes: dict[LocalQueue, None]

    @property
    def pools(self) -> PoolsCore: ...

    @property
    def histories(self) -> HistoriesCore: ...

    @property
    def newest_group(self) -> int: ...

    @property
    def role(self) -> MemberCore | None: ...

    @property
    def setting_aside(self) -> AsideCore: ...

    def fetch(
        self, queue: LocalQueue, locations: Sequence[Location], then: Callable[[Sequence[Message]], None],
        otherwise: Callable[[], None] = ...,
    ) -> None: ...  # fmt: skip

    def propose(self, command: AnyCommand, done: Callable[[Applied], None]) -> None: ...

    def react(self, change: Change) -> None:
        """Carries out one change of the wiring."""

    def set_alarms_elsewhere(self, node: str, names: tuple[str, ...]) -> None: ...

    def soon(self, goes_on: Callable[[], None]) -> None: ...

    def write(self, queue: LocalQueue) -> None: ...
