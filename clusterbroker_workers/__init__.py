"""Workers and callers of worker pools, over AMQP 0-9-1.

    from clusterbroker_workers import Worker                    from clusterbroker_workers import Pool

    class Core(Worker):                                         with Pool("amqp://localhost/", "core") as pool:
        def load(self, key):                                        answer = pool.call("42", b"question", timeout_s=30)
            self.infra = fetch(key)                                 print(answer.body)
        def handle(self, request):
            return answer(self.infra, request.body)

    $ python -m clusterbroker_workers module:Core

The protocol is that of OSRD's osrdyne: workers and callers that were written for it work beside these. The package
imports nothing of the broker, and takes `pip install clusterbroker[workers]` (aio-pika).
"""

from __future__ import annotations

from .errors import Busy, CallTimeout, Fail, PoolError, Retry, Unserved, Unsure, WorkerFailed
from .pool import Answer, Pool
from .request import Request
from .worker import Worker

__all__ = [
    "Answer",
    "Busy",
    "CallTimeout",
    "Fail",
    "Pool",
    "PoolError",
    "Request",
    "Retry",
    "Unserved",
    "Unsure",
    "Worker",
    "WorkerFailed",
]
