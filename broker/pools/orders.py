"""Output of the scaling policy. The controller carries orders out in their sequence, as commands of the wiring log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias


@dataclass(frozen=True, slots=True)
class Launch:
    """Start one worker of a key at a place; with NO_KEY a spare."""

    key: str
    place: str
    version: str
    memory: int
    """Bytes promised to it."""


@dataclass(frozen=True, slots=True)
class Assign:
    """Give a spare its key, or a worker of several keys one more."""

    key: str
    worker: str


@dataclass(frozen=True, slots=True)
class Retire:
    """Give a worker no more messages; one of several keys no more of this key, if `worker` is its id there. Stop
    follows when nothing is held, or, of a worker, after `grace_s`."""

    key: str
    worker: str
    why: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Revoke a worker: TERM, and KILL after `grace_s`. Of a worker of several keys the key alone, if `worker` is its id
    there."""

    key: str
    worker: str
    why: str


@dataclass(frozen=True, slots=True)
class Evict:
    """A group makes room at a place: its workers there are retired by the orders that follow. The queue stays."""

    key: str
    place: str
    wanted_by: str
    """Key that the room is for; empty: the place is over-committed."""


@dataclass(frozen=True, slots=True)
class Fail:
    """Starts of a group fail: answer waiting and coming requests with `start_failed` until a time."""

    key: str
    until_s: float
    detail: str


@dataclass(frozen=True, slots=True)
class SuspendPlace:
    """Starts fail at a place whatever the key. The policy starts nothing there until a time; for logs and the page."""

    place: str
    until_s: float
    detail: str


Order: TypeAlias = Launch | Assign | Retire | Stop | Evict | Fail | SuspendPlace


class Ordered(NamedTuple):
    """A command that is due. `launch`: (number, key, place, version) each; `assign`, and those about keys of workers
    that serve several: (id, key); else worker ids."""

    kind: Literal["launch", "assign", "retire", "revoke", "retire_keys", "revoke_keys"]
    launches: tuple[tuple[str, str, str, str], ...] = ()
    workers: tuple[str, ...] = ()
    why: str = ""
    assigned: tuple[tuple[str, str], ...] = ()
