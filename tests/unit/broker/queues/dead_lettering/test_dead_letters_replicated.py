"""Dead letters of a replicated queue: once per target, whoever dies in between."""

from __future__ import annotations

import pytest

from clusterbroker.broker.queues.dead_lettering.replicated import RETRY_FIRST_MS, RETRY_MAX_MS, WINDOW
from clusterbroker.broker.remote.messages import SETTLE_REJECT
from tests.unit.broker.remote.owner_support import Stage, head


def dying(count: int, **arguments: object) -> Stage:
    """So many messages were rejected by a client of "b"."""
    stage = Stage(dead_letter_exchange="dlx", **arguments)
    stage.attach("b", consumers=[head(upto=1000)])
    stage.publish("b", 1, *(b"%d" % number for number in range(1, count + 1)))
    stage.commit()
    stage.settle("b", 1, SETTLE_REJECT, (1, count))
    return stage


def numbers(stage: Stage) -> list[int]:
    return [number for number, _, _, _ in stage.buried]


def answer(stage: Stage, rejected: bool = False) -> None:
    buried, stage.buried = stage.buried, []
    for _, _, _, ticket in buried:
        ticket.rejected = ticket.rejected or rejected
        ticket.pass_()
    stage.turn()


def test_nothing_is_buried_before_its_death_is_committed() -> None:
    stage = dying(1)
    assert stage.buried == []
    stage.commit()
    assert [entry[:3] for entry in stage.buried] == [(1, "rejected", b"1")]


def test_it_stays_here_until_its_targets_have_it() -> None:
    stage = dying(1)
    stage.commit()
    assert len(stage.ring.dead()) == 1
    answer(stage)
    stage.commit()
    assert stage.ring.dead() == []


def test_a_new_owner_buries_it_again_under_the_same_number() -> None:
    stage = dying(3)
    stage.commit()
    stage.buried.pop(1)[3].pass_()  # the second is answered
    stage.commit()
    old, stage.buried = stage.buried, []
    stage.fail_over(alive={})
    stage.commit()
    assert numbers(stage) == [1, 3]
    for _, _, _, ticket in old:
        ticket.pass_()  # answers to the dead owner mean nothing
    stage.turn()
    assert len(stage.ring.dead()) == 2


def test_nothing_is_buried_before_everybody_has_attached() -> None:
    stage = dying(1)
    stage.commit()
    stage.fail_over()
    stage.buried.clear()
    stage.commit()
    assert stage.buried == []
    for node in "abc":
        stage.nothing(node)
    assert numbers(stage) == [1]


def test_the_window_bounds_what_is_under_way() -> None:
    stage = dying(WINDOW + 10)
    stage.commit()
    assert len(stage.buried) == WINDOW
    answer(stage)
    assert len(stage.buried) == 10


def test_what_is_due_and_finds_no_room_waits_for_an_answer() -> None:
    """It asked to be woken at a time that was over, and the node turned until there was room."""
    stage = dying(WINDOW + 1, dead_letter_strategy="at-least-once")
    stage.commit()
    stage.buried[0][3].rejected = True
    stage.buried.pop(0)[3].pass_()
    stage.turn()
    assert len(stage.buried) == WINDOW
    stage.wakes.clear()
    stage.turn(RETRY_FIRST_MS)
    assert all(at_ms > stage.now_ms for at_ms in stage.wakes)
    answer(stage)
    assert numbers(stage) == [1]


def test_without_a_route_it_is_dropped() -> None:
    stage = dying(1)
    stage.finds_targets = False
    stage.commit()
    assert stage.ring.dead() == []


def test_at_least_once_tries_again_later_and_later() -> None:
    stage = dying(1, dead_letter_strategy="at-least-once")
    stage.finds_targets = False
    stage.commit()
    assert stage.queue.dead_letters.replicated is not None
    waits = []
    for _ in range(8):
        waits.append(stage.queue.dead_letters.replicated.wake_ms(stage.now_ms) - stage.now_ms)
        stage.turn(waits[-1])
    assert waits == [RETRY_FIRST_MS * 2**n for n in range(6)] + [RETRY_MAX_MS] * 2
    stage.finds_targets = True
    stage.turn(RETRY_MAX_MS)
    assert numbers(stage) == [1]
    answer(stage)
    stage.commit()
    assert stage.ring.dead() == []


def test_a_target_that_refuses_is_tried_again_and_others_pass_by() -> None:
    stage = dying(2, dead_letter_strategy="at-least-once")
    stage.commit()
    first, second = stage.buried
    stage.buried = []
    first[3].rejected = True
    first[3].pass_()
    second[3].pass_()
    stage.commit()
    assert [number for _, number, _ in stage.ring.dead()] == [1]
    stage.turn(RETRY_FIRST_MS)
    assert numbers(stage) == [1]


def test_what_expires_or_is_too_long_dies_the_same_way() -> None:
    stage = Stage(dead_letter_exchange="dlx", max_length=1, message_ttl=100)
    stage.attach("b")
    stage.publish("b", 1, b"1", b"2")
    stage.commit()
    stage.turn(101)
    stage.commit()
    assert [entry[1:3] for entry in stage.buried] == [("maxlen", b"1"), ("expired", b"2")]


def test_what_had_expired_when_it_was_dropped_unread_dies_of_that() -> None:
    """After a fail-over only the head is in memory. What expires later, on its way to its targets, died of `maxlen`."""
    stage = Stage(dead_letter_exchange="dlx", max_length=3)
    stage.attach("b")
    stage.publish("b", 1, b"0")
    stage.publish("b", 2, b"1", ttl_ms=100)
    stage.publish("b", 3, b"2", ttl_ms=5000)
    stage.commit()
    stage.now_ms += 101
    stage.fail_over(alive={})
    stage.attach("b", next_number=4)
    stage.publish("b", 4, b"3", b"4", b"5")
    stage.now_ms += 10_000
    stage.commit()
    assert [entry[1:3] for entry in stage.buried] == [("maxlen", b"0"), ("expired", b"1"), ("maxlen", b"2")]


def test_letters_go_in_the_order_of_their_deaths_whether_their_content_is_in_memory_or_not() -> None:
    stage = Stage(dead_letter_exchange="dlx", max_length=3)
    stage.attach("b")
    stage.publish("b", 1, b"1", b"2", b"3")
    stage.commit()
    stage.fail_over(alive={})  # what is here is on the disk only
    stage.attach("b", next_number=4)
    stage.publish("b", 4, b"4", b"5", b"6", b"7")
    stage.commit()
    assert [body for _, _, body, _ in stage.buried] == [b"1", b"2", b"3", b"4"]
    answer(stage)
    stage.commit()
    assert stage.ring.dead() == []


def test_what_is_tried_again_is_not_behind_all_that_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more dead than a target remembers numbers of, those to be tried again stood behind others that may not pass
    them by: none of them was ever tried again."""
    monkeypatch.setattr("clusterbroker.broker.queues.dead_lettering.replicated.DEAD_SPREAD", 10)
    stage = dying(25, dead_letter_strategy="at-least-once")
    stage.commit()
    assert numbers(stage) == list(range(1, 11))
    answer(stage, rejected=True)
    buried: list[int] = []
    for _ in range(10):
        stage.turn(RETRY_MAX_MS)
        buried += numbers(stage)
        answer(stage)
        stage.commit()
    assert buried == list(range(1, 26))
