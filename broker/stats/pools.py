"""What a member tells its management process of worker pools."""

from __future__ import annotations

from typing import Final

import msgspec


class TimesRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Durations (`broker.pools.times`)."""

    counts: tuple[int, ...] = ()
    """Up to each bound, and above; empty: there were none."""
    sum_ms: int = 0


NO_TIMES: Final = TimesRow()
FAILED_MAX: Final = 200
"""Keys whose starts fail, told of a pool."""


class PoolRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the responder of a worker pool did at a member."""

    pool_id: int
    answered: dict[str, int] = {}
    """By reason."""
    dead: dict[str, int] = {}
    unheard: int = 0
    """Answers whose address is gone, or took none."""
    poison: int = 0
    wait: TimesRow = NO_TIMES
    service: TimesRow = NO_TIMES
    start: TimesRow = NO_TIMES
    failed: dict[str, tuple[int, str]] = {}
    """Key -> for how many ms from now its starts fail, and why: as all members have heard of the controller."""
