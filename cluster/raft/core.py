"""pysyncobj's Raft, entered only through guard rails (G2-G10): no socket, no file, no clock, no thread, no pickle.

    received(peer, message) ----> guards ----> SyncObj ----> outbox
    tick(now) ---- election timer, pre-vote ----^               |   one flush per turn
    append(entries), change_voters ----> log                    v   journal.sync() before what depends on it
                                                             send(peer, message)

Ids are Raft ids, "name/disk": a node without its former disk is another one, so it can never break the former one's
promises (G12). Every linked non-voter is a learner: the leader sends it the same as the others and does not count it.

Elections are this module's alone: pysyncobj's own timer is kept from firing. When the timer ends, a voter asks the
others for a pre-vote, and becomes a candidate only with a majority behind it. A node that heard a leader lately
refuses, and ignores candidates too, so a returning node deposes no leader that others follow (G8).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

import msgspec

from clusterbroker.cluster.errors import DamagedLog

from . import guards, outbox
from . import messages as m
from .fold import takes_long
from .guards import MEMBERSHIP, change_of
from .journal import Journal
from .outbox import NoPoller, Outbox
from .pinned import CANDIDATE, CLOCK, FOLLOWER, LEADER, Node, SyncObj, SyncObjConf, journal_of_next_core
from .snapshots import Snapshots, StoredSnapshot

ELECTION_MIN_S: Final = 0.5
ELECTION_MAX_S: Final = 1.0
HEARTBEAT_S: Final = 0.15
FALLBACK_S: Final = 1.5
GONE_STEP_S: Final = 0.02
STALL_S: Final = 0.1
"""A tick that comes later than this was held up by its own process."""
REST_S: Final = 0.25
"""Between two ticks at most: less than ELECTION_MIN_S, so that no stall of the own process looks like silence."""
EPSILON_S: Final = 0.0005
"""pysyncobj sends a heartbeat after its time, not at it."""
SNAPSHOT_BYTES_MAX: Final = 1 << 30
"""No map comes near it; more would fill the memory."""
_NEVER: Final = 1 << 62


class Machine(Protocol):
    """What is replicated."""

    def apply(self, index: int, entry: bytes) -> None:
        """Apply a committed entry."""

    def restore(self, stored: StoredSnapshot) -> None:
        """Put the state of a snapshot in the place of the own one."""


class Core(SyncObj):  # type: ignore[misc]
    """One member of the group. Public methods only are to be called; all of them at the time `now_s`."""

    def __init__(
        self,
        me: str,
        stored: StoredSnapshot | None,
        journal: Journal,
        snapshots: Snapshots,
        machine: Machine,
        *,
        send: Callable[[str, m.AnyMessage], object],
        chance: Callable[[], float],
        now_s: float,
    ) -> None:
        """`chance()` gives a number in [0, 1). The journal stands on the snapshot that is stored, if there is one."""
        self.journal = journal
        self.me = me
        self.voters: tuple[str, ...] = stored.voters if stored is not None else ()
        self.now_s = now_s
        self._machine = machine
        self._snapshots = snapshots
        self._outbox = Outbox(self, send)
        self._chance = chance
        self._heard_s = -math.inf
        self._election_s = now_s
        self._pre_votes: tuple[int, set[str]] | None = None
        self._votes: tuple[int, set[str]] = (0, set())
        """(term of a candidacy, voters whose vote was counted)"""
        self._campaign = False
        self._gone = False
        self._due_s = now_s
        self._match: int | None = None
        self._installing = False
        self._dropping = False
        CLOCK.now_s = now_s
        conf = SyncObjConf(
            autoTick=False,
            appendEntriesUseBatch=False,
            useFork=False,
            dynamicMembershipChange=True,
            raftMinTimeout=ELECTION_MIN_S,
            raftMaxTimeout=ELECTION_MAX_S,
            appendEntriesPeriod=HEARTBEAT_S,
            leaderFallbackTimeout=FALLBACK_S,
            appendEntriesBatchSizeBytes=outbox.BATCH_BYTES_MAX,
            logCompactionMinEntries=_NEVER,
            logCompactionMinTime=_NEVER,
            onStateChanged=self._state_changed,
        )
        with journal_of_next_core(journal):
            super().__init__(Node(me), [Node(v) for v in self.voters if v != me], conf, transport=self._outbox)
        self._poller = NoPoller()
        self._SyncObj__serializer = snapshots
        self._SyncObj__needLoadDumpFile = False
        if stored is not None:
            self._take_over(stored)
        self._rest()

    # ---- what is known ----

    @property
    def term(self) -> int:
        """The current term."""
        return int(self.raftCurrentTerm)

    @property
    def leads(self) -> bool:
        """Whether it believes to lead; a hint (G13)."""
        return bool(self._SyncObj__raftState == LEADER)

    @property
    def leads_on(self) -> bool:
        """Whether it leads and has applied the first entry of its term, so that it knows what all before it ordered."""
        return self.leads and self.applied >= (self._SyncObj__noopIDx or _NEVER)

    @property
    def leader(self) -> str | None:
        """The leader, as far as it knows; a hint (G13)."""
        node = self._SyncObj__raftLeader
        return None if node is None else str(node.id)

    @property
    def applied(self) -> int:
        """Index of the last entry that the machine has."""
        return int(self.raftLastApplied)

    @property
    def commit(self) -> int:
        """Everything up to here is committed."""
        return max(int(self.raftCommitIndex), self.applied)

    @property
    def snapshot_index(self) -> int:
        """The last entry that the snapshot contains; 0: there is none."""
        return self._snapshots.index

    def voters_at_applied(self) -> tuple[str, ...]:
        """The voters by the entries that are applied, without those that follow."""
        voters = set(self.voters)
        for entry in reversed(self.journal[max(0, self.applied + 1 - self.journal[0][1]) :]):
            request = self._SyncObj__parseChangeClusterRequest(entry[0])
            if request is not None:
                (voters.discard if request[0] == "add" else voters.add)(request[1])
        return tuple(sorted(voters))

    def caught_up(self) -> list[str]:
        """As leader: learners that are linked and have everything that is committed."""
        match: dict[Any, int] = self._SyncObj__raftMatchIndex
        return sorted(node.id for node in self.readonlyNodes if match.get(node, 0) >= self.commit)

    # ---- events ----

    def linked(self, peer: str) -> None:
        """A link to this node exists, and nothing was sent on it yet."""
        self._enter()
        self._outbox.linked(peer, is_voter=peer in self.voters)

    def unlinked(self, peer: str) -> None:
        """The link is gone, with what was on its way."""
        self._enter()
        self._outbox.unlinked(peer, is_voter=peer in self.voters)

    def leader_gone(self, rank: int) -> None:
        """The leader's process is known to be dead: elect another soon, `rank` (from 0) steps after the first."""
        self._gone = True
        self._heard_s = -math.inf
        self._election_s = min(self._election_s, self.now_s + GONE_STEP_S * (rank + self._chance() / 2))

    def abdicate(self, pause_s: float) -> None:
        """Lead no more, and let the others elect a leader for so long. Its vote of this term stays given."""
        if self.voters == (self.me,):
            return
        self._enter()
        if self.leads:
            self._SyncObj__setState(FOLLOWER)
            self._SyncObj__raftLeader = None
        self._campaign, self._pre_votes = False, None
        self._election_s = max(self._election_s, self.now_s + pause_s)

    def tick(self, now_s: float) -> None:
        """Time has come to `now_s`. A stall of the own process is nobody's silence."""
        late_s = now_s - max(self.now_s, self._due_s)
        if late_s > STALL_S:
            self._election_s += late_s
        self.now_s = max(self.now_s, now_s)

    @property
    def due_s(self) -> float:
        """The time by which `tick` and `turn` have something to do, if no message comes before."""
        if self.leads:
            due_s = self._SyncObj__newAppendEntriesTime + EPSILON_S
        else:
            due_s = self._election_s if self.me in self.voters else math.inf
        return float(max(self.now_s, min(due_s, self.now_s + REST_S)))

    def turn(self) -> None:
        """Do what is due: elections, commits, applying, heartbeats, compaction."""
        self._enter()
        if self.leads:
            self._heard_s = self.now_s
            self._pre_votes = None
            self.journal.sync()
        elif self.now_s >= self._election_s and self.me in self.voters:
            self._ask_pre_votes()
        before = self._SyncObj__raftState
        self._SyncObj__raftElectionDeadline = -1.0 if self._campaign else math.inf
        self._campaign = False
        self.doTick(0)
        self._SyncObj__raftElectionDeadline = math.inf
        if before == LEADER and not self.leads:
            self._rest()
        self._due_s = self.due_s

    def flush(self) -> bool:
        """Send what there is to send, and make durable what is not, in the order that G2 asks for."""
        return self._outbox.flush()

    def append(self, entries: Sequence[bytes]) -> bool:
        """As leader: put entries at the end of the log and send them; False: it does not lead."""
        if not self.leads:
            return False
        self._enter()
        for entry in entries:
            self.journal.add(entry, self.journal[-1][1] + 1, self.term)
        self._SyncObj__sendAppendEntries()
        return True

    def change_voters(self, verb: str, raft_id: str) -> bool:
        """As leader: "add" or "rem" one voter; False when it does not lead or a change is still under way (G12)."""
        if not self.leads_on or raft_id == self.me:
            return False
        first = self.journal[0][1]
        if any(entry[0][:1] == MEMBERSHIP for entry in self.journal[self.applied + 1 - first :]):
            return False
        if (raft_id in self.voters) is (verb == "add"):
            return False
        self._enter()
        entry = MEMBERSHIP + msgspec.msgpack.encode((verb, raft_id))
        self._SyncObj__doChangeCluster((verb, raft_id, Node(raft_id)))
        return self.append((entry,))

    def compact(self) -> None:
        """Write a snapshot of what is applied and forget the log before it, in the next turn."""
        self.forceLogCompaction()

    def objection(self, message: m.AnyMessage) -> str | None:
        """Why no correct member can have sent this; None: it may be `received`."""
        arriving = self._snapshots.arriving_bytes
        if isinstance(message, m.Snapshot) and not message.first and arriving + len(message.data) > SNAPSHOT_BYTES_MAX:
            return f"a snapshot of more than {SNAPSHOT_BYTES_MAX} bytes"
        return guards.objection(self.journal, message, term=self.term, leads=self.leads, committed=self.commit)

    def received(self, peer: str, message: m.AnyMessage) -> None:
        """A message of this peer."""
        self._enter()
        match message:
            case m.Append():
                self._received_append(peer, message)
            case m.Snapshot():
                self._received_snapshot(peer, message)
            case m.Ack():
                self._received_ack(peer, message)
            case m.PreVote():
                self._outbox.put(peer, m.PreVoted(message.term, self._would_vote(message), self.term))
            case m.PreVoted():
                self._received_pre_voted(peer, message)
            case m.AskVote():
                self._received_ask_vote(peer, message)
            case m.Vote():
                self._received_vote(peer, message)
            case m.TermHint():
                if message.term > self.term:
                    self._step_down(message.term)

    def send(self, peer: str, message: m.AnyMessage) -> None:
        """Put a message between Raft's own, in order."""
        self._outbox.put(peer, message)

    # ---- followers ----

    def _received_append(self, peer: str, message: m.Append) -> None:
        if not self._follows(peer, message.term):
            return
        normalised = self._normalised(message)
        if normalised is None:
            return
        message, self._match = normalised
        self._pass(
            peer,
            {
                "type": "append_entries",
                "term": message.term,
                "commit_index": message.commit,
                "prevLogIdx": message.prev_index,
                "prevLogTerm": message.prev_term,
                "entries": message.entries,
            },
        )
        self._match = None

    def _normalised(self, message: m.Append) -> guards.Normalised | None:
        return guards.normalised(self.journal, message)

    def _received_snapshot(self, peer: str, message: m.Snapshot) -> None:
        """A piece of a snapshot (G5): one that brings nothing new is dropped. No piece moves the commit index: the
        installed snapshot does (`_take_over`), and a damaged one is not installed."""
        if not self._follows(peer, message.term):
            return
        if message.first:
            self._dropping = message.index <= self.commit
        if self._dropping:
            if message.last:
                self._outbox.put(peer, m.Ack(self.term, self.commit + 1, True, False))
            return
        self._installing = True
        self._pass(
            peer,
            {
                "type": "append_entries",
                "term": message.term,
                "commit_index": min(message.commit, self.commit),
                "serialized": (message.data, message.first, message.last),
            },
        )
        self._installing = False

    def _follows(self, peer: str, term: int) -> bool:
        """Whether the sender leads; a deposed leader gets a hint (G8)."""
        if term < self.term:
            self._outbox.put(peer, m.TermHint(self.term))
            return False
        assert not (self.leads and term == self.term), f"two leaders in term {term}: {self.me} and {peer}"
        self._heard_s = self.now_s
        self._gone = False
        self._pre_votes = None
        self._campaign = False
        self._rest()
        return True

    # ---- leaders ----

    def _received_ack(self, peer: str, message: m.Ack) -> None:
        if Node(peer) not in self._SyncObj__raftMatchIndex:
            return
        if self._is_current_ack(message):
            answer = {"reset": message.reset, "success": message.success, "next_node_idx": message.next_index}
            self._pass(peer, {"type": "next_node_idx", **answer})

    def _is_current_ack(self, message: m.Ack) -> bool:
        return guards.is_current_ack(message.term, self.term, message.next_index, self.journal[-1][1])

    # ---- elections ----

    def _ask_pre_votes(self) -> None:
        self._rest()
        last = self.journal[-1]
        self._pre_votes = (self.term + 1, {self.me})
        for voter in self.voters:
            if voter != self.me:
                self._outbox.put(voter, m.PreVote(self.term + 1, last[1], last[2]))
        self._count_pre_votes()

    def _would_vote(self, message: m.PreVote) -> bool:
        last = self.journal[-1]
        newer = (message.last_term, message.last_index) >= (last[2], last[1])
        return message.term > self.term and newer and not self._hears_leader()

    def _hears_leader(self) -> bool:
        return self.leads or self.now_s - self._heard_s <= ELECTION_MIN_S

    def _received_pre_voted(self, peer: str, message: m.PreVoted) -> None:
        if message.current > self.term:
            self._step_down(message.current)
        elif self._pre_votes is not None and message.granted and self._pre_votes[0] == message.term == self.term + 1:
            self._pre_votes[1].add(peer)
            self._count_pre_votes()

    def _count_pre_votes(self) -> None:
        if self._pre_votes is not None and self._is_majority(self._pre_votes[1]):
            self._pre_votes = None
            self._campaign = True

    def _is_majority(self, ids: Iterable[str]) -> bool:
        return sum(voter in ids for voter in self.voters) * 2 > len(self.voters)

    def _received_ask_vote(self, peer: str, message: m.AskVote) -> None:
        if self._hears_leader():
            return
        request = {"last_log_index": message.last_index, "last_log_term": message.last_term}
        self._pass(peer, {"type": "request_vote", "term": message.term, **request})
        if self.term == message.term and self.journal.getVotedForNodeId() == peer:
            self._pre_votes, self._campaign = None, False
            self._rest()  # a vote is worth nothing if its giver stands against who got it

    def _received_vote(self, peer: str, message: m.Vote) -> None:
        """pysyncobj counts answers; here each voter counts once in a term."""
        if self._SyncObj__raftState != CANDIDATE or message.term != self.term:
            return
        if self._votes[0] != self.term:
            self._votes = (self.term, set())
        if peer in self.voters and peer not in (self.me, *self._votes[1]):
            self._votes[1].add(peer)
            self._pass(peer, {"type": "response_vote", "term": message.term})

    def _step_down(self, term: int) -> None:
        self._SyncObj__setCurrentTerm(term, None)
        self._SyncObj__setState(FOLLOWER)
        self._SyncObj__raftLeader = None
        self._campaign = False
        self._rest()

    def _rest(self) -> None:
        """Wait for a leader, or for the others' elections, for a while."""
        if self.voters == (self.me,):
            self._election_s = self.now_s
        elif self._gone:
            self._election_s = self.now_s + GONE_STEP_S * (1.5 + 2 * self._chance())
        else:
            self._election_s = self.now_s + ELECTION_MIN_S + (ELECTION_MAX_S - ELECTION_MIN_S) * self._chance()

    # ---- between pysyncobj and us ----

    def _state_changed(self, _before: int, state: int) -> None:
        self.journal.leading = state == LEADER

    def _enter(self) -> None:
        CLOCK.now_s = self.now_s

    def _pass(self, peer: str, message: dict[str, Any]) -> None:
        self._outbox._onMessageReceived(Node(peer), message)

    def outgoing(self, message: dict[str, Any]) -> m.AnyMessage | None:
        """pysyncobj's message as one of ours."""
        match message["type"]:
            case "append_entries" if "prevLogIdx" in message:
                assert "transmission" not in message, "entries are smaller than a batch"
                entries = tuple(message["entries"])
                place = (message["prevLogIdx"], message["prevLogTerm"])
                return m.Append(message["term"], message["commit_index"], *place, entries)
            case "append_entries":
                piece = message["serialized"]
                if piece is None:
                    return None
                data, first, last = piece
                return m.Snapshot(message["term"], message["commit_index"], self._snapshots.index, first, last, data)
            case "next_node_idx":
                return self._outgoing_ack(message)
            case "request_vote":
                return m.AskVote(message["term"], message["last_log_index"], message["last_log_term"])
            case "response_vote":
                self._rest()
                return m.Vote(message["term"])
            case other:
                raise AssertionError(f"pysyncobj sends {other}")

    def no_learner(self, node: Any) -> None:
        """A learner votes from now on."""
        self._SyncObj__readonlyNodes.discard(node)

    def _outgoing_ack(self, message: dict[str, Any]) -> m.Ack:
        next_index: int = message["next_node_idx"]
        if message["reset"]:
            next_index = self._resend_from(next_index)
        elif message["success"] and self._installing:
            next_index = self.applied + 1
        elif message["success"] and self._match is not None:
            next_index = self._match + 1
        return m.Ack(self.term, next_index, message["reset"], message["success"])

    def _resend_from(self, asked: int) -> int:
        return guards.resend_from(asked, self.commit)

    # ---- overridden insides: no pickle, nothing that raises, our own snapshot ----

    def _checkCommandsToApply(self) -> None:  # noqa: N802
        """Commands come by `append`."""

    def _SyncObj__generateRaftTimeout(self) -> float:  # noqa: N802
        return ELECTION_MAX_S

    def _SyncObj__doApplyCommand(self, command: bytes) -> None:  # noqa: N802
        if self.leads and takes_long(command):
            # the others shall do it at the same time, and not when this member is through
            self._SyncObj__sendAppendEntries()
            self.flush()
        self._machine.apply(self.applied + 1, command)

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802
        try:
            SyncObj._SyncObj__sendAppendEntries(self)
        except DamagedLog:  # the snapshot that a follower needs; what it had is in memory
            at = self.applied - self.journal[0][1]
            self._snapshots.write_anew(*self.journal[at - 1 : at + 1])
            SyncObj._SyncObj__sendAppendEntries(self)

    def _SyncObj__parseChangeClusterRequest(self, command: bytes) -> tuple[str, str, Any] | None:  # noqa: N802
        if command[:1] != MEMBERSHIP:
            return None
        verb, raft_id = change_of(command)
        return verb, raft_id, Node(raft_id)

    def _SyncObj__doChangeCluster(self, request: tuple[str, str, Any], reverse: bool = False) -> bool:  # noqa: N802
        adds = (request[0] == "add") is not reverse
        others = {voter for voter in self.voters if voter != request[1]}
        self.voters = tuple(sorted({*others, request[1]} if adds else others))
        return bool(SyncObj._SyncObj__doChangeCluster(self, request, reverse))

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:  # noqa: ARG002, N802, N803
        """Take over the snapshot on the disk, which a leader has sent."""
        stored = self._snapshots.load()
        assert stored is not None, "a snapshot was written"
        self._take_over(stored)

    def _take_over(self, stored: StoredSnapshot) -> None:
        """Its state, and its voters; the entries that follow it stay, and the voters that they made."""
        self.journal.align(stored.previous, stored.last)
        self._machine.restore(stored)
        self._SyncObj__raftLastApplied = stored.last[1]
        self._SyncObj__raftCommitIndex = max(self.raftCommitIndex, stored.last[1])
        self.voters = stored.voters
        self._SyncObj__updateClusterConfiguration([Node(v) for v in self.voters if v != self.me])
        for entry in self.journal[stored.last[1] + 1 - self.journal[0][1] :]:
            request = self._SyncObj__parseChangeClusterRequest(entry[0])
            if request is not None:
                self._SyncObj__doChangeCluster(request)
