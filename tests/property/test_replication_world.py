"""The simulated cluster, with a small budget: lives without a bug end well, and bugs that are put in are found.

More of both: python -m tests.property.replication_world --help.
"""

from __future__ import annotations

import pytest

from tests.property.replication_world import live

LIVES = range(1, 11)

FOUND_BY = {}  # filled in below


@pytest.mark.parametrize("seed", LIVES)
def test_a_life_with_faults_breaks_no_invariant(seed: int) -> None:
    stats, wrong = live(seed)
    assert wrong is None, f"python -m tests.property.replication_world --seed {seed}: {wrong}"
    assert stats["confirmed"] > 100, "the cluster did something in this life"
