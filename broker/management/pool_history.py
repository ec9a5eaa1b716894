"""Starts and ends of a pool's workers of late, as its controller has them (pure: what is asked, and told).

A list as all lists, the newest first; `name` looks into keys and ids of workers. Its last entry, `began`, says from
when on all is told: from the beginning of the controller's time, or of what it keeps.
"""

from __future__ import annotations

from typing import Any

from clusterbroker.broker.stats.inspection import Request, Result
from clusterbroker.cluster.wiring.pool_entities import NO_KEY, Pool
from clusterbroker.cluster.wiring.pool_names import PoolNames

from . import paging
from .errors import Refused
from .pool_reasons import NO_CONTROLLER, Asked, Explain, readable
from .pools import asked_pool, may_read, seen_reason
from .reading import Document, Reading, moment
from .reads import Path


def asked(reading: Reading, path: Path) -> Asked:
    """Refused as rights and query demand, (404) without the pool."""
    pool = asked_pool(reading, path["vhost"], path["name"])
    paging.wish(reading.query)
    return Asked(pool, Request("history", pool.orphans, keys=readable(reading, pool)))


def told(reading: Reading, pool: Pool, result: Result | None) -> Document | list[Document]:
    """Refused (503) when the controller cannot be asked now (`result` is None)."""
    if result is None:
        raise Refused(503, "unavailable", NO_CONTROLLER)
    names = PoolNames(pool.name)
    entries: list[dict[str, Any]] = [
        {"number": one["number"], "at": moment(one["at_ms"]), **one, "why": seen_reason(reading, pool, one["why"])}
        for one in result.explained["entries"]
        if may_read(reading, pool, names.request_queue(NO_KEY if one["key"] is None else one["key"]))
    ]
    since_ms = result.explained["since_ms"]
    entries.append({"number": 0, "at": moment(since_ms), "at_ms": since_ms, "event": "began"})
    listing = paging.Listing(
        entries,
        name=lambda one: f"{one.get('key') or ''} {one.get('worker', '')}",
        place=lambda one: paging.newest_first(one["number"]),
        document=lambda one: one,
    )
    return paging.answer(listing, paging.wish(reading.query))


HISTORY = Explain(
    "/api/pools/{vhost}/{name}/history",
    "Starts and ends of a worker pool's workers of late, the newest first",
    asked,
    told,
    listed=True,
)
