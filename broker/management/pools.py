"""Worker pools, their groups and workers, as the management API tells of them and changes them.

Declaring, setting, pausing and deleting needs an administrator. Keys are data of callers, so groups are shown to
whoever may read the pool's request queues.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta
from msgspec.structs import asdict

from clusterbroker.broker.pools.credentials import launch_of
from clusterbroker.broker.pools.figures import WORKER_STATES
from clusterbroker.broker.stats.pools import PoolRow
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.entities import Queue
from clusterbroker.cluster.wiring.levels import ANSWERED_DELAYS
from clusterbroker.cluster.wiring.pool_commands import GroupWord
from clusterbroker.cluster.wiring.pool_entities import NO_KEY, NOOP, Launch, MoreSettings, Pool, PoolSettings
from clusterbroker.cluster.wiring.pool_names import PoolNames
from clusterbroker.cluster.wiring.pool_rules import (
    BESIDE,
    CHOICES,
    EVENTS,
    KEYS_PER_WORKER,
    RANGES,
    SEPARATOR_MAX,
    SPARES,
    key_matches,
)
from clusterbroker.cluster.wiring.view import ClusterView

from .errors import Refused, bad_request, object_not_found
from .exchanges import open_vhosts
from .forms import Form, Said, number, table, text
from .history import Get
from .paging import Listing
from .principals import MANAGEMENT
from .reading import Document, Reading
from .replica import Replica

SETTINGS: Final = (*PoolSettings.__struct_fields__, *BESIDE)


STOPPED: Final = "stopped by an operator"
"""Why a worker is retired."""
_QUOTED: Final = re.compile(r"""'(?:[^'\\]|\\.)*(?:'|\Z)|"(?:[^"\\]|\\.)*(?:"|\Z)""", re.DOTALL)
"""A key in a reason, as `repr` has it, or as much of that as was kept."""


def _number(name: str, about: str) -> Any:
    low, high = RANGES[name]
    return Meta(ge=low, le=high, description=about)


def _choice(name: str) -> Any:
    return Meta(extra={"take": _chosen}, extra_json_schema={"enum": list(CHOICES[name])})


def _chosen(name: str, value: Any) -> Any:
    """Refused (400) for another word: members could not read it in their log."""
    if value not in (words := CHOICES[name]):
        raise bad_request(f"{name} is '{str(value)[:64]}': one of {', '.join(words)} is allowed")
    return value


def _weights(name: str, value: Any) -> dict[str, int]:
    low, high = RANGES[name]
    return {text(name, tenant): number(name, weight, low, high) for tenant, weight in table(name, value).items()}


class Settings(Form):
    """Settings of a worker pool."""

    request_ttl_ms: Annotated[int, _number("request_ttl_ms", "ms that a request waits at most")] = 900_000
    process_timeout_ms: Annotated[int, _number("process_timeout_ms", "ms that a worker may hold a request")] = 1_800_000
    delivery_limit: Annotated[int, _number("delivery_limit", "Returns of a request after failures")] = 3
    max_length: Annotated[int, _number("max_length", "Waiting requests of a key")] = 10_000
    max_length_bytes: Annotated[int, _number("max_length_bytes", "Bytes of their bodies")] = 256 << 20
    unbind_delay_s: Annotated[int, _number("unbind_delay_s", "An idle group is unbound after it")] = 600
    stop_delay_s: Annotated[int, _number("stop_delay_s", "And ends after it")] = 600
    min: Annotated[int, _number("min", "Workers of a key at least")] = 0
    max: Annotated[int, _number("max", "Workers of a key at most")] = 8
    max_workers: Annotated[int, _number("max_workers", "Of the pool")] = 1000
    max_groups: Annotated[int, _number("max_groups", "Keys that have workers at once")] = 10_000
    prefetch: Annotated[int, _number("prefetch", "Requests that a worker holds at once")] = 1
    start_timeout_s: Annotated[int, _number("start_timeout_s", "A worker is ready in it")] = 120
    start_failures_max: Annotated[int, _number("start_failures_max", "Then callers hear `start_failed`")] = 5
    grace_s: Annotated[int, _number("grace_s", "A worker may finish in it")] = 30
    ready: Annotated[str, _choice("ready")] = "consumer"
    scaling: Annotated[str, _choice("scaling")] = "own"
    status_type: Annotated[str, _choice("status_type")] = "bytes"
    keys: Annotated[str, Meta(description="RE2 that keys match; empty: any")] = ""
    spares: Annotated[int, _number(SPARES, "Workers of the pool that are kept ready without a key")] = 0
    keys_per_worker: Annotated[int, _number(KEYS_PER_WORKER, "Keys that a worker serves at most")] = 1
    tenant_separator: Annotated[
        str, Meta(max_length=SEPARATOR_MAX, description="A key's tenant stands before it; empty: there is one tenant")
    ] = ""
    tenant_weights: Annotated[
        dict[str, int], Meta(extra={"take": _weights}, description="Tenant -> its share of starts; any other one has 1")
    ] = msgspec.field(default_factory=dict)
    workers_may_call: Annotated[bool, Meta(description="Workers may publish requests to their own pool")] = False
    target_wait_ms: Annotated[int, _number("target_wait_ms", "A key's backlog is to be gone in it")] = 5000
    service_ms: Annotated[int, _number("service_ms", "A request takes so long, until requests have told")] = 1000
    start_ms: Annotated[int, _number("start_ms", "A start takes so long, until starts have told")] = 5000
    eager: Annotated[bool, Meta(description="Several workers of a key before its requests have told")] = False
    scale_to_zero_while_bound: Annotated[bool, Meta(description="No worker for a key that is kept, and rests")] = False
    starve_s: Annotated[int, _number("starve_s", "A key that waits for so long goes first")] = 30
    min_run_s: Annotated[int, _number("min_run_s", "A worker runs for so long before it gives way to that")] = 10
    max_share_percent: Annotated[int, _number("max_share_percent", "Of a place for one key while others wait")] = 50
    events: Annotated[bool, Meta(description="What happens to requests and workers is told in a stream")] = False

    def settings(self) -> PoolSettings:
        """Of the wiring, which judges them."""
        return PoolSettings(**{name: getattr(self, name) for name in PoolSettings.__struct_fields__})

    def more(self) -> MoreSettings:
        """Likewise."""
        named = {name: getattr(self, name) for name in MoreSettings.__struct_fields__ if name != "tenant_weights"}
        return MoreSettings(**named, tenant_weights=tuple(sorted(self.tenant_weights.items())))


class Declaration(Settings):
    """A worker pool."""

    template: Annotated[str, Meta(max_length=64, description="A section [pools.NAME] of the members; noop: none")] = (
        NOOP
    )


# -- what there is --------------------------------------------------------------------------------------------


def listing(reading: Reading, vhost: str | None = None) -> Listing[Pool]:
    """Those of a vhost, or of all that the user may enter."""
    found = [pool for name in open_vhosts(reading, vhost) for pool in reading.map.pools.all(name)]
    return Listing(
        sorted(found, key=lambda pool: (pool.vhost, pool.name)),
        name=lambda pool: pool.name,
        place=lambda pool: (pool.vhost, pool.name),
        document=lambda pool: document(reading, pool),
    )


def named(reading: Reading, vhost: str, name: str) -> Document:
    """One. Refused (404) without one of this name."""
    return document(reading, found_pool(reading, vhost, name))


def found_pool(reading: Reading, vhost: str, name: str) -> Pool:
    """Refused (404) without one of this name."""
    pool = reading.map.pools.find(vhost, name)
    if pool is None:
        raise object_not_found()
    return pool


def asked_pool(reading: Reading, vhost: str, name: str) -> Pool:
    """Of a question to other nodes. Refused as the rights demand, (404) without one of this name."""
    reading.principal.require(MANAGEMENT)
    reading.principal.enter(vhost)
    return found_pool(reading, vhost, name)


def document(reading: Reading, pool: Pool) -> Document:
    """One pool with its settings, what its queues hold as their owners' last samples tell, and what has come and died.

    Totals are sums over members that run, each since it began; states of workers are of the last day, as the members
    that were the pool's controller have told them.
    """
    pools, names = reading.map.pools, PoolNames(pool.name)
    groups = pools.groups(pool.pool_id)
    waiting = [numbers(reading, group.queue_id) for group in groups]
    tracks = tuple(reading.replica.running_tracks(reading.now_ms))
    return {
        "vhost": pool.vhost,
        "name": pool.name,
        "template": pool.template,
        "state": "deleting" if pool.deleting else "paused" if pool.paused else "running",
        "controller": controller(reading.replica, pool),
        "exchange": names.exchange,
        "groups": len(groups),
        "workers": len(pools.launches(pool.pool_id)),
        "workers_by_state": reading.counted("lengths", tracks, gauges(pool), gauge=True),
        "spares": sum(map(pools.is_free, pools.launches_of(pool.pool_id, NO_KEY))),
        "consumers": sum(one["consumers"] for one in waiting),
        "waiting": sum(one["waiting"] for one in waiting),
        "held": sum(one["held"] for one in waiting),
        "orphans": numbers(reading, pool.orphans)["waiting"],
        "delayed": numbers(reading, pool.delayed)["waiting"],
        "oldest_s": oldest_s(reading, (pool.orphans, *(group.queue_id for group in groups))),
        "dead": numbers(reading, pool.dead)["waiting"],
        "poison": numbers(reading, pool.poison)["waiting"],
        "message_stats": reading.counted("msg_rates", tracks, totals(pool)),
        "settings": settings(reading.map, pool),
    }


def totals(pool: Pool) -> dict[str, Get]:
    """Of a member's row: requests that came, and those that died; the broker answers these, or nobody asked it to."""
    return {
        "requests": _of_row(pool, lambda row: row.requests),
        "dead": _of_row(pool, lambda row: sum(row.dead.values())),
    }


def gauges(pool: Pool) -> dict[str, Get]:
    """Likewise: workers by state, which the controller alone tells."""

    def of(state: str) -> Get:
        return _of_row(pool, lambda row: row.workers.get(state, 0))

    return {state: of(state) for state in WORKER_STATES}


def _of_row(pool: Pool, get: Callable[[PoolRow], int]) -> Get:
    pool_id = pool.pool_id
    return lambda node: next((get(row) for row in node.pools if row.pool_id == pool_id), 0)


def settings(view: ClusterView, pool: Pool) -> Document:
    """All of them, as a declaration says them."""
    more = view.pools.more(pool.pool_id)
    return {
        **asdict(pool.settings),
        SPARES: view.pools.spares(pool.pool_id),
        KEYS_PER_WORKER: view.pools.keys_per_worker(pool.pool_id),
        **asdict(more),
        "tenant_weights": dict(more.tenant_weights),
        EVENTS: view.pools.tells_events(pool.pool_id),
    }


def controller(replica: Replica, pool: Pool) -> str | None:
    """The node that owns the queue of orphans; None: none does now."""
    entity = replica.map.queue_by_id(pool.orphans)
    return None if entity is None or entity.owner is None else replica.name_of(entity.owner)


def numbers(reading: Reading, queue_id: int) -> dict[str, int]:
    """What a queue of the pool holds, as its owner's last sample tells."""
    queue = reading.map.queue_by_id(queue_id)  # type: ignore[arg-type]
    track = None if queue is None else reading.replica.queue_track(queue)
    if track is None:
        return {"waiting": 0, "held": 0, "consumers": 0}
    return {"waiting": track.row.ready, "held": track.row.unacknowledged, "consumers": track.row.consumers}


def oldest_s(reading: Reading, queue_ids: Iterable[int]) -> int | None:
    """For how long the oldest request of these queues has waited; None: none waits, or its time is not known."""
    queues = filter(None, map(reading.map.queue_by_id, queue_ids))  # type: ignore[arg-type]
    tracks = filter(None, map(reading.replica.queue_track, queues))
    heads = [track.row.head_ms for track in tracks if track.row.ready and track.row.head_ms is not None]
    return max(0, reading.now_ms - min(heads)) // 1000 if heads else None


def may_read(reading: Reading, pool: Pool, queue: str) -> bool:
    """Whether the user sees keys and requests of a queue of the pool."""
    try:
        reading.principal.check(pool.vhost, "read", "queue", queue)
    except Exception:  # whatever it is refused for, it is not shown
        return False
    return True


def workers(reading: Reading, vhost: str, name: str) -> Listing[Launch]:
    """Workers of a pool that were ordered, and are not gone, of keys whose queues the user may read; those that come by
    themselves are consumers only."""
    pool = found_pool(reading, vhost, name)
    served = _served(reading)
    return Listing(
        [one for one in reading.map.pools.launches(pool.pool_id) if _may_see(reading, pool, one)],
        name=lambda launch: launch.launch_id,
        place=lambda launch: (pool.vhost, launch.launch_id),
        document=lambda launch: _worker(reading, pool, launch, served),
    )


def worker(reading: Reading, vhost: str, name: str, id: str) -> Document:
    """One. Refused (404) without one of this id."""
    pool = found_pool(reading, vhost, name)
    launch = _launch(reading, pool, id)
    if not _may_see(reading, pool, launch):
        raise _no_worker(pool, id)
    return _worker(reading, pool, launch, _served(reading))


def _launch(reading: Reading, pool: Pool, launch_id: str) -> Launch:
    launch = reading.map.pools.launch(launch_id)
    if launch is None or launch.pool_id != pool.pool_id:
        raise _no_worker(pool, launch_id)
    return launch


def _no_worker(pool: Pool, launch_id: str) -> Refused:
    return Refused(404, "Object Not Found", f"pool '{pool.name}' has no worker '{launch_id[:64]}'")


def _may_see(reading: Reading, pool: Pool, launch: Launch) -> bool:
    queue = PoolNames(pool.name).request_queue(launch.key)
    return may_read(reading, pool, queue) or bool(_seen_keys(reading, pool, launch))


def seen_reason(reading: Reading, pool: Pool, why: str) -> str:
    """Why a worker is to leave, without the names of keys that the user may not read."""
    names = PoolNames(pool.name)

    def shown(quoted: re.Match[str]) -> str:
        try:
            key = ast.literal_eval(quoted[0])
        except (ValueError, SyntaxError):
            return "another key"
        return quoted[0] if may_read(reading, pool, names.request_queue(key)) else "another key"

    return _QUOTED.sub(shown, why)


def _seen_keys(reading: Reading, pool: Pool, launch: Launch) -> list[str]:
    names = PoolNames(pool.name)
    return [key for key in _keys(reading, launch) if may_read(reading, pool, names.request_queue(key))]


def _worker(reading: Reading, pool: Pool, launch: Launch, served: dict[str, tuple[int, int]]) -> Document:
    return {
        "vhost": pool.vhost, "pool": pool.name, "id": launch.launch_id, **_doing(reading, launch, served),
        "key": None if launch.spare else launch.key, "keys": _seen_keys(reading, pool, launch),
        "spare": reading.map.pools.is_free(launch), "place": launch.place,
        "version": launch.version, "generation": launch.generation,
        "retired": seen_reason(reading, pool, launch.retired),
        "revoked": seen_reason(reading, pool, launch.revoked),
    }  # fmt: skip


def _served(reading: Reading) -> dict[str, tuple[int, int]]:
    """Launch -> consumers of its connections, and requests that it holds."""
    found: dict[str, tuple[int, int]] = {}
    for track in reading.replica.connections.values():
        if (launch_id := launch_of(track.row.user)) is not None:
            channels = [one.row for one in reading.replica.channels.get(track.row.connection_id, {}).values()]
            consumers, held = found.get(launch_id, (0, 0))
            consumers += sum(row.consumers for row in channels)
            found[launch_id] = consumers, held + sum(row.unacknowledged for row in channels)
    return found


def _doing(reading: Reading, launch: Launch, served: dict[str, tuple[int, int]]) -> Document:
    """What a worker does, for people, and how many requests it holds."""
    consumers, held = served.get(launch.launch_id, (0, 0))
    free = reading.map.pools.is_free(launch)
    ending = "stopping" if launch.revoked else "retiring" if launch.retired else ""
    return {"state": ending or ("busy" if held else "spare" if free else "ready" if consumers else "starting"),
            "held": held}  # fmt: skip


def _keys(reading: Reading, launch: Launch) -> list[str]:
    """Of a worker, those that it has now."""
    several = [one.key for one in reading.map.pools.assignments(launch.launch_id)]
    return several if launch.spare else [launch.key]


# -- what changes ---------------------------------------------------------------------------------------------


def declaration(said: Said, at_ms: int, vhost: str, name: str) -> c.DeclarePool:
    """The node that orders it refuses (400) a template that no member has."""
    body = Declaration.of(said)
    return c.DeclarePool(
        at_ms=at_ms,
        vhost=vhost,
        name=name,
        template=body.template,
        settings=body.settings(),
        spares=body.spares,
        keys_per_worker=body.keys_per_worker,
        more=body.more(),
        events=body.events,
    )


def change(reading: Reading, said: Said, vhost: str, name: str) -> list[c.AnyCommand]:
    """Of the settings that are said; nothing without any. Refused (400) for one that there is not."""
    found_pool(reading, vhost, name)
    unknown = sorted(set(said) - set(SETTINGS))
    if unknown:
        raise bad_request(f"no setting '{unknown[0][:64]}': known are {', '.join(SETTINGS)}")
    body, only = Settings.of(said), tuple(sorted(said))
    command = c.SetPool(
        at_ms=reading.now_ms,
        vhost=vhost,
        name=name,
        settings=body.settings(),
        only=only,
        spares=body.spares,
        keys_per_worker=body.keys_per_worker,
        more=body.more(),
        events=body.events,
    )
    return [command] if only else []


def pause(paused: bool) -> Callable[[Reading, str, str], c.PausePool]:
    """Nothing begins, or it goes on. Refused (404) without the pool."""

    def command(reading: Reading, vhost: str, name: str) -> c.PausePool:
        found_pool(reading, vhost, name)
        return c.PausePool(at_ms=reading.now_ms, vhost=vhost, name=name, paused=paused)

    return command


def direction(word: GroupWord) -> Callable[[Reading, str, str, str], c.DirectGroup]:
    """An operator's word about a key. Refused (404) without the pool, (400) for a key that it does not allow."""

    def command(reading: Reading, vhost: str, name: str, key: str) -> c.DirectGroup:
        pool = found_pool(reading, vhost, name)
        if word in ("start", "pin") and not key_matches(pool.settings, key):
            raise bad_request(f"the keys of pool '{name[:255]}' do not allow '{key[:255]}'")
        return c.DirectGroup(at_ms=reading.now_ms, vhost=vhost, name=name, key=key, word=word)

    return command


def worker_stop(reading: Reading, vhost: str, name: str, id: str) -> list[c.AnyCommand]:
    """The worker gets no more requests, finishes what it holds, and ends: its controller sees to that. Nothing for one
    that is about to end. Refused (404) without the pool, or a worker of this id."""
    pool = found_pool(reading, vhost, name)
    launch = _launch(reading, pool, id)
    controller = reading.map.queue_by_id(pool.orphans)
    if launch.retired or launch.revoked or controller is None:
        return []
    return [
        c.RetireWorkers(
            at_ms=reading.now_ms,
            pool_id=pool.pool_id,
            epoch=controller.epoch,
            launches=(launch.launch_id,),
            why=STOPPED,
        )
    ]


def deletion(reading: Reading, vhost: str, name: str) -> c.DeletePool:
    """Refused (404) without the pool; (400) unless forced, as long as requests wait for a group or for their time. The
    command itself refuses a pool with groups: of what waits elsewhere the wiring knows nothing, so this is judged by
    the last samples, and refused (503) without any."""
    pool = found_pool(reading, vhost, name)
    force = reading.query.get("force") == "true"
    waiting = {} if force else _waiting_elsewhere(reading, pool)
    if waiting:
        told = " and ".join(f"{count:,} {what}" for what, count in waiting.items())
        raise bad_request(
            f"pool '{name}' has {told}: wait until they are done, cancel them, or force it (they are answered "
            "pool_deleted)"
        )
    answers = reading.map.level >= ANSWERED_DELAYS
    return c.DeletePool(at_ms=reading.now_ms, vhost=vhost, name=name, force=force, delayed=answers)


def _waiting_elsewhere(reading: Reading, pool: Pool) -> dict[str, int]:
    """How many requests wait in no group, by where they do."""
    waiting = {}
    for what, queue_id in (("orphans", pool.orphans), ("delayed requests", pool.delayed)):
        queue = reading.map.queue_by_id(queue_id)
        if queue is not None and not _is_told(reading, queue):
            raise Refused(503, "unavailable", f"how many {what} pool '{pool.name}' has is not known yet: try again")
        if count := numbers(reading, queue_id)["waiting"]:
            waiting[what] = count
    return waiting


def _is_told(reading: Reading, queue: Queue) -> bool:
    """Whether a sample has what a queue holds: one of it, or of its owner, to which it may be new."""
    replica = reading.replica
    if queue.owner is not None and replica.node_track(replica.name_of(queue.owner)) is not None:
        return True
    return replica.queue_track(queue) is not None
