"""The exchanges that are the broker itself (`services`): their keys, and who answers."""

from __future__ import annotations

from typing import Final

from broker.session.leases import AMQ_LEASE
from broker.session.services import Service
from broker.streams.offsets import offsets
from broker.transactions import requests

VIRTUAL_EXCHANGES: Final[dict[str, Service]] = {
    "amq.lease": AMQ_LEASE,
    "amq.stream": Service(False, {"offsets": offsets}),
    "amq.txn": requests.SERVICE,
}
"""By name."""
