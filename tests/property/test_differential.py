"""A few conversations with one node and with three; longer: python -m tests.property.differential --seeds 1000."""

from __future__ import annotations

import pytest

from tests.budget import campaign
from tests.property.differential import differs

pytestmark = pytest.mark.campaign


def test_clients_of_three_nodes_hear_what_those_of_one_hear() -> None:
    def talk(seed: int) -> None:
        for faults in (False, True):
            story = differs(seed, faults)
            assert not story, "\n".join(story)

    campaign("differential", talk, "python -m tests.property.differential --seeds 1 --first")
