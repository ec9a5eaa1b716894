"""See `held_lives`."""

from __future__ import annotations

import pytest

from tests.property.held_lives import live


@pytest.mark.parametrize("seed", range(12))
def test_what_links_hold_over_faults(seed: int) -> None:
    live(seed)
