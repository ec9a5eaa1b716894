"""The owner's side of replication, for all queues that this node owns.

Theory. A group commit with records of a queue is sent to the queue's other replicas when it is cut. It is *committed*
when every member of E has it: durable here, and acknowledged by every other member over the present link by a copy
that has been synced at this epoch. E is the in-sync set as last applied and every addition proposed since its version
last rose: a proposed addition may have been applied already, and then the newcomer may be elected. A removal counts
only after it is applied. Nothing is committed while the set is smaller than the minimum. A copy that follows quickly,
but behind the others, never has all committed records of a busy queue: the owner therefore waits for it as well, as
*joining*, until it has, and then proposes it.

A queue has at most one group in flight, and after a take-over none until its *first sync* is complete: the records
taken over are like a group in flight. So a member of E lacks at most the records of one group, and its log, cut at
the foreign part, is a prefix of this one. Producers' numbers (exactly once) rest on that.

    call in                                       possible results
    take_over, give_up, entity_changed            offers, first_sync_complete, committed
    members_changed, linked, unlinked             offers
    group_cut, group_durable                      Appends; committed
    received(AppendAck, SyncWant, Done, Refused)  buckets; committed; syncs go on
    tick                                          proposals to shrink and grow, offers, an end to slow hand-overs

Invariants: (1) `committed` is reported in the order of groups, once each; (2) a reported group is durable on every
member of every in-sync set that can have been applied; (3) no acknowledgement of an earlier link or incarnation
counts (copies.py); (4) an addition is proposed only for a copy with everything that may have been committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, Final

from clusterbroker.cluster.ids import Epoch, Incarnation, NodeId, QueueId
from clusterbroker.cluster.wiring.commands import InSyncProposal
from clusterbroker.cluster.wiring.entities import Queue

from .copies import Copy, Owned, Peer, Sent, State
from .errors import BadMessage
from .hand_overs import HandOvers
from .in_sync import IDLE_DOWN_MS, LINK_DOWN_MS, OWED_MS, Joining, desired
from .messages import Append, AppendAck, SyncDone, SyncOver, SyncRefused, SyncWant
from .offers import OWED_BYTES_MAX, Offers
from .ports import OwnerHost, OwnerStore
from .refusals import Refusals

BATCH_MS: Final = 5
"""Changes of in-sync sets are gathered for so long into one command."""
PROPOSAL_MS: Final = 1000
"""A proposal of which nothing was heard is made again."""
PROPOSALS_MAX: Final = 1000
"""Queues in one command: with five names of 64 bytes each it stays below what the wiring log takes (512 KiB)."""
WATCH_MS: Final = 50
"""How often the copies are looked at for those that stand still."""

Records = bytes | memoryview


class Primary:
    """All queues that node `name` owns. Every `now_ms` is one monotonic clock, in ms."""

    def __init__(self, host: OwnerHost, name: str, owing: Callable[[int], bool] = lambda _queue_id: False) -> None:
        """`owing`: whether the map knows more of a queue than was said here; `entity_changed` or `give_up` follows."""
        self._host = host
        self._owing = owing
        self._name = name
        self._incarnation = 0
        self._owned: dict[int, Owned] = {}
        self._peers: dict[str, Peer] = {}
        self._offers = Offers(host, self._owned, self._peers)
        self._refusals = Refusals(host, name, self._offers, self._reconsider)
        self._durable = 0
        self._flying: dict[int, None] = {}  # queues with a group in flight
        self._undurable: dict[int, list[int]] = {}  # by group, those of them that wait for it to be durable here
        self._changing: dict[int, None] = {}  # queues whose in-sync set may have to change
        self._changing_since_ms: int | None = None
        self._proposing: dict[int, None] = {}  # queues with a proposal or an addition whose fate is open
        self._joining = Joining(self._owned, self._peers, self._try_commit)
        self._hand_overs = HandOvers(host, name, self._owned)
        self._watched_ms = 0
        self._proposals = count(1)
        self._now_ms = 0

    # -- the map ----------------------------------------------------------------------------------------------

    def members_changed(self, members: Mapping[str, tuple[int, bool]], now_ms: int) -> None:
        """Name to (incarnation, alive) of all members, this node included, as applied."""
        self._now_ms = now_ms
        for name, (incarnation, alive) in sorted(members.items()):
            if name == self._name:
                self._incarnation = incarnation
                continue
            peer = self._peer(name)
            if (peer.incarnation, peer.alive) != (incarnation, alive):
                peer.incarnation, peer.alive = incarnation, alive
                self._restart_copies(peer, now_ms)
        for name in [name for name in self._peers if name not in members and self._peers[name].alive]:
            self._peers[name].alive = False
            self._restart_copies(self._peers[name], now_ms)

    def take_over(
        self, queue: Queue, store: OwnerStore, min_in_sync: int, now_ms: int, after_group: int = 0,
        volatile: bool = False, unproven: bool = False,
    ) -> None:  # fmt: skip
        """This node owns the queue from `queue.epoch` on. With `after_group` all that `store` holds is durable here.

        `volatile`: durability "memory", whose records are durable here as soon as they are cut. `unproven`: what
        `store` holds is known from this disk alone.
        """
        self._now_ms = now_ms
        self.give_up(queue.queue_id)
        assert queue.owner == self._name, "only the owner that the map names takes over"
        owned = Owned(
            queue.queue_id, queue.epoch, queue.version, (), queue.in_sync, min_in_sync, volatile, store,
            in_flight=0 if volatile else after_group, unproven=unproven, may_own=(*queue.in_sync, *queue.eligible),
        )  # fmt: skip
        self._owned[queue.queue_id] = owned
        self._flying[queue.queue_id] = None
        if after_group > self._durable:
            self._undurable.setdefault(after_group, []).append(queue.queue_id)
        self._set_replicas(owned, queue.replicas, now_ms)
        self._changed(owned)
        self._try_commit(owned)
        self._pump_all(now_ms)

    def entity_changed(self, queue: Queue, min_in_sync: int, now_ms: int) -> None:
        """In-sync set, version or replicas changed, with the same owner and epoch."""
        self._now_ms = now_ms
        owned = self._owned.get(queue.queue_id)
        if owned is None or owned.epoch != queue.epoch:
            return
        assert queue.version >= owned.version, "the map never goes back"
        if queue.version > owned.version:  # only now are all proposals that were made before dead
            owned.version = queue.version
            owned.in_sync, owned.may_own = queue.in_sync, (*queue.in_sync, *queue.eligible)
            owned.added.clear()
            owned.proposed_ms = None
        owned.min_in_sync = min_in_sync
        self._set_replicas(owned, queue.replicas, now_ms)
        self._changed(owned)
        self._try_commit(owned)
        self._pump_all(now_ms)

    def give_up(self, queue_id: int) -> None:
        """The queue is another node's, or gone."""
        owned = self._owned.pop(queue_id, None)
        if owned is None:
            return
        self._flying.pop(queue_id, None)
        self._changing.pop(queue_id, None)
        for node in owned.copies:
            self._drop_copy(self._peers[node], queue_id)

    def _set_replicas(self, owned: Owned, replicas: Sequence[str], now_ms: int) -> None:
        owned.replicas = tuple(replicas)
        nodes = dict.fromkeys((*replicas, *owned.in_sync))
        for node in [node for node in owned.copies if node not in nodes]:
            del owned.copies[node]
            owned.joining.pop(node, None)
            self._drop_copy(self._peers[node], owned.queue_id)
        for node in nodes:
            if node != self._name and node not in owned.copies:
                peer = self._peer(node)
                copy = owned.copies[node] = peer.queues[owned.queue_id] = Copy(node, progress_ms=now_ms)
                self._restart(peer, owned, copy, now_ms)

    def copy_lost(self, queue_id: int, node: str, now_ms: int) -> None:
        """The map says that the copy there is damaged and begins anew: nothing that was heard of it counts."""
        owned, peer = self._owned.get(queue_id), self._peer(node)
        if owned is not None and node in owned.copies:
            self._restart(peer, owned, owned.copies[node], now_ms)
            self._changed(owned)
            self._offers.pump(peer, now_ms)

    def hurry(self, queue_id: int, now_ms: int) -> None:
        """Clients wait for the queue: until its first sync is complete, it comes before those that nobody waits for."""
        owned = self._owned.get(queue_id)
        if owned is None or not owned.first:
            return
        for node in owned.waits_for():
            copy = owned.copies.get(node)
            if copy is not None and copy.state is State.WAITING:
                self._offers.hurry(self._peers[node], owned, now_ms)

    def awaits(self, queue_id: int) -> bool:
        """Whether something that clients wait for is not committed yet."""
        owned = self._owned.get(queue_id)
        return owned is not None and not owned.first and owned.in_flight is not None

    def compare(self, queue_id: int) -> int:
        """Says to the copies that are synced what they should be, for their own judgement; how many there are."""
        return self._offers.compare(queue_id)

    def copies(self, queue_id: int) -> tuple[Copy, ...]:
        """The copies of an owned queue, to look at."""
        owned = self._owned.get(queue_id)
        return () if owned is None else tuple(owned.copies.values())

    def _drop_copy(self, peer: Peer, queue_id: int) -> None:
        peer.queues.pop(queue_id, None)
        peer.unsynced.pop(queue_id, None)
        self._offers.ended(peer, queue_id)

    def _peer(self, name: str) -> Peer:
        return self._peers.setdefault(name, Peer(name, since_ms=self._now_ms))

    # -- links ------------------------------------------------------------------------------------------------

    def linked(self, peer: str, now_ms: int) -> None:
        """A new link to the peer; whatever the one before carried is lost."""
        self.unlinked(peer, now_ms)
        self._peer(peer).linked = True
        self._peer(peer).since_ms = now_ms
        self._restart_copies(self._peer(peer), now_ms)

    def unlinked(self, peer: str, now_ms: int) -> None:
        """The link is gone. Until the next `linked` the host hands over nothing of this peer."""
        self._now_ms = now_ms
        it = self._peer(peer)
        if not it.linked:
            return
        it.linked, it.since_ms, it.newest_group = False, now_ms, 0
        self._restart_copies(it, now_ms)

    def _restart_copies(self, peer: Peer, now_ms: int) -> None:
        """All copies there begin anew: another link, another incarnation, or an end of either."""
        peer.owed.clear()
        peer.owed_bytes = 0
        for waiting in (peer.urgent, peer.idle, peer.large, peer.later, peer.active):
            waiting.clear()
        for queue_id, copy in tuple(peer.queues.items()):
            owned = self._owned[queue_id]
            self._restart(peer, owned, copy, now_ms)
            self._changed(owned)
        self._offers.pump(peer, now_ms)

    def _restart(self, peer: Peer, owned: Owned, copy: Copy, now_ms: int) -> None:
        """The copy counts for nothing any more, and is synced again when it can be."""
        if copy.state is State.SYNCED:
            copy.progress_ms = now_ms
        copy.incarnation = peer.incarnation
        copy.owed_first = copy.owed_last = copy.sync = 0
        peer.unsynced[owned.queue_id] = None
        self._offers.ended(peer, owned.queue_id)
        if peer.linked and peer.alive:
            copy.move(State.WAITING)
            self._offers.enqueue(peer, owned)
        elif copy.state is not State.APART:
            copy.move(State.APART)
        if copy.node in owned.joining:
            del owned.joining[copy.node]
            self._try_commit(owned)

    def _pump_all(self, now_ms: int) -> None:
        for peer in self._peers.values():
            self._offers.pump(peer, now_ms)

    # -- groups -----------------------------------------------------------------------------------------------

    def may_write(self, queue_id: int) -> bool:
        """Whether records of the queue may go into the group that is cut next."""
        owned = self._owned.get(queue_id)
        return (
            owned is not None
            and not owned.first
            and owned.in_flight is None
            and not (owned.hand_over is not None and owned.hand_over.proposed)
        )

    def group_cut(self, group: int, parts: Sequence[tuple[int, Records]], now_ms: int) -> None:
        """A group is on its way to the disk; `parts` are the records of each of these queues in it, verbatim."""
        self._now_ms = now_ms
        assert group > self._offers.group, "groups are cut in the order of their numbers"
        for queue_id, _ in parts:
            assert self.may_write(queue_id), "a queue has one group in flight, and none before its first sync"
            self._owned[queue_id].in_flight = group
            self._flying[queue_id] = None
        self._undurable.setdefault(group, []).extend(queue_id for queue_id, _ in parts)  # others may wait for it
        for peer in self._peers.values():
            if peer.linked and peer.queues:
                self._append(peer, group, parts, now_ms)
        self._offers.group = group
        for queue_id, _ in parts:
            if (owned := self._owned.get(queue_id)) is not None:
                self._try_commit(owned)

    def _append(self, peer: Peer, group: int, parts: Sequence[tuple[int, Records]], now_ms: int) -> None:
        heads: list[tuple[int, int, int]] = []
        payload: list[Records] = []
        for queue_id, records in parts:
            copy = peer.queues.get(queue_id)
            if copy is None or not copy.follows:
                continue
            owned = self._owned[queue_id]
            if peer.owed_bytes > OWED_BYTES_MAX and peer.name not in owned.waits_for():
                self._fell_behind(peer, owned, copy, "too much is unacknowledged", now_ms)
                continue
            copy.owed_first = copy.owed_first or group
            copy.owed_last = group
            heads.append((queue_id, owned.epoch, len(records)))
            payload.append(records)
        if not heads:
            return
        size = sum(map(len, payload))
        peer.owed.append(Sent(group, now_ms, size, tuple(queue_id for queue_id, _, _ in heads)))
        peer.owed_bytes += size
        peer.newest_group = group
        self._host.send(peer.name, Append(group, tuple(heads)), payload)

    def _fell_behind(self, peer: Peer, owned: Owned, copy: Copy, why: str, now_ms: int) -> None:
        self._host.replication_event("fell_behind", owned.queue_id, peer.name, why)
        self._restart(peer, owned, copy, now_ms)
        self._changed(owned)

    def group_durable(self, group: int, now_ms: int) -> None:
        """Every group up to this one is durable here."""
        self._now_ms = now_ms
        self._durable = max(self._durable, group)
        for cut in [cut for cut in self._undurable if cut <= group]:
            for queue_id in self._undurable.pop(cut):
                if (owned := self._owned.get(queue_id)) is not None:
                    self._try_commit(owned)

    def _try_commit(self, owned: Owned) -> None:
        try:
            self._commit(owned)
        except Exception as error:
            self.stumbled(owned.queue_id, error)

    def stumbled(self, queue_id: int, error: Exception) -> None:
        """A mistake over one queue costs this node's copy of it (docs/decisions/040)."""
        self.give_up(queue_id)
        self._host.stumbled(queue_id, error)

    def _commit(self, owned: Owned) -> None:
        """Commits the group in flight when everybody who must have it has it."""
        group = owned.in_flight
        if group is None or not self._committable(owned, group):
            return
        owned.in_flight = None
        self._flying.pop(owned.queue_id, None)
        if owned.first:
            owned.first = owned.unproven = False
            owned.doubt_until_ms = None
            self._host.first_sync_complete(owned.queue_id)
        else:
            self._host.committed(owned.queue_id, group)
        self._hand_overs.go_on(owned)

    def _committable(self, owned: Owned, group: int) -> bool:
        if len(owned.in_sync) < owned.min_in_sync or self._name not in owned.in_sync or owned.heir is not None:
            return False
        if group > self._durable and not owned.volatile:
            return False
        for node in owned.waits_for():
            copy = owned.copies.get(node)
            if node != self._name and (copy is None or copy.state is not State.SYNCED or copy.owed_last):
                return False
        return True

    # -- what peers say ---------------------------------------------------------------------------------------

    def received(self, peer: str, message: Any, _payload: memoryview, now_ms: int) -> None:
        """AppendAck, SyncWant, SyncDone or SyncRefused, over the present link. Raises BadMessage."""
        self._now_ms = now_ms
        it = self._peer(peer)
        if not it.linked:
            return
        if isinstance(message, AppendAck):
            self._acked(it, message, now_ms)
        elif isinstance(message, SyncWant | SyncDone | SyncRefused):
            owned = self._owned.get(message.queue_id)
            copy = it.queues.get(message.queue_id)
            if owned is None or copy is None or not copy.follows or copy.sync != message.sync:
                if isinstance(message, SyncWant):  # of a sync that ended here: what it waits for nobody else may ask
                    self._host.send(peer, SyncOver(message.queue_id, message.epoch, message.sync))
                return
            if copy.state is State.SYNCED:  # it is not what it should be (Compare)
                if isinstance(message, SyncRefused):
                    self._fell_behind(it, owned, copy, message.why, now_ms)
                return
            if isinstance(message, SyncWant):
                self._offers.wanted(it, copy, message, now_ms)
            elif isinstance(message, SyncDone):
                self._synced(it, owned, copy, now_ms)
            else:
                copy.move(State.WAITING)
                self._offers.ended(it, owned.queue_id)
                self._refusals.refused(it, owned, copy, message, now_ms)
        else:
            raise BadMessage(f"{type(message).__name__} is not for an owner")
        self._offers.pump(it, now_ms)

    def _acked(self, peer: Peer, ack: AppendAck, now_ms: int) -> None:
        if ack.group > peer.newest_group:
            raise BadMessage(f"group {ack.group} was acknowledged, but {peer.newest_group} was the last one sent")
        for queue_id, epoch in ack.refused:  # before the rest counts
            owned, copy = self._owned.get(queue_id), peer.queues.get(queue_id)
            if owned and copy and copy.follows and owned.epoch == epoch and ack.group > copy.since_group:
                self._fell_behind(peer, owned, copy, "it refused records", now_ms)
        touched: dict[int, None] = {}
        while peer.owed and peer.owed[0].group <= ack.group:
            sent = peer.owed.popleft()
            peer.owed_bytes -= sent.bytes
            peer.pace.acked(now_ms - sent.sent_ms, now_ms)
            touched.update(dict.fromkeys(sent.queues))
        for queue_id in touched:
            copy = peer.queues.get(queue_id)
            if copy is None or not copy.owed_last:
                continue
            if copy.owed_last <= ack.group:
                copy.owed_first = copy.owed_last = 0
            else:
                copy.owed_first = max(copy.owed_first, ack.group + 1)
            owned = self._owned[queue_id]
            waited_for = peer.name in owned.waits_for()
            if not waited_for or peer.name in owned.joining:
                self._changed(owned)
            if waited_for:
                self._try_commit(owned)
                self._go_on(owned)

    def _synced(self, peer: Peer, owned: Owned, copy: Copy, now_ms: int) -> None:
        copy.move(State.SYNCED)
        copy.progress_ms = now_ms
        copy.behind, copy.refuses = False, ""
        peer.unsynced.pop(owned.queue_id, None)
        self._offers.ended(peer, owned.queue_id)
        self._host.replication_event("caught_up", owned.queue_id, peer.name, "")
        self._changed(owned)
        self._try_commit(owned)
        self._go_on(owned)

    def _go_on(self, owned: Owned) -> None:
        if self._owned.get(owned.queue_id) is owned:
            self._hand_overs.go_on(owned)

    # -- the in-sync set --------------------------------------------------------------------------------------

    def _changed(self, owned: Owned) -> None:
        if self._owned.get(owned.queue_id) is not owned:
            return  # what was proposed while this node owned it is answered, and it is gone, or owned anew
        self._changing[owned.queue_id] = None
        if self._changing_since_ms is None:
            self._changing_since_ms = self._now_ms

    def _reconsider(self, owned: Owned) -> None:
        """What a copy has said, or what was decided about it, may let the queue commit."""
        if self._owned.get(owned.queue_id) is owned:
            self._changed(owned)
            self._try_commit(owned)

    @property
    def due_ms(self) -> int | None:
        """By when `tick` should be called, besides every WATCH_MS; None: nothing is waiting."""
        return None if self._changing_since_ms is None else self._changing_since_ms + BATCH_MS

    @property
    def at_rest(self) -> bool:
        """A look at peers and queues would find nothing: it may come later than every WATCH_MS."""
        under_way = self._flying or self._proposing or self._changing or self._joining.queues or self._hand_overs.moving
        return not under_way and all(peer.at_rest for peer in self._peers.values())

    def tick(self, now_ms: int) -> None:
        """To be called at `due_ms`, and every WATCH_MS unless `at_rest`."""
        self._now_ms = now_ms
        if now_ms - self._watched_ms >= WATCH_MS:
            self._watched_ms = now_ms
            self._watch(now_ms)
        if self._changing_since_ms is not None and now_ms - self._changing_since_ms >= BATCH_MS:
            self._propose(now_ms)

    def _watch(self, now_ms: int) -> None:
        for peer in tuple(self._peers.values()):
            try:
                self._watch_peer(peer, now_ms)
            except Exception as error:
                self._host.link_stumbled(peer.name, error)
        for queue_id in tuple(self._proposing):
            owned = self._owned.get(queue_id)
            if owned is None or (owned.proposed_ms is None and not owned.added):
                del self._proposing[queue_id]
            if owned is not None and (owned.proposed_ms is None or now_ms - owned.proposed_ms >= PROPOSAL_MS):
                self._changed(owned)
        for queue_id in tuple(self._flying):
            self._try_commit(self._owned[queue_id])
        self._joining.watch(now_ms)
        self._hand_overs.watch(now_ms)

    def _watch_peer(self, peer: Peer, now_ms: int) -> None:
        owes = peer.owed and now_ms - peer.owed[0].sent_ms >= OWED_MS
        down_ms = 0 if peer.linked else now_ms - peer.since_ms
        bad = bool(owes) or down_ms >= LINK_DOWN_MS
        if owes:
            peer.pace.slow(now_ms)
        idle = bool(owes) or peer.linked or down_ms >= IDLE_DOWN_MS  # also those that wait for nothing are told
        if bad != peer.bad or (idle and peer.idle_pending):
            peer.bad, peer.idle_pending = bad, not idle
            for queue_id in peer.queues if idle else ():
                self._changed(self._owned[queue_id])
        if bad and not idle:
            for queue_id in self._flying:
                if peer.name in self._owned[queue_id].in_sync:
                    self._changed(self._owned[queue_id])
        # of those that nobody waits for nothing is to be proposed, and while a member is away they are thousands
        for queue_id in peer.unsynced if peer.linked else ():
            waiting = self._owned[queue_id]
            awaited = peer.name in waiting.in_sync or peer.name in waiting.added
            if awaited and now_ms - peer.queues[queue_id].progress_ms >= OWED_MS:
                self._changed(waiting)
        if peer.pace.recovered(now_ms):
            for queue_id in peer.queues:
                self._changed(self._owned[queue_id])
        self._offers.pump(peer, now_ms)

    def _propose(self, now_ms: int) -> None:
        changing, self._changing = self._changing, {}
        self._changing_since_ms = None
        number = next(self._proposals)
        changes: list[InSyncProposal] = []
        for queue_id in changing:
            if self._owing(queue_id):
                continue  # the wiring has decided already, and entity_changed follows
            try:
                change = self._proposal(self._owned[queue_id], number, now_ms)
            except Exception as error:
                self.stumbled(queue_id, error)
            else:
                if change is not None:
                    changes.append(change)
        for start in range(0, len(changes), PROPOSALS_MAX):
            part = tuple(changes[start : start + PROPOSALS_MAX])
            queues = tuple(change.queue_id for change in part)
            self._host.change_in_sync(part, partial(self._proposed, number, queues))

    def _proposal(self, owned: Owned, number: int, now_ms: int) -> InSyncProposal | None:
        if owned.heir is not None or (owned.proposed_ms is not None and now_ms - owned.proposed_ms < PROPOSAL_MS):
            return None  # asked again when that is decided, or by the next look
        if owned.in_doubt(now_ms):
            self._proposing[owned.queue_id] = None
            return None
        self._joining.begin(owned, now_ms)
        wish = self._wish(owned, now_ms)
        if wish == owned.in_sync and not owned.added:
            return None
        # With additions under way the old set is proposed as well: it only raises the version, and so cancels them
        incarnations = tuple(self._incarnation_of(owned, node) for node in wish)
        owned.added.update(
            (node, incarnation)
            for node, incarnation in zip(wish, incarnations, strict=True)
            if node not in owned.in_sync
        )
        for node in wish:
            owned.joining.pop(node, None)
        owned.proposed_ms, owned.proposal = now_ms, number
        self._proposing[owned.queue_id] = None
        return InSyncProposal(
            QueueId(owned.queue_id), Epoch(owned.epoch), owned.version, tuple(map(NodeId, wish)),
            tuple(map(Incarnation, incarnations)),
        )  # fmt: skip

    def _proposed(self, number: int, queues: Sequence[int]) -> None:
        """The proposal's outcome is known; what was not taken may be proposed again. Additions stay in E."""
        for queue_id in queues:
            owned = self._owned.get(queue_id)
            if owned is not None and owned.proposal == number:
                owned.proposed_ms = None

    def _wish(self, owned: Owned, now_ms: int) -> tuple[str, ...]:
        bad: list[str] = []
        ready: list[str] = []
        for node, copy in owned.copies.items():
            peer = self._peers[node]
            stands_still = copy.state is not State.SYNCED and now_ms - copy.progress_ms >= OWED_MS
            if peer.bad or stands_still or copy.behind:
                bad.append(node)
            elif copy.has_all_before(owned.in_flight) and not peer.pace.was_slow:
                ready.append(node)
        return desired(self._name, owned.replicas, owned.in_sync, owned.min_in_sync, bad, ready)

    def _incarnation_of(self, owned: Owned, node: str) -> int:
        return self._incarnation if node == self._name else owned.copies[node].incarnation

    # -- handing over -----------------------------------------------------------------------------------------

    def transfer(self, queue_id: int, to: str, now_ms: int) -> bool:
        """Hands the queue to another member of its in-sync set; False: not now. `thaw` follows when it fails."""
        self._now_ms = now_ms
        return self._hand_overs.begin(queue_id, to, now_ms)

    def moves(self, queue_id: int) -> bool:
        """Whether a hand-over of the queue is under way."""
        owned = self._owned.get(queue_id)
        return owned is not None and owned.hand_over is not None
