"""Leases in a cluster whose owners die, are moved and restarted at any moment: whoever asks for a range again gets the
same messages, and each message is settled exactly once, or is returned and got by somebody else.

The model is a book of what was confirmed and of what was read: a seq means one message for ever, what was settled never
comes again, and a range that was told holds exactly what is said of it.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from clusterbroker.broker.queues.leasing import REPLACED_MAX
from clusterbroker.broker.wire.amqp091 import methods as m
from tests.budget import examples
from tests.property.cluster_lives_world import SEGMENT_BYTES, checkpoint_some, copy_forward, journal_of
from tests.unit.broker.fronts.amqp091.harness import Content, bodies
from tests.unit.broker.fronts.amqp091.leasing_reader import ANSWERS, Reader, sliced
from tests.unit.broker.node.node_cluster import Cluster

NODES = ("a", "b", "c")


class Leases(RuleBasedStateMachine):
    @initialize(transient=st.sampled_from([False, False, True]), resident=st.booleans(), in_slices=st.booleans())
    def start(self, transient: bool, resident: bool, in_slices: bool) -> None:
        self.patch = pytest.MonkeyPatch()
        if in_slices:
            sliced(self.patch)
        self.cluster = Cluster(*NODES)
        for site in self.cluster.sites.values():
            journal_of(site).segment_bytes = SEGMENT_BYTES
        self.cluster["a"].client().declare("q")
        self.transient = transient
        self.resident = resident
        self.confirmed: list[bytes] = []
        self.known: dict[int, bytes] = {}
        self.acknowledged = 0  # the highest of all leases
        self.end = 0  # of the present one, as it was told; 0: there may be none
        self.runs = 1
        self.replaced: list[str] = []  # runs that had the present lease, and have it no more
        self.reader: Reader | None = None

    # -- what everybody does

    def at(self, pick: int) -> str:
        running = self.cluster.running
        return running[pick % len(running)].name

    def reads(self, pick: int) -> Reader:
        """The reader of this run, at its node as long as that lives."""
        if self.reader is None or self.reader.client.ended is not None:
            wait = self.cluster.wait
            self.reader = Reader(self.cluster[self.at(pick)].client(), f"r{self.runs}", "n", lambda: wait(200))
        return self.reader

    @rule(count=st.integers(1, 8), pick=st.integers(0, 2))
    def publish(self, count: int, pick: int) -> None:
        client = self.cluster[self.at(pick)].client()
        client.ask(m.ConfirmSelect())
        new = [b"m%d" % (len(self.confirmed) + n) for n in range(count)]
        heard = client.publish("", "q", *new, transient=self.transient)
        for _ in range(50):
            if heard:
                break
            self.cluster.wait(200)
            heard = client.say()
        assert heard, "a publish is confirmed"
        self.confirmed += new
        client.leave()
        if not self.resident:
            for site in self.cluster.running:
                for queue in site.node.queues.values():
                    queue.ring.resident_bytes_max = 0

    # -- the reader

    def note(self, told: dict[str, Any]) -> None:
        assert told["acknowledged"] >= self.acknowledged or self.end == 0, "what was settled stays settled"
        self.acknowledged = max(self.acknowledged, told["acknowledged"])

    @rule(rows=st.integers(1, 12), settles=st.booleans(), pick=st.integers(0, 2))
    def take(self, rows: int, settles: bool, pick: int) -> None:
        reader = self.reads(pick)
        start = self.end if settles and self.end else None
        told = reader.take(start, rows)
        assert told["outcome"] == "leased", told
        assert told["start"] == told["acknowledged"] >= (start or 0)
        assert told["end"] >= self.end, "what is leased stays leased"
        self.note(told)
        self.end = told["end"]
        found = self.look(reader, told["start"], told["end"])
        assert len(found) == told["rows"]
        if told["rows"] >= rows:
            assert reader.take(None, rows) == told, "who asks again gets the same range"

    def look(self, reader: Reader, first: int, end: int) -> list[tuple[int, bytes]]:
        found = reader.read(first, end, prefetch=3)
        for seq, body in found:
            assert self.known.setdefault(seq, body) == body, "a seq means one message"
            assert body in self.confirmed
        before = [seq for seq in sorted(self.known) if first <= seq < end]
        assert [seq for seq, _ in found] == before, "the same messages, in the same order"
        return found

    @precondition(lambda self: self.end)
    @rule(part=st.integers(0, 10), width=st.integers(0, 10), pick=st.integers(0, 2))
    def read_again(self, part: int, width: int, pick: int) -> None:
        """By somebody at any node, who knows the name and the range."""
        first = min(self.end, self.acknowledged + part)
        wait = self.cluster.wait
        other = Reader(self.cluster[self.at(pick)].client(), "", "n", lambda: wait(200))
        self.look(other, first, min(self.end, first + width))

    @precondition(lambda self: self.end)
    @rule(part=st.integers(0, 12), pick=st.integers(0, 2))
    def settle(self, part: int, pick: int) -> None:
        upto = min(self.end, self.acknowledged + part)
        told = self.reads(pick).word("settle", upto=upto)
        assert told["outcome"] == "settled", told
        assert told["acknowledged"] >= upto
        self.note(told)

    @precondition(lambda self: self.end)
    @rule(pick=st.integers(0, 2))
    def release(self, pick: int) -> None:
        assert self.reads(pick).word("release")["outcome"] == "released"
        self.end = 0
        self.replaced = []

    @precondition(lambda self: self.end)
    @rule(pick=st.integers(0, 2))
    def another_run(self, pick: int) -> None:
        """It takes the lease over, and the one before is told so."""
        before = self.reads(pick)
        self.replaced.append(before.run)
        self.runs += 1
        self.reader = None
        told = self.reads(pick).take(None, 1)
        assert told["end"] >= self.end
        self.note(told)
        self.end = told["end"]
        self.look(self.reads(pick), told["start"], told["end"])
        assert before.word("settle", upto=self.end)["code"] == 409

    @precondition(lambda self: self.end and self.replaced)
    @rule(
        word=st.sampled_from(["take", "settle", "release"]), back=st.integers(1, REPLACED_MAX),
        pick=st.integers(0, 2), moved=st.booleans(),
    )  # fmt: skip
    def a_run_that_was_replaced_speaks(self, word: str, back: int, pick: int, moved: bool) -> None:
        """Whoever owns the queue by now."""
        if moved:
            self.the_queue_moves(pick)
        run = self.replaced[-min(back, len(self.replaced))]
        client = self.cluster[self.at(pick)].client()
        late = Reader(client, run, "n", lambda: self.cluster.wait(200))
        assert late.word(word, **({"upto": self.end} if word == "settle" else {}))["code"] == 409
        client.leave()

    @precondition(lambda self: self.end and self.whole)
    @rule(
        word=st.sampled_from(["take", "settle"]), part=st.integers(0, 12), pick=st.integers(0, 2),
        stopped=st.sampled_from(["owner", "others"]), written=st.integers(0, 1),
    )  # fmt: skip
    def the_owner_dies_over_a_word(self, word: str, part: int, pick: int, stopped: str, written: int) -> None:
        """It may have been carried out, or not; whoever repeats it learns which."""
        owner = self.cluster.queue("q").owner
        away = [site.name for site in self.cluster.running if site.name != owner]
        reader = Reader(self.cluster[away[pick % 2]].client(), f"r{self.runs}", "n", lambda: self.cluster.wait(50))
        self.reader = None
        upto = min(self.end, self.acknowledged + part)
        fields = {"upto": upto} if word == "settle" else {"from": upto, "rows_max": part + 1}
        body = {"queue": "q", "name": "n", "run": reader.run, **fields}
        for name in [owner] if stopped == "owner" else away:
            self.cluster[name].disk_waits = True
        heard = reader.client.publish("amq.lease", word, json.dumps(body).encode(), reply_to=ANSWERS)
        for site in self.cluster.running:
            if site.disk_waits and written and site.journal.group_sync is not None:
                site.complete()
        self.cluster.kill(owner)
        for site in self.cluster.sites.values():
            site.disk_waits = False
        self.cluster.wait(3000)
        heard += reader.client.hear(1)
        assert [said for said in heard if isinstance(said, Content)], "asked again, and answered by the next owner"
        told = reader.take(None, 1)
        assert told["end"] >= self.end
        assert told["acknowledged"] >= upto, "it was carried out by one of them"
        self.note(told)
        self.end = told["end"]
        self.look(reader, told["start"], told["end"])
        reader.client.leave()

    # -- the world

    @property
    def whole(self) -> bool:
        return len(self.cluster.running) == len(NODES)

    @rule(pick=st.integers(0, 2))
    def a_node_dies_or_returns(self, pick: int) -> None:
        if self.whole:
            self.cluster.kill(self.at(pick))
        else:
            self.cluster.restart(next(name for name in NODES if not self.cluster[name].alive))
        self.cluster.wait(3000)

    @rule(pick=st.integers(0, 2), seed=st.integers(0, 99))
    def a_checkpoint(self, pick: int, seed: int) -> None:
        """It begins, or ends, or both."""
        checkpoint_some(self.cluster[self.at(pick)], random.Random(seed))

    @rule(pick=st.integers(0, 2), seed=st.integers(0, 99))
    def an_old_segment_is_written_again(self, pick: int, seed: int) -> None:
        copy_forward(self.cluster[self.at(pick)], random.Random(seed))
        self.cluster.turn()

    @rule(pick=st.integers(0, 2))
    def the_queue_moves(self, pick: int) -> None:
        entity = self.cluster.queue("q")
        to = self.at(pick)
        if entity.owner in (None, to) or to not in entity.in_sync:
            return
        part = self.cluster[entity.owner].node.role
        assert part is not None
        part.hand_over(entity.queue_id, to)
        self.cluster.wait(200)

    @rule(pick=st.integers(0, 2), asked=st.booleans())
    def a_link_breaks(self, pick: int, asked: bool) -> None:
        """Perhaps under a word that is on its way; it is said again when the link is back."""
        running = [site.name for site in self.cluster.running]
        one, other = running[pick % len(running)], running[(pick + 1) % len(running)]
        if asked and self.end:
            reader = self.reads(pick)
            raw = json.dumps({"queue": "q", "name": "n", "run": reader.run, "upto": self.acknowledged}).encode()
            reader.client.raw(reader.client.content("amq.lease", "settle", raw, reply_to=ANSWERS))
        self.cluster.unlink(one, other)
        self.cluster.wait(100)
        self.cluster.relink()
        self.cluster.wait(500)
        if asked and self.end:
            heard = [said for said in reader.client.hear(1) if isinstance(said, Content)]
            assert [json.loads(said.body)["outcome"] for said in heard] == ["settled"]

    @precondition(lambda self: self.end)
    @rule(pick=st.integers(0, 2))
    def others_are_refused(self, pick: int) -> None:
        client = self.cluster[self.at(pick)].client()
        heard = client.say(m.BasicConsume(queue="q"))
        for _ in range(50):
            if heard:
                break
            self.cluster.wait(200)
            heard = client.say()
        assert [said.reply_code for said in heard] == [403]
        client.leave()

    @invariant()
    def no_node_says_what_it_must_not(self) -> None:
        assert not self.cluster.bad_frames

    def teardown(self) -> None:
        """What is left is got by somebody else, each message once; the others were settled."""
        if not hasattr(self, "reader"):
            return
        self.patch.undo()
        if self.end:
            reader = self.reads(0)
            self.note(reader.take(None, 1))
            assert reader.word("release")["outcome"] == "released"
        client = self.cluster[self.at(0)].client()
        heard = client.say(m.BasicConsume(queue="q", consumer_tag="rest", no_ack=True))
        self.cluster.wait(3000)
        rest = bodies(heard + client.say())
        settled = [body for seq, body in self.known.items() if seq < self.acknowledged]
        assert sorted(rest + settled) == sorted(self.confirmed), "settled once, or returned"


TestLeases = Leases.TestCase
TestLeases.settings = settings(max_examples=examples(50), stateful_step_count=40, deadline=None)
