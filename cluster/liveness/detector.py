"""Failure suspicion: phi-accrual over arriving heartbeats (pure). Suspicion only; it evicts no member.

phi = -log10 of the chance that a peer which still beats is silent for so long, with the mean and the deviation of its
last 200 intervals: phi 8 is wrong once in 10^8 times. A lossy link is therefore judged more slowly than a good one.
(N. Hayashibara et al., "The phi accrual failure detector", 2004.)

Time in which this node itself did not run is no silence of others: `stalled` moves all arrivals by that much.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final

WINDOW: Final = 200


@dataclass(frozen=True, slots=True)
class DetectorOptions:
    """When a peer is suspected."""

    beat_s: float = 0.1
    """The interval that is expected of a peer of which nothing is known yet; also the least deviation."""

    phi: float = 8.0
    """Suspected from here on."""


class _Intervals:
    """The last intervals of one peer, with their sums."""

    __slots__ = ("_squares", "_sum", "_values")

    def __init__(self) -> None:
        self._values: deque[float] = deque()
        self._sum = 0.0
        self._squares = 0.0

    def add(self, value: float) -> None:
        self._values.append(value)
        self._sum += value
        self._squares += value * value
        if len(self._values) > WINDOW:
            old = self._values.popleft()
            self._sum -= old
            self._squares -= old * old

    def mean_and_deviation(self, expected: float) -> tuple[float, float]:
        """The deviation is never below the expected interval: one lost beat is no news."""
        count = len(self._values)
        if not count:
            return expected, expected
        mean = self._sum / count
        return mean, max(expected, math.sqrt(max(0.0, self._squares / count - mean * mean)))


@dataclass(slots=True)
class _Peer:
    last: float
    intervals: _Intervals = field(default_factory=_Intervals)
    suspected: bool = False


class Detector:
    """Suspicion of each peer. Times are seconds of one clock."""

    __slots__ = ("_options", "_peers")

    def __init__(self, options: DetectorOptions | None = None) -> None:
        self._options = options or DetectorOptions()
        self._peers: dict[str, _Peer] = {}

    def watch(self, peers: list[str], now: float) -> None:
        """These and no others; a new one is given the time of a beat from now."""
        known = self._peers
        self._peers = {name: known.get(name) or _Peer(now) for name in peers}

    def heard(self, name: str, now: float) -> None:
        """A beat of the peer."""
        peer = self._peers.get(name)
        if peer is None:
            return
        if not peer.suspected:  # the silence of a peer that was away is no interval of beats
            peer.intervals.add(max(0.0, now - peer.last))
        peer.last = max(peer.last, now)

    def stalled(self, seconds: float, now: float) -> None:
        """This node did not run for so long."""
        for peer in self._peers.values():
            peer.last = min(now, peer.last + seconds)

    def phi(self, name: str, now: float) -> float:
        """0 for one that beats, 8 for one that is suspected, infinite in the end."""
        peer = self._peers[name]
        mean, deviation = peer.intervals.mean_and_deviation(self._options.beat_s)
        chance = 0.5 * math.erfc((now - peer.last - mean) / (deviation * math.sqrt(2)))
        return -math.log10(chance) if chance > 0 else math.inf

    def changes(self, now: float) -> list[tuple[str, bool]]:
        """Whose suspicion changed since the last call: (name, suspected)."""
        changed = []
        for name, peer in self._peers.items():
            suspected = self.phi(name, now) >= self._options.phi
            if suspected != peer.suspected:
                peer.suspected = suspected
                changed.append((name, suspected))
        return changed

    def suspected(self, name: str) -> bool:
        """As of the last `changes`; a peer that is not watched is not suspected."""
        peer = self._peers.get(name)
        return peer is not None and peer.suspected
