"""What the ring costs per message, compiled half: `pytest bench/micro/test_ring_speed.py`.

`extra_info.ns_per_message` is the figure; a round does 20,000 messages of 100 bytes.
"""

from __future__ import annotations

import struct
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
Work = tuple[tuple[Any, ...], dict[str, Any]]


def new_messages() -> list[Any]:
    payload = b"\x10\x00\x02" + bytes(97)
    return [record.Message(b"\x02ex\x03key", bytes(bytearray(payload)), 3, PERSISTENT) for _ in range(MESSAGES)]


SHARED = new_messages()
BATCHES = [SHARED[at : at + BATCH] for at in range(0, MESSAGES, BATCH)]


class Scene:
    def __init__(self, messages: list[Any], consumers: int = 1, no_ack: bool = False) -> None:
        self.ring = module.Ring(1, True, 0, record.SegmentUse(), [])
        self.ring.append(messages)
        self.out = codec.OutBuffer(0, 1 << 40)
        self.ledger = delivery.Ledger(1, self.out)
        self.consumers = [
            delivery.BasicConsumer(self.ring, self.ledger, b"\x03tag", no_ack, 0) for _ in range(consumers)
        ]

    def dispatch(self) -> None:
        while module.dispatch(self.ring, self.consumers, 0, 1000)[0]:
            self.out.take()


def acks() -> list[Any]:
    """basic.ack one by one, as the decoder hands them over: one `Acked` for each socket read of 1000."""
    decoder = codec.FrameDecoder()
    decoder.opened = True
    events: list[Any] = []
    for at in range(1, MESSAGES + 1, 1000):
        frames = [struct.pack(">BHIHHQB", 1, 1, 13, 60, 80, tag, 0) + b"\xce" for tag in range(at, at + 1000)]
        events += decoder.feed(b"".join(frames), 0)
    return events


def measure(benchmark: Any, setup: Callable[[], Work], act: Callable[..., None]) -> None:
    benchmark.pedantic(act, setup=setup, rounds=30)
    if benchmark.stats is not None:  # None with --benchmark-disable
        benchmark.extra_info["ns_per_message"] = round(benchmark.stats.stats.min / MESSAGES * 1e9, 1)


def test_append(benchmark: Any) -> None:
    def append(scene: Scene) -> None:
        for batch in BATCHES:
            scene.ring.append(batch)
        assert scene.ring.ready == MESSAGES

    measure(benchmark, lambda: ((Scene([]),), {}), append)


@pytest.mark.parametrize("consumers", [1, 3, 100])
def test_dispatch(benchmark: Any, consumers: int) -> None:
    def dispatch(scene: Scene) -> None:
        scene.dispatch()
        assert scene.ring.ready == 0

    measure(benchmark, lambda: ((Scene(SHARED, consumers),), {}), dispatch)


def test_dispatch_no_ack(benchmark: Any) -> None:
    measure(benchmark, lambda: ((Scene(SHARED, no_ack=True),), {}), Scene.dispatch)


@pytest.mark.parametrize("messages", ["shared", "own"])
def test_ack_one_by_one(benchmark: Any, messages: str) -> None:
    """`own`: the acknowledgement also frees the message and its payload."""
    events = acks()

    def taken() -> Work:
        scene = Scene(SHARED if messages == "shared" else new_messages())
        scene.dispatch()
        return (scene,), {}

    def ack(scene: Scene) -> None:
        for event in events:
            assert scene.ledger.ack(event) == 0
        assert scene.ring.unacked == 0

    measure(benchmark, taken, ack)


def test_ack_multiple(benchmark: Any) -> None:
    def taken() -> Work:
        scene = Scene(SHARED)
        scene.dispatch()
        return (scene,), {}

    def ack(scene: Scene) -> None:
        assert scene.ledger.ack([MESSAGES << 1 | 1]) == 0

    measure(benchmark, taken, ack)


def test_append_dispatch_ack(benchmark: Any) -> None:
    """The whole life of a transient delivery, in turns of 100."""
    events = acks()

    def live(scene: Scene) -> None:
        turn = iter(events)
        for number, batch in enumerate(BATCHES, 1):
            scene.ring.append(batch)
            module.dispatch(scene.ring, scene.consumers, 0)
            scene.out.take()
            if number % (1000 // BATCH) == 0:
                scene.ledger.ack(next(turn))
        assert (scene.ring.ready, scene.ring.unacked) == (0, 0)

    measure(benchmark, lambda: ((Scene([]),), {}), live)


def test_write_and_commit(benchmark: Any) -> None:
    def write(scene: Scene) -> None:
        scene.ring.commit(scene.ring.write(record.GroupWriter(1, 0)))

    measure(benchmark, lambda: ((Scene(SHARED),), {}), write)


def test_write_and_commit_settlements(benchmark: Any) -> None:
    def settled() -> Work:
        scene = Scene(SHARED)
        scene.dispatch()
        scene.ring.commit(scene.ring.write(record.GroupWriter(1, 0)))
        scene.ledger.ack([1])
        return (scene,), {}

    def write(scene: Scene) -> None:
        scene.ring.commit(scene.ring.write(record.GroupWriter(1, 1 << 30)))
        assert scene.ring.use.live(1) == 0

    measure(benchmark, settled, write)
