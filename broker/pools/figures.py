"""What a pool's controller tells people of its workers and places (pure).

worker   wanted -> starting -> ready, busy (it holds a request) -> retiring -> stopping; spare: it has no key yet
place    room and what is promised of it, as the last step of the policy left them; why nothing is started there
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from clusterbroker.broker.pools.facts import WorkerState

if TYPE_CHECKING:
    from clusterbroker.broker.pools.placement import Book  # a management process needs the names of states alone

BUSY, SPARE = "busy", "spare"
WORKER_STATES: Final = (*(state.value for state in WorkerState), BUSY, SPARE)


class PlaceFigures(NamedTuple):
    """A place, for one pool."""

    room_bytes: int
    """Memory for workers of this pool: without what other pools have there."""
    promised_bytes: int
    """Of it, to workers that are there, or come."""
    workers: int
    workers_max: int | None
    short: bool
    """More is promised than there is, or the machine is short of memory."""
    suspended_s: float | None = None
    """Until when the policy starts nothing here; None: it does."""
    why: str = ""
    """It is suspended."""


class Figures(NamedTuple):
    """Of a pool at its controller."""

    workers: Mapping[str, int]
    """By state."""
    places: Mapping[str, PlaceFigures]
    version: str
    """Of the template as it is started; empty: no place has it."""


NO_FIGURES: Final = Figures({}, {}, "")


def by_state(workers: Iterable[tuple[WorkerState, bool, int]]) -> Counter[str]:
    """`workers`: state, whether it has no key, and what it holds."""
    found: Counter[str] = Counter()
    for state, free, held in workers:
        if state is WorkerState.READY and (free or held):
            found[SPARE if free else BUSY] += 1
        else:
            found[state.value] += 1
    return found


def of_places(
    books: Mapping[str, Book], suspended: Mapping[str, tuple[float, str]], now_s: float
) -> dict[str, PlaceFigures]:
    """`suspended`: until when, and why, by the policy."""
    found = {}
    for name, book in books.items():
        until_s, why = suspended.get(name, (now_s, ""))
        found[name] = PlaceFigures(
            book.facts.memory, book.claimed, book.workers, book.facts.workers_max, book.short,
            until_s if until_s > now_s else None, why if until_s > now_s else "",
        )  # fmt: skip
    return found
