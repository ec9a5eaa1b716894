"""A replicated queue's rings and their model, as one life: an owner, two replicas, take-overs, syncs, restarts.

Whatever is done to one is done to the other, and the answers are the same. In each a replica that has folded
every group of its owner says of itself what the owner says of what it has emitted, after every group; so does a node
that was started again from its checkpoint and its log's tail; and a replica that was brought there by buckets.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from clusterbroker.broker.queues.states import LEASED, READY
from clusterbroker.journal.layout import Location
from tests.budget import examples
from tests.property.ring_life import NODES, QUEUE_ID, Half, Node, RingLife


def told(ring: Any) -> dict[str, Any]:
    """The emitted state, as far as a sync looks at it."""
    buckets = ring.emitted_buckets()
    return {
        "end": ring.emitted_end(),
        "reserved": ring.emitted_reserved(),
        "producers": sorted(ring.emitted_attributes().items()),
        "buckets": buckets,
        "live": [ring.emitted_live(bucket) for bucket, _ in buckets],
        "counts": [ring.emitted_counts(bucket) for bucket, _ in buckets],
        "dead": [ring.emitted_dead(bucket) for bucket, _ in buckets],
        "epochs": ring.checkpoint_meta().get("epochs", []),
    }


def waiting(first: int, here: list[int], messages: list[Any], absent: list[Location]) -> tuple[Any, ...]:
    """What `Ring.waiting` says, of messages their bodies: the model has messages of its own."""
    return first, here, [bytes(one.payload) for one in messages], absent


class RingCluster(RingLife):
    def begin(self) -> None:
        self.following = {1, 2}
        self.held: dict[int, int] = {}
        self.loose: list[int] = []
        self.seen: set[int] = set()  # handed out
        self.asked: set[int] = set()  # leased, and shown when a group that is still to be written is committed
        self.written: set[int] = set()  # those of the group on its way

    # -- the owner's life -------------------------------------------------------------------------------------

    @rule(count=st.sampled_from([1, 2, 7, 7, 7, 270]), priority=st.integers(0, 4), producer=st.integers(0, 2))
    def publish(self, count: int, priority: int, producer: int) -> None:
        first = self.published
        self.published += count

        def act(half: Half) -> Any:
            ring = half.nodes[self.owner].ring
            answer = ring.append_records(half.records(first, count, priority), 1000 + first)
            ring.set_attribute(b"p%d" % producer, self.published)
            return answer

        assert self.both(act)[1] == count

    @rule(which=st.integers(0, 1), credit=st.sampled_from([0, 1, 1 << 40]))
    def credit(self, which: int, credit: int) -> None:
        """A node's consumer may have so many more."""

        def grant(half: Half) -> Any:
            taker = half.takers[which]
            taker.limit = taker.delivered + credit
            return taker.has_credit, taker.room

        self.both(grant)

    @rule(limit=st.sampled_from([1, 5, 1 << 20]))
    def dispatch(self, limit: int) -> None:
        def act(half: Half) -> Any:
            half.load(self.owner)
            ring = half.nodes[self.owner].ring
            count, why = half.module.dispatch(ring, half.takers, 0, limit)
            sent = [half.record.read_records(taker.out.take()) for taker in half.takers]
            seen = [[(seq, again, count, m.payload, m.format) for seq, m, count, again in one] for one in sent]
            return count, why, seen

        _, _, sent = self.both(act)
        for holder, records in zip((1, 253), sent, strict=True):
            for seq, again, *_ in records:
                assert seq not in self.held, "a message is at one node"
                assert again or seq not in self.seen, "a second hand-out says so"
                assert seq < self.owners(lambda ring: ring.committed), "only what all have is handed out"
                self.held[seq] = holder
                self.seen.add(seq)

    @precondition(lambda self: self.held)
    @rule(
        pick=st.integers(0, 400),
        width=st.sampled_from([0, 3, 1000]),
        holder=st.sampled_from([1, 253]),
        how=st.sampled_from(["settle", "settle", "requeue", "counted", "take"]),
    )
    def answer(self, pick: int, width: int, holder: int, how: str) -> None:
        first = sorted(self.held)[pick % len(self.held)]
        last = first + width
        mine = [seq for seq in sorted(self.held) if first <= seq <= last and self.held[seq] == holder]
        assert self.owners(lambda ring: ring.count_held(first, last, holder)) == len(mine)
        if how == "settle":
            assert self.owners(lambda ring: ring.settle_held(first, last, holder)) == len(mine)
        elif how == "take":
            assert self.owners(lambda ring: ring.take_held(first, last, holder)) == mine
            self.loose += mine
        else:
            assert self.owners(lambda ring: ring.requeue_held(first, last, holder, how == "counted")) == len(mine)
        for seq in mine:
            del self.held[seq]

    @precondition(lambda self: self.loose)
    @rule(pick=st.integers(0, 100), how=st.sampled_from(["settle", "die", "die", "requeue"]), count=st.integers(1, 30))
    def decide(self, pick: int, how: str, count: int) -> None:
        for _ in range(min(count, len(self.loose))):
            seq = self.loose.pop(pick % len(self.loose))
            if how == "settle":
                self.owners(lambda ring, seq=seq: ring.settle(seq))
            elif how == "die":
                self.owners(lambda ring, seq=seq: ring.hold_dead(seq, 3))
            else:
                self.owners(lambda ring, seq=seq: ring.requeue(seq, True))

    @rule(pick=st.integers(0, 100))
    def bury(self, pick: int) -> None:
        dead = self.owners(lambda ring: ring.dead())
        if dead:
            self.owners(lambda ring: ring.settle(dead[pick % len(dead)][0]))

    @precondition(lambda self: self.loose)
    @rule(count=st.integers(1, 30))
    def several_die(self, count: int) -> None:
        dying, self.loose = self.loose[:count], self.loose[count:]
        self.owners(lambda ring: ring.hold_all_dead(dying, 3))

    @rule(first=st.integers(0, 100), count=st.integers(0, 30))
    def several_are_buried(self, first: int, count: int) -> None:
        seqs = [seq for seq, *_ in self.owners(lambda ring: ring.dead())[first : first + count]]
        self.owners(lambda ring: ring.settle_all(seqs))

    @rule(first=st.integers(0, 400), count=st.integers(1, 30))
    def several_are_set_aside(self, first: int, count: int) -> None:
        seqs = [seq for seq, *_ in self.owners(lambda ring: ring.living(first, ring.next_seq, count))]

        def taken(ring: Any) -> Any:
            aside, messages, others = ring.set_all_aside(seqs)
            return aside, [message is not None and message.payload for message in messages], others

        self.loose += self.owners(taken)[0]

    @rule(pick=st.integers(0, 400), stays=st.booleans())
    def an_operator_takes_one(self, pick: int, stays: bool) -> None:
        """Any ready message, wherever it stands; what is put back is as it was."""
        before = self.owners(lambda ring: ring.living(1, ring.next_seq, 1 << 20))
        ready = [seq for seq, state, *_ in before if state == READY]
        assert len(ready) == self.owners(lambda ring: ring.ready)
        if before[3:]:
            assert self.owners(lambda ring: ring.living(before[3][0], ring.next_seq, 5)) == before[3:8]
        for seq, state, *_ in before[:2]:
            if state != READY:
                assert self.owners(lambda ring, seq=seq: ring.set_aside(seq)) is False
        assert self.owners(lambda ring: ring.all_ready([seq for seq, *_ in before])) is (len(ready) == len(before))
        first, found = 1, list[int]()
        while first < self.owners(lambda ring: ring.next_seq):  # in slices of all sizes
            asked = first, 1 << 40, 1 + pick % 7, 1 + 50 * pick
            first, here, bodies, absent = self.owners(lambda ring, asked=asked: waiting(*ring.waiting(*asked)))
            assert len(here) == len(bodies)
            found += sorted([*here, *(seq for seq, *_ in absent)])
        assert found == ready
        if ready:
            seq = ready[pick % len(ready)]
            assert self.owners(lambda ring: ring.set_aside(seq)) is True
            if stays:
                self.owners(lambda ring: ring.put_back(seq))
                assert self.owners(lambda ring: ring.living(1, ring.next_seq, 1 << 20)) == before
            else:
                self.loose.append(seq)

    @rule(
        pick=st.integers(0, 400), count=st.sampled_from([1, 3, 1000]), size=st.sampled_from([1, 20, 1 << 20]),
        settled=st.integers(0, 9),
    )  # fmt: skip
    def a_reader_leases_some(self, pick: int, count: int, size: int, settled: int) -> None:
        """It reads them twice, settles the first of them and gives the others back."""
        before = self.owners(lambda ring: ring.living(1, ring.committed - 1, 1 << 20))
        if not before:
            return
        first = before[pick % len(before)][0]
        upto, got, _ = self.owners(lambda ring: ring.lease(first, ring.committed, count, size, settled % 3))
        mine = [seq for seq, state, *_ in before if first <= seq < upto and state == READY]
        assert got == len(mine) == self.owners(lambda ring: ring.held_by(LEASED))
        # a word is answered when what it says is committed: until then nobody is shown what is not reserved yet
        reserved = self.owners(lambda ring: ring.reserved_durable)
        self.seen.update(seq for seq in mine if seq <= reserved)
        self.asked.update(seq for seq in mine if seq > reserved)

        def read(half: Half) -> Any:
            node = half.nodes[self.owner]
            _, _, absent = node.ring.read_leased(first, upto, 1000, 1 << 20, {})
            found = {place[0]: node.message(place) for place in absent}
            data, end, absent = node.ring.read_leased(first, upto, 1000, 1 << 20, found)
            records = half.record.read_records(data)
            return end, absent, [(seq, m.payload, m.format, count, again) for seq, m, count, again in records]

        for _ in range(2):
            end, absent, records = self.both(read)
            assert (end, absent, [seq for seq, *_ in records]) == (upto, [], mine)
        last = mine[min(settled, len(mine)) - 1] if mine and settled else 0
        kept = [seq for seq in mine if seq > last]
        assert self.owners(lambda ring: ring.settle_held(1, last, LEASED)) == len(mine) - len(kept)
        assert self.owners(lambda ring: ring.requeue_all_held(LEASED)) == len(kept)

    @rule(holder=st.sampled_from([1, 253]))
    def a_node_goes(self, holder: int) -> None:
        mine = [seq for seq in self.held if self.held[seq] == holder]
        assert self.owners(lambda ring: ring.requeue_all_held(holder)) == len(mine)
        for seq in mine:
            del self.held[seq]

    @rule(pick=st.integers(0, 10))
    def seldom(self, pick: int) -> None:
        if pick == 0:
            self.owners(lambda ring: ring.purge())
        elif pick < 4:
            self.owners(lambda ring: ring.reserve())
        elif pick == 4:
            self.owners(lambda ring: ring.set_attribute(b"p1", 0))
        elif pick == 5 and self.owners(lambda ring: ring.ready):
            seq = self.owners(lambda ring: ring.pop_head()[0])
            self.loose.append(seq)

    # -- groups -----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.inflight is None)
    @rule(late=st.booleans())
    def group(self, late: bool) -> None:
        if not self.owners(lambda ring: ring.needs_write):
            return
        bound = self.owners(lambda ring: ring.unwritten_bytes)
        assert bound <= self.owners(lambda ring: ring.unwritten_most), "what is found without a look is a bound, too"

        upto, span = self.write()
        for at in self.following:
            self.both(lambda half, at=at: half.nodes[at].follow(span, self.epoch))
        self.inflight = upto, span
        self.written, self.asked = self.asked, set()
        self.same_everywhere()
        if not late:
            self.commit()

    def same_everywhere(self) -> None:
        """A replica may know of a reservation that its owner never heard of, and flags more. What was elided at the
        end no record tells: it may put the end lower."""
        mine = self.owners(told)
        for at in sorted(self.following):
            found = self.both(lambda half, at=at: told(half.nodes[at].ring))
            assert found.pop("reserved") >= mine["reserved"]
            assert found.pop("end") <= mine["end"]
            assert found == {name: mine[name] for name in found}, f"node {at} holds what it was told"

    @precondition(lambda self: self.inflight is not None)
    @rule()
    def commit(self) -> None:
        assert self.inflight is not None
        upto, _ = self.inflight
        self.inflight = None
        self.owners(lambda ring: ring.commit(upto))
        self.seen |= self.written
        assert self.owners(lambda ring: ring.committed) >= upto

    # -- ownership --------------------------------------------------------------------------------------------

    @precondition(lambda self: self.following)
    @rule(
        pick=st.integers(0, 2),
        lost=st.booleans(),
        adopted=st.booleans(),
        restarted=st.booleans(),
    )
    def take_over(self, pick: int, lost: bool, adopted: bool, restarted: bool) -> None:
        """`lost`: the owner writes a last group that reaches nobody, and steps down with it."""
        if self.inflight is None and lost and self.owners(lambda ring: ring.needs_write):
            followers, self.following = self.following, set()
            self.group(True)
            self.following = followers
        self.inflight, self.asked, self.written = None, set(), set()
        old = self.owner
        self.owner = sorted(self.following)[pick % len(self.following)]
        before = self.both(lambda half: told(half.nodes[self.owner].ring))
        if restarted and not self.halves[0].config["volatile"]:
            self.both(lambda half: half.nodes[self.owner].restart())
        self.epoch += 1
        self.both(lambda half: half.nodes[old].ring.step_down())
        self.both(lambda half: half.nodes[self.owner].ring.take_over(self.epoch))
        self.following = set()
        after = self.owners(told)
        for name in ("buckets", "live", "counts", "dead", "producers", "reserved"):
            assert after[name] == before[name], name
        reserved = before["reserved"]
        assert all(seq <= reserved for seq in self.seen if seq in self.held), "what was handed out was reserved"
        held, self.held, self.loose = self.held, {}, []
        live = [part for parts in before["live"] for part in parts]
        dead = {seq for marks in before["dead"] for seq, _ in marks}
        for seq, holder in sorted(held.items()) if adopted else ():
            lives = any(first <= seq <= last for first, last in live) and seq not in dead
            assert self.owners(lambda ring, seq=seq, holder=holder: ring.adopt(seq, seq, holder)) == lives
            if lives:
                self.held[seq] = holder
        for half in self.halves:
            half.nodes[self.owner].ring.paused = False
            half.meet(self.owner)
        self.seen = {seq for seq in self.seen if any(first <= seq <= last for first, last in live)}

    @rule(at=st.integers(0, 2))
    def sync(self, at: int) -> None:
        """As the cores of replication do it, in one go."""
        if at == self.owner or at in self.following:
            return
        owner, epoch = self.owner, self.epoch

        def act(half: Half) -> Any:
            source, node = half.nodes[owner], half.nodes[at]
            theirs, mine = source.ring, node.ring
            span = half.record.GroupWriter(0, 0)
            start = span.size
            cut = first_difference(mine.epochs, source.ring.epochs, mine.emitted_end())
            cut = min(mine.emitted_end() if cut is None else cut, theirs.emitted_end())
            if cut < mine.emitted_end():
                span.cut(QUEUE_ID, epoch, cut)
            for number, first in theirs.epochs:
                span.begin_epoch(QUEUE_ID, number, first)
            span.reserve(QUEUE_ID, epoch, theirs.emitted_reserved())
            said = theirs.emitted_attributes()
            for producer, upto in sorted(mine.emitted_attributes().items()):
                if said.get(producer, 0) < upto:
                    span.set_attribute(QUEUE_ID, epoch, producer, said.get(producer, 0))
            node.follow(span.span(start, span.size), epoch)
            digests, held = dict(theirs.emitted_buckets()), dict(mine.emitted_buckets())
            for bucket in sorted(set(digests) | set(held)):
                if digests.get(bucket) != held.get(bucket):
                    sync_bucket(half, source, node, bucket, epoch)
            span = half.record.GroupWriter(0, 0)
            start = span.size
            for producer, upto in sorted(said.items()):
                if mine.emitted_attributes().get(producer, 0) < upto:
                    span.set_attribute(QUEUE_ID, epoch, producer, upto)
            node.follow(span.span(start, span.size), epoch)
            return mine.emitted_buckets()

        self.both(act)
        self.following.add(at)
        if self.owners(lambda ring: ring.needs_write):
            if self.inflight is not None:
                self.commit()
            self.group(False)
        else:
            self.same_everywhere()

    # -- the disk ---------------------------------------------------------------------------------------------

    @precondition(lambda self: not self.halves[0].config["volatile"])
    @rule(at=st.integers(0, 2))
    def checkpoint(self, at: int) -> None:
        """In the same breath as the journal's position; the owner's group in flight is in it."""
        self.both(lambda half: half.nodes[at].checkpoint())

    @precondition(lambda self: not self.halves[0].config["volatile"])
    @rule(at=st.integers(0, 2))
    def restart(self, at: int) -> None:
        if at == self.owner:
            return
        before = self.both(lambda half: told(half.nodes[at].ring))
        self.both(lambda half: half.nodes[at].restart())
        after = self.both(lambda half: told(half.nodes[at].ring))
        before["end"] = after["end"] = max(before["end"], before["reserved"] + 1)
        assert after == before
        self.following.discard(at)

    @precondition(lambda self: not self.halves[0].config["volatile"])
    @rule(at=st.integers(0, 2), pick=st.integers(0, 1000))
    def copy_forward(self, at: int, pick: int) -> None:
        """Each node's journal moves its own copies."""

        def act(half: Half) -> Any:
            node = half.nodes[at]
            live = [seq for bucket, _ in node.ring.emitted_buckets() for part in node.ring.emitted_live(bucket)
                    for seq in range(part[0], part[1] + 1)]  # fmt: skip
            if not live:
                return None
            seq = live[pick % len(live)]
            place = node.ring.location(seq)
            answer = node.ring.rewrite(*place[:3], node.message(place))
            if at != self.owner and node.ring.needs_write:
                writer = node.writer()
                upto = node.ring.write(writer)
                node.submit(writer)
                node.ring.commit(upto)
            return answer

        self.both(act)

    # -- what always holds ------------------------------------------------------------------------------------

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "halves"):
            return
        for at in range(NODES):
            for name in ("ready", "unacked", "ready_bytes", "resident_bytes", "committed", "next_seq", "reserved",
                         "reserved_durable", "epoch", "epochs", "replica", "paused", "needs_write", "urgent",
                         "wants_load", "unwritten_bytes", "unwritten_most", "acked", "disk_reads", "disk_writes",
                         "handed", "handed_no_ack", "published", "redelivered", "resident", "fleeting",
                         "auto_acks"):  # fmt: skip
                self.both(lambda half, at=at, name=name: getattr(half.nodes[at].ring, name))
            self.both(lambda half, at=at: half.nodes[at].ring.emitted_buckets())
            self.both(lambda half, at=at: half.nodes[at].ring.dead())
            self.both(lambda half, at=at: [half.nodes[at].use.live(segment) for segment in half.nodes[at].segments])
        for holder in (1, 2, 253):
            count = sum(1 for seq in self.held.values() if seq == holder)
            assert self.owners(lambda ring, holder=holder: ring.held_by(holder)) == count

    def teardown(self) -> None:
        if hasattr(self, "halves"):
            for at in range(NODES):
                self.both(lambda half, at=at: half.nodes[at].ring.destroy())
                self.both(lambda half, at=at: half.nodes[at].ring.needs_write)
                live = self.both(
                    lambda half, at=at: [half.nodes[at].use.live(segment) for segment in half.nodes[at].segments]
                )
                assert not any(live), "a deleted queue keeps no bytes"


def first_difference(mine: Any, theirs: Any, upto: int) -> int | None:
    """The first seq below `upto` whose epoch is not the same in both."""
    for seq in sorted({first for _, first in (*mine, *theirs)}):
        if seq < upto and epoch_at(mine, seq) != epoch_at(theirs, seq):
            return seq
    return None


def epoch_at(epochs: Any, seq: int) -> int | None:
    found = [epoch for epoch, first in epochs if first <= seq]
    return found[-1] if found else None


def sync_bucket(half: Half, source: Node, node: Node, bucket: int, epoch: int) -> None:
    theirs, mine = source.ring, node.ring
    wanted = {seq for first, last in theirs.emitted_live(bucket) for seq in range(first, last + 1)}
    held = {seq for first, last in mine.live(bucket) for seq in range(first, last + 1)}
    have = held - {seq for seq, _ in mine.emitted_dead(bucket)}  # a dead one may have to be revived, with its body
    span = half.record.GroupWriter(0, 0)
    start = span.size
    for seq in sorted(held - (have & wanted)):
        span.settle(QUEUE_ID, epoch, [(seq, seq)])
    counts = dict(theirs.emitted_counts(bucket))
    for seq in sorted(wanted - have):
        message = theirs.message(seq)
        if message is None:
            message = source.message(theirs.location(seq))
        span.enqueue(QUEUE_ID, theirs.epoch_of(seq), seq, message, counts.get(seq, 0))
    for seq in sorted(wanted & have):
        span.count_delivery(QUEUE_ID, epoch, seq, counts.get(seq, 0))
    for seq, mark in theirs.emitted_dead(bucket):
        span.dead(QUEUE_ID, epoch, seq, mark)
    node.follow(span.span(start, span.size), epoch)
    assert dict(mine.emitted_buckets()).get(bucket) == dict(theirs.emitted_buckets()).get(bucket)


RingCluster.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=50, deadline=None)
test_ring_cluster = RingCluster.TestCase


def a_cluster(**config: Any) -> RingCluster:
    cluster = RingCluster()
    cluster.start(**{"max_priority": 0, "resident_bytes_max": 0, "volatile": False, **config})
    return cluster


def test_a_number_that_no_dead_record_told_is_free_again() -> None:
    """The message dies and leaves before a group has heard of it."""
    cluster = a_cluster()
    cluster.publish(count=1, priority=0, producer=0)
    cluster.seldom(pick=5)
    cluster.decide(count=1, how="die", pick=0)
    cluster.bury(pick=0)
    cluster.group(late=False)
    cluster.publish(count=1, priority=0, producer=0)
    cluster.seldom(pick=5)
    cluster.decide(count=1, how="die", pick=0)
    assert cluster.owners(lambda ring: ring.dead()) == [(2, 1, 3)]
    cluster.group(late=False)


def test_the_number_of_the_dead_comes_with_a_sync_and_stays() -> None:
    cluster = a_cluster()
    cluster.take_over(pick=0, lost=False, adopted=False, restarted=False)
    cluster.publish(count=1, priority=0, producer=0)
    cluster.seldom(pick=5)
    cluster.decide(count=1, how="die", pick=0)
    cluster.group(late=False)
    cluster.bury(pick=0)
    cluster.group(late=False)
    cluster.sync(at=0)
    cluster.restart(at=0)


def test_a_sync_revives_what_died_at_a_former_owner_only() -> None:
    cluster = a_cluster()
    cluster.publish(count=1, priority=0, producer=0)
    cluster.seldom(pick=5)
    cluster.group(late=False)
    cluster.decide(count=1, how="die", pick=0)
    cluster.take_over(pick=0, lost=True, adopted=False, restarted=False)
    cluster.sync(at=0)
    assert cluster.both(lambda half: half.nodes[0].ring.dead()) == []


def test_what_was_leased_and_not_committed_was_shown_to_nobody() -> None:
    """Once said to be a second hand-out without a flag: the owner goes before the reservation has reached anybody."""
    ring = RingCluster()
    ring.start(max_priority=0, resident_bytes_max=0, volatile=False)
    ring.publish(count=1, priority=0, producer=0)
    ring.sync(at=1)
    ring.a_reader_leases_some(count=1, pick=0, settled=0, size=20)
    ring.take_over(adopted=False, lost=False, pick=0, restarted=False)
    ring.seldom(pick=1)
    ring.group(late=False)
    ring.dispatch(limit=1)
    ring.same()


def test_what_was_leased_and_committed_is_flagged_by_the_next_owner() -> None:
    ring = RingCluster()
    ring.start(max_priority=0, resident_bytes_max=0, volatile=False)
    ring.publish(count=1, priority=0, producer=0)
    ring.group(late=False)
    ring.a_reader_leases_some(count=1, pick=0, settled=0, size=20)
    ring.group(late=False)
    ring.take_over(adopted=False, lost=False, pick=0, restarted=False)
    assert ring.seen == {1}
    ring.seldom(pick=1)
    ring.group(late=False)
    ring.dispatch(limit=1)  # which holds it against `seen`
    assert ring.held
