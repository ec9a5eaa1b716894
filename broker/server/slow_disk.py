"""The alert about a slow disk, which publishers cannot tell from a slow network (waits).

A slow node gives up its queues and leaves the in-sync sets by itself, without another report. The times of group
commits are therefore examined every LOOK_S. A window is slow when one of them took LONG_MS, also if it is not done
yet, or when some of them took MEAN_MS in the mean. The alert `disk.slow` holds until nothing was slow for CALM_S. A
look that comes late itself proves nothing: the loop, or the machine, was busy.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from clusterbroker.journal.flushes import FlushTimes

if TYPE_CHECKING:
    from clusterbroker.broker.node.alerts import Alerts
    from clusterbroker.broker.server.ports import ServerPort

LOOK_S: Final = 2.0
LATE_S: Final = 0.5
LONG_MS: Final = 1_000
MEAN_MS: Final = 200
SOME: Final = 3
CALM_S: Final = 30.0
SLOW: Final = "disk.slow"


class SlowDisk:
    """Of one journal."""

    def __init__(self, flushes: FlushTimes, alerts: Alerts, directory: str, now_s: float) -> None:
        self._flushes = flushes
        self._alerts = alerts
        self._directory = directory
        self._looked_s = self._slow_s = now_s

    def look(self, now_s: float) -> None:
        """Once in LOOK_S."""
        late = now_s - self._looked_s > LOOK_S + LATE_S
        self._looked_s = now_s
        count, total_us, longest_us = self._flushes.take_window(now_s)
        longest_ms, mean_ms = longest_us // 1000, total_us // 1000 // max(1, count)
        if not late and (longest_ms >= LONG_MS or (count >= SOME and mean_ms >= MEAN_MS)):
            self._slow_s = now_s
            what = f"a write to the journal took {longest_ms / 1000:.1f} s, {count} of them {mean_ms} ms in the mean"
            self._alerts.set(
                SLOW,
                self._directory,
                f"the disk of {self._directory} is slow: {what}. Confirms wait for it, and owners go elsewhere; look "
                "at the disk, and at who else uses it",
            )
        elif now_s - self._slow_s >= CALM_S:
            self._alerts.clear(SLOW, self._directory)


def watch_disk(shell: ServerPort) -> None:
    """From now on until the node ends. Of a node without a disk: nothing."""
    journal = shell.storage.journal
    if journal is None:
        return
    slow = SlowDisk(journal.flushes, shell.node.alerts, str(shell.options.data_dir), time.monotonic())

    def look() -> None:
        if not shell.ended.done():
            slow.look(time.monotonic())
            shell.loop.call_later(LOOK_S, look)

    shell.loop.call_later(LOOK_S, look)
