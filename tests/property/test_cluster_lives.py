"""A few lives of a queue in a cluster, and fresh ones; longer: python -m tests.property.cluster_lives --seeds 1000."""

from __future__ import annotations

import os
import time

import pytest

from tests.budget import examples
from tests.property.cluster_lives import broken

BUDGET_S = 15.0


@pytest.mark.parametrize("seed", range(examples(8)))
def test_a_life_of_known_seed(seed: int) -> None:
    story = broken(seed)
    assert not story, "\n".join(story)


@pytest.mark.campaign
def test_fresh_lives() -> None:
    """Which seeds follows from the time, and a failure names its seed: `--seed N` tells its story again."""
    seed = int(os.environ.get("CLUSTER_LIVES_SEED", time.time_ns() // 1_000_000 % 1_000_000_000))
    end_s = time.monotonic() + BUDGET_S
    while time.monotonic() < end_s:
        story = broken(seed)
        assert not story, "\n".join(story)
        seed += 1
