"""The exchanges that are the broker itself (`services`): their keys, and who answers."""

from __future__ import annotations

from typing import Final

from clusterbroker.broker.session.leases import AMQ_LEASE
from clusterbroker.broker.session.services import Service
from clusterbroker.broker.streams.offsets import offsets, store, stored
from clusterbroker.broker.transactions import requests

VIRTUAL_EXCHANGES: Final[dict[str, Service]] = {
    "amq.lease": AMQ_LEASE,
    "amq.stream": Service(False, {"offsets": offsets, "store": store, "stored": stored}),
    "amq.txn": requests.SERVICE,
}
"""By name."""


def only_asks(exchange: str) -> bool:
    """Whether what is published there is stored nowhere. Alarms do not stop who does nothing else: a reader that
    settles what it has read frees what is full."""
    service = VIRTUAL_EXCHANGES.get(exchange)
    return service is not None and not service.needs_write
