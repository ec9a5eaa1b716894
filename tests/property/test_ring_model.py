"""The ring and its model live the same life, through crashes: whatever is done to one is done to the other.

A book beside them knows what a queue promises: which messages it holds and in which order they come, what a crash
may not lose, may not bring back, and may not hand out as if for the first time.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from clusterbroker.broker.fronts.amqp091 import delivery as delivery_compiled
from clusterbroker.broker.queues import ring as ring_compiled
from clusterbroker.broker.queues.states import HEAD_EXPIRED, HEAD_NONE, HEAD_NOT_LOADED, HEAD_OK
from clusterbroker.broker.wire.amqp091 import codec as codec_compiled
from clusterbroker.journal import layout
from clusterbroker.journal import record as record_compiled
from tests.budget import examples
from tests.model import codec as codec_model
from tests.model import delivery as delivery_model
from tests.model import record as record_model
from tests.model import ring as ring_model

QUEUE_ID = 77
ADDRESS = b"\x02ex\x03key"
HEADER = b"\x00\x00"
TOKEN = re.compile(rb"<(\d+)>")
ATTRIBUTES = (
    "acked", "committed", "destroyed", "disk_reads", "disk_writes", "handed", "handed_no_ack", "head_expiry_ms",
    "marked", "needs_write", "next_seq", "published", "ready", "ready_bytes", "redelivered", "reserved",
    "reserved_durable", "resident", "fleeting", "resident_bytes", "turn", "unacked", "unwritten_bytes",
    "unwritten_most", "wants_load",
)  # fmt: skip


class Half:
    """One half's modules, and all that a queue and two channels need of them."""

    def __init__(self, record: Any, codec: Any, ring: Any, delivery: Any, config: dict[str, Any]) -> None:
        self.record, self.codec, self.module, self.delivery, self.config = record, codec, ring, delivery, config
        self.fresh()

    def fresh(self) -> None:
        self.use = self.record.SegmentUse()
        self.agenda: list[str] = []
        priority = self.config["max_priority"]
        self.ring = self.module.Ring(QUEUE_ID, self.config["journaled"], priority, self.use, self.agenda, "queue")
        self.ring.resident_bytes_max = self.config["resident_bytes_max"]
        self.ring.ttl_ms = self.config["ttl_ms"]
        self.ring.annotate = self._annotate
        self.ring.annotates_redelivered = True
        self.outs = [self.codec.OutBuffer(8192, 2000) for _ in range(2)]
        self.ledgers = [self.delivery.Ledger(number + 1, out) for number, out in enumerate(self.outs)]
        self.ledgers[1].prefetch = self.config["channel_prefetch"]
        self.consumers = [
            self.delivery.BasicConsumer(self.ring, self.ledgers[at], b"\x01%d" % n, no_ack, prefetch, priority, n)
            for n, (at, no_ack, prefetch, priority) in enumerate(self.config["consumers"])
        ]
        for consumer in self.consumers[1::2]:
            consumer.numbered = b"\x06number"

    def _annotate(self, message: Any, seq: int, count: int, *_: Any) -> Any:
        payload = message.payload + b"#%d.%d" % (seq, count)
        return self.record.Message(message.address, payload, message.header_length)

    def message(self, token: int, flags: int, priority: int, size: int, time_ms: int, ttl_ms: int) -> Any:
        payload = HEADER + b"<%d>" % token + bytes(size)
        return self.record.Message(ADDRESS, payload, len(HEADER), flags, priority, time_ms, ttl_ms)

    def plain(self, value: Any) -> Any:
        """The value with messages and consumers as what makes them comparable."""
        if isinstance(value, (self.record.Message)):
            return value.payload
        if isinstance(value, self.delivery.BasicConsumer):
            return f"consumer {value.owner}"
        if isinstance(value, (tuple, list)):
            return [self.plain(part) for part in value]
        return value


def deliveries(data: bytes) -> list[tuple[int, int, bool, int]]:
    """(channel, delivery tag, redelivered, token) of each basic.deliver."""
    found: list[tuple[int, int, bool, int]] = []
    at = 0
    tag, again = 0, False
    while at < len(data):
        kind, channel, size = struct.unpack_from(">BHI", data, at)
        payload = data[at + 7 : at + 7 + size]
        at += size + 8
        if kind == codec_model.FRAME_METHOD:
            assert payload[:4] == b"\x00\x3c\x00\x3c"
            tag, again = struct.unpack_from(">Q?", payload, 5 + payload[4])
        elif kind == codec_model.FRAME_BODY and (token := TOKEN.match(payload)):
            found.append((channel, tag, again, int(token[1])))
    return found


class RingHalves(RuleBasedStateMachine):
    @initialize(
        journaled=st.sampled_from([True] * 7 + [False]),
        max_priority=st.sampled_from([0, 0, 3]),
        resident_bytes_max=st.sampled_from([0, 60, 400, 8 << 20]),
        ttl_ms=st.sampled_from([-1, -1, -1, 50]),
        first_seq=st.sampled_from([1, 250, 255, 256, 2**33 + 250]),
        channel_prefetch=st.sampled_from([0, 0, 3]),
        # ledger, no_ack, prefetch, priority
        consumers=st.lists(
            st.tuples(
                st.integers(0, 1), st.sampled_from([False] * 4 + [True]), st.sampled_from([0, 5, 2]), st.integers(0, 1)
            ),
            min_size=1,
            max_size=5,
        ),
    )
    def start(self, first_seq: int, consumers: list[Any], **config: Any) -> None:
        config["consumers"] = sorted(consumers, key=lambda consumer: -consumer[3])
        self.halves = [
            Half(record_model, codec_model, ring_model, delivery_model, config),
            Half(record_compiled, codec_compiled, ring_compiled, delivery_compiled, config),
        ]
        self.now_ms = 1000
        self.both(lambda half: half.ring.restore_end(first_seq, 0))
        # the model
        self.tokens: dict[int, int] = {}  # token -> seq
        self.priorities: dict[int, int] = {}
        self.persistent: set[int] = set()
        self.ready: set[int] = set()
        self.loose: list[int] = []  # unacknowledged outside the ledgers
        self.tags: list[dict[int, int]] = [{}, {}]
        self.handed: set[int] = set()  # persistent, once handed out
        self.gone: set[int] = set()  # settled since the last write
        self.gone_inflight: set[int] = set()
        self.gone_durable: set[int] = set()
        # the journal
        self.segments: dict[int, bytearray] = {1: bytearray()}
        self.groups: list[tuple[int, int]] = []  # segment and offset of each durable group
        self.inflight: tuple[int, int, int] | None = None  # segment, offset, upto
        self.index: dict[int, bytes] = {}
        self.checkpointed = (0, first_seq, 0)  # groups, committed, reserved
        self.loads: list[list[Any]] = []
        self.crashed_at = 0

    # -- both at once -----------------------------------------------------------------------------------------

    def both(self, act: Callable[[Half], Any]) -> Any:
        answers = []
        for half in self.halves:
            try:
                answers.append(half.plain(act(half)))
            except (KeyError, AssertionError) as error:
                answers.append((type(error), str(error).splitlines()[:1]))  # pytest adds lines to asserts
        assert answers[0] == answers[1]
        return answers[1]

    def both_exactly(self, act: Callable[[Half], Any]) -> list[Any]:
        answers = [act(half) for half in self.halves]
        assert self.halves[0].plain(answers[0]) == self.halves[1].plain(answers[1])
        return answers

    @property
    def journaled(self) -> bool:
        return bool(self.halves[0].config["journaled"])

    @property
    def expected_head(self) -> int:
        return min(self.ready, key=lambda seq: (-self.priorities[seq], seq))

    def leave(self, seq: int) -> None:
        self.gone.add(seq)

    # -- rules ------------------------------------------------------------------------------------------------

    @rule(
        count=st.sampled_from([1, 1, 2, 3, 7, 60, 260]),
        persistent=st.sampled_from([True, True, False]),
        priority=st.integers(0, 5),
        size=st.integers(0, 30),
        ttl_ms=st.sampled_from([-1] * 6 + [0, 20]),
    )
    def append(self, count: int, persistent: bool, priority: int, size: int, ttl_ms: int) -> None:
        flags = layout.PERSISTENT if persistent else 0
        first, seq = len(self.tokens), self.halves[0].ring.next_seq
        for n in range(count):
            self.tokens[first + n] = seq + n
            self.priorities[seq + n] = min(priority, self.halves[0].config["max_priority"])
            self.ready.add(seq + n)
            if persistent and self.journaled:
                self.persistent.add(seq + n)
        make = [(first + n, flags, priority, size, self.now_ms, ttl_ms) for n in range(count)]
        assert self.both(lambda half: half.ring.append([half.message(*each) for each in make])) == seq + count

    @precondition(lambda self: self.ready)
    @rule(limit=st.sampled_from([0, 1, 5, 1 << 30]))
    def dispatch(self, limit: int) -> None:
        ready, before = set(self.ready), [consumer.delivered for consumer in self.halves[1].consumers]
        count, _ = self.both(lambda half: half.module.dispatch(half.ring, half.consumers, self.now_ms, limit))
        sent = [self.both(lambda half, at=at: half.outs[at].take()) for at in range(2)]
        delivered = sorted((d for data in sent for d in deliveries(data)), key=lambda d: d[1])
        assert len(delivered) == count
        seqs = {self.tokens[token] for *_, token in delivered}
        ahead = sorted(ready, key=lambda seq: (-self.priorities[seq], seq))[:count]
        assert seqs == set(ahead), "the first in the queue's order go first"
        for channel in (1, 2):
            mine = [self.tokens[token] for at, _, _, token in delivered if at == channel]
            assert mine == sorted(mine, key=lambda seq: (-self.priorities[seq], seq)), "in order on each channel"
        for channel, tag, redelivered, token in delivered:
            seq = self.tokens[token]
            self.ready.discard(seq)
            assert redelivered or seq not in self.handed, "a second hand-out says so"
            if seq in self.persistent:
                self.handed.add(seq)
            if tag in self.ledger_tags(channel - 1):
                self.tags[channel - 1][tag] = seq
            else:
                self.leave(seq)

        for consumer, had in zip(self.halves[1].consumers, before, strict=True):
            assert consumer.delivered <= max(consumer.limit, had), "never beyond its credit"

    @rule(pick=st.integers(0, 9), credit=st.sampled_from([0, 0, 1, 3, 1 << 40]))
    def link_credit(self, pick: int, credit: int) -> None:
        """So many more from now on: fewer than were left, too (AMQP 1.0: a receiver may take credit back)."""
        for half in self.halves:
            consumer = half.consumers[pick % len(half.consumers)]
            consumer.limit = consumer.delivered + credit

    def ledger_tags(self, at: int) -> set[int]:
        """Tags that the ledgers hold: collected and put back."""
        taken = []
        for half in self.halves:
            entries = half.ledgers[at].drain()
            half.ledgers[at].restore(entries, self.now_ms)
            taken.append({tag for tag, *_ in entries})
        assert taken[0] == taken[1]
        return taken[0]

    @staticmethod
    def tag(tags: dict[int, int], pick: int) -> int:
        """One that is outstanding, 0, or one that may not be."""
        if pick == 12:
            return 0
        return min(tags, default=1) + 1 if pick == 11 or not tags else sorted(tags)[pick % len(tags)]

    @precondition(lambda self: any(self.tags))
    @rule(at=st.integers(0, 1), picks=st.lists(st.tuples(st.integers(0, 12), st.booleans()), max_size=4))
    def ack(self, at: int, picks: list[tuple[int, bool]]) -> None:
        at = at if self.tags[at] else 1 - at
        tags = self.tags[at]
        acks = []
        unknown = 0
        for pick, multiple in picks:
            tag = self.tag(tags, pick)
            acks.append(tag << 1 | multiple)
            if unknown or (tag not in tags and not (multiple and tag == 0)):
                unknown = unknown or tag + 1
                continue
            for known in [tag] if not multiple else [t for t in tags if not tag or t <= tag]:
                self.leave(tags.pop(known))
        assert self.both(lambda half: half.ledgers[at].ack(acks)) == unknown

    @precondition(lambda self: any(self.tags))
    @rule(at=st.integers(0, 1), pick=st.integers(0, 12), multiple=st.booleans(), then=st.integers(0, 3))
    def collect(self, at: int, pick: int, multiple: bool, then: int) -> None:
        at = at if self.tags[at] else 1 - at
        tags = self.tags[at]
        tag = self.tag(tags, pick)
        taken = self.both_exactly(lambda half: half.ledgers[at].collect(tag, multiple))
        if taken[0] is None:
            assert tag not in tags
            return
        if then == 0:
            for half, entries in zip(self.halves, taken, strict=True):
                half.ledgers[at].restore(entries, self.now_ms)
            return
        for known, _, seq in taken[0]:
            assert tags.pop(known) == seq
            if then == 1:
                self.loose.append(seq)
            else:
                self.back(seq, then == 2)

    @precondition(lambda self: any(self.tags))
    @rule(counted=st.booleans())
    def channels_end(self, counted: bool) -> None:
        for at in range(2):
            for tag, _, seq in self.both(lambda half, at=at: half.ledgers[at].drain()):
                assert self.tags[at].pop(tag) == seq
                self.back(seq, counted)

    def back(self, seq: int, counted: bool) -> None:
        self.both(lambda half: half.ring.requeue(seq, counted))
        self.ready.add(seq)

    @precondition(lambda self: self.loose)
    @rule(pick=st.integers(0, 100), how=st.sampled_from(["settle", "held", "requeue", "counted"]))
    def decide(self, pick: int, how: str) -> None:
        seq = self.loose.pop(pick % len(self.loose))
        if how in ("settle", "held"):
            self.both(lambda half: half.ring.settle(seq, how == "held"))
            self.leave(seq)
        else:
            self.back(seq, how == "counted")

    @precondition(lambda self: self.ready)
    @rule()
    def take(self) -> None:
        if self.both(lambda half: half.ring.head(self.now_ms)) != HEAD_OK:
            return
        seq, payload, redelivered, _ = self.both(lambda half: half.ring.take())
        assert seq == self.expected_head
        token = TOKEN.search(payload)
        assert token is not None
        assert self.tokens[int(token[1])] == seq
        assert redelivered or seq not in self.handed
        self.ready.discard(seq)
        self.loose.append(seq)
        if seq in self.persistent:
            self.handed.add(seq)

    @precondition(lambda self: self.ready)
    @rule(pick=st.integers(0, 5))
    def pop_head(self, pick: int) -> None:
        """An expired head, sometimes another."""
        head = self.both(lambda half: half.ring.head(self.now_ms))
        if head == HEAD_NONE or (pick and head != HEAD_EXPIRED):
            return
        seq, _, _ = self.both(lambda half: half.ring.pop_head())
        assert seq == self.expected_head
        self.ready.discard(seq)
        self.loose.append(seq)

    @precondition(lambda self: self.ready)
    @rule(pick=st.integers(0, 300), held=st.booleans())
    def settle_ready(self, pick: int, held: bool) -> None:
        seq = sorted(self.ready)[pick % len(self.ready)]
        self.both(lambda half: half.ring.settle(seq, held))
        self.ready.discard(seq)
        self.leave(seq)

    @rule(pick=st.integers(0, 50))
    def wrong(self, pick: int) -> None:
        """What does not exist, or not in the right state, is refused in the same words."""
        seq = max(self.halves[0].ring.next_seq - pick, 0)
        known = self.ready | set(self.loose) | {seq for tags in self.tags for seq in tags.values()}
        if seq not in known:
            self.both(lambda half: half.ring.settle(seq))
        if seq not in known or seq in self.ready:
            self.both(lambda half: half.ring.requeue(seq, True))

    @rule(what=st.integers(0, 9), ms=st.integers(1, 30))
    def seldom(self, what: int, ms: int) -> None:
        if what == 0:
            count = self.both(lambda half: half.ring.purge())
            assert count == len(self.ready)
            for seq in self.ready:
                self.leave(seq)
            self.ready.clear()
        elif what < 4:
            self.both(lambda half: half.ring.reserve())
        elif what < 6:
            self.both(lambda half: half.ring.advance())
        elif what < 8:
            self.now_ms += ms
        else:
            for half in self.halves:
                half.agenda.clear()
                half.ring.marked = False

    # -- the journal ------------------------------------------------------------------------------------------

    @precondition(lambda self: self.inflight is None and self.halves[0].ring.needs_write)
    @rule(new_segment=st.booleans(), left_out=st.sampled_from([0, 0, 1, 5, 300]))
    def write(self, new_segment: bool, left_out: int) -> None:
        if new_segment:
            self.segments[max(self.segments) + 1] = bytearray()
        segment = max(self.segments)
        offset = len(self.segments[segment])
        groups, uptos = [], []
        bound = self.halves[0].ring.unwritten_bytes
        assert bound <= self.halves[0].ring.unwritten_most, "what is found without a look is a bound, too"
        upto = max(self.halves[0].ring.next_seq - left_out, 1) if left_out else 0
        for half in self.halves:
            writer = half.record.GroupWriter(segment, offset)
            uptos.append(half.ring.write(writer, upto))
            assert writer.size <= bound + layout.GROUP_HEADER_BYTES, "unwritten_bytes is a bound"
            group = writer.finish(len(self.groups) + 1, self.now_ms)
            half.record.seal(group)
            groups.append(bytes(group))
        assert groups[0] == groups[1]
        assert uptos[0] == uptos[1]
        self.segments[segment] += groups[0]
        self.inflight = (segment, offset, uptos[0])
        self.gone_inflight, self.gone = self.gone, set()

    @precondition(lambda self: self.inflight is not None)
    @rule()
    def commit(self) -> None:
        assert self.inflight is not None
        segment, offset, upto = self.inflight
        self.both(lambda half: half.ring.commit(upto))
        assert self.halves[0].ring.committed >= upto
        self.durable(segment, offset)

    @precondition(lambda self: self.halves[0].ring.needs_write)
    @rule(new_segment=st.booleans())
    def flush(self, new_segment: bool) -> None:
        if self.inflight is None:
            self.write(new_segment, 0)
        self.commit()

    @precondition(lambda self: self.halves[0].ring.needs_write)
    @rule(new_segment=st.booleans())
    def flush_and_checkpoint(self, new_segment: bool) -> None:
        self.flush(new_segment)
        self.checkpoint()

    def durable(self, segment: int, offset: int) -> None:
        self.inflight = None
        self.groups.append((segment, offset))
        self.gone_durable |= self.gone_inflight
        self.gone_inflight = set()

    def stored(self, half: Half, location: Any) -> Any:
        seq, segment, offset, _ = location
        return half.record.read_message(bytes(self.segments[segment]), offset, QUEUE_ID, seq)

    @precondition(lambda self: self.halves[0].ring.wants_load)
    @rule()
    def load(self) -> None:
        locations = self.both(lambda half: list(half.ring.missing()))
        messages = [[self.stored(half, location) for location in locations] for half in self.halves]
        self.loads.append([locations, *messages])

    @precondition(lambda self: self.halves[0].ring.wants_load)
    @rule()
    def load_at_once(self) -> None:
        self.load()
        while self.loads:
            self.loaded()

    @precondition(lambda self: self.loads)
    @rule()
    def loaded(self) -> None:
        locations, *messages = self.loads.pop(0)
        for half, mine in zip(self.halves, messages, strict=True):
            half.ring.fill([tuple(location) for location in locations], mine)

    @precondition(lambda self: self.groups)
    @rule(pick=st.integers(0, 300), wrong=st.sampled_from([0, 0, 0, 8]))
    def rewrite(self, pick: int, wrong: int) -> None:
        seqs = sorted(self.ready | set(self.loose) | {seq for tags in self.tags for seq in tags.values()})
        if not seqs:
            return
        seq = seqs[pick % len(seqs)]
        location = self.both(lambda half: half.ring.location(seq))
        if isinstance(location, list):
            _, segment, offset, _ = location
            self.both(lambda half: half.ring.rewrite(seq, segment, offset + wrong, self.stored(half, location)))

    @precondition(lambda self: self.journaled)
    @rule()
    def checkpoint(self) -> None:
        for first, run in self.both(lambda half: half.ring.dirty_runs()):
            if run:
                self.index[first] = run
            else:
                self.index.pop(first, None)
        ring = self.halves[0].ring
        self.checkpointed = (len(self.groups), ring.committed, ring.reserved_durable)

    @precondition(lambda self: self.journaled and len(self.groups) > self.crashed_at)
    @rule(inflight_survives=st.booleans())
    def crash(self, inflight_survives: bool) -> None:
        self.crashed_at = len(self.groups) + 1
        committed = self.halves[0].ring.committed
        promised = {seq for seq in self.persistent if seq < committed} - self.gone - self.gone_inflight
        promised -= self.gone_durable
        if self.inflight is not None and inflight_survives:
            self.durable(*self.inflight[:2])
        self.inflight = None
        for half in self.halves:
            half.fresh()
            self.recover(half, half.ring)
        probe = self.halves[0].module.Ring(QUEUE_ID, True, self.halves[0].config["max_priority"])
        found = self.prove(probe)
        assert promised <= found, "a committed persistent message outlives a crash"
        assert not found & self.gone_durable, "what was durably settled stays away"
        self.ready = found
        self.loose.clear()
        self.loads.clear()
        self.tags = [{}, {}]
        self.gone, self.gone_inflight = set(), set()
        next_seq = self.halves[0].ring.next_seq
        for seq in [seq for seq in self.priorities if seq >= next_seq]:  # these seqs were never heard of
            del self.priorities[seq]
            self.persistent.discard(seq)
            self.handed.discard(seq)
            self.gone_durable.discard(seq)
        self.persistent &= found
        self.handed &= found
        # indexed messages whose seq is given out anew must not be in the way
        assert all(first < next_seq for first in self.index)

    def recover(self, half: Half, ring: Any) -> None:
        groups, next_seq, reserved = self.checkpointed
        for first, run in sorted(self.index.items()):
            ring.restore_run(first, run)
        for segment, offset in self.groups[groups:]:
            _, _, records = half.record.scan_group(bytes(self.segments[segment]), offset)
            for record in records:
                if record.kind == layout.ENQ:
                    ring.restore(
                        record.seq,
                        segment,
                        record.offset,
                        record.length,
                        record.body_length,
                        record.priority,
                        record.delivery_count,
                    )
                elif record.kind == layout.SET:
                    ring.restore_settled(record.ranges)
                    next_seq = max(next_seq, *(last + 1 for _, last in record.ranges))
                elif record.kind == layout.RSV:
                    reserved = max(reserved, record.seq)
                else:
                    ring.restore_count(record.seq, record.delivery_count)
        ring.restore_end(next_seq, reserved)

    def prove(self, ring: Any) -> set[int]:
        """Takes all out of a recovered ring: contents, order, redelivered flags. Returns the seqs."""
        half = self.halves[0]
        self.recover(half, ring)
        found: list[int] = []
        while (head := ring.head(0)) != HEAD_NONE:
            if head == HEAD_NOT_LOADED:
                locations = list(ring.missing())
                ring.fill(locations, [self.stored(half, location) for location in locations])
                continue
            seq, message, redelivered, _ = ring.take()
            token = TOKEN.search(message.payload)
            assert token is not None
            assert self.tokens[int(token[1])] == seq, "the content is the message's own"
            assert redelivered or seq not in self.handed, "what was handed out before the crash says so after it"
            found.append(seq)
        assert found == sorted(found, key=lambda seq: (-self.priorities[seq], seq)), "order outlives a crash"
        return set(found)

    # -- what always holds ------------------------------------------------------------------------------------

    @invariant()
    def same(self) -> None:
        for name in ATTRIBUTES:
            self.both(lambda half, name=name: getattr(half.ring, name)() if "ms" in name else getattr(half.ring, name))
        self.both(lambda half: half.ring.head(self.now_ms))
        self.both(lambda half: half.agenda)
        self.both(lambda half: [half.use.live(segment) for segment in self.segments])
        self.both(lambda half: [(c.unacked, c.delivered, c.has_credit) for c in half.consumers])
        self.both(lambda half: [(c.room, c.writable, c.shared) for c in half.consumers])
        self.both(lambda half: [(x.unacked, x.next_tag, x.skipped, x.redelivered, x.oldest()) for x in half.ledgers])

    @invariant()
    def counts(self) -> None:
        ring = self.halves[1].ring
        assert ring.ready == len(self.ready)
        assert ring.unacked == len(self.loose) + sum(map(len, self.tags))
        assert [ledger.unacked for ledger in self.halves[1].ledgers] == [len(tags) for tags in self.tags]

    @invariant()
    def same_slots(self) -> None:
        seqs = sorted(self.ready | set(self.loose) | self.gone | self.gone_inflight)
        for seq in seqs[:20] + seqs[-20:]:
            for name in ("message", "location", "delivery_count"):
                self.both(lambda half, name=name, seq=seq: getattr(half.ring, name)(seq))

    @invariant()
    def same_missing(self) -> None:
        if self.journaled:
            self.both(lambda half: list(half.ring.missing()))

    def teardown(self) -> None:
        if not hasattr(self, "halves"):
            return
        if self.inflight is not None:
            self.commit()
        self.dispatch(3)
        if len(self.tokens) % 2:  # either way out leaves nothing behind
            self.both(lambda half: half.ring.destroy())
            for at in range(2):
                self.both(lambda half, at=at: half.ledgers[at].ack([1]))
                self.both(lambda half, at=at: half.ring.needs_write)
        else:
            for at in range(2):
                self.both(lambda half, at=at: half.ledgers[at].ack([1]))
            for seq in self.loose:
                self.both(lambda half, seq=seq: half.ring.settle(seq))
            self.both(lambda half: half.ring.purge())
            if self.journaled:
                self.write(False, 0)
                self.commit()
                self.both(lambda half: half.ring.dirty_runs())
            assert self.both(lambda half: half.ring.advance()) == self.halves[0].ring.next_seq
        assert self.both(lambda half: half.ring.resident_bytes) == 0
        assert self.both(lambda half: sum(half.use.live(segment) for segment in self.segments)) == 0
        assert self.both(lambda half: [ledger.unacked for ledger in half.ledgers]) == [0, 0]


RingHalves.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
test_halves = RingHalves.TestCase
