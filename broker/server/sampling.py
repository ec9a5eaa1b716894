"""The census of a running node, taken on request (waits).

A sample is walked in slices, one each turn of the loop. A request during one waits for its end; a request that
accepts an older one gets it at once. A node thus samples once per accepted age for any number of requests, and not at
all without one.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from clusterbroker.broker.server.counting import rows
from clusterbroker.broker.stats.batches import Census
from clusterbroker.broker.stats.rows import Batch

if TYPE_CHECKING:
    from clusterbroker.broker.server.ports import ServerPort

_IMPORTED_S: Final = time.time()


def process_started_at_ms() -> int:
    """Wall clock; without /proc, when this module was imported."""
    try:
        told = Path("/proc/self/stat").read_text()
    except FileNotFoundError:
        return int(_IMPORTED_S * 1000)
    ticks = int(told.rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return int((time.time() - age_s) * 1000)


class Sampling:
    """Of one node, from its start to its end."""

    def __init__(self, shell: ServerPort) -> None:
        self._shell = shell
        self._census = Census(shell.options.node.name, secrets.randbits(52) + 1)
        self._started_at_ms = process_started_at_ms()
        self._sampled_s: float | None = None
        self._due_s = 0.0
        self._lag_s = 0.0
        self._waiting: list[Callable[[], None]] = []

    def ask(self, life: int, number: int, max_age_ms: int, then: Callable[[Batch], None]) -> None:
        """`then` gets what is new after the number, of a sample that is not older; perhaps at once."""
        now_s = self._shell.loop.time()
        self._shell.node.flows.asked(self._shell.clock.now_ms())
        fresh = self._sampled_s is not None and now_s - self._sampled_s <= max_age_ms / 1000
        if not fresh and not self._census.sampling:
            self._sampled_s = now_s
            lag_ms, self._lag_s = self._lag_s * 1000, 0.0
            walk = rows(self._shell, self._started_at_ms, lag_ms, self._census.keys)
            self._census.begin(walk, self._shell.clock.now_ms())
            self._soon()
        if self._census.sampling:
            self._waiting.append(lambda: self._tell(life, number, then))
        else:
            self._tell(life, number, then)

    def _tell(self, life: int, number: int, then: Callable[[Batch], None]) -> None:
        try:
            then(self._told(life, number))
        except Exception as error:  # what cannot be told hurts no message either
            self._shell.log.crashed("census", error)

    def _told(self, life: int, number: int) -> Batch:
        cluster = self._shell.cluster
        return self._census.since(life, number, cluster is None or cluster.heart.leased())

    def _soon(self) -> None:
        self._due_s = self._shell.loop.time()
        self._shell.loop.call_soon(self._slice)

    def _slice(self) -> None:
        if self._shell.ended.done():
            return
        self._lag_s = max(self._lag_s, self._shell.loop.time() - self._due_s)
        try:
            done = self._census.step()
        except Exception as error:  # what cannot be counted hurts no message
            self._shell.log.crashed("census", error)
            self._census.abandon()
            done = True
        if not done:
            self._soon()
            return
        waiting, self._waiting = self._waiting, []
        for tell in waiting:
            tell()
