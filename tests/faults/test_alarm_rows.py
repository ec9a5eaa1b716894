"""An alarm reaches the rows of every member's page at once, and not with the next round of numbers."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from clusterbroker.broker.server.control.client import ask
from clusterbroker.broker.stats.totals import SAMPLE_S
from clusterbroker.broker.trial.nodes import LocalCluster
from tests.conformance.target import listeners
from tests.conformance.wire import eventually

pytestmark = [pytest.mark.long, pytest.mark.processes]


class WithPages(LocalCluster):
    def _environment(self, name: str) -> dict[str, str]:
        return super()._environment(name) | {"CLUSTERBROKER_HTTP": "127.0.0.1:0"}

    def get(self, name: str, path: str) -> Any:
        where = listeners((self.nodes[name].directory / "node.out").read_text())["http"]
        return httpx.get(f"http://{where}/api/{path}", auth=("guest", "guest"), timeout=30, verify=False)


def test_an_alarm_is_in_all_rows_at_once(tmp_path: Path) -> None:
    cluster = WithPages(tmp_path)
    try:
        asyncio.run(cluster.begin())
        for name in cluster.names:
            eventually(lambda name=name: cluster.get(name, "health/checks/alarms").status_code == 200, 60)  # type: ignore[misc]
        for raised in (True, False) * 3:
            began = time.monotonic()
            assert (ask(cluster.data_dir("a"), "alarm.set", {"name": "memory", "raised": raised}) or {})["ok"]
            for name in cluster.names:
                status = 503 if raised else 200
                eventually(
                    lambda name=name, status=status: cluster.get(name, "health/checks/alarms").status_code == status, 30
                )  # type: ignore[misc]
            took_s = time.monotonic() - began
            assert took_s < SAMPLE_S / 2, f"it took {took_s:.1f} s"
    finally:
        asyncio.run(cluster.end())
