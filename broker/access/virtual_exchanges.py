"""The exchanges that are the broker itself (`services`): their keys, and who answers."""

from __future__ import annotations

from typing import Final

from clusterbroker.broker.access.delay_service import AMQ_DELAY
from clusterbroker.broker.access.lease_service import AMQ_LEASE
from clusterbroker.broker.access.services import Service
from clusterbroker.broker.access.stream_service import AMQ_STREAM
from clusterbroker.broker.access.transaction_service import AMQ_TXN
from clusterbroker.broker.access.worker_rights import ASKED
from clusterbroker.broker.access.worker_service import AMQ_WORKER

VIRTUAL_EXCHANGES: Final[dict[str, Service]] = {
    "amq.delay": AMQ_DELAY,
    "amq.lease": AMQ_LEASE,
    "amq.stream": AMQ_STREAM,
    "amq.txn": AMQ_TXN,
    ASKED: AMQ_WORKER,
}
"""By name."""


def only_asks(exchange: str) -> bool:
    """Whether what is published there is stored nowhere. Alarms do not stop who does nothing else: a reader that
    settles what it has read frees what is full."""
    service = VIRTUAL_EXCHANGES.get(exchange)
    return service is not None and not service.needs_write
