"""Consumers that pass messages over, among all others in the simulated cluster."""

from __future__ import annotations

import pytest

from tests.fronts.fussy import settle
from tests.simulation.run import run


@pytest.mark.long
@pytest.mark.parametrize("seed", [3, 4, 5])
def test_nothing_is_lost_where_consumers_pass_messages_over(seed: int) -> None:
    """Nothing confirmed is lost, nothing settled comes again, and what one wants never again another one takes."""
    clients: list[object] = []
    run(seed, seconds=10, raft=False, tamper=lambda world: clients.extend(settle(world)))
    publishers, consumers = clients
    assert sum(one.confirmed for one in publishers) > 0  # type: ignore[attr-defined]
    assert sum(one.settled for one in consumers) > 0  # type: ignore[attr-defined]
    assert sum(one.refused for one in consumers) > 0  # type: ignore[attr-defined]
