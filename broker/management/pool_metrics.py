"""What Prometheus is told of worker pools: this node's part, so sums over all nodes count everything once.

What was answered and what died is counted where the pool's responder was; requests, those that wait and are held, and
workers that consume, where the queues are led; groups, started workers, evictions and failed starts by the pool's
controller's node; memory of workers by the place itself, of all pools together.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import accumulate

from clusterbroker.broker.pools.figures import WORKER_STATES
from clusterbroker.broker.pools.places import OFF_THE_MACHINE
from clusterbroker.broker.pools.time_bounds import BOUNDS_MS
from clusterbroker.broker.stats.pools import NO_TIMES, PoolRow, TimesRow
from clusterbroker.broker.stats.rows import NodeRow, QueueRow
from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.wiring.pool_entities import Pool

from .metrics_text import Named, labels, written
from .pool_places import controller_row
from .pools import controller
from .replica import Replica
from .statistics import COUNTER, GAUGE, HISTOGRAM

PREFIX = "clusterbroker_pool_"
BOUNDS = (*(f"{bound / 1000:g}" for bound in BOUNDS_MS), "+Inf")
Sample = tuple[str, float]


def pools(replica: Replica, node: NodeRow | None, queues: dict[int, QueueRow], now_ms: int) -> Iterator[str]:
    """`queues`: those that this node leads, by id. Names without samples where there is no pool."""
    view = replica.map.pools
    known = view.all()
    rows: dict[LogIndex, PoolRow] = {} if node is None else {LogIndex(row.pool_id): row for row in node.pools}
    yield from _counted(known, rows)
    samples: dict[str, list[Sample]] = defaultdict(list)
    for pool in known:
        named = {"vhost": pool.vhost, "pool": pool.name}
        groups = view.groups(pool.pool_id)
        led = [queues[group.queue_id] for group in groups if group.queue_id in queues]
        orphans = queues.get(pool.orphans)
        waiting = sum(row.ready for row in led) + (0 if orphans is None else orphans.ready)
        samples["waiting"].append((labels(named), waiting))
        samples["held"].append((labels(named), sum(row.unacknowledged for row in led)))
        samples["consumers"].append((labels(named), sum(row.consumers for row in led)))
        heads = [
            row.head_ms
            for row in (*led, *([] if orphans is None else [orphans]))
            if row.ready and row.head_ms is not None
        ]
        samples["oldest_seconds"].append((labels(named), max(0, now_ms - min(heads)) / 1000 if heads else 0))
        if controller(replica, pool) != replica.node:
            continue
        states = Counter(group.state for group in groups)
        samples["groups"] += [(labels({**named, "state": one}), states[one]) for one in ("active", "unbound")]
        row = rows.get(pool.pool_id, PoolRow(pool.pool_id))
        samples["workers"] += [(labels({**named, "state": one}), row.workers.get(one, 0)) for one in WORKER_STATES]
        samples["failing_keys"].append((labels(named), len(row.failed)))
    for name, text in (
        ("waiting", "Requests that wait, in queues led here"),
        ("held", "Requests that workers hold, of queues led here"),
        ("consumers", "Consumers of requests, of queues led here"),
        ("oldest_seconds", "For how long the oldest waiting request has waited, in queues led here; 0: none waits"),
        ("groups", "Keys with a queue, told by the controller's node"),
        ("workers", "Workers that the pool has started and that are not gone, told by the controller's node"),
        ("failing_keys", "Keys whose workers cannot be started, told by the controller's node"),
    ):  # fmt: skip
        yield written(Named(PREFIX + name, GAUGE, text), samples[name])
    text = "Memory of workers of all pools on this machine: what it has, promised to them, and used by them"
    yield written(Named(f"{PREFIX}place_memory_bytes", GAUGE, text), _memory(replica, node))


def _memory(replica: Replica, node: NodeRow | None) -> Iterator[Sample]:
    place = None if node is None else node.place
    if place is None:
        return
    drivers = {name: template.driver for name, template in place.templates.items()}
    here = (pool for pool in replica.map.pools.all() if drivers.get(pool.template) not in OFF_THE_MACHINE)
    seen = (controller_row(replica, pool).places.get(replica.node) for pool in here)
    promised = sum(one.promised_bytes for one in seen if one is not None)
    for kind, size in (("machine", place.memory_bytes), ("promised", promised), ("used", place.used_bytes)):
        yield labels({"kind": kind}), size


def _counted(known: tuple[Pool, ...], rows: dict[LogIndex, PoolRow]) -> Iterator[str]:
    dead: list[Sample] = []
    answers: list[Sample] = []
    unheard: list[Sample] = []
    poison: list[Sample] = []
    requests: list[Sample] = []
    evictions: list[Sample] = []
    failures: list[Sample] = []
    lost: list[Sample] = []
    for pool in known:
        named = {"vhost": pool.vhost, "pool": pool.name}
        row = rows.get(pool.pool_id, PoolRow(pool.pool_id))
        dead += [(labels({**named, "reason": reason}), count) for reason, count in sorted(row.dead.items())]
        answers += [(labels({**named, "reason": reason}), count) for reason, count in sorted(row.answered.items())]
        unheard.append((labels(named), row.unheard))
        poison.append((labels(named), row.poison))
        requests.append((labels(named), row.requests))
        evictions.append((labels(named), row.evictions))
        failures.append((labels(named), row.start_failures))
        lost.append((labels(named), row.events_lost))
    yield from _timed(known, rows)
    for name, text, samples in (
        ("requests_total", "Requests that came to queues led here, each once", requests),
        ("evictions_total", "Groups that had to make room for others, counted by the controller's node", evictions),
        ("start_failures_total", "Workers that were not ready in time, or ended before, counted likewise", failures),
        ("events_lost_total", "Events that were not told, for the pool's stream did not take them", lost),
        ("dead_total", "Requests that died, whether somebody wanted an answer or not", dead),
        ("answers_total", "Requests that the broker answered because they died", answers),
        ("answers_unheard_total", "Answers whose address was gone, or took none", unheard),
        ("poison_total", "Requests that went to the inventory of those that workers die of", poison),
    ):
        yield written(Named(PREFIX + name, COUNTER, text), samples)


def _timed(known: tuple[Pool, ...], rows: dict[LogIndex, PoolRow]) -> Iterator[str]:
    """Histograms: their buckets are cumulative. A pool without any has no samples."""
    for name, text in (
        ("wait", "Time from a request's publish to its first hand-out, of one request per key at a time"),
        ("service", "Time from there until it was settled, of one request per key at a time"),
        ("start", "Time from a worker's order until it was ready, told by the controller's node"),
    ):
        samples: list[Sample] = []
        for pool in known:
            times: TimesRow = getattr(rows.get(pool.pool_id), name, NO_TIMES)
            named = {"vhost": pool.vhost, "pool": pool.name}
            for bound, total in zip(BOUNDS, accumulate(times.counts), strict=False):
                samples.append((f"_bucket{labels({**named, 'le': bound})}", total))
            if times.counts:
                samples.append((f"_sum{labels(named)}", times.sum_ms / 1000))
                samples.append((f"_count{labels(named)}", sum(times.counts)))
        yield written(Named(f"{PREFIX}{name}_seconds", HISTOGRAM, text), samples)
