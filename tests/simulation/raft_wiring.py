"""The wiring by the real RaftLog: one at each node, over the control links, with a disk of its own.

What no node knows is known here: `RaftControl.map` is the fold of every command that any node has applied.
Beats go to every node; the leader answers them after a quorum round, as the Heart does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from clusterbroker.cluster.errors import Unavailable
from clusterbroker.cluster.ids import Incarnation, NodeId
from clusterbroker.cluster.liveness.lease import Grant, LeaseGranter
from clusterbroker.cluster.raft import identity
from clusterbroker.cluster.raft.messages import encode
from clusterbroker.cluster.raft.raft_log import RaftLog
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.balance import reconfigurations
from clusterbroker.cluster.wiring.levels import LEVEL
from clusterbroker.cluster.wiring.map import Applied, ClusterMap
from tests.simulation.checkers import Violation
from tests.simulation.network import BEATS, CONTROL
from tests.simulation.pulse import Judge, Verdict
from tests.simulation.raft.sim_disk import SimDisk

if TYPE_CHECKING:
    from tests.simulation.site import Site
    from tests.simulation.world import World

NOTHING = c.ClearPermission(user="", vhost="")
RAFT_TICK_S = 0.03
LEADER_S = 1.0
HOLD_S = 0.5
ABDICATE_S = 5.0


class RaftControl:
    """What a run knows and does about the wiring as a whole."""

    def __init__(self, world: World, founders: list[str], witness: str) -> None:
        self.world = world
        self.founders = [identity.Founder(NodeId(name), f"{name}:1", name == witness) for name in founders]
        self.map: ClusterMap = identity.founders_map(self.founders, LEVEL)
        self._log: dict[int, bytes] = {}
        """Commands by their index, as the first node applied them."""
        self.snapshot_every = world.schedule.rng.choice((60, 400))
        self.before_commit: Callable[[c.AnyCommand], bool] = lambda _command: False

    def ordered(self, applied: Applied) -> None:
        """Some node has applied it; the first time it is new to everybody."""
        told = c.encode(applied.command)
        if self._log.setdefault(applied.index, told) != told:
            raise Violation(f"I14SameMaps: another command at {applied.index}: {applied.command}")
        if applied.index > self.map.applied:
            self.world.checkers.ordered(self.map.apply(applied.index, applied.command))

    def commit(self, command: c.AnyCommand) -> None:
        """An operator orders something, through any node."""
        sites = [site for site in self.world.sites.values() if site.up and site.wiring.log is not None]
        if sites:
            site = self.world.schedule.rng.choice(sites)
            site.do(site.life, site.wiring.propose, command, None)

    def leader(self) -> Site | None:
        leading = [s for s in self.world.sites.values() if s.up and s.wiring.log is not None and s.wiring.log.is_leader]
        return max(leading, key=lambda site: int(site.wiring.log.term)) if leading else None

    def still_votes(self, site: Site) -> bool:
        """Whether the configuration has a member that left still; if it leads, another one has to."""
        log = site.wiring.log
        if log is not None and log.is_leader:
            site.do(site.life, log.abdicate, ABDICATE_S)
        leader = self.leader()
        return leader is None or NodeId(site.name) in leader.wiring.log.voters

    def waits_for_voice(self, site: Site) -> bool:
        """Whether its log was lost, and the configuration still has the voter that it was."""
        wiring, leader = site.wiring, self.leader()
        if wiring.lost and leader is not None and wiring.log is not None:
            voters = leader.wiring.log._core.voters
            if wiring.log.log_id == wiring.lost or f"{site.name}/{wiring.lost}" not in voters:
                wiring.lost = ""
        return bool(wiring.lost)

    def condemn(self, name: str, incarnation: int) -> None:
        """The port of a process refuses, and everybody else looks."""
        for site in self.world.sites.values():
            if site.name != name:
                site.do(site.life, site.wiring.peer_gone, name, incarnation)

    def elect(self, silence_s: float) -> None:
        """The leader stands still."""
        leader = self.leader()
        if leader is not None:
            leader.pause(silence_s)

    def cut_off(self, name: str, channels: tuple[str, ...] = (CONTROL, BEATS)) -> None:
        for other in self.world.sites:
            self.world.network.part(name, other, channels)

    def leading(self) -> str:
        """Where beats are answered, if anywhere."""
        leader = self.leader()
        return "" if leader is None else leader.name


class RaftWiring:
    """One node's log and leases."""

    def __init__(self, site: Site, control: RaftControl) -> None:
        self.site = site
        self.control = control
        self.disk = SimDisk(f"{site.name}.{site.disks}", site.world.schedule.rng)
        name = NodeId(site.name)
        if site.disks == 1 and any(founder.name == name for founder in control.founders):
            identity.found(self.disk, name, site.disk_id, control.founders)
        else:
            identity.join(self.disk, name, site.disk_id)
        self.log: RaftLog | None = None
        self.lost = ""
        """The id of its log that was lost, as long as that may vote."""
        self.granter = LeaseGranter()
        self._judge = Judge()
        self._leads = 0
        self._peers: dict[str, int] = {}

    @property
    def map(self) -> Any:
        return self.log.map if self.log is not None else ClusterMap()

    @property
    def log_id(self) -> str:
        assert self.log is not None, "who registers has a log"
        return self.log.log_id

    # -- the process

    def lose(self) -> None:
        """The log is gone, and the process is not there."""
        known = identity.read(self.disk)
        assert known is not None, "it was formatted"
        self.lost = self.lost or known.disk_id
        self.disk = SimDisk(self.disk.path, self.disk.rng)

    def stop(self, crash: bool) -> None:
        log, self.log = self.log, None
        self._peers.clear()
        if log is not None and not crash:
            log.close()
        elif crash:
            self.disk.crash()

    def start(self) -> None:
        site, schedule, life = self.site, self.site.world.schedule, self.site.life
        self.granter = LeaseGranter()
        self._judge = Judge()
        self._leads = 0

        def soon(call: Callable[[], object]) -> None:
            schedule.after(0.0001, self._run, life, call)

        def failed(error: Exception) -> None:
            raise Violation(f"raft: {site.name} stops: {error}")

        def diverged(peer: str, first: int, differs: bool) -> None:
            raise Violation(
                f"raft: {site.name} and {peer} differ in what came of the commands from {first} on: {differs}"
            )

        self.disk = site.directory.raft_disk(site.name, self.disk)
        self.log = RaftLog(
            self.disk,
            now_s=site.loop_s(),
            chance=schedule.rng.random,
            send=lambda peer, head: self._send(peer, encode(head)),
            call_soon=soon,
            on_failure=failed,
            on_diverged=diverged,
            on_restored=lambda _map: schedule.after(0, site.do, life, self._restored),
            on_leader=self._led,
            snapshot_every=self.control.snapshot_every,
            start=(site.disk_id, site.directory.number),
        )
        site.directory.list_raft(self.log.log_id)
        self.log.listen(self._applied)
        schedule.after(RAFT_TICK_S, self._tick, life)
        self._catch_up()

    def _run(self, life: int, call: Callable[[], object]) -> None:
        self.site.do(life, self._call, call)

    def _call(self, call: Callable[[], object]) -> None:
        if self.log is not None:
            self.log.advance(self.site.loop_s())
        call()
        self._advanced()

    def _catch_up(self) -> None:
        """Waits until a command that changes nothing has come back."""
        assert self.log is not None, "it was just opened"
        life = self.site.life

        def told(applied: Applied) -> None:
            if isinstance(applied.error, Unavailable):
                self.site.world.schedule.after(0.1, self.site.do, life, self._catch_up)
            else:
                self.site.world.schedule.after(0, self.site.do, life, self.site.caught_up)

        self.log.propose(NOTHING, told)

    def _restored(self) -> None:
        if self.site.node is not None:
            self.site.world.schedule.counts["restored"] += 1
            self.site.begin_again()

    def _tick(self, life: int) -> None:
        if life == self.site.life and self.site.up:
            self.site.world.schedule.after(RAFT_TICK_S, self._tick, life)
            self.site.do(life, self._ticked)

    def _ticked(self) -> None:
        assert self.log is not None, "a process that runs has a log"
        if self.site.loop_s() >= self.log.next_tick_s:
            self.log.tick(self.site.loop_s())
        self._advanced()

    # -- what the site calls

    def propose(self, command: c.AnyCommand, done: Callable[[Applied], None] | None = None) -> None:
        self.site.world.schedule.after(0, self._offer, self.site.life, command, done)

    def _offer(self, life: int, command: c.AnyCommand, done: Callable[[Applied], None] | None) -> None:
        """Apart from the turn that proposes: a fault may end the process here."""
        if life != self.site.life:
            return
        if self.control.before_commit(command):
            self.site.world.schedule.after(HOLD_S, self._offer, life, command, done)
        else:
            self.site.do(life, self._propose, command, done)

    def _propose(self, command: c.AnyCommand, done: Callable[[Applied], None] | None) -> None:
        assert self.log is not None, "a process that runs has a log"
        self.log.propose(command, done)

    def beat(self, incarnation: int, seq: int, rely_s: float = 0.0) -> None:
        assert self.log is not None, "who beats has a log"
        applied = int(self.log.map.applied)
        for member in self.log.map.members():
            if member.name != self.site.name:
                self.site.world.network.cast(self.site.name, member.name, (incarnation, seq, applied, rely_s))
        self._beaten(self.site.name, incarnation, seq, applied, 0.0)

    def beaten(self, peer: str, message: Any) -> None:
        """A beat, or the answer to one."""
        if len(message) == 2:
            self.site.granted(*message)
        else:
            self._beaten(peer, *message)

    def tick(self) -> None:
        """Each 50 ms."""
        log, now_s = self.log, self.site.boot_s()
        assert log is not None, "a process that runs has a log"
        self.site.pulse.set_voters(log.voters)
        self._judge.voters(log.voters if log.voters_settled else (), now_s)
        if not self._leads:
            return
        self.granter.committed(int(log.map.applied), now_s)
        self.granter.set_members({m.name: m.incarnation for m in log.map.alive_members()}, now_s)
        if self.site._beats % 2 == 0:
            for name, incarnation in self.granter.tick(now_s):
                self._fail(name, incarnation)
        if self.site._beats % int(LEADER_S / 0.05) == 0 and self.site.node is not None and self.site.role.registered:
            for command in reconfigurations(log.map):
                self.propose(command)

    def _fail(self, name: str, incarnation: int) -> None:
        self.propose(c.FailNode(node=NodeId(name), incarnation=Incarnation(incarnation)))

    def peer_gone(self, name: str, incarnation: int) -> None:
        if self.log is not None:
            self.log.advance(self.site.loop_s())
            self.log.peer_gone(NodeId(name))
            self.site.pulse.refused(name, incarnation)

    def verdict(self, name: str, incarnation: int, taken_back: bool, told: object) -> object:
        """Tells whoever leads, once in each term over each link; what was told."""
        log = self.log
        if log is None or log.leader is None:
            return None
        leader, verdict = str(log.leader), ("verdict", name, incarnation, taken_back)
        there = (leader, log.term, self._peers.get(leader))
        if leader == self.site.name:
            self._judged(leader, verdict)
        elif there[2] is not None and (there != told or taken_back):
            network = self.site.world.network
            if network.sessions.get((CONTROL, self.site.name, leader)) == there[2]:
                network.send(CONTROL, self.site.name, leader, (*verdict, log.term))
        return there

    def propose_now(self, command: c.AnyCommand, done: Callable[[Applied], None]) -> None:
        """After what was just said."""
        self._propose(command, done)

    def _judged(self, voter: str, verdict: Verdict) -> None:
        log = self.log
        _, name, incarnation, _ = verdict
        if log is None or not log.is_leader:
            return
        member = log.map.member(NodeId(name))
        current = member is not None and member.alive and member.incarnation == incarnation
        if self._judge.heard(voter, verdict, self.site.boot_s()) and current and name not in self.site.data_links:
            self.site.world.schedule.counts["given up"] += 1
            self.granter.condemn(name, incarnation)
            log.propose_in_term(c.FailNode(node=NodeId(name), incarnation=Incarnation(incarnation)))

    # -- links

    def _send(self, peer: str, message: Any) -> None:
        network = self.site.world.network
        if network.sessions.get((CONTROL, self.site.name, peer)) == self._peers.get(peer):
            network.send(CONTROL, self.site.name, peer, message)

    def peer_linked(self, peer: str, session: int) -> None:
        self.peer_unlinked(peer, self._peers.get(peer, 0))
        self._peers[peer] = session
        self._judge.verdicts.lost(peer)
        if self.log is not None:
            self.log.advance(self.site.loop_s())
            self.log.linked(NodeId(peer))

    def peer_unlinked(self, peer: str, session: int) -> None:
        if self._peers.get(peer) == session:
            del self._peers[peer]
            self._judge.verdicts.lost(peer)
            if self.log is not None:
                self.log.advance(self.site.loop_s())
                self.log.unlinked(NodeId(peer))

    def peer_received(self, peer: str, session: int, message: Any) -> None:
        if self._peers.get(peer) != session or self.log is None:
            return
        if isinstance(message, tuple):
            if message[-1] == self.log.term:
                self._judged(peer, message[:-1])
            return
        self.site.world.schedule.traced(message)
        try:
            self.log.advance(self.site.loop_s())
            self.log.received(NodeId(peer), message)
        except ValueError as error:
            raise Violation(f"raft: {self.site.name} hears of {peer}, who is right: {error}") from error
        self._advanced()

    def _beaten(self, peer: str, incarnation: int, seq: int, applied: int, rely_s: float) -> None:
        log = self.log
        if not incarnation:
            if self._leads and log is not None:
                self._answer(peer, 0, seq)
            return
        if peer != self.site.name and not self.site.pulse.beaten(peer, incarnation, seq, rely_s):
            return
        if not self._leads or log is None:
            return
        hears = peer == self.site.name or peer in self._peers
        self.granter.beat(Grant(peer, incarnation, seq), applied if hears else -1, self.site.boot_s())
        number = self.granter.round_wanted(self.site.boot_s())
        if number is not None:
            log.quorum_round(lambda: self._round_done(number))

    def _round_done(self, number: int) -> None:
        for grant in self.granter.round_done(number, self.site.boot_s()):
            self._answer(grant.name, grant.incarnation, grant.seq)

    def _answer(self, peer: str, incarnation: int, seq: int) -> None:
        if peer == self.site.name:
            self.site.granted(incarnation, seq)
        else:
            self.site.world.network.cast(self.site.name, peer, (incarnation, seq))

    def _led(self, leader: NodeId | None, term: int) -> None:
        self._leads = 0
        self._judge.verdicts.clear()
        self.granter.stepped_down()
        if leader != self.site.name or self.log is None:
            return
        log, life = self.log, self.site.life

        def told(_: Applied) -> None:
            if self.log is log and self.site.life == life and log.is_leader and log.term == term:
                self._leads = term
                now_s = self.site.boot_s()
                self.granter.set_members({m.name: m.incarnation for m in log.map.alive_members()}, now_s)
                self.granter.elected(term, now_s)
                self.site.world.schedule.counts["terms"] += 1

        self.site.world.schedule.after(0, self._run, life, lambda: log.propose(NOTHING, told))

    # -- the log

    _moved = False

    def _applied(self, applied: Applied) -> None:
        self.control.ordered(applied)
        self.site.applied(applied)
        self._moved = True

    def _advanced(self) -> None:
        if self._moved:
            self._moved = False
            self.site.advanced()
