"""What `max_workers` of a pool leaves within one step (pure). Spares count apart: they give way by `Spares`."""

from __future__ import annotations

from collections.abc import Sequence, Set

from .facts import PoolFacts
from .placement import Victim


class PoolLimit:
    """`left`: so many workers more the pool may have now."""

    def __init__(self, most: int, facts: PoolFacts, retired: Set[str]) -> None:
        """`retired`: workers that this step has retired already."""
        workers = [worker for group in facts.groups.values() for worker in group.workers]
        self.but_spares = most - len(workers) - facts.strays
        self.left = self.but_spares - len(facts.spares)
        self._coming = facts.strays + sum(not worker.active or worker.id in retired for worker in workers)

    def comes(self) -> bool:
        """One more may be started as soon as workers that leave have left, and is counted as started."""
        if self.left + self._coming <= 0:
            return False
        self.left -= 1
        return True

    def replace(self, victims: Sequence[Victim]) -> None:
        """They leave from now on, and one is started in their place."""
        if victims:
            self._coming += sum(len(victim.workers) for victim in victims)
            self.left -= 1
