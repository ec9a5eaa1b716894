"""A queue's messages, and the hand-out of them: the compiled half or its twin (`journal.build`).

`ring_pure.py` explains the states and is the specification; `ring_fast.pyx` does the same per message in C.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterbroker.broker.queues.ring_pure import (
    BUCKET_SEQS,
    DEAD,
    HEAD_EXPIRED,
    HEAD_NONE,
    HEAD_NOT_COMMITTED,
    HEAD_NOT_LOADED,
    HEAD_NOT_RESERVED,
    HEAD_OK,
    HOLDER_MAX,
    LEASED,
    LIMIT,
    NO_CREDIT,
    READY,
    UNACKED,
    Location,
)
from clusterbroker.journal.build import COMPILED

if TYPE_CHECKING or not COMPILED:
    from clusterbroker.broker.queues.ring_pure import RemoteConsumer, Ring, Taker, digest_of, dispatch
else:
    from clusterbroker.broker.queues.ring_fast import RemoteConsumer, Ring, Taker, digest_of, dispatch

__all__ = [
    "BUCKET_SEQS",
    "DEAD",
    "HEAD_EXPIRED",
    "HEAD_NONE",
    "HEAD_NOT_COMMITTED",
    "HEAD_NOT_LOADED",
    "HEAD_NOT_RESERVED",
    "HEAD_OK",
    "HOLDER_MAX",
    "LEASED",
    "LIMIT",
    "NO_CREDIT",
    "READY",
    "UNACKED",
    "Location",
    "RemoteConsumer",
    "Ring",
    "Taker",
    "digest_of",
    "dispatch",
]
