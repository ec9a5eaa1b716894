"""The queues that simulated clients use, and what may be expected of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Kind:
    """A queue. What is expected decides which checkers look at it."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    keeps_all: bool = True
    """What was confirmed stays until a client acknowledges it, or it is dead-lettered."""
    acknowledged: bool = True
    """Its consumers acknowledge; otherwise a message is gone when it is sent."""
    keeps_order: bool = True
    volatile: bool = False
    dead_letters_to: str = ""
    stream: bool = False
    """Nobody takes from it."""
    leased: bool = False
    """It is read by leases."""
    links: int = 0
    """It is read by so many recoverable links."""


KEPT = "kept"
DELAYED = "later"
"""The delayed exchange,"""
DELAYING = "amq.delay.later"
"""its queue,"""
DUE = ("due0", "due1", "due2")
"""and the queues behind it: the first by key `one`, the others by key `both`."""
PLAIN = (Kind("q0"), Kind("q1"), Kind("q2"))
FEATURES: dict[str, tuple[Kind, ...]] = {
    "dead": (
        Kind(
            "src", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dst"},
            keeps_all=False, dead_letters_to="dst",
        ),
        Kind("dst", keeps_order=False),
    ),
    "ttl": (
        Kind(
            "ttl", {"x-message-ttl": 300, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "late"},
            keeps_all=False, dead_letters_to="late",
        ),
        Kind("late", keeps_order=False),
    ),
    "short": (Kind("short", {"x-max-length": 10}, keeps_all=False),),
    "full": (Kind("full", {"x-max-length": 8, "x-overflow": "reject-publish"}),),
    "sac": (Kind("sac", {"x-single-active-consumer": True}),),
    "priority": (Kind("prio", {"x-max-priority": 3}, keeps_order=False),),
    "rotating": (Kind("rot", {"x-ownership": "rotating", "x-ownership-hold-ms": 200, "x-replicas": 9}),),
    "memory": (Kind("mem", {"x-durability": "memory"}, keeps_all=False, volatile=True),),
    "auto": (Kind("auto", acknowledged=False),),
}  # fmt: skip
PIPELINE: dict[str, tuple[Kind, ...]] = {
    "batches": (),
    "stream": (
        Kind(
            "log",
            {"x-queue-type": "stream", "x-max-length-bytes": 6000},
            keeps_all=False,
            acknowledged=False,
            stream=True,
        ),
    ),
    "leases": (Kind("leased", leased=True),),
    "clocks": (
        Kind(KEPT, {"x-queue-type": "stream", "x-max-age": "1h"}, keeps_all=False, acknowledged=False, stream=True),
    ),
    "links": (Kind("held", links=1), Kind("shared", links=2)),
    "delays": tuple(Kind(name, keeps_order=False) for name in DUE),
}
"""What pipelines use: micro-batches that are staged and committed, a stream, leases; wall clocks that are wrong
from a start on (`World.clock_at_start`), with a stream of which nothing may go by age, for no run takes an hour;
recoverable links of AMQP 1.0; and a delayed exchange.
Whether a seed has each of these is drawn apart: without them a seed is the story that it was before they came."""
PIPELINE_SHARE = 0.3
TARGETS = ("q0", "q1", "q2", "full", "log", "leased")
"""Queues that micro-batches go to."""
LOSSY = ("q0", "q1", "q2", "sac", "prio")
"""Queues whose messages are in no other promise: an operator may give some of them up."""
