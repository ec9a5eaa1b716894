"""The simulated cluster, with a small budget: lives without a bug end well, and bugs that are put in are found.

More of both: python -m tests.property.replication_world --help.
"""

from __future__ import annotations

import pytest

from tests.property.replication_mutations import MUTATIONS
from tests.property.replication_world import live, seeds_until_found

pytestmark = pytest.mark.campaign

LIVES_MAX = 40
"""In so many lives from its first seed on every bug shows; most do in the first few."""
FIRST = {"stale_owner_obeyed": 19}
"""The first seed for bugs that show late, to save time; for the others it is 1."""


@pytest.mark.parametrize("seed", range(1, 7))
def test_a_life_with_faults_breaks_no_invariant(seed: int) -> None:
    stats, wrong = live(seed)
    assert wrong is None, f"python -m tests.property.replication_world --seed {seed}: {wrong}"
    assert stats["confirmed"] > 100, "the cluster did something in this life"


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_bug_is_found(mutation: str) -> None:
    assert seeds_until_found(mutation, FIRST.get(mutation, 1), LIVES_MAX), (
        f"{mutation} lived {LIVES_MAX} lives and was not noticed"
    )
