"""What one message of 100 bytes costs in the codec: read, handed out, acknowledged.

    python -m pytest bench/micro/test_codec_speed.py

The nanoseconds per message stand in the table's last line of each test and in `--benchmark-json`'s extra_info. The
times include freeing what was made. A delivery is called from Python here; the ring calls it from C, which saves
the call.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from clusterbroker.broker.wire.amqp091 import codec

MESSAGES = 1000
BODY = bytes(100)


def frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, 1, len(payload)) + payload + b"\xce"


def publish(key: bytes = b"queue-name", properties: bytes = b"\x10\x00\x02") -> bytes:
    method = b"\x00\x3c\x00\x28\x00\x00\x00" + bytes((len(key),)) + key + b"\x00"
    return frame(1, method) + frame(2, struct.pack(">HHQ", 60, 0, len(BODY)) + properties) + frame(3, BODY)


def decoder_of() -> Any:
    decoder = codec.FrameDecoder(131072)
    decoder.opened = True
    return decoder


def measure(benchmark: BenchmarkFixture, work: Callable[[], Any]) -> Any:
    result = benchmark(work)
    if benchmark.stats is not None:
        benchmark.extra_info["ns_per_message"] = round(benchmark.stats.stats.median * 1e9 / MESSAGES, 1)
        print(f"\n{benchmark.name}: {benchmark.extra_info['ns_per_message']} ns per message")
    return result


PUBLISHES = {
    "alike": publish() * MESSAGES,
    "other properties each": b"".join(publish(properties=b"\x10\x80\x02\x08%08d" % n) for n in range(MESSAGES)),
    "other key each": b"".join(publish(b"key%07d" % n) for n in range(MESSAGES)),
}


@pytest.mark.parametrize("kind", PUBLISHES)
def test_decode_publishes(benchmark: BenchmarkFixture, kind: str) -> None:
    decoder, data = decoder_of(), PUBLISHES[kind]
    events = measure(benchmark, lambda: decoder.feed(data, 1))
    assert sum(len(event.messages) for event in events) == MESSAGES
    assert not decoder.failed


def test_encode_deliveries(benchmark: BenchmarkFixture) -> None:
    message = decoder_of().feed(publish(), 1)[0].messages[0]
    out = codec.OutBuffer(131072)

    def deliver_all() -> bytes:
        for tag in range(MESSAGES):
            out.deliver(1, b"\x04ctag", tag, False, message)
        return bytes(out.take())

    assert len(measure(benchmark, deliver_all)) == MESSAGES * (8 + 4 + 5 + 9 + 12 + 8 + 12 + 3 + 8 + 100)


def test_decode_acks(benchmark: BenchmarkFixture) -> None:
    decoder = decoder_of()
    data = b"".join(frame(1, struct.pack(">HHQB", 60, 80, tag, 0)) for tag in range(MESSAGES))
    (event,) = measure(benchmark, lambda: decoder.feed(data, 1))
    assert len(event) == MESSAGES
