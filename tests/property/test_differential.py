"""A few conversations with one node and with three; longer: python -m tests.property.differential --seeds 1000."""

from __future__ import annotations

import pytest

from tests.property.differential import differs

pytestmark = pytest.mark.campaign


@pytest.mark.parametrize("faults", [False, True], ids=["calm", "faults"])
@pytest.mark.parametrize("seeds", [range(60, 80), range(80, 100)], ids=["first", "second"])
def test_clients_of_three_nodes_hear_what_those_of_one_hear(seeds: range, faults: bool) -> None:
    for seed in seeds:
        story = differs(seed, faults)
        assert not story, "\n".join(story)
