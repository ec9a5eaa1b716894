"""Places where a pool starts workers, as its controller's node knows them: their templates and their room (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from clusterbroker.broker.pools.facts import MIB, PlaceFacts, Scaling, Settings, WorkerFacts, WorkerState
from clusterbroker.broker.pools.messages import PlaceTold, TemplateTold
from clusterbroker.cluster.errors import PreconditionFailed
from clusterbroker.cluster.wiring.pool_entities import (
    NO_MORE,
    NOOP,
    SCALED_OUTSIDE,
    Launch,
    MoreSettings,
    Pool,
    PoolSettings,
)

ROOM_UNKNOWN: Final = 1 << 50
OFF_THE_MACHINE: Final = frozenset(("kubernetes",))
"""Drivers whose workers take nothing of the machine that their foreman is on: its memory, and an alarm about it, say
nothing of them."""
MEMORY: Final = 256 * MIB
"""Of a worker whose template promises none."""


class InUse(NamedTuple):
    """Of all pools at a place, as its foreman sees it."""

    running: int = 0
    starting: int = 0
    used_bytes: int = 0


class Place(NamedTuple):
    """A place as the controller's node knows it."""

    told: PlaceTold
    alive: bool
    """Its node is a living member."""
    others_bytes: int = 0
    """Promised there to workers of other pools."""


def chosen(pool: Pool, places: Mapping[str, Place], own: str) -> TemplateTold | None:
    """The template as most places have it. `own`: the place whose version counts if as many have another one."""
    votes: dict[str, list[tuple[str, TemplateTold]]] = {}
    for name, place in places.items():
        template = place.told.templates.get(pool.template)
        if place.alive and template is not None:
            votes.setdefault(template.version, []).append((name, template))
    if not votes:
        return None
    _, found = min(
        votes.items(), key=lambda vote: (-len(vote[1]), own not in dict(vote[1]), min(name for name, _ in vote[1]))
    )
    return found[0][1]


def rooms(
    pool: Pool, places: Mapping[str, Place], template: TemplateTold, strays: Iterable[Launch]
) -> dict[str, PlaceFacts]:
    """Places whose template is the chosen one. A worker takes its room until it is gone, its group's end or not."""
    rooms = {}
    left = Counter(launch.place for launch in strays)
    each = template.memory_bytes or MEMORY
    for name, place in places.items():
        own = place.told.templates.get(pool.template)
        if own is None or own.version != template.version:
            continue
        off = own.driver in OFF_THE_MACHINE
        room = ROOM_UNKNOWN if off or not place.told.memory_bytes else place.told.memory_bytes - place.others_bytes
        rooms[name] = PlaceFacts(
            name,
            memory=max(0, room - left[name] * each),
            workers_max=max(0, own.max_workers - left[name]) if own.max_workers else None,
            suspended=not place.alive or bool(place.told.suspends(own)),
            alarm=place.told.alarm and not off,
        )
    return rooms


def share(settings: PoolSettings, more: MoreSettings) -> int:
    """Requests, waiting and held, that one worker is done with in `target_wait_ms` (`demand`)."""
    return max(1, settings.prefetch * more.target_wait_ms // more.service_ms)


def check_scaling(settings: PoolSettings, pool: Pool | None, template: str, drivers: Iterable[str], some: bool) -> None:
    """406 for settings by which nothing would scale the pool, and for a change from workers of its own to others', or
    back, while it has `some`. `pool`: as it is, if there is one; `drivers`: by which members start its template."""
    outside = settings.scaling in SCALED_OUTSIDE
    if pool is not None and some and outside is not (pool.settings.scaling in SCALED_OUTSIDE):
        raise PreconditionFailed(
            f"scaling is '{pool.settings.scaling}', and '{settings.scaling}' runs workers in another way: pause the "
            "pool, stop its keys, and set it when its workers are gone"
        )
    found = sorted(set(drivers))
    if outside and (not found or not OFF_THE_MACHINE.issuperset(found)):
        raise PreconditionFailed(
            f"scaling is '{settings.scaling}': that is for templates with the driver kubernetes, and "
            f"'{template[:64]}' has {', '.join(found) or 'none'}"
        )


def there(workers: Iterable[WorkerFacts], places: Mapping[str, Place]) -> list[WorkerFacts]:
    """Without those that are stopped, and whose place is gone."""
    return [one for one in workers if one.state is not WorkerState.STOPPING or is_there(places, one.place)]


def is_there(places: Mapping[str, Place], name: str) -> bool:
    place = places.get(name)
    return place is not None and place.alive


def settings_of(
    settings: PoolSettings, template: TemplateTold, keys_per_worker: int = 1, more: MoreSettings = NO_MORE
) -> Settings:
    """What the policy reads of a pool and its template. Where something else scales, the workers of a key are one
    launch, which has the pool's bounds."""
    scaling = {"own": Scaling.OWN, "fixed": Scaling.FIXED}.get(settings.scaling, Scaling.OUTSIDE)
    outside = scaling is Scaling.OUTSIDE
    return Settings(
        min=min(1, settings.min) if outside else settings.min,
        max=1 if outside else settings.max,
        max_workers=settings.max_workers,
        prefetch=settings.prefetch,
        keys_per_worker=keys_per_worker,
        target_wait_s=more.target_wait_ms / 1000,
        service_s=more.service_ms / 1000,
        start_s=more.start_ms / 1000,
        starve_s=float(more.starve_s),
        min_run_s=float(more.min_run_s),
        max_share=more.max_share_percent / 100,
        eager=more.eager,
        scale_to_zero_while_bound=more.scale_to_zero_while_bound,
        weights={tenant: float(weight) for tenant, weight in more.tenant_weights},
        memory=template.memory_bytes or MEMORY,
        rolling=template.rolling,
        surge=template.surge,
        start_timeout_s=float(settings.start_timeout_s),
        start_failures_max=settings.start_failures_max,
        grace_s=float(settings.grace_s),
        scaling=Scaling.NONE if template.driver == NOOP else scaling,
    )
