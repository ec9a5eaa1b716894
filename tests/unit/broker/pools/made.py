"""Facts in few words."""

from __future__ import annotations

from typing import Any

from clusterbroker.broker.pools.facts import (
    GroupFacts,
    GroupState,
    PlaceFacts,
    PoolFacts,
    WorkerFacts,
    WorkerState,
)


def worker(name: str, state: str = "ready", since_s: float = 0.0, place: str = "p", **more: Any) -> WorkerFacts:
    return WorkerFacts(name, place, WorkerState(state), since_s, **more)


def group(key: str, *workers: WorkerFacts, state: str = "active", **more: Any) -> GroupFacts:
    return GroupFacts(key, GroupState(state), workers=tuple(workers), **more)


def facts(*groups: GroupFacts, places: dict[str, int] | None = None, **more: Any) -> PoolFacts:
    found = {name: PlaceFacts(name, memory) for name, memory in (places or {"p": 10_000}).items()}
    return PoolFacts({each.key: each for each in groups}, more.pop("given", found), **more)
