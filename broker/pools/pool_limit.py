"""What `max_workers` of a pool leaves within one step (pure). Spares count apart: they give way by `Spares`."""

from __future__ import annotations

from collections.abc import Sequence, Set
from functools import cached_property

from .facts import PoolFacts
from .placement import Victim


class PoolLimit:
    """`left`: so many workers more the pool may have now."""

    def __init__(self, most: int, facts: PoolFacts, retired: Set[str]) -> None:
        """`retired`: workers that this step has retired already."""
        self._facts = facts
        self._retired = retired
        self.but_spares = most - sum(len(group.workers) for group in facts.groups.values()) - facts.strays
        self.left = self.but_spares - len(facts.spares)
        self._replaced = 0

    @cached_property
    def _leaving(self) -> int:
        """Looked for when the pool has its `max_workers`, for that is in few steps."""
        workers = (worker for group in self._facts.groups.values() for worker in group.workers)
        return self._facts.strays + sum(not worker.active or worker.id in self._retired for worker in workers)

    def comes(self) -> bool:
        """One more may be started as soon as workers that leave have left, and is counted as started."""
        if self.left + self._leaving + self._replaced <= 0:
            return False
        self.left -= 1
        return True

    def replace(self, victims: Sequence[Victim]) -> None:
        """They leave from now on, and one is started in their place."""
        if victims:
            self._replaced += sum(len(victim.workers) for victim in victims)
            self.left -= 1
