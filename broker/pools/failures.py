"""Starts that fail: back-off of a group, `failed` groups and their trial starts, places where nothing starts.

A *failed start* is a launch that ends, or takes `start_timeout_s`, before it is ready. A *crash* is an end that nobody
asked for, of a worker that was ready. Both make the group wait: 1, 2, 4 .. BACKOFF_MAX_S, and up to SPREAD more. A
worker that gets *ready* ends the wait, and the run of failed starts (its mere start does not). One that stays ready for
STABLE_S ends the growth of the back-off; until then one start is under way at a time.

    starting --fails--> backing off --time--> starting            failures in a row < start_failures_max
                             |`start_failures_max`-th
                             v
                          failed for FAILED_S --time--> one trial start --fails--> failed ...
                                                                        --ready--> as if nothing had been

`failed` is told to callers (Fail), crashes are not: there the delivery limit answers them.

A place that fails PLACE_KEYS keys and gets none ready in between is suspended, and what the keys were charged there is
taken back. It is not suspended when no other place is left: then callers are to be answered, and keys fail.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

BACKOFF_S: Final = 1.0
BACKOFF_MAX_S: Final = 60.0
SPREAD: Final = 0.2
FAILED_S: Final = 60.0
STABLE_S: Final = 60.0
PLACE_KEYS: Final = 3
SUSPENDED_S: Final = 60.0


def _spread(key: str, count: int) -> float:
    """0..1, the same at each node: chance would make two controllers differ."""
    return int.from_bytes(hashlib.blake2b(f"{count} {key}".encode(), digest_size=4).digest(), "big") / (1 << 32)


@dataclass(slots=True)
class _Group:
    failures: int = 0
    """Failed starts in a row."""
    level: int = 0
    """Failed starts and crashes since a worker stayed ready: exponent of the back-off."""
    at_s: float = -math.inf
    """Time of the last failure."""
    until_s: float = -math.inf
    """Nothing is started before."""
    detail: str = ""


@dataclass(slots=True)
class _Place:
    failures: Counter[str] = field(default_factory=Counter)
    """Of keys, since something got ready here."""
    until_s: float = -math.inf


class Failures:
    """Runs of failures by group and by place."""

    def __init__(self, start_failures_max: int) -> None:
        self.failures_max = start_failures_max
        """In a row, with which a group is failed."""
        self._groups: dict[str, _Group] = {}
        self._places: dict[str, _Place] = {}
        self._left: set[str] = set()
        """Keys of groups that do not exist any more."""

    def failed_start(self, key: str, place: str, detail: str, now_s: float) -> float | None:
        """Count a start that failed. The time until which the group is failed, when it is from now on."""
        group = self._groups.setdefault(key, _Group())
        group.detail = detail
        self._places.setdefault(place, _Place()).failures[key] += 1
        self._left.discard(key)
        group.failures += 1
        group.level += 1
        group.at_s = now_s
        if group.failures >= self.failures_max:
            group.until_s = now_s + FAILED_S
            return group.until_s
        self._back_off(group, key, now_s)
        return None

    def resume(self, key: str, until_s: float, detail: str, now_s: float) -> None:
        """A controller before has failed the group, until then: one trial start follows."""
        count = self.failures_max
        self._groups[key] = _Group(failures=count, level=count, at_s=now_s, until_s=until_s, detail=detail)

    def crashed(self, key: str, now_s: float) -> None:
        """Count a ready worker that ended unasked. Workers that end together are one crash."""
        group = self._groups.setdefault(key, _Group())
        self._left.discard(key)
        group.at_s = now_s
        if now_s >= group.until_s:
            group.level += 1
            self._back_off(group, key, now_s)

    def _back_off(self, group: _Group, key: str, now_s: float) -> None:
        wait_s = BACKOFF_S * min(2.0 ** min(group.level - 1, 32), BACKOFF_MAX_S / BACKOFF_S)
        group.until_s = max(group.until_s, now_s + wait_s * (1 + SPREAD * _spread(key, group.level)))

    def became_ready(self, key: str, place: str) -> None:
        """A worker is ready: its key and its place can start things."""
        if (group := self._groups.get(key)) is not None and group.failures:
            group.failures = 0
            group.until_s = -math.inf
        if (found := self._places.get(place)) is not None:
            found.failures.clear()
            found.until_s = -math.inf

    def stayed(self, key: str, ready_since_s: float, now_s: float) -> None:
        """A worker has been ready since a time. One that was there before the last failure proves nothing."""
        group = self._groups.get(key)
        if group is not None and group.at_s <= ready_since_s <= now_s - STABLE_S:
            self._forget(key)

    def forget(self, key: str) -> None:
        """An operator's `retry`."""
        if key in self._groups:
            self._forget(key)

    def gone(self, key: str, now_s: float) -> None:
        """A group that does not exist any more keeps its back-off until it is over."""
        if key in self._groups:
            self._left.add(key)
        for each in [each for each in self._left if now_s >= self._groups[each].until_s]:
            self._forget(each)

    def _forget(self, key: str) -> None:
        del self._groups[key]
        self._left.discard(key)

    def failed_until(self, key: str, now_s: float) -> float | None:
        """The end of the group's time as failed; None: it is not."""
        group = self._groups.get(key)
        return (
            group.until_s
            if group is not None and group.failures >= self.failures_max and now_s < group.until_s
            else None
        )

    def detail(self, key: str) -> str:
        """Of the start that failed last; empty: none did."""
        group = self._groups.get(key)
        return "" if group is None else group.detail

    def may_start(self, key: str, now_s: float) -> bool:
        group = self._groups.get(key)
        return group is None or now_s >= group.until_s

    def on_trial(self, key: str) -> bool:
        """One start at a time."""
        return key in self._groups

    def failed_at(self, key: str, place: str) -> int:
        """Failed starts of the key there, since something got ready."""
        found = self._places.get(place)
        return 0 if found is None else found.failures[key]

    def waits_until(self, key: str) -> float | None:
        group = self._groups.get(key)
        return group.until_s if group is not None else None

    def suspend(self, place: str, others: bool, now_s: float) -> tuple[float, str] | None:
        """Whether a place is suspended from now on: (until, detail). `others`: places that are left."""
        found = self._places.get(place)
        if found is None or not others or len(found.failures) < PLACE_KEYS:
            return None
        found.until_s = now_s + SUSPENDED_S
        details = [self._groups[key].detail for key in found.failures if key in self._groups]
        for key, count in found.failures.items():
            if (group := self._groups.get(key)) is not None:
                group.failures = max(0, group.failures - count)
                group.level = max(0, group.level - count)
                group.until_s = now_s
        keys = len(found.failures)
        found.failures.clear()
        return found.until_s, f"{keys} keys did not start here; the last one: {details[-1] if details else 'unknown'}"

    def is_suspended(self, place: str, now_s: float) -> bool:
        found = self._places.get(place)
        return found is not None and now_s < found.until_s
