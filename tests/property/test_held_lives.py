"""See `held_lives`."""

from __future__ import annotations

from itertools import chain

import pytest

from tests.budget import campaign
from tests.property.held_bugs import BUGS, Bug
from tests.property.held_lives import live

INVARIANTS = ("L5", "L6", "L7", "L9", "L11", "L12", "E1", "E2", "O1", "T1", "T2", "T3", "stays in the queue")
TRIES = 120
"""Lives, where the one that found a bug does not any more."""


@pytest.mark.parametrize(
    "seed", [*range(12), 42893]
)  # that: an acknowledgement is void, and its message comes here again
def test_what_links_hold_over_faults(seed: int) -> None:
    live(seed)


@pytest.mark.campaign
def test_fresh_seeds() -> None:
    campaign("receiver_links", live, "scripts/simulate links --role receiver --count 1 --seed")


@pytest.mark.parametrize("seed", [*range(8), 40365, 74664])  # a link comes to outcomes that were not heard
def test_what_links_hold_that_pass_messages_over(seed: int) -> None:
    live(seed, choosy=True)


@pytest.mark.parametrize("seed", [*range(12), 40114, 74664])
def test_outcomes_that_clients_wait_for(seed: int) -> None:
    live(seed, patient=True)


@pytest.mark.parametrize("seed", [*range(6), 40029, 40069, 40386])  # those: a transaction outlives what its link held
def test_transactions_over_two_queues(seed: int) -> None:
    live(seed, apart=True)


@pytest.mark.parametrize("seed", range(6))
def test_the_order_of_one_link(seed: int) -> None:
    live(seed, alone=True)


@pytest.mark.parametrize("seed", [*range(4), 90401, 90712, 90765, 91457, 101410, 101518, 202849])
def test_alarms_of_the_owner(seed: int) -> None:
    live(seed, alarmed=True)


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug = BUGS[name]
    bug.put_in(monkeypatch)
    found = next(
        filter(None, (_violated(seed, bug) for seed in chain((bug.seed,), range(TRIES)))),
        f"{bug.what}: no life finds it",
    )
    assert found.partition(":")[0] in INVARIANTS


def _violated(seed: int, bug: Bug) -> str:
    try:
        live(seed, choosy=bug.choosy, patient=bug.patient, apart=bug.apart, alone=bug.alone, alarmed=bug.alarmed)
    except AssertionError as error:
        return str(error)
    return ""
