"""The role of a member of a cluster, as the node and its shell use it (`part.Part` is the one that there is)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import msgspec

from clusterbroker.broker.node.alarms import AlarmsOfNodes
from clusterbroker.broker.node.arrears import Arrears
from clusterbroker.broker.node.copying import Copying
from clusterbroker.broker.node.effects import Group
from clusterbroker.broker.node.hub import Hub, Payload
from clusterbroker.broker.node.mistakes import Mistakes
from clusterbroker.broker.node.occupancy import OccupancyOfNodes
from clusterbroker.broker.node.ports import MemberCore, NodeCore
from clusterbroker.broker.node.relay import Relay
from clusterbroker.broker.node.relaying import Relaying
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.remote.remote_queues import RemoteQueues
from clusterbroker.cluster.wiring import changes
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from clusterbroker.journal.record import GroupWriter


class MemberRole(MemberCore, Protocol):
    """All of a node that a node which is alone does not have."""

    name: str
    leased: bool
    registered: bool
    hub: Hub
    relay: Relay
    relaying: Relaying
    proxies: RemoteQueues
    mistakes: Mistakes
    alarms: AlarmsOfNodes
    occupancy: OccupancyOfNodes
    backlog: Callable[[str], int]
    tell: Callable[[str, Mapping[str, Any]], None]

    @property
    def node(self) -> NodeCore: ...

    @property
    def arrears(self) -> Arrears: ...

    @property
    def copying(self) -> Copying: ...

    # -- changes of the wiring

    def declared(self, entity: QueueEntity, ring: Ring | None = None, found: bool = False) -> None: ...

    def deleted(self, entity: QueueEntity) -> None: ...

    def owner_changed(self, change: changes.OwnerChanged) -> None: ...

    def in_sync_changed(self, change: changes.InSyncChanged) -> None: ...

    def replicas_changed(self, change: changes.ReplicasChanged) -> None: ...

    def copy_lost(self, change: changes.CopyLost) -> None: ...

    def member_changed(self, change: changes.MemberChanged) -> None: ...

    def member_forgotten(self, change: changes.MemberForgotten) -> None: ...

    def changed(self) -> None: ...

    # -- the turn

    @property
    def at_rest(self) -> bool: ...

    @property
    def next_wake_ms(self) -> int | None: ...

    def go_on(self) -> None: ...

    def turn(self, now_ms: int) -> bool: ...

    def tick(self, now_ms: int) -> None: ...

    # -- the journal

    @property
    def copies_wait(self) -> bool: ...

    def may_write(self, queue: LocalQueue) -> bool: ...

    def cut(self, group: int, now_ms: int) -> list[int]: ...

    def write_copies(self, writer: GroupWriter, group: int) -> bool: ...

    def group_durable(self, group: Group, now_ms: int) -> None: ...

    # -- links, lease, hand-overs

    def linked(self, peer: str, session: int) -> None: ...

    def unlinked(self, peer: str) -> None: ...

    def lease(self, leased: bool) -> None: ...

    def send(self, node: str, head: msgspec.Struct, payload: Iterable[Payload] = ()) -> bool: ...

    def room(self, node: str) -> int: ...

    def hand_over(self, queue_id: int, to: str) -> bool: ...
