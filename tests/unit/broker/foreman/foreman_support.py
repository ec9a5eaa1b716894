"""Specs, conditions and workers for tests of the foreman."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from clusterbroker.broker.foreman.drivers.port import Place
from clusterbroker.broker.foreman.spec import WorkerSpec

PATIENCE_S = 30.0
PLACE = Place("c1u5ter", "node1", {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/root", "TOKEN": "of the node"})


def spec(worker_id: str = "w1-0", key: str = "42", **more: Any) -> WorkerSpec:
    facts: dict[str, Any] = {
        "worker_id": worker_id,
        "pool": "core",
        "template": "core",
        "key": key,
        "generation": 7,
        "version": "v1",
        "queue": f"core-req-{key}",
        "activity_exchange": "core-activity-xchg",
        "uris": ("amqp://worker:pass%20word@127.0.0.1:5672/%2f", "amqp://worker:pass@127.0.0.2:5672/%2f"),
    }
    return WorkerSpec(**(facts | more))


async def until(condition: Callable[[], Awaitable[Any]], what: str = "") -> Any:
    """What the condition answered when it was true."""
    end_s = time.monotonic() + PATIENCE_S
    while True:
        if answer := await condition():
            return answer
        assert time.monotonic() < end_s, f"not within {PATIENCE_S} s: {what or condition}"
        await asyncio.sleep(0.01)
