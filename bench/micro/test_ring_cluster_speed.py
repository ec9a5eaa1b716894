"""What a replicated queue's rings cost per message, compiled half: `pytest bench/micro/test_ring_cluster_speed.py`.

`extra_info.ns_per_message` is the figure; a round does 20,000 messages of 100 bytes, checksums proved where the ring
proves them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from clusterbroker.broker.fronts.amqp091 import delivery
from clusterbroker.broker.queues import ring as module
from clusterbroker.broker.wire.amqp091 import codec
from clusterbroker.journal import record
from clusterbroker.journal.layout import PERSISTENT

pytest.importorskip("pytest_benchmark")

MESSAGES = 20_000
BATCH = 100
LIVE = 5_000_000
Work = tuple[tuple[Any, ...], dict[str, Any]]


def spans(first: int = 1) -> list[bytes]:
    """ENQ records in batches, as they come from another node."""
    buffer = record.RecordBuffer(1 << 40)
    found = []
    for at in range(first, first + MESSAGES, BATCH):
        for seq in range(at, at + BATCH):
            message = record.Message(b"\x02ex\x03key", b"\x10\x00\x02" + bytes(97), 3, PERSISTENT)
            buffer.enqueue(1, 1, seq, message, 0, False)
        found.append(buffer.take())
    return found


SPANS = spans()


def owner() -> Any:
    ring = module.Ring(1, True, 0, record.SegmentUse(), [])
    ring.replicated = True
    ring.begin_epoch(1)
    return ring


def committed() -> tuple[Any, Any]:
    ring = owner()
    for span in SPANS:
        ring.append_records(span, 0)
    ring.reserve()
    ring.commit(ring.write(record.GroupWriter(1, 0)))
    taker = module.RemoteConsumer(ring, 1)
    taker.limit = 1 << 60
    return ring, taker


def hand_out(ring: Any, taker: Any) -> None:
    """With the few reservations that it needs."""
    while ring.ready:
        module.dispatch(ring, [taker], 0, 1000)
        taker.out.take()
        if ring.needs_write:
            ring.commit(ring.write(record.GroupWriter(1, 0)))
    assert ring.held_by(1) == MESSAGES


def measure(benchmark: Any, setup: Callable[[], Work], act: Callable[..., None]) -> None:
    benchmark.pedantic(act, setup=setup, rounds=20)
    if benchmark.stats is not None:  # None with --benchmark-disable
        benchmark.extra_info["ns_per_message"] = round(benchmark.stats.stats.min / MESSAGES * 1e9, 1)


def test_append_records(benchmark: Any) -> None:
    def append(ring: Any) -> None:
        for span in SPANS:
            ring.append_records(span, 0)
        assert ring.ready == MESSAGES

    measure(benchmark, lambda: ((owner(),), {}), append)


def test_fold(benchmark: Any) -> None:
    def fold(ring: Any) -> None:
        for span in SPANS:
            ring.fold(span, 1, 0)
        assert ring.ready == MESSAGES

    measure(benchmark, lambda: ((module.Ring(1, True, 0, record.SegmentUse(), [], replica=True),), {}), fold)


def test_verify_append_and_fold(benchmark: Any) -> None:
    """All that a backup does per message before the disk."""

    def back_up(ring: Any, writer: Any) -> None:
        for span in SPANS:
            record.verify_records(span, 1, 1)
            ring.fold(span, 1, writer.append(span))

    def fresh() -> Work:
        return (module.Ring(1, True, 0, record.SegmentUse(), [], replica=True), record.GroupWriter(1, 0)), {}

    measure(benchmark, fresh, back_up)


def test_dispatch_to_a_node(benchmark: Any) -> None:
    measure(benchmark, lambda: (committed(), {}), hand_out)


def test_settle_held(benchmark: Any) -> None:
    def held() -> Work:
        ring, taker = committed()
        hand_out(ring, taker)
        return (ring,), {}

    def settle(ring: Any) -> None:
        for first in range(1, MESSAGES, BATCH):
            ring.settle_held(first, first + BATCH - 1, 1)
        assert ring.unacked == 0

    measure(benchmark, held, settle)


@pytest.mark.parametrize("no_ack", [False, True])
def test_receive(benchmark: Any, no_ack: bool) -> None:
    def proxied() -> Work:
        ring = module.Ring(1, agenda=[], proxy=True)
        out = codec.OutBuffer(0, 1 << 40)
        consumer = delivery.BasicConsumer(ring, delivery.Ledger(1, out), b"\x03tag", no_ack, 0)
        return (ring, consumer, out), {}

    def receive(ring: Any, consumer: Any, out: Any) -> None:
        for span in SPANS:
            ring.receive(consumer, span, 0)
            out.take()
        assert consumer.delivered == MESSAGES

    measure(benchmark, proxied, receive)


def test_emitted_buckets(benchmark: Any) -> None:
    """Five million messages; the figure is ns per message, the time of a call five thousand times as many us."""
    ring = module.Ring(1, True, 0, None, [], replica=True)
    for first in range(1, LIVE, MESSAGES):
        for span in spans(first) if first < MESSAGES else ():
            ring.fold(span, 1, 0)
    for first in range(MESSAGES // 256 * 256, LIVE, 256):
        ring.restore_run(first, b"".join(RUN))
    buckets = benchmark.pedantic(ring.emitted_buckets, rounds=3)
    assert len(buckets) == -(-LIVE // 4096)
    if benchmark.stats is not None:
        benchmark.extra_info["ns_per_message"] = round(benchmark.stats.stats.min / LIVE * 1e9, 1)


RUN = [bytes([low, 0, 0, 0, 1, 0, 0, 0]) + bytes(4) + bytes([100, 0, 0, 0, 40, 0, 0, 0]) for low in range(256)]
