"""See `held_lives`."""

from __future__ import annotations

from itertools import chain

import pytest

from tests.property.held_bugs import BUGS
from tests.property.held_lives import live

INVARIANTS = ("L5", "L6", "L7", "L9", "L11", "L12", "E1", "E2")
TRIES = 120
"""Lives, where the one that found a bug does not any more."""


@pytest.mark.parametrize("seed", range(12))
def test_what_links_hold_over_faults(seed: int) -> None:
    live(seed)


@pytest.mark.parametrize("seed", range(8))
def test_what_links_hold_that_pass_messages_over(seed: int) -> None:
    live(seed, choosy=True)


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug = BUGS[name]
    bug.put_in(monkeypatch)
    found = next(
        filter(None, (_violated(seed, bug.choosy) for seed in chain((bug.seed,), range(TRIES)))),
        f"{bug.what}: no life finds it",
    )
    assert found.partition(":")[0] in INVARIANTS


def _violated(seed: int, choosy: bool) -> str:
    try:
        live(seed, choosy=choosy)
    except AssertionError as error:
        return str(error)
    return ""
