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


class TemplateRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A template of a place: nothing of what it executes."""

    version: str
    driver: str
    max_workers: int = 0
    """0: no limit."""
    memory_bytes: int = 0
    """Of a worker, as long as nothing is learnt of its key; 0: it does not say."""
    suspended: str = ""
    """Why nothing of it can be started; empty: it can."""


class PlaceRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The member itself, where a foreman starts workers of all pools."""

    templates: dict[str, TemplateRow]
    memory_bytes: int = 0
    """Of the machine; 0: not known."""
    used_bytes: int = 0
    """By workers."""
    running: int = 0
    starting: int = 0
    alarm: bool = False
    """The machine is short of memory."""


class PoolPlaceRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A place, as a pool's controller sees it."""

    room_bytes: int
    """For workers of this pool; UNKNOWN_BYTES and more: the machine's memory is not known."""
    promised_bytes: int = 0
    """Of it, to workers that are there, or come."""
    workers: int = 0
    short: bool = False
    """More is promised than there is, or the machine is short of memory."""
    suspended_for_ms: int = 0
    """The policy starts nothing there; 0: it does."""
    why: str = ""


UNKNOWN_BYTES: Final = 1 << 49


class PoolRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a member knows of a worker pool: as responder, as owner of its queues, or as its controller."""

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
    requests: int = 0
    """That came to its queues here, once each. This and all that follow: of a release that tells them."""
    evictions: int = 0
    """Groups that made room, by this controller."""
    start_failures: int = 0
    workers: dict[str, int] = {}
    """By state, of the controller alone."""
    places: dict[str, PoolPlaceRow] = {}
    """Likewise."""
    version: str = ""
    """Of the template as the controller has it started."""
    events_lost: int = 0
    """That no stream took, here."""
