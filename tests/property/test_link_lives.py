"""Lives of recoverable links, and that a bug in what nodes know of them is found (docs/mutations.md)."""

from __future__ import annotations

import pytest

from tests.budget import campaign, examples
from tests.property.link_lives import Broken, life
from tests.property.link_mutations import MUTATIONS, put_in

SEEDS_MAX = 60


@pytest.mark.parametrize("seed", range(1, 1 + examples(20)))
def test_every_delivery_is_there_once(seed: int) -> None:
    life(seed)


@pytest.mark.campaign
def test_fresh_seeds() -> None:
    campaign("sender_links", life, "scripts/simulate links --role sender --count 1 --seed")


@pytest.mark.parametrize("bug", sorted(MUTATIONS))
def test_a_bug_is_found(bug: str) -> None:
    with put_in(MUTATIONS[bug]):
        for seed in range(1, SEEDS_MAX):
            try:
                life(seed)
            except Broken:
                return
    pytest.fail(f"{SEEDS_MAX} lives do not find {bug}")
