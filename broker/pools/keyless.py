"""Workers that are started without a key, spares and those of several keys: when they want another step (pure)."""

from __future__ import annotations

from clusterbroker.cluster.wiring.pool_entities import NO_KEY

from .facts import PoolFacts, WorkerState
from .failures import Failures
from .placement import Costs, Placement


class Keyless:
    """Of one policy. Each step begins with `_open`."""

    def __init__(self, costs: Costs, placement: Placement, failures: Failures) -> None:
        self._costs = costs
        self._placement = placement
        self.failures = failures
        self._facts = PoolFacts({}, {})
        self._missing = 0
        """That are started as soon as a place has room."""
        self._started = False

    def _open(self, facts: PoolFacts) -> None:
        self._facts = facts
        self._missing = 0
        self._started = False

    def restless(self, now_s: float, suspended: bool) -> bool:
        """Something of them changes without an event. `suspended`: so are places, for a time."""
        if self._started or any(each.state is not WorkerState.READY for each in self._facts.spares):
            return True
        if not self._missing:
            return False
        if suspended or not self.failures.may_start(NO_KEY, now_s):
            return True
        return self._placement.may_have_room(self._costs.memory(NO_KEY))
