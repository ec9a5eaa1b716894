"""What links hold in a ring and its model, as one life: see `tests.model.ring_links`.

The books of this test say which link has which message, so an error that model and ring share is seen too: nobody else
is handed what a link holds, a new owner and a node that starts again know exactly what is committed (L5, L9), and what
a link gives back returns when the log has heard of it.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from clusterbroker.broker.queues.states import LINK, UNACKED
from tests.budget import examples
from tests.property.ring_life import Half, RingLife

SAME = (
    "ready", "unacked", "ready_bytes", "committed", "next_seq", "reserved", "needs_write", "urgent", "unwritten_bytes",
    "unwritten_most", "acked", "groups", "groups_committed",
)  # fmt: skip
LINKS = (7, 1 << 40)
NODES = (1, 253)


class LinkHalf(Half):
    def meet(self, owner: int) -> None:
        """A consumer of a node, and two links, at a node each."""
        ring = self.nodes[owner].ring
        self.takers = [self.module.RemoteConsumer(ring, 1, 0, "plain")]
        self.takers += [
            self.module.RemoteConsumer(ring, node, 0, link, link) for node, link in zip(NODES, LINKS, strict=True)
        ]
        for taker in self.takers[1:]:
            taker.limit = 1 << 40


class RingLinks(RingLife):
    """holders    seq -> the link that holds it, or 0: the node's consumer
    returning  what links gave back: seq -> the group in which the log hears of it
    logged     what the last committed group says of links, seq -> link
    sent       seqs that some client has seen
    """

    HALF = LinkHalf

    def begin(self) -> None:
        self.holders: dict[int, int] = {}
        self.returning: dict[int, int] = {}
        self.waiting: list[tuple[int, int, bool]] = []  # (group, seq, redelivered) of what is to be sent to a link
        self.written: dict[int, int] | None = None
        self.logged: dict[int, int] = {}
        self.sent: set[int] = set()

    @rule(count=st.sampled_from([1, 2, 7, 70]), priority=st.integers(0, 4))
    def publish(self, count: int, priority: int) -> None:
        first, self.published = self.published, self.published + count
        self.both(
            lambda half: half.nodes[self.owner].ring.append_records(half.records(first, count, priority), 1000 + first)
        )

    @rule(which=st.integers(0, 2), credit=st.sampled_from([0, 1, 3, 1 << 40]))
    def credit(self, which: int, credit: int) -> None:
        def grant(half: Half) -> Any:
            half.takers[which].limit = half.takers[which].delivered + credit
            return half.takers[which].has_credit

        self.both(grant)

    @rule(which=st.integers(0, 2), rest=st.integers(0, 3))
    def select(self, which: int, rest: int) -> None:
        """It takes odd messages, or even ones; otherwise all."""

        def choose(half: Half) -> None:
            selection = half.module.Selection(lambda seq, _: seq % 2 == rest) if rest < 2 else None
            half.takers[which].selection = selection

        self.both(choose)

    @rule(limit=st.sampled_from([1, 5, 1 << 20]))
    def dispatch(self, limit: int) -> None:
        def act(half: Half) -> Any:
            half.load(self.owner)
            ring = half.nodes[self.owner].ring
            if any(taker.selection is not None for taker in half.takers):
                count, why, _ = half.module.dispatch_selected(ring, half.takers, 0, limit)
            else:
                count, why = half.module.dispatch(ring, half.takers, 0, limit)
            ring.reserve()
            sent = [half.record.read_records(taker.out.take()) for taker in half.takers]
            return count, why, ring.groups, [[(seq, again, m.payload) for seq, m, _, again in one] for one in sent]

        _, _, groups, sent = self.both(act)
        for link, records in zip((0, *LINKS), sent, strict=True):
            for seq, again, _ in records:
                assert seq not in self.holders, "what somebody holds nobody else is handed"
                assert seq not in self.returning, "what is given back waits for the log"
                assert again or seq not in self.sent, "a second hand-out says so"
                self.holders[seq] = link
                if link:
                    self.waiting.append((groups + 1, seq, again))
                else:
                    self.sent.add(seq)

    @precondition(lambda self: self.holders)
    @rule(
        pick=st.integers(0, 400), width=st.sampled_from([0, 3, 100]), node=st.sampled_from(NODES),
        how=st.sampled_from(["settle", "settle", "reject", "return"]),
    )  # fmt: skip
    def answer(self, pick: int, width: int, node: int, how: str) -> None:
        """A node says what became of what it has: of its own, and of links that are there."""
        first = sorted(self.holders)[pick % len(self.holders)]
        last = first + width
        places = {link: self.owners(lambda ring, link=link: ring.link_place(link)) for link in LINKS}
        mine = [
            seq for seq, link in sorted(self.holders.items())
            if first <= seq <= last and (places[link] == node if link else node == 1)
        ]  # fmt: skip
        linked = [seq for seq in mine if self.holders[seq]]
        assert self.owners(lambda ring: ring.count_held(first, last, node)) == len(mine)
        if how == "settle":
            assert self.owners(lambda ring: ring.settle_held(first, last, node)) == len(mine)
        elif how == "reject":
            assert self.owners(lambda ring: ring.take_held(first, last, node)) == mine
            for seq in mine:
                self.owners(lambda ring, seq=seq: ring.hold_dead(seq, 3))
        else:
            assert self.owners(lambda ring: ring.take_linked(first, last, node)) == linked
            group = self.owners(lambda ring: ring.groups) + 1
            self.returning |= dict.fromkeys(linked, group)
            assert self.owners(lambda ring: ring.requeue_held(first, last, node, False)) == len(mine) - len(linked)
        for seq in mine:
            del self.holders[seq]
        self.waiting = [one for one in self.waiting if one[1] not in mine]

    @rule(count=st.sampled_from([1, 20, 70]), priority=st.integers(0, 4), late=st.booleans())
    def flow(self, count: int, priority: int, late: bool) -> None:
        """Messages come while the links have credit."""
        self.publish(count, priority)
        self.dispatch(1 << 20)
        if self.inflight is not None:
            self.commit()
        self.group(late)

    @rule(link=st.sampled_from(LINKS), pick=st.integers(0, 100), whole=st.booleans())
    def release(self, link: int, pick: int, whole: bool) -> None:
        mine = sorted(seq for seq, at in self.holders.items() if at == link)
        first, last = (1, 1 << 60) if whole or not mine else (mine[pick % len(mine)],) * 2
        released = self.owners(lambda ring: ring.release_link(link, first, last))
        assert released == [seq for seq in mine if first <= seq <= last]
        group = self.owners(lambda ring: ring.groups) + 1
        for seq in released:
            del self.holders[seq]
            self.returning[seq] = group
        self.waiting = [one for one in self.waiting if one[1] not in released]

    @rule(link=st.sampled_from(LINKS), node=st.sampled_from((0, *NODES, *NODES)))
    def moves(self, link: int, node: int) -> None:
        self.owners(lambda ring: ring.attach_link(link, node))

    @rule(wait=st.booleans())
    def links_wait(self, wait: bool) -> None:
        self.owners(lambda ring: setattr(ring, "links_wait", wait))

    @rule(link=st.sampled_from(LINKS), size=st.sampled_from([1, 60, 1 << 20]))
    def read(self, link: int, size: int) -> None:
        """All that a link holds, in pieces."""
        mine = sorted(seq for seq, at in self.holders.items() if at == link)
        wanted = sorted({*mine, 1, 2, 3, 4000})

        def act(half: Half) -> Any:
            node, left, records = half.nodes[self.owner], wanted, []
            held = [seq for seq, _, _ in node.ring.held_by_link(link, 0, 1 << 20)]
            assert [seq for seq, _, _ in node.ring.held_by_link(link, 2, 1 << 20, 9)] == [
                seq for seq in held if 2 <= seq <= 9
            ]
            while left:
                _, _, absent = node.ring.read_held(link, left, size, {})
                found = {place[0]: node.message(place) for place in absent}
                data, count, absent = node.ring.read_held(link, left, size, found)
                if absent:  # it stood behind what was on the disk
                    found |= {place[0]: node.message(place) for place in absent}
                    data, count, absent = node.ring.read_held(link, left, size, found)
                assert count > 0
                assert not absent
                records += half.record.read_records(data)
                left = left[count:]
            return held, [(seq, m.payload) for seq, m, _, _ in records]

        held, records = self.both(act)
        assert held == mine == [seq for seq, _ in records]
        assert [payload for _, payload in records] == [b"\x00\x00<%d>" % (seq_of(payload)) for _, payload in records]

    @rule()
    def purge(self) -> None:
        """What is held is not taken."""
        self.owners(lambda ring: ring.purge())

    @precondition(lambda self: self.inflight is None)
    @rule(late=st.booleans())
    def group(self, late: bool) -> None:
        if not self.owners(lambda ring: ring.needs_write):
            return
        self.inflight = self.write()
        self.written = {seq: link for seq, link in self.holders.items() if link}
        for at in range(3):
            if at != self.owner:
                self.both(lambda half, at=at: half.nodes[at].follow(self.inflight[1], self.epoch))
        if not late:
            self.commit()

    @precondition(lambda self: self.inflight is not None)
    @rule()
    def commit(self) -> None:
        assert self.inflight is not None
        assert self.written is not None
        upto, self.inflight = self.inflight[0], None
        self.owners(lambda ring: ring.commit(upto))
        self.logged = self.written
        done = self.owners(lambda ring: ring.groups_committed)
        reserved = self.owners(lambda ring: ring.reserved_durable)
        for group, seq, again in self.waiting:
            if group <= done:
                assert again or seq not in self.sent, "a second hand-out says so"
                assert seq <= reserved, "the log knows before the client does that it may have been seen"
                assert self.logged[seq] == self.holders[seq], "the log knows before the client does who has it"
                self.sent.add(seq)
        self.waiting = [one for one in self.waiting if one[0] > done]
        for seq in [seq for seq, group in self.returning.items() if group <= done]:
            del self.returning[seq]
            self.owners(lambda ring, seq=seq: ring.requeue(seq, False))

    @rule(at=st.integers(0, 2), restarted=st.booleans())
    def take_over(self, at: int, restarted: bool) -> None:
        """All groups have reached every node: the last one counts as committed. What came after it is lost, but for a
        ring without a journal, which would need a sync afterwards."""
        if self.inflight is not None:
            self.commit()
        if self.halves[0].config["volatile"]:
            self.group(False)
        if restarted and not self.halves[0].config["volatile"]:
            self.both(lambda half: half.nodes[at].restart() if at != self.owner else None)
        self.epoch += 1
        self.both(lambda half: half.nodes[self.owner].ring.step_down())
        self.owner = at
        self.both(lambda half: half.nodes[at].ring.take_over(self.epoch))
        live = {
            seq
            for bucket, _ in self.owners(lambda ring: ring.emitted_buckets())
            for first, last in self.owners(lambda ring, bucket=bucket: ring.emitted_live(bucket))
            for seq in range(first, last + 1)
        }
        expected = {seq: link for seq, link in self.logged.items() if seq in live}
        assert self.owners(lambda ring: ring.restore_links()) == len(expected)
        self.holders, self.logged, self.returning, self.waiting = expected, dict(expected), {}, []
        for half in self.halves:
            half.nodes[at].ring.paused = False
            half.meet(at)
        self.sent &= live

    @rule(at=st.integers(0, 2))
    def checkpoint(self, at: int) -> None:
        if not self.halves[0].config["volatile"]:
            self.both(lambda half: half.nodes[at].checkpoint())

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "halves"):
            return
        for at in range(3):
            for name in SAME:
                self.both(lambda half, at=at, name=name: getattr(half.nodes[at].ring, name))
        assert self.owners(lambda ring: ring.held_by(LINK)) == sum(1 for link in self.holders.values() if link)
        held = self.owners(lambda ring: ring.links())
        for link in LINKS:
            assert held.get(link, 0) == sum(1 for at in self.holders.values() if at == link)
            self.owners(lambda ring, link=link: ring.link_place(link))
        if self.inflight is None and not self.owners(lambda ring: ring.needs_write):
            names = [name for name in self.owners(lambda ring: ring.attributes) if name[:1] == b"k"]
            buckets = {(link, seq // 62) for seq, link in self.holders.items() if link}
            assert len(names) == len(buckets), "a bucket without messages has no name"
        rows = self.owners(lambda ring: ring.living(1, ring.next_seq, 1 << 20))
        assert {seq for seq, state, *_ in rows if state == UNACKED} == {*self.holders, *self.returning}
        if self.inflight is None:
            said = [self.both(lambda half, at=at: half.nodes[at].ring.emitted_attributes()) for at in range(3)]
            assert said[0] == said[1] == said[2]


def seq_of(payload: bytes) -> int:
    """What stands in a message's body."""
    return int(payload[3:-1])


RingLinks.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
test_ring_links = RingLinks.TestCase


def test_a_link_that_was_at_no_node_is_handed_messages_again() -> None:
    """Another one was at none after it, so the compiled ring has another row for it."""
    state = RingLinks()
    state.start(max_priority=0, resident_bytes_max=0, volatile=False)
    for link, node in ((LINKS[1], 0), (LINKS[0], 0), (LINKS[1], NODES[1])):
        state.moves(link=link, node=node)
        state.same()
    state.flow(count=1, late=False, priority=0)
    state.same()
    assert state.holders == {1: LINKS[1]}
