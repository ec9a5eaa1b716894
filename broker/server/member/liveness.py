"""A member's liveness: its heart, probes of lost peers, and the leader's treatment of silent ones (waits).

The heart gets node, links and metadata log from here, and reports its changes here. A lost link starts a probe of the
peer's port, whose result goes to the leader, which counts: a dead process is reported long before its lease ends.

Two signs together prove a death: two connects to the peer's port are refused, as they are when its process is gone and
its machine is not; and no beat of it has come, by any way, for three beats and for as long as it may rely on this
node's word (`cluster.liveness.contact`). A node with both signs gives the peer up and tells the leader, which fails it
when a majority of the voters has done so. An election does no harm: a leader whose port refuses is followed at once. A
peer that beats again after that is taken back.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final

from clusterbroker.broker.server.client import cut_off_slow
from clusterbroker.cluster.ids import Incarnation, NodeId
from clusterbroker.cluster.link.frames import encode
from clusterbroker.cluster.link.hello import CONTROL
from clusterbroker.cluster.liveness.contact import SETTLED_S, Verdicts
from clusterbroker.cluster.liveness.frames import GivenUp, Posted
from clusterbroker.cluster.liveness.heart import Heart, HeartOptions
from clusterbroker.cluster.liveness.lease import LeaseOptions, LeaseState
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.entities import Member

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from clusterbroker.broker.server.ports import ClusterPort, ServerPort
    from clusterbroker.cluster.liveness.beats import BeatCodec
    from clusterbroker.cluster.liveness.heart import Heart

STAND_BACK_S: Final = 3.0
"""So long a deaf leader leaves the election to the others; renewed each second."""
BLOCKED: Final = "udp.blocked"
LOOK_S: Final = 1.0
WAIT_S: Final = 0.01
AGAIN_S: Final = 0.05
PROBES_MAX: Final = 5


class Liveness:
    """Of one member, from its start to its end (HeartOwner)."""

    def __init__(self, cluster: ClusterPort, shell: ServerPort, codec: BeatCodec, cut_off_s: float) -> None:
        """`cut_off_s`: so long after its lease the node ends its clients' connections."""
        self._cluster = cluster
        self._shell = shell
        self._probes = Probes(cluster, self)
        self._verdicts = Verdicts()
        self._failing: set[tuple[str, int, int]] = set()  # with the term in which FailNode was proposed
        self._voters_at_s = -math.inf
        self._voters: tuple[NodeId, ...] = ()
        self._blocked: list[str] = []
        self._guard: asyncio.TimerHandle | None = None
        self._deaf = False
        self.submitted_s: float | None = None
        """Since when a group commit is with the disk."""
        options = HeartOptions(LeaseOptions(fence_s=cut_off_s))
        self.heart = Heart(cluster.name, codec, self, options, time_ms=shell.clock.now_ms)

    async def close(self) -> None:
        self._probes.close()
        if self._guard is not None:
            self._guard.cancel()
        await self.heart.close()

    # -- links and voters -------------------------------------------------------------------------------------

    def unlinked(self, peer: str, channel: str) -> None:
        """The link ended: its process may be dead, and its next one may be another incarnation."""
        if channel == CONTROL:
            self._verdicts.lost(peer)
            self._guard_slow()
        self._probes.begin(peer)

    def _guard_slow(self) -> None:
        """Without links to a majority another leader may deliver as soon as contact is over: a client that has not read
        by then what was written is cut off. With links, contact is late for another reason, and no client is."""
        linked = sum(voter == self._cluster.name or self.linked(str(voter)) for voter in self._voters)
        if linked * 2 > len(self._voters) or not self.heart.leased():
            return
        if (left_s := self.heart.contact_left_s()) == 0:
            cut_off_slow(self._shell.clients.values())
        elif left_s < math.inf and self._guard is None:
            self._guard = self._shell.loop.call_later(left_s + 0.001, self._guard_again)

    def _guard_again(self) -> None:
        self._guard = None
        self._guard_slow()

    def came(self, peer: str, message: Posted | GivenUp) -> None:
        """Over the control link."""
        if isinstance(message, Posted):
            self.heart.came_by_link(peer, message.data)
        elif message.term == self._cluster.raft.term:
            self.judged(peer, message)

    def voters(self) -> bool:
        """Whether the voters have changed since the last call."""
        raft = self._cluster.raft
        if not raft.voters_settled:
            self._voters_at_s = self._shell.loop.time()
        if raft.voters == self._voters:
            return False
        # a start knows no earlier change of the voters, except that there was none
        first = not self._voters and raft.voters_founded
        self._voters = raft.voters
        self._voters_at_s = -math.inf if first else self._shell.loop.time()
        self.heart.set_voters(str(voter) for voter in self._voters)
        return True

    def led(self) -> None:
        """Another leader, or another term."""
        self._verdicts.clear()
        self._failing.clear()
        self.heart.stepped_down()

    # -- members given up -------------------------------------------------------------------------------------

    def judged(self, voter: str, verdict: GivenUp) -> None:
        """At the leader: a voter, perhaps this node, has given a member up, or takes that back."""
        name, incarnation = verdict.name, verdict.incarnation
        if verdict.taken_back:
            self._verdicts.taken_back(voter, name, incarnation)
        else:
            self._verdicts.given_up(voter, name, incarnation)
            self.judge(name, incarnation)

    def judge(self, name: str, incarnation: int) -> None:
        """At the leader: fails a member that a majority of the voters has given up."""
        raft = self._cluster.raft
        settled = self._shell.loop.time() >= self._voters_at_s + SETTLED_S
        key = name, incarnation, raft.term
        if not raft.is_leader or not settled or key in self._failing or self._cluster.has_data_link(name):
            return
        member = raft.map.member(NodeId(name))
        if member is None or not member.alive or member.incarnation != incarnation:
            return
        if self._verdicts.agreed(name, incarnation, map(str, self._voters)):
            self._failing.add(key)
            self.fail_member(name, incarnation)

    def report(self, member: Member, reported: object, taken_back: bool = False) -> object:
        """Reports to the present leader that this node has given a member up, unless `reported` (of the last call) is
        the same leader, term and link. Returns the next `reported`."""
        raft, mesh = self._cluster.raft, self._cluster.mesh
        leader, name, incarnation = raft.leader, str(member.name), int(member.incarnation)
        if leader is None:
            return None
        verdict = GivenUp(name, incarnation, raft.term, taken_back)
        if leader == self._cluster.name:
            here = (leader, raft.term)
            if here != reported or taken_back:
                self.judged(self._cluster.name, verdict)
            else:
                self.judge(name, incarnation)
            return here
        there = (leader, raft.term, mesh.session(leader, CONTROL))
        if there[-1] is not None and (there != reported or taken_back):
            mesh.send(leader, CONTROL, encode(verdict))
        return there

    def fail_member(self, name: str, incarnation: int) -> None:
        """Proposes its death."""
        self.heart.condemn(name, incarnation)
        self._cluster.raft.propose_in_term(c.FailNode(node=NodeId(name), incarnation=Incarnation(incarnation)))

    # -- datagrams that do not pass ---------------------------------------------------------------------------

    def blocked(self) -> list[str]:
        """A line for each direction in which datagrams do not pass, though both nodes are linked."""
        here = self._cluster.name
        return [
            f"no datagrams from {sender} arrive here: UDP is blocked from {sender} to {receiver}"
            if receiver == here
            else f"no datagrams of this node arrive at {receiver}: UDP is blocked from {sender} to {receiver}"
            for sender, receiver in self.heart.blocked()
        ]

    def look(self) -> None:
        """Each LOOK_S: an alert for each blocked direction."""
        alerts = self._shell.node.alerts
        now = {f"{sender} to {receiver}": (sender, receiver) for sender, receiver in self.heart.blocked()}
        for way, (sender, receiver) in now.items():
            alerts.set(
                BLOCKED, way, f"datagrams from {sender} do not arrive at {receiver}: let UDP pass between the cluster "
                "ports. Beats go over TCP meanwhile, where they wait behind other things"
            )  # fmt: skip
        for way in self._blocked:
            if way not in now:
                alerts.clear(BLOCKED, way)
        self._blocked = list(now)

    # -- the heart (HeartOwner) -------------------------------------------------------------------------------

    def applied_index(self) -> int:
        return self._cluster.raft.applied

    def committed_index(self) -> int:
        return self._cluster.raft.applied

    def term(self) -> int:
        return self._cluster.raft.term

    def stuck_since(self) -> float | None:
        return self.submitted_s

    def serves(self) -> bool:
        return bool(self._shell.clients)

    def quorum_round(self, then: Callable[[], None]) -> None:
        self._cluster.raft.quorum_round(then)

    def linked(self, peer: str) -> bool:
        return self._cluster.mesh.session(peer, CONTROL) is not None

    def post(self, peer: str, data: bytes) -> None:
        self._cluster.mesh.send(peer, CONTROL, encode(Posted(data)))

    def on_lease(self, state: LeaseState) -> None:
        self._cluster.lease_changed(state)

    def on_contact(self) -> None:
        self._shell.schedule()

    def on_suspected(self, peer: str, suspected: bool) -> None:
        self._cluster.log_line("suspected" if suspected else "heard", peer)

    def on_deaf(self, deaf: bool) -> None:
        if deaf:
            self._cluster.raft.abdicate(STAND_BACK_S)
        if deaf and not self._deaf:
            self._cluster.log_line("deaf", "this node led and hears no majority: another one shall lead", "warning")
        elif not deaf:
            self._cluster.log_line("deaf", "this node hears a majority again")
        self._deaf = deaf

    def on_overdue(self, peer: str, incarnation: int) -> None:
        """A member whose process is back, not yet registered, is failed after absent ones: the last member to be failed
        is the one that may still own a queue, and should be present."""
        if self._is_back(peer, incarnation):
            members = self._cluster.raft.map.alive_members()
            alive = [member.name for member in members if member.name not in (peer, self._cluster.name)]
            if any(self._cluster.mesh.session(name, CONTROL) is None for name in alive):
                return
        self.fail_member(peer, incarnation)

    def _is_back(self, peer: str, incarnation: int) -> bool:
        if peer == self._cluster.name:
            return not self._cluster.registered
        hello = self._cluster.mesh.hello(peer)
        return hello is not None and hello.incarnation > incarnation


class Probes:
    """At most one for each peer."""

    def __init__(self, cluster: ClusterPort, liveness: Liveness) -> None:
        self._cluster = cluster
        self._liveness = liveness
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def begin(self, peer: str) -> None:
        if peer not in self._tasks:
            self._tasks[peer] = asyncio.get_running_loop().create_task(self._probe(peer))

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    async def _probe(self, peer: str) -> None:
        cluster = self._cluster
        try:
            member = cluster.raft.map.member(NodeId(peer))
            for _ in range(PROBES_MAX):
                if (found := await cluster.mesh.probe(peer)) == "refused" or cluster.has_data_link(peer):
                    break
                await asyncio.sleep(AGAIN_S)  # a dying process on a busy machine accepts or resets for a while
            if found != "refused":
                return
            cluster.raft.peer_gone(NodeId(peer))
            if member is None or not member.alive:
                return
            while not self._liveness.heart.give_up(peer, member.incarnation):
                if self._is_over(member) or cluster.has_data_link(peer):
                    return
                await asyncio.sleep(WAIT_S)
            await self._given_up(member)
        finally:
            del self._tasks[peer]

    async def _given_up(self, member: Member) -> None:
        peer, reported = str(member.name), None
        while not self._is_over(member):
            if self._liveness.heart.spoke_since(peer) or self._cluster.has_data_link(peer):
                self._liveness.report(member, reported, taken_back=True)
                # a proposal of the leader's from before that report is applied when the barrier is
                await self._cluster.barrier()
                self._liveness.heart.take_back(peer, member.incarnation)
                return
            reported = self._liveness.report(member, reported)
            await asyncio.sleep(WAIT_S)

    def _is_over(self, member: Member) -> bool:
        now = self._cluster.raft.map.member(member.name)
        return now is None or not now.alive or now.incarnation != member.incarnation
