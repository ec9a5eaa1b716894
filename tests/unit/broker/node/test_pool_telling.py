"""Groups of a node are told to their controllers within the node's bound."""

from __future__ import annotations

import pytest

from clusterbroker.broker.node.pool_desk import PoolDesk
from clusterbroker.broker.pools import telling
from clusterbroker.broker.pools.messages import GroupTold
from tests.unit.broker.node.test_pool_figures import Started

KEYS = 10
SECONDS = 30


@pytest.mark.parametrize("bound", [2000, 10])
def test_all_groups_are_told_in_turn_and_no_more_than_the_bound(monkeypatch: pytest.MonkeyPatch, bound: int) -> None:
    monkeypatch.setattr(telling, "ROWS_PER_S", bound)
    world = Started().world
    caller = world.client()
    for key in range(KEYS):
        caller.publish("core", str(key))
    world.wait(30_000)
    told: dict[str, int] = dict.fromkeys(map(str, range(KEYS)), 0)
    tell = PoolDesk.tell_controller

    def counted(desk: PoolDesk, row: object, again: bool = True) -> None:
        if isinstance(row, GroupTold):
            told[row.key] += 1
        tell(desk, row, again)  # type: ignore[arg-type]

    monkeypatch.setattr(PoolDesk, "tell_controller", counted)
    for _ in range(10 * SECONDS):
        for key in range(KEYS):
            caller.publish("core", str(key))
        world.wait(100)
    least = min(4 * SECONDS * KEYS, bound * SECONDS)
    assert 0.7 * least <= sum(told.values()) <= 1.4 * least
    assert min(told.values()) >= 0.5 * max(told.values())
