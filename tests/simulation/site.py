"""One node over its lives: the real core with its part in the cluster, its disk, its clock and its process.

A process that starts catches up with the wiring, recovers its journal, builds the node, registers, and speaks to
clients while it holds a lease. It is killed, paused, or begins again in the same process when the cluster has declared
it dead. Whatever happens to it is an event in `do`, so a pause holds everything back and loses nothing.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from clusterbroker.broker.node.core import Node
from clusterbroker.broker.node.log import Silence
from clusterbroker.broker.node.member import MemberRole
from clusterbroker.broker.node.options import NodeOptions
from clusterbroker.broker.server.recovery import recovered
from clusterbroker.cluster.errors import Unavailable
from clusterbroker.cluster.ids import Incarnation, NodeId
from clusterbroker.cluster.link.frames import FrameReader
from clusterbroker.cluster.liveness.lease import LeaseKeeper, LeaseOptions, LeaseState
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.levels import LEVEL
from clusterbroker.cluster.wiring.map import Applied
from clusterbroker.journal.errors import DamagedJournal
from tests.simulation.checkers.history import Mistake
from tests.simulation.directory import Directory
from tests.simulation.loop import Loop
from tests.simulation.machine import Machine
from tests.simulation.network import BEATS, CONTROL, DATA
from tests.simulation.pulse import Pulse
from tests.simulation.sim_journal import SimJournal
from tests.simulation.sockets import Socket

if TYPE_CHECKING:
    from tests.simulation.world import World

TICK_S = 0.05
BEAT_S = 0.1
CHECKPOINT_TICKS = 13
"""Where there are streams, which checkpoints move into files, one is begun so often, if no group is under way."""
STUCK_S = 1.0
"""A flush that takes longer is a stuck disk: the node stops beating."""
LIVES_MAX = 1_000_000
"""No member begins so often: who takes the name of one that has left has other lives, and does not get its answers."""
LEASE_S = LeaseOptions().lease_s


class Silent(Silence):
    """The node's log. What clients did wrong is kept: simulated clients do nothing wrong without intent. A mistake of
    ours is raised: it would cost a real node a queue, a client or a link, and here it is what is looked for."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def fault(self, peer: str, user: str, channel: int, error: Any) -> None:
        self.faults.append(str(error))

    def crashed(self, peer: str, error: BaseException) -> None:
        raise Mistake(error)

    def crashed_forward(self, error: BaseException) -> None:
        raise Mistake(error)

    def link_crashed(self, peer: str, error: BaseException) -> None:
        raise Mistake(error)

    def set_aside(self, queue: Any, seq: int, error: Exception) -> None:
        raise Mistake(error)

    def refused(self, peer: str, user: str, mechanism: str, why: str) -> None:
        self.faults.append(why)


class Site(Machine):
    """`life` counts processes, fenced ones included; what belongs to an earlier one finds nobody."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        super().__init__(world.schedule)
        self.disks: int
        self.journal: SimJournal
        self.directory: Directory
        self.starts = 0
        self.life = world.disks[name] * LIVES_MAX
        self.incarnation = 0
        self.up = False
        self.paused_until_s: float | None = None
        self.node: Node | None = None
        self.keeper = LeaseKeeper()
        self.pulse = Pulse(self)
        self.log = Silent()
        self.sockets: dict[Any, Socket] = {}
        self.unread: dict[Socket, None] = {}
        """Those whose client has said something that the node has not read yet."""
        self.retiring = False
        self.readers: dict[str, tuple[int, FrameReader]] = {}
        self.data_links: dict[str, int] = {}
        self.wiring: Any = None
        self._backlog: deque[tuple[int, Callable[..., object], tuple[Any, ...]]] = deque()
        self._beats = 0
        self._applies = False
        """A command was applied, and the node is told what it changed."""
        self._asking = self._heard = False
        """A process of a member that was here before waits until the leader answers its datagrams; it has."""
        self._journals = 0
        self._gives_up = False
        """Its journal is damaged: it has asked whether the others have all of it."""
        self.loop = Loop(self)
        self.format()

    def format(self) -> None:
        """A new disk."""
        self.world.disks[self.name] += 1
        self.disks = self.world.disks[self.name]
        self.starts = 0
        self.journal = self.world.new_journal(self.disk_id)
        self.directory = Directory(self.disk_id)

    @property
    def disk_id(self) -> str:
        return f"{self.name}-{self.disks}"

    # -- the process

    @property
    def reachable(self) -> bool:
        return self.up

    @property
    def role(self) -> MemberRole:
        assert self.node is not None and self.node.role is not None, "a node that runs has a role"  # noqa: PT018
        return self.node.role

    def leased(self) -> bool:
        return self.keeper.leased(self.boot_s())

    @property
    def may_speak(self) -> bool:
        """The gate before the sockets."""
        return self.leased() and self.pulse.allows()

    def owes(self) -> bool:
        """It may speak, and its word is checked: not while its machine is paused, nor as long after that as a member
        relies on the last word of others, for no clock has shown how old that is (decision 023); and its lease is over
        before it believes so: once it is failed, only the last words of others end what it says (seed 6000845)."""
        member = self.world.newest_map.member(NodeId(self.name))
        failed = member is None or not member.alive or member.incarnation != self.incarnation
        awake_s = self.boot_s() - self.woke_s
        doubtful = self.stands_still or awake_s < self.pulse.contact.rely_s
        relies = failed and awake_s < LEASE_S and self.boot_s() < self.pulse.contact.until
        return self.may_speak and not doubtful and not relies

    def knows(self, queue: str) -> bool:
        """Whether its wiring has a queue of this name."""
        return self.wiring.map.queue("/", queue) is not None

    @property
    def accepting(self) -> bool:
        """Clients may connect."""
        return self.up and self.node is not None and self.paused_until_s is None and self.leased() and not self.retiring

    def turn_clients_away(self) -> None:
        """As `clusterbroker leave` does before the member is forgotten: nobody here holds a message any more."""
        self.retiring = True
        for socket in tuple(self.sockets.values()):
            socket.turned_away()

    def start(self) -> None:
        if self.up:
            return
        self.up = True
        self.starts += 1
        self.world.clock_at_start(self)
        self._begin()

    def _begin(self) -> None:
        self.life += 1
        self.node = None
        self._asking = self._heard = self._gives_up = False
        self.directory.begin()
        self.keeper = LeaseKeeper()
        self.keeper.incarnation = self.incarnation
        self.pulse = Pulse(self)
        self.data_links.clear()
        self.wiring.start()
        life = self.life
        self.world.schedule.after(TICK_S * self.world.schedule.rng.random(), self._tick, life)

    def kill(self) -> None:
        """kill -9."""
        if not self.up:
            return
        self.up = False
        self._end()
        self.wiring.stop(crash=True)
        kept = self.world.schedule.rng.randrange(self.journal.unsynced + 1)
        self.journal.crash(kept if self.world.schedule.rng.random() < 0.5 else 0)
        self.directory.keep_copy(self.journal)
        self.world.died(self, self.incarnation)

    def _end(self) -> None:
        self.life += 1
        self.paused_until_s = None
        self.wake_machine()
        self._backlog.clear()
        self.node = None
        self.loop.end()
        self.unread.clear()
        sockets, self.sockets = self.sockets, {}
        for socket in sockets.values():
            socket.cut()
        self.readers.clear()
        self.world.network.gone(self.name)

    def begin_again(self) -> None:
        """The cluster has declared this process dead, or it lost its lease for too long: it starts anew as it is."""
        self.world.schedule.counts["fenced"] += 1
        self._end()
        self.wiring.stop(crash=False)
        self.journal.crash(self.journal.unsynced)
        self.directory.keep_copy(self.journal)
        self.starts += 1
        self._begin()

    def lose_disk(self) -> None:
        assert not self.up, "a disk is lost by a process that is not there"
        self.format()
        self.journal.lost = True
        self.wiring = self.world.new_wiring(self)

    def lose_journal(self, old: SimJournal | None = None) -> None:
        """Nothing is where the journal was, or one as it was once."""
        assert not self.up, "a process that has it open has it"
        self._replace_journal(old or self._empty_journal(), self.journal)

    def lose_raft(self) -> None:
        """Nothing is where the Raft log was."""
        assert not self.up, "a process that has it open has it"
        self.wiring.lose()

    @property
    def voice_lost(self) -> bool:
        """Its Raft log was lost, and the others have not replaced the voter that it was yet."""
        return self.world.raft and self.world.control.waits_for_voice(self)

    def _empty_journal(self) -> SimJournal:
        self._journals += 1
        return self.world.new_journal(f"{self.disk_id}-{self._journals}")

    def _replace_journal(self, journal: SimJournal, right: SimJournal | None) -> None:
        journal.lost, journal.right = True, right
        member = self.wiring.map.member(NodeId(self.name))
        journal.lost_before = max(
            self.incarnation, self.journal.lost_before, 0 if member is None else member.incarnation
        )
        self.journal = journal

    def _give_up_copies(self) -> None:
        """As `ClusterShell.give_up_copies`: others have what was in the journal, or this process ends."""
        member = self.wiring.map.member(NodeId(self.name))
        incarnation = max(self.incarnation, member.incarnation) + 1
        self._gives_up = True
        self.wiring.propose(self._registration(incarnation, all_damaged=True, spare_last=True), self._given_up)

    def _given_up(self, applied: Applied) -> None:
        if isinstance(applied.error, Unavailable):
            self._give_up_copies()
        elif applied.error is None:
            self.world.schedule.counts["given up copies"] += 1
            assert isinstance(applied.command, c.RegisterNode), "so it was asked for"
            self.directory.give_up(applied.command.incarnation)
            self._replace_journal(self._empty_journal(), None)
            self.world.schedule.after(0, self.do, self.life, self.begin_again)
        else:
            self.world.schedule.after(0, self._refuse_to_start, self.life)

    def _refuse_to_start(self, life: int) -> None:
        """It may have the only copy: the operator finds what is missing, and puts it back."""
        if life != self.life or not self.up:
            return
        self.world.schedule.counts["refused to start"] += 1
        right = self.journal.right
        self.kill()
        if right is not None:
            self.journal = right
        else:
            self.journal.mend()
        self.world.schedule.after(1.0, self.start)

    def _registration(
        self, incarnation: int, all_damaged: bool, spare_last: bool = False, given_up_as: int = 0
    ) -> c.RegisterNode:
        return c.RegisterNode(
            node=NodeId(self.name), disk_id=self.disk_id, incarnation=Incarnation(incarnation),
            address=f"{self.name}:1", amqp=(f"amqp://{self.name}",), all_damaged=all_damaged, spare_last=spare_last,
            log_id=self.wiring.log_id, given_up_as=Incarnation(given_up_as), level=LEVEL,
        )  # fmt: skip

    def pause(self, span_s: float, machine: bool = False) -> None:
        """SIGSTOP, SIGCONT; or the whole machine: then its clocks stand still."""
        if self.up and self.paused_until_s is None:
            self.paused_until_s = self.world.schedule.now_s + span_s
            if machine:
                self.stand_still()
            self.world.schedule.after(span_s, self._resume, self.life)

    def _resume(self, life: int) -> None:
        if life != self.life or self.paused_until_s is None:
            return
        self.paused_until_s = None
        self.wake_machine()
        while self._backlog and self.paused_until_s is None:
            then, call, arguments = self._backlog.popleft()
            if then == self.life:
                self._do(call, arguments)
                if self.node is not None and self.world.schedule.rng.random() < 0.1:  # it works while it reads
                    self.loop.turn()
        self.loop.wake()

    def do(self, life: int, call: Callable[..., object], *arguments: Any) -> None:
        """Something happens to this process, if it is still the same."""
        if life != self.life or not self.up:
            return
        if self.paused_until_s is not None:
            self._backlog.append((life, call, arguments))
        else:
            self._do(call, arguments)

    def _do(self, call: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        node = self.node
        if node is not None:
            node.now_ms = self.now_ms()
        call(*arguments)
        self.loop.wake()

    # -- links

    def linked(self, channel: str, peer: str, session: int) -> None:
        self.do(self.life, self._linked, channel, peer, session)

    def _linked(self, channel: str, peer: str, session: int) -> None:
        if channel == CONTROL:
            self.wiring.linked() if peer.startswith("~") else self.wiring.peer_linked(peer, session)
            return
        self._unlink(peer)
        self.data_links[peer] = session
        self.readers[peer] = session, FrameReader()
        if self.node is not None:
            self.role.linked(peer, session)

    def unlinked(self, channel: str, peer: str, session: int) -> None:
        self.do(self.life, self._unlinked, channel, peer, session)

    def _unlinked(self, channel: str, peer: str, session: int) -> None:
        if channel == DATA and self.data_links.get(peer) == session:
            self._unlink(peer)
        elif channel == CONTROL and not peer.startswith("~"):
            self.wiring.peer_unlinked(peer, session)

    def _unlink(self, peer: str) -> None:
        if self.data_links.pop(peer, None) is not None and self.node is not None:
            self.role.unlinked(peer)

    def arrived(self, channel: str, peer: str, session: int, message: Any) -> None:
        self.do(self.life, self._arrived, channel, peer, session, message)

    def _arrived(self, channel: str, peer: str, session: int, message: Any) -> None:
        if channel == BEATS:
            if message[0] == "word":
                self.pulse.word(peer, *message[1:])
            else:
                self.wiring.beaten(peer, message)
            return
        if channel == CONTROL:
            if peer.startswith("~"):
                self.wiring.received(message)
            else:
                self.wiring.peer_received(peer, session, message)
            return
        link = self.readers.get(peer)
        if link is None or link[0] != session or self.node is None or self.data_links.get(peer) != session:
            return
        for frame in message:
            self.world.schedule.traced(frame)
            for index, head, payload in link[1].feed(frame):
                self.role.hub.received(peer, index, head, payload)

    # -- the wiring

    def applied(self, applied: Applied) -> None:
        """A command was applied to this node's map."""
        if self.node is not None:
            self.node.now_ms = self.now_ms()
            self._applies = True
            self.node.apply(applied.changes)
            self._applies = False
        self.world.checkers.applied(self, applied)

    @property
    def late(self) -> bool:
        """What its map says is not carried out of all queues yet."""
        return self._applies or self.role.arrears.owing

    def advanced(self) -> None:
        if self.node is None:
            return
        self.role.hub.advanced()
        member = self.wiring.map.member(NodeId(self.name))
        if member is None or member.incarnation != self.incarnation:
            return
        if member.alive and self.keeper.incarnation != self.incarnation:
            self.keeper.registered(self.incarnation, self.boot_s())
            self.pulse.contact.forget()
        elif not member.alive:
            self.keeper.failed(self.incarnation)
            self.world.schedule.after(0, self.do, self.life, self.begin_again)

    def granted(self, incarnation: int, seq: int) -> None:
        if incarnation:
            self.keeper.answered(incarnation, seq, self.boot_s())
            self._lease()
        elif self._asking:
            self._asking, self._heard = False, True
            self.caught_up()

    def caught_up(self) -> None:
        """The wiring is known: the node may be built."""
        if self.node is not None:
            return
        member = self.wiring.map.member(NodeId(self.name))
        if member is None:
            self.world.schedule.after(0.2, self.do, self.life, self.caught_up)  # it joins
            return
        if member.incarnation and not self._heard:
            self._asking = True
            return
        if self._gives_up:
            return
        if not self.directory.journal_is_whole(self.journal):
            self._give_up_copies()
            return
        self.pulse.hearing.confirms = True
        self.incarnation = max(self.starts, member.incarnation + 1)
        few = {"group_bytes_max": 600} if self.life % 3 == 1 else {}  # groups that are full with a message or two
        options = NodeOptions(name=self.name, incarnation=self.incarnation, **few)
        chance = random.Random(f"{self.name}.{self.disks}.{self.incarnation}")  # the schedule's stays as it is
        try:
            node = self.node = Node(options, self.wiring.map, self.journal.use, self.log, entropy=chance.randbytes)
            node.now_ms = self.now_ms()
            self.loop.begin(node)
            node.role = role = MemberRole(node, self.world.shell_of(self))
            if self.life % 2:  # as with thousands of queues: what a command changes is carried out one by one
                role.arrears.at_once, role.arrears.slice = 0, 1
                node.postponed.renewals.at_once, node.postponed.renewals.slice = 0, 1
            node.files_streams = self.journal.streams is not None
            recovery = recovered(node, self.journal)
        except DamagedJournal:
            self.world.schedule.counts["damaged journals"] += 1
            self.node = None
            self.journal.close()
            self._give_up_copies()
            return
        self.loop.forward(node)
        self.directory.bind_journal(self.journal)
        self.world.checkers.recovered(self, recovery.rings)
        recovery.adopt_into(node)
        self.world.observe(self)
        role.linked(self.name, 0)
        for peer, session in self.data_links.items():
            role.linked(peer, session)
        marked, given_up_as = self.directory.marked, self.directory.given_up_as
        command = self._registration(self.incarnation, marked, given_up_as=given_up_as if marked else 0)
        self.wiring.propose(command, self._registered)

    def _registered(self, applied: Applied) -> None:
        if applied.error is None:
            self.directory.registered()

    # -- time

    def _tick(self, life: int) -> None:
        if life == self.life and self.up:
            self.world.schedule.after(TICK_S, self._tick, life)
            self.do(life, self._ticked)

    def _ticked(self) -> None:
        now_s = self.boot_s()
        self._beats += 1
        self.wiring.tick()
        if self._asking and self._beats % 2 == 0:
            self.wiring.beat(0, self._beats)
        if self._beats % 2 == 0:
            stuck = self.loop.submitted_s is not None and self.world.schedule.now_s - self.loop.submitted_s > STUCK_S
            if not stuck and self.node is not None and self.role.registered:
                self.keeper.sent(self._beats, now_s)
                self.wiring.beat(self.incarnation, self._beats, self.pulse.sent(self._beats))
        if self.node is None:
            return
        self._lease()
        if self.keeper.state(now_s) in (LeaseState.FENCED, LeaseState.FAILED) and self.role.registered:
            self.begin_again()
            return
        self.role.tick(self.node.now_ms)
        if self.world.folder is not None and self._beats % CHECKPOINT_TICKS == 0:
            self.world.checkpoint(self)
        if self._beats % 10 == 0:
            for connection in tuple(self.node.clients.values()):
                connection.tick(self.node.now_ms)

    def _lease(self) -> None:
        if self.node is not None:
            leased = self.leased()
            self.role.lease(leased)
            self.node.set_alarm("minority", not leased)
