"""A replicated queue's rings and their model beside each other: what the lives of `test_ring_*_model` begin with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize

from clusterbroker.broker.queues import ring as ring_compiled
from clusterbroker.broker.queues.states import HEAD_NOT_LOADED
from clusterbroker.broker.server.recovery import Recovery
from clusterbroker.broker.wire.amqp091 import codec as codec_compiled
from clusterbroker.journal import record as record_compiled
from clusterbroker.journal.replay import tell
from tests.model import codec as codec_model
from tests.model import record as record_model
from tests.model import ring as ring_model

QUEUE_ID = 77
NODES = 3


class Node:
    """One node's journal and its ring of the queue, in one half."""

    def __init__(self, half: Half) -> None:
        self.half = half
        self.segments: dict[int, bytearray] = {1: bytearray()}
        self.groups: list[tuple[int, int]] = []
        self.index: dict[int, bytes] = {}
        self.meta: dict[str, Any] | None = None
        self.checkpointed = 0
        self.ring = self.new_ring()
        self.ring.step_down()

    def new_ring(self) -> Any:
        self.use = self.half.record.SegmentUse()
        config = self.half.config
        volatile = config["volatile"]
        ring = self.half.module.Ring(QUEUE_ID, not volatile, config["max_priority"], self.use, [], "queue")
        ring.resident_bytes_max = config["resident_bytes_max"]
        if volatile:
            ring.volatile = True
            self.use = self.half.record.SegmentUse()
        return ring

    def writer(self) -> Any:
        if len(self.segments[max(self.segments)]) > 3000:
            self.segments[max(self.segments) + 1] = bytearray()
        segment = max(self.segments)
        return self.half.record.GroupWriter(segment, len(self.segments[segment]))

    def submit(self, writer: Any) -> None:
        group = writer.finish(len(self.groups) + 1, 0)
        self.half.record.seal(group)
        self.groups.append((writer.segment, writer.offset))
        self.segments[writer.segment] += group

    def follow(self, span: bytes, epoch: int) -> None:
        self.half.record.verify_records(span, QUEUE_ID, epoch)
        writer = self.writer()
        self.ring.fold(span, writer.segment, writer.append(span))
        self.submit(writer)

    def message(self, location: Any) -> Any:
        seq, segment, offset, _ = location
        return self.half.record.read_message(bytes(self.segments[segment]), offset, QUEUE_ID, seq)

    def checkpoint(self) -> None:
        for first, run in self.ring.dirty_runs():
            if run:
                self.index[first] = run
            else:
                self.index.pop(first, None)
        self.meta = self.ring.checkpoint_meta()
        self.checkpointed = len(self.groups)

    def restart(self) -> None:
        """From the disk alone, through what a node uses for it."""
        ring = self.new_ring()
        recovery = Recovery(lambda _: ring, lambda entity: entity, lambda _: True, None)  # type: ignore[arg-type, return-value]
        if self.meta is not None:
            recovery.meta(QUEUE_ID, self.meta)
        for first, run in sorted(self.index.items()):
            recovery.run(QUEUE_ID, first, run)
        for segment, offset in self.groups[self.checkpointed :]:
            tell(recovery, segment, self.half.record.scan_group(bytes(self.segments[segment]), offset)[2])
        recovery.rings[QUEUE_ID] = ring
        recovery.finish()
        self.ring = ring
        self.ring.step_down()


class Half:
    def __init__(self, record: Any, codec: Any, ring: Any, config: dict[str, Any]) -> None:
        self.record, self.codec, self.module, self.config = record, codec, ring, config
        self.nodes = [Node(self) for _ in range(NODES)]
        self.takers: list[Any] = []

    def meet(self, owner: int) -> None:
        """Two nodes with a consumer each."""
        ring = self.nodes[owner].ring
        self.takers = [self.module.RemoteConsumer(ring, holder, 0, holder) for holder in (1, 253)]
        for taker in self.takers:
            taker.limit = 1 << 40

    def records(self, first: int, count: int, priority: int) -> bytes:
        buffer = self.record.RecordBuffer()
        for n in range(count):
            body, message_format = b"<%d>" % (first + n), first + n & 255
            message = self.record.Message(b"\x00\x01q", b"\x00\x00" + body, 2, n & 1, priority, 5, -1, message_format)
            buffer.enqueue(QUEUE_ID, 0, n, message, 0, False)
        data: bytes = buffer.take()
        return data

    def load(self, owner: int) -> None:
        node = self.nodes[owner]
        while node.ring.head(0) == HEAD_NOT_LOADED:
            places = list(node.ring.missing())
            node.ring.fill(places, [node.message(place) for place in places])


class RingLife(RuleBasedStateMachine):
    """An owner and its replicas. Whatever is done to one half is done to the other, and the answers are the same."""

    HALF: ClassVar[type[Half]] = Half

    @initialize(
        max_priority=st.sampled_from([0, 0, 3]),
        resident_bytes_max=st.sampled_from([0, 300, 8 << 20]),
        volatile=st.sampled_from([False, False, False, True]),
    )
    def start(self, **config: Any) -> None:
        self.halves = [
            self.HALF(record_model, codec_model, ring_model, config),
            self.HALF(record_compiled, codec_compiled, ring_compiled, config),
        ]
        self.owner = 0
        self.epoch = 1
        self.published = 0
        self.inflight: tuple[int, bytes] | None = None
        self.begin()
        for half in self.halves:
            half.nodes[0].ring.take_over(1)
            half.nodes[0].ring.paused = False
            half.meet(0)

    def begin(self) -> None:
        """The books of a life."""
        raise NotImplementedError

    def both(self, act: Callable[[Half], Any]) -> Any:
        answers = [act(half) for half in self.halves]
        assert answers[0] == answers[1]
        return answers[1]

    def owners(self, act: Callable[[Any], Any]) -> Any:
        return self.both(lambda half: act(half.nodes[self.owner].ring))

    def write(self) -> tuple[int, bytes]:
        """The owner writes a group: where it ends, and its bytes."""
        bound = self.owners(lambda ring: ring.unwritten_bytes)

        def act(half: Half) -> Any:
            node = half.nodes[self.owner]
            writer = node.writer()
            start = writer.size
            upto = node.ring.write(writer)
            span = writer.span(start, writer.size)
            assert len(span) <= bound, "unwritten_bytes is a bound"
            node.submit(writer)
            return upto, span

        upto, span = self.both(act)
        return upto, span
