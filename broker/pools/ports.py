"""The node, as the queues of worker pools see it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from clusterbroker.broker.pools.events import Event
from clusterbroker.broker.pools.known import Started
from clusterbroker.broker.pools.messages import GroupTold, StartsFail, WorkerTold
from clusterbroker.broker.pools.places import Place
from clusterbroker.broker.pools.telling import TellPace
from clusterbroker.broker.pools.times import PoolTimes
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.queues.local_queue import Host
from clusterbroker.cluster.wiring.commands import AnyCommand
from clusterbroker.cluster.wiring.map import Applied
from clusterbroker.cluster.wiring.pool_entities import Pool
from clusterbroker.cluster.wiring.view import ClusterView


class QueuesOfVhost(Protocol):
    """A virtual host."""

    @property
    def queues(self) -> Mapping[str, QueueHandle]: ...


class Events(Protocol):
    """Of pools that tell them."""

    def tell(self, pool_id: int, event: Event) -> None:
        """If this pool does."""


class Desk(Protocol):
    """What the node knows of pools, and whom it tells."""

    @property
    def places(self) -> Mapping[str, Place]:
        """By the names of their nodes."""

    @property
    def events(self) -> Events: ...

    @property
    def pace(self) -> TellPace:
        """Of what the node tells of groups."""

    @property
    def own_place(self) -> str:
        """This node's."""

    def tell_controller(self, told: GroupTold | WorkerTold) -> None:
        """Of a group, or a worker."""

    def tell_failure(self, told: StartsFail) -> None:
        """To all."""

    def failed(self, pool_id: int) -> Iterable[tuple[str, int, str]]:
        """Keys whose starts fail for now, as a controller has told: until when, and why."""

    def ask(self, pool_id: int) -> None:
        """A controller begins here: all tell what they know."""

    def started(self, pool: Pool, one: Started) -> None:
        """A worker's start is over, says its controller here."""

    def times(self, pool_id: int) -> PoolTimes:
        """What is counted here of a pool."""

    def others_bytes(self, pool_id: int) -> Mapping[str, int]:
        """Memory that is promised to workers of other pools, by place."""


class PoolLog(Protocol):
    """The node's (`broker.node.log`)."""

    def starts_fail(self, pool: Pool, key: str, for_s: int, why: str) -> None: ...

    def workers_leave(self, pool: Pool, revoked: bool, workers: Sequence[str], why: str) -> None: ...

    def worker_ready(self, pool: Pool, one: Started) -> None: ...

    def place_lost(self, pool: Pool, place: str, workers: int) -> None: ...


class PoolHost(Host, Protocol):
    """The node."""

    @property
    def log(self) -> PoolLog: ...

    @property
    def pool_desk(self) -> Desk: ...

    @property
    def map(self) -> ClusterView: ...

    @property
    def vhosts(self) -> Mapping[str, QueuesOfVhost]: ...

    def propose(self, command: AnyCommand, done: Callable[[Applied], None]) -> None: ...
