"""What kinds of queue a life may have: its rules, its copies, and how much it remembers of others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from clusterbroker.broker.queues import client_numbers, producers
from clusterbroker.broker.queues.dead_lettering import replicated

RULES: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"x_max_priority": 3},
    {"x_single_active_consumer": True},
    {"x_queue_type": "quorum", "x_delivery_limit": 2},
    {"x_delivery_limit": 3},
    {"x_message_ttl": 3000},
    {"x_message_ttl": 0},
    {"x_max_length": 12},
    {"x_max_length": 12, "x_overflow": "reject-publish"},
    {"x_max_length": 12, "x_overflow": "reject-publish-dlx"},
    {"x_dead_letter_strategy": "at-least-once", "x_overflow": "reject-publish"},
)
COPIES: Final[tuple[dict[str, Any], ...]] = (
    {},
    {},
    {"x_replicas": 2},
    {"x_replicas": 1},
    {"x_durability": "disk"},
    {"x_durability": "memory", "x_replicas": 1},
    {"x_durability": "memory"},
)

NAMES: Final = "zyxwvu"
"""Clients that number their messages."""


class Limits(NamedTuple):
    """What a queue remembers of others, so small that its bounds are met."""

    names: int
    buckets: int


LIMITS: Final = (Limits(producers.DYING_MAX, producers.DEAD_BUCKETS), Limits(4, 2))


@contextmanager
def limited(limits: Limits) -> Iterator[None]:
    before = producers.DYING_MAX, producers.DEAD_BUCKETS, replicated.DEAD_SPREAD  # type: ignore[attr-defined]
    spread = producers.BUCKET_BITS * (limits.buckets - 1)
    producers.DYING_MAX, producers.DEAD_BUCKETS, replicated.DEAD_SPREAD = *limits, spread  # type: ignore[misc,attr-defined]
    client_numbers.NAMED_MAX = limits.names  # type: ignore[misc]
    try:
        yield
    finally:
        producers.DYING_MAX, producers.DEAD_BUCKETS, replicated.DEAD_SPREAD = before  # type: ignore[misc,attr-defined]
        client_numbers.NAMED_MAX = before[0]  # type: ignore[misc]
