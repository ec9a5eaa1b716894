from collections.abc import Iterable
from typing import Any, TypeAlias

from clusterbroker.broker.queues.ring import Ring, Taker
from clusterbroker.broker.wire.amqp091.codec import OutBuffer

class BasicConsumer(Taker):
    ledger: Ledger
    tag: bytes
    no_ack: bool
    prefetch: int
    numbered: bytes
    shift: int
    unacked: int
    @property
    def has_credit(self) -> bool: ...
    @property
    def room(self) -> int: ...
    @property
    def writable(self) -> bool: ...
    @property
    def shared(self) -> bool: ...
    def __init__(
        self,
        ring: Ring,
        ledger: Ledger,
        tag: bytes,
        no_ack: bool,
        prefetch: int,
        priority: int = 0,
        owner: Any = None,
    ) -> None: ...

Entry: TypeAlias = tuple[int, BasicConsumer, int]
"""Delivery tag, consumer, seq."""

class Ledger:
    number: int
    out: OutBuffer
    prefetch: int
    flowing: bool
    unacked: int
    next_tag: int
    skipped: int
    redelivered: int
    def __init__(self, number: int, out: OutBuffer) -> None: ...
    def add(self, consumer: BasicConsumer, seq: int, now_ms: int) -> int: ...
    def skip(self) -> int: ...
    def ack(self, acks: Iterable[int]) -> int: ...
    def collect(self, tag: int, multiple: bool) -> list[Entry] | None: ...
    def restore(self, entries: Iterable[Entry], now_ms: int) -> None: ...
    def drain(self) -> list[Entry]: ...
    def drain_of(self, consumer: BasicConsumer) -> list[Entry]: ...
    def held(self) -> list[tuple[int, BasicConsumer]]: ...
    def oldest(self) -> tuple[int, BasicConsumer, int] | None: ...
