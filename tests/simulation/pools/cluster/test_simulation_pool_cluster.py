"""Seeds of a pool on three nodes, real but for time; and the same world with a bug put in, which it must find.

A failure names its seed: `scripts/simulate pools --cluster --seed N --count 1` runs it again.
"""

from __future__ import annotations

import pytest

from tests.budget import campaign
from tests.simulation.pools import bugs as policy_bugs
from tests.simulation.pools.cluster import bugs as cluster_bugs
from tests.simulation.pools.cluster.bugs import FOUND_IN, Bug
from tests.simulation.pools.cluster.run import SCENARIOS, SELDOM, run

pytestmark = pytest.mark.campaign

SEEDS = 12
PAGE = {
    "epoch guard left out of Launch": cluster_bugs.launch_without_the_epochs_guard,
    "of Revoke": cluster_bugs.revoke_without_the_epochs_guard,
    "need counted from running": policy_bugs.need_counted_from_running,
    "unknown list taken for empty": cluster_bugs.unknown_list_taken_for_empty,
    "label without cluster": cluster_bugs.label_without_cluster,
    "drop without asking the owner": cluster_bugs.drop_without_asking_the_owner,
    "move without numbers": cluster_bugs.move_without_numbers,
    "settle before the target's commit": cluster_bugs.settle_before_the_targets_commit,
    "TTL begun anew by the move": cluster_bugs.time_to_live_begun_anew_by_the_move,
    "binding before the queue": cluster_bugs.binding_before_the_queue,
    "idle while held": policy_bugs.idle_while_held,
    "idle clocks kept over a take-over as zero": cluster_bugs.idle_clocks_of_a_take_over_are_zero,
    "readiness of a former launch": cluster_bugs.readiness_of_a_former_launch,
    "back-off reset by start instead of ready": policy_bugs.back_off_reset_by_start,
    "eviction of a busy group": policy_bugs.eviction_of_a_busy_group,
    "costs never learnt": policy_bugs.costs_never_learnt,
    "fairness by key count": policy_bugs.fairness_by_key_count,
    "credential valid after revoke": cluster_bugs.credential_valid_after_revoke,
    "foreman acts without lease": cluster_bugs.foreman_acts_without_lease,
    "answer without number": cluster_bugs.answer_without_number,
    "scale-down to the current need instead of the window's maximum": policy_bugs.scale_down_to_the_current_need,
    "suspects handed out together": cluster_bugs.suspects_handed_out_together,
}
"""The 22 bugs of the design page."""


def test_fresh_seeds_within_the_budget() -> None:
    reports = campaign("pool_cluster", run, "scripts/simulate pools --cluster --count 1 --seed")
    assert sum(report.acked for report in reports) > 0, "something was done"


@pytest.mark.matrix
@pytest.mark.parametrize("scenario", [*SCENARIOS, *SELDOM])
def test_each_scenario(scenario: str) -> None:
    report = run(1, scenario)
    assert report.acked > 0


def test_a_request_that_comes_behind_the_end_of_its_group_is_refused() -> None:
    """Its node has the map of before."""
    assert run(300002).acked > 0


def test_a_seed_gives_the_same_run_again() -> None:
    assert run(2, "owners") == run(2, "owners")


def test_bugs_of_the_design_page_are_all_put_in() -> None:
    known = {*FOUND_IN, *policy_bugs.FOUND_IN}
    assert len(PAGE) == 22
    assert known >= set(PAGE.values())


@pytest.mark.matrix
@pytest.mark.parametrize("bug", FOUND_IN, ids=lambda bug: bug.__name__)
def test_a_bug_that_is_put_in_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario, first, words = FOUND_IN[bug]
    bug(monkeypatch)
    for seed in range(first, first + SEEDS):
        try:
            run(seed, scenario)
        except AssertionError as error:
            if str(error).startswith(words):
                return
    raise AssertionError(f"{SEEDS} seeds do not find it: {bug.__doc__}")
