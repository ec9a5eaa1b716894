"""What a queue's log hears of later (`queues.log`)."""

from __future__ import annotations

import time
from typing import Any

import pytest

from clusterbroker.broker.queues.log import MessageLog
from tests.unit.broker.fronts.amqp091.harness import World


@pytest.fixture
def log() -> MessageLog:
    world: Any = World()
    world.client().declare("q")
    found: MessageLog = world.queue("q").log
    return found


def test_an_idle_log_answers_when_nothing_is_left_to_write(log: MessageLog) -> None:
    """No group comes that would say so."""
    told: list[str] = []
    one, two = log.begin(), log.begin()
    mark = log.commits
    log.when_durable(lambda: told.append("durable"))
    log.finish(one)
    assert not told
    assert not log.durable(mark)
    log.finish(two)
    assert told == ["durable"]
    assert log.durable(mark)
    assert not log.unfinished


def test_only_what_began_before_holds_a_mark(log: MessageLog) -> None:
    one = log.begin()
    log.group_ended()
    log.group_ended()
    earlier, later = one.began - 1, one.began
    log.group_ended()
    assert log.durable(earlier)
    assert not log.durable(later)
    log.finish(one)
    assert log.durable(later)


def test_very_many_cost_no_more_each(log: MessageLog) -> None:
    def spent(count: int) -> float:
        begun = time.process_time()
        for one in [log.begin() for _ in range(count)]:
            log.durable(log.commits)
            log.finish(one)
        return (time.process_time() - begun) / count

    few = min(spent(500) for _ in range(5))
    assert spent(20_000) < 10 * few
