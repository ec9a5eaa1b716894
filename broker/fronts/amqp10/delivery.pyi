from typing import Any

from clusterbroker.broker.access.ledger import DeliveryLedger, Entry, Holder
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.wire.amqp091.codec import OutBuffer
from clusterbroker.broker.wire.amqp10.codec import Disposed
from clusterbroker.journal.record import Message

class SessionLedger(DeliveryLedger):
    channel: int
    out: OutBuffer
    window: int
    next_outgoing_id: int
    def __init__(self, channel: int, out: OutBuffer) -> None: ...
    @property
    def is_cut(self) -> bool: ...
    def settle(self, event: Disposed) -> int: ...
    def take(self, first_id: int, last_id: int) -> list[Entry]: ...
    def go_on(self) -> None: ...

class LinkConsumer(Holder):
    handle: int
    settled: bool
    numbered: bytes
    shift: int
    @property
    def has_credit(self) -> bool: ...
    @property
    def room(self) -> int: ...
    @property
    def writable(self) -> bool: ...
    @property
    def shared(self) -> bool: ...
    def __init__(
        self, ring: Ring, ledger: SessionLedger, handle: int, settled: bool, priority: int = 0, owner: Any = None
    ) -> None: ...
    def deliver(self, seq: int, message: Message, now_ms: int) -> None: ...
