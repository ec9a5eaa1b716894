"""Every failure that the simulation has found, by name: the seed, and what was wrong.

A seed means what it meant only as long as nothing draws from its chance in another order, so each of these is also a
test of its own beside the code that was wrong. They are kept because they were hard once.
"""

from __future__ import annotations

import pytest

from tests.simulation.run import run

FOUND = {
    "a queue that stepped down was woken by its timer, and its node died": 2,
    "a replica's ring was recovered with a negative count of ready messages": 9,
    "a rotating queue whose consumers were all at nodes without a replica was never served": 80,
    "a copy that ended while its node was down came back with messages that had left": 30,
    "a settled message of a queue in memory was asked for from the journal": 12,
}


@pytest.mark.parametrize("seed", list(FOUND.values()), ids=list(FOUND))
def test_found(seed: int) -> None:
    report = run(seed, seconds=12.0)
    assert report.counts["confirms"] > 0
