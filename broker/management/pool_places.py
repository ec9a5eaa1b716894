"""Places of a worker pool: where its workers are started, what room each has, and why nothing is started there.

Each member tells of itself as a place; how much is promised there, and what the scaling has suspended, tells the pool's
controller. So `room_bytes` and `promised_bytes` are as of its last step.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from clusterbroker.broker.pools.places import MEMORY, OFF_THE_MACHINE
from clusterbroker.broker.stats.pools import UNKNOWN_BYTES, PlaceRow, PoolPlaceRow, PoolRow, TemplateRow
from clusterbroker.cluster.wiring.pool_entities import Pool

from .paging import Listing
from .pools import controller, found_pool
from .reading import Document, Reading
from .replica import Replica

NO_ROW: Final = PlaceRow({})


def controller_row(replica: Replica, pool: Pool) -> PoolRow:
    """What the pool's controller tells; nothing without one."""
    node = controller(replica, pool)
    track = None if node is None else replica.node_track(node)
    rows = () if track is None else track.row.pools
    return next((row for row in rows if row.pool_id == pool.pool_id), PoolRow(pool.pool_id))


def places(reading: Reading, vhost: str, name: str) -> Listing[str]:
    """Members with the pool's template, or with workers of it; of a member that has not told, as its controller says.
    None of a pool whose workers come by themselves."""
    pool = found_pool(reading, vhost, name)
    told = controller_row(reading.replica, pool)
    launches = Counter(launch.place for launch in reading.map.pools.launches(pool.pool_id))
    known = {member: row for member in reading.replica.node_names() if (row := _row(reading, member)) is not None}
    have = {member for member, row in known.items() if pool.template in row.templates}
    found = have | launches.keys() | (told.places.keys() - known.keys())
    return Listing(
        sorted(found),
        name=lambda place: place,
        place=lambda place: (pool.vhost, place),
        document=lambda place: _document(reading, pool, place, known.get(place), told, launches[place]),
    )


def _row(reading: Reading, member: str) -> PlaceRow | None:
    """None: it has told nothing of itself as a place."""
    track = reading.replica.node_track(member)
    return None if track is None else track.row.place


def _document(reading: Reading, pool: Pool, place: str, own: PlaceRow | None, told: PoolRow, workers: int) -> Document:
    row = own or NO_ROW
    seen, template = told.places.get(place), row.templates.get(pool.template)
    room = None if seen is None or seen.room_bytes >= UNKNOWN_BYTES else seen.room_bytes
    state, why = _state(reading, pool, place, own, told, workers)
    return {
        "vhost": pool.vhost,
        "pool": pool.name,
        "place": place,
        "state": state,
        "why": why,
        "suspended_for_s": 0 if seen is None else -(-seen.suspended_for_ms // 1000),
        "workers": workers,
        "workers_max": template.max_workers or None if template is not None else None,
        "room_bytes": room,
        "promised_bytes": None if seen is None else seen.promised_bytes,
        "free_bytes": None if room is None or seen is None else room - seen.promised_bytes,
        "over_committed": seen is not None and seen.short,
        "alarm": _alarm(row, template),
        "driver": None if template is None else template.driver,
        "version": None if template is None else template.version,
        "machine": {
            "memory_bytes": row.memory_bytes or None,
            "used_bytes": row.used_bytes,
            "running": row.running,
            "starting": row.starting,
        },
    }


def _state(
    reading: Reading, pool: Pool, place: str, row: PlaceRow | None, told: PoolRow, workers: int
) -> tuple[str, str]:
    """For people, with why: `away` (its node), `unknown`, `other_version` (of the template, or none), `suspended`,
    `alarm` (of memory), `full`, and else `ready` to start workers."""
    if not reading.replica.running(place, reading.now_ms):
        return "away", "its node does not run, or is not heard"
    if row is None:
        return "unknown", "it has not told of its templates: an earlier release, or its foreman does not run"
    template, seen = row.templates.get(pool.template), told.places.get(place)
    if template is None:
        return "other_version", f"its config file has no [pools.{pool.template}]"
    if template.version != told.version:
        why = (
            f"its [pools.{pool.template}] is not what is started now" if told.version else "no controller has told yet"
        )
        return "other_version" if told.version else "unknown", why
    if template.suspended:
        return "suspended", template.suspended
    if seen is not None and seen.suspended_for_ms > 0:
        return "suspended", seen.why
    if _alarm(row, template):
        return "alarm", "the machine is short of memory"
    if template.max_workers and workers >= template.max_workers:
        return "full", f"it has max_workers = {template.max_workers} workers"
    if seen is not None and _free(seen) < (template.memory_bytes or MEMORY):
        return "full", "more memory is promised than there is" if seen.short else "its memory is promised"
    return "ready", ""


def _alarm(row: PlaceRow, template: TemplateRow | None) -> bool:
    """Nothing is started for it there: workers on the machine take of its memory."""
    return row.alarm and not (template is not None and template.driver in OFF_THE_MACHINE)


def _free(seen: PoolPlaceRow) -> int:
    return seen.room_bytes - seen.promised_bytes
