"""How long the owner of a queue may take to answer an Attach."""

from __future__ import annotations

from itertools import pairwise

import pytest

from clusterbroker.broker.fronts.amqp091.subscription import Subscription
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.remote.messages import Attach, Attached
from clusterbroker.broker.remote.remote_queues import RETRY_MS, SPANS_MAX
from tests.unit.broker.remote.pair import Channel, Pair, message

STEP_MS = 100


def asking() -> Pair:
    pair = Pair()
    pair.queue.publish([message()], Ticket(1, 1, lambda _: None), pair.now_ms)
    pair.turn()
    return pair


def gens(pair: Pair) -> list[int]:
    return [one.gen for attach in pair.heard(Attach) for one in attach.queues]


@pytest.mark.parametrize("answers_ms", [400, 600, 1300, 3900, 4100, 9000, 20_000])
def test_an_owner_that_is_always_slow_is_attached(answers_ms: int) -> None:
    """Each Attach makes the answer to the one before void: all were repeated too early for its answers."""
    pair, answers = asking(), dict[int, int]()
    while not pair.queue.attached and pair.now_ms < 4 * answers_ms + 4_000:
        answers.update(dict.fromkeys(gens(pair), pair.now_ms + answers_ms))
        pair.turn(later_ms=STEP_MS)
        for gen in [gen for gen, at_ms in answers.items() if at_ms <= pair.now_ms]:
            del answers[gen]
            pair.say(Attached(pair.id, pair.queue.entity.epoch, gen, 0))
    assert pair.queue.attached


def test_each_repetition_may_take_twice_as_long() -> None:
    pair, asked = asking(), list[int]()
    while len(asked) < 7:
        asked += [pair.now_ms for _ in gens(pair)]
        assert pair.remote_queues.next_wake_ms is not None
        pair.turn(later_ms=pair.remote_queues.next_wake_ms - pair.now_ms)
    waited = [(later - before) // RETRY_MS for before, later in pairwise(asked)]
    assert waited == [1, 2, 4, SPANS_MAX, SPANS_MAX, SPANS_MAX]


@pytest.mark.parametrize("again", ["attached", "linked"])
def test_patience_begins_anew(again: str) -> None:
    pair = asking()
    for _ in range(3):
        pair.turn(later_ms=RETRY_MS)
    if again == "attached":
        pair.attach()
    pair.cut()
    pair.all()
    pair.link()
    assert len(gens(pair)) == 1
    pair.turn(later_ms=RETRY_MS)
    assert len(gens(pair)) == 1


def test_what_was_not_answered_long_ago_says_nothing_of_an_owner() -> None:
    """Nobody had anything to say of the queue since: an answer that is late now is not late by all of that time."""
    pair, channel = Pair(), Channel()
    consumer = Subscription(
        channel, channel.ledger, pair.queue, "c", no_ack=False, exclusive=False, prefetch=0, priority=0, arguments={}
    )
    pair.queue.subscribe(consumer, pair.now_ms, lambda _: None)
    pair.turn()
    pair.queue.unsubscribe(consumer, pair.now_ms)
    pair.turn(later_ms=RETRY_MS)
    pair.turn(later_ms=100_000)
    pair.all()
    pair.queue.publish([message()], Ticket(1, 1, lambda _: None), pair.now_ms)
    pair.turn()
    (first,) = gens(pair)
    later: list[int] = []
    for _ in range(2 * SPANS_MAX):
        pair.turn(later_ms=RETRY_MS)
        later = later or gens(pair)
    assert later
    pair.all()
    pair.say(Attached(pair.id, pair.queue.entity.epoch, first, 0))
    for _ in range(3 * SPANS_MAX):
        pair.turn(later_ms=RETRY_MS)
    assert gens(pair), "it is not asked again for as long as nobody has answered"
