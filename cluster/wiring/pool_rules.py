"""Rules of pools' settings, and the arguments of their queues: pure."""

from __future__ import annotations

import math
from typing import Any, Final

from msgspec.structs import replace

from clusterbroker.cluster.errors import PreconditionFailed

from .patterns import PatternError, compiled
from .pool_entities import SCALED_OUTSIDE, MoreSettings, PoolSettings
from .pool_names import POOL_BYTES_MAX, PoolNames, encoded
from .queue_settings import QueueSettings

SPARES: Final = "spares"
"""The setting that is an entity of its own."""
KEYS_PER_WORKER: Final = "keys_per_worker"
"""Another one."""
EVENTS: Final = "events"
"""And another one."""
BESIDE: Final = (SPARES, KEYS_PER_WORKER, *MoreSettings.__struct_fields__, EVENTS)
"""Settings that are no field of `PoolSettings`."""
TENANTS_MAX: Final = 1000
"""With a weight."""
SEPARATOR_MAX: Final = 8
LEARNT_MAX: Final = 10_000
"""Keys of a pool whose memory is known."""
PEAK_PARTS: Final = 4
"""A lower peak than before counts for one part of so many: one light run does not hide the heavy ones."""
HEADROOM: Final = 1.15
"""Of memory, above the learnt peak."""
KEY_BYTES_MAX: Final = 255
"""Of a group's key, as of any routing key."""
POISON_MAX: Final = 10_000
ACTIVITY_MAX: Final = 10_000
EVENTS_BYTES: Final = 1 << 30
"""Of the stream of events; a policy may keep less."""
EVENTS_FILE_BYTES: Final = 16 << 20
"""It gives up its oldest ones by so much."""
_MS_MAX: Final = 10 * 365 * 86_400_000
_S_MAX: Final = _MS_MAX // 1000
RANGES: Final[dict[str, tuple[int, int]]] = {
    "request_ttl_ms": (1, _MS_MAX),
    "process_timeout_ms": (1000, _MS_MAX),
    "delivery_limit": (0, 1_000_000),
    "max_length": (1, 10_000_000),
    "max_length_bytes": (1, 1 << 50),
    "unbind_delay_s": (0, _S_MAX),
    "stop_delay_s": (0, _S_MAX),
    "min": (0, 5000),
    "max": (0, 5000),
    "max_workers": (0, 5000),
    "max_groups": (1, 20_000),
    "prefetch": (1, 65_535),
    "start_timeout_s": (1, _S_MAX),
    "start_failures_max": (1, 1_000_000),
    "grace_s": (0, _S_MAX),
    SPARES: (0, 5000),
    KEYS_PER_WORKER: (1, 100),
    "tenant_weights": (1, 1000),
    "target_wait_ms": (1, _MS_MAX),
    "service_ms": (1, _MS_MAX),
    "start_ms": (1, _MS_MAX),
    "starve_s": (1, _S_MAX),
    "min_run_s": (0, _S_MAX),
    "max_share_percent": (1, 100),
}
"""The numbers that a setting may have."""
_WAITING: Final = (
    "message_ttl_ms", "max_length", "max_length_bytes", "overflow", "dead_letter_exchange", "dead_letter_routing_key",
    "dead_letter_strategy", "delivery_limit",
)  # fmt: skip
"""Settings that take messages out of a queue, or keep them from it."""
CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "ready": ("consumer", "event"),
    "scaling": ("own", "hpa", "keda", "fixed"),
    "status_type": ("bytes", "text"),
}


def check_name(pool: str) -> None:
    """406 for a pool's name that makes no names of queues."""
    try:
        prefix = encoded(pool)
    except UnicodeEncodeError:
        raise PreconditionFailed(f"the name of pool {pool[:255]!r} is no UTF-8") from None
    if not 0 < len(prefix) <= POOL_BYTES_MAX:
        raise PreconditionFailed(
            f"the name of pool '{pool[:255]}' has {len(prefix)} bytes (percent-encoded): 1 to {POOL_BYTES_MAX} are "
            "allowed"
        )


def check_settings(settings: PoolSettings) -> None:
    """406 for a setting out of range."""
    for name in RANGES:
        if name not in BESIDE:
            _check_range(name, getattr(settings, name))
    for name, choices in CHOICES.items():
        if getattr(settings, name) not in choices:
            raise PreconditionFailed(f"{name} is '{getattr(settings, name)}': one of {', '.join(choices)} is allowed")
    if settings.min > settings.max:
        raise PreconditionFailed(f"min is {settings.min} and max {settings.max}: a key has at least min workers")
    if settings.keys:
        try:
            compiled(settings.keys)
        except PatternError as error:
            raise PreconditionFailed(f"keys: {error}") from None


def _check_range(name: str, value: int) -> None:
    low, high = RANGES[name]
    if not low <= value <= high:
        raise PreconditionFailed(f"{name} is {value}: from {low} to {high} is allowed")


def check_spares(spares: int, settings: PoolSettings) -> None:
    """406 for spares out of range, or of a pool whose workers somebody else scales."""
    _check_range(SPARES, spares)
    if spares and settings.scaling in SCALED_OUTSIDE:
        raise PreconditionFailed(f"{SPARES} is {spares} and scaling '{settings.scaling}': what scales there has keys")


def check_keys_per_worker(count: int, settings: PoolSettings) -> None:
    """406 for a number out of range, or of a pool whose workers somebody else scales."""
    _check_range(KEYS_PER_WORKER, count)
    if count > 1 and settings.scaling in SCALED_OUTSIDE:
        raise PreconditionFailed(
            f"{KEYS_PER_WORKER} is {count} and scaling '{settings.scaling}': what scales there has one key"
        )


def check_more(more: MoreSettings) -> None:
    """406 for a separator that is too long, for numbers out of range, and for weights of too many tenants."""
    for name in MoreSettings.__struct_fields__:
        if name in RANGES and name != "tenant_weights":
            _check_range(name, getattr(more, name))
    if len(more.tenant_separator) > SEPARATOR_MAX:
        raise PreconditionFailed(
            f"tenant_separator has {len(more.tenant_separator)} characters: {SEPARATOR_MAX} are allowed"
        )
    if len(more.tenant_weights) > TENANTS_MAX:
        raise PreconditionFailed(f"tenant_weights has {len(more.tenant_weights)} tenants: {TENANTS_MAX} are allowed")
    for tenant, weight in more.tenant_weights:
        if len(tenant.encode()) > KEY_BYTES_MAX:
            raise PreconditionFailed(f"tenant_weights: tenant '{tenant[:64]}...' is longer than a key")
        _check_range("tenant_weights", weight)


def tenant_of(more: MoreSettings, key: str) -> str:
    """Whose a key is; empty: nobody's in particular."""
    tenant, found, _ = key.partition(more.tenant_separator) if more.tenant_separator else ("", "", "")
    return tenant if found else ""


def learnt_peak(before: int, peak_bytes: int) -> int:
    """What a worker of a key takes, after one more has ended: a higher peak counts at once, a lower one in part."""
    return peak_bytes if peak_bytes >= before else before - (before - peak_bytes) // PEAK_PARTS


def promised_bytes(peak_bytes: int) -> int:
    """To a worker of a key whose peak was learnt."""
    return math.ceil(peak_bytes * HEADROOM)


def key_matches(settings: PoolSettings, key: str) -> bool:
    """Whether the operator allows the key."""
    return not settings.keys or compiled(settings.keys).matches(key)


def request_arguments(names: PoolNames, settings: PoolSettings) -> dict[str, Any]:
    """Of the queue of a key."""
    return {
        **_waiting(names, settings),
        "x-consumer-timeout": settings.process_timeout_ms,
        "x-delivery-limit": settings.delivery_limit,
    }


def orphan_arguments(names: PoolNames, settings: PoolSettings) -> dict[str, Any]:
    """Of the queue of requests whose key has no group."""
    return _waiting(names, settings)


def _waiting(names: PoolNames, settings: PoolSettings) -> dict[str, Any]:
    return {
        "x-queue-type": "classic",
        "x-message-ttl": settings.request_ttl_ms,
        "x-max-length": settings.max_length,
        "x-max-length-bytes": settings.max_length_bytes,
        "x-overflow": "reject-publish-dlx",
        "x-dead-letter-exchange": names.exchange_of(names.dead),
        "x-dead-letter-strategy": "at-least-once",
    }


def dead_arguments() -> dict[str, Any]:
    """Of the queue of requests that died: it takes all."""
    return {"x-queue-type": "classic"}


def of_pool(settings: QueueSettings, part: str) -> QueueSettings:
    """The settings that hold for a queue of a pool, of those that policies and arguments make: it ends with its pool
    alone, and those that died wait for their answers whatever a policy says."""
    changed: dict[str, Any] = {"expires_ms": None}
    if part == "dead":
        plain = QueueSettings()
        changed.update((field, getattr(plain, field)) for field in _WAITING)
    kept = tuple((field, source) for field, source in settings.sources if field not in changed)
    return replace(settings, **changed, sources=kept)


def events_arguments() -> dict[str, Any]:
    """Of the stream of events."""
    return {
        "x-queue-type": "stream",
        "x-max-length-bytes": EVENTS_BYTES,
        "x-stream-max-segment-size-bytes": EVENTS_FILE_BYTES,
    }


def bounded_arguments(most: int) -> dict[str, Any]:
    """Of a queue that keeps the newest."""
    return {"x-queue-type": "classic", "x-max-length": most, "x-overflow": "drop-head"}
