"""RaftLog: the wiring log of a cluster, driven by events, for a shell with links, a loop and a disk.

Format a directory once (identity.py), then open it at every start::

    disk = FileDisk(data_dir / "raft")
    found(disk, name, disk_id, [Founder(name, address, witness), ...])      every founder, with the same list
    join(disk, name, disk_id)                                               a later member; AddMember comes first
    migrate_local(disk, name, disk_id, address, map, next_index)            a node that was alone
    log = RaftLog(disk, now_s=..., chance=random.random, send=..., call_soon=loop.call_soon, on_failure=..., ...)

`identity.read(disk)` is None for a directory that is not formatted. The constructor blocks on the disk, counts the
start, and raises DamagedLog, FormatTooNew, DiskFull or DiskFailed with a text for the operator.

Callbacks, all on the loop's thread:
    send(peer: NodeId, head: Struct)      put a frame on the control link to this peer, in order; never calls back
    call_soon(callable)                   run it in the next turn of the loop: one turn is one group commit
    chance() -> float in [0, 1)
    on_failure(error: LogFailure | Unavailable)      once: the node must stop
    on_restored(map: ClusterView)         a leader's snapshot took the place of the map: whoever keeps things that
                                          listeners made must make them anew; `log.map` is another object from now on
    on_leader(leader: NodeId | None, term: int)      a hint changed
    on_leading(term: int)                 this node leads, and has applied all that was ordered before its term; it may
                                          come before members without a link have applied it
    on_diverged(peer, first, differs)     of a leader: what came of the commands from `first` on differs there; no more
    log(text)                             one line for the node's log

Events are the methods `tick` to `close`: never from within a listener or `done`, which may call `propose`.

`propose`, `listen` and `map` are those of WiringLog, with one more promise: `done` is called when every living member
(Member.alive) has applied the command too. Outcomes that are not known after 20 s are answered with Unavailable.
Listeners are called as commands are applied; so a `done` comes after listeners of later commands, and still in
ascending order among `done`s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from clusterbroker.cluster.errors import (
    DamagedLog,
    LogFailure,
    LogWentBack,
    PreconditionFailed,
    Unavailable,
    WiringError,
)
from clusterbroker.cluster.ids import LogIndex, NodeId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.levels import LEVEL, check_ordered
from clusterbroker.cluster.wiring.map import Applied
from clusterbroker.cluster.wiring.view import ClusterView
from clusterbroker.cluster.wiring_log import SNAPSHOT_EVERY, Done, Listener, snapshot_is_due, unlogged

from . import identity as identities
from . import messages as m
from .core import REST_S, Core
from .disk import FileDisk
from .fold import REGULAR, Fold, is_proposal, unseal
from .founding import Founding
from .identity import Identity, name_of, raft_id
from .links import Links
from .messages import Entry
from .promises import Promises
from .proposals import WENT_BACK, Proposal, Proposals
from .quorum import Barrier, QuorumRounds, Then
from .reading import Loaded, load
from .snapshots import Snapshots, StoredSnapshot
from .voters import Candidate, next_change, raft_id_of, wanted_voters

COMMAND_BYTES_MAX: Final = 512 << 10
ENTRY_BYTES_MAX: Final = COMMAND_BYTES_MAX + 1024
KEPT_SHARE: Final = 10
"""One in so many of the entries between two snapshots stays behind the newer one."""


class RaftLog:
    """`WiringLog` for a member of a cluster; see the module's text.

    Invariant: a command that succeeded is applied on every living member, and in every later state.
    """

    def __init__(
        self,
        disk: FileDisk,
        *,
        now_s: float,
        chance: Callable[[], float],
        send: Callable[[NodeId, m.AnyMessage], object],
        call_soon: Callable[[Callable[[], object]], object],
        on_failure: Callable[[LogFailure | Unavailable], object],
        on_restored: Callable[[ClusterView], object] | None = None,
        on_leader: Callable[[NodeId | None, int], object] | None = None,
        on_leading: Callable[[int], object] | None = None,
        on_diverged: Callable[[NodeId, int, bool], object] = lambda *_: None,
        log: Callable[[str], object] = lambda _: None,
        snapshot_every: int = SNAPSHOT_EVERY,
        start: tuple[str, int] = ("", 0),
        generation: int = 0,
        loaded: Loaded | None = None,
    ) -> None:
        """Open a formatted directory; `start`: its data directory's disk id and number of starts, `generation`: a
        number that no other start has, or 0, `loaded`: what was just read of it (`reading.prove`), if it was."""
        self._disk = disk
        self._now_s = now_s
        self._chance = chance
        self._send = send
        self._call_soon = call_soon
        self._on_failure = on_failure
        self._on_restored = on_restored
        self._on_leader = on_leader
        self._on_leading = on_leading
        self._on_diverged = on_diverged
        self._leading_term = 0
        self._log = log
        self._snapshot_every = snapshot_every
        self._listeners: list[Listener] = []
        self._raised: list[Exception] = []
        self._links = Links()
        self._rounds = QuorumRounds()
        self._forwarded: list[bytes] = []
        self._promises = Promises()
        self._barrier = Barrier(now_s)
        self._hint: tuple[NodeId | None, int] = (None, 0)
        self._turn_is_due = False
        self._closed = False
        self._fold = Fold()
        self._core: Core | None = None
        self._founding = Founding(self._started(*start))
        self._proposals = Proposals(self.me_id, self.session, generation)
        self._found(loaded)

    # ---- what is known ----

    @property
    def map(self) -> ClusterView:
        """The fold of all that has been applied; another object after `on_restored`."""
        return self._fold.map

    @property
    def name(self) -> NodeId:
        """This node."""
        return self._identity.name

    @property
    def me_id(self) -> str:
        """This node as Raft knows it: "name/disk"."""
        return self._identity.raft_id

    @property
    def log_id(self) -> str:
        """What a Raft id has of this log, behind the name."""
        return self._identity.disk_id

    @property
    def session(self) -> int:
        """How often the node has started on this disk, from 1."""
        return self._identity.session

    @property
    def leader(self) -> NodeId | None:
        """The leader, as far as this node knows; a hint."""
        leader = self._core.leader if self._core is not None else None
        return None if leader is None else name_of(leader)

    @property
    def is_leader(self) -> bool:
        """Whether this node believes to lead; a hint."""
        return self._core is not None and self._core.leads

    @property
    def term(self) -> int:
        """Raft's term; 0 while the cluster is being founded."""
        return self._core.term if self._core is not None else 0

    @property
    def applied(self) -> LogIndex:
        """The last entry of the log that the map has; not every entry is a command."""
        return LogIndex(self._core.applied) if self._core is not None else LogIndex(0)

    @property
    def barrier_index(self) -> LogIndex:
        """Every living member has applied everything up to here."""
        return self._barrier.index

    @property
    def voters(self) -> tuple[NodeId, ...]:
        """The voters by name, sorted."""
        return tuple(name_of(voter) for voter in self._core.voters) if self._core is not None else ()

    @property
    def voters_settled(self) -> bool:
        """No change of the voters is under way."""
        return self._core is None or self._core.voters == self._core.voters_at_applied()

    @property
    def voters_founded(self) -> bool:
        """The voters are those with which the cluster was founded."""
        return self._core is not None and set(self._core.voters) == set(self._identity.voters)

    @property
    def waiting_for(self) -> tuple[NodeId, ...]:
        """Founders that did not introduce themselves yet: the cluster waits for them."""
        return tuple(NodeId(name) for name in self._founding.waiting_for)

    @property
    def pending(self) -> int:
        """How many proposals of this node have no outcome yet."""
        return self._proposals.pending

    # ---- the port ----

    def listen(self, listener: Listener) -> None:
        """Call the listener for every command applied from now on."""
        self._listeners.append(listener)

    def propose(self, command: c.AnyCommand, done: Done | None = None) -> None:
        """Order a command; see the module's text."""
        self._propose(command, done, None)

    def propose_in_term(self, command: c.AnyCommand) -> None:
        """Order a command that must not come into the log under another leader than the present one."""
        self._propose(command, None, self.term)

    def _propose(self, command: c.AnyCommand, done: Done | None, term: int | None) -> None:
        try:
            if self._closed:
                raise Unavailable("the metadata log is closed")
            stored = c.encode(command)
            if len(stored) > COMMAND_BYTES_MAX:
                raise PreconditionFailed(f"a metadata command of {len(stored)} bytes; {COMMAND_BYTES_MAX} are allowed")
            check_ordered(command, self.map.level)
        except (WiringError, Unavailable) as error:
            if done is not None:
                done(unlogged(command, error))
            return
        self._proposals.add(c.decode(stored), stored, done, self._now_s, term)
        self._kick()

    def quorum_round(self, then: Then) -> bool:
        """Call `then` when a majority has answered a probe sent after this call, in this term; False: not leading."""
        if self._core is None or not self._core.leads or self._closed:
            return False
        self._rounds.wait(self._core.term, then)
        self._kick()
        return True

    # ---- events ----

    @property
    def next_tick_s(self) -> float:
        """The time by which `tick` has something to do, if no other event comes before."""
        return self._now_s + REST_S if self._core is None else self._core.due_s

    def advance(self, now_s: float) -> None:
        """The time, monotonic: before each event, so that it happens at its time."""
        self._now_s = max(self._now_s, now_s)
        if self._core is not None:
            self._core.tick(now_s)

    def tick(self, now_s: float) -> None:
        """Time goes on, and what is due is done."""
        if self._closed:
            return
        self.advance(now_s)
        self._refuse(self._proposals.given_up(self._now_s), "no outcome in time: it may or may not be applied")
        self._kick()

    def linked(self, peer: NodeId) -> None:
        """A control link exists, both ways, with nothing sent on it yet."""
        if self._closed:
            return
        self._links.open(peer)
        self._introduce(peer)

    def unlinked(self, peer: NodeId) -> None:
        """A control link is gone; what was under way on it is lost."""
        if self._closed:
            return
        known = self._links.close(peer)
        self._barrier.lost(peer)
        if known is not None and self._core is not None:
            self._core.unlinked(known)
        self._kick()

    def peer_gone(self, peer: NodeId) -> None:
        """The process of a peer is known to be dead (its port refuses): if it led, another one shall soon."""
        if self._closed or self._core is None or self._core.leads:
            return
        leader = self._core.leader
        if leader is not None and name_of(leader) == peer and self.me_id in self._core.voters:
            others = [voter for voter in self._core.voters if voter != leader]
            self._core.leader_gone(others.index(self.me_id))
            self._kick()

    def abdicate(self, pause_s: float) -> None:
        """This node is about to go, or is deaf: another one shall lead. It stays a voter, and waits for so long before
        it asks for votes."""
        if self._core is not None and not self._closed:
            self._core.abdicate(pause_s)
            self._kick()

    def received(self, peer: NodeId, head: bytes | memoryview) -> None:
        """The head of a frame with a tag of 60-99 on the control link. Raises ValueError when no correct member sends
        it: the link is to be ended."""
        message = m.decode(head)
        if self._closed or peer not in self._links:
            return
        if isinstance(message, m.Introduce):
            self._introduced(peer, message)
        else:
            known = self._links.raft_id(peer)
            if known is not None and self._core is not None:
                if why := self._core.objection(message):
                    raise ValueError(why)
                self._guarded(lambda: self._handle(peer, known, message))
        self._kick()

    def close(self) -> None:
        """Make durable what is known, answer what waits with Unavailable, and give the files back."""
        if self._closed:
            return
        self._closed = True
        self._refuse(self._proposals.closed(), "the node is stopping")
        if self._core is not None:
            self._core.journal.sync()
        self._disk.close()

    # ---- beginning ----

    def _started(self, home: str, starts: int) -> Identity:
        """The identity, with one more start."""
        identity = identities.read(self._disk)
        if identity is None:
            raise DamagedLog(f"{self._disk.path}: not the directory of a member: found a cluster, or join one, first")
        self._identity = msgspec.structs.replace(identity, session=identity.session + 1, home=home, starts=starts)
        identities.write(self._disk, self._identity)
        return self._identity

    def _found(self, loaded: Loaded | None = None) -> None:
        """Found the cluster if everything for it is known, and open the log."""
        over = self._founding.over
        if over is None or self._core is not None:
            return
        if over != self._identity:
            assert loaded is None, "nothing is read of what founding is to make"
            self._identity = over
            if over.voters:
                identities.establish(self._disk, over, identities.founders_map(over.founders, over.level))
            else:
                identities.write(self._disk, over)
        journal, stored = loaded or load(self._disk, over)
        journal.open(self._disk, self._snapshot_every // KEPT_SHARE)
        snapshots = Snapshots(self._disk, self._dump, stored)
        self._core = Core(
            self.me_id, stored, journal, snapshots, self, send=self._send_raft, chance=self._chance, now_s=self._now_s
        )
        if not len(journal):
            # the file comes into being whole, so that its beginning is never torn
            journal.rewrite()
        for peer in self._links.peers():
            known = self._links.raft_id(peer)
            if known is not None:
                self._core.linked(known)
            self._introduce(peer)

    def _introduce(self, peer: NodeId) -> None:
        me, core = self._identity, self._core
        log = (0, 0) if core is None else (core.term, core.journal[-1][1])
        level = me.level if me.voters else LEVEL
        self._send(peer, m.Introduce(me.name, me.disk_id, me.creed, me.voters, *log, level))

    def _introduced(self, peer: NodeId, other: m.Introduce) -> None:
        if other.name != peer:
            self._log(f"{peer} calls itself {other.name}: it is not listened to")
            return
        known = raft_id(other.name, other.disk_id)
        if (promise := self._promises.contradicts(known, other.term, other.end)) is not None:
            self._log(f"the metadata log of {peer} went back: it is not listened to before it is made anew")
            self._send(peer, m.Lapsed(*promise))
            return
        if self._links.introduced(peer, known) and self._core is not None:
            self._core.linked(known)
        self._founding.introduced(other)
        if self._founding.conflict:
            self._log(self._founding.conflict)
        self._guarded(self._found)

    # ---- messages ----

    def _send_raft(self, to: str, message: m.AnyMessage) -> None:
        if self._links.reach(to):
            self._send(name_of(to), message)

    def _handle(self, peer: NodeId, known: str, message: m.AnyMessage) -> None:
        core = self._core
        assert core is not None, "heard after founding"
        match message:
            case m.Forward():
                if core.leads:
                    self._forwarded.extend(entry for entry in message.entries if is_proposal(entry, ENTRY_BYTES_MAX))
            case m.AppliedUpTo():
                self._barrier.reported(peer, LogIndex(message.index))
                if core.leads and (differs := self._fold.outcomes.differs(peer, message.outcomes)) is not None:
                    self._call(lambda: self._on_diverged(peer, message.outcomes[0], differs))
            case m.Barrier():
                if message.term == core.term:
                    self._barrier.raised(LogIndex(message.index))
            case m.Probe():
                if message.term == core.term:
                    core.send(known, m.Probed(message.term, message.round))
                elif message.term < core.term:
                    core.send(known, m.TermHint(core.term))
            case m.Probed():
                self._rounds.answered(known, message.term, message.round)
            case m.Lapsed():
                raise LogWentBack(f"{WENT_BACK}: {peer} heard of term {message.term} and entry {message.end} of it")
            case _:
                self._promises.record(known, message)
                core.received(known, message)

    # ---- the turn ----

    def _kick(self) -> None:
        """Let a turn follow soon; all that happens until then is one group commit."""
        if not self._turn_is_due and not self._closed:
            self._turn_is_due = True
            self._call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_is_due = False
        if self._closed or self._core is None:
            return
        self._guarded(self._work)
        raised, self._raised = self._raised, []
        if raised:
            raise raised[0]

    def _work(self) -> None:
        core = self._core
        assert core is not None, "founded"
        core.turn()
        self._push_proposals(core)
        if core.leads:
            self._lead(core)
        else:
            self._forwarded.clear()
            self._rounds.forget()
            self._follow(core)
        self._compact(core)
        core.flush()
        core.journal.rest(self._now_s)
        self._notify()
        if core.leads and core.commit < core.journal[-1][1] and core.voters == (self.me_id,):
            self._kick()

    def _push_proposals(self, core: Core) -> None:
        """Own proposals go to the leader's log, with what others forwarded to this one."""
        leader = core.leader
        if leader is None:
            return
        if core.leads:
            # own ones first: who forwards after it was heard here finds what was proposed for that before its own
            entries = [*self._proposals.to_send((core.term,), self._now_s, core.term), *self._forwarded]
            self._forwarded.clear()
            if entries:
                core.append(entries)
        elif self._links.reach(leader):
            entries = self._proposals.to_send((core.term, leader, self._links.made), self._now_s, core.term)
            for start in range(0, len(entries), 50):
                core.send(leader, m.Forward(tuple(entries[start : start + 50])))

    def _lead(self, core: Core) -> None:
        alive = [member.name for member in self.map.members() if member.alive]
        self._barrier.count(alive, self.name, self.applied)
        linked = self._links.raft_ids()
        if self._barrier.is_announced(core.term, self._links.made, self._now_s):
            for known in linked:
                core.send(known, m.Barrier(core.term, self._barrier.index))
        round_ = self._rounds.probe()
        if round_ is not None:
            for known in linked:
                if known in core.voters:
                    core.send(known, m.Probe(core.term, round_))
        for then in self._rounds.complete(core.voters, self.me_id):
            self._call(then)
        self._manage_voters(core)

    def _follow(self, core: Core) -> None:
        """Tell the leader how far this node is, when it is news to that leader on that link."""
        leader = core.leader
        if leader is None or not self._links.reach(leader):
            return
        if self._barrier.is_reported(core.term, leader, self._links.made, core.applied):
            core.send(leader, m.AppliedUpTo(self.applied, self._fold.outcomes.last))

    def _manage_voters(self, core: Core) -> None:
        members = self.map.members()
        if not members:
            return
        known = [Candidate(raft_id_of(member, core.voters), member.alive) for member in members]
        wanted = wanted_voters(known, core.voters)
        change = next_change(wanted, core.voters, core.caught_up(), self.me_id)
        if change is not None:
            core.change_voters(change.verb, change.raft_id)
        elif core.voters_at_applied() == core.voters:
            names = tuple(sorted(name_of(voter) for voter in core.voters))
            flagged = tuple(sorted(member.name for member in members if member.voter))
            if names != flagged and not self._proposals.pending and set(names) <= {member.name for member in members}:
                self.propose(c.SetVoters(voters=names))

    def _compact(self, core: Core) -> None:
        length = core.journal[-1][1] - core.snapshot_index
        if snapshot_is_due(length, self._snapshot_every, self.map) and core.applied > core.snapshot_index:
            core.compact()

    # ---- what is replicated (core.Machine) ----

    def apply(self, index: int, entry: bytes) -> None:
        """A committed entry: fold it, call the listeners, remember the outcome of an own one."""
        if entry[:1] != REGULAR:
            return
        envelope = unseal(entry)
        fresh = not self._fold.is_known(envelope.origin, envelope.session, envelope.number)
        self._proposals.check(envelope, fresh)
        applied = self._fold.apply(LogIndex(index), envelope)
        if fresh and self._fold.is_known(envelope.origin, envelope.session, envelope.number):
            self._proposals.applied(envelope, applied, self._now_s)
        if applied is not None:
            for listener in tuple(self._listeners):
                self._call(lambda listener=listener: listener(applied))  # type: ignore[misc]

    def restore(self, stored: StoredSnapshot) -> None:
        """A snapshot takes the place of the state: at the start, or because a leader sent it."""
        self._fold = Fold.restored(stored, self._disk.path)
        if self._core is None:
            return
        self._refuse(self._proposals.restored(self._fold), "the node was behind: the outcome is in the map")
        if self._on_restored is not None:
            on_restored, view = self._on_restored, self._fold.map
            self._call(lambda: on_restored(view))

    def _dump(self, previous: Entry, last: Entry) -> StoredSnapshot:
        assert self._core is not None, "only a log that is open is compacted"
        return self._fold.dump(previous, last, self._core.voters_at_applied())

    # ---- outcomes ----

    def _notify(self) -> None:
        barrier = self._barrier.index if self.map.members() else self.applied
        for applied, done in self._proposals.outcomes(barrier):
            self._notify_one(done, applied)
        hint = (self.leader, self.term)
        if hint != self._hint:
            self._hint = hint
            if (on_leader := self._on_leader) is not None:
                self._call(lambda: on_leader(*hint))
        if self._core is not None and self._core.leads_on and self._leading_term != self.term:
            self._leading_term = self.term
            if (on_leading := self._on_leading) is not None:
                self._call(lambda: on_leading(self._leading_term))

    def _notify_one(self, done: Done, applied: Applied) -> None:
        self._call(lambda: done(applied))

    def _refuse(self, proposals: list[Proposal], why: str) -> None:
        for proposal in proposals:
            if proposal.done is not None:
                self._notify_one(proposal.done, unlogged(proposal.command, Unavailable(why)))

    def _call(self, callable_: Callable[[], object]) -> None:
        """Call somebody else's code: what it raises is raised again when the turn is over (G10)."""
        try:
            callable_()
        except Exception as error:
            self._raised.append(error)

    def _guarded(self, work: Callable[[], object]) -> None:
        """Do what touches the disk and the core; when that fails, or an invariant does not hold, the node is over."""
        try:
            work()
        except (LogFailure, Unavailable) as error:
            self._closed = True
            self._on_failure(error)
        except Exception as error:
            self._closed = True
            failure = LogFailure(f"{self._disk.path}: the metadata log failed ({error!r}); restart this node")
            failure.__cause__ = error
            self._on_failure(failure)
