"""A few lives of a queue in a cluster, and fresh ones; longer: python -m tests.property.cluster_lives --seeds 1000."""

from __future__ import annotations

import pytest

from tests.budget import campaign, examples
from tests.property.cluster_lives import broken


@pytest.mark.parametrize("seed", range(examples(8)))
def test_a_life_of_known_seed(seed: int) -> None:
    story = broken(seed)
    assert not story, "\n".join(story)


@pytest.mark.campaign
def test_fresh_lives() -> None:
    """Those of the commit."""

    def live(seed: int) -> None:
        story = broken(seed)
        assert not story, "\n".join(story)

    campaign("cluster_lives", live, "python -m tests.property.cluster_lives --seed")
