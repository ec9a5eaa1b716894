"""Bugs that are put into the policy, one guard out at a time, and the scenario in which each shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest

from clusterbroker.broker.pools import demand as demand_module
from clusterbroker.broker.pools.admission import Admission, Wish
from clusterbroker.broker.pools.demand import Demand
from clusterbroker.broker.pools.facts import GroupFacts, WorkerState
from clusterbroker.broker.pools.failures import Failures
from clusterbroker.broker.pools.placement import Costs, Placement
from clusterbroker.broker.pools.policy import Policy
from clusterbroker.broker.pools.replacing import Replacing

Bug = Callable[[pytest.MonkeyPatch], None]


def need_counted_from_running(patch: pytest.MonkeyPatch) -> None:
    """A worker counts when it is seen ready, and not from its launch on."""
    patch.setattr(Policy, "_counted", lambda _self, active: sum(worker.state is WorkerState.READY for worker in active))


def back_off_reset_by_start(patch: pytest.MonkeyPatch) -> None:
    """A start that is under way ends the run of failures; readiness has to."""
    launch = Placement.launch
    policies: list[Policy] = []
    begin = Policy.__init__

    def init(self: Policy, *arguments: object, **options: object) -> None:
        begin(self, *arguments, **options)  # type: ignore[arg-type]
        policies[:] = [self]

    def launched(self: Placement, key: str, place: str, now_s: float) -> int:
        policies[0].failures.forget(key)
        return launch(self, key, place, now_s)

    patch.setattr(Policy, "__init__", init)
    patch.setattr(Placement, "launch", launched)


def eviction_of_a_busy_group(patch: pytest.MonkeyPatch) -> None:
    """A group that has been at one message for long counts as idle."""
    patch.setattr(Policy, "_evictable", lambda _self, group, _now_s: not group.pinned and not group.ready)


def costs_never_learnt(patch: pytest.MonkeyPatch) -> None:
    """The template's memory counts for ever."""
    patch.setattr(Costs, "learn_peak", lambda _self, _key, _peak: None)


def fairness_by_key_count(patch: pytest.MonkeyPatch) -> None:
    """Each key costs the same."""
    admitted = Admission.admitted

    def charged(self: Admission, wish: Wish) -> None:
        admitted(self, Wish(wish.key, wish.tenant, 1.0, wish.since_s, wish.workers))

    patch.setattr(Admission, "admitted", charged)


def scale_down_to_the_current_need(patch: pytest.MonkeyPatch) -> None:
    """What was needed a moment ago does not count."""
    patch.setattr(demand_module, "WINDOW_S", 0.0)


def idle_while_held(patch: pytest.MonkeyPatch) -> None:
    """A long computation is taken for idleness, as by those who count ready messages."""
    patch.setattr(
        Demand,
        "_is_event",
        lambda self, group: group.ready > 0 or (group.arrived, group.settled) != (self.arrived, self.settled),
    )
    patch.setattr(GroupFacts, "busy", property(lambda self: self.ready > 0))


def starved_keys_wait_their_turn(patch: pytest.MonkeyPatch) -> None:
    """No key goes first, however long it waits."""
    order = Admission.order

    def unstarved(self: Admission, wishes: list[Wish]) -> object:
        return order(self, [Wish(w.key, w.tenant, w.cost, w.since_s, w.workers, w.extra) for w in wishes])

    patch.setattr(Admission, "order", unstarved)


def stop_without_grace(patch: pytest.MonkeyPatch) -> None:
    """A retired worker is stopped at once, whatever it holds."""
    from clusterbroker.broker.pools.orders import Stop

    def stops(_self: Policy, group: GroupFacts, _now_s: float) -> list[Stop]:
        return [Stop(group.key, each.id, "now") for each in group.workers if each.state is WorkerState.RETIRING]

    patch.setattr(Policy, "_stops", stops)


def trials_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    """Crashes of ready workers do not make anybody wait, and nothing bounds the starts."""
    patch.setattr(Failures, "crashed", lambda _self, _key, _now_s: None)
    patch.setattr(Demand, "may_start", lambda _self, _workers, _ordered, _now_s: True)


def old_ones_leave_before_new_ones_are_ready(patch: pytest.MonkeyPatch) -> None:
    """A worker that starts counts as one that serves."""
    patch.setattr(Replacing, "due", Replacing.old)


def all_of_a_version_at_once(patch: pytest.MonkeyPatch) -> None:
    """As many new ones start as there are old ones."""
    wishes = Policy._wishes

    def unbounded(self: Policy, group: GroupFacts, *rest: Any) -> Any:
        settings, self.settings = self.settings, replace(self.settings, surge=100)
        try:
            return iter([*wishes(self, group, *rest)])
        finally:
            self.settings = settings

    patch.setattr(Policy, "_wishes", unbounded)


def nobody_leaves_for_the_pools_limit(patch: pytest.MonkeyPatch) -> None:
    """Where the pool has its `max_workers`, a key waits until another one is at rest for long."""
    patch.setattr(Placement, "slot", lambda *_arguments: ("", []))


def successors_beside_those_that_leave(patch: pytest.MonkeyPatch) -> None:
    """With `surge` = 0, what is on its way out counts as gone."""
    patch.setattr(Replacing, "in_the_way", lambda _self, _group, _facts: 0)


FOUND_IN: Final[dict[Bug, tuple[str, str]]] = {
    need_counted_from_running: ("ramp", "I3"),
    back_off_reset_by_start: ("poison", "back"),
    eviction_of_a_busy_group: ("one_hot_key", "I10"),
    costs_never_learnt: ("growing_keys", "I9"),
    fairness_by_key_count: ("two_tenants", "fair"),
    scale_down_to_the_current_need: ("periodic", "down"),
    idle_while_held: ("long_work", "idle"),
    starved_keys_wait_their_turn: ("one_hot_key", "I8"),
    stop_without_grace: ("one_hot_key", "I10"),
    trials_are_not_counted: ("poison", "I13"),
    old_ones_leave_before_new_ones_are_ready: ("rolling", "59"),
    all_of_a_version_at_once: ("rolling", "I3"),
    nobody_leaves_for_the_pools_limit: ("one_hot_key", "I8"),
    successors_beside_those_that_leave: ("rolling", "59"),
}
"""Scenario, and the rule that is broken (`checkers`). The first seven are of the design page."""
