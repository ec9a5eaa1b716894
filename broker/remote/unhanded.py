"""Deliveries that came from an owner, and that their consumer cannot be handed.

Stumble    nobody here can read it: its queue is set aside, as one of this node would be. The message stays held
           until that stands in the wiring: its owner would hand it out again at once
Unfit      this consumer cannot have it: it returns, counted, and the consumer ends
"""

from __future__ import annotations

from collections.abc import Sequence

from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.queues.stumble import Stumble, Unfit
from clusterbroker.broker.remote.host import ProxyHost


def unhanded(queue: QueueHandle, host: ProxyHost, errors: Sequence[Stumble | Unfit]) -> None:
    """What becomes of them."""
    for error in errors:
        if isinstance(error, Unfit):
            queue.requeue(error.seq, True)
            error.end()
        else:
            host.delivery_stumbled(queue, error)
