"""The ring and deliveries, with the record module and the codec that belong to them."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.fronts.amqp091 import delivery
from clusterbroker.broker.queues import ring
from clusterbroker.broker.wire.amqp091 import codec
from clusterbroker.journal import record
from clusterbroker.journal.layout import PERSISTENT


class Half:
    """The modules, and short ways to make what the tests need."""

    record: Any = record
    codec: Any = codec
    module: Any = ring
    delivery: Any = delivery

    def message(
        self, body: bytes = b"body", *, transient: bool = False, priority: int = 0, time_ms: int = 0, ttl_ms: int = -1
    ) -> Any:
        flags = 0 if transient else PERSISTENT
        return self.record.Message(b"\x02ex\x03key", b"\x00\x00" + body, 2, flags, priority, time_ms, ttl_ms)

    def messages(self, count: int, **fields: Any) -> list[Any]:
        return [self.message(b"%d" % n, **fields) for n in range(count)]

    def ring(self, count: int = 0, *, journaled: bool = False, max_priority: int = 0) -> Any:
        ring = self.module.Ring(7, journaled, max_priority, self.record.SegmentUse() if journaled else None, [], "me")
        ring.append(self.messages(count))
        return ring

    def ledger(self, number: int = 1, size_max: int = 1 << 20) -> Any:
        return self.delivery.Ledger(number, self.codec.OutBuffer(8192, size_max))

    def consumer(self, ring: Any, ledger: Any, *, no_ack: bool = False, prefetch: int = 0, **more: Any) -> Any:
        return self.delivery.BasicConsumer(ring, ledger, b"\x01c", no_ack, prefetch, **more)

    def write(self, ring: Any, segment: int = 3, offset: int = 0, upto: int = 0) -> tuple[int, list[Any]]:
        """One group: what `write` returned, and its records."""
        writer = self.record.GroupWriter(segment, offset)
        reached = ring.write(writer, upto)
        group = writer.finish(1, 0)
        self.record.seal(group)
        return reached, self.record.scan_group(bytes(group), 0, offset)[2]

    def commit(self, ring: Any, segment: int = 3, offset: int = 0) -> list[Any]:
        """One group, made durable; its records."""
        upto, records = self.write(ring, segment, offset)
        ring.commit(upto)
        return records

    def take(self, ring: Any) -> int:
        seq: int = ring.take()[0]
        return seq


@pytest.fixture
def half() -> Half:
    return Half()
