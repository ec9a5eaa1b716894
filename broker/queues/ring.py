"""A queue's messages, a channel's unacknowledged deliveries, and the hand-out between them, with their states."""

from __future__ import annotations

from clusterbroker.broker.queues.ring_fast import Consumer, Ledger, RemoteConsumer, Ring, digest_of, dispatch
from clusterbroker.broker.queues.states import (
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
)
from clusterbroker.journal.layout import Location

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
    "Consumer",
    "Ledger",
    "Location",
    "RemoteConsumer",
    "Ring",
    "digest_of",
    "dispatch",
]
