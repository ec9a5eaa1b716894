from collections.abc import Iterable
from typing import Any

from clusterbroker.broker.access.ledger import DeliveryLedger, Holder
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.wire.amqp091.codec import OutBuffer
from clusterbroker.journal.record import Message

class BasicConsumer(Holder):
    ledger: Ledger
    tag: bytes
    no_ack: bool
    prefetch: int
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
        self,
        ring: Ring,
        ledger: Ledger,
        tag: bytes,
        no_ack: bool,
        prefetch: int,
        priority: int = 0,
        owner: Any = None,
    ) -> None: ...

def too_large(out: OutBuffer, message: Message) -> str: ...

class Ledger(DeliveryLedger):
    number: int
    out: OutBuffer
    def __init__(self, number: int, out: OutBuffer) -> None: ...
    def ack(self, acks: Iterable[int]) -> int: ...
