"""Admission: which waiting key gets the next start. Start-time fair queueing over tenants (design page, 4.8).

A tenant has a finish tag F. A request of cost `m * L` (bytes a worker takes, times the seconds its start takes) would
begin at the start tag S = max(V, F) of its tenant; the lowest S is next, and then

    V = S (virtual time: the start tag of the last admitted one)        F = S + cost / weight

While two tenants wait, what they got, divided by their weights, differs by at most one largest cost of each (Goyal,
Vin, Cheng 1996, theorem 1), whatever the number of their keys: a tenant with a thousand keys gets no more than one with
ten. A tenant that was away begins at V: no credit is saved.

Order: keys that starve (waiting > `starve_s`), longest first; then first workers of keys, fairly; then further workers,
fairly. Starved keys are charged as others are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from .facts import GroupFacts, GroupState, PoolFacts, Settings

TENANTS_MAX: Final = 10_000
"""Tags kept; those that lie behind the virtual time say nothing and go first."""


@dataclass(frozen=True, slots=True)
class Wish:
    """One worker that a key is to get."""

    key: str
    tenant: str
    cost: float
    """Bytes times seconds."""
    since_s: float
    """Waiting since."""
    workers: int
    """Of the key, before it."""
    extra: bool = False
    """One of a new version, to replace another."""
    starved: bool = False

    @property
    def first(self) -> bool:
        """The key has no worker."""
        return not self.workers


class Admission:
    """Virtual time and tags of tenants."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._virtual = 0.0
        self._finish: dict[str, float] = {}

    def start_tag(self, tenant: str) -> float:
        return max(self._virtual, self._finish.get(tenant, 0.0))

    def order(self, wishes: Iterable[Wish]) -> Iterator[Wish]:
        """Wishes in the order of admission. Call `admitted` before taking the next one, for each that is granted."""
        starved: list[Wish] = []
        queues: dict[bool, dict[str, list[Wish]]] = {True: {}, False: {}}
        for wish in wishes:
            if wish.starved:
                starved.append(wish)
            else:
                queues[wish.first].setdefault(wish.tenant, []).append(wish)
        yield from sorted(starved, key=lambda wish: (wish.since_s, wish.key))
        for first in (True, False):
            tenants = queues[first]
            for waiting in tenants.values():
                waiting.sort(key=lambda wish: (wish.since_s, wish.key), reverse=True)
            while tenants:
                tenant = min(tenants, key=lambda name: (self.start_tag(name), name))
                yield tenants[tenant].pop()
                if not tenants[tenant]:
                    del tenants[tenant]

    def admitted(self, wish: Wish) -> None:
        """A wish was granted: its tenant pays."""
        start = self.start_tag(wish.tenant)
        self._virtual = max(self._virtual, start)
        self._finish[wish.tenant] = start + wish.cost / self._weights.get(wish.tenant, 1.0)
        if len(self._finish) > TENANTS_MAX:
            self._finish = {name: tag for name, tag in self._finish.items() if tag > self._virtual}


class Parked:
    """Wishes of groups that wait for their first worker, and go on to without any event. These are not measured again
    until then: there may be as many as the pool has keys."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.wishes: dict[str, Wish] = {}

    def of_now(self, facts: PoolFacts, now_s: float) -> list[Wish]:
        """As they were, but for those that starve by now."""
        limit_s = now_s - self._settings.starve_s
        for key, wish in self.wishes.items():
            if wish.since_s < limit_s and not wish.starved and facts.groups[key].busy:
                self.wishes[key] = replace(wish, starved=True)
        return list(self.wishes.values())

    def park(self, wishes: Iterable[Wish], groups: Iterable[GroupFacts], waiting: Collection[str]) -> None:
        """At the end of a step. `waiting`: keys that it gave no worker."""
        firsts = {wish.key: wish for wish in wishes if wish.first and wish.key in waiting}
        for group in groups:
            lasting = group.busy or (group.state is GroupState.ACTIVE and not self._settings.scale_to_zero_while_bound)
            if not group.workers and lasting and (wish := firsts.get(group.key)) is not None:
                self.wishes[group.key] = wish
