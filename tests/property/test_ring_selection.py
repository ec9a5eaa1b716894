"""Consumers that pass messages over, and messages that are changed in their places: the ring and its model, as in
`test_ring_model`, with crashes.

The book beside them knows what a consumer that passes messages over may have, and that no message that it takes is left
lying while it has credit.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from clusterbroker.broker.queues.states import HEAD_NONE, NO_CREDIT
from tests.budget import examples
from tests.model import codec as codec_model
from tests.property.test_ring_model import TOKEN, Half, RingHalves, deliveries

ENOUGH = 1 << 30


def judge(modulus: int, rest: int, tired: Callable[[], bool]) -> Any:
    def takes(seq: int, message: Any) -> bool | None:
        if tired():
            return None
        assert TOKEN.search(message.payload), "a message is judged by its content"
        return seq % modulus == rest

    return takes


def handed(data: bytes) -> list[tuple[bytes, int]]:
    """(consumer's tag, token) of each basic.deliver."""
    found, at, consumer = [], 0, b""
    while at < len(data):
        kind, _, size = struct.unpack_from(">BHI", data, at)
        payload = data[at + 7 : at + 7 + size]
        at += size + 8
        if kind == codec_model.FRAME_METHOD:
            consumer = payload[5 : 5 + payload[4]]
        elif kind == codec_model.FRAME_BODY and (token := TOKEN.match(payload)):
            found.append((consumer, int(token[1])))
    return found


class SelectingHalves(RingHalves):
    @initialize()
    def no_selections(self) -> None:
        self.takes: dict[int, tuple[int, int]] = {}  # place of a consumer -> modulus, rest
        self.changes: dict[int, int] = {}
        self.asked: dict[Half, int] = {}
        self.patience = ENOUGH

    def leave(self, seq: int) -> None:
        super().leave(seq)
        self.changes.pop(seq, None)

    @rule(pick=st.integers(0, 9), modulus=st.integers(1, 4), rest=st.integers(0, 3))
    def choose(self, pick: int, modulus: int, rest: int) -> None:
        """A consumer takes other messages from now on; all of them with a rest that no number has."""
        place = pick % len(self.halves[0].consumers)
        self.takes[place] = modulus, rest
        for half in self.halves:
            selection = None if rest >= modulus else half.module.Selection(judge(modulus, rest, self.tire(half)))
            half.consumers[place].selection = selection
        if rest >= modulus:
            del self.takes[place]

    def tire(self, half: Half) -> Callable[[], bool]:
        def tired() -> bool:
            self.asked[half] = self.asked.get(half, 0) + 1
            return self.asked[half] > self.patience

        return tired

    @precondition(lambda self: self.ready)
    @rule(look_max=st.sampled_from([ENOUGH, ENOUGH, 0, 1, 3]), patience=st.sampled_from([ENOUGH, ENOUGH, 2]))
    def select(self, look_max: int, patience: int) -> None:
        self.asked, self.patience = {}, patience
        # a crash has made the consumers anew, and they take everything
        chosen = [consumer.selection is not None for consumer in self.halves[1].consumers]
        self.takes = {place: taken for place, taken in self.takes.items() if chosen[place]}
        ready = set(self.ready)
        before = [consumer.delivered for consumer in self.halves[1].consumers]
        count, why, absent = self.both(
            lambda half: half.module.dispatch_selected(half.ring, half.consumers, self.now_ms, look_max)
        )
        assert self.both(lambda half: [None if one.selection is None else one.selection.cursor
                                       for one in half.consumers])  # fmt: skip
        creditors = [consumer.has_credit for consumer in self.halves[1].consumers]  # while its connection is as full
        sent = [self.both(lambda half, at=at: half.outs[at].take()) for at in range(2)]
        delivered = sorted((d for data in sent for d in deliveries(data)), key=lambda d: d[1])
        self.in_order(sent)
        assert len(delivered) == count
        wanted = {seq for seq in ready for taken in self.takes.values() if seq % taken[0] == taken[1]}
        unfussy = len(self.takes) < len(before)
        for channel, tag, redelivered, token in delivered:
            seq = self.tokens[token]
            assert seq in self.ready, "nothing is handed out twice"
            assert unfussy or seq in wanted, "nobody gets what nobody takes"
            self.ready.discard(seq)
            assert redelivered or seq not in self.handed, "a second hand-out says so"
            if seq in self.persistent:
                self.handed.add(seq)
            if tag in self.ledger_tags(channel - 1):
                self.tags[channel - 1][tag] = seq
            else:
                self.leave(seq)
        for place, consumer in enumerate(self.halves[1].consumers):
            assert consumer.delivered <= max(consumer.limit, before[place]), "never beyond its credit"
            if creditors[place] and place in self.takes and why in (HEAD_NONE, NO_CREDIT) and not absent:
                modulus, rest = self.takes[place]
                left = [seq for seq in self.ready if seq % modulus == rest]
                expired = self.halves[0].config["ttl_ms"] >= 0 or self.expires
                assert not left or expired, "what a consumer with credit takes is not left lying"

    def in_order(self, sent: list[bytes]) -> None:
        """Each consumer has what it takes by priority, and messages of one priority in the order of publishing: nothing
        returns while messages are handed out."""
        taken: dict[bytes, list[tuple[int, int]]] = {}
        for consumer, token in [one for data in sent for one in handed(data)]:
            seq = self.tokens[token]
            taken.setdefault(consumer, []).append((-self.priorities[seq], seq))
        for consumer, keys in taken.items():
            assert keys == sorted(keys), f"consumer {consumer!r} is handed messages out of order"

    @precondition(lambda self: self.ready)
    @rule(
        pick=st.integers(0, 300), modulus=st.integers(1, 3), look_max=st.sampled_from([ENOUGH, ENOUGH, 0, 3]),
        patience=st.sampled_from([ENOUGH, 2]),
    )  # fmt: skip
    def sweep(self, pick: int, modulus: int, look_max: int, patience: int) -> None:
        """What nobody is to have leaves, and nothing else."""
        first = sorted(self.ready)[pick % len(self.ready)] if pick % 2 else 0

        def swept(half: Half) -> Any:
            asked = []

            def judge(message: Any) -> bool | None:
                asked.append(self.tokens[int(TOKEN.search(message.payload)[1])])
                return None if len(asked) > patience else asked[-1] % modulus == 0

            return *half.module.sweep(half.ring, first, judge, look_max), asked

        stopped, count, why, asked = self.both(swept)
        judged = asked[:patience] if patience < ENOUGH else asked
        assert judged == [seq for seq in sorted(self.ready) if first <= seq < stopped]
        gone = [seq for seq in judged if seq % modulus]
        assert len(gone) == count
        assert why != HEAD_NONE or not [seq for seq in self.ready if seq >= stopped]
        for seq in gone:
            self.ready.discard(seq)
            self.leave(seq)

    @property
    def expires(self) -> bool:
        return any(self.halves[0].ring.message(seq) is None or self.halves[0].ring.message(seq).ttl_ms >= 0
                   for seq in self.ready)  # fmt: skip

    @precondition(lambda self: self.groups)
    @rule(
        pick=st.integers(0, 300), count_max=st.sampled_from([1, 3, 500]), bytes_max=st.sampled_from([1, 200, 1 << 20])
    )
    def missing_from(self, pick: int, count_max: int, bytes_max: int) -> None:
        if not self.ready:
            return
        seq = sorted(self.ready)[pick % len(self.ready)]
        locations = self.both(lambda half: list(half.ring.missing_from(seq, count_max, bytes_max)))
        messages = [[self.stored(half, location) for location in locations] for half in self.halves]
        self.loads.append([locations, *messages])

    @precondition(lambda self: self.loose or any(self.tags))
    @rule(pick=st.integers(0, 300))
    def replace(self, pick: int) -> None:
        """Another header; the body stays."""
        held = sorted({*self.loose, *(seq for tags in self.tags for seq in tags.values())})
        seq = held[pick % len(held)]
        number = self.changes[seq] = self.changes.get(seq, 0) + 1

        def change(half: Half) -> Any:
            before = half.ring.message(seq)
            if before is None:
                location = half.ring.location(seq)
                before = self.stored(half, location)
            header = before.header[:2] + b"!%d!" % number
            return half.ring.replace(
                seq,
                half.record.Message(
                    before.address, header + before.body, len(header), before.flags, before.priority, before.time_ms,
                    before.ttl_ms,
                ),
            )  # fmt: skip

        assert self.both(change) is True
        shown = self.both(lambda half: half.ring.message(seq))
        assert b"!%d!" % number in shown

    @precondition(lambda self: self.ready)
    @rule(pick=st.integers(0, 300))
    def replace_what_is_not_out(self, pick: int) -> None:
        seq = sorted(self.ready)[pick % len(self.ready)]
        assert self.both(lambda half: half.ring.replace(seq, half.message(1, 0, 0, 0, 0, -1))) is False


SelectingHalves.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
test_halves = SelectingHalves.TestCase
