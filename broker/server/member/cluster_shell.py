"""A member's links, heart and metadata log: the shell of its role in a cluster (waits).

A start goes through these steps, and a node that was failed by the others begins again at the first one:

    open       the metadata log's directory (founded, joined or migrated), links, heart
    caught up  a command of its own has come back: its map is the others'
    recovered  the journal is read into replicas of the queues in the map (by the NodeShell)
    registered RegisterNode is applied: the node may lead queues
    leased     the leader has answered a beat: the node may send to clients

Control links carry the metadata log, and beats where datagrams do not pass; data links the frames of `broker.node.hub`.
Beats, leases, and members taken for dead: `liveness.py`. Addresses of the members: `roster.py`.
"""

from __future__ import annotations

import asyncio
import math
import random
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import clusterbroker.broker.node.member  # noqa: F401 - long to import, and once there are links the loop must not stand still
from clusterbroker.broker.server.client import cut_off_slow
from clusterbroker.broker.server.endings import Restart, Unstarted, come, ordered, proposed
from clusterbroker.broker.server.member.addresses import dialable, own_address
from clusterbroker.broker.server.member.catching_up import NOTHING, CatchingUp
from clusterbroker.broker.server.member.damage import REBUILDS, given_up, given_up_as, is_marked, unmark
from clusterbroker.broker.server.member.joining import Admission, join_first
from clusterbroker.broker.server.member.leaving import hand_over_all
from clusterbroker.broker.server.member.liveness import LOOK_S, Liveness
from clusterbroker.broker.server.member.log_batch import LogBatch
from clusterbroker.broker.server.member.raft_directory import RaftDirectory, must_know
from clusterbroker.broker.server.member.roster import Roster
from clusterbroker.broker.server.peer_census import PeerCensus
from clusterbroker.broker.version import VERSION
from clusterbroker.cluster.errors import LogFailure, LogWentBack, Unavailable
from clusterbroker.cluster.ids import Incarnation, NodeId
from clusterbroker.cluster.link.certificates import node_credentials
from clusterbroker.cluster.link.frames import encode
from clusterbroker.cluster.link.hello import CONTROL, DATA, Hello
from clusterbroker.cluster.link.hello import Identity as LinkIdentity
from clusterbroker.cluster.link.mesh import Mesh
from clusterbroker.cluster.link.secret import find_secret
from clusterbroker.cluster.liveness.beats import BeatCodec
from clusterbroker.cluster.liveness.frames import read
from clusterbroker.cluster.liveness.heart import Heart
from clusterbroker.cluster.liveness.lease import LeaseState
from clusterbroker.cluster.liveness.steady import steady
from clusterbroker.cluster.local_log import LocalLog
from clusterbroker.cluster.raft.identity import Founder
from clusterbroker.cluster.raft.raft_log import RaftLog
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.balance import reconfigurations, waits_for
from clusterbroker.cluster.wiring.changes import LevelRaised, MemberChanged, MemberForgotten
from clusterbroker.cluster.wiring.entities import Member
from clusterbroker.cluster.wiring.levels import FIRST, LEVEL, LEVELS
from clusterbroker.cluster.wiring.map import Applied

if TYPE_CHECKING:
    from clusterbroker.broker.node.core import Node
    from clusterbroker.broker.node.member import MemberRole
    from clusterbroker.broker.server.log import NodeLog
    from clusterbroker.broker.server.options import ClusterOptions
    from clusterbroker.broker.server.ports import ServerPort
    from clusterbroker.journal.errors import DamagedJournal

PART_TICK_S: Final = 0.05
RESTING_TICK_S: Final = 0.25
"""While there are no turns, and nothing that a tick looks at."""
TELL_S: Final = 5.0
LEADER_S: Final = 1.0
EMPTY: Final = "to become one, clusterbroker join with an empty data directory"
SILENT_MS_MAX: Final = 10_000
"""A data link without any frame of its peer, relayed lists included, for so long is dead, whatever the kernel says."""


class ClusterShell:
    """Links, heart and metadata log of one node. `raft.map` is the cluster's map."""

    def __init__(self, shell: ServerPort, directory: Path) -> None:
        options = shell.options.cluster
        assert options is not None, "a node of a cluster has a place in it"
        self._shell = shell
        self._options: ClusterOptions = options
        self._directory = directory
        self._loop = asyncio.get_running_loop()
        self._log: NodeLog = shell.log
        self.name = shell.options.node.name
        self.raft: RaftLog
        self.mesh: Mesh
        self.liveness: Liveness
        self.census: PeerCensus
        self.address = ""  # where the others shall reach this node
        self.incarnation = 0
        self.registered = self.leaving = self.caught_up = False
        self._postponed = ""  # why it should have begun again while it was leaving
        self.waits = "for its links"
        """What a start waits for."""
        self._node: Node | None = None
        self._data_links: dict[str, int] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._levelled_at: int | None = None  # the index of the map at which no replica set had to change
        self._leased: asyncio.Future[None] | None = None  # a start waits for the first lease
        self._leased_once = False
        self._raft_due_s = math.inf
        self._resting = False
        self._turned = False
        self._closed = False
        self.roster = Roster(self, options.dial, directory)
        self._catching_up = CatchingUp(self, shell, self.roster)
        self._log_batch = LogBatch(self._loop, self._log)
        self._admission = Admission(
            lambda: self.raft.map, self.ordered, lambda: self.registered and self.heart.leased(), self._send_control
        )

    @property
    def heart(self) -> Heart:
        return self.liveness.heart

    @property
    def _role(self) -> MemberRole | None:
        """None before the node has read its journal."""
        return None if self._node is None else self._node.role

    # -- start ------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Returns when the map is current. Raises Unstarted, BadSecret, WrongIdentity, OSError, LogFailure."""
        options = self._options
        secret = find_secret(options.secret_file)
        founders = [Founder(NodeId(name), where, witness) for name, where, witness in options.peers]
        await join_first(self, self._shell, self._directory)
        before = self.roster.recall()
        own = own_address(self.name, options.listen, options.peers, before)
        cluster_id = secret.founded_by(f"{name}={where}" for name, where, _ in options.peers)
        identity = self._shell.storage.parts.belong_to(self.name, cluster_id)
        log = partial(LocalLog, call_soon=self._loop.call_soon, on_failure=self._shell.fail)
        directory = RaftDirectory(self._shell.storage.parts, NodeId(self.name), founders, own, log)
        disk, loaded = directory.prepare()
        if directory.rebuilt:
            self.log_line("rebuilds", f"its metadata log comes from the others. {directory.rebuilt}", "error")
        codec = BeatCodec(secret.key("beats"), identity.cluster_id, self.name)
        self.liveness = Liveness(self, self._shell, codec, options.cut_off_s)
        self.raft = RaftLog(
            disk,
            now_s=self._loop.time(),
            chance=random.random,
            send=self._send_control,
            call_soon=lambda turn: self._loop.call_soon(self._raft_turn, turn),
            on_failure=partial(self._log_failed, directory),
            on_restored=self._restored,
            on_leader=self._led,
            on_leading=self._leads,
            on_diverged=self._diverged,
            log=partial(self.log_line, "raft"),
            start=(identity.disk_id, self._shell.storage.parts.number),
            generation=uuid.uuid4().int >> 65,
            loaded=loaded,
        )
        del loaded  # a snapshot is long, and a start may wait
        directory.list(self.raft.log_id)
        view = self.raft.map
        names = {*before, *(member.name for member in view.members()), *view.forgotten_members()}
        must_know(self._directory, [f.name for f in founders if f.name != self.name], names)
        self.raft.listen(self._applied)
        linked = LinkIdentity(
            self.name, identity.cluster_id, self.raft.session, identity.disk_id, uuid.uuid4().hex, VERSION, LEVEL
        )
        self.mesh = Mesh(linked, node_credentials(secret, self.name, self._directory), self)
        known_members = {str(member.name): member.address for member in self.raft.map.members()}
        # the others do not know an address that is new, so they cannot dial it
        self.mesh.dial_all = bool(before) and before.get(self.name) != own
        self.roster.reach(before or known_members or {name: where for name, where, _ in options.peers})
        await self.mesh.listen(options.listen.host, options.listen.port)
        await self.heart.open(options.listen.host, self.mesh.port)
        self.address = own
        self._disk_id = identity.disk_id
        self._await_raft()
        await self._catching_up.wait()
        self.heart.caught_up()
        known = self.raft.map.member(NodeId(self.name))
        if known is None:
            raise Unstarted(f"'{self.name}' is no member of this cluster: {EMPTY}")
        self.incarnation = max(self.raft.session, known.incarnation + 1)
        self.roster.review()

    # -- the node ---------------------------------------------------------------------------------------------

    async def join_node(self, node: Node, amqp: tuple[str, ...]) -> None:
        """The node is recovered: registers it, and returns when it may speak to clients."""
        self._node = node
        role = node.role
        assert role is not None, "a member has a role"
        self.census = PeerCensus(self._shell, role)
        role.linked(self.name, 0)
        for peer, session in self._data_links.items():
            role.linked(peer, session)
        self._part_tick()
        self._look()
        node.cluster_name = f"clusterbroker-{self.mesh.identity.cluster[:12]}"
        await self._catching_up.beat_answered()
        self.waits = "for a leader that takes note of it"
        command = self._registration(
            self.incarnation,
            amqp=self._options.advertised_amqp or dialable(amqp, self.address),
            damaged=self._shell.storage.hurt.queue_ids,
            all_damaged=is_marked(self._directory),
            given_up_as=given_up_as(self._directory),
        )
        applied = await self.ordered(command)
        if applied.error is not None:
            raise Unstarted(applied.error.text)
        copies = self.raft.map.held(NodeId(self.name))
        if command.all_damaged and copies:
            aside = self._shell.storage.aside
            where = f"; the damaged journal is {aside}" if aside else ""
            self.log_line("rebuilds", f"{copies} copies from other members{where}")
        unmark(self._directory)
        if self.draining:
            node.turns_away = True
        if awaited := waits_for(self.raft.map):
            names = ", ".join(f"{name} ({count} queues)" for name, count in awaited.items())
            text = f"queues have no leader, for only these may have all their messages: {names}"
            self.log_line("waits", text, "warning")
        self.waits = "for the leader to hear its beats"
        if not self.heart.leased():
            self._leased = self._loop.create_future()
            await come(self._leased, self._shell.ended, self._log_waits, TELL_S)
        self.waits = "for a majority that takes note of its first user"

    async def give_up_copies(self, damage: DamagedJournal) -> Exception:
        """The reason for the node's end after damage of its journal: the node begins again and rebuilds its copies, if
        all have others."""
        known = self.raft.map.member(NodeId(self.name))
        assert known is not None, "a node whose journal is read is a member"
        incarnation = max(self.incarnation, known.incarnation) + 1
        applied = await self.ordered(self._registration(incarnation, all_damaged=True, spare_last=True))
        ending = given_up(self._directory, damage, applied, self.raft.map, self.name)
        if isinstance(ending, Restart):
            copies = self.raft.map.held(NodeId(self.name))
            self._log.emit("error", "cluster.journal_damaged", why=f"{damage.found}. {REBUILDS}", copies=copies)
        return ending

    def _registration(self, incarnation: int, **facts: Any) -> c.RegisterNode:
        return c.RegisterNode(
            node=NodeId(self.name), disk_id=self._disk_id, incarnation=Incarnation(incarnation), address=self.address,
            log_id=self.raft.log_id, level=LEVEL, **facts,
        )  # fmt: skip

    def _log_waits(self) -> None:
        if not self._shell.started:
            self.log_line("waits", f"{self.waits}{self._catching_up.troubles()}")

    @property
    def draining(self) -> bool:
        """By order of an operator no queue and no client shall be here."""
        member = self.raft.map.member(NodeId(self.name))
        return member is not None and member.draining

    async def barrier(self) -> None:
        """Returns when every living member has applied what this one has."""
        await self.ordered(NOTHING)

    async def ordered(self, command: c.AnyCommand) -> Applied:
        """The outcome, however late; a start logs meanwhile what it waits for."""
        return await ordered(self.raft, command, self._shell.ended, self._log_waits, TELL_S)

    def exchange(self) -> None:
        """After a turn: frames to their links."""
        if (role := self._role) is None or not (role.hub.out or role.relay.via):
            return
        for peer, frames in role.hub.take().items():
            self.mesh.send(peer, DATA, frames)

    def may_speak(self) -> bool:
        """Whether something may be written to clients at this moment."""
        return self.heart.may_speak()

    def blocked(self) -> list[str]:
        """A line for each direction in which datagrams do not pass, though both nodes are linked."""
        return self.liveness.blocked()

    def flushing(self, begins: bool) -> None:
        """A group commit is now with the disk, or no longer."""
        self.liveness.submitted_s = steady() if begins else None

    # -- stop -------------------------------------------------------------------------------------------------

    async def hand_over_all(self, timeout_s: float, thoroughly: bool = False) -> tuple[int, int]:
        """Moves all queues to other members: (handed over, left here)."""
        if self._node is None or not self.registered:
            return 0, 0
        return await hand_over_all(self._shell, timeout_s, thoroughly)

    async def say_goodbye(self, timeout_s: float) -> None:
        """Tells the others of a clean end, to spare them the detection."""
        self.leaving = True
        if not self.registered or self.raft.leader is None:
            return
        command = c.FailNode(node=NodeId(self.name), incarnation=Incarnation(self.incarnation))
        try:
            await asyncio.wait_for(proposed(self.raft, command), timeout_s)
        except TimeoutError:
            self.log_line("leaving", "the others were not told in time: they will find out")

    async def close(self) -> None:
        """Ends links, beats and the wiring log. May be called again."""
        if self._closed:
            return
        self._closed = True
        self._log_batch.rest()
        for timer in self._timers.values():
            timer.cancel()
        self._admission.close()
        if hasattr(self, "liveness"):
            await self.liveness.close()
        if hasattr(self, "mesh"):
            await self.mesh.close()
        if hasattr(self, "raft"):
            self.raft.close()

    # -- the wiring log ---------------------------------------------------------------------------------------

    def _log_failed(self, directory: RaftDirectory, error: LogFailure | Unavailable) -> None:
        if isinstance(error, LogWentBack):
            directory.give_up(str(error))
            self._shell.fail(Restart(str(error)))
        else:
            self._shell.fail(error)

    def _send_control(self, peer: str, head: Any) -> None:
        self.mesh.send(peer, CONTROL, encode(head))

    def _applied(self, applied: Applied) -> None:
        try:
            self._follow(applied)
        except Exception as error:
            self._shell.fail(error)

    def _follow(self, applied: Applied) -> None:
        self._catching_up.applied(applied)
        members = False
        for change in applied.changes:
            if isinstance(change, MemberChanged):
                members = True
                self._member(change.member)
            elif isinstance(change, LevelRaised) and self.registered:
                self.log_line("level", f"feature level {change.level}: {LEVELS[change.level - 1].brings}")
            elif isinstance(change, MemberForgotten):
                members = True
                self.roster.departed(change.name)
                if change.name == self.name:
                    self.registered = False
                # while it catches up, the node may read of an earlier incarnation
                if change.name == self.name and self.incarnation and not self.leaving:
                    self._shell.fail(Unstarted(f"'{self.name}' is no member of the cluster any more: {EMPTY}"))
        if members:
            self.roster.review()

    def _member(self, member: Member) -> None:
        if member.name != self.name:
            # not while this node reads of earlier times, nor a member just added under the name of a former one: its
            # incarnation goes on from that one's, and it waits for its answer
            if not member.alive and member.disk_id and self.incarnation:
                self.mesh.drop(member.name, "the cluster takes it for dead")
            return
        if not member.draining and self._node is not None:
            self._node.turns_away = False
        if member.alive and member.incarnation == self.incarnation:
            if not self.registered:
                self.registered = True
                self.heart.registered(self.incarnation)
        elif self.registered and not member.alive and member.incarnation == self.incarnation:
            self.registered = False
            self.heart.failed(self.incarnation)
            self._begin_again("the cluster has taken this node for dead")

    def _restored(self, _map: object) -> None:
        if self._node is not None:
            self._shell.fail(Restart("this node fell so far behind the metadata log that it was sent all of it"))

    def _begin_again(self, why: str) -> None:
        """As a new incarnation; a leaving member waits until its departure is decided."""
        if self.leaving:
            self._postponed = why
        else:
            self._shell.fail(Restart(why))

    def stays(self) -> None:
        """The departure has failed."""
        self.leaving = False
        if self._postponed:
            self._begin_again(self._postponed)

    def _led(self, leader: NodeId | None, term: int) -> None:
        self.log_line("leader", f"{leader or 'nobody'} leads, term {term}", level="debug")
        self.liveness.led()

    def _leads(self, term: int) -> None:
        """At once, not when all members have applied that: a dead one never will, until this leader fails it."""
        self.roster.review()
        self.heart.elected(term)
        self.again("leader", LEADER_S, self._leader_duties)  # queues whose owner has died are waited for, these not

    def _diverged(self, peer: NodeId, first: int, differs: bool) -> None:
        """A member's results of the same commands differ: its map is another one."""
        if self._node is None:
            return
        if not differs:
            self._node.alerts.clear("wiring.diverged", peer)
            return
        text = (
            f"{peer} and {self.name} differ in what came of the wiring's commands from {first} on: restart {peer}, or "
            f"{self.name} if others differ from it too; both fold the log anew"
        )
        self._node.alerts.set("wiring.diverged", peer, text)

    def _leader_duties(self) -> None:
        """The leader's work for all: replica sets that policies, new members and lost ones ask for."""
        if self._closed or not self.raft.is_leader:
            return
        view = self.raft.map
        looking = bool(self._shell.node.postponed.renewals)  # at a policy: each queue by itself, before all at once
        if self.registered and not looking and view.applied != self._levelled_at:
            moves = reconfigurations(view)  # a look at every queue
            self._levelled_at = None if moves else view.applied
            for command in moves:
                self.raft.propose(command)
        self.again("leader", LEADER_S, self._leader_duties)

    def _raft_turn(self, turn: Callable[[], object]) -> None:
        self.raft.advance(self._loop.time())
        turn()
        if self.liveness.voters():
            self.roster.review()
        self._await_raft()

    def _await_raft(self) -> None:
        """The metadata log's next tick, at its time. A later one is found when the earlier one comes."""
        due_s = self.raft.next_tick_s
        if due_s < self._raft_due_s:
            self._raft_due_s = due_s
            self.again("raft", due_s - self._loop.time(), self._raft_tick)

    def _raft_tick(self) -> None:
        self._raft_due_s = math.inf
        now_s = self._loop.time()
        if now_s >= self.raft.next_tick_s:
            self.raft.tick(now_s)  # its turn follows, and the next wait
        else:
            self._await_raft()

    def _part_tick(self) -> None:
        self._resting = False
        if (role := self._role) is not None:
            try:
                with self._shell.held.event("tick"):
                    role.tick(self._shell.clock.now_ms())
            except Exception as error:  # a node without its tick would stand still unnoticed
                self._shell.fail(error)
            self._resting = role.tick_rests and not self._turned
            self._shell.schedule_unless_idle()
        self._turned = False
        self.again("part", RESTING_TICK_S if self._resting else PART_TICK_S, self._part_tick)

    def turned(self) -> None:
        """The node has a turn: what a tick looks at may begin."""
        self._turned = True
        if self._resting:
            self._resting = False
            self.again("part", PART_TICK_S, self._part_tick)

    def _look(self) -> None:
        self.liveness.look()
        self.again("look", LOOK_S, self._look)

    def again(self, name: str, delay_s: float, what: Callable[[], None]) -> None:
        """Calls `what` once after the delay; a newer call under that name replaces it."""
        if not self._closed:
            old = self._timers.get(name)
            if old is not None:
                old.cancel()
            self._timers[name] = self._loop.call_later(delay_s, what)

    def log_line(self, event: str, text: str, level: str = "info") -> None:
        self._log.emit(level, f"cluster.{event}", text=text)

    # -- links (MeshEvents) -----------------------------------------------------------------------------------

    def on_linked(self, peer: str, channel: str, session: int) -> None:
        self.raft.advance(self._loop.time())
        if channel == CONTROL:
            self.raft.linked(NodeId(peer))
            return
        self._data_links[peer] = session
        if (role := self._role) is not None:
            with self._shell.held.event("linked", peer=peer):
                role.linked(peer, session)
            self._shell.schedule()

    def on_unlinked(self, peer: str, channel: str, session: int, why: str) -> None:
        self.log_line("unlinked", f"{peer} ({channel}): {why}")
        self.raft.advance(self._loop.time())
        if channel == CONTROL:
            self.raft.unlinked(NodeId(peer))
        elif self._data_links.get(peer) == session:
            del self._data_links[peer]
            if (role := self._role) is not None:
                with self._shell.held.event("unlinked", peer=peer):
                    role.unlinked(peer)
                self._shell.schedule()
        if not self._closed:
            self.liveness.unlinked(peer, channel)

    def has_data_link(self, peer: str) -> bool:
        return peer in self._data_links

    def on_frame(self, peer: str, channel: str, index: int, head: memoryview, payload: memoryview) -> None:
        if channel == CONTROL:
            if self._admission.asked(peer, head):
                return
            if (message := read(head)) is not None:
                self.liveness.came(peer, message)
                return
            self.raft.advance(self._loop.time())
            try:
                self.raft.received(NodeId(peer), head)
            except ValueError as error:
                self.mesh.drop(peer, f"it sent what is no control frame: {error}")
        elif self._role is not None:
            self._shell.receive_frame(peer, index, head, payload)

    # -- the node's role (MemberShell)

    @property
    def leader(self) -> str | None:
        return self.raft.leader

    def backlog(self, peer: str) -> int:
        return self.mesh.backlog(peer, DATA)

    def log_event(self, event: str, facts: Mapping[str, Any]) -> None:
        self._log_batch.add(event, facts)

    def bad_frame(self, peer: str, why: str) -> None:
        self._log.emit("error", "cluster.bad_frame", peer=peer, why=why)
        self.mesh.drop(peer, f"it sent what no node sends: {why}")
        if (role := self._role) is not None:
            role.relay.drop(peer, "it sent what no node sends")

    def silent(self, peer: str, silent_ms: int) -> None:
        """A link that is dead before the kernel knows; a relayed one takes its place. A slow peer still beats."""
        if self.heart.suspected(peer) or silent_ms >= SILENT_MS_MAX:
            self.mesh.drop(peer, f"nothing has come from it for {silent_ms} ms")

    def on_writable(self, peer: str, channel: str) -> None:
        if channel == DATA and peer in self._data_links:
            self._shell.schedule()

    def on_cluster(self, cluster: str) -> None:
        self.log_line("cluster", cluster)

    def on_refused(self, who: str, line: str, untold: int) -> None:
        self._log.emit("warning", "cluster.refused", peer=who, why=line, untold=untold)

    def admits(self, hello: Hello) -> str | None:
        if not hello.cluster and hello.channel == CONTROL:
            return None  # it wants to become one
        return f"{hello.name} is no member of this cluster: {EMPTY}"

    def level(self) -> int:
        return self.raft.map.level if self.raft.map.is_cluster else FIRST  # to be founded, or to be sent its map

    # -- the lease --------------------------------------------------------------------------------------------

    def lease_changed(self, state: LeaseState) -> None:
        leased = state is LeaseState.LEASED
        # a start has none until it is given its first one, which is no news
        lost = not leased and self._leased_once
        text = state.name.lower() if leased or lost else "none yet"
        self.log_line("lease", text, level="warning" if lost else "info")
        self._leased_once = self._leased_once or leased
        if (role := self._role) is not None:
            with self._shell.held.event("lease"):
                role.lease(leased)
            self._shell.lease_changed()
        if not leased:
            cut_off_slow(self._shell.clients.values())
        if leased and self._leased is not None and not self._leased.done():
            self._leased.set_result(None)
        if state is LeaseState.FENCED:
            self._begin_again("this node was without a majority for too long")
