"""The node as its parts use it: `shell.NodeShell` and `member.cluster_shell.ClusterShell` have all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from clusterbroker.broker.server.client import ClientOwner

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

    from clusterbroker.broker.node.clients import SocketCore
    from clusterbroker.broker.node.core import Node
    from clusterbroker.broker.server.alarms import Alarms
    from clusterbroker.broker.server.client import Client
    from clusterbroker.broker.server.control.protocol import Logins as LoginsOverHttp
    from clusterbroker.broker.server.listener import Listener
    from clusterbroker.broker.server.log import NodeLog
    from clusterbroker.broker.server.logins import Logins
    from clusterbroker.broker.server.options import ServerOptions
    from clusterbroker.broker.server.scrub import Scrub
    from clusterbroker.broker.server.storage import Storage
    from clusterbroker.broker.stats.bridges import BridgeRow
    from clusterbroker.broker.stats.inspection import Request, Result
    from clusterbroker.cluster.link.mesh import Mesh
    from clusterbroker.cluster.liveness.heart import Heart
    from clusterbroker.cluster.liveness.lease import LeaseState
    from clusterbroker.cluster.raft.raft_log import RaftLog
    from clusterbroker.cluster.wiring import commands as c
    from clusterbroker.cluster.wiring.entities import RecoverableLink
    from clusterbroker.cluster.wiring.map import Applied


class ServerPort(ClientOwner, Protocol):
    """A node with its loop, sockets and disk."""

    options: ServerOptions
    log: NodeLog
    clients: dict[SocketCore, Client]
    listeners: list[Listener]
    loop: asyncio.AbstractEventLoop
    node: Node
    storage: Storage
    alarms: Alarms
    logins: Logins
    ended: asyncio.Future[BaseException | None]
    accepting: bool
    connections_created: int
    started: bool
    retired: asyncio.Event
    scrub: Scrub | None
    link_ends: LinkEndsPort | None
    bridges: BridgesPort | None

    @property
    def cluster(self) -> ClusterPort | None: ...
    @property
    def control(self) -> ControlPort | None: ...
    @property
    def waits_for(self) -> str: ...
    @property
    def may_speak(self) -> bool: ...
    def schedule_unless_idle(self) -> None: ...
    def fail(self, error: BaseException) -> None: ...
    def receive_frame(self, peer: str, index: int, head: memoryview, payload: memoryview) -> None: ...
    def lease_changed(self) -> None: ...
    async def propose(self, command: Any) -> Applied: ...
    async def inspect(self, request: Request) -> Result: ...


class LinkEndsPort(Protocol):
    """Suspended links, as the node that leads sees them."""

    def since(self) -> Iterator[tuple[RecoverableLink, int]]: ...


class BridgesPort(Protocol):
    """Bridges of the cluster, as this node sees them."""

    def rows(self) -> list[dict[str, Any]]: ...
    def counted(self) -> list[BridgeRow]: ...
    def stop(self) -> None: ...


class ControlPort(Protocol):
    """The control socket, towards the management process."""

    @property
    def logins(self) -> LoginsOverHttp | None: ...
    def reload(self) -> None: ...


class ClusterPort(Protocol):
    """A member's links, heart and wiring log."""

    name: str
    address: str
    incarnation: int
    raft: RaftLog
    mesh: Mesh
    registered: bool
    leaving: bool
    caught_up: bool
    waits: str

    @property
    def heart(self) -> Heart: ...
    @property
    def draining(self) -> bool: ...
    def blocked(self) -> list[str]: ...
    def has_data_link(self, peer: str) -> bool: ...
    def stays(self) -> None: ...
    def turned(self) -> None: ...
    def lease_changed(self, state: LeaseState) -> None: ...
    def again(self, name: str, delay_s: float, what: Callable[[], None]) -> None: ...
    def log_line(self, event: str, text: str, level: str = "info") -> None: ...
    async def barrier(self) -> None: ...
    async def ordered(self, command: c.AnyCommand) -> Applied: ...
    async def hand_over_all(self, timeout_s: float, thoroughly: bool = False) -> tuple[int, int]: ...
