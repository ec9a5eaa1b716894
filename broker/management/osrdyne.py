"""What osrdyne's clients ask over HTTP, answered from pools (OSRD's editoast asks which keys have a worker).

    GET /status?keys=A,B    {"workers": {KEY: {"worker_metadata": {...} | null, "status": "Loading" | "Ready"}}}
    GET /status             likewise, of all workers, by worker id
    GET /health, /version   {"status": "ok"}, {"git_describe": ...}

A key that has no worker is left out, and keys are written as they are. A worker is `Ready` when it consumes. Of a pool
whose workers come by themselves every key is `Ready` that is asked for, without metadata, as with osrdyne's noop
driver. An osrdyne has one pool; here the pools are meant whose queues the user may read, but for those that are being
deleted: no worker gets requests of theirs. A client has the user in its address, `http://USER:PASSWORD@HOST:15672`.

Format: osrdyne/src/api.rs, worker_driver.rs and status_tracker.rs, editoast's osrdyne_client, as of 2025. Keys are
percent-encoded one by one and joined with commas, or `keys` is repeated.
"""

from __future__ import annotations

from urllib.parse import unquote_plus

from clusterbroker.broker.pools.credentials import launch_of
from clusterbroker.cluster.wiring.pool_entities import Pool
from clusterbroker.cluster.wiring.pool_names import PoolNames
from clusterbroker.cluster.wiring.pool_rules import key_matches

from .exchanges import open_vhosts
from .pools import may_read
from .principals import MANAGEMENT
from .reading import Document, Reading


def keys_of(query: str) -> list[str] | None:
    """The keys that a raw query asks for; None: it names none."""
    said = [value for name, sign, value in (one.partition("=") for one in query.split("&")) if sign and name == "keys"]
    return [unquote_plus(key, errors="replace") for one in said for key in one.split(",")] if said else None


def status(reading: Reading, query: str) -> Document:
    """Of workers. Refused without the right to use the API."""
    reading.principal.require(MANAGEMENT)
    keys, workers = keys_of(query), dict[str, Document]()
    vhosts = open_vhosts(reading, None)
    pools = [pool for vhost in vhosts for pool in reading.map.pools.all(vhost) if not pool.deleting]
    for pool in pools:
        if keys is None:
            workers.update({one: _state(reading, pool, one, of) for one, of in _workers(reading, pool, None)})
            continue
        for key in keys:
            found = [_state(reading, pool, one, of) for one, of in _workers(reading, pool, key)]
            if found:
                workers[key] = max(found, key=lambda one: one["status"] == "Ready")
            elif not pool.starts_workers and key_matches(pool.settings, key) and _open(reading, pool, key):
                workers.setdefault(key, {"worker_metadata": None, "status": "Ready"})
    return {"workers": workers}


def _open(reading: Reading, pool: Pool, key: str) -> bool:
    return may_read(reading, pool, PoolNames(pool.name).request_queue(key))


def _workers(reading: Reading, pool: Pool, key: str | None) -> list[tuple[str, str]]:
    """Ids of workers that get requests, or will, and of which key; one of several keys is told with the first one, or
    with the one that was asked for."""
    known = reading.map.pools
    if key is not None:
        found = [(one, key) for one, leaves in known.workers_of(pool.pool_id, key).items() if not leaves]
    else:
        found = []
        for launch in known.launches(pool.pool_id):
            several = [one.key for one in known.assignments(launch.launch_id) if not one.retired]
            if not (launch.revoked or launch.retired):
                found += [(launch.launch_id, of) for of in (several[:1] if launch.spare else [launch.key])]
    return [(one, of) for one, of in found if _open(reading, pool, of)]


def _state(reading: Reading, pool: Pool, worker_id: str, key: str) -> Document:
    ready = worker_id in _consuming(reading, pool, key)
    return {
        "worker_metadata": {"external_id": worker_id, "worker_id": worker_id, "worker_key": key},
        "status": "Ready" if ready else "Loading",
    }  # fmt: skip


def _consuming(reading: Reading, pool: Pool, key: str) -> set[str]:
    """Workers that consume the requests of a key, as far as is known here."""
    group, replica = reading.map.pools.group(pool.pool_id, key), reading.replica
    if group is None:
        return set()
    consumers = replica.consumers.get(group.queue_id, {})
    users = (replica.connections.get(track.row.connection_id) for track in consumers.values())
    return {launch for user in users if user is not None and (launch := launch_of(user.row.user))}


def health() -> Document:
    """The broker answers."""
    return {"status": "ok"}
