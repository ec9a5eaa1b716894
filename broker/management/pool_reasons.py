"""Reasons of a worker pool: each setting with its source, and what its controller says of workers and keys (pure).

The controller is the owner of the pool's orphan queue; it is asked as that queue's owner is about messages, and answers
with `broker.pools.explaining`. Keys whose queues the user may not read are left out, and without the tag `monitoring`
the members that are its places.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from clusterbroker.broker.stats.inspection import KEYS_ASKED_MAX, Request, Result
from clusterbroker.cluster.wiring.pool_entities import Pool
from clusterbroker.cluster.wiring.pool_names import PoolNames
from clusterbroker.cluster.wiring.pool_rules import KEY_BYTES_MAX

from .errors import bad_request
from .forms import Form
from .pools import Settings, asked_pool, document, may_read
from .principals import MONITORING
from .reading import Document, Reading
from .reads import Path

NO_CONTROLLER: Final = "its controller does not answer now, or runs an earlier release"


class Wanted(Form):
    """Of a query."""

    key: Annotated[str, Meta(description="Only this worker key")] = ""


class Asked(Struct, frozen=True):
    """A pool, and what its controller is asked."""

    pool: Pool
    request: Request


class Explain(Struct, frozen=True):
    """One path of what a pool's controller is asked."""

    path: str
    summary: str
    asked: Callable[[Reading, Path], Asked]
    """Refused as rights and query demand."""
    told: Callable[[Reading, Pool, Result | None], Document | list[Document]]
    """The answer. None: the controller does not answer, or does not know the question."""
    listed: bool = False
    query: type[Form] = Form
    method: str = "GET"
    form: type[Form] | None = None
    statuses: tuple[int, ...] = (200,)


def asked(reading: Reading, path: Path) -> Asked:
    """Refused as the rights demand, (404) without the pool, (400) with what is no key."""
    pool = asked_pool(reading, path["vhost"], path["name"])
    keys = (_key(reading),) if "key" in reading.query else readable(reading, pool)
    return Asked(pool, Request("explain", pool.orphans, keys=keys, places=reading.principal.has(MONITORING)))


def _key(reading: Reading) -> str:
    key = Wanted.of(reading.query).key
    if len(key.encode()) > KEY_BYTES_MAX:
        raise bad_request(f"a key has at most {KEY_BYTES_MAX} bytes")
    return key


def readable(reading: Reading, pool: Pool) -> tuple[str, ...] | None:
    """Those that the user may read, for the answer has room for some only; None: all, or too many to name."""
    keys, names = [group.key for group in reading.map.pools.groups(pool.pool_id)], PoolNames(pool.name)
    found = tuple(key for key in keys if may_read(reading, pool, names.request_queue(key)))
    return found if len(found) < len(keys) and len(found) <= KEYS_ASKED_MAX else None


def explained(reading: Reading, pool: Pool, result: Result | None) -> Document:
    """`result`: None: the controller cannot be asked now."""
    found = document(reading, pool)
    told: dict[str, Any] = dict(result.explained) if result is not None else {}
    names = PoolNames(pool.name)
    if "keys" in told:
        seen = [one for one in told["keys"] if may_read(reading, pool, names.request_queue(one["key"]))]
        told["keys"] = seen
    return {
        "vhost": pool.vhost,
        "name": pool.name,
        "template": pool.template,
        "state": found["state"],
        "controller": found["controller"],
        "why": _why(pool, found, told, asked=result is not None),
        "settings": {name: _setting(name, value) for name, value in found["settings"].items()},
        "reasons": told or None,
    }


def _setting(name: str, value: Any) -> Document:
    default = getattr(Settings(), name)
    return {"value": value, "default": default, "source": "default" if value == default else "declared"}


def _why(pool: Pool, found: Document, told: Document, *, asked: bool) -> list[str]:
    """Of the pool as a whole."""
    why = []
    if found["controller"] is None:
        why.append("it has no controller: keys that have a group go on, requests of others wait")
    if pool.deleting:
        why.append("it is being deleted: what waits is answered, and its workers end")
    elif pool.paused:
        why.append("it is paused: no group is made, and no worker started")
    if not pool.starts_workers:
        why.append("its workers come by themselves: the pool starts none")
    elif not asked:
        why.append(NO_CONTROLLER)
    elif not told:
        why.append("its controller has just begun, and has not looked at it yet")
    elif not told["settled"]:
        why.append("its controller has just taken over: no worker is retired for some seconds")
    if told and sum(told["workers"].values()) >= told["workers_max"]:
        why.append(f"it has max_workers={told['workers_max']}")
    return why


REASONS: Final = Explain(
    "/api/pools/{vhost}/{name}/reasons", "Why a worker pool has the workers that it has", asked, explained, query=Wanted
)
