"""Back-off, failed groups, trial starts, suspended places."""

from __future__ import annotations

from clusterbroker.broker.pools.failures import BACKOFF_MAX_S, FAILED_S, PLACE_KEYS, SPREAD, STABLE_S, Failures


def wait_s(failures: Failures, key: str, now_s: float) -> float:
    until_s = failures.waits_until(key)
    assert until_s is not None
    return until_s - now_s


def test_back_off_doubles_to_a_minute() -> None:
    failures = Failures(start_failures_max=100)
    now_s, expected_s = 0.0, 1.0
    for _ in range(12):
        failures.failed_start("k", "p", "exit status 1", now_s)
        assert expected_s <= wait_s(failures, "k", now_s) <= expected_s * (1 + SPREAD)
        assert not failures.may_start("k", now_s + expected_s * 0.99)
        now_s += wait_s(failures, "k", now_s)
        assert failures.may_start("k", now_s)
        expected_s = min(expected_s * 2, BACKOFF_MAX_S)


def test_failed_then_one_trial() -> None:
    failures = Failures(start_failures_max=3)
    assert failures.failed_start("k", "p", "x", 0.0) is None
    assert failures.failed_start("k", "p", "x", 2.0) is None
    assert failures.failed_start("k", "p", "x", 5.0) == 5.0 + FAILED_S
    assert failures.failed_until("k", 6.0) == 65.0
    assert failures.failed_until("k", 65.0) is None
    assert failures.may_start("k", 65.0)
    assert failures.on_trial("k")
    assert failures.failed_start("k", "p", "x", 66.0) == 66.0 + FAILED_S, "the trial failed"
    failures.became_ready("k", "p")
    assert failures.failed_until("k", 67.0) is None
    assert failures.may_start("k", 67.0)


def test_crashes_of_ready_workers_back_off_until_one_stays() -> None:
    failures = Failures(start_failures_max=3)
    now_s = 0.0
    for level in range(6):
        failures.crashed("k", now_s)
        failures.crashed("k", now_s)  # one that ends together with it
        assert wait_s(failures, "k", now_s) >= 2.0**level
        now_s += wait_s(failures, "k", now_s)
        failures.became_ready("k", "p")
        assert failures.failed_until("k", now_s) is None, "callers get answers by the delivery limit"
    failures.stayed("k", now_s - 1_000, now_s + STABLE_S)
    assert failures.on_trial("k"), "one that was there before proves nothing"
    failures.stayed("k", now_s, now_s + STABLE_S)
    assert not failures.on_trial("k")


def test_a_place_is_suspended_and_not_its_keys() -> None:
    failures = Failures(start_failures_max=2)
    for number in range(PLACE_KEYS):
        assert failures.suspend("p", others=True, now_s=0.0) is None
        failures.failed_start(f"k{number}", "p", "no such image", 0.0)
    assert failures.suspend("p", others=False, now_s=0.0) is None, "there is no other place: keys fail"
    found = failures.suspend("p", others=True, now_s=1.0)
    assert found is not None
    assert found[1] == f"{PLACE_KEYS} keys did not start here; the last one: no such image"
    assert failures.is_suspended("p", 1.0)
    assert all(failures.may_start(f"k{number}", 1.0) for number in range(PLACE_KEYS))
    assert failures.failed_start("k0", "q", "x", 2.0) is None, "the one before was the place's"


def test_a_group_that_is_gone_keeps_its_back_off() -> None:
    failures = Failures(start_failures_max=5)
    failures.failed_start("k", "p", "x", 0.0)
    failures.gone("k", 0.5)
    assert not failures.may_start("k", 0.6)
    failures.failed_start("other", "p", "x", 0.0)
    failures.gone("other", 100.0)
    assert not failures.on_trial("k"), "both are forgotten once they are over"
    assert not failures.on_trial("other")
    failures.failed_start("k", "p", "x", 200.0)
    failures.forget("k")
    assert failures.may_start("k", 200.0)
