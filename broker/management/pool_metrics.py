"""What Prometheus is told of worker pools: this node's part, so sums over all nodes count everything once.

What was answered and what died is counted where the pool's responder was; waiting and held requests, and workers that
consume, where the queues are led; groups and ordered workers by the pool's controller's node, from the map.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import accumulate

from clusterbroker.broker.pools.time_bounds import BOUNDS_MS
from clusterbroker.broker.stats.pools import NO_TIMES, PoolRow, TimesRow
from clusterbroker.broker.stats.rows import NodeRow, QueueRow
from clusterbroker.cluster.ids import LogIndex, NodeId
from clusterbroker.cluster.wiring.pool_entities import Launch, Pool
from clusterbroker.cluster.wiring.view import ClusterView

from .metrics_text import Named, labels, written
from .replica import Replica
from .statistics import COUNTER, GAUGE, HISTOGRAM

PREFIX = "clusterbroker_pool_"
BOUNDS = (*(f"{bound / 1000:g}" for bound in BOUNDS_MS), "+Inf")
Sample = tuple[str, float]
STATES = ("ordered", "retired", "revoked", "spare")
"""Of workers."""


def _state(view: ClusterView, launch: Launch) -> str:
    ending = "revoked" if launch.revoked else "retired" if launch.retired else ""
    return ending or ("spare" if view.pools.is_free(launch) else "ordered")


def pools(replica: Replica, node: NodeRow | None, queues: dict[int, QueueRow]) -> Iterator[str]:
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
        entity = replica.map.queue_by_id(pool.orphans)
        if entity is None or entity.owner != NodeId(replica.node):
            continue
        states = Counter(group.state for group in groups)
        samples["groups"] += [(labels({**named, "state": one}), states[one]) for one in ("active", "unbound")]
        launches = Counter(_state(replica.map, one) for one in view.launches(pool.pool_id))
        samples["workers"] += [(labels({**named, "state": one}), launches[one]) for one in STATES]
        row = rows.get(pool.pool_id)
        samples["failing_keys"].append((labels(named), 0 if row is None else len(row.failed)))
    for name, text in (
        ("waiting", "Requests that wait, in queues led here"),
        ("held", "Requests that workers hold, of queues led here"),
        ("consumers", "Consumers of requests, of queues led here"),
        ("groups", "Keys with a queue, told by the controller's node"),
        ("workers", "Workers that the pool has started and that are not gone, told by the controller's node"),
        ("failing_keys", "Keys whose workers cannot be started, told by the controller's node"),
    ):  # fmt: skip
        yield written(Named(PREFIX + name, GAUGE, text), samples[name])


def _counted(known: tuple[Pool, ...], rows: dict[LogIndex, PoolRow]) -> Iterator[str]:
    dead: list[Sample] = []
    answers: list[Sample] = []
    unheard: list[Sample] = []
    poison: list[Sample] = []
    for pool in known:
        named = {"vhost": pool.vhost, "pool": pool.name}
        row = rows.get(pool.pool_id, PoolRow(pool.pool_id))
        dead += [(labels({**named, "reason": reason}), count) for reason, count in sorted(row.dead.items())]
        answers += [(labels({**named, "reason": reason}), count) for reason, count in sorted(row.answered.items())]
        unheard.append((labels(named), row.unheard))
        poison.append((labels(named), row.poison))
    yield from _timed(known, rows)
    for name, text, samples in (
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
