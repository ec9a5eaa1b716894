"""What a pool's controller knows of its launches beside the map: how far each is, and what its start came to (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from clusterbroker.broker.pools.facts import WorkerState


@dataclass(slots=True)
class Known:
    """What is known of a launch beside the map."""

    ordered_s: float
    """Of a spare that has its key: when it got that."""
    key: str
    whole: bool = True
    """Its order was seen: an earlier controller's has an unknown time."""
    spare_s: float | None = None
    """Since when it has waited for its key."""
    starting_s: float | None = None
    ready_s: float | None = None
    idle_s: float = 0.0
    leaving_s: float | None = None
    """Since when the log has it retired or revoked: a slow one takes nothing off `grace_s`."""
    leaving: WorkerState | None = None
    held: int = 0
    memory: int = 0
    why: str = ""


class Started(NamedTuple):
    """A worker's start is over."""

    key: str
    """NO_KEY: a spare."""
    worker_id: str
    place: str
    took_s: float
    """From its order; of a spare that has its key from that."""
    failed: str = ""
    """Why it ended before it was ready; empty: it is ready."""
