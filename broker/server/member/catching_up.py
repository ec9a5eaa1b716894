"""A start until the node's map has reached the others' (waits).

The node proposes a command that changes nothing; when it has been applied here, so has everything before it. Until
then the node waits for links and for a majority, and reports every few seconds what it waits for. It gives up when
waiting is of no use: no member is linked, and every answer is a refusal (another secret or cluster, a used name, a
forgotten member). Before it registers, it also waits until the leader answers one of its beats, which come as
datagrams or over the link.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from clusterbroker.broker.server.endings import Unstarted, come
from clusterbroker.cluster.errors import Unavailable
from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.link.hello import CONTROL
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.map import Applied

if TYPE_CHECKING:
    from clusterbroker.broker.server.member.roster import Roster
    from clusterbroker.broker.server.ports import ClusterPort, ServerPort

LOOK_S: Final = 0.5
TELL_S: Final = 5.0
DIAL_ALL_S: Final = 1.5
UNWANTED_S: Final = 4.0
NOTHING: Final = c.DeleteParameter(vhost="", component="clusterbroker", name="nothing")
"""A command that changes nothing: a member that has applied it has applied everything before it."""


class CatchingUp:
    """One start of one node."""

    def __init__(self, cluster: ClusterPort, shell: ServerPort, roster: Roster) -> None:
        self._cluster = cluster
        self._roster = roster
        self._shell = shell
        self._command: c.DeleteParameter | None = None
        """The awaited command; barriers propose NOTHING itself, and old ones are applied before `wait` begins."""
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def applied(self, applied: Applied) -> None:
        """A command was applied here."""
        if applied.command == self._command and not self._done.done():
            self._done.set_result(None)

    async def wait(self) -> None:
        """Returns when the map is current. Raises Unstarted, or what ended the node meanwhile."""
        # with the disk's id: a namesake of a former member counts its starts anew, and reads that member's commands
        command = replace(NOTHING, name=f"{self._cluster.raft.me_id} {self._cluster.raft.session}")
        self._command = command
        done = self._done

        def on_outcome(applied: Applied) -> None:
            # applied here is enough: a dead member applies nothing, and is failed only later
            if isinstance(applied.error, Unavailable) and not done.done():
                self._cluster.raft.propose(command, on_outcome)

        began_s = said_s = self._shell.loop.time()

        def look() -> None:
            nonlocal said_s
            now_s = self._shell.loop.time()
            self._cluster.waits = self._waits_for()
            if now_s - said_s >= TELL_S:
                said_s = now_s
                self._cluster.log_line("waits", self._cluster.waits)
            self._give_up_if_unwanted(now_s - began_s)

        self._cluster.waits = self._waits_for()
        self._cluster.raft.propose(command, on_outcome)
        await come(done, self._shell.ended, look, LOOK_S)

    async def beat_answered(self) -> None:
        """Waits until the leader answers a beat of this node: else the node would be failed and begin again, for ever.
        Not for a new name or a new address: beats are answered at the known address, which registration changes."""
        cluster = self._cluster
        known = cluster.raft.map.member(NodeId(cluster.name))
        if known is None or not known.incarnation or known.address != cluster.address:
            return
        answered: asyncio.Future[None] = self._shell.loop.create_future()
        cluster.heart.ask(lambda: answered.set_result(None))

        def look() -> None:
            leader = cluster.raft.leader or "a leader"
            cluster.waits = f"for {leader} to answer its beats, by UDP or over a link: the cluster ports must be open"
            cluster.log_line("waits", cluster.waits, level="warning")

        await come(answered, self._shell.ended, look, TELL_S)

    def _give_up_if_unwanted(self, waited_s: float) -> None:
        """No member is linked, and all answers are refusals: waiting is of no use. Raises Unstarted."""
        peers = [name for name in self._roster.reached if name != self._cluster.name]
        if any(self._cluster.mesh.session(peer, CONTROL) is not None for peer in peers):
            return
        if waited_s >= DIAL_ALL_S and not self._cluster.mesh.dial_all:
            self._cluster.mesh.dial_all = True  # perhaps the others have another address of this node
            self._roster.reach(self._roster.reached)
        objections = {peer: why for peer in peers if (why := self._cluster.mesh.objection(peer)) is not None}
        if waited_s >= UNWANTED_S and objections:
            peer, why = min(objections.items())
            raise Unstarted(f"{peer} at {self._roster.reached[peer]}: {why}")

    def _waits_for(self) -> str:
        missing = self._cluster.raft.waiting_for
        if missing:
            return f"to be founded the cluster needs {', '.join(missing)}{self._troubles(missing)}"
        return f"for a majority of the members{self.troubles()}"

    def troubles(self) -> str:
        """Reasons of missing links, in brackets; empty when no link failed."""
        return self._troubles(name for name in self._roster.reached if name != self._cluster.name)

    def _troubles(self, peers: Iterable[str]) -> str:
        lines = [f"{peer}: {why}" for peer in peers if (why := self._cluster.mesh.trouble(peer))]
        return f" ({'; '.join(lines)})" if lines else ""
