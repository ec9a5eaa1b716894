"""How long a message that came back waits before it is handed out again (RabbitMQ 4.3's delayed retry)."""

from __future__ import annotations

from typing import Final

from clusterbroker.cluster.wiring.queue_settings import QueueSettings

DELAYED_RETRY_MIN_MS: Final = 1000
"""For a queue that wants delayed retries and does not say of what length."""
LONGEST_MS: Final = 1 << 60
"""No clock comes so far. The log has the time of the return in 62 bits."""


def retry_delay_ms(settings: QueueSettings, delivery_count: int, counted: bool) -> int:
    """min(least x delivery count, most) for the kind of return it is asked for, else 0."""
    wanted = {"disabled": False, "all": True, "failed": counted, "returned": not counted}
    if not wanted[settings.delayed_retry_type]:
        return 0
    least = settings.delayed_retry_min_ms or DELAYED_RETRY_MIN_MS
    most = settings.delayed_retry_max_ms
    delay_ms = min(least * max(1, delivery_count + counted), LONGEST_MS)
    return delay_ms if most is None else min(delay_ms, most)
