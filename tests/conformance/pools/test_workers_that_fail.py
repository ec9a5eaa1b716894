"""Workers whose starts fail, on one node and on three (rules 57 and 58).

By its name this file is the last one of those that share nodes: rule 58 takes a minute, in which the others run.
"""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta

import pytest

from clusterbroker_workers import Unserved
from tests.faults.pools import PATIENCE_S, eventually

from ..marks import rule
from .started import HOPELESS, StartedNodes

pytestmark = pytest.mark.processes
LATER_S = 60.0


@pytest.fixture
def pool(pool_name: str) -> str:
    return pool_name


@rule("57")
def test_a_worker_that_never_gets_ready_is_a_failure(nodes: StartedNodes, pool: str) -> None:
    nodes.declare(pool, "slow", start_timeout_s=1, start_failures_max=1)
    with nodes.caller(pool=pool) as caller, pytest.raises(Unserved) as heard:
        caller.call("42", timeout_s=60)
    assert heard.value.reason == "start_failed"
    assert "not ready after 1 s" in heard.value.detail
    eventually("it was stopped", lambda: not nodes.workers(pool))


def test_failed_starts_are_counted(nodes: StartedNodes, pool: str) -> None:
    nodes.declare(pool, "dies", start_failures_max=2)
    with nodes.caller(pool=pool) as caller, pytest.raises(Unserved):
        caller.call("42", timeout_s=60)
    eventually("it failed twice", lambda: nodes.metric(pool, "start_failures_total") == 2)
    assert nodes.metric(pool, "requests_total") == 1


@rule("58")
def test_callers_hear_of_starts_that_fail_and_another_is_tried_later(nodes: StartedNodes) -> None:
    """The pool began with the nodes: the minute has passed with the tests before this one, of all that ran."""
    heard = nodes.hopeless.result(PATIENCE_S)
    assert [error.reason for error in heard] == ["start_failed"] * 2
    assert "exit status 3" in heard[0].detail
    starts = eventually(
        "one more start is tried", lambda: (found := nodes.lines("worker.started", pool=HOPELESS))[2:] and found, 100
    )
    times = [datetime.fromisoformat(str(one["timestamp"])) for one in starts]
    for former, later in itertools.pairwise(times[1:]):
        assert later - former >= timedelta(seconds=LATER_S - 1), "one at a time, and not before"
