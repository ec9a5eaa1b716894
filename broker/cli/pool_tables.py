"""Tables of `clusterbroker pools`."""

from __future__ import annotations

from typing import Any

from clusterbroker.broker.cli.tables import Column, Table, moment, number, pairs, quoted, rate, size, span, text


def seconds(value: Any) -> str:
    """A length of time."""
    return span(1000 * value) if isinstance(value, int) else text(value)


def _keys_of(value: Any) -> str:
    """A spare has none."""
    return ", ".join(map(quoted, value)) if value else "(spare)"


def _states(value: Any) -> str:
    """Of workers: those that there are."""
    found = {state: count for state, count in value.items() if isinstance(count, int) and count}
    return pairs(found) if found else "none"


def _percent(value: Any) -> str:
    return text(value) if value is None else f"{100 * value:.0f} %"


POOLS = Table(
    (
        Column("vhost"),
        Column("name"),
        Column("state"),
        Column("groups", show=number),
        Column("requests", "message_stats.requests_details.rate", rate),
        Column("consumers", show=number),
        Column("waiting", show=number),
        Column("held", show=number),
        Column("orphans", show=number),
        Column("delayed", show=number, wide=True),
        Column("oldest", "oldest_s", seconds),
        Column("dead", show=number),
        Column("poison", show=number),
        Column("controller"),
        Column("template", wide=True),
        Column("workers", show=number, wide=True),
        Column("by state", "workers_by_state", _states, wide=True),
        Column("exchange", wide=True),
        Column("settings", show=pairs, wide=True),
    )
)
GROUPS = Table(
    (
        Column("key", show=quoted),
        Column("state"),
        Column("consumers", show=number),
        Column("waiting", show=number),
        Column("held", show=number),
        Column("oldest", "oldest_s", seconds),
        Column("queue"),
        Column("why", "failed_why"),
        Column("memory", "memory_bytes", size, wide=True),
        Column("workers", show=number, wide=True),
        Column("failed for s", "failed_for_s", number, wide=True),
        Column("bound", wide=True),
        Column("pinned", wide=True),
        Column("generation", show=number, wide=True),
    ),
    name="key",
)
WORKERS = Table(
    (
        Column("id"),
        Column("keys", show=_keys_of),
        Column("state"),
        Column("held", show=number),
        Column("place"),
        Column("revoked"),
        Column("version", wide=True),
        Column("generation", show=number, wide=True),
    ),
    name="id",
)
PLACES = Table(
    (
        Column("pool"),
        Column("place"),
        Column("state"),
        Column("workers", show=number),
        Column("room", "room_bytes", size),
        Column("promised", "promised_bytes", size),
        Column("free", "free_bytes", size),
        Column("why"),
        Column("suspended for s", "suspended_for_s", number, wide=True),
        Column("over-committed", "over_committed", wide=True),
        Column("driver", wide=True),
        Column("version", wide=True),
        Column("used by all", "machine.used_bytes", size, wide=True),
        Column("running of all", "machine.running", number, wide=True),
    ),
    name="place",
)
REQUESTS = Table(
    (
        Column("state"),
        Column("key", show=quoted),
        Column("ahead", show=number),
        Column("worker"),
        Column("progress", show=_percent),
        Column("attempt", show=number),
        Column("published", "timestamp_ms", moment),
        Column("reason"),
        Column("queue"),
        Column("correlation_id", wide=True),
        Column("seq", show=number, wide=True),
        Column("node", wide=True),
        Column("held since", "held_since_ms", moment, wide=True),
        Column("lost", show=pairs, wide=True),
        Column("message_id", wide=True),
    ),
    name="state",
)
HISTORY = Table(
    (
        Column("time", "at_ms", moment),
        Column("event"),
        Column("worker"),
        Column("key", show=quoted),
        Column("place"),
        Column("exit", "exit_status"),
        Column("why"),
        Column("detail"),
        Column("took", "took_ms", span),
        Column("peak", "peak_bytes", size, wide=True),
        Column("was ready", "was_ready", wide=True),
    ),
    name="event",
)
