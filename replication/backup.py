"""The backup's side of replication: copies on this node of queues with another owner.

Theory. Records of an owner go into this node's own journal, verbatim, with its next group commit. An answer
(AppendAck, SyncDone) leaves when everything that it covers is durable here, in link order. The host writes late:
between `write` and `folded` the store does not have the records yet. Steps that ask the store, an offer and the end
of a sync, therefore wait until all earlier records are folded; Appends behind a waiting offer wait with it. Buckets
of a sync that nobody waits for are requested at the pace of pacing.py.

A queue here either *follows* (its owner's offer came over the present link, at the map's epoch) or not. Parts for a
queue that does not follow are refused; a refused queue does not follow until the next offer.

    offer     1. cut foreign records, remove foreign seqs, lower attributes to the owner's; take its epochs
              2. compare bucket digests, request different ones, newest first (a stream's: oldest first)
    bucket    add missing records, set counts and dead; removals are remembered
    end       3. carry out the removals, raise attributes, except those that Appends have named since the offer;
                 when that is durable: SyncDone

A copy that may be elected (in the in-sync or eligible set) lacks at most the records of one group. Its sync is
*atomic*: the writes of all three steps are kept and written at the end, whole, and Appends wait behind them. The copy
is therefore elected in its state before the sync or after it. With half of a group it would count absent publishes,
or lack the count of present ones, and a message that moved from one seq to another could be in neither. Other copies
write as they read, in the order above: they are not elected before SyncDone, whatever they hold meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clusterbroker.journal.ranges import below, contains, intersect, merged, ranges_of, subtract

from .errors import BadMessage
from .following import Answer, Asked, Following, Link
from .messages import (
    AHEAD,
    BEHIND,
    LATER,
    OTHER,
    Append,
    AppendAck,
    Compare,
    Range,
    SyncBucket,
    SyncDone,
    SyncOffer,
    SyncOver,
    SyncRefused,
    SyncWant,
)
from .pacing import ROUND_BYTES, Pacing, Rate
from .places import claims, lacks, may_lack, offered_place, overwritten, place_of, went_back
from .ports import BackupHost, Replica, ReplicaStore
from .records import Records
from .sync import attribute_updates, bucket_range, compare, cut_point, foreign, lowered

WANTS_MAX = 4
"""Buckets that are asked for and not answered, per owner."""
SYNC_BYTES_MAX = 8 << 20
"""Bytes out of buckets that are not durable yet: with more, no bucket is asked for."""


class Backup:
    """All copies that node `name` holds of queues of others. Every `now_ms` is one monotonic clock, in ms."""

    def __init__(self, host: BackupHost, name: str, records: Records, round_bytes: int = ROUND_BYTES) -> None:
        self._host = host
        self._name = name
        self._records = records
        self._links: dict[str, Link] = {}
        self._marks: dict[int, int] = {}  # per queue, the newest mark of what was written
        self._done: dict[int, int] = {}  # per queue, the epoch at which SyncDone was last said
        self.ends: dict[int, int] = {}
        """Per queue, the seq before which everything that lives here is known as committed; the host keeps it."""
        self._behind: dict[int, int] = {}  # per queue, the epoch at which it was told that this copy lacks something
        self._folded = 0
        self._durable = 0
        self._now_ms = 0
        self._pacing = Pacing(round_bytes)
        self.rate = Rate()
        """What an operator allows of copies that nobody's publishes wait for."""
        self._due_ms: int | None = None  # when buckets may be asked for at the latest

    # -- links and roles --------------------------------------------------------------------------------------

    def linked(self, peer: str) -> None:
        """A new link: nothing that the one before carried is answered, nothing of it is followed."""
        self.unlinked(peer)
        self._links[peer] = Link(peer)

    def unlinked(self, peer: str) -> None:
        """The link is gone."""
        self._links.pop(peer, None)

    def stop(self, queue_id: int) -> None:
        """This node owns the queue now, or it is gone. The host drops what it was given and has not folded: so nothing
        of that is acknowledged."""
        for link in self._links.values():
            self._leave(link, queue_id)
            newest = next((answer.to.group for answer in reversed(link.answers) if isinstance(answer.to, Append)), 0)
            if newest:
                link.dropped[queue_id] = newest
            self._answer(link)
        for known in (self._marks, self._done, self._behind, self.ends):
            known.pop(queue_id, None)

    def stepped_down(self, queue_id: int, mark: int) -> None:
        """This node was the owner until now: all that its store holds is durable with this mark."""
        self._marks[queue_id] = max(self._marks.get(queue_id, 0), mark)

    # -- what owners say --------------------------------------------------------------------------------------

    def received(self, peer: str, message: Any, payload: memoryview, now_ms: int) -> None:
        """Append, SyncOffer, SyncBucket, SyncOver or Compare, over the present link. Raises BadMessage."""
        self._now_ms = now_ms
        link = self._links.get(peer)
        if link is None:
            return
        touched: tuple[int, ...] = ()  # an Append changes nothing of what syncs wait for
        if isinstance(message, Append):
            self._append(link, message, payload)
        elif isinstance(message, SyncOffer):
            self._offered(link, message)
        elif isinstance(message, SyncBucket):
            self._bucket(link, message, payload)
        elif isinstance(message, Compare):
            self._compared(link, message)
        elif isinstance(message, SyncOver):
            following = link.following.get(message.queue_id)
            if following is not None and following.sync == message.sync:
                self._leave(link, message.queue_id)
        else:
            raise BadMessage(f"{type(message).__name__} is not for a backup")
        if not isinstance(message, Append):
            touched = (message.queue_id,)
        self._pump(link, None if self._stuck(link) else touched)
        self._answer(link)

    def _append(self, link: Link, message: Append, payload: memoryview) -> None:
        whole = sum(size for _, _, size in message.parts)
        if whole != len(payload):
            raise BadMessage(f"the parts of an Append are {whole} bytes, its payload is {len(payload)}")
        self._pacing.live(self._now_ms)
        answer = Answer(message)
        at = 0
        for queue_id, epoch, size in message.parts:
            part = payload[at : at + size]
            at += size
            following = link.following.get(queue_id)
            store = None if following is None or following.epoch != epoch else self._current(link, following)
            if following is None or store is None:
                self._refuse(link, answer, queue_id, epoch)
            elif following.holds:
                following.held.append((answer, part))
                answer.holds += 1
            else:
                self._take(link, following, store, answer, part)
        link.answers.append(answer)

    def _current(self, link: Link, following: Following) -> ReplicaStore | None:
        """What is held of it here, if the map still says that this owner has the queue at this epoch."""
        replica = self._host.queue(following.queue_id)
        if replica is None or replica.owner != link.peer or replica.epoch != following.epoch:
            return None
        return replica.store

    def _take(self, link: Link, following: Following, store: ReplicaStore, answer: Answer, part: memoryview) -> None:
        if not self._host.sound(following.queue_id, part):
            self._host.replication_event("damaged", following.queue_id, link.peer, "records of an Append")
            self._refuse(link, answer, following.queue_id, following.epoch)
        else:
            if self._knows_all(following.queue_id):  # the owner writes a group when the one before is committed
                self.ends[following.queue_id] = store.emitted_end()
            if following.syncing:
                following.named |= self._host.attributes_named(part)
            answer.mark = max(answer.mark, self._write(following.queue_id, part))

    def _refuse(self, link: Link, answer: Answer, queue_id: int, epoch: int) -> None:
        self._leave(link, queue_id)
        if link.refused.get(queue_id) != epoch:  # said once per offer
            link.refused[queue_id] = epoch
            answer.refused[queue_id] = epoch

    def _leave(self, link: Link, queue_id: int) -> None:
        """The queue does not follow over this link any more; what waits behind its offer is refused."""
        following = link.following.pop(queue_id, None)
        link.syncs.pop(queue_id, None)
        if following is None:
            return
        link.wants -= len(following.asked)
        for answer, _ in following.held:
            answer.holds -= 1
            answer.refused[queue_id] = following.epoch

    def _write(self, queue_id: int, records: bytes | memoryview, epochs: tuple[Range, ...] | None = None) -> int:
        mark = self._host.write(queue_id, records, epochs)
        self._marks[queue_id] = max(self._marks.get(queue_id, 0), mark)
        return mark

    # -- a sync -----------------------------------------------------------------------------------------------

    def _offered(self, link: Link, offer: SyncOffer) -> None:
        replica = self._host.queue(offer.queue_id)
        self._leave(link, offer.queue_id)
        if replica is None or replica.owner != link.peer or replica.epoch != offer.epoch:
            self._decline(link, offer, "another owner or epoch is known here")
            return
        if replica.store is None:
            self._decline(link, offer, "no sound copy is held here")
            return
        link.refused.pop(offer.queue_id, None)
        link.syncs[offer.queue_id] = None
        link.following[offer.queue_id] = Following(offer.queue_id, offer.epoch, offer.sync, offer)
        self._proceed(link, offer.queue_id)

    def _decline(self, link: Link, message: SyncOffer | SyncBucket, why: str, ground: int = OTHER) -> None:
        self._host.send(link.peer, SyncRefused(message.queue_id, message.epoch, message.sync, why, ground))

    def _judge(self, offer: SyncOffer, replica: Replica, store: ReplicaStore) -> tuple[int, str]:
        """Whether one of the two disks went back (places.py): the ground to refuse the offer, if there is one."""
        held, offered = place_of(store.emitted_attributes()), offered_place(offer.attributes)
        if claims(store.epochs, replica.gap_epoch):
            if lacks(held, offered):
                return AHEAD, f"its owner's log ends at group {offered}, and up to {held - 1} all was committed"
            over = overwritten(store.epochs, offer.epochs, self.ends.get(offer.queue_id, 0))
            lost = [part for first, last in over for part in self._live(store, first, last)]
            if lost:
                return AHEAD, f"its owner has other messages than those that were committed as {lost[0][0]} and later"
            if offer.unproven and may_lack(held, offered):
                return LATER, f"its owner's log ends at group {offered}, this copy's at {held}"
        if replica.electable and went_back(held, offered) and not offer.behind:
            return BEHIND, f"this copy's log ends at group {held}, and up to {offered - 1} all was committed"
        return OTHER, ""

    @staticmethod
    def _live(store: ReplicaStore, first: int, last: int) -> list[Range]:
        """What lives of these seqs."""
        buckets = [
            bucket for bucket, _ in store.emitted_buckets() if intersect([bucket_range(bucket)], [(first, last)])
        ]
        return [part for bucket in buckets for part in intersect(list(store.emitted_live(bucket)), [(first, last)])]

    def _proceed(self, link: Link, queue_id: int) -> None:
        """The steps of a sync that ask the store, each once it knows all that was written: what waited behind an offer
        is written by its first step, and the last one would lower the attributes that came with it."""
        following = link.following.get(queue_id)
        if following is not None and following.offer is not None and self._knows_all(queue_id):
            self._begin(link, following, following.offer)
        following = link.following.get(queue_id)  # not any more, if what waited was damaged
        if following is not None and following.ends and self._knows_all(queue_id):
            self._finish(link, following)

    def _knows_all(self, queue_id: int) -> bool:
        """Whether the queue's store holds everything that was written to it."""
        return self._marks.get(queue_id, 0) <= self._folded

    def _store(self, queue_id: int) -> ReplicaStore:
        replica = self._host.queue(queue_id)
        assert replica is not None, "a queue that follows is in the map"
        assert replica.store is not None, "a queue that follows is held here"
        return replica.store

    def _begin(self, link: Link, following: Following, offer: SyncOffer) -> None:
        """Steps 1 and 2; then what waited behind the offer."""
        queue_id, epoch = offer.queue_id, offer.epoch
        store = self._store(queue_id)
        replica = self._host.queue(queue_id)
        assert replica is not None, "a queue that follows is in the map"
        ground, why = self._judge(offer, replica, store)
        if ground == BEHIND and self._behind.get(queue_id) != epoch:
            self._behind[queue_id] = epoch
            self._host.replication_event("rolled_back", queue_id, self._name, why)
        if ground != OTHER:
            self._decline(link, offer, why, ground)
            self._leave(link, queue_id)
            return
        own = dict(store.emitted_buckets())
        # it may have been added since it last said SyncDone at this epoch, before its own map tells
        following.atomic = replica.electable or self._done.get(queue_id) == epoch
        following.alien = foreign(store.epochs, store.next_seq, offer.epochs, offer.next_seq)
        out: list[bytes] = []
        cut = cut_point(following.alien, store.next_seq)
        if cut is not None:
            out.append(self._records.cut(queue_id, epoch, cut))
            self.ends[queue_id] = min(self.ends.get(queue_id, 0), cut)
            following.emptied = following.atomic and cut <= 1
        inner = following.alien if cut is None else below(following.alien, cut)
        gone = [part for bucket in sorted(own) for part in intersect(list(store.emitted_live(bucket)), inner)]
        if gone:
            out.append(self._records.settle(queue_id, epoch, merged(gone)))
        attributes = dict(offer.attributes)  # in their order: the longest silent first
        for name, upto in lowered(store.emitted_attributes(), attributes):
            attributes[name] = upto
            out.append(self._records.set_attribute(queue_id, epoch, name, upto))
        if offer.reserved > store.emitted_reserved():
            out.append(self._records.reserve(queue_id, epoch, offer.reserved))
        if out or tuple(store.epochs) != offer.epochs:
            self._put(following, b"".join(out), offer.epochs)
        wanted, ended = compare(own, offer.buckets, following.alien)
        following.wanted = wanted[::-1] if store.oldest_first else wanted  # the next one last
        link.wanting[queue_id] = None
        for bucket in ended:
            following.remove[bucket] = subtract(list(store.emitted_live(bucket)), following.alien)
        following.attributes = attributes
        following.next_seq = offer.next_seq
        following.known_end = store.next_seq if cut is None else cut
        following.offer = None
        following.syncing = True
        if not following.atomic:
            self._release(link, following)

    def _put(
        self, following: Following, data: bytes | memoryview, epochs: tuple[tuple[int, int], ...] | None = None
    ) -> int:
        """Writes records of a sync, or keeps them for its end when it is atomic."""
        if not following.atomic:
            return self._write(following.queue_id, data, epochs)
        following.kept.append(data)
        following.kept_epochs = epochs or following.kept_epochs
        return 0

    def _release(self, link: Link, following: Following) -> None:
        """What waited behind the offer, or behind an atomic sync, has its turn."""
        held, following.held = following.held, []
        for answer, part in held:
            answer.holds -= 1
            if link.following.get(following.queue_id) is following:
                self._take(link, following, self._store(following.queue_id), answer, part)
            else:
                self._refuse(link, answer, following.queue_id, following.epoch)

    @staticmethod
    def _stuck(link: Link) -> bool:
        """Whether answers, or buckets of other queues, wait for a sync: perhaps for one that the map has ended."""
        return link.wants >= WANTS_MAX or bool(link.answers and link.answers[0].holds)

    def _pump(self, link: Link, touched: Sequence[int] | None = None) -> None:
        """Asks for buckets, the oldest sync first, and ends syncs that lack nothing: of all, or of those for which
        something came. (A peer has hundreds of syncs under way.)"""
        for queue_id in tuple(link.syncs) if touched is None else touched:
            if queue_id not in link.syncs:
                continue
            if self._current(link, link.following[queue_id]) is None:
                self._leave(link, queue_id)
            elif link.following[queue_id].busy:
                self._proceed(link, queue_id)
        if link.notes:
            link.forget_durable(self._durable)
        for queue_id in tuple(link.wanting):
            if link.wants >= WANTS_MAX or link.sync_bytes >= SYNC_BYTES_MAX:
                break
            following = link.following.get(queue_id)
            if following is None or not following.wanted:
                del link.wanting[queue_id]
                continue
            if not self._current(link, following):  # the map ended it, and the host has not carried that out yet
                self._leave(link, queue_id)
                continue
            spare = not following.atomic and self._host.spare(queue_id)
            bounded = self._bounded and not following.atomic and not self._host.waited_for(queue_id)
            while following.wanted and link.wants < WANTS_MAX and link.sync_bytes < SYNC_BYTES_MAX:
                if bounded and not self._allowed():
                    break
                if spare and not self._in_time(link):
                    break
                self._ask(link, following, following.wanted.pop())

    @property
    def _bounded(self) -> bool:
        return self.rate.paused or self.rate.limit_bytes > 0

    def _allowed(self) -> bool:
        """Whether the operator's bound allows for one more bucket."""
        if self.rate.may_ask(sum(link.wants * link.bucket_bytes for link in self._links.values()), self._now_ms):
            return True
        self._wake(self.rate.opens_ms(self._now_ms))
        return False

    def _wake(self, at_ms: int) -> None:
        self._due_ms = at_ms if self._due_ms is None else min(self._due_ms, at_ms)

    def _in_time(self, link: Link) -> bool:
        """Whether the pace allows for one more bucket of a sync that nobody waits for."""
        under_way = sum(other.buckets for other in self._links.values())
        if not self._pacing.may_ask(under_way, link.bucket_bytes, self._now_ms):
            self._wake(self._pacing.opens_ms(self._now_ms))
            return False
        self._pacing.asked(self._now_ms)
        return True

    def _ask(self, link: Link, following: Following, bucket: int) -> None:
        asked = following.partial.pop(bucket, None)
        if asked is None:
            store = self._store(following.queue_id)
            mine = below(subtract(list(store.emitted_live(bucket)), following.alien), following.next_seq)
            dead = dict(store.emitted_dead(bucket))
            have = subtract(mine, ranges_of(dead))  # a dead one may have to be revived, which takes its body
            asked = Asked(mine, have, dict(store.emitted_counts(bucket)), dead)
        following.asked[bucket] = asked
        link.wants += 1
        self._host.send(
            link.peer,
            SyncWant(following.queue_id, following.epoch, following.sync, bucket, tuple(asked.have)),
        )

    def _bucket(self, link: Link, message: SyncBucket, payload: memoryview) -> None:
        following = link.following.get(message.queue_id)
        if following is None or following.sync != message.sync or self._current(link, following) is None:
            return  # superseded
        asked = following.asked.pop(message.bucket, None)
        if asked is None:
            raise BadMessage(f"bucket {message.bucket} of queue {message.queue_id} was not asked for")
        link.wants -= 1
        if subtract(merged(message.live), [bucket_range(message.bucket)]):
            raise BadMessage(f"bucket {message.bucket} of queue {message.queue_id} is said to hold {message.live}")
        got = self._host.verify(message.queue_id, payload) if len(payload) else ()
        live = below(merged(message.live), following.next_seq)
        missing = subtract(live, asked.have)
        if got is None or subtract(merged(got), missing):
            self._decline(link, message, "a bucket's records are damaged, or not those asked for")
            self._host.replication_event("damaged", message.queue_id, link.peer, f"bucket {message.bucket}")
            self._leave(link, message.queue_id)
            return
        got = merged(got)
        mark = self._write_bucket(following, message, asked, live, got, payload)
        link.note(mark, len(payload))
        self._pacing.took(len(payload))
        self.rate.took(len(payload))
        asked.have = merged((*asked.have, *got))
        following.known_end = max([following.known_end, *(last + 1 for _, last in got)])
        if subtract(live, asked.have):  # it did not fit
            following.partial[message.bucket] = asked
            following.wanted.append(message.bucket)
            link.wanting[message.queue_id] = None
        else:
            following.remove[message.bucket] = subtract(asked.mine, live)

    def _compared(self, link: Link, message: Compare) -> None:
        """A copy that is synced and differs is synced anew. (Not now, if its store does not know all: the owner asks
        again some day.)"""
        following = link.following.get(message.queue_id)
        if following is None or following.sync != message.sync or following.holds or following.syncing:
            return
        if self._current(link, following) is None or not self._knows_all(message.queue_id):
            return
        own = dict(self._store(message.queue_id).emitted_buckets())
        wanted, ended = compare(own, message.buckets, ())
        if wanted or ended:
            why = f"{len(wanted) + len(ended)} buckets differ from the owner's, the first is {(wanted or ended)[0]}"
            self._host.replication_event("differs", message.queue_id, self._name, why)
            self._leave(link, message.queue_id)
            self._host.send(link.peer, SyncRefused(message.queue_id, message.epoch, message.sync, why))

    def _write_bucket(
        self, following: Following, message: SyncBucket, asked: Asked, live: Sequence[Range], got: Sequence[Range],
        payload: memoryview,
    ) -> int:  # fmt: skip
        queue_id, epoch = following.queue_id, following.epoch
        out: list[bytes | memoryview] = []
        revived = intersect(ranges_of(asked.dead), got)
        if revived:
            out.append(self._records.settle(queue_id, epoch, revived))
        out.append(payload)
        counts = dict(message.counts)
        known = intersect(live, merged((*asked.have, *got)))
        for seq in sorted({*counts, *asked.counts}):
            differs = asked.counts.get(seq, 0) != counts.get(seq, 0)
            if contains(known, seq) and (differs or contains(got, seq)):
                out.append(self._records.count(queue_id, epoch, seq, counts.get(seq, 0)))
        for seq, reason in message.dead:
            if contains(known, seq):
                out.append(self._records.dead(queue_id, epoch, seq, reason))
        data = b"".join(out)
        return self._put(following, data) if data else 0

    def _finish(self, link: Link, following: Following) -> None:
        """Step 3. The store knows all that was written, so numbers are never lowered here."""
        queue_id, epoch = following.queue_id, following.epoch
        out: list[bytes | memoryview] = [*following.kept]
        gone = merged(part for ranges in following.remove.values() for part in ranges)
        if gone:
            out.append(self._records.settle(queue_id, epoch, gone))
        store = self._store(queue_id)
        end = following.known_end if following.atomic else max(following.known_end, store.next_seq)
        if end < following.next_seq:  # the last ones are gone at the owner: nobody gives their seqs again
            out.append(self._records.reserve(queue_id, epoch, following.next_seq - 1))
        known = {} if following.emptied else dict(store.emitted_attributes())
        if following.atomic:  # what lowers them is written with this
            for name, upto in lowered(known, following.attributes):
                del known[name]
                if upto:
                    known[name] = upto
        for name, upto in attribute_updates(known, following.attributes, following.named):
            out.append(self._records.set_attribute(queue_id, epoch, name, upto))
        if out or following.kept_epochs is not None:
            self._write(queue_id, b"".join(out), following.kept_epochs)
        following.end_sync()
        link.syncs.pop(queue_id)
        self._done[queue_id] = epoch
        done = Answer(SyncDone(queue_id, epoch, following.sync), self._marks.get(queue_id, 0))
        link.answers.append(done)
        self._release(link, following)

    # -- what the disk and the clock say ----------------------------------------------------------------------

    @property
    def syncing(self) -> int:
        """So many copies here are being brought up to date, or wait for that."""
        return sum(len(link.syncs) for link in self._links.values())

    @property
    def due_ms(self) -> int | None:
        """By when `tick` should be called; None: no sync waits for the time."""
        return self._due_ms

    def tick(self, now_ms: int) -> None:
        """To be called at `due_ms`."""
        self._now_ms = now_ms
        self._due_ms = None
        for link in tuple(self._links.values()):
            self._go_on(link)

    def folded(self, mark: int) -> None:
        """Everything written up to this mark stands in the stores."""
        self._folded = max(self._folded, mark)
        for link in tuple(self._links.values()):
            self._go_on(link)

    def _go_on(self, link: Link) -> None:
        try:
            if link.syncs:
                self._pump(link)
            self._answer(link)
        except Exception as error:
            self.unlinked(link.peer)  # nothing is acknowledged over it any more
            self._host.link_stumbled(link.peer, error)

    def durable(self, mark: int, now_ms: int) -> None:
        """Everything written up to this mark is durable here (and folded)."""
        self._now_ms = now_ms
        self._durable = max(self._durable, mark)
        for link in self._links.values():  # also where no sync is left: the pace counts what is under way over all
            if link.notes:
                link.forget_durable(self._durable)
        touched = () if mark <= self._folded else None  # else what was folded is known, and buckets may be asked for
        self._folded = max(self._folded, mark)
        for link in tuple(self._links.values()):
            if link.syncs:
                self._pump(link, touched)
            if link.answers or link.dropped:
                self._answer(link)

    def _answer(self, link: Link) -> None:
        """Sends what may be said now, in order; neighbouring acknowledgements become one. One that refuses ends with
        the last group of which that is true: the owner compares that with the offers that it has made since."""
        group, refused = 0, dict[int, int]()
        while link.answers and not link.answers[0].holds and link.answers[0].mark <= self._durable:
            answer = link.answers.popleft()
            if isinstance(answer.to, Append):
                refuses = answer.refused
                if link.dropped:
                    this, parts = answer.to.group, answer.to.parts
                    refuses |= {queue_id: epoch for queue_id, epoch, _ in parts if link.drops(queue_id, this)}
                if refused.keys() - refuses.keys():
                    self._host.send(link.peer, AppendAck(group, tuple(refused.items())))
                group, refused = answer.to.group, refuses
                continue
            following = link.following.get(answer.to.queue_id)
            if following is None or following.sync != answer.to.sync:
                continue
            if group:
                self._host.send(link.peer, AppendAck(group, tuple(refused.items())))
                group, refused = 0, {}
            self._host.send(link.peer, answer.to)
        if not link.answers:
            link.dropped.clear()
        if group:
            self._host.send(link.peer, AppendAck(group, tuple(refused.items())))
